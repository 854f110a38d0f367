# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes may borrow from this one. No command lists connections, so they are planned from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Sequence, Tuple

from .._plan import Action, Item, Plan, Report, SharingError, run_plan
from .errors import ToolError
from .host import Host, NodeResource, Places


@dataclass(frozen=True)
class Connection:
    """A node that may borrow from this one, and the local adapter towards it."""

    node_id: int
    adapter: int

    def __str__(self) -> str:
        return f"node {self.node_id} (adapter {self.adapter})"


def plan_connections(wanted: Sequence[Connection], known: Sequence[Tuple[int, int]], reconnect: bool) -> Plan:
    """Connect to every wanted node that the ledger does not know as connected; pure."""
    items = []
    for one in dict.fromkeys(wanted):
        is_known = (one.node_id, one.adapter) in known
        action = Action("connect", (one.node_id, one.adapter), f"connect to {one}")
        before = "connected" if is_known else "not known to be connected"
        items.append(Item(str(one), before, "connected", () if is_known and not reconnect else (action,)))
    return Plan(tuple(items))


def connect(host: Host, wanted: Sequence[Connection], reconnect: bool, check: bool) -> Report:
    """Let the wanted nodes see and borrow this node's devices."""
    by_arguments: Dict[Tuple[object, ...], Connection] = {(one.node_id, one.adapter): one for one in wanted}
    with host.ledger(check) as ledger:

        def perform(action: Action) -> None:
            one = by_arguments[action.args]
            try:
                host.tool.connect(one.node_id, one.adapter)
            except ToolError as error:
                raise _named(error, host, one) from error
            if (one.node_id, one.adapter) not in ledger.connections:
                ledger.connections.append((one.node_id, one.adapter))
                host.remember(ledger)

        report, outcomes = run_plan(plan_connections(wanted, ledger.connections, reconnect), check, perform)
    report.results["connections"] = [
        {"node_id": one.node_id, "adapter": one.adapter, "action": outcome.action}
        for one, outcome in zip(dict.fromkeys(wanted), outcomes)
    ]
    return report


def _named(error: ToolError, host: Host, one: Connection) -> SharingError:
    """The error of a connect, with both nodes in its sentence."""
    own = host.tool.node_ids().get(one.adapter)
    here = "this node" if own is None else f"node {own}"
    return SharingError(f"{here} cannot connect to {one}: {error.message}", **error.details)


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_connect for a module's parameters."""
    if params["connections"] is not None:
        wanted = [Connection(one["node_id"], one["adapter"] or 0) for one in params["connections"]]
    else:
        wanted = [Connection(node_id, params["adapter"]) for node_id in params["node_ids"]]
    for one in wanted:
        if isinstance(one.node_id, bool) or isinstance(one.adapter, bool) or one.node_id < 0 or one.adapter < 0:
            raise SharingError(f"{one}: node ids and adapters are numbers from 0 on")

    def pending(_places: Places) -> Report:
        rows = [{"node_id": one.node_id, "adapter": one.adapter, "action": "pending"} for one in dict.fromkeys(wanted)]
        return Report({"connections": rows, "pending": True}, changed=bool(rows))

    return NodeResource("connections", lambda host, check: connect(host, wanted, params["reconnect"], check), pending)
