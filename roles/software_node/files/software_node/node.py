# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node and what it does with other nodes; the commands (commands.py) are made of these parts.

One lock guards the state. It is never held while another node is asked, so a slow peer holds up nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from .address import Bdf
from .config import Device, NodeConfig, device_from_json, device_to_json, virtual_function
from .errors import NodeError
from .faults import Faults
from .output import View
from .peer import TIMEOUT, PeerClient, close_link, cut_link
from .pool import Pool
from .real_sysfs import RealSysfs
from .sysfs_tree import SysfsTree


@dataclass
class Borrow:
    """A device that is borrowed here."""

    view: View
    lease: str
    origin: int  # the peer that lent it; 0 for a device of this node's own pool
    vdev: Bdf
    link: Optional[socket.socket]
    alive: bool = True  # the lender is there
    shown: bool = False  # the virtual device can be seen
    returning: bool = False


def view_to_json(view: View) -> Dict[str, Any]:
    """What one node tells another about a device."""
    return dict(vars(view), device=device_to_json(view.device))


def view_from_json(data: Dict[str, Any]) -> View:
    """What another node told about a device; NodeError EIO when it makes no sense."""
    try:
        device = device_from_json(data["device"])
        return View(int(data["fdid"]), int(data["node_id"]), int(data["adapter"]), str(data["state"]), device)
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(errno.EIO, f"a peer described a device in a way that is not understood: {error}") from None


