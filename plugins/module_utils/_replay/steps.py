# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded, done again by the code that the modules plan and act with, or (``check``) only looked at.

Every step takes the node and entries of one kind, and says of each entry what became of it. In check mode an entry
that a run would have something to do for is ``waiting``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar

from .._pci import sriov
from .._plan import Deadline, Report, SharingError
from .._smartio import lending
from .._smartio.borrowing import Borrowing
from .._smartio.borrowing import Options as BorrowOptions
from .._smartio.claims import Claim, FabricSelect
from .._smartio.connections import Connection, connect
from .._smartio.host import Host
from .._smartio.model import AVAILABLE, FabricDevice, node_hint
from .._smartio.p2p import Pair, set_pairs
from .._smartio.pool import Pool
from .._smartio.wishes import Wish
from .match import Found, Seen, find_borrowed, find_lent, seen_in_pool
from .outcome import DONE, WAITING, Outcome, Recorded, done, failed, name_of, refused, waiting
from .store import BorrowedEntry, End, LentEntry, PairEntry, Sharing, SriovEntry

LIMIT = 10.0
"""Seconds that one kind of entry may wait for the lock, and for its commands to show their effect."""

Entry = TypeVar("Entry", bound=Recorded)


def of_kind(entries: Sequence[Recorded], kind: Type[Entry]) -> List[Entry]:
    """The entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


def smartio_steps(
    host: Host, sharing: Sharing, entries: Sequence[Recorded], is_patient: bool, check: bool
) -> Iterator[Mapping[Recorded, Outcome]]:
    """The outcomes of one kind of entries after the other, in the order in which they need each other.

    ``is_patient``: a device may be in use, or its serial number not be told, by what happens at boot.
    """
    borrowed, pairs = of_kind(entries, BorrowedEntry), of_kind(entries, PairEntry)
    again = BorrowAgain(host, sharing.borrowed, borrowed)
    functions = of_kind(entries, SriovEntry)
    yield _guarded(host, functions, lambda some: functions_again(host, some, is_patient, check))
    yield _guarded(host, of_kind(entries, Connection), lambda some: connect_again(host, some, check))
    yield _guarded(host, of_kind(entries, LentEntry), lambda some: lend_again(host, some, is_patient, check))
    if borrowed or pairs:
        # Pairs need to know what is borrowed, also where all of it was borrowed before.
        yield _guarded(host, borrowed or sharing.borrowed, lambda _some: again.run(check))
    yield _guarded(host, pairs, lambda some: pair_again(host, some, again.places, check))


def _guarded(
    host: Host, entries: Sequence[Entry], step: Callable[[Sequence[Entry]], Mapping[Any, Outcome]]
) -> Mapping[Recorded, Outcome]:
    """The outcomes of a step, which has its own time; one that could not even look is tried in the next pass."""
    if not entries:
        return {}
    host.deadline = Deadline(LIMIT)
    try:
        return step(entries)
    except SharingError as error:
        return all_wait(entries, error)


def all_wait(entries: Sequence[Recorded], error: SharingError) -> Dict[Recorded, Outcome]:
    """The outcomes of entries that nobody could even look at."""
    whose = name_of(entries[0]) if len(entries) == 1 else f"{len(entries)} entries"
    return {entry: Outcome(WAITING, f"{whose}: not yet, {error.message}", is_shared=True) for entry in entries}


# -- virtual functions ------------------------------------------------------------------------------------------------


def functions_again(
    host: Host, entries: Sequence[SriovEntry], is_patient: bool, check: bool
) -> Dict[SriovEntry, Outcome]:
    """Give physical functions their virtual ones."""
    functions = sriov.Functions(host.sysfs, host.proc, host.deadline, lambda: host.store.load().pooled)
    report = functions.run([sriov.Wish(entry.bdf, entry.numvfs) for entry in entries], False, check)
    errors = dict(report.errors)
    rows = {row["bdf"]: row for row in _rows(report, "devices")}
    outcomes = {}
    for entry in entries:
        row = rows.get(entry.bdf)
        if entry.bdf in errors:
            outcomes[entry] = failed(errors[entry.bdf], is_patient)
        elif row is None or (check and row["action"] != "none"):
            outcomes[entry] = waiting(f"{row['before'] if row else 0} of {entry.numvfs} are there")
        else:
            outcomes[entry] = done(f"{entry.numvfs} are there" + ("" if row["action"] == "none" else " again"))
    return outcomes


# -- connections ------------------------------------------------------------------------------------------------------


def connect_again(host: Host, entries: Sequence[Connection], check: bool) -> Dict[Connection, Outcome]:
    """Connect to every node that the ledger does not know as connected."""
    report = connect(host, entries, False, check)
    rows = _rows(report, "connections")
    by_node = {(row["node_id"], row["adapter"]): row for row in rows}
    errors = dict(report.errors)
    return {one: _connected(by_node[(one.node_id, one.adapter)], errors.get(str(one)), check) for one in entries}


def _connected(row: Mapping[str, Any], error: Optional[SharingError], check: bool) -> Outcome:
    if error is not None:
        return failed(error)
    if row["action"] == "none":
        return done("connected" if check else "connected already")
    return waiting("not known to be connected") if check else done("connected")


def _rows(report: Report, name: str) -> List[Dict[str, Any]]:
    rows: List[Dict[str, Any]] = report.results[name]  # type: ignore[assignment]  # what the resource put there
    return rows


# -- lent devices -----------------------------------------------------------------------------------------------------


def lend_again(host: Host, entries: Sequence[LentEntry], is_patient: bool, check: bool) -> Dict[LentEntry, Outcome]:
    """Put every device in the pool, and make it available where it was."""
    found = find_lent(entries, _local_devices(host, entries), is_patient)
    outcomes = {entry: _not_found(one) for entry, one in found.items() if one.name is None}
    by_bdf = {str(one.name): entry for entry, one in found.items() if one.name is not None}
    if not by_bdf:
        return outcomes
    # What was not available then is only put in the pool: whoever made it available since knows why.
    states = {bdf: AVAILABLE if entry.state == AVAILABLE else lending.PRESENT for bdf, entry in by_bdf.items()}
    wishes = [Wish(written=bdf, state=state, bdf=bdf) for bdf, state in states.items()]
    report = lending.Lending(host, wishes, lending.Options()).run(check)
    errors = dict(report.errors)
    rows = {row["bdf"]: row for row in _rows(report, "devices")}
    for bdf, entry in by_bdf.items():
        error, row = errors.get(bdf), rows.get(bdf)
        if error is not None:
            outcomes[entry] = failed(error, is_patient)
        elif row is None:
            outcomes[entry] = waiting("it is gone")
        elif row["action"] == "none":
            outcomes[entry] = done(f"{row['state']}" if check else f"{row['state']} already")
        else:
            outcomes[entry] = waiting(f"it is {row['before']}") if check else done(_lent_words(bdf, entry, row))
    return outcomes


def _lent_words(bdf: str, entry: LentEntry, row: Mapping[str, Any]) -> str:
    moved = "" if bdf == entry.bdf else f" at its new address {bdf}"
    return f"{row['state']}{moved} ({row['action']})"


def _not_found(found: Found) -> Outcome:
    return refused(found.why) if found.is_other else waiting(found.why)


def _local_devices(host: Host, entries: Sequence[LentEntry]) -> List[Seen]:
    """This host's devices that may be one of the entries; a serial number costs reading."""
    ledger = host.store.load()
    wanted = {(entry.vendor_id, entry.device_id) for entry in entries}
    bdfs = {entry.bdf for entry in entries}
    seen = []
    for bdf, device in host.sysfs.devices().items():
        ids = (device.vendor_id or None, device.device_id or None)
        if bdf in bdfs or ids in wanted or (None, None) in wanted:
            serial = ledger.serial_of(bdf, host.sysfs)
            seen.append(Seen(bdf, bdf, None, serial, None, ids[0], ids[1]))
    return seen


