# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a PCI device is in use on this node, and by what. Data on a disk alone is not use.

Each kind of reason is one function in ``_KINDS``: it is given a device with everything above it and what was read of
the node, and yields findings. Nothing is read that no device needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from .._plan import SharingError
from .address import printable
from .claims import is_claimed, zfs_pool
from .proc import Mount, Network, Problem, Storage, Swap, local_addresses, read_network, read_storage, ssh_connection
from .processes import Processes, in_time, read_processes
from .sysfs import Entry, Export, Sysfs, SysfsError
from .targets import BRIDGES, Block, Target, place_of, target

_SYSTEM_MOUNTS = ("/", "/boot", "/boot/efi", "/efi")
_DOLPHIN = "11c8"
_NAMED = 5  # processes that have the same device open
_CLAIM_SECONDS = 5.0


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
class Ending:
    """What check mode does not count as use, since it will have ended: ``mounts`` by mount point, processes by pid."""

    mounts: FrozenSet[str] = frozenset()
    pids: FrozenSet[int] = frozenset()

    def has(self, mount: Mount) -> bool:
        """Whether a mount will be gone. One that only other namespaces see may stay."""
        return mount.point in self.mounts and not mount.owner

    def without(self, names: Iterable[str]) -> List[str]:
        """Processes, named as in ``fio (pid 812)``, that will still run."""
        ends = tuple(f" (pid {pid})" for pid in self.pids)
        return [name for name in names if not name.endswith(ends)]


_NOTHING_ENDS = Ending()

# Of a device that went away, or came anew, nothing that was read holds.
_MOVED = Usage(never=("went away or came anew while it was looked at; run again",))


def must_not_touch(bdf: str, never: Sequence[str]) -> SharingError:
    """The error for a device that not even force may touch."""
    return SharingError(f"{bdf} must not be touched: {'; '.join(never)}; refused even with force", in_use=list(never))


def in_use(bdf: str, reasons: Sequence[str], forceable: bool = True) -> SharingError:
    """The error for a device that only force may touch, or nobody where the caller has no such option."""
    advice = "free it first, or give force: true" if forceable else "free it first"
    return SharingError(f"{bdf} is in use: {'; '.join(reasons)}; {advice}", in_use=list(reasons))


@dataclass(frozen=True)
class _Finding:
    text: str
    never: bool = False


class _Node:
    """What was read of the node, each part when the first device needs it."""

    def __init__(
        self,
        sysfs: Sysfs,
        proc: str,
        connection: Optional[str],
        addresses: Callable[[], Mapping[str, str]],
        ending: Ending,
    ) -> None:
        self.sysfs = sysfs
        self.ending = ending
        self.wanted: Sequence[str] = ()
        self._proc = proc
        self._connection = connection
        self._addresses = addresses

    @cached_property
    def storage(self) -> Storage:
        return read_storage(self._proc)

    @cached_property
    def network(self) -> Network:
        connection = self._connection
        if connection is None:
            connection = ssh_connection(self._proc, os.environ)
        return read_network(self._proc, connection, self._addresses)

    @cached_property
    def processes(self) -> Processes:
        return read_processes(self._proc, self.wanted, self.storage.mounts)

    @cached_property
    def exports(self) -> List[Export]:
        return self.sysfs.exports()

    @property
    def mounts(self) -> List[Mount]:
        return [*self.storage.mounts, *self.processes.mounts]


def observe(
    bdfs: Iterable[str],
    sysfs: Sysfs,
    proc: str = "/proc",
    connection: Optional[str] = None,
    addresses: Callable[[], Mapping[str, str]] = local_addresses,
    ending: Ending = _NOTHING_ENDS,
) -> Dict[str, Usage]:
    """What uses each of the devices (full BDFs), in one pass over proc.

    ``connection`` is the text of SSH_CONNECTION, ``""`` for none; by default it is taken from the environment of this
    process or of an ancestor. ``addresses`` tells the node's IPv4 addresses, address to interface.
    """
    node = _Node(sysfs, proc, connection, addresses, ending)
    before = {bdf: _inode(bdf, sysfs) for bdf in bdfs}
    targets = {bdf: target(bdf, sysfs, proc, lambda: node.storage.mounts) for bdf in before}
    node.wanted = [key for whole in targets.values() for one in (whole, *whole.functions) for key in one.nodes]
    found = {bdf: _usage(one, node) for bdf, one in targets.items()}
    return {bdf: usage if _inode(bdf, sysfs) == before[bdf] else _MOVED for bdf, usage in found.items()}


