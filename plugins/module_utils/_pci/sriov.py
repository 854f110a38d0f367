# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many virtual functions a device has. The kernel goes from one number to another through none at all."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from .._plan import Action, Deadline, Item, Outcome, Plan, Report, Resource, SharingError, run_plan
from . import usage
from .address import check_written, normalise, printable, resolve
from .sysfs import Sysfs

# More than any device has (the capability's field is 16 bits wide).
_MOST = 65535
_WHY = {
    errno.ENOENT: "its driver does not do SR-IOV, or none is bound",
    errno.ENOSYS: "its driver does not do SR-IOV",
    errno.EBUSY: "its virtual functions are in use",
    errno.ENOMEM: "there are not enough bus numbers or memory addresses; see the firmware's settings for SR-IOV",
    errno.EACCES: "permission denied; run as root (become: true)",
    errno.EPERM: "not permitted; run as root (become: true)",
    errno.EROFS: "sysfs is mounted read-only here",
}


@dataclass(frozen=True)
class Wish:
    """A device as it was named, and how many virtual functions it shall have."""

    bdf: object
    numvfs: int


@dataclass(frozen=True)
class Function:
    """A device before (or after) a run. ``totalvfs`` is None where it has no SR-IOV capability.

    ``reasons`` and ``never`` say of its virtual functions why they must be left alone (see usage.Usage).
    """

    bdf: str
    numvfs: int = 0
    totalvfs: Optional[int] = None
    vfs: Tuple[str, ...] = ()
    physfn: Optional[str] = None
    reasons: Tuple[str, ...] = ()
    never: Tuple[str, ...] = ()


def refusal(function: Function, numvfs: int, force: bool) -> Optional[SharingError]:
    """Why the device cannot, or must not, have that many virtual functions; None where it may."""
    bdf, total = function.bdf, function.totalvfs
    if numvfs == function.numvfs:
        return None
    if function.physfn:
        return SharingError(f"{bdf} is itself a virtual function, of {function.physfn}; name that one")
    if total is None:
        return SharingError(
            f"{bdf} has no SR-IOV capability (no sriov_totalvfs in sysfs); name another device, or enable SR-IOV "
            "in the firmware's settings"
        )
    if numvfs > total:
        return SharingError(f"{bdf} can have {total} virtual functions at most, not {numvfs}; ask for fewer")
    named = [*function.never, *(() if force else function.reasons)]
    if not named:
        return None
    advice = "refused even with force" if function.never else "free it first, or give force: true"
    every = [*function.never, *function.reasons]
    return SharingError(
        f"{bdf} has {function.numvfs} virtual functions, which go before it can have {numvfs}, but one is in use: "
        f"{'; '.join(every)}; {advice}",
        in_use=every,
    )


def plan_function(function: Function, numvfs: int, force: bool) -> Item:
    """What is to be done for one device; pure."""
    bdf, before = function.bdf, _words(function.numvfs)
    error = refusal(function, numvfs, force)
    if error is not None or numvfs == function.numvfs:
        return Item(bdf, before, before, error=error)
    actions = []
    if function.numvfs:
        actions.append(Action("disable", (bdf, 0), f"take the virtual functions of {bdf} away"))
    if numvfs:
        actions.append(Action("enable", (bdf, numvfs), f"give {bdf} {_words(numvfs)}"))
    return Item(bdf, before, _words(numvfs), tuple(actions))


def _words(count: int) -> str:
    return "1 virtual function" if count == 1 else f"{count} virtual functions"


