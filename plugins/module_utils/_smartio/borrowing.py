# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The borrower's side: fill claims from the pool, wait for what comes late, give back what falls short, return.

Races are normal here: a borrow can come before the lender's ``available`` has taken effect, and other borrowers take
from the same pool. So claims are filled in passes until one deadline; the lock is free between passes.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .._pci import usage
from .._plan import Action, Item, Outcome, Plan, Report, SharingError
from .claims import (
    Claim,
    Fabric,
    Share,
    claim_from,
    is_anothers,
    matching,
    meant,
    misfit,
    share_out,
    shortfall,
    told_of,
    why_not,
)
from .errors import DONE_ALREADY, TRY_LATER, ToolError
from .host import Host, NodeResource, Places
from .ledger import Ledger
from .model import Borrowed, FabricDevice
from .pool import Pool
from .wishes import elements_of

# What a borrow may answer where this node still holds what its lender, which was restarted, has forgotten.
_STALE = frozenset((errno.EBUSY, errno.EIO)) | DONE_ALREADY


@dataclass(frozen=True)
class Options:
    """How far a run may go; see the module's documentation.

    ``partial``: take what there is in one pass, and keep it though a claim falls short.
    """

    wait_for: str = "driver"
    force: bool = False
    partial: bool = False


def observe(host: Host, claims: Sequence[Claim], ledger: Ledger, pool: Pool, force: bool) -> Fabric:
    """What is known of the pool after asking about as few devices as the claims need.

    Devices that the ledger remembers are asked first, then likely ones, and only until the claims are filled.
    """
    if any(claim.select for claim in claims):
        for fdid in pool.entries:
            pool.show(fdid)
    for claim in claims:
        if claim.fdid in pool.entries:
            pool.show(str(claim.fdid))
    vdevs: Dict[str, Optional[str]] = {}
    fabric = Fabric(pool.entries, pool.shown, pool.failed, vdevs, ledger.borrowed, host.tool.unanswered)
    labels = {claim.label for claim in claims if claim.label}
    wanted = {fdid for claim in claims for fdid in matching(claim, fabric)}
    first = [claim.fdid for claim in claims if claim.fdid]
    first += [fdid for fdid, label in ledger.borrowed.items() if fdid in wanted or label in labels]
    for fdid in first:
        if fdid not in vdevs:
            vdevs[fdid] = host.tool.get_vdev(fdid)
    while True:
        ask = [fdid for share in share_out(claims, fabric, force) for fdid in _to_ask(share)]
        if not ask:
            return fabric
        vdevs.update({fdid: host.tool.get_vdev(fdid) for fdid in dict.fromkeys(ask)})


def _to_ask(share: Share) -> List[str]:
    """As many of the devices that nobody was asked about as the claim has room for."""
    if share.claim.count is None:
        return share.unknown
    return share.unknown[: max(0, share.claim.count - len(share.kept))]


