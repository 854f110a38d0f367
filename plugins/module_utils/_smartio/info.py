# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pool as information: what ``list`` and ``show`` say, and what this node remembers. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .._plan import Report, SharingError
from .borrowing import device_nodes
from .claims import FabricSelect, fabric_select
from .host import Host, NodeResource, Places
from .ledger import Ledger
from .model import FabricDevice, normalise_fdid
from .pool import Pool

_DETAILS = tuple(FabricDevice.__dataclass_fields__)


def gather(
    host: Host,
    fdids: Optional[Sequence[str]],
    select: Optional[FabricSelect],
    details: bool,
    lspci: bool,
    borrowed: bool,
) -> Report:
    """The pool's devices as one node sees them: all, the named ones, or those that a selection matches."""
    pool, ledger = Pool(host.tool), host.store.load()
    report = Report({"node_id": None, "node_ids": {}, "devices": []})
    node_ids = host.tool.node_ids()
    report.results["node_ids"] = {str(adapter): node_id for adapter, node_id in sorted(node_ids.items())}
    report.results["node_id"] = node_ids[min(node_ids)] if node_ids else None
    report.results["connections"] = [
        {"node_id": node_id, "adapter": adapter} for node_id, adapter in ledger.connections
    ]
    report.results["borrowed"] = [{"fdid": fdid, "label": label} for fdid, label in sorted(ledger.borrowed.items())]
    report.results["missing"] = [fdid for fdid in fdids or () if fdid not in pool.entries]
    # What was borrowed and is not in the pool now is its lender's, which is out of reach, or forgot it.
    known = [*pool.entries, *(fdid for fdid in ledger.borrowed if borrowed and fdid not in pool.entries)]
    devices = []
    for fdid in known if fdids is None else [fdid for fdid in fdids if fdid in known]:
        if _is_meant(pool, fdid, select):
            devices.append(_device(host, pool, ledger, fdid, details, lspci, borrowed))
    report.results["devices"] = devices
    report.warnings += [f"'smartio_tool list' printed what cannot be read: {line}" for line in pool.unread[:5]]
    return report


def _is_meant(pool: Pool, fdid: str, select: Optional[FabricSelect]) -> bool:
    if select is None:
        return True
    device = pool.show(fdid)
    listed_name = pool.entries[fdid].name if fdid in pool.entries else ""
    return device is not None and select.matches(device, listed_name)


def _device(
    host: Host, pool: Pool, ledger: Ledger, fdid: str, details: bool, lspci: bool, borrowed: bool
) -> Dict[str, object]:
    entry = pool.entries.get(fdid)
    shown = pool.show(fdid) if details else None
    facts: Dict[str, object] = dict.fromkeys(_DETAILS) if shown is None else dict(asdict(shown))
    facts.pop("available", None)
    facts.update({"fdid": fdid, "state": entry.word if entry else None, "label": ledger.borrowed.get(fdid)})
    facts["name"] = entry.name if entry else facts["name"]
    errors: List[str] = [pool.failed[fdid].message] if fdid in pool.failed else []
    facts["lspci"] = _lspci(host, fdid, errors) if lspci else None
    vdev = host.tool.get_vdev(fdid) if borrowed else None
    facts["vdev"] = vdev
    facts["borrowed"] = bool(vdev) if borrowed and fdid not in host.tool.unanswered else None
    if borrowed and fdid in host.tool.unanswered:
        errors.append(host.tool.unanswered[fdid].message)
    facts["driver"] = host.sysfs.driver(vdev) if vdev else None
    facts["device_nodes"] = device_nodes(host, vdev) if vdev else None
    facts["error"] = "; ".join(errors) or None
    return facts


def _lspci(host: Host, fdid: str, errors: List[str]) -> Optional[str]:
    try:
        return host.tool.lspci(fdid)
    except SharingError as error:
        errors.append(error.message)
        return None


def resource(params: Mapping[str, Any]) -> NodeResource:
    """The resource of smartio_info for a module's parameters."""
    fdids = None if params["fdids"] is None else [normalise_fdid(fdid) for fdid in params["fdids"]]
    select = None if params["select"] is None else fabric_select(params["select"])

    def run(host: Host, _check: bool) -> Report:
        return gather(host, fdids, select, params["details"], params["lspci"], params["borrowed"])

    def pending(_places: Places) -> Report:
        nothing: Dict[str, object] = {"connections": [], "borrowed": [], "missing": [], "devices": []}
        return Report({"node_id": None, "node_ids": {}, **nothing, "pending": True})

    return NodeResource("devices", run, pending)
