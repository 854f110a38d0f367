# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How what was granted in a run joins what is recorded; pure. Nothing that a run did not name is dropped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Callable, FrozenSet, List, Mapping, Optional, Sequence, Tuple, TypeVar

from .._smartio.connections import Connection
from .._smartio.host import Places
from .._smartio.p2p import Pair
from .store import BorrowedEntry, CplaneEntry, LentEntry, MountEntry, PairEntry, Sharing, SriovEntry

Entry = TypeVar("Entry")

# A serial number of the PCIe capability, as lspci writes it; a drive's own number has another form.
_CAPABILITY = re.compile(r"[0-9a-f]{2}(?:-[0-9a-f]{2}){7}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Change:
    """What a run granted or, where it is to be forgotten, what it names.

    ``taken_out`` are the addresses of lent devices that left the pool, ``returned`` borrowed devices that were given
    back; ``claims`` the labels of which ``borrowed`` is all that there is. ``window_told`` says of which borrowed
    devices (by fdid) the DMA window is known. ``present`` are the addresses of this host's devices, with the serial
    number where one is told. ``mentioned`` are the addresses of all lent devices that the run was about.
    """

    places: Optional[Places] = None
    connections: Tuple[Connection, ...] = ()
    sriov: Tuple[SriovEntry, ...] = ()
    lent: Tuple[LentEntry, ...] = ()
    taken_out: FrozenSet[str] = frozenset()
    mentioned: FrozenSet[str] = frozenset()
    present: Mapping[str, Optional[str]] = field(default_factory=dict)
    borrowed: Tuple[BorrowedEntry, ...] = ()
    window_told: FrozenSet[str] = frozenset()
    returned: Tuple[BorrowedEntry, ...] = ()
    claims: FrozenSet[str] = frozenset()
    pairs: Tuple[Pair, ...] = ()
    mounts: Tuple[MountEntry, ...] = ()
    cplanes: Tuple[CplaneEntry, ...] = ()


def remember(have: Sharing, change: Change) -> Tuple[Sharing, List[Pair]]:
    """What is recorded after a run, and the p2p pairs whose devices are not."""
    borrowed = _borrowed(have.borrowed, change)
    pairs, unknown = _pairs(have.pairs, change, borrowed)
    merged = Sharing(
        places=_places(have, change),
        connections=_upsert(have.connections, change.connections, lambda one, other: one == other),
        sriov=_sriov(have.sriov, change.sriov),
        lent=_lent(have.lent, change),
        borrowed=borrowed,
        pairs=pairs,
        mounts=_upsert(have.mounts, change.mounts, lambda one, other: one.path == other.path),
        cplanes=_upsert(have.cplanes, change.cplanes, lambda one, other: one.cplane_id == other.cplane_id),
    )
    return merged, unknown


def forget(have: Sharing, change: Change) -> Sharing:
    """What is recorded without what a run names."""
    gone = [*change.borrowed, *change.returned]
    borrowed = tuple(
        entry
        for entry in have.borrowed
        if entry.label not in change.claims and not any(is_same_device(entry, one) for one in gone)
    )
    named_pairs = {_pair_entry(pair, [*gone, *have.borrowed]) for pair in change.pairs}
    paths = {mount.path for mount in change.mounts}
    ids = {one.cplane_id for one in change.cplanes}
    return replace(
        have,
        connections=tuple(one for one in have.connections if one not in change.connections),
        sriov=tuple(one for one in have.sriov if one.bdf not in {other.bdf for other in change.sriov}),
        lent=tuple(one for one in have.lent if one.bdf not in change.taken_out),
        borrowed=borrowed,
        pairs=_without_ends([pair for pair in have.pairs if pair not in named_pairs], borrowed),
        mounts=tuple(one for one in have.mounts if one.path not in paths and one.label not in change.claims),
        cplanes=tuple(one for one in have.cplanes if one.cplane_id not in ids),
    )


def _upsert(
    entries: Sequence[Entry], new: Sequence[Entry], is_same: Callable[[Entry, Entry], bool]
) -> Tuple[Entry, ...]:
    """Every new entry in the place of the first one that it replaces, else at the end."""
    result = list(entries)
    for one in new:
        places = [place for place, entry in enumerate(result) if is_same(entry, one)]
        if places:
            result[places[0]] = one
            result = [entry for place, entry in enumerate(result) if place not in places[1:]]
        else:
            result.append(one)
    return tuple(result)


def _places(have: Sharing, change: Change) -> Places:
    """A run that says nothing of SmartIO does not say where SmartIO keeps its things either, unless nobody has yet."""
    if change.places is None:
        return have.places
    said = any((change.connections, change.sriov, change.mentioned, change.borrowed, change.returned, change.claims))
    said = said or any((change.pairs, change.mounts))
    return change.places if said or not have.has_smartio else have.places


def _sriov(entries: Sequence[SriovEntry], new: Sequence[SriovEntry]) -> Tuple[SriovEntry, ...]:
    merged = _upsert(entries, new, lambda one, other: one.bdf == other.bdf)
    return tuple(one for one in merged if one.numvfs > 0)


# -- lent devices -----------------------------------------------------------------------------------------------------


def _lent(entries: Sequence[LentEntry], change: Change) -> Tuple[LentEntry, ...]:
    kept = [one for one in entries if one.bdf not in change.taken_out and not _has_moved(one, change)]
    old = {one.bdf: one for one in kept}
    new = [_completed_lent(one, old.get(one.bdf)) for one in change.lent]
    return _upsert(kept, new, lambda one, other: one.bdf == other.bdf)


def _has_moved(entry: LentEntry, change: Change) -> bool:
    """Whether the run found the device at another address, and not at the one that is recorded."""
    if entry.serial is None or entry.bdf in change.mentioned | {one.bdf for one in change.lent}:
        return False
    if entry.bdf in change.present and change.present[entry.bdf] in (None, entry.serial):
        return False
    return any(are_comparable(one.serial, entry.serial) and one.serial == entry.serial for one in change.lent)


def _completed_lent(new: LentEntry, old: Optional[LentEntry]) -> LentEntry:
    """The new entry, with what only the old one tells of the same device."""
    if old is None or differs(old.serial, new.serial) or not _same_ids(old, new):
        return new
    # Without its driver, a drive shows only the serial number of its PCIe capability.
    keeps = old.serial is not None and (new.serial is None or not are_comparable(old.serial, new.serial))
    return replace(
        new,
        serial=old.serial if keeps else new.serial,
        vendor_id=new.vendor_id or old.vendor_id,
        device_id=new.device_id or old.device_id,
    )


def _same_ids(one: LentEntry, other: LentEntry) -> bool:
    return not differs(one.vendor_id, other.vendor_id) and not differs(one.device_id, other.device_id)


def are_comparable(one: Optional[str], other: Optional[str]) -> bool:
    """Whether both serial numbers are told and of one kind: a drive's own, or that of its PCIe capability."""
    if not _tells(one) or not _tells(other):
        return False
    return bool(_CAPABILITY.fullmatch(one or "")) == bool(_CAPABILITY.fullmatch(other or ""))


def _tells(serial: Optional[str]) -> bool:
    """Whether it is a number at all; many devices were never given one, and have zeros there."""
    return bool(serial and set(serial) - set("0-: ."))


def differs(one: Optional[str], other: Optional[str]) -> bool:
    """Whether two things that are told, and can be compared, are not the same."""
    return are_comparable(one, other) and one != other


# -- borrowed devices -------------------------------------------------------------------------------------------------


def is_same_device(one: BorrowedEntry, other: BorrowedEntry) -> bool:
    """Whether two entries cannot both hold: one device, or two at one address of one owner."""
    if one.uuid and one.uuid == other.uuid:
        return True
    if one.place and other.place:
        return one.place == other.place
    return one.fdid == other.fdid


def _borrowed(entries: Sequence[BorrowedEntry], change: Change) -> Tuple[BorrowedEntry, ...]:
    new = [_completed(one, entries, change) for one in change.borrowed]
    # What was returned and borrowed again keeps its place.
    gone = [one for one in change.returned if not any(is_same_device(one, other) for other in new)]
    left = [one for one in entries if not any(is_same_device(one, other) for other in gone)]
    fresh = _upsert(left, new, is_same_device)
    granted = set(new)
    return tuple(one for one in fresh if one in granted or one.label not in change.claims)


def _completed(new: BorrowedEntry, entries: Sequence[BorrowedEntry], change: Change) -> BorrowedEntry:
    """The new entry, with what only the old one tells of the same device."""
    old = next((one for one in entries if is_same_device(one, new)), None)
    if old is None or differs(old.uuid, new.uuid) or differs(old.serial, new.serial):
        return new
    told = {name: getattr(new, name) or getattr(old, name) for name in ("uuid", "serial", "vendor_id", "device_id")}
    place = {"node_id": old.node_id, "bdf": old.bdf} if new.place is None else {}
    window = new.dma_window if new.fdid in change.window_told else old.dma_window
    return replace(new, dma_window=window, **told, **place)  # type: ignore[arg-type]  # values of the entries' own


# -- pairs ------------------------------------------------------------------------------------------------------------


def _pairs(
    entries: Sequence[PairEntry], change: Change, borrowed: Sequence[BorrowedEntry]
) -> Tuple[Tuple[PairEntry, ...], List[Pair]]:
    # What this run borrowed comes first: an fdid of another boot may mean another device by now.
    known = [*change.borrowed, *borrowed]
    found = {pair: _pair_entry(pair, known) for pair in change.pairs}
    new = [entry for entry in found.values() if entry is not None]
    unknown = [pair for pair, entry in found.items() if entry is None]
    return _without_ends(_upsert(entries, new, lambda one, other: one == other), borrowed), unknown


def _pair_entry(pair: Pair, known: Sequence[BorrowedEntry]) -> Optional[PairEntry]:
    source, destination = (
        next((one.place for one in known if one.fdid == fdid and one.place), None)
        for fdid in (pair.source, pair.destination)
    )
    return PairEntry(source, destination, pair.bar_number) if source and destination else None


def _without_ends(pairs: Sequence[PairEntry], borrowed: Sequence[BorrowedEntry]) -> Tuple[PairEntry, ...]:
    """The pairs of which both devices are still recorded as borrowed."""
    places = {one.place for one in borrowed}
    return tuple(pair for pair in pairs if pair.source in places and pair.destination in places)
