# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A PCI device with everything that is built on it: disks and what holds them, interfaces and what they are part of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Iterator, Optional, Set, Tuple, Union

from .proc import Mount, Swap, block_name, block_number, mount_of, nvidia_number
from .processes import block_key, char_key
from .sysfs import Entry, PciDevice, Sysfs, SysfsError, Tree

BRIDGES = "06"


@dataclass(frozen=True)
class Place:
    """A block device that a path leads to, by "major:minor" and name, each ``""`` where unknown."""

    number: str
    name: str


@dataclass(frozen=True)
class Block:
    """A disk or partition of the device, or what is built on one (dm, md, bcache, loop): then ``below`` is its name."""

    entry: Entry
    peers: Tuple[Entry, ...] = ()  # the other members of its btrfs
    below: Optional[str] = None

    def has(self, found: Union[Mount, Swap, Place]) -> bool:
        """Whether it is on this block device, or on another member of its btrfs."""
        return any(_is_at(found, entry) for entry in (self.entry,) + self.peers)

    def __str__(self) -> str:
        return self.entry.name if self.below is None else f"{self.entry.name} on {self.below}"


@dataclass(frozen=True)
class Interface:
    """An interface of the device (``own``), or one above it (bond, bridge, VLAN): then ``below`` is its name."""

    entry: Entry
    own: str
    below: Optional[str] = None


@dataclass(frozen=True)
class Target:
    """A device with everything that is built on it, and with its virtual functions.

    ``group`` is the node through which VFIO hands it to processes, where a driver of VFIO has it; ``hidden`` are the
    numbers of character devices that are not in its tree.
    """

    device: PciDevice
    tree: Tree = field(default_factory=Tree)
    blocks: Tuple[Block, ...] = ()
    interfaces: Tuple[Interface, ...] = ()
    functions: Tuple[Target, ...] = ()
    group: Optional[Entry] = None
    hidden: Tuple[str, ...] = ()
    problem: Optional[str] = None

    @property
    def nodes(self) -> Tuple[str, ...]:
        """What a process may have open of it, as keys of Processes.opened."""
        chars = [entry.number for entry in self.tree.chars] + [*self.hidden]
        chars += [self.group.number] if self.group else []
        blocks = [block_key(entry.number) for entry in self.tree.blocks if entry.number]
        return (*blocks, *map(char_key, chars))


def target(bdf: str, sysfs: Sysfs, proc: str, mounts: Callable[[], Iterable[Mount]]) -> Target:
    """Look at one device. ``mounts`` is only asked where it matters which loop devices are on it."""
    found = _alone(bdf, sysfs, proc, mounts)
    if not found.device.numvfs:
        return found
    try:
        names = sysfs.virtual_functions(bdf)
    except SysfsError as error:
        return replace(found, problem=error.message)
    return replace(found, functions=tuple(_alone(name, sysfs, proc, mounts) for name in names))


def _alone(bdf: str, sysfs: Sysfs, proc: str, mounts: Callable[[], Iterable[Mount]]) -> Target:
    device = PciDevice(bdf)
    try:
        device = sysfs.device(bdf)
        tree = sysfs.tree(bdf) if device.class_code.startswith(BRIDGES) else _whole_tree(bdf, sysfs, set())
        number = nvidia_number(proc, device.bdf) if device.driver == "nvidia" else ""
        return Target(
            device,
            tree,
            blocks=tuple(_with_holders(tree, sysfs, mounts)),
            interfaces=tuple(_with_uppers(tree, sysfs)),
            group=sysfs.vfio_group(device) if "vfio" in (device.driver or "") else None,
            hidden=(number,) if number else (),
        )
    except SysfsError as error:
        return Target(device, problem=error.message)


def place_of(path: str) -> Place:
    """What a path below /dev leads to."""
    return Place(block_number(path), block_name(path))


def _is_at(found: Union[Mount, Swap, Place], entry: Entry) -> bool:
    """Whether this is the block device: by number, and by name only where one side does not know a number."""
    if found.number and entry.number:
        return found.number == entry.number
    return found.name == entry.name


def _whole_tree(bdf: str, sysfs: Sysfs, seen: Set[str]) -> Tree:
    """The tree of a device together with those of the PCI devices behind it (a VMD controller has drives there)."""
    seen.add(bdf)
    trees = [sysfs.tree(bdf)]
    trees += [_whole_tree(child, sysfs, seen) for child in trees[0].children if child not in seen]
    return replace(
        trees[0],
        interfaces=tuple(entry for tree in trees for entry in tree.interfaces),
        blocks=tuple(entry for tree in trees for entry in tree.blocks),
        chars=tuple(entry for tree in trees for entry in tree.chars),
        foreign_interfaces=any(tree.foreign_interfaces for tree in trees),
    )


def _with_holders(tree: Tree, sysfs: Sysfs, mounts: Callable[[], Iterable[Mount]]) -> Iterator[Block]:
    queue = [Block(entry, tuple(sysfs.btrfs_peers(entry))) for entry in tree.blocks]
    seen = {entry.name for entry in tree.blocks}
    loops = [(name, _below_loop(path, mounts)) for name, path in sysfs.loops()] if queue else []
    while queue:
        block = queue.pop(0)
        yield block
        for holder in [*sysfs.holders(block.entry), *(name for name, place in loops if block.has(place))]:
            if holder not in seen:
                disk = sysfs.block(holder)
                family = [disk] + sysfs.partitions(disk)
                seen.update(entry.name for entry in family)
                queue += [Block(entry, tuple(sysfs.btrfs_peers(entry)), block.entry.name) for entry in family]


def _below_loop(path: str, mounts: Callable[[], Iterable[Mount]]) -> Union[Mount, Place]:
    """What a loop device is on: a block device, or the one that its file is on."""
    place = place_of(path)
    return place if place.number else mount_of(path, mounts()) or place


def _with_uppers(tree: Tree, sysfs: Sysfs) -> Iterator[Interface]:
    queue = [Interface(entry, own=entry.name) for entry in tree.interfaces]
    seen = {entry.name for entry in tree.interfaces}
    while queue:
        interface = queue.pop(0)
        yield interface
        for upper in sysfs.uppers(interface.entry):
            if upper not in seen:
                seen.add(upper)
                queue.append(Interface(sysfs.interface(upper), own=interface.own, below=interface.entry.name))