class Functions:
    """One run for a list of devices. ``pooled`` tells which devices the fabric's pool has, as far as that is known."""

    def __init__(self, sysfs: Sysfs, proc: str, deadline: Deadline, pooled: Callable[[], Collection[str]]) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._deadline = deadline
        self._pooled = pooled

    def run(self, wishes: Sequence[Wish], force: bool, check: bool) -> Report:
        """Observe, plan and, unless ``check``, write and wait."""
        numvfs, unresolved = self._resolve(wishes)
        if check and unresolved and not self._sysfs.addresses():
            return _pending(wishes)
        before = self._before(numvfs)
        plan = Plan(tuple(plan_function(before[bdf], wanted, force) for bdf, wanted in numvfs.items()))
        report, outcomes = run_plan(plan, check, self._perform)
        report.results["devices"] = [
            _row(before[outcome.item.name], self._after(outcome, numvfs, check), outcome, check and bool(outcome.done))
            for outcome in outcomes
        ]
        report.errors[:0] = unresolved
        return report

    def _resolve(self, wishes: Sequence[Wish]) -> Tuple[Dict[str, int], List[Tuple[str, SharingError]]]:
        """How many functions each device shall have. One that shall have two numbers is left alone."""
        present = self._sysfs.addresses()
        named: Dict[str, List[Wish]] = {}
        errors: List[Tuple[str, SharingError]] = []
        for wish in wishes:
            try:
                named.setdefault(resolve(wish.bdf, present), []).append(wish)
            except SharingError as error:
                errors.append((printable(str(wish.bdf)), error))
        for bdf, same in named.items():
            counts = list(dict.fromkeys(wish.numvfs for wish in same))
            if len(counts) > 1:
                both = " and ".join(map(_words, counts))
                torn = SharingError(f"{bdf} shall have both {both}; nothing was done, name it once")
                errors += [(printable(str(wish.bdf)), torn) for wish in same]
        return {bdf: same[0].numvfs for bdf, same in named.items() if len({wish.numvfs for wish in same}) == 1}, errors

    def _before(self, numvfs: Mapping[str, int]) -> Dict[str, Function]:
        """The devices as they are. What uses virtual functions is only looked for where they would go, once for all."""
        functions = {bdf: self._observe(bdf) for bdf in numvfs}
        going = [vf for one in functions.values() if one.numvfs != numvfs[one.bdf] for vf in one.vfs]
        if not going:
            return functions
        used, pooled = usage.observe(going, self._sysfs, self._proc), self._pooled()
        for bdf, one in functions.items():
            vfs = [vf for vf in one.vfs if vf in used]
            reasons = [f"{vf}: {reason}" for vf in vfs for reason in used[vf].reasons]
            reasons += [f"{vf}: is in the SmartIO pool" for vf in vfs if vf in pooled]
            never = [f"{vf}: {reason}" for vf in vfs for reason in used[vf].never]
            functions[bdf] = replace(one, reasons=tuple(reasons), never=tuple(never))
        return functions

    def _observe(self, bdf: str) -> Function:
        device, vfs = self._sysfs.device(bdf), self._sysfs.virtual_functions(bdf)
        return Function(bdf, device.numvfs or 0, self._sysfs.totalvfs(bdf), tuple(vfs), device.physfn)

    def _perform(self, action: Action) -> None:
        bdf, wanted = str(action.args[0]), int(str(action.args[1]))
        try:
            with open(os.path.join(self._sysfs.folder(bdf), "sriov_numvfs"), "w", encoding="ascii") as file:
                file.write(str(wanted))
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            why = _WHY.get(error.errno or 0, "the kernel log may hold the reason")
            raise SharingError(f"{bdf} cannot have {_words(wanted)}: {name} from sriov_numvfs, {why}") from error
        for _last in self._deadline.pauses():
            numvfs, vfs = self._sysfs.device(bdf).numvfs, self._sysfs.virtual_functions(bdf)
            if numvfs == wanted and len(vfs) == wanted:
                return
        raise SharingError(
            f"{bdf} was asked for {_words(wanted)}, but {len(vfs)} are there after {self._deadline.seconds:g} seconds; "
            "the kernel log may hold the reason"
        )

    def _after(self, outcome: Outcome, numvfs: Mapping[str, int], check: bool) -> Function:
        """The device after the run, or as it would be: then only the kernel knows its virtual functions."""
        bdf = outcome.item.name
        if not check or not outcome.done:
            return self._observe(bdf)
        return Function(bdf, numvfs[bdf], self._sysfs.totalvfs(bdf))


def _row(before: Function, after: Function, outcome: Outcome, predicted: bool) -> Dict[str, object]:
    return {
        "bdf": before.bdf,
        "before": before.numvfs,
        "numvfs": after.numvfs,
        "totalvfs": after.totalvfs,
        "vfs": None if predicted else list(after.vfs),
        "action": outcome.action,
    }


def _pending(wishes: Sequence[Wish]) -> Report:
    """The answer of check mode where there is no sysfs yet: what brings a software node brings it, too."""
    rows = [
        {"bdf": printable(str(wish.bdf)), "before": None, "numvfs": wish.numvfs, "totalvfs": None, "vfs": None}
        for wish in wishes
    ]
    devices = [{**row, "action": "pending" if row["numvfs"] else "none"} for row in rows]
    return Report({"devices": devices, "pending": True}, changed=any(wish.numvfs for wish in wishes))


def resource(params: Mapping[str, Any], pooled: Callable[[], Collection[str]]) -> Resource:
    """The resource of pci_sriov for a module's parameters."""
    elements = [params] if params["devices"] is None else params["devices"]
    wishes = [Wish(element["bdf"], _count(element["numvfs"])) for element in elements]
    for wish in wishes:
        check_written(wish.bdf, "bdf")
    timeout = params["timeout"]
    if not 0 <= timeout < float("inf"):
        raise SharingError(f"timeout: {timeout!r} is not a number of seconds from 0 on")
    taken_back = frozenset(normalise(check_written(bdf, "taken_back")) for bdf in params["taken_back"])

    def left() -> Collection[str]:
        return frozenset(pooled()) - taken_back

    functions = Functions(Sysfs(params["sysfs"]), params["proc"], Deadline(timeout), left)
    return Resource("devices", lambda check: functions.run(wishes, params["force"], check))


def _count(numvfs: int) -> int:
    if not 0 <= numvfs <= _MOST:
        raise SharingError(f"numvfs: {numvfs} is not a number of virtual functions from 0 on; correct it")
    return numvfs
