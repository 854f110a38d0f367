# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI addresses: the forms that people write, resolved to the one device that is meant.

The grammar and its limits are those of ``lspci -s`` (pciutils, lib/filter.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, List, Optional, Tuple

from .._plan import SharingError

_HEX = re.compile(r"[0-9a-fA-F]+")
_ONLY_NUMBER = re.compile(r"[-+]?[0-9._]+")
_MAX_TEXT = 63  # lspci: "Expression too long"
_MAX_NAMED = 8


class AddressError(SharingError):
    """A PCI address that is not one, or that does not name exactly one device."""


class DeviceNotFound(AddressError):
    """No device of this node is meant by an address, a filter or a selection; ``not_found`` among its details."""

    def __init__(self, message: str) -> None:
        super().__init__(message, not_found=True)


@dataclass(frozen=True)
class SlotPattern:
    """What ``lspci -s`` selects by; None stands for any value."""

    domain: Optional[int] = None
    bus: Optional[int] = None
    device: Optional[int] = None
    function: Optional[int] = None

    def matches(self, bdf: str) -> bool:
        """Whether the device with this full address (normal form) is selected."""
        wanted = (self.domain, self.bus, self.device, self.function)
        return all(want is None or want == have for want, have in zip(wanted, _numbers(bdf)))

    def is_any(self) -> bool:
        """Whether nothing at all is asked for."""
        return self == SlotPattern()


def printable(text: str) -> str:
    """The text with every control character and undecodable byte escaped, fit for one line of a message."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def hex_field(text: Optional[str], limit: int, name: str) -> Optional[int]:
    """One field of an lspci expression: None for any (missing, empty or ``*``), else its value, at most ``limit``."""
    if text is None or text in ("", "*"):
        return None
    if not _HEX.fullmatch(text) or int(text, 16) > limit:
        raise AddressError(f"{name} {text!r} is not a hexadecimal number of at most {limit:x}")
    return int(text, 16)


def parse_slot(text: str) -> SlotPattern:
    """Read ``[[[[<domain>]:]<bus>]:][<device>][.[<func>]]`` as ``lspci -s`` does; AddressError names the bad part."""
    if len(text) > _MAX_TEXT:
        raise AddressError(f"PCI address {text[:_MAX_TEXT]!r}... is too long")
    try:
        return _parse_slot(text)
    except AddressError as error:
        raise AddressError(f"{text!r} is not a PCI address like 0000:81:00.0: {error.message}") from None


def normalise(text: str) -> str:
    """The normal form ``dddd:bb:dd.f`` of a full address, whose domain may be left out (0000)."""
    slot = parse_slot(text)
    if slot.bus is None or slot.device is None or slot.function is None:
        raise AddressError(f"{text!r} is not a full PCI address like 0000:81:00.0")
    return f"{slot.domain or 0:04x}:{slot.bus:02x}:{slot.device:02x}.{slot.function:x}"


def check_written(value: object, what: str) -> str:
    """The address as text, refused where YAML made a number of it: it reads an unquoted 81:00.0 as 4860.0.

    ``what`` names the option in the error, e.g. ``bdf``.
    """
    if isinstance(value, str) and not _ONLY_NUMBER.fullmatch(value):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        kind = type(value).__name__
        raise AddressError(
            f'{what}: a PCI address is text like "81:00.0", but {_short(value)} ({kind}) arrived; quote it'
        )
    form = "text" if isinstance(value, str) else "number"
    guess = _before_yaml(str(value))
    if guess is None:
        raise AddressError(
            f"{what}: the {form} {_short(value)} arrived, which is no PCI address; "
            'YAML makes numbers of unquoted addresses, so quote it, as in "81:00.0"'
        )
    raise AddressError(
        f"{what}: the {form} {_short(value)} arrived, which is what YAML makes of an unquoted {guess}; "
        f'quote it: "{guess}"'
    )


def resolve(value: object, present: Iterable[str]) -> str:
    """The one device of ``present`` (full addresses) that ``value`` names, in full or in a short form such as ``1:``.

    AddressError when it is malformed, when no such device is present, or when several are (at most eight are named).
    """
    text = check_written(value, "PCI address")
    slot = parse_slot(text)
    if slot.is_any():
        raise AddressError(f"{text!r} names no particular PCI device; write an address like 0000:81:00.0")
    found = sorted((bdf for bdf in present if slot.matches(bdf)), key=_numbers)
    if len(found) == 1:
        return found[0]
    if not found:
        raise DeviceNotFound(f"no PCI device {text} on this node; see what lspci -D lists")
    named = ", ".join(found[:_MAX_NAMED]) + (", ..." if len(found) > _MAX_NAMED else "")
    raise AddressError(f"{text} names {len(found)} PCI devices of this node ({named}); write the full address")


def _numbers(bdf: str) -> Tuple[int, int, int, int]:
    domain, bus, rest = bdf.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)


def _parse_slot(text: str) -> SlotPattern:
    fields = text.split(":")
    if len(fields) > 3:
        raise AddressError("too many colons")
    padded: List[Optional[str]] = [None] * (3 - len(fields))
    domain, bus, last = padded + list(fields)
    device, dot, function = (last or "").partition(".")
    if last == "*":
        device = ""
    return SlotPattern(
        domain=hex_field(domain, 0x7FFFFFFF, "domain"),
        bus=hex_field(bus, 0xFF, "bus"),
        device=hex_field(device, 0x1F, "device"),
        function=hex_field(function if dot else None, 7, "function"),
    )


def _before_yaml(number: str) -> Optional[str]:
    """The address that YAML's base-60 numbers turned into this number, if there is one: 4860.0 was 81:00.0."""
    whole, dot, fraction = number.partition(".")
    if not whole.isdecimal() or len(whole) > 9:
        return None
    bus, device = divmod(int(whole), 60)
    guess = f"{bus:02d}:{device:02d}.{fraction if dot else ''}".rstrip(".")
    try:
        parse_slot(guess)
    except AddressError:
        return None
    return guess


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
