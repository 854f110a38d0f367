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
from typing import Dict, NamedTuple, Optional

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
        folder = f"{proc}/{pid}/fd"
        found = [_SOCKET.match(_target(f"{folder}/{name}")) for name in os.listdir(folder)]
    except OSError:
        return None
    mine = [states[match.group(1)] for match in found if match and match.group(1) in states]
    return Held(_LISTENING in mine, mine.count(_CONNECTED))


def _states(table: str, directory: str) -> Dict[str, int]:
    """The sockets with a name in the folder: inode -> _LISTENING, or the state."""
    states = {}
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        next(file, None)
        for line in file:
            fields = line.rstrip("\n").split(None, 7)
            if len(fields) == 8 and os.path.realpath(os.path.dirname(fields[7])) == directory:
                states[fields[6]] = _LISTENING if int(fields[3], 16) & _LISTENING else int(fields[5], 16)
    return states


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed while we looked
