# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lender's side: which local devices are meant, what state they are in, and what leads to the wanted one.

Rules (design, section 2, "What is in use"): a device in use is refused before anything of it is touched; the disk
of /, the management interface, bridges and the fabric's adapter are refused even with force; nobody can see from
here whether a device is borrowed, so taking back needs somebody's word that the borrowers were checked.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .._pci import usage
from .._pci.address import DeviceNotFound
from .._pci.names import describe
from .._pci.sysfs import PciDevice, Sysfs
from .._plan import Action, Deadline, Item, Outcome, Plan, Report, SharingError
from .errors import ToolError
from .host import Host, NodeResource
from .ledger import Ledger
from .model import AVAILABLE, UNAVAILABLE, PoolEntry
from .pool import Pool, find_local
from .wishes import Catalogue, Target, Wish, elements_of, resolve, wish_from

PRESENT, ABSENT, LENT = "present", "absent", "lent"
STATES = (PRESENT, AVAILABLE, UNAVAILABLE, ABSENT)


@dataclass(frozen=True)
class Options:
    """How far a run may go; see the module's documentation."""

    force: bool = False
    borrowers_checked: bool = False
    skip_in_use: bool = False
    allow_empty: bool = False
    purge: bool = False


@dataclass(frozen=True)
class LocalDevice:
    """What is known of one local device before (or after) a run.

    ``lent_here``: the ledger says that this collection made it available; ``driver_then`` is the driver that sysfs
    showed right after. ``doubt`` says why it could not be told whether the device is in the pool.
    """

    bdf: str
    driver: Optional[str] = None
    reasons: Tuple[str, ...] = ()
    never: Tuple[str, ...] = ()
    entry: Optional[PoolEntry] = None
    lent_here: bool = False
    driver_then: Optional[str] = None
    doubt: Optional[str] = None

    @property
    def word(self) -> str:
        """What ``list`` shows; empty where the device is not in the pool."""
        return self.entry.word if self.entry else ""

    @property
    def state(self) -> str:
        """``absent``, ``unavailable``, ``available``, ``lent``, or the tool's own word."""
        if self.entry is None:
            return "unknown" if self.doubt else ABSENT
        word = self.word.lower()
        if word == AVAILABLE:
            return AVAILABLE
        if self._is_lent(word):
            return LENT
        if word == UNAVAILABLE:
            return UNAVAILABLE
        # A word that nobody here knows may read like a state of ours.
        return f"[{self.word}]" if word in (PRESENT, ABSENT, LENT) else self.word or "unknown"

    def _is_lent(self, word: str) -> bool:
        """Made available by us and left alone since: nobody has bound a driver in between.

        A driver that sysfs showed even after the device was made available tells nothing by still being there; then
        only a word other than ``unavailable`` counts.
        """
        if not self.lent_here:
            return False
        return self.driver is None or (word != UNAVAILABLE and self.driver == self.driver_then)

    @property
    def in_use(self) -> List[str]:
        """Every reason why the device is in use on this node."""
        return [*self.never, *self.reasons]


def outweigh(device: LocalDevice, want: str, options: Options) -> LocalDevice:
    """The device as it counts for what is wanted: what is seen may outweigh the ledger.

    One that is not in the pool, or has a driver again and is shown as unavailable, is not lent. To take a device back
    by force, ``unavailable`` alone will do.
    """
    taking_back = options.force and want in (UNAVAILABLE, ABSENT)
    disproved = device.state in (UNAVAILABLE, ABSENT) or (taking_back and device.word.lower() == UNAVAILABLE)
    return replace(device, lent_here=False) if disproved else device


def commands(want: str, state: str) -> Tuple[str, ...]:
    """The commands that lead from a state (see LocalDevice.state) to the wanted one."""
    if state == ABSENT:
        return {PRESENT: ("add",), AVAILABLE: ("add", "available"), UNAVAILABLE: ("add",), ABSENT: ()}[want]
    if want == PRESENT:
        return ()
    if want == AVAILABLE:
        return () if state in (AVAILABLE, LENT) else ("available",)
    close = () if state == UNAVAILABLE else ("unavailable",)
    return close if want == UNAVAILABLE else (*close, "remove")


