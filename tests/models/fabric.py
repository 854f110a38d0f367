# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fabric in memory: what the documentation says of nodes, pool and commands, and quirks where it says nothing.

Written from the facts that are known of the tool, not from the code that drives it. A node answers command lines with
an exit status and text. Faults are queued: each meets one command, and then is gone.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

CHANGING = frozenset(
    ("connect", "add", "remove", "available", "unavailable", "scan", "borrow", "return", "enable-p2p", "disable-p2p")
    + ("config",)
)


class Killed(BaseException):
    """The run was ended by SIGKILL: nothing of it goes on, whatever it meant to do."""


class Refused(Exception):
    """A command that fails with this errno."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Hardware:
    """A PCI device where it is plugged in. ``bound`` says whether its driver has it."""

    bdf: str
    vendor: str
    device: str
    class_code: str
    serial: str
    driver: Optional[str]
    bound: bool = True
    used: Tuple[str, ...] = ()
    never: Tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name with brackets, as some are."""
        return f"Vendor {self.vendor} Device {self.device} [{self.class_code}] (rev 01)"


@dataclass
class Pooled:
    """A device in the pool. ``tree`` is the node id of the transparent tree that it was scanned in, or 0."""

    fdid: str
    owner: int
    hardware: Hardware
    available: bool = False
    tree: int = 0
    borrower: Optional[int] = None


@dataclass
class Virtual:
    """A borrowed device on its borrower."""

    bdf: str
    inode: int
    driver: Optional[str]
    used: Tuple[str, ...] = ()
    never: Tuple[str, ...] = ()


@dataclass
class Quirks:
    """How a node differs where the documentation says nothing."""

    strict: bool = False
    """A command whose effect is there already fails with EEXIST, EALREADY or EISCONN."""
    reverse: bool = False
    prefix: str = ""
    located: bool = True
    absent: Tuple[int, str] = (errno.ENODEV, "")
    """What get-vdev answers for a device that is not borrowed here."""
    lent_word: str = "in use"
    hides_bdf: bool = False
    hides_node: bool = False
    keeps_driver: bool = False
    """``available`` leaves the driver where sysfs shows it."""


@dataclass
class Fault:
    """``what`` happens to the first command of that name (``*``: any): an errno before or after its work, death before
    or after it, ``lie`` (success without work, of a changing command), ``garble`` (output nobody can read)."""

    command: str
    what: str
    status: int = errno.EBUSY


@dataclass
class Fabric:
    """All nodes. ``cut`` are those that cannot be reached; ``hidden`` transparent devices wait to be scanned."""

    nodes: Dict[int, Node] = field(default_factory=dict)
    pool: Dict[str, Pooled] = field(default_factory=dict)
    cut: Set[int] = field(default_factory=set)
    counter: int = 0

    def node(self, node_id: int, *hardware: Hardware, **quirks: Any) -> Node:
        made = Node(self, node_id, {one.bdf: one for one in hardware}, Quirks(**quirks))
        self.nodes[node_id] = made
        return made

    def next(self) -> int:
        self.counter += 1
        return self.counter

    def pooled(self, owner: int, bdf: str) -> Optional[Pooled]:
        """The entry of a device that its owner added."""
        found = [one for one in self.pool.values() if (one.owner, one.hardware.bdf, one.tree) == (owner, bdf, 0)]
        return found[0] if found else None

    def picture(self) -> str:
        """Everything that a run could change, as text to compare."""
        nodes = [
            (
                one.node_id,
                sorted(one.connections),
                sorted(one.parameters.items()),
                sorted((fdid, repr(vdev)) for fdid, vdev in one.vdevs.items()),
                sorted(one.p2p),
                sorted(repr(found) for found in one.hardware.values()),
                one.ledger,
            )
            for one in self.nodes.values()
        ]
        return repr((nodes, sorted(repr(one) for one in self.pool.values())))


