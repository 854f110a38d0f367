# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of PCI devices as lspci writes them, from the pci.ids file where one is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Sequence

from .sysfs import PciDevice

PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
_MAX_BYTES = 16 << 20


@dataclass
class _Names:
    vendors: Dict[str, str] = field(default_factory=dict)
    devices: Dict[str, str] = field(default_factory=dict)  # by vendor:device
    classes: Dict[str, str] = field(default_factory=dict)  # by class (two digits) and by class with subclass (four)


_loaded: Dict[Sequence[str], _Names] = {}


def describe(device: PciDevice, paths: Sequence[str] = PCI_IDS) -> str:
    """``Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD Controller SM961``, or numbers for names.

    The first readable file of ``paths`` is read once; without any the name is ``Class 0108: Device 8086:f1a5``.
    """
    key = tuple(paths)
    if key not in _loaded:
        _loaded[key] = _load(key)
    names = _loaded[key]
    code = device.class_code[:4] or "????"
    family = names.classes.get(code[:2])
    class_name = names.classes.get(code) or (f"{family} [{code}]" if family else f"Class {code}")
    vendor_id, device_id = device.vendor_id or "????", device.device_id or "????"
    vendor = names.vendors.get(vendor_id)
    if vendor is None:
        return f"{class_name}: Device {vendor_id}:{device_id}"
    return f"{class_name}: {vendor} {names.devices.get(f'{vendor_id}:{device_id}') or f'Device {device_id}'}"


def _load(paths: Sequence[str]) -> _Names:
    for path in paths:
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        return _parse(text)
    return _Names()


def _parse(text: str) -> _Names:
    names = _Names()
    above: Optional[str] = None  # the vendor ("8086") or class ("C 01") that indented lines belong to
    for line in text.splitlines():
        if line.startswith(("#", "\t\t")) or not line.strip():
            continue
        number, _space, name = line.strip().partition("  ")
        if not line.startswith("\t"):
            above = number
            if number.startswith("C "):
                names.classes[number[2:].lower()] = name.strip()
            elif len(number) == 4:
                names.vendors[number.lower()] = name.strip()
        elif above is not None and above.startswith("C "):
            names.classes[(above[2:] + number).lower()] = name.strip()
        elif above is not None:
            names.devices[f"{above}:{number}".lower()] = name.strip()
    return names
