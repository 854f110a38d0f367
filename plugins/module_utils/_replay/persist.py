# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one writer of the file: what modules returned, turned into entries, under the lock that all runs share.

Works where nothing of SmartIO is installed, too: a host may only have control planes to be started again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, fields, replace
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from .._pci.address import check_written, normalise
from .._pci.sysfs import PciDevice, Sysfs
from .._plan import Deadline, Report, Resource, SharingError
from .._program import Program, refuse_unsafe
from .._smartio.connections import Connection
from .._smartio.host import ARGUMENTS, Places, ledger_store
from .._smartio.model import AVAILABLE, UNAVAILABLE, normalise_fdid
from .._smartio.p2p import Pair, pair_from
from . import store
from .merge import Change, forget, remember
from .store import BorrowedEntry, CplaneEntry, LentEntry, MountEntry, Sharing, SriovEntry

PRESENT, ABSENT = "present", "absent"
PROGRAM_DIR = "/usr/local/lib/iofabric"
PROGRAM = "iofabric-sharing.pyz"

Entry = TypeVar("Entry")

# What a lent device is recorded as, by the state that it has. Any other word says nothing that could be replayed.
_STATES = {AVAILABLE: AVAILABLE, "lent": AVAILABLE, UNAVAILABLE: UNAVAILABLE}
_UNKNOWN_YET = ("pending", "borrow")


@dataclass(frozen=True)
class Request:
    """A module call: its parameters, read as far as that needs nothing of the node."""

    change: Change
    pending: bool
    """Check mode: rows of devices that an earlier task of the play would bring."""

    lent: Tuple[Mapping[str, Any], ...]
    """Rows of lent devices that may be recorded, once it is known what the devices are."""


def request_from(params: Mapping[str, Any], check: bool) -> Request:
    """What a module call asks for; SharingError that names what is wrong with it."""
    lent = [row for row in params["lent"] or () if not _is_pending_lent(row)]
    borrowed = list(params["borrowed"] or ())
    returned = [row for row in borrowed if row.get("action") == "return"]
    kept = [row for row in borrowed if row.get("action") != "return" and _is_recorded(row, params["state"], check)]
    pending = len(lent) < len(params["lent"] or ()) or any(_is_pending(row) for row in borrowed)
    failed = {str(error.get("element")) for error in params["errors"] or ()}
    connections = [_connection(row) for row in params["connections"] or () if _is_connected(row)]
    change = Change(
        places=Places(**{name: params[name] for name in ARGUMENTS}),
        connections=tuple(one for one in connections if str(one) not in failed),
        sriov=tuple(_sriov(one) for one in params["sriov"] or ()),
        mentioned=frozenset(str(row["bdf"]) for row in lent),
        borrowed=tuple(_borrowed(row) for row in kept),
        window_told=frozenset(_fdid(row) for row in kept if "dma_window" in row),
        returned=tuple(_borrowed(row) for row in returned if row.get("fdid")),
        claims=frozenset(params["claims"] or ()),
        pairs=tuple(_pairs(params["p2p"] or ())),
        mounts=tuple(_entry(MountEntry, one, "mounts") for one in params["mounts"] or ()),
        cplanes=tuple(_cplane(one) for one in params["cplanes"] or ()),
    )
    return Request(change, pending, tuple(row for row in lent if row["bdf"] not in failed))


def _is_pending_lent(row: Mapping[str, Any]) -> bool:
    """A device that is not there yet has no address, but the words that it is selected by."""
    if row.get("bdf") is None:
        raise SharingError("lent: a row has no bdf; give the 'devices' that smartio_device returned")
    try:
        normalise(str(row["bdf"]))
    except SharingError:
        if row.get("action") == "pending":
            return True
        raise
    return False


def _is_recorded(row: Mapping[str, Any], state: str, check: bool) -> bool:
    """Whether a row is about a device that is borrowed (in check mode: would be), or that is to be forgotten."""
    if row.get("fdid") is None:
        return False
    return state == ABSENT or row.get("vdev") is not None or (check and row.get("action") in _UNKNOWN_YET)


def _is_pending(row: Mapping[str, Any]) -> bool:
    return row.get("action") == "pending"


def _entry(kind: Type[Entry], data: Mapping[str, Any], where: str) -> Entry:
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # every entry is a dataclass
    given = {name: value for name, value in data.items() if name in known}
    try:
        return store.read_entry(kind, given, where)
    except ValueError as error:
        raise SharingError(f"{error}; correct it") from None


def _is_connected(row: Mapping[str, Any]) -> bool:
    """Whether a row is about a node that is connected; a row without a state is what a person wrote."""
    return bool(row.get("state", "connected") == "connected")


def _connection(row: Mapping[str, Any]) -> Connection:
    return _entry(Connection, {**row, "adapter": row.get("adapter") or 0}, "connections")


def _sriov(data: Mapping[str, Any]) -> SriovEntry:
    bdf = normalise(check_written(data["bdf"], "sriov.bdf"))
    return _entry(SriovEntry, {**data, "bdf": bdf}, "sriov")


def _fdid(row: Mapping[str, Any]) -> str:
    return normalise_fdid(row["fdid"])


def _borrowed(row: Mapping[str, Any]) -> BorrowedEntry:
    told = {name: value for name, value in row.items() if value is not None}
    if "dma_window" in told:
        told["dma_window"] = str(told["dma_window"])
    for name in ("uuid", "vendor_id", "device_id"):
        if name in told:
            told[name] = str(told[name]).lower()
    return _entry(BorrowedEntry, {**told, "fdid": _fdid(row)}, "borrowed")


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    """The pairs; of rows that smartio_p2p returned, those that it has set."""
    for row in rows:
        if row.get("source") is None or row.get("destination") is None:
            raise SharingError("p2p: a pair has no source or no destination; give both as fabric device ids")
        if row.get("state", "enabled") is not None:
            yield pair_from(row)