@dataclass
class Node:
    """One host. ``ledger`` is the file's text; ``stamp`` what boot and module load are; ``log`` what was run."""

    fabric: Fabric
    node_id: int
    hardware: Dict[str, Hardware]
    quirks: Quirks
    connections: Set[int] = field(default_factory=set)
    vdevs: Dict[str, Virtual] = field(default_factory=dict)
    p2p: Set[Tuple[str, str, str]] = field(default_factory=set)
    parameters: Dict[str, str] = field(default_factory=lambda: {"autoborrow_transparent": "0", "verbose": "0"})
    shows_parameters: bool = True
    transparent: List[Hardware] = field(default_factory=list)
    ledger: Optional[str] = None
    stamp: int = 1
    faults: List[Fault] = field(default_factory=list)
    log: List[Tuple[str, ...]] = field(default_factory=list)
    repeats: int = 0
    """How many commands met a state that they would have led to."""

    # - what happens to a node beside the commands

    def restart(self) -> None:
        """The node or its module was restarted: what SmartIO keeps is lost, devices have their drivers."""
        self.stamp += 1
        self.connections.clear()
        self.p2p.clear()
        for fdid in [fdid for fdid, one in self.fabric.pool.items() if one.owner == self.node_id]:
            lost = self.fabric.pool.pop(fdid)
            if lost.borrower is not None and lost.borrower in self.fabric.nodes:
                self.fabric.nodes[lost.borrower].lose(fdid)
        for one in self.hardware.values():
            one.bound = one.driver is not None
        for fdid in list(self.vdevs):
            if fdid in self.fabric.pool:
                self.fabric.pool[fdid].borrower = None
        self.vdevs.clear()

    def lose(self, fdid: str) -> None:
        """A borrowed device is gone: its lender was restarted."""
        self.vdevs.pop(fdid, None)
        self.p2p = {pair for pair in self.p2p if fdid not in pair}

    # - commands

    def execute(self, program: str, args: Tuple[str, ...]) -> Tuple[int, str]:
        """Run one command line: exit status and standard output."""
        command = args[0] if program == "smartio_tool" else program
        self.log.append(args if program == "smartio_tool" else (program, *args))
        fault = self._fault(command)
        if fault is not None and fault.what in ("before", "die before", "lie"):
            if fault.what == "die before":
                raise Killed
            return (fault.status, "") if fault.what == "before" else (0, "")
        try:
            status, text = 0, self._commands()[command](*args[1:] if program == "smartio_tool" else args)
        except Refused as refused:
            status, text = refused.status, ""
        if fault is None:
            return status, text
        if fault.what == "die after":
            raise Killed
        return (status, "\x00garbled [\n" + text[: len(text) // 2]) if fault.what == "garble" else (fault.status, "")

    def _fault(self, command: str) -> Optional[Fault]:
        for index, fault in enumerate(self.faults):
            is_it = fault.command in ("*", command) and (fault.what != "lie" or command in CHANGING)
            if is_it:
                return self.faults.pop(index)
        return None

    def _commands(self) -> Dict[str, Callable[..., str]]:
        return {
            "connect": self._connect,
            "add": self._add,
            "remove": self._remove,
            "available": self._available,
            "unavailable": self._unavailable,
            "list": self._list,
            "show": self._show,
            "borrow": self._borrow,
            "return": self._return,
            "get-vdev": self._get_vdev,
            "enable-p2p": self._enable,
            "disable-p2p": self._disable,
            "config": self._config,
            "scan": self._scan,
            "dis_config": lambda _option: f"Card 1 - NodeId:  {self.node_id}\n",
            "disinfo": self._disinfo,
        }

    def _again(self, status: int) -> str:
        """The effect is there already."""
        self.repeats += 1
        if self.quirks.strict:
            raise Refused(status)
        return ""

    def _reach(self, node_id: int) -> None:
        if node_id not in self.fabric.nodes or {node_id, self.node_id} & self.fabric.cut:
            raise Refused(errno.EIO)

    def _connect(self, peer: str, adapter: str = "0") -> str:
        if adapter != "0":
            raise Refused(errno.ENODEV)
        if int(peer) == self.node_id or int(peer) in self.connections:
            return self._again(errno.EISCONN)
        self._reach(int(peer))
        self.connections.add(int(peer))
        return ""

    def _own(self, bdf: str) -> Pooled:
        found = self.fabric.pooled(self.node_id, bdf)
        if bdf not in self.hardware or found is None:
            raise Refused(errno.ENODEV)
        return found

    def _add(self, bdf: str) -> str:
        if bdf not in self.hardware:
            raise Refused(errno.ENODEV)
        if self.fabric.pooled(self.node_id, bdf):
            return self._again(errno.EEXIST)
        self.put(self.hardware[bdf])
        return ""

    def put(self, hardware: Hardware, tree: int = 0) -> Pooled:
        """A new entry of the pool."""
        owner = tree or self.node_id
        low = 2 * self.fabric.next()
        if self.quirks.located:
            bus, rest = hardware.bdf[5:].split(":")
            slot, function = rest.split(".")
            low = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        while f"{owner << 16 | low:x}" in self.fabric.pool:  # there is no PCI domain in an id
            low += 1
        fdid = f"{owner << 16 | low:x}"
        entry = self.fabric.pool[fdid] = Pooled(fdid, self.node_id, hardware, tree=tree)
        return entry

    def _remove(self, bdf: str) -> str:
        entry = self._own(bdf)
        if entry.borrower is not None or (self.quirks.strict and entry.available):
            raise Refused(errno.EBUSY)
        del self.fabric.pool[entry.fdid]
        return ""

    def _available(self, *args: str) -> str:
        entry = self._own(args[-1])
        if entry.available:
            return self._again(errno.EALREADY)
        if entry.hardware.bound and "--force" not in args:
            raise Refused(errno.ECANCELED)  # it asks on the terminal, and there is nobody
        entry.available = True
        entry.hardware.bound = entry.hardware.bound and self.quirks.keeps_driver
        return ""

    def _unavailable(self, bdf: str) -> str:
        entry = self._own(bdf)
        if entry.borrower is not None:
            raise Refused(errno.EBUSY)
        if not entry.available:
            raise Refused(errno.EINVAL)
        entry.available = False
        entry.hardware.bound = entry.hardware.driver is not None
        return ""

    def _visible(self) -> List[Pooled]:
        found = [one for one in self.fabric.pool.values() if self._sees(one)]
        return found[::-1] if self.quirks.reverse else found

    def _sees(self, entry: Pooled) -> bool:
        owner = self.fabric.nodes[entry.owner]
        if owner is self:
            return True
        # Entries of a lender out of reach stay listed: that is how a borrower learns whom it misses.
        return self.node_id in owner.connections

    def _find(self, fdid: str) -> Pooled:
        for entry in self._visible():
            if entry.fdid == fdid.lower():
                return entry
        raise Refused(errno.ENODEV)

    def _word(self, entry: Pooled) -> str:
        if entry.borrower is not None and self.quirks.lent_word:
            return self.quirks.lent_word
        return "available" if entry.available else "unavailable"

    def _list(self) -> str:
        return "".join(
            f"{self.quirks.prefix}{one.fdid}: {one.hardware.name} [{self._word(one)}]\n" for one in self._visible()
        )

    def _show(self, fdid: str) -> str:
        entry = self._find(fdid)
        if entry.owner != self.node_id:
            self._reach(entry.owner)
        found, own = entry.hardware, entry.owner == self.node_id
        pairs = {
            "Name": found.name,
            "Available": self._word(entry),
            "Location": "local" if own and not entry.tree else "remote",
            "NodeId": str(entry.tree or entry.owner),
            "Remote BDF": found.bdf,
            "Serial Number": found.serial,
            "Vendor ID": found.vendor,
            "Device ID": found.device,
            "UUID": "N/A",
            "Local users": "0" if entry.borrower is None else "1",
        }
        if self.quirks.hides_bdf and own:
            pairs["Remote BDF"] = "N/A"
        if self.quirks.hides_node and not entry.tree:
            del pairs["NodeId"]
        return "".join(f"{key}: {value}\n" for key, value in pairs.items())

    def _borrow(self, fdid: str, window: str = "") -> str:
        entry = self._find(fdid)
        if entry.owner != self.node_id:
            self._reach(entry.owner)
        if entry.borrower == self.node_id:
            return self._again(errno.EALREADY)
        if entry.borrower is not None or not entry.available:
            raise Refused(errno.EBUSY)
        number = self.fabric.next()
        entry.borrower = self.node_id
        vdev = Virtual(f"0001:{number // 32:02x}:{number % 32:02x}.0", 1000 + number, entry.hardware.driver)
        self.vdevs[entry.fdid] = vdev
        bound = f"Bound to driver: {vdev.driver}\n" if vdev.driver else ""
        return f"Name: {entry.hardware.name}\nLocal users: 1\nLocal virtual device: {vdev.bdf}\n{bound}"

    def _return(self, fdid: str) -> str:
        if fdid not in self.vdevs:
            raise Refused(errno.EINVAL)
        self.lose(fdid)
        if fdid in self.fabric.pool:
            self.fabric.pool[fdid].borrower = None
        return ""

    def _get_vdev(self, fdid: str) -> str:
        vdev = self.vdevs.get(fdid)
        entry = self.fabric.pool.get(fdid)
        if entry is not None and vdev is not None and entry.owner != self.node_id:
            self._reach(entry.owner)
        if vdev is None:
            status, text = self.quirks.absent
            if status:
                raise Refused(status)
            return text
        return f"{vdev.bdf}\n"

    def _pair(self, args: Tuple[str, ...]) -> Tuple[str, str, str]:
        if any(fdid not in self.vdevs for fdid in args[:2]):
            raise Refused(errno.EINVAL)
        return args[0], args[1], args[2] if len(args) > 2 else "-"

    def _enable(self, *args: str) -> str:
        pair = self._pair(args)
        if pair in self.p2p:
            return self._again(errno.EALREADY)
        self.p2p.add(pair)
        return ""

    def _disable(self, *args: str) -> str:
        pair = self._pair(args)
        if pair not in self.p2p:
            raise Refused(errno.EINVAL)
        self.p2p.discard(pair)
        return ""

    def _config(self, name: str, value: str) -> str:
        if name not in self.parameters:
            raise Refused(errno.EINVAL)
        self.parameters[name] = value
        return ""

    def _scan(self, tree: str, _adapter: str = "0") -> str:
        number = int(tree)
        if number in self.fabric.nodes:
            raise Refused(errno.EEXIST)
        have = {one.hardware.bdf: one for one in self.fabric.pool.values() if one.tree == number}
        there = {one.bdf: one for one in self.transparent}
        for bdf in sorted(set(have) - set(there)):
            self.lose(have[bdf].fdid)
            del self.fabric.pool[have[bdf].fdid]
        for bdf in sorted(set(there) - set(have)):
            entry = self.put(there[bdf], number)
            entry.available = True
            if self.parameters["autoborrow_transparent"] == "1":
                self._borrow(entry.fdid)
        return ""

    def _disinfo(self, *args: str) -> str:
        name = args[-1]
        if not name.startswith("host") or int(name[4:]) not in self.fabric.nodes:
            raise Refused(errno.ENOENT)
        return name[4:] + "\n"