def _inode(bdf: str, sysfs: Sysfs) -> Optional[int]:
    """Of the device's folder, which is another one for each appearance; what cannot be told is found elsewhere."""
    try:
        return sysfs.inode(bdf)
    except SysfsError:
        return None


def _usage(target: Target, node: _Node) -> Usage:
    findings = [finding for kind in _KINDS for finding in _findings(kind, target, node)]
    return Usage(
        reasons=tuple(dict.fromkeys(printable(finding.text) for finding in findings if not finding.never)),
        never=tuple(dict.fromkeys(printable(finding.text) for finding in findings if finding.never)),
    )


def _findings(kind: Callable[[Target, _Node], Iterator[_Finding]], target: Target, node: _Node) -> Iterator[_Finding]:
    """Of one kind. What is there and cannot be read may hide that the device must never be touched."""
    try:
        yield from kind(target, node)
    except SysfsError as error:
        yield _Finding(error.message, never=True)


def _kind_of_device(target: Target, node: _Node) -> Iterator[_Finding]:
    device = target.device
    if device.class_code.startswith(BRIDGES):
        yield _Finding("is a PCI bridge", never=True)
    if _DOLPHIN in (device.vendor_id, device.subsystem_vendor_id) or (device.driver or "").startswith("dis_"):
        yield _Finding("is the fabric's own adapter", never=True)


def _unseen(target: Target, node: _Node) -> Iterator[_Finding]:
    """What could not be looked at, where it concerns this device.

    What is there and cannot be read may hide that the device must never be touched: force does not override it.
    """
    problems = [Problem(target.problem)] if target.problem else []
    problems += node.storage.problems if target.blocks else ()
    problems += node.network.problems if target.interfaces else ()
    yield from (_Finding(problem.text, never=not problem.missing) for problem in problems)
    if target.tree.foreign_interfaces:
        yield _Finding("its network interface is in another network namespace")


def _mounts_and_holders(target: Target, node: _Node) -> Iterator[_Finding]:
    for block in target.blocks:
        mounts = [mount for mount in node.mounts if block.has(mount)]
        yield from (_Finding(f"holds {point} ({block})", never=True) for point in _system(mounts))
        staying = [mount for mount in mounts if not _is_system(mount) and not node.ending.has(mount)]
        mounted = list(dict.fromkeys(map(_mounted, staying)))
        if block.below is None:
            yield from (_Finding(f"{text} ({block})") for text in mounted)
        else:
            yield _Finding(", ".join([f"held by {block.entry.name} ({block.below})"] + mounted))
        if node.sysfs.is_bcache(block.entry) and not node.sysfs.holders(block.entry):
            yield _Finding(f"held by bcache ({block})")


def _is_system(mount: Mount) -> bool:
    return mount.point in _SYSTEM_MOUNTS and not mount.owner


def _system(mounts: Iterable[Mount]) -> List[str]:
    return list(dict.fromkeys(mount.point for mount in mounts if _is_system(mount)))


def _mounted(mount: Mount) -> str:
    return f"mounted at {mount.point}" + (f" as {mount.owner} sees it" if mount.owner else "")


def _swap(target: Target, node: _Node) -> Iterator[_Finding]:
    for block in target.blocks:
        for swap in node.storage.swaps:
            if block.has(swap):
                where = f"{swap.file} on {block}" if swap.file else str(block)
                yield _Finding(f"active swap ({where})", never=True)


def _exports(target: Target, node: _Node) -> Iterator[_Finding]:
    """What the kernel's own NVMe target serves to others: a disk, what is built on one, or a whole controller."""
    if not target.blocks and not target.tree.chars:
        return
    try:
        exports = node.exports
    except SysfsError as error:
        yield _Finding(error.message)
        return
    for export in exports:
        place = place_of(export.path)
        names = [str(block) for block in target.blocks if block.has(place)]
        names += [char.name for char in target.tree.chars if char.name == place.name]
        yield from (_Finding(f"exported as {export.nqn} ({name})") for name in names)


