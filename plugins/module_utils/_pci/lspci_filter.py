# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters that ``lspci`` and ``smartio_tool add-filter`` take, matched against what sysfs says.

Same language and same answers as pciutils (lib/filter.c), including that a repeated option overrides only the fields
that it gives.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import List, Optional, Tuple

from .address import AddressError, SlotPattern, hex_field, parse_slot
from .sysfs import PciDevice

_ANY_SLOT = SlotPattern()
_MAX_TEXT = 63  # lspci: "Expression too long"


class FilterError(AddressError):
    """A filter that lspci would refuse, or that selects by something else than -d and -s."""


@dataclass(frozen=True)
class Filter:
    """What is selected: every field that is not None must be equal; ``class_mask`` clears the wildcard digits."""

    slot: SlotPattern = _ANY_SLOT
    vendor: Optional[int] = None
    device: Optional[int] = None
    class_code: Optional[int] = None
    class_mask: int = -1
    prog_if: Optional[int] = None

    def matches(self, device: PciDevice) -> bool:
        """Whether lspci would list the device. An attribute that is missing (``""``) equals nothing."""
        if not self.slot.matches(device.bdf):
            return False
        pairs = (
            (self.vendor, device.vendor_id),
            (self.device, device.device_id),
            (self.prog_if, device.class_code[4:]),
        )
        if any(want is not None and (not have or int(have, 16) != want) for want, have in pairs):
            return False
        return self._class_matches(device.class_code[:4])

    def _class_matches(self, have: str) -> bool:
        if self.class_code is None:
            return True
        return bool(have) and (int(have, 16) ^ self.class_code) & self.class_mask == 0


def parse(text: str) -> Filter:
    """Read ``-d [vendor]:[device][:class[:prog-if]]`` and ``-s SLOT`` in any order, also glued (``-d10de:``).

    FilterError names the part that is not understood. An empty filter is refused: lspci would list every device.
    """
    if not isinstance(text, str):
        raise FilterError(f'a filter is text like "-d 10de:", but {text!r} arrived; quote it')
    result = Filter()
    options = _options(text)
    if not options:
        raise FilterError("the filter is empty and would select every device; write for example -d 10de:")
    for option, argument in options:
        result = _with_id(result, argument) if option == "-d" else _with_slot(result, argument)
    return result


def _options(text: str) -> List[Tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FilterError(f"filter {text!r}: {error}") from None
    found = []
    while words:
        word = words.pop(0)
        option, argument = word[:2], word[2:]
        if option not in ("-d", "-s"):
            raise FilterError(
                f"filter {text!r}: {word!r} is not understood; it takes -d [vendor]:[device][:class[:prog-if]] and "
                "-s [[domain:]bus:][device][.function], as lspci does"
            )
        if not argument:
            if not words:
                raise FilterError(f"filter {text!r}: {option} lacks its argument")
            argument = words.pop(0)
        found.append((option, argument))
    return found


def _with_slot(base: Filter, text: str) -> Filter:
    try:
        new = parse_slot(text)
    except AddressError as error:
        raise FilterError(f"filter -s {text!r}: {error.message}") from None
    return replace(
        base,
        slot=SlotPattern(
            _later(new.domain, base.slot.domain),
            _later(new.bus, base.slot.bus),
            _later(new.device, base.slot.device),
            _later(new.function, base.slot.function),
        ),
    )


def _with_id(base: Filter, text: str) -> Filter:
    fields: List[Optional[str]] = list(text.split(":"))
    if len(text) > _MAX_TEXT or not 2 <= len(fields) <= 4:
        raise FilterError(f"filter -d {text[:_MAX_TEXT]!r} is not [vendor]:[device][:class[:prog-if]]")
    vendor, device, class_code, prog_if = fields + [None] * (4 - len(fields))
    try:
        code, mask = _class_field(class_code)
        new_prog_if = hex_field(prog_if, 0xFF, "prog-if")
        new_vendor, new_device = hex_field(vendor, 0xFFFF, "vendor"), hex_field(device, 0xFFFF, "device")
    except AddressError as error:
        raise FilterError(f"filter -d {text!r}: {error.message}") from None
    return replace(
        base,
        vendor=_later(new_vendor, base.vendor),
        device=_later(new_device, base.device),
        class_code=_later(code, base.class_code),
        class_mask=base.class_mask if code is None else mask,
        prog_if=_later(new_prog_if, base.prog_if),
    )


def _later(new: Optional[int], old: Optional[int]) -> Optional[int]:
    return old if new is None else new


def _class_field(text: Optional[str]) -> Tuple[Optional[int], int]:
    """Value and mask of a class, whose digits may be ``x`` for any (pciutils 3.9): 01xx is 0x0100 under ~0xff."""
    if text is None or text in ("", "*"):
        return None, -1
    try:
        hex_field(text.lower().replace("x", "1"), 0xFFFF, "class")  # that is how lspci counts a wildcard digit
    except AddressError:
        raise AddressError(f"class {text!r} is not hexadecimal with x for any digit, at most ffff") from None
    mask = -1
    for digit in text.lower():
        mask = mask << 4 | (0 if digit == "x" else 0xF)
    return int(text.lower().replace("x", "0"), 16), mask