class Borrowing:
    """One run that fills claims on one node."""

    def __init__(self, host: Host, claims: Sequence[Claim], options: Options, pool: Optional[Pool] = None) -> None:
        self._host = host
        self._claims = claims
        self._options = options
        self._pool = pool
        self._fabric = Fabric({}, {}, {}, {})
        self._taken: Set[str] = set()
        self._found: Set[str] = set()  # of these: that may have been borrowed before
        self._drivers: Dict[str, Optional[str]] = {}
        self._tried: Dict[str, SharingError] = {}
        self._hopeless: Set[str] = set()
        self._busy: Set[str] = set()
        self._had: Optional[FrozenSet[str]] = None
        self._healed: Set[str] = set()

    def run(self, check: bool) -> Report:
        """Fill the claims, pass by pass, until the deadline; in check mode say what the first pass would do."""
        passes = self._host.deadline.pauses(first=0.1)
        while True:
            last = next(passes)
            with self._host.ledger(check) as ledger:
                self._had = frozenset(ledger.borrowed) if self._had is None else self._had
                self._observe(ledger)
                shares = share_out(self._claims, self._fabric, self._options.force)
                if check:
                    return self._predict(shares, self._fabric)
                self._fill(shares, self._fabric, ledger)
                last = last or self._options.partial
                if last or not any(self._worth_waiting(share, self._fabric) for share in shares):
                    report = self._give_back_partial(shares, self._fabric, ledger)
                    break
        self._wait(shares, self._fabric, report)
        return self._report(shares, self._fabric, report)

    def trouble(self, fdid: str) -> SharingError:
        """Why a device that is claimed has not been borrowed, after a run."""
        return self._tried.get(fdid) or SharingError(why_not(fdid, self._fabric))

    def _observe(self, ledger: Ledger) -> None:
        """Look at the pool. Once something was taken, a look that fails leaves the last one: nothing may be lost."""
        try:
            if self._pool is None:
                self._pool = Pool(self._host.tool)
            else:
                self._pool.refresh()
            self._fabric = observe(self._host, self._claims, ledger, self._pool, self._options.force)
        except SharingError:
            if not self._taken:
                raise

    def _fill(self, shares: Sequence[Share], fabric: Fabric, ledger: Ledger) -> None:
        for share in shares:
            if share.misfits:
                continue
            for fdid in share.kept:
                self._remember(fdid, share.claim, ledger)
            for fdid in share.candidates:
                if share.missing == 0:
                    break
                if fdid not in self._hopeless and fdid not in self._taken and self._borrow(fdid, share, fabric, ledger):
                    share.kept.append(fdid)
                    share.missing = None if share.missing is None else share.missing - 1
            if share.missing is None:
                # "All" is all that can be had: a tool may list as available what somebody else has borrowed.
                share.candidates = [fdid for fdid in share.candidates if fdid not in self._busy]
        self._forget_returned(fabric, ledger)

    def _forget_returned(self, fabric: Fabric, ledger: Ledger) -> None:
        """Forget what was returned by hand: it is not here, its owner can be asked, and it was no trouble to borrow."""
        asked = [fdid for fdid in ledger.borrowed if fdid in fabric.vdevs and fdid in fabric.entries]
        for fdid in asked:
            if not (fabric.here(fdid) or fdid in fabric.unanswered or fdid in self._tried):
                ledger.forget_device(fdid)

    def _borrow(self, fdid: str, share: Share, fabric: Fabric, ledger: Ledger) -> bool:
        was_unsure = fdid in fabric.unanswered
        remembered = self._put_off_label(fdid, share.claim, ledger)
        try:
            done = self._heal_and_borrow(fdid, share.claim, ledger)
        except ToolError as error:
            if remembered:
                ledger.borrowed[fdid] = remembered
                self._host.remember(ledger)
            owner = fabric.shown[fdid].node_id if fdid in fabric.shown else None
            whose = "" if owner is None else f" of node {owner}"
            self._tried[fdid] = SharingError(f"{fdid}{whose}: {error.message}", **error.details)
            if error.errno == errno.EBUSY:
                self._busy.add(fdid)
            if error.errno not in TRY_LATER:
                self._hopeless.add(fdid)
            return False
        if done is not None:
            self._drivers[fdid] = done.driver
        ledger.forget_device(fdid)  # what it was before: another device now
        self._taken.add(fdid)
        if fdid not in self._healed and (was_unsure or (done is not None and done.already)):
            self._found.add(fdid)
        self._busy.discard(fdid)
        for _last in self._host.deadline.pauses():
            vdev = self._vdev(fdid)
            if vdev:
                fabric.vdevs[fdid] = vdev
                self._remember(fdid, share.claim, ledger)
                return True
        self._tried[fdid] = SharingError(
            f"{fdid}: 'smartio_tool borrow' succeeded, but 'smartio_tool get-vdev' does not print a virtual device"
        )
        return False

    def _put_off_label(self, fdid: str, claim: Claim, ledger: Ledger) -> Optional[str]:
        """Forget another claim's label before the borrow, so that a run that ends in between does not revive it."""
        label = ledger.borrowed.get(fdid)
        if label in (None, claim.label):
            return None
        ledger.borrowed[fdid] = None
        self._host.remember(ledger)
        return label

    def _heal_and_borrow(self, fdid: str, claim: Claim, ledger: Ledger) -> Optional[Borrowed]:
        """Borrow a device, after a return where the failure looks like a borrow that its lender has forgotten.

        Returns what the tool printed, None where it failed and did its work all the same.
        """
        while True:
            try:
                done = self._host.tool.borrow(fdid, claim.window(fdid))
            except ToolError as error:
                if self._vdev(fdid):
                    return None
                if error.errno not in _STALE or not self._return_stale(fdid, ledger):
                    raise
            else:
                if not done.already or not self._return_stale(fdid, ledger):
                    return done

    def _return_stale(self, fdid: str, ledger: Ledger) -> bool:
        """Return, once, what this node borrowed in this boot and is not here though its lender can be reached."""
        if fdid not in (self._had or ()) or fdid in self._healed:
            return False
        self._healed.add(fdid)
        try:
            self._host.tool.show(fdid)
            if self._host.tool.get_vdev(fdid):
                return False
            self._host.tool.give_back(fdid)
        except SharingError:
            return False
        ledger.forget_device(fdid)
        self._host.remember(ledger)
        self._host.warnings.append(f"{fdid} was borrowed here and is forgotten by its lender; it was returned first")
        return True

    def _vdev(self, fdid: str) -> Optional[str]:
        """The virtual device of what was just borrowed; a command that fails has not told it yet."""
        try:
            return self._host.tool.get_vdev(fdid)
        except SharingError:
            return None

    def _remember(self, fdid: str, claim: Claim, ledger: Ledger) -> None:
        label = claim.label or ledger.borrowed.get(fdid)
        if fdid not in ledger.borrowed or ledger.borrowed[fdid] != label:
            ledger.borrowed[fdid] = label
            self._host.remember(ledger)

    def _worth_waiting(self, share: Share, fabric: Fabric) -> bool:
        """Whether the claim lacks something that may still come: not when every device that matches is hopeless."""
        if share.misfits or share.filled or is_anothers(share.claim, fabric):
            return False
        others = [fdid for fdid in matching(share.claim, fabric) if not fabric.here(fdid)]
        return not others or any(fdid not in self._hopeless for fdid in others)

    def _give_back_partial(self, shares: Sequence[Share], fabric: Fabric, ledger: Ledger) -> Report:
        """Return what this run took for claims that fall short; the report holds their errors.

        What ``get-vdev`` could not tell of, or ``borrow`` said to be borrowed already, may be somebody's, and stays.
        """
        report = Report({})
        for share in shares:
            if share.misfits:
                error = misfit(share)
                report.errors.append(told_of(share.claim, error))
                self._tried.update(dict.fromkeys(share.candidates, error))
            elif not share.filled:
                tried = {fdid: error.message for fdid, error in self._tried.items()}
                report.errors.append(told_of(share.claim, shortfall(share.claim, share.kept, fabric, tried)))
        filled = [share for share in shares if (share.filled or self._options.partial) and not share.misfits]
        keep = {fdid for share in filled for fdid in share.kept}
        for fdid in sorted(self._taken - keep):
            if fdid in self._found:
                self._taken.discard(fdid)
                continue
            try:
                self._give_back(fdid, str(fabric.vdevs.get(fdid) or ""))
            except SharingError as error:
                error.details["label"] = ledger.borrowed.get(fdid)
                report.errors.append((fdid, error))
                continue
            self._taken.discard(fdid)
            fabric.vdevs[fdid] = None
            ledger.forget_device(fdid)
            self._host.remember(ledger)
        for share in shares:
            share.kept = [fdid for fdid in share.kept if fabric.here(fdid)]
        report.changed = bool(self._taken)
        return report

    def _give_back(self, fdid: str, vdev: str) -> None:
        """Return what this run borrowed, unless somebody was quick to use it."""
        used = usage.observe([vdev], self._host.sysfs, self._host.proc) if vdev else {}
        error = plan_return(fdid, vdev, used.get(vdev), force=False).error
        if vdev and error is not None:
            raise error
        self._host.tool.give_back(fdid)

    def _wait(self, shares: Sequence[Share], fabric: Fabric, report: Report) -> None:
        """Wait until every device of a filled claim is as far as ``wait_for`` asks."""
        open_: Dict[str, Share] = {fdid: share for share in shares if share.filled for fdid in share.kept}
        for _last in self._host.deadline.pauses():
            open_ = {fdid: share for fdid, share in open_.items() if not self._is_up(fdid, str(fabric.vdevs[fdid]))}
            if not open_:
                return
        for fdid, share in open_.items():
            vdev = str(fabric.vdevs[fdid])
            seen = self._host.sysfs.driver(vdev)
            why = _not_up(fdid, vdev, seen, self._options, self._host)
            report.errors.append(told_of(share.claim, SharingError(why)))

    def _is_up(self, fdid: str, vdev: str) -> bool:
        sysfs, wait_for = self._host.sysfs, self._options.wait_for
        if wait_for in ("none", "vdev"):
            return True
        if sysfs.inode(vdev) is None:
            # Only the tool knows the device: its word on the driver is all there is.
            return wait_for == "driver" and (fdid not in self._taken or self._drivers.get(fdid) is not None)
        if sysfs.driver(vdev) is None:
            return False
        nodes = [] if wait_for == "driver" else device_nodes(self._host, vdev)
        if wait_for == "filesystem":
            return bool(_links(self._host, "by-uuid", nodes))
        return wait_for == "driver" or any(os.path.exists(path) for path in nodes)

    def _predict(self, shares: Sequence[Share], fabric: Fabric) -> Report:
        """What the first pass would do. What only waiting can bring is ``pending``; without waiting it is an error."""
        report, rows = Report({}), []
        for share in shares:
            borrow = share.predicted
            if share.misfits:
                borrow = []
                report.errors.append(told_of(share.claim, misfit(share)))
            elif share.lacking and self._host.deadline.seconds <= 0:
                borrow = []
                report.errors.append(told_of(share.claim, shortfall(share.claim, share.kept, fabric, {})))
            elif share.lacking:
                report.results["pending"] = True
            rows += self._rows(share, fabric, borrow)
            if not report.errors or report.errors[-1][0] != share.claim.written:
                rows += [pending_row(share.claim) for _one in range(share.lacking)]
        report.results["devices"] = rows
        report.changed = any(row["action"] != "none" for row in rows)
        _add_diff(report, rows)
        return report

    def _report(self, shares: Sequence[Share], fabric: Fabric, report: Report) -> Report:
        if any(share.claim.count is None for share in shares):
            reasons = [self._tried[fdid].message for fdid in sorted(self._busy)]
            report.warnings += [f"left out, since it is busy: {reason}" for reason in reasons]
        rows = [row for share in shares for row in self._rows(share, fabric, [])]
        report.results["devices"] = rows
        _add_diff(report, rows)
        return report

    def _rows(self, share: Share, fabric: Fabric, predicted: Sequence[str]) -> List[Dict[str, object]]:
        """A claim's devices in their stable order; ``predicted`` ones are not borrowed yet."""
        rows = []
        for fdid in _in_order(share, fabric, predicted):
            vdev = None if fdid in predicted else fabric.vdevs.get(fdid)
            action = "borrow" if fdid in self._taken or fdid in predicted else "none"
            label = share.claim.label or fabric.label_of(fdid)
            device = self._shown(fdid, fabric)
            rows.append(row(self._host, fdid, label, device, vdev, action))
            if vdev and rows[-1]["driver"] is None:
                rows[-1]["driver"] = self._drivers.get(fdid)
        return rows

    def _shown(self, fdid: str, fabric: Fabric) -> Optional[FabricDevice]:
        """What ``show`` says now: borrowing has changed it."""
        if fdid in self._taken and self._pool is not None:
            self._pool.forget(fdid)
            self._pool.show(fdid)
        return fabric.shown.get(fdid)


