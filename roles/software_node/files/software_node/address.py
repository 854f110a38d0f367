# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI addresses, the filters of lspci, and the two ways fabric device ids (fdid) are formed.

The filters follow lspci(8): ``-s [[[[domain]:]bus]:][slot][.[func]]`` and ``-d [vendor]:[device][:class[:prog-if]]``;
an empty field or ``*`` matches anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Set

_BDF = re.compile(r"^(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])$")


@dataclass(frozen=True, order=True)
class Bdf:
    """The address of one PCI function."""

    domain: int
    bus: int
    slot: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.short}"

    @property
    def short(self) -> str:
        """Without the domain, as lspci prints a device of domain 0."""
        return f"{self.bus:02x}:{self.slot:02x}.{self.function:x}"

    @property
    def lspci(self) -> str:
        """As lspci prints it: the domain only when it is not 0."""
        return str(self) if self.domain else self.short

    @property
    def low16(self) -> int:
        """Bus and devfn as one number: 81:00.0 is 0x8100."""
        return self.bus << 8 | self.slot << 3 | self.function


def parse_bdf(text: str) -> Bdf:
    """A complete address (``0000:81:00.0`` or ``81:00.0``); ValueError for anything else."""
    found = _BDF.match(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a PCI address like 0000:81:00.0")
    domain, bus, slot, function = (int(part or "0", 16) for part in found.groups())
    if slot > 0x1F:
        raise ValueError(f"{text!r} has a slot above 1f")
    return Bdf(domain, bus, slot, function)


def _field(text: str, limit: int, what: str) -> Optional[int]:
    if text in ("", "*"):
        return None
    if not re.match(r"^(0x)?[0-9a-fA-F]+$", text):
        raise ValueError(f"invalid {what} {text!r}")
    value = int(text, 16)
    if value > limit:
        raise ValueError(f"{what} {text!r} is above {limit:x}")
    return value


@dataclass(frozen=True)
class Filter:
    """What lspci's -s and -d select; a field that is None matches anything."""

    domain: Optional[int] = None
    bus: Optional[int] = None
    slot: Optional[int] = None
    function: Optional[int] = None
    vendor: Optional[int] = None
    device: Optional[int] = None
    class_id: Optional[int] = None
    prog_if: Optional[int] = None

    def matches(self, bdf: Bdf, vendor: int, device: int, class_code: int) -> bool:
        """``class_code`` is the 24-bit one: base class, subclass, programming interface."""
        pairs = (
            (self.domain, bdf.domain),
            (self.bus, bdf.bus),
            (self.slot, bdf.slot),
            (self.function, bdf.function),
            (self.vendor, vendor),
            (self.device, device),
            (self.class_id, class_code >> 8),
            (self.prog_if, class_code & 0xFF),
        )
        return all(want is None or want == have for want, have in pairs)


def parse_slot(text: str, base: Optional[Filter] = None) -> Filter:
    """The filter of ``lspci -s TEXT``, on top of ``base``; ValueError when lspci would refuse it.

    As in lspci a lone number is a slot (``1``), a number with a colon a bus (``1:``).
    """
    base = base or Filter()
    place, colon, rest = text.strip().rpartition(":")
    domain, bus = "", ""
    if colon:
        domain, _colon, bus = place.rpartition(":")
    slot, _dot, function = rest.partition(".")
    return Filter(
        _field(domain, 0x7FFFFFFF, "domain"),
        _field(bus, 0xFF, "bus"),
        _field(slot, 0x1F, "slot"),
        _field(function, 7, "function"),
        base.vendor,
        base.device,
        base.class_id,
        base.prog_if,
    )


def parse_id(text: str, base: Optional[Filter] = None) -> Filter:
    """The filter of ``lspci -d TEXT``, on top of ``base``; ValueError when lspci would refuse it."""
    base = base or Filter()
    parts = text.strip().split(":")
    if len(parts) < 2:
        raise ValueError(f"{text!r} needs a ':' (vendor:device)")
    if len(parts) > 4:
        raise ValueError(f"{text!r} has too many fields")
    parts += [""] * (4 - len(parts))
    return Filter(
        base.domain,
        base.bus,
        base.slot,
        base.function,
        _field(parts[0], 0xFFFF, "vendor id"),
        _field(parts[1], 0xFFFF, "device id"),
        _field(parts[2], 0xFFFF, "class"),
        _field(parts[3], 0xFF, "programming interface"),
    )


def parse_filter(args: Sequence[str]) -> Filter:
    """The filter of lspci arguments (-s X, -sX, -d X, -dX, repeated: the last one counts); ValueError otherwise."""
    result: Optional[Filter] = None
    rest: List[str] = list(args)
    while rest:
        option = rest.pop(0)
        if option[:2] not in ("-s", "-d"):
            raise ValueError(f"{option!r} is not a filter (use -d vendor:device or -s address)")
        value = option[2:] or (rest.pop(0) if rest else "")
        if not value:
            raise ValueError(f"{option} needs a value")
        result = (parse_slot if option[:2] == "-s" else parse_id)(value, result)
    if result is None:
        raise ValueError("a filter is missing (-d vendor:device or -s address)")
    return result


def parse_fdid(text: str) -> int:
    """A fabric device id as people write it, with or without 0x; ValueError otherwise."""
    if not re.match(r"^(0[xX])?[0-9a-fA-F]{1,12}$", text):
        raise ValueError(f"{text!r} is not a fabric device id like 80002")
    return int(text, 16)


def counted_fdid(node_id: int, number: int) -> int:
    """The older scheme: the first device added at node 8 is 80000, the next 80002."""
    return node_id << 16 | (2 * number & 0xFFFF)


def located_fdid(node_id: int, bdf: Bdf, taken: Set[int]) -> int:
    """The current scheme: node 4 with 81:00.0 is 48100.

    There is no PCI domain in an fdid, so devices that differ in nothing else get the next free number.
    """
    fdid = node_id << 16 | bdf.low16
    while fdid in taken:
        fdid = node_id << 16 | (fdid + 1 & 0xFFFF)
    return fdid
