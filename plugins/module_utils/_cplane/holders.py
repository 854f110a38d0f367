# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process has to do with the unix sockets of a folder, as the kernel tells it (proc(5), /proc/PID/net/unix).

A server's own answer cannot be had when it hangs or speaks another wire version, and the number that the kernel
remembers of a listener may meanwhile be another process's. What a process holds open can be neither.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, NamedTuple, Optional, Set, Tuple

_LISTENING = 0x10000
_CONNECTED = 3
_SOCKET = re.compile(r"socket:\[([0-9]+)\]\Z")


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
    except FileNotFoundError:
        return ""  # closed while we looked