def refusal(device: LocalDevice, want: str, options: Options) -> Optional[SharingError]:
    """Why ``want`` must not be carried out; None where it may, or where nothing is to be done."""
    steps = commands(want, device.state)
    if device.doubt and device.entry is None:
        return SharingError(f"{device.bdf}: {device.doubt}; nothing was done")
    if not steps:
        return None
    touched = "available" in steps or "unavailable" in steps
    if touched and device.never:
        return usage.must_not_touch(device.bdf, device.never)
    if options.force:
        return None
    known = device.state in (ABSENT, UNAVAILABLE, AVAILABLE, LENT)
    if not known:
        return SharingError(
            f"{device.bdf}: 'smartio_tool list' shows it as [{device.word}], a word that nobody here knows; "
            "nothing was done, force: true acts on it"
        )
    if touched and device.reasons:
        return usage.in_use(device.bdf, device.reasons)
    return _taking_back(device, steps, options)


def _taking_back(device: LocalDevice, steps: Sequence[str], options: Options) -> Optional[SharingError]:
    if "unavailable" not in steps:
        return None
    if device.state == LENT:
        return SharingError(
            f"{device.bdf} is lent ('smartio_tool list' shows it as [{device.word}]): return it on its borrower first, "
            "or give force: true"
        )
    if options.borrowers_checked:
        return None
    return SharingError(
        f"{device.bdf} is available, and a lender cannot see whether somebody has borrowed it: check every borrower "
        "and give borrowers_checked: true, or force: true"
    )


def plan_device(device: LocalDevice, want: str, options: Options) -> Item:
    """What is to be done for one device; pure."""
    device = outweigh(device, want, options)
    error = refusal(device, want, options)
    if error is not None:
        skipped = options.skip_in_use and bool(error.details.get("in_use"))
        return Item(device.bdf, device.state, device.state, error=None if skipped else error)
    steps = commands(want, device.state)
    actions = tuple(_action(step, device) for step in steps)
    return Item(device.bdf, device.state, _state_after(want, device.state, steps), actions)


def _state_after(want: str, state: str, steps: Sequence[str]) -> str:
    if not steps:
        return state
    return UNAVAILABLE if want == PRESENT else want


_WORDS = {
    "add": "add %s to the pool",
    "available": "make %s available",
    "unavailable": "take %s back",
    "remove": "remove %s from the pool",
}


def _action(step: str, device: LocalDevice) -> Action:
    return Action(step, (device.bdf, device.driver is not None), _WORDS[step] % device.bdf)