def _in_order(share: Share, fabric: Fabric, predicted: Sequence[str]) -> List[str]:
    fdids = [*share.kept, *predicted]
    order = {fdid: place for place, fdid in enumerate(matching(share.claim, fabric))}
    return sorted(fdids, key=lambda fdid: order.get(fdid, -1))


def _add_diff(report: Report, rows: Sequence[Mapping[str, object]]) -> None:
    for one in rows:
        name = "{} ({})".format(one["fdid"], one["label"]) if one["label"] else str(one["fdid"])
        after = {"borrow": "borrowed", "return": "not borrowed", "pending": "borrowed"}.get(str(one["action"]))
        here = "borrowed" if one["vdev"] and one["action"] != "borrow" else "not borrowed"
        report.before.append("{}: {}".format(name, here if one["action"] != "return" else "borrowed"))
        report.after.append(f"{name}: {after or here}")


def pending_row(claim: Claim) -> Dict[str, object]:
    """The answer for a device that nobody can name yet."""
    known = {"fdid": claim.fdid, "label": claim.label, "action": "pending"}
    return {**dict.fromkeys(_ROW), **known}


_ROW = (
    "fdid",
    "label",
    "node_id",
    "bdf",
    "uuid",
    "serial",
    "vendor_id",
    "device_id",
    "vdev",
    "driver",
    "device_nodes",
    "by_id",
    "by_uuid",
    "users",
    "action",
)


