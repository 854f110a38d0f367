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
from .errors import NodeError, NodeGone
from .faults import Faults
from .output import View
from .peer import TIMEOUT, Caller, PeerClient, close_link, cut_link
from .pool import Entry, Lease, Pool
from .real_sysfs import RealSysfs
from .sysfs_tree import SysfsTree

# Seconds between two tries to reach the other end of a lease.
_FIRST_PAUSE = 0.05
_LAST_PAUSE = 1.0


@dataclass
class Borrow:
    """A device that is borrowed here."""

    view: View
    lease: str
    origin: int  # the peer that lent it; 0 for a device of this node's own pool
    incarnation: str  # the lender's
    vdev: Bdf
    link: Optional[socket.socket]
    alive: bool = True  # the lender can be reached
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
        self.own = Caller(list(config.node_ids), os.urandom(8).hex())
        self.client = PeerClient(self.own, config.token, config.peers, self.link_down, self.met)
        self.cut_lease: Callable[[str], None] = lambda lease: None  # the server's, see Daemon
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
                if self.tree.count_vfs(bdf) != want:
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

    def met(self, nodes: Sequence[int], incarnation: str) -> None:
        """Another node told its incarnation: what an earlier one lent or borrowed is gone with it."""
        with self.lock:
            for lease in self.pool.outlived(nodes, incarnation):
                self.kmsg(f"node {nodes[0]} was restarted, its lease {lease.name} is void")
                self.lease_ended(lease.name)
            for borrow in list(self.borrows.values()):
                if borrow.origin in nodes and borrow.incarnation != incarnation:
                    self._remove(borrow, f"node {borrow.origin}, which lent it, was restarted")

    # What other nodes ask

    def handle(self, caller: Caller, operation: str, args: Dict[str, Any]) -> Tuple[Dict[str, Any], str]:
        """The handler of peer.PeerServer."""
        nodes = caller.nodes
        self.met(nodes, caller.incarnation)
        if operation == "connect":
            if not any(self.client.knows(node) for node in nodes):
                raise NodeError(errno.EIO, f"node {nodes[0]} is not in the table of peers of {self.config.name}")
            return {}, ""
        if operation == "list":
            return {"devices": [view_to_json(view) for view in self._views_for(nodes)]}, ""
        if operation == "lend":
            return self._lend(caller, int(args["fdid"]))
        if operation == "resume":
            return self._resume(caller, str(args["lease"]))
        if operation == "holds":
            with self.lock:
                return {"holds": any(one.lease == args["lease"] for one in self.borrows.values())}, ""
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

    def _lend(self, caller: Caller, fdid: int) -> Tuple[Dict[str, Any], str]:
        nodes = caller.nodes
        if self.faults.busy(fdid):
            raise NodeError(errno.EBUSY, f"{fdid:x}: busy (fault)")
        with self.lock:
            if not self.visible_to(nodes):
                raise NodeError(errno.ENODEV, f"{fdid:x}: no connection to node {nodes[0]}")
            lease = self.pool.lend(fdid, nodes, caller.incarnation)
            entry = self.pool.get(fdid)
            assert entry is not None
            self.kmsg(f"{fdid:x} lent to node {nodes[0]}")
            view = view_to_json(entry.view())
            return {"lease": lease.name, "incarnation": self.own.incarnation, "view": view}, lease.name

    def _resume(self, caller: Caller, name: str) -> Tuple[Dict[str, Any], str]:
        """The link to a borrower is back, and with it the connection that carries a lease."""
        with self.lock:
            lease = self.pool.leased(name)
            if lease is None or not set(lease.borrower) & set(caller.nodes):
                raise NodeError(errno.ENODEV, f"the lease {name} has ended")
            lease.links += 1
            return {}, name

    def lease_ended(self, lease: str) -> None:
        """A borrower has a device no more."""
        with self.lock:
            entry = self.pool.release(lease)
            if entry:
                self.kmsg(f"{entry.fdid:x} is back")

    def lease_broken(self, name: str) -> None:
        """A connection that carried a lease is gone. Whether the borrower still has the device, only that one knows."""
        with self.lock:
            lease = self.pool.leased(name)
            if lease:
                lease.links -= 1
                threading.Thread(target=self._ask_borrower, args=(lease,), daemon=True).start()

    def _ask_borrower(self, lease: Lease) -> None:
        """Asks until the borrower is connected again, has the device no more, or does not run any more.

        A borrower that cannot be reached keeps its device: it may well be using it.
        """
        pause = 0.0
        while not self.stopping.wait(pause):
            with self.lock:
                if lease.links or self.pool.leased(lease.name) is not lease:
                    return
            try:
                gone = not self.client.call(lease.borrower[0], "holds", {"lease": lease.name})["holds"]
            except NodeError as error:
                gone = isinstance(error, NodeGone)
            if gone:
                self.lease_ended(lease.name)
                return
            pause = min(pause * 2 or _FIRST_PAUSE, _LAST_PAUSE)

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
                lease = self.pool.lend(fdid, self.own.nodes, self.own.incarnation)
                entry = self.pool.get(fdid)
                assert entry is not None
                is_real = self.host is not self.tree and not entry.transparent
                vdev = entry.device.bdf if is_real else self._free_vdev()
                return self._inject(Borrow(entry.view(), lease.name, 0, lease.incarnation, vdev, None))
        finally:
            with self.lock:
                self._pending.discard(fdid)

    def _borrow_remote(self, origin: int, fdid: int) -> Borrow:
        reply, link = self.client.open(origin, "lend", {"fdid": fdid})
        try:
            view = view_from_json(reply.get("view", {}))
        except NodeError:
            close_link(link)
            raise
        lease, incarnation = str(reply.get("lease", "")), str(reply.get("incarnation", ""))
        with self.lock:
            borrow = self._inject(Borrow(view, lease, origin, incarnation, self._free_vdev(), link))
        threading.Thread(target=self._watch, args=(borrow, link), daemon=True).start()
        return borrow

    def _watch(self, borrow: Borrow, link: Optional[socket.socket]) -> None:
        """Follows a borrow to its end: the connection that carries it, and the next one when that is gone."""
        while link:
            with contextlib.suppress(OSError):
                while link.recv(4096):
                    pass
            close_link(link)
            link = self._resume_borrow(borrow) if self._lost(borrow) else None

    def _lost(self, borrow: Borrow) -> bool:
        """The lender cannot be reached; whether the device is still borrowed."""
        fdid = borrow.view.fdid
        with self.lock:
            if self.stopping.is_set() or self.borrows.get(fdid) is not borrow:
                return False
            borrow.alive = False
            self.tree.set_state(borrow.vdev, "dead")
            self.kmsg(f"{fdid:x}: node {borrow.origin}, which lent it, cannot be reached; {borrow.vdev} is dead")
            return True

    def _resume_borrow(self, borrow: Borrow) -> Optional[socket.socket]:
        """Looks for the lender until it is back, or says that the lease has ended; the new connection, or None."""
        fdid, pause = borrow.view.fdid, 0.0
        while not self.stopping.wait(pause):
            with self.lock:
                if self.borrows.get(fdid) is not borrow:
                    return None
            pause = min(pause * 2 or _FIRST_PAUSE, _LAST_PAUSE)
            try:
                _reply, link = self.client.open(borrow.origin, "resume", {"lease": borrow.lease})
            except NodeError as error:
                if error.number == errno.ENODEV:
                    with self.lock:
                        self._remove(borrow, error.reason)
                continue
            with self.lock:
                if self.borrows.get(fdid) is borrow:
                    borrow.link, borrow.alive = link, True
                    self.tree.set_state(borrow.vdev, "live")
                    self.kmsg(f"{fdid:x}: node {borrow.origin} is back; {borrow.vdev} is alive")
                    return link
            close_link(link)
        return None

    def has_real(self, borrow: Borrow) -> bool:
        """Whether what is borrowed is a real device of this host: nothing else has its address, so it keeps that."""
        return self.host is not self.tree and borrow.vdev in self.devices

    def driver(self, borrow: Borrow) -> str:
        """The driver that has a borrowed device, or an empty string."""
        return (self.host if self.has_real(borrow) else self.tree).driver(borrow.vdev)

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
        if self.borrows.get(borrow.view.fdid) is borrow and not self.has_real(borrow):
            device = replace(borrow.view.device, bdf=borrow.vdev, physfn="", totalvfs=0, iommu_group=-1)
            self.tree.add(device)

    def _bind(self, borrow: Borrow) -> None:
        if self.borrows.get(borrow.view.fdid) is not borrow:
            return
        if self.has_real(borrow) or self.tree.has(borrow.vdev):
            (self.host if self.has_real(borrow) else self.tree).bind(borrow.vdev)
            borrow.shown = True

    def give_back(self, borrow: Borrow) -> None:
        """Returns a device: the virtual device vanishes, then the lender has it back."""
        with self.lock:
            fdid = borrow.view.fdid
            if self.borrows.get(fdid) is not borrow:
                return
            self._forget(borrow)
            if not borrow.origin:
                self.lease_ended(borrow.lease)
        try:
            if borrow.origin and borrow.alive:
                self.client.call(borrow.origin, "give_back", {"lease": borrow.lease})
        except NodeError as error:
            # The lender will ask, as soon as it can be reached.
            self.kmsg(f"{fdid:x}: returned, but {error.reason}")
        if borrow.link:
            close_link(borrow.link)

    def _forget(self, borrow: Borrow) -> None:
        fdid = borrow.view.fdid
        if self.has_real(borrow):
            self.host.unbind(borrow.vdev)
        elif self.tree.has(borrow.vdev):
            self.tree.remove(borrow.vdev)
        self.p2p = {pair for pair in self.p2p if fdid not in pair[:2]}
        del self.borrows[fdid]

    def _remove(self, borrow: Borrow, reason: str) -> None:
        """Surprise removal: the lender has the device no more, so its virtual device vanishes."""
        if self.borrows.get(borrow.view.fdid) is not borrow:
            return
        self._forget(borrow)
        self.kmsg(f"{borrow.view.fdid:x}: {borrow.vdev} was removed by surprise: {reason}")
        if borrow.link:
            cut_link(borrow.link)

    def withdraw(self, entry: Entry) -> None:
        """A scanned device is gone from its tree: so is what was made of it, here or at a borrower."""
        with self.lock:
            lease, borrow = entry.lease, self.borrows.get(entry.fdid)
            self.pool.remove(entry)
            if borrow and not borrow.origin:
                self._remove(borrow, "it is gone from its tree")
            elif lease:
                self.cut_lease(lease.name)

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
