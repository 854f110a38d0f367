# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lender's half of a node: which devices are in the pool, which are open for borrowing, and who has them.

Nothing here locks or talks to anybody: the node calls it with its lock held. All of it is in memory only.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set

from .address import Bdf, counted_fdid, located_fdid
from .config import Device
from .errors import NodeError
from .output import View


@dataclass
class Lease:
    """A device that is lent: the name of the lease, the borrower's node ids and incarnation.

    ``links`` counts the connections that hold it. Without any the borrower cannot be reached, and still has the device.
    """

    name: str
    borrower: List[int]
    incarnation: str
    links: int = 1


@dataclass
class Entry:
    """A device in the pool."""

    fdid: int
    node_id: int
    adapter: int
    device: Device
    transparent: bool
    available: bool = False
    open_from: float = 0.0  # monotonic time from which on a device made available can be seen to be so
    lease: Optional[Lease] = None

    @property
    def state(self) -> str:
        """unavailable, available or borrowed, as it can be seen now."""
        if self.lease:
            return "borrowed"
        return "available" if self.available and time.monotonic() >= self.open_from else "unavailable"

    def view(self) -> View:
        """What may be told about it."""
        return View(self.fdid, self.node_id, self.adapter, self.state, self.device)


class Pool:
    """The devices that this node added or scanned."""

    def __init__(self, generation: str) -> None:
        self._located = generation == "current"
        self._entries: Dict[int, Entry] = {}
        self._added: Dict[int, int] = {}

    def entries(self) -> List[Entry]:
        """All entries in the order of their fdid."""
        return [self._entries[fdid] for fdid in sorted(self._entries)]

    def get(self, fdid: int) -> Optional[Entry]:
        """The entry of an fdid."""
        return self._entries.get(fdid)

    def local(self, bdf: Bdf) -> Optional[Entry]:
        """The entry of a device of this node (not of a transparent tree)."""
        for entry in self._entries.values():
            if entry.device.bdf == bdf and not entry.transparent:
                return entry
        return None

    def tree(self, node_id: int) -> List[Entry]:
        """The devices of a transparent tree."""
        return [entry for entry in self.entries() if entry.transparent and entry.node_id == node_id]

    def add(self, node_id: int, adapter: int, device: Device, transparent: bool = False) -> Entry:
        """Puts a device in the pool, unavailable."""
        fdid = self._new_fdid(node_id, device.bdf)
        entry = self._entries[fdid] = Entry(fdid, node_id, adapter, device, transparent)
        return entry

    def remove(self, entry: Entry) -> None:
        """Takes a device out of the pool."""
        del self._entries[entry.fdid]

    def lend(self, fdid: int, borrower: Sequence[int], incarnation: str) -> Lease:
        """Gives a device to a borrower; NodeError ENODEV or EBUSY."""
        entry = self._entries.get(fdid)
        if entry is None:
            raise NodeError(errno.ENODEV, f"{fdid:x}: no such device in the pool")
        if entry.lease:
            raise NodeError(errno.EBUSY, f"{fdid:x}: lent to node {entry.lease.borrower[0]}")
        if entry.state != "available":
            raise NodeError(errno.EBUSY, f"{fdid:x}: not available")
        # Random, so that a borrower cannot end a lease that was given after this node's restart.
        entry.lease = Lease(f"{fdid:x}-{os.urandom(8).hex()}", list(borrower), incarnation)
        return entry.lease

    def leased(self, lease: str) -> Optional[Lease]:
        """The lease of that name, or None when it has ended."""
        return next((one.lease for one in self._entries.values() if one.lease and one.lease.name == lease), None)

    def outlived(self, borrower: Sequence[int], incarnation: str) -> List[Lease]:
        """The leases of earlier incarnations of a borrower."""
        leases = [entry.lease for entry in self._entries.values() if entry.lease]
        return [one for one in leases if one.incarnation != incarnation and set(one.borrower) & set(borrower)]

    def release(self, lease: str) -> Optional[Entry]:
        """Takes a device back by its lease; the entry, or None when that lease had ended already."""
        for entry in self._entries.values():
            if entry.lease and entry.lease.name == lease:
                entry.lease = None
                return entry
        return None

    def _new_fdid(self, node_id: int, bdf: Bdf) -> int:
        taken: Set[int] = set(self._entries)
        if self._located:
            return located_fdid(node_id, bdf, taken)
        number = self._added.get(node_id, 0)
        self._added[node_id] = number + 1
        return counted_fdid(node_id, number)
