# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes hold open, as the kernel tells it: unix sockets of a folder, and devices of vfio-pci (proc(5)).

A server's own answer cannot be had when it hangs or speaks another wire version, and the number that the kernel
remembers of a listener may meanwhile be another process's. What a process holds open can be neither.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

_LISTENING = 0x10000
_CONNECTED = 3
_SOCKET = re.compile(r"socket:\[([0-9]+)\]\Z")
_GROUP = re.compile(r"/vfio/[0-9]+\Z")
_DEVICE = "anon_inode:[vfio-device]"
_DEVICE_PATH = "vfio-device-syspath:"
_SYS_KCMP, _KCMP_FILE = 312, 0  # of x86-64


class Held(NamedTuple):
    """Whether a process listens in the folder, and how many connections it accepted there and still has."""

    listening: bool
    connections: int


def held_by(pid: int, directory: str, proc: str = "/proc") -> Optional[Held]:
    """What process ``pid`` holds of the sockets bound in ``directory``; None where that cannot be seen.

    An accepted socket carries the name of the one that it was accepted on. A name may have been moved since (a server
    binds a private name first), so the folder alone is compared.
    """
    try:
        states = _states(f"{proc}/{pid}/net/unix", os.path.realpath(directory))
        mine = [states[inode][0] for inode in _sockets(pid, proc) if inode in states]
    except OSError:
        return None
    return Held(_LISTENING in mine, mine.count(_CONNECTED))


def listens_alone(pid: int, directory: str, names: str, proc: str = "/proc") -> bool:
    """Whether process ``pid``, and no other one that can be seen, holds a listening socket of the folder whose name
    matches the regular expression ``names``.

    A supervisor that hands its socket to a child, or a service manager that keeps it for a unit, is not who serves;
    the child is not who listened. Process 1 is never meant.
    """
    if pid <= 1:
        return False
    try:
        states = _states(f"{proc}/{pid}/net/unix", os.path.realpath(directory))
        wanted = re.compile(names)
        mine = {
            inode
            for inode in _sockets(pid, proc)
            if inode in states and states[inode][0] == _LISTENING and wanted.fullmatch(states[inode][1])
        }
        return bool(mine) and not any(_holds(other, mine, proc) for other in _others(pid, proc))
    except OSError:
        return False


def _others(pid: int, proc: str) -> Iterator[int]:
    return (int(name) for name in os.listdir(proc) if name.isdigit() and int(name) != pid)


def _holds(pid: int, inodes: Set[str], proc: str) -> bool:
    """Whether a process has one of these sockets; one that ended or cannot be looked into has not."""
    try:
        return any(inode in inodes for inode in _sockets(pid, proc))
    except OSError:
        return False


def has_open(pid: int, path: str, proc: str = "/proc") -> bool:
    """Whether a process has a file open, as far as can be seen."""
    return any(target == path for _fd, target in _files(pid, proc))


def vfio_holders(node: str, bdf: str, proc: str = "/proc", server: Optional[int] = None) -> List[str]:
    """Name the processes that have device ``bdf``, or the file ``node`` of its group, open, as ``python3 (pid 812)``.

    Left out are this process and ``server``, which has both by right. A client of a server has no more than the
    descriptor that it was handed, and which device that is, a kernel before 6.11 does not tell. Such a process is
    named when it has what ``server`` has, or without one when it opened no group of its own.
    """
    ours = [fd for fd, target in _files(server, proc) if target == _DEVICE] if server is not None else []
    found = []
    for pid in sorted(_others(os.getpid(), proc)):
        files = [] if pid == server else list(_files(pid, proc))
        devices = [fd for fd, target in files if target == _DEVICE]
        paths = {fd: _device_path(pid, fd, proc) for fd in devices}
        held = any(target == node for _fd, target in files) or any(path.endswith("/" + bdf) for path in paths.values())
        untold = [fd for fd in devices if not paths[fd]]
        if server is not None:
            held = held or any(_same_file(pid, fd, server, mine) for fd in untold for mine in ours)
        elif untold and not held:
            held = not any(_GROUP.search(target) for _fd, target in files)
        if held:
            found.append(f"{_command(pid, proc)} (pid {pid})")
    return found


def is_sole_holder(server: int, bdf: str, proc: str = "/proc") -> bool:
    """Whether it is certain that no process but ``server`` has device ``bdf`` of vfio-pci, which ``server`` opened.

    Others may have devices of their own, or of another server, and the kernel need not tell which: then theirs must
    differ from each one of ``server``, as far as the kernel compares them.
    """
    ours = [fd for fd, target in _files(server, proc) if target == _DEVICE]
    for pid in _others(server, proc):
        for fd, target in _files(pid, proc):
            path = _device_path(pid, fd, proc) if target == _DEVICE else ""
            untold = target == _DEVICE and not path
            if path.endswith("/" + bdf) or (untold and any(_compare(pid, fd, server, mine) < 1 for mine in ours)):
                return False
    return bool(ours)


def _device_path(pid: int, fd: int, proc: str) -> str:
    """The folder in sysfs of the device behind a descriptor; empty where the kernel does not tell."""
    try:
        with open(f"{proc}/{pid}/fdinfo/{fd}", encoding="utf-8", errors="surrogateescape") as file:
            return next((line[len(_DEVICE_PATH) :].strip() for line in file if line.startswith(_DEVICE_PATH)), "")
    except OSError:
        return ""


def _same_file(pid: int, fd: int, other_pid: int, other_fd: int) -> bool:
    """Whether two descriptors are of one open file; False where the kernel does not tell."""
    return _compare(pid, fd, other_pid, other_fd) == 0


def _compare(pid: int, fd: int, other_pid: int, other_fd: int) -> int:
    """Two descriptors, as kcmp(2) has it: 0 for those of one open file, -1 where the kernel does not tell."""
    return int(ctypes.CDLL(None).syscall(_SYS_KCMP, pid, other_pid, _KCMP_FILE, fd, other_fd))


def _command(pid: int, proc: str) -> str:
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def _files(pid: int, proc: str) -> Iterator[Tuple[int, str]]:
    """What a process has open: descriptors, and what they are; nothing of one that ended or cannot be looked into."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        yield int(name), _target(f"{folder}/{name}")


def _sockets(pid: int, proc: str) -> Iterator[str]:
    """The inodes of the sockets that a process has open."""
    folder = f"{proc}/{pid}/fd"
    for name in os.listdir(folder):
        match = _SOCKET.match(_target(f"{folder}/{name}"))
        if match:
            yield match.group(1)


def _states(table: str, directory: str) -> Dict[str, Tuple[int, str]]:
    """The sockets with a name in the folder: inode -> (_LISTENING, or the state; the name)."""
    states = {}
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        next(file, None)
        for line in file:
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and os.path.realpath(os.path.dirname(fields[7])) == directory:
                state = _LISTENING if int(fields[3], 16) & _LISTENING else int(fields[5], 16)
                states[fields[6]] = (state, os.path.basename(fields[7]))
    return states


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except (FileNotFoundError, ProcessLookupError):
        return ""  # closed while we looked