# -- borrowed devices -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named(FabricSelect):
    """A selection of exactly these devices."""

    fdids: Tuple[str, ...] = ()

    def untold(self, device: FabricDevice) -> List[str]:
        return []

    def matches(self, device: FabricDevice, listed_name: str) -> bool:
        return device.fdid in self.fdids


@dataclass(frozen=True)
class _RecordedClaim(Claim):
    """A claim of devices that had a DMA window each: ``windows`` holds pairs of fdid and size."""

    windows: Tuple[Tuple[str, Optional[str]], ...] = ()

    def window(self, _fdid: str) -> Optional[str]:
        return dict(self.windows).get(_fdid)


class BorrowAgain:
    """One pass over the borrowed devices. ``all_entries`` are all that are recorded, ``entries`` those to be had again.

    ``places`` says afterwards, of every recorded device that is borrowed here, which fdid it is.
    """

    def __init__(self, host: Host, all_entries: Sequence[BorrowedEntry], entries: Sequence[BorrowedEntry]) -> None:
        self._host = host
        self._all = all_entries
        self._entries = entries
        self.places: Dict[End, str] = {}

    def run(self, check: bool) -> Dict[BorrowedEntry, Outcome]:
        """Borrow what is there; what is not is left for the next pass."""
        if not self._all:
            return {}
        host = self._host
        pool = Pool(host.tool)
        for fdid in pool.entries:
            pool.show(fdid)
        found = find_borrowed(self._all, [seen_in_pool(device) for device in pool.shown.values()])
        names = {entry: str(one.name) for entry, one in found.items() if one.name is not None}
        wanted = [entry for entry in self._entries if entry in names]
        others = [entry for entry in names if entry not in wanted]
        here = {names[entry] for entry in others if host.tool.get_vdev(names[entry])}
        outcomes = {entry: self._missing(entry, found[entry], pool) for entry in self._entries if entry not in names}
        if wanted:
            outcomes.update(self._borrow(wanted, names, self._claims(wanted, names, here), pool, check))
        here |= {names[entry] for entry in wanted if outcomes[entry].state == DONE}
        self.places = {entry.place: name for entry, name in names.items() if entry.place and name in here}
        return outcomes

    @staticmethod
    def _missing(entry: BorrowedEntry, found: Found, pool: Pool) -> Outcome:
        """Why there is no such device; who could not be looked at may be it."""
        fdids = sorted(pool.failed, key=lambda fdid: (fdid != entry.fdid, node_hint(fdid) != entry.node_id))
        if found.is_other or not fdids:
            return _not_found(found)
        return waiting(f"{found.why}, but {fdids[0]} could not be looked at: {pool.failed[fdids[0]].message}")

    def _borrow(
        self,
        wanted: Sequence[BorrowedEntry],
        names: Mapping[BorrowedEntry, str],
        claims: Sequence[Claim],
        pool: Pool,
        check: bool,
    ) -> Dict[BorrowedEntry, Outcome]:
        borrowing = Borrowing(self._host, claims, BorrowOptions(wait_for="vdev", partial=True), pool)
        report = borrowing.run(check)
        rows = {row["fdid"]: row for row in _rows(report, "devices")}
        return {entry: self._outcome(entry, names[entry], rows, borrowing, check) for entry in wanted}

    def _claims(
        self, wanted: Sequence[BorrowedEntry], names: Mapping[BorrowedEntry, str], here: Set[str]
    ) -> List[Claim]:
        """A claim for every label, since a label holds what one claim selects, and one for each device without.

        What was had again before and was returned since stays returned.
        """
        claims: List[Claim] = [
            Claim(name_of(entry), fdid=names[entry], dma_window=entry.dma_window)
            for entry in wanted
            if entry.label is None
        ]
        for label in dict.fromkeys(entry.label for entry in wanted if entry.label is not None):
            entries = [entry for entry in names if entry.label == label and (entry in wanted or names[entry] in here)]
            fdids = tuple(names[entry] for entry in entries)
            windows = tuple((names[entry], entry.dma_window) for entry in entries)
            claims.append(
                _RecordedClaim(
                    written=f"label {label}",
                    select=_Named(fdids=fdids),
                    label=label,
                    count=None,
                    windows=windows,
                )
            )
        return claims

    @staticmethod
    def _outcome(
        entry: BorrowedEntry, fdid: str, rows: Mapping[Any, Mapping[str, Any]], borrowing: Borrowing, check: bool
    ) -> Outcome:
        row = rows.get(fdid)
        if row is not None and row["vdev"]:
            words = "borrowed already" if row["action"] == "none" and not check else "borrowed"
            return done(f"{words}, as {row['vdev']}")
        if check and row is not None and row["action"] == "borrow":
            return waiting("it is available, and not borrowed")
        return failed(borrowing.trouble(fdid))


# -- pairs ------------------------------------------------------------------------------------------------------------


def pair_again(
    host: Host, entries: Sequence[PairEntry], places: Mapping[End, str], check: bool
) -> Dict[PairEntry, Outcome]:
    """Let devices reach each other again; ``places`` are those that are borrowed here, with their fdids."""
    pairs = {
        entry: Pair(places[entry.source], places[entry.destination], entry.bar_number)
        for entry in entries
        if entry.source in places and entry.destination in places
    }
    outcomes = {entry: waiting("not both devices are borrowed") for entry in entries if entry not in pairs}
    if not pairs:
        return outcomes
    report = set_pairs(host, list(pairs.values()), True, check)
    errors = dict(report.errors)
    rows = {(row["source"], row["destination"], row["bar"]): row for row in _rows(report, "pairs")}
    for entry, pair in pairs.items():
        row = rows[(pair.source, pair.destination, pair.bar_number)]
        if str(pair) in errors:
            outcomes[entry] = failed(errors[str(pair)])
        elif row["action"] == "none":
            outcomes[entry] = done("enabled" if check else "enabled already")
        else:
            outcomes[entry] = waiting("not known to be enabled") if check else done("enabled")
    return outcomes
