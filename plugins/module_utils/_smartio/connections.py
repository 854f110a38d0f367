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
from .._plan import Action, Item, Outcome, Plan, Report, SharingError, run_plan
from .errors import ToolError, errno_name
from .host import Host, NodeResource, Places

CONNECTED, UNREACHABLE = "connected", "unreachable"


@dataclass(frozen=True)
class Wish:
    """A node that should be able to borrow from this one: its id or its name (or both), and the adapter towards it."""

    node_id: Optional[int]
    hostname: Optional[str]
    adapter: int

    def __str__(self) -> str:
        if self.node_id is None:
            return f"host {self.hostname}"
        name = "" if self.hostname is None else f"{self.hostname}, "
        return f"node {self.node_id} ({name}adapter {self.adapter})"


@dataclass(frozen=True)
class Element:
    """A wish with its node id, or with the reason why that cannot be told."""

    wish: Wish
    error: Optional[SharingError] = None

    @property
    def connection(self) -> Tuple[Optional[int], int]:
        """Node id and adapter, as the ledger has them."""
        return self.wish.node_id, self.wish.adapter


def find_nodes(host: Host, wishes: Sequence[Wish]) -> List[Element]:
    """The wishes with their node ids, in order; what turns out to be one connection comes once."""
    found: Dict[object, Element] = {}
    for wish in wishes:
        element = _find_node(host, wish) if wish.node_id is None else Element(wish)
        found.setdefault(wish.hostname if element.error else element.connection, element)
    return list(found.values())


def _find_node(host: Host, wish: Wish) -> Element:
    hostname = str(wish.hostname)
    try:
        return Element(Wish(host.tool.node_id_of(hostname), hostname, wish.adapter))
    except SharingError as error:
        why = f"the node id of host {hostname} cannot be told here: {error.message}"
        advice = "give it as node_id (in the roles: as the host's variable smartio_node_id)"
        return Element(wish, SharingError(f"{why}; {advice}", **{**error.details, "hostname": hostname}))


def plan_connections(wanted: Sequence[Element], known: Sequence[Tuple[int, int]], reconnect: bool) -> Plan:
    """Connect to every wanted node that the ledger does not know as connected; pure."""
    items = []
    for one in wanted:
        is_known = one.connection in known
        action = Action("connect", (one.wish,), f"connect to {one.wish}")
        before = CONNECTED if is_known else "not known to be connected"
        actions = () if one.error or (is_known and not reconnect) else (action,)
        items.append(Item(str(one.wish), before, CONNECTED, actions, one.error))
    return Plan(tuple(items))


@dataclass(frozen=True)
class Options:
    """``reconnect``: connect to what is connected, too; ``forgive``: a node that cannot be reached is no failure."""

    reconnect: bool = False
    forgive: bool = False


def connect(host: Host, wishes: Sequence[Wish], options: Options, check: bool) -> Report:
    """Let the wanted nodes see and borrow this node's devices."""
    with host.ledger(check) as ledger:
        wanted = find_nodes(host, wishes)

        def perform(action: Action) -> None:
            wish: Wish = action.args[0]  # type: ignore[assignment]  # what plan_connections put there
            node_id = int(wish.node_id or 0)
            try:
                host.tool.connect(node_id, wish.adapter)
            except ToolError as error:
                raise _named(error, host, wish) from error
            if (node_id, wish.adapter) not in ledger.connections:
                ledger.connections.append((node_id, wish.adapter))
                host.remember(ledger)

        report, outcomes = run_plan(plan_connections(wanted, ledger.connections, options.reconnect), check, perform)
    report.results["connections"] = [_row(one.wish, outcome) for one, outcome in zip(wanted, outcomes)]
    connections = [one.connection for one in wanted]
    report.results["others"] = [
        {"node_id": node_id, "adapter": adapter}
        for node_id, adapter in ledger.connections
        if (node_id, adapter) not in connections
    ]
    if options.forgive:
        report.warnings += [error.message for _name, error in report.errors if _is_unreachable(error)]
        report.errors = [(name, error) for name, error in report.errors if not _is_unreachable(error)]
    return report


def _named(error: ToolError, host: Host, wish: Wish) -> SharingError:
    """The error of a connect, with both nodes in its sentence."""
    own = host.tool.node_ids().get(wish.adapter)
    here = "this node" if own is None else f"node {own}"
    details = {**error.details, "node_id": wish.node_id, "adapter": wish.adapter, "hostname": wish.hostname}
    return SharingError(f"{here} cannot connect to {wish}: {error.message}", **details)


def _is_unreachable(error: SharingError) -> bool:
    return error.details.get("errno_name") == errno_name(errno.EIO) and "node_id" in error.details


def _row(wish: Wish, outcome: Outcome) -> Dict[str, object]:
    state: Optional[str] = CONNECTED
    if outcome.error is not None:
        state = UNREACHABLE if _is_unreachable(outcome.error) else None
    row = {"node_id": wish.node_id, "hostname": wish.hostname, "adapter": wish.adapter}
    return {**row, "state": state, "action": outcome.action}


def _check(wish: Wish) -> Wish:
    if isinstance(wish.node_id, bool) or (wish.node_id or 0) < 0 or wish.adapter < 0:
        raise SharingError(f"{wish}: node ids and adapters are numbers from 0 on")
    if wish.node_id is None and not re.fullmatch(r"[^\s-]\S*", wish.hostname or ""):
        raise SharingError(f"hostname: '{printable(wish.hostname or '')}' is not the name of a host; correct it")
    return wish


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
        rows = [_row(wish, Outcome(Item(str(wish), "", ""))) for wish in dict.fromkeys(wishes)]
        rows = [{**row, "action": "pending"} for row in rows]
        return Report({"connections": rows, "others": [], "pending": True}, changed=bool(rows))

    return NodeResource("connections", lambda host, check: connect(host, wishes, options, check), pending)