class Node:
    """One node: pool, connections, borrows, parameters, faults."""

    def __init__(
        self, config: NodeConfig, folder: str, config_path: str, faults: Faults, kmsg: Callable[[str], None]
    ) -> None:
        self.config = config
        self.config_path = config_path
        self.folder = folder
        self.faults = faults
        self.kmsg = kmsg
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.pool = Pool(config.generation)
        self.tree = SysfsTree(os.path.join(folder, "sysfs"), os.path.join(folder, "dev"))
        self.host: Union[SysfsTree, RealSysfs] = RealSysfs(config.sysfs) if config.sysfs else self.tree
        self.devices: Dict[Bdf, Device] = {device.bdf: device for device in config.devices}
        self.connections: Set[Tuple[int, int]] = set()
        self.borrows: Dict[int, Borrow] = {}
        self.p2p: Set[Tuple[int, int, int]] = set()
        self.parameters: Dict[str, int] = {"autoborrow_transparent": config.autoborrow_transparent}
        self.client = PeerClient(config.node_ids, config.token, config.peers, self.link_down)
        self._pending: Set[int] = set()
        self._last_slot = 4

    # Its own devices

    def place_devices(self) -> None:
        """Puts the configured devices in the small sysfs, physical functions first, with their drivers bound."""
        if self.host is not self.tree:
            return
        for device in sorted(self.devices.values(), key=lambda one: (bool(one.physfn), one.bdf)):
            self.tree.add(device)
            self.tree.bind(device.bdf)

    def set_parameter(self, name: str, value: int) -> None:
        """A parameter of the module, also in sysfs."""
        self.parameters[name] = value
        path = os.path.join(self.tree.root, "module/dis_smartio/parameters", name)
        with open(path, "w", encoding="ascii") as stream:
            stream.write(f"{value}\n")

    def obey_controls(self) -> None:
        """Does what was written to the control files of the small sysfs since the last call."""
        with self.lock:
            if self.stopping.is_set() or self.host is not self.tree:
                return
            self.tree.obey()
            for bdf, (have, want) in self.tree.wanted_vfs().items():
                self._set_vfs(self.devices[bdf], have, want)
                self.tree.reset_numvfs(bdf)

    def _set_vfs(self, physical: Device, have: int, want: int) -> None:
        """As the kernel: from none to some, and back to none; not while one of them is in the pool."""
        present = [device for device in self.devices.values() if device.physfn == str(physical.bdf)]
        if not 0 <= want <= physical.totalvfs or (have and want):
            self.kmsg(f"{physical.bdf}: {want} virtual functions refused, there are {have}")
        elif any(self.pool.local(device.bdf) for device in present):
            self.kmsg(f"{physical.bdf}: its virtual functions are in the pool")
        elif want:
            configured = [one for one in self.config.devices if one.physfn == str(physical.bdf)]
            made = [virtual_function(physical, number) for number in range(want)]
            for device in (configured + made[len(configured) :])[:want]:
                self.devices[device.bdf] = device
                self.tree.add(device)
                self.tree.bind(device.bdf)
        else:
            for device in present:
                self.tree.remove(device.bdf)
                del self.devices[device.bdf]

    def now(self) -> float:
        """The clock of all delays."""
        return time.monotonic()

    # Links

    def link_down(self, node_id: int) -> Optional[str]:
        """``refuse`` or ``drop`` when the link to a node is cut by a fault, else None."""
        return self.faults.variant("link_down", str(node_id))

    def visible_to(self, nodes: Sequence[int]) -> bool:
        """Whether this node connected to one of the ids of another node."""
        return any(node in nodes for node, _adapter in self.connections)

    # What other nodes ask

    def handle(self, nodes: List[int], operation: str, args: Dict[str, Any]) -> Tuple[Dict[str, Any], str]:
        """The handler of peer.PeerServer."""
        if operation == "connect":
            if not any(self.client.knows(node) for node in nodes):
                raise NodeError(errno.EIO, f"node {nodes[0]} is not in the table of peers of {self.config.name}")
            return {}, ""
        if operation == "list":
            return {"devices": [view_to_json(view) for view in self._views_for(nodes)]}, ""
        if operation == "lend":
            return self._lend(nodes, int(args["fdid"]))
        if operation == "give_back":
            self.lease_ended(str(args["lease"]))
            return {}, ""
        if operation == "connected":
            with self.lock:
                return {"connected": self.visible_to([int(args["node_id"])])}, ""
        raise NodeError(errno.EINVAL, f"unknown operation {operation!r}")

    def _views_for(self, nodes: Sequence[int]) -> List[View]:
        with self.lock:
            return [entry.view() for entry in self.pool.entries()] if self.visible_to(nodes) else []

    def _lend(self, nodes: List[int], fdid: int) -> Tuple[Dict[str, Any], str]:
        if self.faults.busy(fdid):
            raise NodeError(errno.EBUSY, f"{fdid:x}: busy (fault)")
        with self.lock:
            if not self.visible_to(nodes):
                raise NodeError(errno.ENODEV, f"{fdid:x}: no connection to node {nodes[0]}")
            lease = self.pool.lend(fdid, nodes)
            entry = self.pool.get(fdid)
            assert entry is not None
            self.kmsg(f"{fdid:x} lent to node {nodes[0]}")
            return {"lease": lease.name, "view": view_to_json(entry.view())}, lease.name

    def lease_ended(self, lease: str) -> None:
        """A borrower gave a device back, or its connection is gone."""
        with self.lock:
            entry = self.pool.release(lease)
            if entry:
                self.kmsg(f"{entry.fdid:x} is back")

    # What it asks other nodes

    def remote_views(
        self, peers: Optional[Sequence[int]] = None
    ) -> Tuple[Dict[int, Tuple[int, View]], List[NodeError]]:
        """The devices that peers (default: all) let this node see, {fdid: (peer, view)}, and what went wrong.

        All are asked at the same time, so this takes no longer than the slowest one may.
        """
        found: Dict[int, Tuple[int, View]] = {}
        failures: List[NodeError] = []

        def ask(node_id: int) -> None:
            try:
                reply = self.client.call(node_id, "list", {})
                views = [view_from_json(one) for one in reply.get("devices", [])]
            except NodeError as error:
                failures.append(error)
            else:
                found.update({view.fdid: (node_id, view) for view in views})

        asked = self.client.nodes() if peers is None else peers
        threads = [threading.Thread(target=ask, args=(node_id,), daemon=True) for node_id in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT)
        return dict(found), list(failures)

    def find(self, fdid: int) -> Tuple[int, View]:
        """(peer, or 0 for this node; view) of a device; NodeError ENODEV, or EIO when its lender does not answer."""
        with self.lock:
            entry = self.pool.get(fdid)
            if entry:
                return 0, entry.view()
        failures: List[NodeError] = []
        # The part above bit 16 is usually the lender's id: then one question is enough.
        hint = fdid >> 16
        if self.client.knows(hint):
            found, failures = self.remote_views([hint])
            if fdid in found:
                return found[fdid]
        if not failures:
            found, _others = self.remote_views()
            if fdid in found:
                return found[fdid]
            raise NodeError(errno.ENODEV, f"{fdid:x}: no such device")
        raise failures[0]

    # Borrowing

    def borrow(self, fdid: int) -> Borrow:
        """Borrows a device that is not borrowed here yet; NodeError when that is not possible."""
        with self.lock:
            if fdid in self._pending:
                raise NodeError(errno.EBUSY, f"{fdid:x}: being borrowed at this moment")
            self._pending.add(fdid)
        try:
            if self.faults.busy(fdid):
                raise NodeError(errno.EBUSY, f"{fdid:x}: busy (fault)")
            origin, _view = self.find(fdid)
            if origin:
                return self._borrow_remote(origin, fdid)
            with self.lock:
                lease = self.pool.lend(fdid, self.config.node_ids)
                entry = self.pool.get(fdid)
                assert entry is not None
                return self._inject(Borrow(entry.view(), lease.name, 0, self._free_vdev(), None))
        finally:
            with self.lock:
                self._pending.discard(fdid)

    def _borrow_remote(self, origin: int, fdid: int) -> Borrow:
        reply, link = self.client.open(origin, "lend", {"fdid": fdid})
        try:
            view, lease = view_from_json(reply.get("view", {})), str(reply.get("lease", ""))
        except NodeError:
            close_link(link)
            raise
        with self.lock:
            borrow = self._inject(Borrow(view, lease, origin, self._free_vdev(), link))
        threading.Thread(target=self._watch, args=(borrow, link), daemon=True).start()
        return borrow

    def _watch(self, borrow: Borrow, link: socket.socket) -> None:
        """Waits for the end of the lease's connection."""
        with contextlib.suppress(OSError):
            while link.recv(4096):
                pass
        with self.lock:
            self._lost(borrow)

    def _lost(self, borrow: Borrow) -> None:
        fdid = borrow.view.fdid
        if self.borrows.get(fdid) is borrow and borrow.alive:
            borrow.alive = False
            self.tree.set_state(borrow.vdev, "dead")
            self.kmsg(f"{fdid:x}: lost the lender (node {borrow.view.node_id}); {borrow.vdev} is dead")

    def _free_vdev(self) -> Bdf:
        """The next virtual address: they move on, so that nobody takes an old one for granted."""
        domain, bus = (int(part, 16) for part in self.config.virtual_bus.split(":"))
        taken = set(self.devices) | {borrow.vdev for borrow in self.borrows.values()}
        while True:
            self._last_slot += 1
            vdev = Bdf(domain, (bus + self._last_slot // 32) & 0xFF, self._last_slot % 32, 0)
            if vdev not in taken:
                return vdev

    def _inject(self, borrow: Borrow) -> Borrow:
        self.borrows[borrow.view.fdid] = borrow
        settle = self.faults.seconds("settle")
        self.later(settle / 2, lambda: self._appear(borrow))
        self.later(settle, lambda: self._bind(borrow))
        self.kmsg(f"{borrow.view.fdid:x} of node {borrow.view.node_id} borrowed as {borrow.vdev}")
        return borrow

    def _appear(self, borrow: Borrow) -> None:
        if self.borrows.get(borrow.view.fdid) is borrow:
            device = replace(borrow.view.device, bdf=borrow.vdev, physfn="", totalvfs=0, iommu_group=-1)
            self.tree.add(device)

    def _bind(self, borrow: Borrow) -> None:
        if self.borrows.get(borrow.view.fdid) is borrow and self.tree.has(borrow.vdev):
            self.tree.bind(borrow.vdev)
            borrow.shown = True

    def give_back(self, borrow: Borrow) -> None:
        """Returns a device: the virtual device vanishes, then the lender has it back."""
        with self.lock:
            fdid = borrow.view.fdid
            if self.borrows.get(fdid) is not borrow:
                return
            if self.tree.has(borrow.vdev):
                self.tree.remove(borrow.vdev)
            self.p2p = {pair for pair in self.p2p if fdid not in pair[:2]}
            del self.borrows[fdid]
            if borrow.link is None:
                self.lease_ended(borrow.lease)
        if borrow.link is None:
            return
        try:
            if borrow.alive:
                self.client.call(borrow.origin, "give_back", {"lease": borrow.lease})
        except NodeError as error:
            # The end of the connection below tells the lender as well, as soon as it can be reached.
            self.kmsg(f"{fdid:x}: returned, but {error.reason}")
        close_link(borrow.link)

    def surprise_removal(self, fdid: int) -> None:
        """A scanned device is gone from its tree: so is what was made of it here."""
        with self.lock:
            borrow = self.borrows.get(fdid)
            if borrow and borrow.origin == 0:
                self._lost(borrow)

    def cut(self, node_id: int) -> None:
        """Ends the leases from a node, as when the link to it goes down."""
        with self.lock:
            ids = self.client.ids_of(node_id)
            links = [borrow.link for borrow in self.borrows.values() if borrow.origin in ids]
        for link in links:
            if link is not None:
                cut_link(link)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Runs something with the lock held, after a while; at once (in this thread) for 0 seconds."""

        def locked() -> None:
            with self.lock:
                if not self.stopping.is_set():
                    action()

        if seconds <= 0:
            locked()
            return
        timer = threading.Timer(seconds, locked)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Lets go of every lease; the state is not used afterwards."""
        self.stopping.set()
        with self.lock:
            links = [borrow.link for borrow in self.borrows.values() if borrow.link]
        for link in links:
            close_link(link)
