# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes may borrow from this one. No command lists connections, so they are planned from the ledger."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._pci.address import printable
from .._plan import Action, Item, Plan, Report, SharingError, run_plan
from .errors import ToolError, errno_name
from .host import Host, NodeResource, Places

CONNECTED, UNREACHABLE = "connected", "unreachable"


@dataclass(frozen=True)
class Connection:
    """A node that may borrow from this one, and the local adapter towards it."""

    node_id: int
    adapter: int

    def __str__(self) -> str:
        return f"node {self.node_id} (adapter {self.adapter})"


@dataclass(frozen=True)
class Wish:
    """A connection as it was asked for: by node id or by the host's name, or with both."""

    node_id: Optional[int]
    hostname: Optional[str]
    adapter: int


def plan_connections(wanted: Sequence[Connection], known: Sequence[Tuple[int, int]], reconnect: bool) -> Plan:
    """Connect to every wanted node that the ledger does not know as connected; pure."""
    items = []
    for one in dict.fromkeys(wanted):
        is_known = (one.node_id, one.adapter) in known
        action = Action("connect", (one,), f"connect to {one}")
        before = CONNECTED if is_known else "not known to be connected"
        items.append(Item(str(one), before, CONNECTED, () if is_known and not reconnect else (action,)))
    return Plan(tuple(items))


def connect(
    host: Host,
    wanted: Sequence[Connection],
    reconnect: bool,
    check: bool,
    names: Optional[Mapping[Connection, Optional[str]]] = None,
) -> Report:
    """Let the wanted nodes see and borrow this node's devices; ``names`` are their hosts' names, for messages."""
    names = names or {}
    with host.ledger(check) as ledger:

        def perform(action: Action) -> None:
            one: Connection = action.args[0]  # type: ignore[assignment]  # what plan_connections put there
            try:
                host.tool.connect(one.node_id, one.adapter)
            except ToolError as error:
                raise _named(error, host, one, names.get(one)) from error
            if (one.node_id, one.adapter) not in ledger.connections:
                ledger.connections.append((one.node_id, one.adapter))
                host.remember(ledger)

        report, outcomes = run_plan(plan_connections(wanted, ledger.connections, reconnect), check, perform)
    report.results["connections"] = [
        _row(Wish(one.node_id, names.get(one), one.adapter), _state(outcome.error), outcome.action)
        for one, outcome in zip(dict.fromkeys(wanted), outcomes)
    ]
    report.results["others"] = [
        {"node_id": node_id, "adapter": adapter}
        for node_id, adapter in ledger.connections
        if Connection(node_id, adapter) not in wanted
    ]
    return report


def _named(error: ToolError, host: Host, one: Connection, hostname: Optional[str]) -> SharingError:
    """The error of a connect, with both nodes in its sentence."""
    own = host.tool.node_ids().get(one.adapter)
    here = "this node" if own is None else f"node {own}"
    there = f"{one}, host {hostname}" if hostname else str(one)
    details = {**error.details, "node_id": one.node_id, "adapter": one.adapter, "hostname": hostname}
    return SharingError(f"{here} cannot connect to {there}: {error.message}", **details)


def _is_unreachable(error: SharingError) -> bool:
    return error.details.get("errno_name") == errno_name(errno.EIO) and "node_id" in error.details


def _state(error: Optional[SharingError]) -> Optional[str]:
    if error is None:
        return CONNECTED
    return UNREACHABLE if _is_unreachable(error) else None


def _row(wish: Wish, state: Optional[str], action: str) -> Dict[str, object]:
    row = {"node_id": wish.node_id, "hostname": wish.hostname, "adapter": wish.adapter}
    return {**row, "state": state, "action": action}


def find_nodes(
    host: Host, wishes: Sequence[Wish]
) -> Tuple[Dict[Connection, Optional[str]], List[Tuple[Wish, SharingError]]]:
    """The connections that are meant, with the host's name where it is known, and the wishes without a node."""
    found: Dict[Connection, Optional[str]] = {}
    missing: List[Tuple[Wish, SharingError]] = []
    for wish in dict.fromkeys(wishes):
        try:
            node_id = host.tool.node_id_of(str(wish.hostname)) if wish.node_id is None else wish.node_id
        except SharingError as error:
            missing.append((wish, _not_found(wish, error)))
            continue
        one = Connection(node_id, wish.adapter)
        found[one] = found.get(one) or wish.hostname
    return found, missing


def _not_found(wish: Wish, error: SharingError) -> SharingError:
    why = f"the node id of host {wish.hostname} cannot be told here: {error.message}"
    advice = "give it as node_id (in the roles: as the host's variable smartio_node_id)"
    return SharingError(f"{why}; {advice}", **{**error.details, "hostname": wish.hostname})


@dataclass(frozen=True)
class Options:
    """``reconnect``: connect to what is connected, too; ``forgive``: a node that cannot be reached is no failure."""

    reconnect: bool = False
    forgive: bool = False


def connect_all(host: Host, wishes: Sequence[Wish], options: Options, check: bool) -> Report:
    """Find the nodes that are wanted, and let them see and borrow this node's devices."""
    found, missing = find_nodes(host, wishes)
    report = connect(host, list(found), options.reconnect, check, found)
    rows = [_row(wish, None, "none") for wish, _error in missing]
    report.results["connections"] = [*report.results["connections"], *rows]  # type: ignore[misc]  # connect's list
    for wish, error in missing:
        report.errors.append((f"host {wish.hostname}", error))
        report.before.append(f"host {wish.hostname}: not known")
        report.after.append(f"host {wish.hostname}: not known")
    if options.forgive:
        report.warnings += [error.message for _name, error in report.errors if _is_unreachable(error)]
        report.errors = [(name, error) for name, error in report.errors if not _is_unreachable(error)]
    return report


def _check(wish: Wish) -> None:
    if isinstance(wish.node_id, bool) or (wish.node_id or 0) < 0 or wish.adapter < 0:
        raise SharingError(f"node {wish.node_id} (adapter {wish.adapter}): node ids and adapters are numbers from 0 on")
    if wish.node_id is None and not re.fullmatch(r"[^\s-]\S*", wish.hostname or ""):
        raise SharingError(f"hostname: '{printable(wish.hostname or '')}' is not the name of a host; correct it")


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_connect for a module's parameters."""
    adapter = params["adapter"]
    wishes = [Wish(node_id, None, adapter) for node_id in params["node_ids"] or ()]
    wishes += [Wish(None, hostname, adapter) for hostname in params["hostnames"] or ()]
    wishes += [Wish(one["node_id"], one["hostname"], one["adapter"] or 0) for one in params["connections"] or ()]
    for wish in wishes:
        _check(wish)
    options = Options(params["reconnect"], params["on_unreachable"] == "warn")

    def pending(_places: Places) -> Report:
        rows = [_row(wish, CONNECTED, "pending") for wish in dict.fromkeys(wishes)]
        return Report({"connections": rows, "others": [], "pending": True}, changed=bool(rows))

    return NodeResource("connections", lambda host, check: connect_all(host, wishes, options, check), pending)
