# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the SmartIO tools print, in any bytes."""

from __future__ import annotations

from dataclasses import fields
from typing import Iterator

from ...plugins.module_utils._pci.address import normalise
from ...plugins.module_utils._smartio import output
from ...plugins.module_utils._smartio.errors import ToolUnreadable
from ...plugins.module_utils._smartio.model import FabricDevice, PoolEntry, normalise_fdid
from .target import Target, samples

KEYS = {
    "name": "Name",
    "available": "Available",
    "location": "Location",
    "adapter": "Adapter",
    "node_id": "NodeId",
    "bdf": "Remote BDF",
    "slot": "Physical slot",
    "serial": "Serial number",
    "uuid": "UUID",
    "vendor_id": "Vendor ID",
    "device_id": "Device ID",
    "subsystem_vendor_id": "Subsystem vendor ID",
    "subsystem_device_id": "Subsystem device ID",
    "users": "Local users",
}


def run(data: bytes) -> None:
    """Every parser reads the same text: which command printed it is no matter of the text."""
    text = data.decode("utf-8", "replace")
    check_list(text)
    check_show(text)
    check_borrow(text)
    for adapter, node_id in output.parse_node_ids(text).items():
        assert adapter >= 0 and node_id >= 0, (adapter, node_id)
    try:
        assert output.parse_node_id("storage1", text) > 0
    except ToolUnreadable as error:
        assert error.message.isprintable()


def check_list(text: str) -> None:
    """What was read can be written as the tool writes it, and is then read as the same; line ends do not matter."""
    pool = output.parse_list(text)
    for entry in pool.entries:
        assert normalise_fdid(entry.fdid) == entry.fdid
        assert entry.name.isprintable() and entry.word.isprintable()
        assert output.parse_list(render_entry(entry)).entries == (entry,)
    assert output.parse_list("\n".join(map(render_entry, pool.entries))).entries == pool.entries
    assert all(line.isascii() and line.isprintable() for line in pool.unread)
    if "\r" not in text:
        assert output.parse_list(text.replace("\n", "\r\n")) == pool


def render_entry(entry: PoolEntry) -> str:
    """A line of ``list``."""
    return f"{entry.fdid.rjust(2, '0')}: {entry.name} [{entry.word}]"


def check_show(text: str) -> None:
    """Likewise for ``show``."""
    try:
        device = output.parse_show("80000", text)
    except ToolUnreadable as error:
        assert error.message.isprintable()
        return
    rendered = render_device(device)
    if rendered:
        assert output.parse_show("80000", rendered) == device
    assert device.bdf is None or normalise(device.bdf) == device.bdf


def render_device(device: FabricDevice) -> str:
    """The lines of ``show``; nothing where not one field is known."""
    known = {one.name: getattr(device, one.name) for one in fields(device)}
    return "".join(f"{KEYS[name]} : {value}\n" for name, value in known.items() if name in KEYS and value is not None)


def check_borrow(text: str) -> None:
    """A virtual device is named by a whole address or not at all."""
    borrowed = output.parse_borrow(text)
    if borrowed.vdev is not None:
        assert normalise(borrowed.vdev) == borrowed.vdev == output.find_bdf(borrowed.vdev)
    assert borrowed.driver is None or borrowed.driver.isprintable()


def seeds() -> Iterator[bytes]:
    """What real tools printed."""
    return samples(("plugins/module_utils/_smartio/samples", "*.txt"))


TOOL_OUTPUT = Target(
    run,
    seeds,
    words=[
        *(f"{key}: ".encode() for key in KEYS.values()),
        *(b"Local BDF: ", b"Local virtual device: ", b"Bound to driver: ", b"[available]", b"[local]", b"ID 80000: "),
        *(b"Card 1 - NodeId: 4", b"0000:04:05.0", b"N/A", b"0x", b"\xef\xbf\xbd", b"\xe2\x80\xa8", b"\r\n"),
    ],
)
