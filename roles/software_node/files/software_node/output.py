# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of the tools, in the three generations that were published.

``list`` differs most: the oldest release has no colon after the class, one release writes ``ID`` in front, and the
later two leave out the hexadecimal id that stands in for an unknown name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Sequence

from .address import Bdf
from .config import Device
from .errors import UsageError

_NO_SERIAL = "00-00-00-00-00-00-00-00"


@dataclass(frozen=True)
class View:
    """A device of the pool as one node sees it."""

    fdid: int
    node_id: int
    adapter: int
    state: str  # unavailable, available or borrowed
    device: Device


def full_name(device: Device) -> str:
    """Class and name without a colon: the Name of show and borrow."""
    return f"{device.class_name} {device.name}"


def state_word(state: str, borrowed_word: str) -> str:
    """The word that list has for a state; nobody knows the one of a borrowed device."""
    return borrowed_word if state == "borrowed" else state


def list_line(view: View, generation: str, borrowed_word: str) -> str:
    """One line of ``list``, without the line's end."""
    word = state_word(view.state, borrowed_word)
    device = view.device
    if generation == "2018":
        return f"{view.fdid:x}: {full_name(device)} [{word}]"
    prefix = "ID " if generation == "id-prefix" else ""
    name = re.sub(r" Device [0-9a-f]{4}$", " Device", device.name)
    return f"{prefix}{view.fdid:x}: {device.class_name}: {name} [{word}]"


def show(view: View, own_ids: Sequence[int], local_users: int, borrowed_word: str) -> str:
    """The text of ``show``."""
    device = view.device
    lines = [
        f"Name: {full_name(device)}",
        f"Available: {state_word(view.state, borrowed_word)}",
        f"Location: {'local' if view.node_id in own_ids else 'remote'}",
        f"Adapter: {view.adapter}",
        f"NodeId: {view.node_id}",
        f"Remote BDF: {device.bdf}",
        f"Physical slot: {device.slot or 'N/A'}",
        f"Serial Number: {device.serial or _NO_SERIAL}",
        f"UUID: {device.uuid}",
        f"Vendor ID: {device.vendor_id:04x}",
        f"Device ID: {device.device_id:04x}",
        f"Subsystem Vendor ID: {device.subsystem_vendor_id:04x}",
        f"Subsystem Device ID: {device.subsystem_device_id:04x}",
        f"Local users: {local_users}",
    ]
    return "".join(line + "\n" for line in lines)


def borrowed(device: Device, vdev: Bdf, driver: str, controller: str) -> str:
    """The text of ``borrow``; the last line is there for NVMe drives only."""
    lines = [
        f"Name: {full_name(device)}",
        "Local users: 1",
        f"Local virtual device: {vdev}",
        f"Bound to driver: {driver or 'N/A'}",
    ]
    if controller:
        lines.append(f"NVMe namespace: {controller}")
    return "".join(line + "\n" for line in lines)


def lspci_line(device: Device) -> str:
    """The line that lspci prints for a device, without the line's end."""
    return f"{device.bdf.lspci} {device.class_name}: {device.name}"


def _split_revision(name: str) -> tuple[str, str]:
    found = re.match(r"^(.*?)( \(rev [0-9a-f]+\))?$", name)
    return (found.group(1), found.group(2) or "") if found else (name, "")


def lspci(device: Device, driver: str, args: Sequence[str]) -> str:
    """The text of ``lspci FDID ARGS``: -n, -nn, -v, -k, -D and their combinations; UsageError otherwise."""
    letters = _lspci_letters(args)
    numeric, verbose = letters.count("n"), "v" in letters or "k" in letters
    address = str(device.bdf) if "D" in letters else device.bdf.lspci
    class_id, ids = f"{device.class_code >> 8:04x}", f"{device.vendor_id:04x}:{device.device_id:04x}"
    name, revision = _split_revision(device.name)
    if numeric == 1:
        line = f"{address} {class_id}: {ids}{revision}"
    elif numeric:
        name = re.sub(r" Device [0-9a-f]{4}$", " Device", name)
        line = f"{address} {device.class_name} [{class_id}]: {name} [{ids}]{revision}"
    else:
        line = f"{address} {device.class_name}: {device.name}"
    lines = [line]
    if verbose:
        lines.append(f"\tSubsystem: {device.subsystem_vendor_id:04x}:{device.subsystem_device_id:04x}")
        lines += [f"\tKernel driver in use: {driver}"] if driver else []
    return "".join(one + "\n" for one in lines)


def _lspci_letters(args: Sequence[str]) -> str:
    letters: List[str] = []
    for arg in args:
        if not re.match(r"^-[nvkD]+$", arg):
            raise UsageError(f"lspci: {arg!r} is not supported here (-n, -nn, -v, -k and -D are)")
        letters.append(arg[1:])
    return "".join(letters)
