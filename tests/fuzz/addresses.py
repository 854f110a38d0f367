# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI addresses and filters as people, YAML and tools write them."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional

from ...plugins.module_utils._pci import address, lspci_filter
from ...plugins.module_utils._pci.address import AddressError, SlotPattern
from ...plugins.module_utils._pci.lspci_filter import Filter, FilterError
from ...plugins.module_utils._pci.sysfs import PciDevice
from .target import Taker, Target

DEVICES = (
    PciDevice("0000:81:00.0", "144d", "a80a", "144d", "a813", "010802", driver="nvme"),
    PciDevice("0000:03:00.0", "10de", "11fa", "10de", "097c", "030000"),
    PciDevice("10000:e1:00.1", class_code="020000"),
    PciDevice("0000:00:1f.7"),
)
PRESENT = [device.bdf for device in DEVICES]


def run_address(data: bytes) -> None:
    """The first byte says what kind of value arrives, as YAML may make one of an address."""
    taker = Taker(data)
    kind = taker.number() % 8
    text = taker.rest().decode("utf-8", "surrogateescape")
    if kind == 1:
        with contextlib.suppress(ValueError):
            check_value(float(text))
    elif kind == 2:
        check_value(int.from_bytes(data[1:9], "little", signed=True))
    elif kind == 3:
        check_value([None, True, [text], {text: text}][len(text) % 4])
    else:
        check_value(text)
        check_text(text)


def check_value(value: object) -> None:
    """What is no address is refused in one printable line; what is one names a device that is there."""
    try:
        found = address.resolve(value, PRESENT)
    except AddressError as error:
        assert error.message.isprintable()
        return
    assert found in PRESENT
    assert address.resolve(found, PRESENT) == found


def check_text(text: str) -> None:
    """A pattern can be written and read again; the normal form is its own."""
    try:
        slot = address.parse_slot(text)
    except AddressError as error:
        assert error.message.isprintable()
        return
    assert address.parse_slot(render_slot(slot)) == slot
    full = [slot.bus, slot.device, slot.function]
    if None in full:
        return
    normal = address.normalise(text)
    assert address.normalise(normal) == normal
    assert address.parse_slot(normal).matches(normal)
    assert slot.matches(normal)


def render_slot(slot: SlotPattern) -> str:
    """What ``lspci -s`` takes for a pattern."""

    def digits(number: Optional[int]) -> str:
        return "*" if number is None else f"{number:x}"

    return f"{digits(slot.domain)}:{digits(slot.bus)}:{digits(slot.device)}.{digits(slot.function)}"


def run_filter(data: bytes) -> None:
    """What can be read can be written, and to say it twice changes nothing."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = lspci_filter.parse(text)
    except FilterError as error:
        assert error.message.isprintable()
        return
    assert lspci_filter.parse(f"{text} {text}") == found
    assert lspci_filter.parse(render_filter(found)) == found
    for device in DEVICES:
        assert found.matches(device) in (True, False)
        assert not found.matches(device) or found.slot.matches(device.bdf)


def render_filter(found: Filter) -> str:
    """The options of ``lspci`` that select so."""
    ids: List[str] = ["" if number is None else f"{number:x}" for number in (found.vendor, found.device)]
    ids.append("" if found.class_code is None else render_class(found.class_code, found.class_mask))
    ids.append("" if found.prog_if is None else f"{found.prog_if:x}")
    return f"-s {render_slot(found.slot)} -d {':'.join(ids)}"


def render_class(code: int, mask: int) -> str:
    """Hexadecimal, with x for a digit that does not matter; as many digits as the mask tells of."""
    count = max(1, (len(f"{code:x}")), *(place + 1 for place in range(16) if not mask >> 4 * place & 0xF))
    return "".join(
        "x" if not mask >> 4 * place & 0xF else f"{code >> 4 * place & 0xF:x}" for place in reversed(range(count))
    )


def address_seeds() -> Iterator[bytes]:
    """Short and long, and what is none."""
    for text in ("0000:81:00.0", "81:00.0", "1:", ".1", "*:*:*.*", "10000:e1:00.1", "7fffffff:ff:1f.7", "", "4860.0"):
        yield b"\0" + text.encode()
    yield b"\1" + b"4860.0"
    yield b"\2" + (4860).to_bytes(8, "little")
    yield b"\3" + b"81"


def filter_seeds() -> Iterator[bytes]:
    """All options and their forms."""
    for text in (
        "-d 10de:",
        "-d144d:a80a:0108:02",
        "-s 81: -d ::01xx",
        "-s '*:81:00.*'",
        "-d :",
        "",
        "-x",
        "-d",
        "-d '",
    ):
        yield text.encode()


WORDS = [b":", b".", b"*", b"0000:", b"ffff", b"1f.7", b"\xd9\xa3", b"\xff"]
ADDRESS = Target(run_address, address_seeds, longest=96, words=WORDS)
LSPCI_FILTER = Target(run_filter, filter_seeds, longest=160, words=[*WORDS, b"-d ", b"-s ", b"x", b"'", b"\\", b"01xx"])