class Lending:
    """One run for a list of wishes on one node."""

    def __init__(self, host: Host, wishes: Sequence[Wish], options: Options) -> None:
        self._host = host
        self._wishes = wishes
        self._options = options
        self._present = host.sysfs.devices()

    def run(self, check: bool) -> Report:
        """Observe, plan and, unless ``check``, apply and read back."""
        with self._host.ledger(check) as ledger:
            pool = Pool(self._host.tool)
            targets, errors = self._resolve(pool, ledger)
            before = self._before(targets, pool, ledger)
            plan = self._plan(targets, before)
            if self._options.purge and not errors and not any(item.error for item in plan.items):
                extra = [Target(bdf, ABSENT) for bdf in self._purged(ledger, targets)]
                before.update(self._before(extra, pool, ledger))
                plan = self._plan([*targets, *extra], before)
            if check:
                return _report(before, None, plan.predict(), errors)
            outcomes = plan.apply(lambda action: self._perform(action, ledger))
            return _report(before, self._read_back(outcomes, before, pool, ledger), outcomes, errors)

    def _resolve(self, pool: Pool, ledger: Ledger) -> Tuple[List[Target], List[Tuple[str, SharingError]]]:
        host, present = self._host, self._present
        pooled: Dict[str, PoolEntry] = {}

        def entry(bdf: str) -> Optional[PoolEntry]:
            if not pooled:
                pooled.update(find_local(pool, present, present).found)
            return pooled.get(bdf)

        def serials(bdf: str) -> Iterator[Optional[str]]:
            # A drive's serial number leaves sysfs with its driver: then the ledger has it, or the tool.
            yield host.sysfs.serial(bdf)
            yield ledger.serials.get(bdf)
            found = entry(bdf)
            device = pool.show(found.fdid) if found else None
            yield device.serial if device else None

        def names(bdf: str) -> Iterator[Optional[str]]:
            yield from _names(host.sysfs, present[bdf])
            found = entry(bdf)
            yield found.name if found else None

        return resolve(self._wishes, Catalogue(present, serials, names), self._options.allow_empty)

    def _before(self, targets: Sequence[Target], pool: Pool, ledger: Ledger) -> Dict[str, LocalDevice]:
        """The wanted devices before anything is done to them; forgets what ``outweigh`` says does not hold."""
        wanted = {target.bdf: target.state for target in targets}
        devices = self._observe(list(wanted), pool, ledger)
        for bdf, used in usage.observe(list(wanted), self._host.sysfs, self._host.proc).items():
            devices[bdf] = replace(devices[bdf], reasons=used.reasons, never=used.never)
        before = {bdf: outweigh(device, wanted[bdf], self._options) for bdf, device in devices.items()}
        for bdf, device in before.items():
            if not device.lent_here:
                ledger.available.pop(bdf, None)
        return before

    def _purged(self, ledger: Ledger, targets: Sequence[Target]) -> List[str]:
        """The BDFs that this collection added and that are not named any more."""
        named = {target.bdf for target in targets}
        return [bdf for bdf in ledger.added if bdf not in named and bdf in self._present]

    def _observe(self, bdfs: Sequence[str], pool: Pool, ledger: Ledger) -> Dict[str, LocalDevice]:
        """The devices as they are, but for what uses them: to ask that of a disk that is coming up disturbs it."""
        if not bdfs:
            return {}
        local = find_local(pool, bdfs, self._present)
        return {
            bdf: LocalDevice(
                bdf=bdf,
                driver=self._host.sysfs.driver(bdf),
                entry=local.found.get(bdf),
                lent_here=bdf in ledger.available,
                driver_then=ledger.available.get(bdf),
                doubt=local.doubt_about(bdf),
            )
            for bdf in bdfs
        }

    def _plan(self, targets: Sequence[Target], devices: Mapping[str, LocalDevice]) -> Plan:
        return Plan(tuple(plan_device(devices[target.bdf], target.state, self._options) for target in targets))

    def _perform(self, action: Action, ledger: Ledger) -> None:
        tool, bdf = self._host.tool, str(action.args[0])
        if action.command == "add":
            tool.add(bdf)
            ledger.added = [*(other for other in ledger.added if other != bdf), bdf]
        elif action.command == "available":
            serial = self._host.sysfs.serial(bdf)
            if serial:
                ledger.serials[bdf] = serial
            tool.available(bdf, bound=bool(action.args[1]))
            return  # remembered once list has confirmed it, see _confirm
        elif action.command == "unavailable":
            self._take_back(bdf, ledger)
        else:
            tool.remove(bdf)
            return  # forgotten once list does not show it any more: until then it is still to be purged
        self._host.remember(ledger)

    def _take_back(self, bdf: str, ledger: Ledger) -> None:
        """Forgotten before it is done: where the run, or the command, comes to no good end, ``list`` has the last word.

        Otherwise a device without a driver would count as lent from then on, since nothing but the ledger tells. Only
        EBUSY says that nothing was done.
        """
        was_known, driver = bdf in ledger.available, ledger.available.pop(bdf, None)
        self._host.remember(ledger)
        try:
            self._host.tool.unavailable(bdf)
        except ToolError as error:
            if was_known and error.errno == errno.EBUSY:
                ledger.available[bdf] = driver
                self._host.remember(ledger)
            raise

    def _read_back(
        self, outcomes: Sequence[Outcome], before: Mapping[str, LocalDevice], pool: Pool, ledger: Ledger
    ) -> Dict[str, LocalDevice]:
        """Wait until the tool and sysfs show what was done; what they do not show in time is an error."""
        touched = {outcome.item.name: outcome for outcome in outcomes if outcome.item.actions}
        after, failure = dict(before), None
        if not touched:
            return after
        for bdf, outcome in touched.items():
            entry = before[bdf].entry
            if entry and any(action.command == "remove" for action in outcome.item.actions):
                pool.forget(entry.fdid)  # what was added after it may have its id now
        for _try in self._host.deadline.pauses():
            try:
                pool.refresh()
                after.update(self._observe(list(touched), pool, ledger))
                failure = None
            except SharingError as error:
                failure = error
                continue
            self._confirm(touched, after, ledger)
            if all(_settled(outcome, after[bdf]) for bdf, outcome in touched.items()):
                break
        for bdf, outcome in touched.items():
            if failure or not _settled(outcome, after[bdf]):
                outcome.error = outcome.error or _not_confirmed(outcome, after[bdf], self._host.deadline, failure)
        return after

    def _confirm(self, touched: Mapping[str, Outcome], after: Dict[str, LocalDevice], ledger: Ledger) -> None:
        """Remember what was made available and is shown so, before a borrower changes its word; forget what is gone."""
        for bdf, outcome in touched.items():
            device = after[bdf]
            made_available = any(action.command == "available" for action in outcome.done)
            if made_available and device.entry and device.entry.word.lower() != UNAVAILABLE and not device.lent_here:
                ledger.available[bdf] = device.driver
                self._host.remember(ledger)
                after[bdf] = replace(device, lent_here=True, driver_then=device.driver)
        removed = {bdf for bdf in touched if _is_removed(touched[bdf], after[bdf])} & ledger.pooled
        if removed:
            ledger.added = [bdf for bdf in ledger.added if bdf not in removed]
            for bdf in removed:
                ledger.available.pop(bdf, None)
            self._host.remember(ledger)


