# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of smartio_tool, dis_config and disinfo.

What no public source says was decided as follows. Lenient nodes (the default) answer 0 to what is done already, strict
ones EEXIST (add), EALREADY (available, borrow, return, enable-p2p) or EISCONN (connect). ``remove`` of a device that is
available but not lent leaves it without a driver, since only ``unavailable`` is documented to rebind one.
"""

from __future__ import annotations

import errno
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from . import output
from .address import Filter, parse_fdid, parse_filter, parse_slot
from .config import Device, Tree, load_json, read_config
from .errors import ConfigError, NodeError, UsageError
from .node import Borrow, Node
from .pool import Entry
from .real_sysfs import complete

MAX_DMA_WINDOW = 65536


class Session:
    """Where a command prints, and whom it asks."""

    def write(self, text: str) -> None:
        """Text for standard output."""
        raise NotImplementedError

    def complain(self, text: str) -> None:
        """Text for standard error."""
        raise NotImplementedError

    def ask(self, question: str) -> bool:
        """Prints a question and reads the answer from standard input; anything but yes is no."""
        raise NotImplementedError


Command = Callable[[Node, List[str], Session], None]


def _number(text: str, what: str, high: int = 1 << 30) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise UsageError(f"{what} {text!r} is not a number") from None
    if not 0 <= value <= high:
        raise UsageError(f"{what} {text!r} is out of range")
    return value


def _fdid(text: str) -> int:
    try:
        return parse_fdid(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _selected(node: Node, wanted: Filter) -> List[Device]:
    return [
        device
        for bdf, device in sorted(node.devices.items())
        if wanted.matches(bdf, device.vendor_id, device.device_id, device.class_code)
    ]


def _local(node: Node, text: str) -> Device:
    """The one local device that ``lspci -s TEXT`` would list."""
    try:
        devices = _selected(node, parse_slot(text))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not devices:
        raise NodeError(errno.ENODEV, f"{text}: no such device in this node")
    if len(devices) > 1:
        raise UsageError(f"{text}: means {len(devices)} devices")
    return devices[0]


def _pooled(node: Node, device: Device) -> Entry:
    entry = node.pool.local(device.bdf)
    if entry is None:
        raise NodeError(errno.ENODEV, f"{device.bdf}: not in the pool")
    return entry


def _done_already(node: Node, number: int, what: str) -> None:
    if node.config.strict:
        raise NodeError(number, f"{what} already")


# The lending side


def _connect(node: Node, args: List[str], session: Session) -> None:
    peer = _number(args[0], "node id")
    adapter = _number(args[1], "adapter") if len(args) > 1 else 0
    if adapter >= len(node.config.node_ids):
        raise NodeError(errno.ENODEV, f"connect: there is no adapter {adapter}")
    if peer in node.config.node_ids:
        return _done_already(node, errno.EISCONN, f"connected to node {peer} (this node)")
    node.client.call(peer, "connect", {})
    with node.lock:
        if (peer, adapter) in node.connections:
            return _done_already(node, errno.EISCONN, f"connected to node {peer}")
        node.connections.add((peer, adapter))
        node.kmsg(f"connected to node {peer} on adapter {adapter}")
    return None


def _add_device(node: Node, device: Device) -> None:
    with node.lock:
        if node.pool.local(device.bdf):
            return _done_already(node, errno.EEXIST, f"{device.bdf} is in the pool")
        entry = node.pool.add(node.config.node_id, 0, device)
        node.kmsg(f"{device.bdf} is in the pool as {entry.fdid:x}")
    return None


def _make_available(node: Node, device: Device, force: bool, session: Session) -> None:
    with node.lock:
        if _pooled(node, device).available:
            return _done_already(node, errno.EALREADY, f"{device.bdf} is available")
        driver = node.host.driver(device.bdf)
    question = f"Device {device.bdf.lspci} is bound to driver {driver}. Unbind it and make it available? [y/N] "
    if driver and not force and not session.ask(question):
        raise NodeError(errno.ECANCELED, f"{device.bdf}: not confirmed, left bound to {driver}")
    with node.lock:
        entry = _pooled(node, device)
        node.host.unbind(device.bdf)
        entry.available = True
        entry.open_from = node.now() + node.faults.seconds("settle")
        node.kmsg(f"{device.bdf} is available")
    return None


def _make_unavailable(node: Node, device: Device) -> None:
    with node.lock:
        entry = _pooled(node, device)
        if entry.lease:
            raise NodeError(errno.EBUSY, f"{device.bdf}: lent to node {entry.lease.borrower[0]}")
        if not entry.available:
            raise NodeError(errno.EINVAL, f"{device.bdf}: is not available")
        entry.available = False
        node.host.bind(device.bdf)
        node.kmsg(f"{device.bdf} is unavailable")


def _add(node: Node, args: List[str], session: Session) -> None:
    _add_device(node, _local(node, args[0]))


def _remove(node: Node, args: List[str], session: Session) -> None:
    device = _local(node, args[0])
    with node.lock:
        entry = _pooled(node, device)
        if entry.lease:
            raise NodeError(errno.EBUSY, f"{device.bdf}: lent to node {entry.lease.borrower[0]}")
        node.pool.remove(entry)
        node.kmsg(f"{device.bdf} left the pool")


def _available(node: Node, args: List[str], session: Session) -> None:
    force, rest = _force(args)
    _expect("available", rest, 1, 1)
    _make_available(node, _local(node, rest[0]), force, session)


def _unavailable(node: Node, args: List[str], session: Session) -> None:
    _make_unavailable(node, _local(node, args[0]))


def _force(args: Sequence[str]) -> Tuple[bool, List[str]]:
    return "--force" in args, [arg for arg in args if arg != "--force"]


def _each(node: Node, args: Sequence[str], session: Session, verb: str, act: Callable[[Device], None]) -> None:
    """Runs something for every device of a filter; goes on after a failure and ends with the first one."""
    try:
        devices = _selected(node, parse_filter(args))
    except ValueError as error:
        raise UsageError(str(error)) from None
    first: Optional[NodeError] = None
    for device in devices:
        session.write(f"{verb} {output.lspci_line(device)}\n")
        try:
            act(device)
        except NodeError as error:
            session.complain(f"smartio_tool: {device.bdf.lspci}: {error.text}\n")
            first = first or error
    if first:
        raise first


def _add_filter(node: Node, args: List[str], session: Session) -> None:
    _each(node, args, session, "Adding", lambda device: _add_device(node, device))


def _available_filter(node: Node, args: List[str], session: Session) -> None:
    force, rest = _force(args)
    _each(node, rest, session, "Making available", lambda device: _make_available(node, device, force, session))


def _unavailable_filter(node: Node, args: List[str], session: Session) -> None:
    _each(node, args, session, "Making unavailable", lambda device: _make_unavailable(node, device))


# The pool


def _list(node: Node, args: List[str], session: Session) -> None:
    found, failures = node.remote_views()
    views = [view for _peer, view in found.values()]
    for failure in failures:
        node.kmsg(f"list: {failure.reason}")
    with node.lock:
        views += [entry.view() for entry in node.pool.entries()]
    config = node.config
    for view in sorted(views, key=lambda one: one.fdid):
        session.write(output.list_line(view, config.generation, config.borrowed_word) + "\n")


def _alive(node: Node, fdid: int) -> Optional[Borrow]:
    """The borrow of a device, if it is borrowed here; NodeError EIO while its lender cannot be reached."""
    with node.lock:
        borrow = node.borrows.get(fdid)
        if borrow and not borrow.alive:
            raise NodeError(errno.EIO, f"{fdid:x}: node {borrow.origin}, which lent it, cannot be reached")
        return borrow


def _show(node: Node, args: List[str], session: Session) -> None:
    fdid = _fdid(args[0])
    borrow = _alive(node, fdid)
    _peer, view = node.find(fdid)
    config = node.config
    session.write(output.show(view, config.node_ids, 1 if borrow and borrow.shown else 0, config.borrowed_word))


def _lspci(node: Node, args: List[str], session: Session) -> None:
    fdid = _fdid(args[0])
    borrow = _alive(node, fdid)
    peer, view = node.find(fdid)
    bdf = view.device.bdf
    driver = ""
    with node.lock:
        if borrow and borrow.shown:
            driver = node.driver(borrow)
        elif not peer and bdf in node.devices:
            driver = node.host.driver(bdf)
    session.write(output.lspci(view.device, driver, args[1:]))


def _scan(node: Node, args: List[str], session: Session) -> None:
    node_id = _number(args[0], "node id")
    adapter = _number(args[1], "adapter") if len(args) > 1 else 0
    if not node_id or node_id in node.config.node_ids or node.client.knows(node_id):
        raise NodeError(errno.EEXIST, f"scan: node id {node_id} belongs to a node of the cluster")
    if adapter >= len(node.config.node_ids):
        raise NodeError(errno.ENODEV, f"scan: there is no adapter {adapter}")
    wanted = {device.bdf: device for tree in _trees(node) if tree.adapter == adapter for device in tree.devices}
    fresh = _rescan(node, node_id, adapter, list(wanted.values()))
    if node.parameters["autoborrow_transparent"]:
        for entry in fresh:
            node.borrow(entry.fdid)


def _trees(node: Node) -> Tuple[Tree, ...]:
    """The transparent trees as the configuration file has them now: that is where changes come from."""
    try:
        return read_config(load_json(node.config_path), complete).transparent
    except ConfigError as error:
        raise NodeError(errno.EIO, f"scan: {error}") from None


def _rescan(node: Node, node_id: int, adapter: int, wanted: Sequence[Device]) -> List[Entry]:
    """Brings the pool in line with a tree; the entries that are new."""
    with node.lock:
        have = node.pool.tree(node_id)
        others = {entry.node_id for entry in node.pool.entries() if entry.transparent and entry.adapter == adapter}
        if any(entry.adapter != adapter for entry in have) or others - {node_id}:
            raise NodeError(errno.EEXIST, f"scan: node id {node_id} and adapter {adapter} were paired otherwise")
        for entry in have:
            if entry.device not in wanted:
                node.withdraw(entry)
                node.kmsg(f"scan: {entry.fdid:x} is gone")
        known = {entry.device for entry in have}
        fresh = [node.pool.add(node_id, adapter, device, True) for device in wanted if device not in known]
        for entry in fresh:
            entry.available = True
            node.kmsg(f"scan: found {entry.fdid:x}")
        return fresh


# The borrowing side


def _print_borrow(node: Node, borrow: Borrow, session: Session) -> None:
    device = borrow.view.device
    with node.lock:
        # The driver is bound in a moment when effects are delayed; the tool tells of it all the same.
        function = node.tree.function(borrow.vdev) if node.tree.has(borrow.vdev) else ""
    controller = function if device.kind == "nvme" else ""
    session.write(output.borrowed(device, borrow.vdev, device.driver, controller))


def _borrow(node: Node, args: List[str], session: Session) -> None:
    fdid = _fdid(args[0])
    if len(args) > 1 and _number(args[1], "DMA window size", 1 << 62) > MAX_DMA_WINDOW:
        raise NodeError(errno.ENOMEM, f"{fdid:x}: no DMA window of {args[1]}")
    borrow = _alive(node, fdid)
    if borrow:
        _done_already(node, errno.EALREADY, f"{fdid:x} is borrowed here")
    else:
        borrow = node.borrow(fdid)
    _print_borrow(node, borrow, session)


def _return(node: Node, args: List[str], session: Session) -> None:
    fdid = _fdid(args[0])
    with node.lock:
        borrow = node.borrows.get(fdid)
        settle = node.faults.seconds("settle")
        if borrow and borrow.returning:
            return _done_already(node, errno.EALREADY, f"{fdid:x} is being returned")
        if borrow and settle:
            borrow.returning = True
            held = borrow
            return node.later(settle, lambda: node.give_back(held))
    if borrow is None:
        raise NodeError(errno.EINVAL, f"{fdid:x}: is not borrowed here")
    return node.give_back(borrow)


def _get_vdev(node: Node, args: List[str], session: Session) -> None:
    fdid = _fdid(args[0])
    borrow = _alive(node, fdid)
    if borrow is None or not borrow.shown:
        raise NodeError(errno.ENODEV, f"{fdid:x}: has no virtual device here")
    session.write(f"{borrow.vdev}\n")


def _p2p_arguments(node: Node, args: List[str]) -> Tuple[Borrow, Borrow, int]:
    borrows = []
    for text in args[:2]:
        fdid = _fdid(text)
        borrow = _alive(node, fdid)
        if borrow is None:
            raise NodeError(errno.EINVAL, f"{fdid:x}: is not borrowed here")
        borrows.append(borrow)
    return borrows[0], borrows[1], _number(args[2], "BAR", 5) if len(args) > 2 else -1


def _enable_p2p(node: Node, args: List[str], session: Session) -> None:
    source, destination, number = _p2p_arguments(node, args)
    owners = (source.origin, destination.origin)
    if owners[0] != owners[1] and not _connected(node, source, destination):
        raise NodeError(errno.ENOTCONN, f"node {source.view.node_id} has no connection to {destination.view.node_id}")
    pair = (source.view.fdid, destination.view.fdid, number)
    with node.lock:
        if pair in node.p2p:
            return _done_already(node, errno.EALREADY, f"p2p from {pair[0]:x} to {pair[1]:x} is enabled")
        node.p2p.add(pair)
        node.kmsg(f"p2p from {pair[0]:x} to {pair[1]:x} enabled")
    return None


def _connected(node: Node, source: Borrow, destination: Borrow) -> bool:
    """Whether the lender of one device has a connection to that of the other."""
    target = destination.origin or node.config.node_id
    if source.origin:
        return bool(node.client.call(source.origin, "connected", {"node_id": target})["connected"])
    with node.lock:
        return node.visible_to([target])


def _disable_p2p(node: Node, args: List[str], session: Session) -> None:
    source, destination, number = _p2p_arguments(node, args)
    pair = (source.view.fdid, destination.view.fdid, number)
    with node.lock:
        if pair not in node.p2p:
            raise NodeError(errno.EINVAL, f"p2p from {pair[0]:x} to {pair[1]:x} is not enabled")
        node.p2p.discard(pair)
        node.kmsg(f"p2p from {pair[0]:x} to {pair[1]:x} disabled")


def _config(node: Node, args: List[str], session: Session) -> None:
    name, value = args
    if name not in node.parameters:
        raise UsageError(f"config: unknown parameter {name!r}")
    number = _number(value, name, 1)
    with node.lock:
        node.set_parameter(name, number)
        node.kmsg(f"{name} is {number}")


_COMMANDS: Dict[str, Tuple[Command, str, int, int]] = {
    # name: (function, arguments, how many at least, how many at most)
    "connect": (_connect, "<NODEID> [ADAPTER]", 1, 2),
    "add": (_add, "<BDF>", 1, 1),
    "remove": (_remove, "<BDF>", 1, 1),
    "available": (_available, "[--force] <BDF>", 1, 2),
    "unavailable": (_unavailable, "<BDF>", 1, 1),
    "add-filter": (_add_filter, "<filter>", 1, 8),
    "available-filter": (_available_filter, "<filter>", 1, 8),
    "unavailable-filter": (_unavailable_filter, "<filter>", 1, 8),
    "list": (_list, "", 0, 0),
    "lspci": (_lspci, "<fdid> [lspci args]", 1, 8),
    "show": (_show, "<fdid>", 1, 1),
    "scan": (_scan, "<node id> [adapter]", 1, 2),
    "borrow": (_borrow, "<fdid> [dma window size]", 1, 2),
    "return": (_return, "<fdid>", 1, 1),
    "enable-p2p": (_enable_p2p, "<source-device-fdid> <destination-device-fdid> [BAR]", 2, 3),
    "disable-p2p": (_disable_p2p, "<source-device-fdid> <destination-device-fdid> [BAR]", 2, 3),
    "get-vdev": (_get_vdev, "<fdid>", 1, 1),
    "config": (_config, "<CONFIG> <VALUE>", 2, 2),
}


def _expect(command: str, args: Sequence[str], low: int, high: int) -> None:
    if not low <= len(args) <= high:
        raise UsageError(f"Usage: smartio_tool {command} {_COMMANDS[command][1]}")


def usage() -> str:
    """The text of ``smartio_tool --help``."""
    lines = "".join(f"  {name} {entry[1]}".rstrip() + "\n" for name, entry in _COMMANDS.items())
    return f"Usage: smartio_tool <command> [options...]\n\nCommands:\n{lines}"


def smartio_tool(node: Node, args: List[str], session: Session) -> None:
    """Runs one command line of smartio_tool; NodeError when it fails."""
    if args and args[0] in ("-h", "--help", "help"):
        session.write(usage())
        return
    if not args:
        raise UsageError(usage().rstrip())
    if args[0] not in _COMMANDS:
        raise UsageError(f"unknown command {args[0]!r}")
    function, _text, low, high = _COMMANDS[args[0]]
    _expect(args[0], args[1:], low, high)
    if node.faults.variant("ask", args[0]) is not None and not session.ask("Are you sure? [y/N] "):
        raise NodeError(errno.ECANCELED, f"{args[0]}: not confirmed (fault)")
    function(node, args[1:], session)


def dis_config(node: Node, args: List[str], session: Session) -> None:
    """``dis_config -gn``: the node id of every card; cards count from 1."""
    if args != ["-gn"]:
        raise UsageError("Usage: dis_config -gn")
    for card, node_id in enumerate(node.config.node_ids, 1):
        session.write(f"Card {card} - NodeId: {node_id:2d}\n")


def disinfo(node: Node, args: List[str], session: Session) -> None:
    """``disinfo get-nodeid -hostname H``: the node id of a host of the cluster."""
    if len(args) != 3 or args[:2] != ["get-nodeid", "-hostname"]:
        raise UsageError("Usage: disinfo get-nodeid -hostname <HOSTNAME>")
    names = {peer.name: peer.node_id for peer in node.config.peers if peer.name}
    names[node.config.name] = node.config.node_id
    if args[2] not in names:
        raise NodeError(errno.ENOENT, f"disinfo: no host {args[2]!r} in the cluster")
    session.write(f"{names[args[2]]}\n")


PROGRAMS: Dict[str, Command] = {"smartio_tool": smartio_tool, "dis_config": dis_config, "disinfo": disinfo}
