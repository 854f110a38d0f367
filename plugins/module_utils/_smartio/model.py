# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nouns of SmartIO as the tools print them: pool entries and fabric devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from .._plan import SharingError

AVAILABLE = "available"
UNAVAILABLE = "unavailable"

_FDID = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})\Z")


def normalise_fdid(value: object) -> str:
    """A fabric device id as ``list`` prints it: hexadecimal, lower case, without ``0x``.

    An id stays opaque (its form differs between releases); only its spelling is evened out.
    """
    match = _FDID.match(str(value).strip()) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if match is None:
        raise SharingError(
            f"{value!a} is not a fabric device id: give hexadecimal digits as 'smartio_tool list' prints them, quoted"
        )
    return match.group(1).lower().lstrip("0") or "0"


@dataclass(frozen=True)
class PoolEntry:
    """A line of ``list``. ``word`` is the last bracket, as it stands; empty where there is none."""

    fdid: str
    name: str
    word: str


@dataclass(frozen=True)
class PoolList:
    """All of ``list``. ``unread`` holds lines that look like entries and could not be understood."""

    entries: Tuple[PoolEntry, ...] = ()
    unread: Tuple[str, ...] = ()


@dataclass(frozen=True)
class FabricDevice:
    """What ``show`` says of a device; None where a key is missing or reads ``N/A``.

    ``bdf`` is the address on the node that owns the device (the key ``Remote BDF``), in full. ``location`` is
    ``local`` or ``remote``. Ids are hexadecimal as printed, node id and adapter are numbers.
    """

    fdid: str
    name: Optional[str] = None
    available: Optional[str] = None
    location: Optional[str] = None
    adapter: Optional[int] = None
    node_id: Optional[int] = None
    bdf: Optional[str] = None
    slot: Optional[str] = None
    serial: Optional[str] = None
    uuid: Optional[str] = None
    vendor_id: Optional[str] = None
    device_id: Optional[str] = None
    subsystem_vendor_id: Optional[str] = None
    subsystem_device_id: Optional[str] = None
    users: Optional[int] = None


@dataclass(frozen=True)
class Borrowed:
    """What ``borrow`` prints: the virtual device and, where it was bound at once, its driver.

    ``already``: the tool said that the device was borrowed before, with EEXIST or its like.
    """

    vdev: Optional[str]
    driver: Optional[str]
    already: bool = False


def node_hint(fdid: str) -> int:
    """The node id that an fdid suggests (its part above bit 16): a hint to be verified with ``show``, never a fact."""
    return int(fdid, 16) >> 16


def slot_hint(fdid: str) -> str:
    """The ``bus:device.function`` that a newer release's fdid suggests: a hint to be verified, never a fact."""
    low = int(fdid, 16) & 0xFFFF
    return f"{low >> 8:02x}:{(low >> 3) & 0x1F:02x}.{low & 7}"