def _is_removed(outcome: Outcome, device: LocalDevice) -> bool:
    return device.state == ABSENT and any(action.command == "remove" for action in outcome.done)


def _names(sysfs: Sysfs, device: PciDevice) -> Iterator[Optional[str]]:
    yield sysfs.model(device.bdf)
    yield describe(device)


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_device for a module's parameters."""
    options = Options(
        force=params["force"],
        borrowers_checked=params["borrowers_checked"],
        skip_in_use=params["on_in_use"] == "skip",
        allow_empty=params["allow_empty"],
        purge=params["purge"],
    )
    wishes = [wish_from(element, params["state"]) for element in elements_of(params)]
    return NodeResource(
        what="devices",
        run=lambda host, check: Lending(host, wishes, options).run(check),
        pending=lambda places: _pending(Sysfs(places.sysfs), wishes, options),
    )


def _pending(sysfs: Sysfs, wishes: Sequence[Wish], options: Options) -> Report:
    """The answer of check mode where the tool is not installed yet: nothing can be told, all may change."""
    present = sysfs.devices()
    catalogue = Catalogue(present, lambda bdf: [sysfs.serial(bdf)], lambda bdf: _names(sysfs, present[bdf]))
    rows: List[Dict[str, object]] = []
    errors = [] if wishes else resolve(wishes, catalogue, options.allow_empty)[1]
    for wish in wishes:
        targets, failed = resolve([wish], catalogue, options.allow_empty)
        if failed and isinstance(failed[0][1], DeviceNotFound):
            # What installs the tool may bring the device, too: a software node does, and so do virtual functions.
            targets, failed = [Target(wish.written, wish.state)], []
        errors += failed
        rows += [_pending_row(target) for target in targets]
    return Report({"devices": rows, "pending": True}, changed=bool(rows), errors=errors)


def _pending_row(target: Target) -> Dict[str, object]:
    state = UNAVAILABLE if target.state == PRESENT else target.state
    return {**_result(LocalDevice(target.bdf), None, state, "pending"), "before": None}


def _settled(outcome: Outcome, device: LocalDevice) -> bool:
    """Whether the device is shown as it should be now; one whose command failed is not waited for."""
    if outcome.error is not None or device.state == outcome.item.after:
        return True
    return outcome.item.after == AVAILABLE and device.state == LENT


def _not_confirmed(
    outcome: Outcome, device: LocalDevice, deadline: Deadline, failure: Optional[SharingError]
) -> SharingError:
    seen = failure.message if failure else device.doubt or f"last seen as {device.state}"
    return SharingError(
        f"{device.bdf}: 'smartio_tool {outcome.done[-1].command}' succeeded, but the device was not seen as "
        f"{outcome.item.after} within {deadline.seconds:g} seconds ({seen}); run again, or look at 'smartio_tool list'"
    )


def _report(
    before: Mapping[str, LocalDevice],
    after: Optional[Mapping[str, LocalDevice]],
    outcomes: Sequence[Outcome],
    unresolved: Sequence[Tuple[str, SharingError]],
) -> Report:
    """The answer of a run; of a prediction where ``after`` is None."""
    report = Report({"devices": []}, errors=list(unresolved))
    devices: List[Dict[str, object]] = []
    for outcome in outcomes:
        bdf = outcome.item.name
        state = outcome.item.after if after is None else after[bdf].state
        devices.append(_result(before[bdf], None if after is None else after[bdf], state, outcome.action))
        report.before.append(f"{bdf}: {outcome.item.before}")
        report.after.append(f"{bdf}: {state}")
        report.changed = report.changed or bool(outcome.done)
        if outcome.error is not None:
            report.errors.append((bdf, outcome.error))
    report.results["devices"] = devices
    return report


def _result(before: LocalDevice, after: Optional[LocalDevice], state: str, action: str) -> Dict[str, object]:
    """A device's entry of the answer; what only the tool knows is None in a prediction."""
    entry = (after.entry if after else None) or before.entry
    rebound = after is None and ("available" in action or action == "pending")
    return {
        "bdf": before.bdf,
        "fdid": entry.fdid if entry else None,
        "name": entry.name if entry else None,
        "before": before.state,
        "state": state,
        "driver_before": before.driver,
        "driver": None if rebound else (after or before).driver,
        "in_use": before.in_use,
        "action": action,
    }