def row(
    host: Host, fdid: str, label: Optional[str], device: Optional[FabricDevice], vdev: Optional[str], action: str
) -> Dict[str, object]:
    """A device's entry of the answer; what cannot be told (or not yet) is None."""
    nodes = device_nodes(host, vdev) if vdev else None
    return {
        "fdid": fdid,
        "label": label,
        "node_id": device.node_id if device else None,
        "bdf": device.bdf if device else None,
        "uuid": device.uuid if device else None,
        "serial": device.serial if device else None,
        "vendor_id": device.vendor_id if device else None,
        "device_id": device.device_id if device else None,
        "vdev": vdev,
        "driver": host.sysfs.driver(vdev) if vdev else None,
        "device_nodes": nodes,
        "by_id": list(_links(host, "by-id", nodes)) if nodes is not None else None,
        "by_uuid": _links(host, "by-uuid", nodes) if nodes is not None else None,
        "users": device.users if device else None,
        "action": action,
    }


def device_nodes(host: Host, vdev: str) -> List[str]:
    """Paths of the device nodes of a virtual device."""
    return [os.path.join(host.dev, name) for name in host.sysfs.device_nodes(vdev)]


def _links(host: Host, kind: str, nodes: Sequence[str]) -> Dict[str, str]:
    """The links of a folder of ``<dev>/disk`` to device nodes: link to node."""
    folder = os.path.join(host.dev, "disk", kind)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    real = {os.path.realpath(node): node for node in nodes}
    found = {path: real.get(os.path.realpath(path)) for path in (os.path.join(folder, name) for name in names)}
    return {path: node for path, node in found.items() if node is not None}


