# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a PCI device is in use on this node, and by what. Data on a disk alone is not use.

Each kind of reason is one function in ``_KINDS``: it is given a device with everything above it and what was read from
proc, and yields findings. Nothing is read that no device needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, Mapping, Optional, Set, Tuple, Union

from .address import printable
from .proc import Mount, Network, Problem, Storage, Swap, local_addresses, read_network, read_storage, ssh_connection
from .sysfs import Entry, PciDevice, Sysfs, SysfsError, Tree

_SYSTEM_MOUNTS = ("/", "/boot", "/boot/efi", "/efi")
_DOLPHIN = "11c8"
_BRIDGES = "06"


@dataclass(frozen=True)
class Usage:
    """Why a device must be left alone: ``reasons`` that force may override, ``never`` what not even force may."""

    reasons: Tuple[str, ...] = ()
    never: Tuple[str, ...] = ()

    @property
    def all(self) -> Tuple[str, ...]:
        """Every reason, the ones that cannot be overridden first."""
        return self.never + self.reasons


@dataclass(frozen=True)
class _Block:
    """A disk or partition of the device, or what is built on one (dm, md, bcache): then ``below`` is its name."""

    entry: Entry
    peers: Tuple[Entry, ...] = ()  # the other members of its btrfs
    below: Optional[str] = None

    @property
    def entries(self) -> Tuple[Entry, ...]:
        return (self.entry,) + self.peers

    def __str__(self) -> str:
        return self.entry.name if self.below is None else f"{self.entry.name} on {self.below}"


@dataclass(frozen=True)
class _Interface:
    """An interface of the device (``own``), or one above it (bond, bridge, VLAN): then ``below`` is its name."""

    entry: Entry
    own: str
    below: Optional[str] = None


@dataclass(frozen=True)
class _Target:
    """A device with everything that is built on it."""

    device: PciDevice
    tree: Tree
    blocks: Tuple[_Block, ...]
    interfaces: Tuple[_Interface, ...]
    problem: Optional[str] = None


@dataclass(frozen=True)
class _Finding:
    text: str
    never: bool = False


class _Node:
    """What was read from proc, each part when the first device needs it."""

    def __init__(
        self, sysfs: Sysfs, proc: str, connection: Optional[str], addresses: Callable[[], Mapping[str, str]]
    ) -> None:
        self.sysfs = sysfs
        self._proc = proc
        self._connection = connection
        self._addresses = addresses
        self._storage: Optional[Storage] = None
        self._network: Optional[Network] = None

    @property
    def storage(self) -> Storage:
        if self._storage is None:
            self._storage = read_storage(self._proc)
        return self._storage

    @property
    def network(self) -> Network:
        if self._network is None:
            connection = self._connection
            if connection is None:
                connection = ssh_connection(self._proc, os.environ)
            self._network = read_network(self._proc, connection, self._addresses)
        return self._network


def observe(
    bdfs: Iterable[str],
    sysfs: Sysfs,
    proc: str = "/proc",
    connection: Optional[str] = None,
    addresses: Callable[[], Mapping[str, str]] = local_addresses,
) -> Dict[str, Usage]:
    """What uses each of the devices (full BDFs), in one pass over proc.

    ``connection`` is the text of SSH_CONNECTION, ``""`` for none; by default it is taken from the environment of this
    process or of an ancestor. ``addresses`` tells the node's IPv4 addresses, address to interface.
    """
    node = _Node(sysfs, proc, connection, addresses)
    return {bdf: _usage(_target(bdf, sysfs), node) for bdf in bdfs}


def _usage(target: _Target, node: _Node) -> Usage:
    findings = [finding for kind in _KINDS for finding in kind(target, node)]
    return Usage(
        reasons=tuple(dict.fromkeys(printable(finding.text) for finding in findings if not finding.never)),
        never=tuple(dict.fromkeys(printable(finding.text) for finding in findings if finding.never)),
    )


def _target(bdf: str, sysfs: Sysfs) -> _Target:
    device = PciDevice(bdf)
    try:
        device = sysfs.device(bdf)
        tree = sysfs.tree(bdf) if device.class_code.startswith(_BRIDGES) else _whole_tree(bdf, sysfs, set())
        return _Target(device, tree, tuple(_with_holders(tree, sysfs)), tuple(_with_uppers(tree, sysfs)))
    except SysfsError as error:
        return _Target(device, Tree(), (), (), problem=error.message)


def _whole_tree(bdf: str, sysfs: Sysfs, seen: Set[str]) -> Tree:
    """The tree of a device together with those of the PCI devices behind it (a VMD controller has drives there)."""
    seen.add(bdf)
    trees = [sysfs.tree(bdf)]
    trees += [_whole_tree(child, sysfs, seen) for child in trees[0].children if child not in seen]
    return Tree(
        interfaces=tuple(entry for tree in trees for entry in tree.interfaces),
        blocks=tuple(entry for tree in trees for entry in tree.blocks),
        foreign_interfaces=any(tree.foreign_interfaces for tree in trees),
    )


