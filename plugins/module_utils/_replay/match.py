# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device is the one that was recorded; pure. Another one is never taken for it.

A device is known by its owner and serial number where both sides tell one, else by its UUID, else by owner, address,
vendor and device id. What is recorded and cannot be told now is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, TypeVar

from .._smartio.model import FabricDevice
from .merge import are_comparable
from .store import BorrowedEntry, LentEntry

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Found:
    """What became of looking for a recorded device: its ``name`` now (a BDF, or an fdid), or None and why.

    ``is_other``: something else is where it was, so waiting is no use.
    """

    name: Optional[str] = None
    why: str = ""
    is_other: bool = False


@dataclass(frozen=True)
class Seen:
    """What is told of a device now. ``node_id`` and ``uuid`` are None for a device of this host."""

    name: str
    bdf: Optional[str] = None
    node_id: Optional[int] = None
    serial: Optional[str] = None
    uuid: Optional[str] = None
    vendor_id: Optional[str] = None
    device_id: Optional[str] = None

    def __str__(self) -> str:
        """What tells it from another, for a person."""
        ids = f"{self.vendor_id or '?'}:{self.device_id or '?'}"
        return f"{ids}, serial number {self.serial}" if self.serial else ids


def seen_in_pool(device: FabricDevice) -> Seen:
    """A pool device as it is compared."""
    return Seen(
        name=device.fdid,
        bdf=device.bdf,
        node_id=device.node_id,
        serial=device.serial,
        uuid=device.uuid.lower() if device.uuid else None,
        vendor_id=device.vendor_id,
        device_id=device.device_id,
    )


# What comparing a recorded device with one that is there can end in.
_SAME, _OTHER, _UNTOLD = "same", "other", "untold"


def _ids(entry: LentEntry | BorrowedEntry, seen: Seen) -> str:
    verdicts = set()
    for recorded, now in ((entry.vendor_id, seen.vendor_id), (entry.device_id, seen.device_id)):
        if recorded is not None:
            verdicts.add(_UNTOLD if now is None else _SAME if now == recorded else _OTHER)
    return _OTHER if _OTHER in verdicts else _UNTOLD if _UNTOLD in verdicts else _SAME


def compare_borrowed(entry: BorrowedEntry, seen: Seen) -> str:
    """Whether a pool device is the recorded one: ``same``, ``other``, or ``untold``."""
    if entry.node_id is not None and seen.node_id is not None and entry.node_id != seen.node_id:
        return _OTHER
    ids = _ids(entry, seen)
    if ids == _OTHER:
        return _OTHER
    if are_comparable(entry.serial, seen.serial):
        told = entry.node_id is None or seen.node_id is not None
        return _OTHER if entry.serial != seen.serial else _SAME if told else _UNTOLD
    if entry.uuid and seen.uuid:
        return _SAME if entry.uuid == seen.uuid else _OTHER
    if entry.place is None:
        return _UNTOLD
    if seen.bdf is not None and seen.bdf != entry.bdf:
        return _OTHER
    return _UNTOLD if seen.bdf is None or seen.node_id is None else ids


def compare_lent(entry: LentEntry, seen: Seen, is_patient: bool) -> str:
    """Whether a device of this host is the recorded one.

    A serial number that is recorded may be told a little later, once a driver is bound (``is_patient``).
    """
    ids = _ids(entry, seen)
    if ids == _OTHER:
        return _OTHER
    if are_comparable(entry.serial, seen.serial):
        return _SAME if entry.serial == seen.serial else _OTHER
    if seen.bdf != entry.bdf:
        return _OTHER
    return _UNTOLD if is_patient and entry.serial is not None else ids


def find_borrowed(entries: Sequence[BorrowedEntry], devices: Sequence[Seen]) -> Dict[BorrowedEntry, Found]:
    """Which pool device each recorded one is; every device is one of them at most."""
    verdicts = {entry: {seen: compare_borrowed(entry, seen) for seen in devices} for entry in entries}
    taken: Set[str] = set()
    result: Dict[BorrowedEntry, Found] = {}
    for entry in entries:
        near = [seen for seen in devices if entry.place and (seen.node_id, seen.bdf) == (entry.node_id, entry.bdf)]
        result[entry] = _choose(verdicts[entry], near, taken, "in the pool")
    return result


def find_lent(entries: Sequence[LentEntry], devices: Sequence[Seen], is_patient: bool) -> Dict[LentEntry, Found]:
    """Which device of this host each recorded one is."""
    taken: Set[str] = set()
    result: Dict[LentEntry, Found] = {}
    for entry in entries:
        verdicts = {seen: compare_lent(entry, seen, is_patient) for seen in devices}
        near = [seen for seen in devices if seen.bdf == entry.bdf]
        result[entry] = _choose(verdicts, near, taken, "on this host")
    return result


def _choose(verdicts: Mapping[Seen, str], near: Sequence[Seen], taken: Set[str], where: str) -> Found:
    """The one device that is the same; of several (functions of one card), the one at the recorded address."""
    same = [seen for seen, verdict in verdicts.items() if verdict == _SAME and seen.name not in taken]
    same = [seen for seen in same if seen in near] or same
    if len(same) == 1:
        taken.add(same[0].name)
        return Found(same[0].name)
    if same:
        return Found(why=f"{len(same)} devices {where} could be meant ({', '.join(seen.name for seen in same)})")
    untold: List[Seen] = [seen for seen, verdict in verdicts.items() if verdict == _UNTOLD]
    if untold:
        return Found(why=f"whether {untold[0].name} is it cannot be told yet")
    if near:
        return Found(why=f"another device is at its address ({near[0]}), which was left alone", is_other=True)
    return Found(why=f"it is not {where} yet")