def _claims(target: Target, node: _Node) -> Iterator[_Finding]:
    """Disks that somebody has claimed, where it is not known otherwise who has."""
    if not target.blocks or not node.sysfs.is_kernels():
        return
    findings: List[_Finding] = []
    if not in_time(lambda: findings.extend(_claimed(target, node)), _CLAIM_SECONDS):
        yield _Finding(f"could not see within {_CLAIM_SECONDS:g} seconds whether its disks are claimed")
    yield from findings


def _claimed(target: Target, node: _Node) -> Iterator[_Finding]:
    held = {block.below for block in target.blocks}
    own = [block for block in target.blocks if block.below is None]
    known = [block for block in own if block.entry.name in held or any(map(block.has, _known_users(node)))]
    settled = [block.entry for block in known]
    for block in reversed(own):  # partitions come after their disk
        if any(_overlap(block.entry, entry) for entry in settled):
            continue
        path = f"/dev/{block.entry.name.replace('!', '/')}"
        try:
            claimed = is_claimed(path, block.entry.number)
        except OSError as error:
            yield _Finding(f"could not open {path} to see whether it is claimed: {error.strerror}")
            continue
        if claimed:
            settled.append(block.entry)
            yield from _claimed_by(block, zfs_pool(path), node)


def _known_users(node: _Node) -> Iterator[Union[Mount, Swap]]:
    yield from node.mounts
    yield from node.storage.swaps


def _overlap(one: Entry, other: Entry) -> bool:
    """Whether one is the other, or a partition of it."""
    return any(
        inner == outer or inner.startswith(outer + "/")
        for inner, outer in ((one.folder, other.folder), (other.folder, one.folder))
    )


def _claimed_by(block: Block, pool: Optional[str], node: _Node) -> Iterator[_Finding]:
    if pool is None:
        yield _Finding(f"claimed for exclusive use ({block})")
        return
    mounts = [mount for mount in node.mounts if mount.pool == pool]
    yield from (_Finding(f"holds {point} ({block})", never=True) for point in _system(mounts))
    mounted = list(dict.fromkeys(_mounted(mount) for mount in mounts if not _is_system(mount)))
    yield _Finding(", ".join([f"held by the ZFS pool {pool} ({block})"] + mounted))


def _network(target: Target, node: _Node) -> Iterator[_Finding]:
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


def _open_files(target: Target, node: _Node) -> Iterator[_Finding]:
    """Processes that have it open. Where it has no nodes there is nothing that they could have."""
    if not target.nodes:
        return
    found = node.processes
    names = [name for key in target.nodes for name in found.opened.get(key, ())]
    names = node.ending.without(dict.fromkeys([*names, *found.vfio.get(target.device.bdf, ())]))
    yield from (_Finding(f"open by {name}") for name in names[:_NAMED])
    if len(names) > _NAMED:
        yield _Finding(f"open by {len(names) - _NAMED} more processes")
    if target.group is not None:
        untold = node.ending.without(found.untold)
        yield from (_Finding(f"may be open by {name}, which was handed a device of VFIO") for name in untold)
    yield from (_Finding(problem) for problem in found.problems)


def _virtual_functions(target: Target, node: _Node) -> Iterator[_Finding]:
    """They go with their device."""
    count = target.device.numvfs
    if count:
        yield _Finding("1 virtual function is enabled" if count == 1 else f"{count} virtual functions are enabled")
    for function in target.functions:
        used = _usage(function, node)
        yield from (_Finding(f"{function.device.bdf}: {text}", never=True) for text in used.never)
        yield from (_Finding(f"{function.device.bdf}: {text}") for text in used.reasons)


_KINDS: Tuple[Callable[[Target, _Node], Iterator[_Finding]], ...] = (
    _kind_of_device,
    _unseen,
    _mounts_and_holders,
    _swap,
    _exports,
    _claims,
    _network,
    _open_files,
    _virtual_functions,
)