def _cplane(data: Mapping[str, Any]) -> CplaneEntry:
    given = {name: value for name, value in data.items() if value is not None}
    given["controllers"] = [check_written(one, "cplanes.controllers") for one in given.get("controllers", ())]
    return _entry(CplaneEntry, given, "cplanes")


class Persisting:
    """One run on one node."""

    def __init__(self, params: Mapping[str, Any], program: Program) -> None:
        self._params = params
        self._path = str(params["path"])
        self._is_absent = params["state"] == ABSENT
        self._program = program

    def run(self, check: bool) -> Report:
        """Read, merge and, unless ``check``, write."""
        request = request_from(self._params, check)
        if not os.path.isabs(self._path):
            raise SharingError(f"path: {self._path!a} is not an absolute path; correct it")
        if self._needs_program and not check and self._program.missing:
            return Report({"need_program": self._program.path})
        with self._locked(check, request):
            return self._run(request, check)

    @contextlib.contextmanager
    def _locked(self, check: bool, request: Request) -> Iterator[None]:
        if check or request.change.places is None:
            yield
            return
        with ledger_store(request.change.places).locked(Deadline(request.change.places.timeout)):
            yield

    @property
    def _needs_program(self) -> bool:
        return not self._is_absent

    def _run(self, request: Request, check: bool) -> Report:
        refuse_unsafe(self._path, "path")
        data = store.read_bytes(self._path)
        before = "" if data is None else data.decode(errors="replace")
        have = None if data is None or self._forgets_all else store.parse(self._path, data)
        merged, unknown = self._after(have or Sharing(), request)
        # Where nothing was and nothing is to be recorded, no file is made.
        is_file = not self._forgets_all and (have is not None or not merged.is_empty)
        after = store.to_text(merged) if is_file else ""
        report = self._report(before, after, merged, request)
        if not check:
            if self._needs_program:
                self._program.install()
            if before != after:
                self._write(merged if is_file else None)
        if unknown and not request.pending:
            raise _unknown_pairs(unknown, report)
        return report

    @property
    def _forgets_all(self) -> bool:
        return self._is_absent and bool(self._params["all"])

    def _after(self, have: Sharing, request: Request) -> Tuple[Sharing, List[Pair]]:
        if self._forgets_all:
            return Sharing(), []
        if self._is_absent:
            bdfs = frozenset(str(row["bdf"]) for row in request.lent)
            return forget(have, replace(request.change, taken_out=bdfs)), []
        return remember(have, self._with_devices(request, have))

    def _write(self, sharing: Optional[Sharing]) -> None:
        if sharing is not None:
            store.write(self._path, sharing)
        else:
            os.unlink(self._path)

    def _report(self, before: str, after: str, sharing: Sharing, request: Request) -> Report:
        report = Report({"path": self._path, "sharing": store.to_json(sharing), "program": self._program.path})
        report.before, report.after = before.splitlines(), after.splitlines()
        report.changed = request.pending or before != after
        if self._needs_program and self._program.differs:
            report.before.append(f"{self._program.path}: another program, or none")
            report.after.append(f"{self._program.path}: the program of this collection")
            report.changed = True
        if request.pending:
            report.results["pending"] = True
            report.after.append("and what could not be told yet")
        return report

    def _with_devices(self, request: Request, have: Sharing) -> Change:
        """The change, with what sysfs and the ledger tell of the lent devices."""
        change = request.change
        if change.places is None or not request.lent:
            return change
        sysfs, ledger = Sysfs(change.places.sysfs), ledger_store(change.places).load()
        devices = sysfs.devices()
        asked = {str(row["bdf"]) for row in request.lent} | {one.bdf for one in have.lent}
        present = {bdf: ledger.serial_of(bdf, sysfs) for bdf in asked if bdf in devices}
        lent, taken_out = _lent(request.lent, devices, present)
        return replace(change, lent=lent, taken_out=taken_out, present=present)


def _lent(
    rows: Sequence[Mapping[str, Any]], devices: Mapping[str, PciDevice], serials: Mapping[str, Optional[str]]
) -> Tuple[Tuple[LentEntry, ...], FrozenSet[str]]:
    entries, taken_out = [], set()
    for row in rows:
        bdf, state = str(row["bdf"]), row.get("state")
        if state == ABSENT:
            taken_out.add(bdf)
        elif state in _STATES:
            device = devices.get(bdf)
            entries.append(
                LentEntry(
                    bdf=bdf,
                    state=_STATES[str(state)],
                    serial=serials.get(bdf),
                    vendor_id=(device.vendor_id if device else None) or None,
                    device_id=(device.device_id if device else None) or None,
                )
            )
    return tuple(entries), frozenset(taken_out)


def _unknown_pairs(unknown: Sequence[Pair], report: Report) -> SharingError:
    """The error for pairs of devices that nobody recorded; everything else was."""
    named = ", ".join(map(str, unknown))
    answer: Dict[str, Any] = {**report.results, "changed": report.changed}
    return SharingError(
        f"p2p: {named} cannot be recorded, since not both devices are recorded; give them in 'borrowed'", **answer
    )


def resource(params: Mapping[str, Any]) -> Resource:
    """The resource of smartio_persist for a module's parameters."""
    path = os.path.join(params["program_dir"], PROGRAM)
    persisting = Persisting(params, Program(path, params["_program_digest"], params["_program_source"]))
    return Resource("entries", persisting.run)
