# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters of the kernel module, and scans for transparent devices (which one parameter governs)."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple, Union

from .._plan import Action, Item, Outcome, Plan, Report, SharingError, run_plan
from .host import Host, NodeResource, Places
from .ledger import Ledger
from .model import FabricDevice, node_hint
from .pool import Pool

AUTOBORROW = "autoborrow_transparent"


def same_value(one: Optional[str], other: str) -> bool:
    """Whether two spellings are the same value: the kernel prints a boolean parameter as Y or N."""
    spellings = {"y": "1", "yes": "1", "true": "1", "on": "1", "n": "0", "no": "0", "false": "0", "off": "0"}
    return one is not None and spellings.get(one.lower(), one) == spellings.get(other.lower(), other)


Current = Union[None, str, SharingError]
"""A parameter's value now: None where it is not known, an error where there can be no such parameter."""


def plan_settings(wanted: Mapping[str, str], current: Mapping[str, Current]) -> Plan:
    """Set every parameter that differs, or whose value is not known; pure."""
    return Plan(tuple(_item(name, value, current[name]) for name, value in wanted.items()))


def _item(name: str, value: str, before: Current) -> Item:
    if isinstance(before, SharingError):
        return Item(name, "not known", "not known", error=before)
    if same_value(before, value):
        return Item(name, str(before), str(before))
    action = Action("config", (name, value), f"set {name} to {value}")
    return Item(name, "not known" if before is None else before, value, (action,))


def _current(host: Host, ledger: Ledger, name: str) -> Current:
    try:
        shown = host.sysfs.parameter(name)
    except SharingError as error:
        return error
    return ledger.settings.get(name) if shown is None else shown


def _set_all(
    host: Host, ledger: Ledger, wanted: Mapping[str, str], check: bool
) -> Tuple[Report, List[Outcome], Dict[str, Current]]:
    current = {name: _current(host, ledger, name) for name in wanted}

    def perform(action: Action) -> None:
        _set(host, ledger, str(action.args[0]), str(action.args[1]))

    report, outcomes = run_plan(plan_settings(wanted, current), check, perform)
    return report, outcomes, current


def _set(host: Host, ledger: Ledger, name: str, value: str) -> None:
    """Set one parameter, and read it back where sysfs shows it."""
    host.tool.config(name, value)
    for _last in host.deadline.pauses():
        shown = host.sysfs.parameter(name)
        if shown is None or same_value(shown, value):
            break
    if shown is not None and not same_value(shown, value):
        raise SharingError(
            f"'smartio_tool config {name} {value}' succeeded, but sysfs still shows {shown!a}; see the kernel log"
        )
    ledger.settings[name] = value
    host.remember(ledger)


def configure(host: Host, wanted: Mapping[str, str], check: bool) -> Report:
    """Set parameters of the kernel module."""
    with host.ledger(check) as ledger:
        report, outcomes, current = _set_all(host, ledger, wanted, check)
    report.results["settings"] = [
        _setting(outcome.item.name, current[outcome.item.name], _value_after(outcome), outcome.action)
        for outcome in outcomes
    ]
    return report


def _value_after(outcome: Outcome) -> Optional[str]:
    return outcome.item.after if outcome.error is None else None


def _setting(name: str, before: Current, value: Optional[str], action: str) -> Dict[str, object]:
    known = None if isinstance(before, SharingError) else before
    return {"name": name, "before": known, "value": value, "action": action}


def config_resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_config for a module's parameters."""
    wanted = {str(name): _value(name, value) for name, value in params["settings"].items()}

    def pending(_places: Places) -> Report:
        rows = [_setting(name, None, value, "pending") for name, value in wanted.items()]
        return Report({"settings": rows, "pending": True}, changed=bool(rows))

    return NodeResource("settings", lambda host, check: configure(host, wanted, check), pending)


def _value(name: object, value: object) -> str:
    """A setting as the tool takes it; YAML makes true of an unquoted ``yes``."""
    if not isinstance(value, (str, int)) or not re.fullmatch(r"[A-Za-z0-9_.:+][A-Za-z0-9_.:+-]*", str(value)):
        raise SharingError(f"settings: {value!a} is not a value for {name!a}; give a number or a word")
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def scan(host: Host, node_id: int, adapter: int, autoborrow: Optional[bool], check: bool) -> Report:
    """Look for transparent devices behind an adapter. What a scan finds only the tool knows: see ``predicted``."""
    wanted = {} if autoborrow is None else {AUTOBORROW: "1" if autoborrow else "0"}
    with host.ledger(check) as ledger:
        report, outcomes, _before = _set_all(host, ledger, wanted, check)
        action = ", ".join([action.command for outcome in outcomes for action in outcome.done] + ["scan"])
        report.results.update({"node_id": node_id, "adapter": adapter, "action": action, "predicted": check})
        if check:
            report.results.update({"added": None, "removed": None})
            report.changed = report.changed or node_id not in ledger.scanned
        elif not report.errors:
            _scan(host, ledger, node_id, adapter, report)
    return report


def _scan(host: Host, ledger: Ledger, node_id: int, adapter: int, report: Report) -> None:
    try:
        pool = Pool(host.tool)
        listed, before = (
            set(pool.entries),
            _of_tree(pool, node_id, {f for f in pool.entries if node_hint(f) == node_id}),
        )
        host.tool.scan(node_id, adapter)
        if node_id not in ledger.scanned:
            ledger.scanned.append(node_id)
            host.remember(ledger)
        pool.refresh()
        added = sorted(_of_tree(pool, node_id, set(pool.entries) - listed))
    except SharingError as error:
        report.errors.append((f"tree {node_id}", error))
        report.results.update({"added": None, "removed": None})
        return
    removed = sorted(before - set(pool.entries))
    report.results.update({"added": added, "removed": removed})
    report.changed = report.changed or bool(added or removed)
    report.after += [f"{fdid}: in the pool" for fdid in added]
    report.before += [f"{fdid}: in the pool" for fdid in removed]


def _of_tree(pool: Pool, node_id: int, fdids: Set[str]) -> Set[str]:
    """Those that ``show`` says belong to the tree: meanwhile other nodes add and remove devices of their own."""
    shown = {fdid: pool.show(fdid) for fdid in sorted(fdids)}
    owners = {fdid: _owner(device) for fdid, device in shown.items() if device is not None}
    return {fdid for fdid, owner in owners.items() if owner == node_id}


def _owner(device: FabricDevice) -> int:
    return node_hint(device.fdid) if device.node_id is None else device.node_id


def scan_resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_scan for a module's parameters."""
    node_id, adapter, autoborrow = params["node_id"], params["adapter"], params["autoborrow"]
    if node_id < 0 or adapter < 0:
        raise SharingError("node_id and adapter are numbers from 0 on")

    def pending(_places: Places) -> Report:
        results: Dict[str, object] = {"node_id": node_id, "adapter": adapter, "action": "pending", "predicted": True}
        results.update({"added": None, "removed": None, "pending": True})
        return Report(results, changed=True)

    return NodeResource("trees", lambda host, check: scan(host, node_id, adapter, autoborrow, check), pending)
