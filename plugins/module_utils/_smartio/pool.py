# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pool as one node sees it: ``list`` once, ``show`` for as few devices as will do, and which of them are this
node's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from .._pci.sysfs import PciDevice
from .._plan import SharingError
from .model import FabricDevice, PoolEntry, node_hint, slot_hint
from .tool import SmartioTool


class Pool:
    """What was read from the pool so far. ``shown`` survives a refresh: who a device is does not change in a run.

    Unless the run itself took a device out of the pool, see ``forget``.
    """

    def __init__(self, tool: SmartioTool) -> None:
        self._tool = tool
        self._own: Optional[FrozenSet[int]] = None
        self.shown: Dict[str, FabricDevice] = {}
        self.failed: Dict[str, SharingError] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read ``list`` again."""
        listed = self._tool.list()
        self.entries: Dict[str, PoolEntry] = {entry.fdid: entry for entry in listed.entries}
        self.unread: Tuple[str, ...] = listed.unread
        self.failed.clear()

    @property
    def own_nodes(self) -> FrozenSet[int]:
        """This node's ids, one an adapter; empty where they cannot be told."""
        if self._own is None:
            self._own = frozenset(self._tool.node_ids().values())
        return self._own

    def forget(self, fdid: str) -> None:
        """Ask ``show`` again the next time."""
        self.shown.pop(fdid, None)

    def show(self, fdid: str) -> Optional[FabricDevice]:
        """What ``show`` says, asked once; None where it failed (see ``failed``)."""
        if fdid not in self.shown and fdid not in self.failed:
            try:
                self.shown[fdid] = self._tool.show(fdid)
            except SharingError as error:
                self.failed[fdid] = error
        return self.shown.get(fdid)


@dataclass
class LocalEntries:
    """This node's devices among the pool's.

    ``doubts`` are pool entries that may be one of this node's and could not be told, with the reason; ``suspects``
    says for each which BDFs it might be (empty: any).
    """

    found: Dict[str, PoolEntry] = field(default_factory=dict)
    doubts: Dict[str, str] = field(default_factory=dict)
    suspects: Dict[str, FrozenSet[str]] = field(default_factory=dict)

    def doubt_about(self, bdf: str) -> Optional[str]:
        """Why it cannot be told whether ``bdf`` is in the pool; None where it can."""
        if bdf in self.found:
            return None
        for fdid, reason in self.doubts.items():
            if not self.suspects[fdid] or bdf in self.suspects[fdid]:
                return reason
        return None


def find_local(pool: Pool, wanted: Iterable[str], devices: Mapping[str, PciDevice]) -> LocalEntries:
    """The pool entries of the ``wanted`` BDFs of this node.

    Entries whose fdid hints at one of them are asked first, and asking ends when all are found, so that a pool of
    many nodes costs a node only its own part. The hint is always verified with ``show``.
    """
    local, left = LocalEntries(), set(wanted)
    for entry in _likely_first(pool, left):
        if not left:
            break
        device = pool.show(entry.fdid)
        if device is None:
            _doubt_failed(pool, entry, local)
            continue
        bdfs, reason = identify(device, pool.own_nodes, devices)
        if len(bdfs) == 1 and not reason:
            (bdf,) = bdfs
            local.found[bdf] = entry
            left.discard(bdf)
        elif bdfs or reason:
            local.doubts[entry.fdid], local.suspects[entry.fdid] = reason, bdfs
    if pool.unread:
        local.doubts["list"] = f"'smartio_tool list' printed what cannot be read: {pool.unread[0]}"
        local.suspects["list"] = frozenset()
    return local


def _likely_first(pool: Pool, wanted: Iterable[str]) -> List[PoolEntry]:
    slots, own = {bdf.split(":", 1)[1] for bdf in wanted}, pool.own_nodes

    def unlikely(entry: PoolEntry) -> Tuple[bool, bool]:
        return node_hint(entry.fdid) not in own, slot_hint(entry.fdid) not in slots

    return sorted(pool.entries.values(), key=unlikely)


def _doubt_failed(pool: Pool, entry: PoolEntry, local: LocalEntries) -> None:
    """A device whose ``show`` failed. One that has just left the pool or that an unreachable node owns is not ours."""
    error = pool.failed[entry.fdid]
    if error.details.get("errno_name") not in ("ENODEV", "EIO"):
        local.doubts[entry.fdid] = f"pool device {entry.fdid} could not be looked at ({error.message})"
        local.suspects[entry.fdid] = frozenset()


def identify(
    device: FabricDevice, own_nodes: FrozenSet[int], devices: Mapping[str, PciDevice]
) -> Tuple[FrozenSet[str], str]:
    """Which of this node's ``devices`` a pool device is: (BDFs that it may be, reason for doubt).

    One BDF and no reason: that one. None and no reason: a device of another node. NodeId decides, then Location; an
    address that ``show`` does not tell is looked for by the fdid's hint, then by the ids, and must be the only one.
    """
    own = _is_own(device, own_nodes)
    if own is False:
        return frozenset(), ""
    bdfs = _bdfs(device, devices)
    if own is None and bdfs:
        return (
            bdfs,
            f"it cannot be told which node owns pool device {device.fdid}: neither 'show' nor 'dis_config -gn' says",
        )
    if own and len(bdfs) != 1 and not device.bdf:
        return bdfs, f"it cannot be told which local device pool device {device.fdid} is: 'show' gives no BDF"
    return bdfs, ""


def _is_own(device: FabricDevice, own_nodes: FrozenSet[int]) -> Optional[bool]:
    if device.node_id is not None and own_nodes:
        return device.node_id in own_nodes
    location = (device.location or "").lower()
    if location in ("local", "remote"):
        return location == "local"
    if own_nodes:
        return node_hint(device.fdid) in own_nodes
    return None


def _bdfs(device: FabricDevice, devices: Mapping[str, PciDevice]) -> FrozenSet[str]:
    if device.bdf:
        return frozenset([device.bdf]) & frozenset(devices)
    alike = [bdf for bdf, local in devices.items() if _same_ids(device, local)]
    hinted = [bdf for bdf in alike if bdf.split(":", 1)[1] == slot_hint(device.fdid)]
    return frozenset(hinted if len(hinted) == 1 else alike)


def _same_ids(device: FabricDevice, local: PciDevice) -> bool:
    pairs = (
        (device.vendor_id, local.vendor_id),
        (device.device_id, local.device_id),
        (device.subsystem_vendor_id, local.subsystem_vendor_id),
        (device.subsystem_device_id, local.subsystem_device_id),
    )
    return all(theirs is None or theirs == ours for theirs, ours in pairs)