def _not_up(fdid: str, vdev: str, driver: Optional[str], options: Options, host: Host) -> str:
    lacking = "filesystem" if options.wait_for == "filesystem" else "device node"
    seen = f"driver {driver}, no {lacking}" if driver else "no driver"
    awaited, seconds = options.wait_for.replace("_", " "), host.deadline.seconds
    return (
        f"{fdid} is borrowed as {vdev}, but its {awaited} did not appear within {seconds:g} seconds "
        f"(last seen: {seen}); load the driver, or choose another wait_for"
    )


class Returning:
    """One run that returns what claims are about and this node has borrowed."""

    def __init__(self, host: Host, claims: Sequence[Claim], force: bool, ending: usage.Ending) -> None:
        self._host = host
        self._claims = claims
        self._force = force
        self._ending = ending

    def run(self, check: bool) -> Report:
        """Observe, plan and, unless ``check``, return and read back."""
        with self._host.ledger(check) as ledger:
            pool = Pool(self._host.tool)
            fabric = self._observe(pool, ledger)
            targets = dict.fromkeys(fdid for claim in self._claims for fdid in meant(claim, fabric))
            errors = [error for claim in self._claims for error in self._unreadable(claim, fabric, targets)]
            plan = self._plan([fdid for fdid in targets if fdid in pool.entries or fabric.held(fdid)], fabric, check)
            rows = [
                row(self._host, fdid, fabric.label_of(fdid), fabric.shown.get(fdid), fabric.vdevs.get(fdid), "none")
                for fdid in targets
            ]
            if check:
                return self._report(rows, plan.predict(), errors)
            outcomes = plan.apply(lambda action: self._host.tool.give_back(str(action.args[0])))
            self._read_back(outcomes, ledger)
            return self._report(rows, outcomes, errors)

    def _observe(self, pool: Pool, ledger: Ledger) -> Fabric:
        """Who is borrowed here is asked first, then who that is: a pool is mostly somebody else's."""
        by_select = any(claim.select for claim in self._claims)
        ask = [claim.fdid for claim in self._claims if claim.fdid] + list(ledger.borrowed)
        ask += list(pool.entries) if by_select else []
        vdevs = {fdid: self._host.tool.get_vdev(fdid) for fdid in dict.fromkeys(ask)}
        unanswered = self._host.tool.unanswered
        for fdid, vdev in vdevs.items():
            if vdev or (fdid in unanswered and fdid in ledger.borrowed):
                pool.show(fdid)
        return Fabric(pool.entries, pool.shown, pool.failed, vdevs, ledger.borrowed, unanswered)

    @staticmethod
    def _unreadable(claim: Claim, fabric: Fabric, targets: Collection[str]) -> List[Tuple[str, SharingError]]:
        """Devices that are borrowed here and could not be looked at: nobody can say whether they are meant.

        Those among ``targets`` are returned anyway, since another claim names them.
        """
        if claim.select is None:
            return []
        reasons = {fdid: error.message for fdid, error in fabric.failed.items()}
        for fdid, device in fabric.shown.items():
            untold = claim.select.untold(device)
            if untold:
                reasons[fdid] = f"'smartio_tool show {fdid}' does not tell its {', '.join(untold)}"
        held = [fdid for fdid in sorted(reasons) if fabric.held(fdid) and fdid not in targets]
        unread = [fdid for fdid in held if claim.label in (None, fabric.label_of(fdid))]
        text = "%s: %s is borrowed here, but whether it is meant cannot be told (%s); return it by fdid or label"
        return [told_of(claim, SharingError(text % (claim.written, fdid, reasons[fdid]))) for fdid in unread]

    def _plan(self, fdids: Sequence[str], fabric: Fabric, check: bool) -> Plan:
        here = {fdid: str(fabric.vdevs[fdid]) for fdid in fdids if fabric.here(fdid)}
        ending = self._ending if check else usage.Ending()
        used = usage.observe(here.values(), self._host.sysfs, self._host.proc, ending=ending)
        items = []
        for fdid in fdids:
            if fdid not in here and fabric.held(fdid):
                items.append(plan_lost(fdid, fabric, self._force))
            else:
                items.append(plan_return(fdid, here.get(fdid), used.get(here.get(fdid, "")), self._force))
        return Plan(tuple(items))

    def _read_back(self, outcomes: Sequence[Outcome], ledger: Ledger) -> None:
        """Wait until the virtual devices are gone, and forget them only then: until then they are to be returned."""
        left = {outcome.item.name: outcome for outcome in outcomes if outcome.done}
        for _last in self._host.deadline.pauses():
            gone = [fdid for fdid in left if not self._host.tool.get_vdev(fdid)]
            for fdid in gone:
                del left[fdid]
                ledger.forget_device(fdid)
            if gone:
                self._host.remember(ledger)
            if not left:
                return
        for fdid, outcome in left.items():
            outcome.error = SharingError(
                f"{fdid}: 'smartio_tool return' succeeded, but 'smartio_tool get-vdev' still prints its virtual device "
                f"after {self._host.deadline.seconds:g} seconds; see the kernel log for the reason"
            )

    def _report(
        self, rows: List[Dict[str, object]], outcomes: Sequence[Outcome], errors: Sequence[Tuple[str, SharingError]]
    ) -> Report:
        report = Report({"devices": rows}, errors=list(errors))
        by_fdid = {outcome.item.name: outcome for outcome in outcomes}
        for one in rows:
            outcome = by_fdid.get(str(one["fdid"]))
            if outcome is None:
                continue
            one["action"] = outcome.action
            if outcome.done:
                one.update(dict.fromkeys(("vdev", "driver", "device_nodes", "by_id", "by_uuid", "users")))
            if outcome.error:
                outcome.error.details["label"] = one["label"]
                report.errors.append((outcome.item.name, outcome.error))
            report.changed = report.changed or bool(outcome.done)
        _add_diff(report, rows)
        return report