def _with_holders(tree: Tree, sysfs: Sysfs) -> Iterator[_Block]:
    queue = [_Block(entry, tuple(sysfs.btrfs_peers(entry))) for entry in tree.blocks]
    seen = {entry.name for entry in tree.blocks}
    while queue:
        block = queue.pop(0)
        yield block
        for holder in sysfs.holders(block.entry):
            if holder not in seen:
                disk = sysfs.block(holder)
                family = [disk] + sysfs.partitions(disk)
                seen.update(entry.name for entry in family)
                queue += [_Block(entry, tuple(sysfs.btrfs_peers(entry)), block.entry.name) for entry in family]


def _with_uppers(tree: Tree, sysfs: Sysfs) -> Iterator[_Interface]:
    queue = [_Interface(entry, own=entry.name) for entry in tree.interfaces]
    seen = {entry.name for entry in tree.interfaces}
    while queue:
        interface = queue.pop(0)
        yield interface
        for upper in sysfs.uppers(interface.entry):
            if upper not in seen:
                seen.add(upper)
                queue.append(_Interface(sysfs.interface(upper), own=interface.own, below=interface.entry.name))


def _kind_of_device(target: _Target, node: _Node) -> Iterator[_Finding]:
    device = target.device
    if device.class_code.startswith(_BRIDGES):
        yield _Finding("is a PCI bridge", never=True)
    if _DOLPHIN in (device.vendor_id, device.subsystem_vendor_id) or (device.driver or "").startswith("dis_"):
        yield _Finding("is the fabric's own adapter", never=True)


def _unseen(target: _Target, node: _Node) -> Iterator[_Finding]:
    """What could not be looked at, where it concerns this device.

    What is there and cannot be read may hide that the device must never be touched: force does not override it.
    """
    problems = [Problem(target.problem)] if target.problem else []
    problems += node.storage.problems if target.blocks else ()
    problems += node.network.problems if target.interfaces else ()
    yield from (_Finding(problem.text, never=not problem.missing) for problem in problems)
    if target.tree.foreign_interfaces:
        yield _Finding("its network interface is in another network namespace")


def _mounts_and_holders(target: _Target, node: _Node) -> Iterator[_Finding]:
    for block in target.blocks:
        mounts = [mount for mount in node.storage.mounts if _is_on(mount, block)]
        points = list(dict.fromkeys(mount.point for mount in mounts))
        yield from (_Finding(f"holds {point} ({block})", never=True) for point in points if point in _SYSTEM_MOUNTS)
        mounted = [f"mounted at {point}" for point in points if point not in _SYSTEM_MOUNTS]
        if block.below is None:
            yield from (_Finding(f"{text} ({block})") for text in mounted)
        else:
            yield _Finding(", ".join([f"held by {block.entry.name} ({block.below})"] + mounted))


def _swap(target: _Target, node: _Node) -> Iterator[_Finding]:
    for block in target.blocks:
        for swap in node.storage.swaps:
            if _is_on(swap, block):
                where = f"{swap.file} on {block}" if swap.file else str(block)
                yield _Finding(f"active swap ({where})", never=True)


def _is_on(found: Union[Mount, Swap], block: _Block) -> bool:
    """Whether it is on this block device, or on another member of its btrfs."""
    return any(_is_at(found, entry) for entry in block.entries)


def _is_at(found: Union[Mount, Swap], entry: Entry) -> bool:
    """Whether this is the block device: by number, and by name only where one side does not know a number."""
    if found.number and entry.number:
        return found.number == entry.number
    return found.name == entry.name


def _network(target: _Target, node: _Node) -> Iterator[_Finding]:
    """Interfaces that are up, routed, or part of another one."""
    for interface in target.interfaces:
        name, own = interface.entry.name, interface.own
        through = "" if interface.below is None else f" (through {name})"
        if interface.below is not None:
            yield _Finding(f"{interface.below} is in {name}")
        elif node.sysfs.is_up(interface.entry):
            yield _Finding(f"{name} is up")
        if name in node.network.default:
            yield _Finding(f"{own} carries the default route{through}", never=True)
        elif name in node.network.routed:
            yield _Finding(f"{own} carries a route{through}")
        if name in node.network.connection:
            yield _Finding(f"{own} carries this connection{through}", never=True)


def _virtual_functions(target: _Target, node: _Node) -> Iterator[_Finding]:
    count = target.device.numvfs
    if count:
        yield _Finding("1 virtual function is enabled" if count == 1 else f"{count} virtual functions are enabled")


_KINDS: Tuple[Callable[[_Target, _Node], Iterator[_Finding]], ...] = (
    _kind_of_device,
    _unseen,
    _mounts_and_holders,
    _swap,
    _network,
    _virtual_functions,
)
