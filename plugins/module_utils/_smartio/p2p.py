# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Peer-to-peer between two devices. No command lists the pairs, so they are planned from the ledger.

An entry holds as long as both virtual devices are the ones that they were: same BDF, same inode in sysfs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, Mapping, Optional, Sequence

from .._plan import Action, Item, Outcome, Plan, Report, SharingError, run_plan
from .host import Host, NodeResource, Places
from .ledger import PairState, pair_key
from .model import normalise_fdid


@dataclass(frozen=True)
class Pair:
    """Two devices by fdid; ``source`` reaches BAR ``bar_number`` of ``destination`` (None: as the tool chooses)."""

    source: str
    destination: str
    bar_number: Optional[int] = None

    def __str__(self) -> str:
        return f"{self.source} -> {self.destination}" + ("" if self.bar_number is None else f" (BAR {self.bar_number})")

    @property
    def key(self) -> str:
        """The ledger's key."""
        return pair_key(self.source, self.destination, self.bar_number)


def plan_pairs(
    pairs: Sequence[Pair],
    enable: bool,
    known: Mapping[str, PairState],
    vdevs: Mapping[str, str],
    unanswered: Collection[str] = (),
) -> Plan:
    """Set every pair that is not known to be set; pure. ``vdevs`` says of each fdid what its virtual device is now.

    A pair ends with its devices: where one of them is not borrowed here there is nothing to disable. Of those that are
    ``unanswered`` nobody can say.
    """
    items = []
    for pair in pairs:
        now = (vdevs[pair.source], vdevs[pair.destination])
        state = known.get(pair.key)
        is_known = state is not None and state.vdevs == now
        right = is_known and state is not None and state.enabled == enable
        gone = [fdid for fdid in (pair.source, pair.destination) if not vdevs[fdid] and fdid not in unanswered]
        nothing_to_disable = not enable and bool(gone)
        command = "enable-p2p" if enable else "disable-p2p"
        words = "{} peer-to-peer {}".format("enable" if enable else "disable", pair)
        actions = () if right or nothing_to_disable else (Action(command, (pair,), words),)
        before = "not known" if not is_known or state is None else _word(state.enabled)
        items.append(Item(str(pair), before if actions else _word(enable), _word(enable), actions))
    return Plan(tuple(items))


def _word(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


def set_pairs(host: Host, pairs: Sequence[Pair], enable: bool, check: bool) -> Report:
    """Enable or disable peer-to-peer for every pair."""
    wanted = list(dict.fromkeys(pairs))
    by_fdid = list(dict.fromkeys(fdid for pair in wanted for fdid in (pair.source, pair.destination)))
    with host.ledger(check) as ledger:
        vdevs: Dict[str, str] = {fdid: _identity(host, fdid) for fdid in by_fdid}

        def perform(action: Action) -> None:
            pair: Pair = action.args[0]  # type: ignore[assignment]  # what plan_pairs put there
            command = host.tool.enable_p2p if enable else host.tool.disable_p2p
            command(pair.source, pair.destination, pair.bar_number)
            ledger.p2p[pair.key] = PairState(enable, (vdevs[pair.source], vdevs[pair.destination]))
            host.remember(ledger)

        plan = plan_pairs(wanted, enable, ledger.p2p, vdevs, host.tool.unanswered)
        report, outcomes = run_plan(plan, check, perform)
    if check and enable:
        _mark_pending(report, outcomes, vdevs)
    report.results["pairs"] = [
        _row(pair, enable, outcome.action, outcome.error is None) for pair, outcome in zip(wanted, outcomes)
    ]
    return report


def _mark_pending(report: Report, outcomes: Sequence[Outcome], vdevs: Mapping[str, str]) -> None:
    """In check mode a device may not be borrowed yet, since an earlier task of the play would borrow it."""
    for outcome in outcomes:
        pair = outcome.done[0].args[0] if outcome.done else None
        if isinstance(pair, Pair) and not (vdevs[pair.source] and vdevs[pair.destination]):
            outcome.done = [Action("pending", (pair,), f"enable peer-to-peer {pair} once both devices are borrowed")]
            report.results["pending"] = True


def _identity(host: Host, fdid: str) -> str:
    """What tells a borrowed device from the same one borrowed again; empty where it is not borrowed here."""
    vdev = host.tool.get_vdev(fdid)
    return f"{vdev}@{host.sysfs.inode(vdev) or 0}" if vdev else ""


def _row(pair: Pair, enable: bool, action: str, done: bool = True) -> Dict[str, object]:
    return {
        "source": pair.source,
        "destination": pair.destination,
        "bar": pair.bar_number,
        "state": _word(enable) if done else None,
        "action": action,
    }


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_p2p for a module's parameters."""
    elements = [params] if params["pairs"] is None else params["pairs"]
    pairs = [pair_from(element) for element in elements]
    enable = params["state"] == "enabled"

    def pending(_places: Places) -> Report:
        rows = [_row(pair, enable, "pending") for pair in dict.fromkeys(pairs)]
        return Report({"pairs": rows, "pending": True}, changed=bool(rows))

    return NodeResource("pairs", lambda host, check: set_pairs(host, pairs, enable, check), pending)


def pair_from(element: Mapping[str, Any]) -> Pair:
    """A pair from a module call's element."""
    number = element.get("bar")
    if number is not None and not 0 <= number <= 5:
        raise SharingError(f"bar: {number} is not a BAR's number from 0 to 5")
    pair = Pair(normalise_fdid(element["source"]), normalise_fdid(element["destination"]), number)
    if pair.source == pair.destination:
        raise SharingError(f"source and destination are both {pair.source}: name two devices")
    return pair