def plan_return(fdid: str, vdev: Optional[str], used: Optional[usage.Usage], force: bool) -> Item:
    """What is to be done to return a device; pure. ``vdev`` is None where it is not borrowed here."""
    if vdev is None:
        return Item(fdid, "not borrowed", "not borrowed")
    never, reasons = (used.never, used.reasons) if used else ((), ())
    if never or (reasons and not force):
        advice = "refused even with force" if never else "free it first, or give force: true"
        named = [*never, *reasons]
        error = SharingError("{} ({}) is in use: {}; {}".format(fdid, vdev, "; ".join(named), advice), in_use=named)
        return Item(fdid, "borrowed", "borrowed", error=error)
    action = Action("return", (fdid,), f"return {fdid} ({vdev})")
    return Item(fdid, "borrowed", "not borrowed", (action,))


def plan_lost(fdid: str, fabric: Fabric, force: bool) -> Item:
    """What is to be done to return a device whose virtual device nobody can name; pure."""
    if fabric.out_of_reach(fdid) and not force:
        error = SharingError(
            f"{fdid} was borrowed here, and whether it still is and in use cannot be told: "
            f"{fabric.unanswered[fdid].message}, or give force: true",
            **fabric.unanswered[fdid].details,
        )
        return Item(fdid, "borrowed", "borrowed", error=error)
    return Item(fdid, "borrowed", "not borrowed", (Action("return", (fdid,), f"return {fdid}"),))


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_borrow for a module's parameters."""
    claims = [claim_from(element) for element in elements_of(params)]
    returning = params["state"] == "returned"
    fdids = [claim.fdid for claim in claims if claim.fdid]
    for fdid in fdids:
        if fdids.count(fdid) > 1:
            raise SharingError(f"fdid {fdid} is named twice; name it once")
    if not returning and any(claim.fdid is None and claim.select is None for claim in claims):
        raise SharingError("a label alone says only what to return: give fdid or select to borrow")
    options = Options(wait_for=params["wait_for"], force=params["force"])
    ending = usage.Ending(frozenset(map(os.path.normpath, params["unmounted"])), frozenset(params["ended"]))

    def run(host: Host, check: bool) -> Report:
        return (
            Returning(host, claims, options.force, ending).run(check)
            if returning
            else Borrowing(host, claims, options).run(check)
        )

    def pending(_places: Places) -> Report:
        rows = [pending_row(claim) for claim in claims for _one in range(1 if returning else claim.count or 1)]
        return Report({"devices": rows, "pending": True}, changed=bool(rows))

    return NodeResource("devices", run, pending)
