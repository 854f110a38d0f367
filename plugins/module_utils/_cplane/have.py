# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of one id of a control plane now, and how the modules tell it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple

from .client import CtrlrInfo, ServerInfo, connect, read_server, socket_path
from .errors import CplaneError, NotServed, UnsafePath, VersionMismatch
from .holders import held_by, listens_alone
from .managers import NATIVE, Record, Registry, SystemdManager
from .process import Process, identify
from .units import UnitState
from .wire import VERSION

ASK = 5.0
"""Seconds for one look at a server."""
_ASK_PEER = 0.2
_WAITING = "its unit is being started"


class Access(NamedTuple):
    """Permission bits and group of a socket."""

    mode: int
    gid: int


@dataclass(frozen=True)
class Have:
    """What is known of one id.

    ``server`` is None where nobody answers; ``problem`` says why what is there could not be understood. ``pid`` is who
    listens. ``process`` is the server that was started here and still runs, ``record`` what it was started with, or
    will be; a server that answers without a record was started by somebody else. ``access`` and ``owner`` (a user's
    number) are None where there is no socket.
    ``left`` counts the connections of a process that runs and does not answer on its socket, None where that cannot be
    counted; ``proven`` is false where it cannot be seen that ``pid`` is the server's. ``waiting`` is None, or the words
    in which the unit of the server says what it waits for: it has none yet, and will try again.
    """

    server: Optional[ServerInfo] = None
    problem: Optional[CplaneError] = None
    pid: Optional[int] = None
    process: Optional[Process] = None
    record: Optional[Record] = None
    access: Optional[Access] = None
    left: Optional[int] = 0
    proven: bool = False
    owner: Optional[int] = None
    waiting: Optional[str] = None

    @property
    def alive(self) -> bool:
        """Whether somebody has the socket; behind what is no socket there is nobody."""
        return self.server is not None or not (self.problem is None or isinstance(self.problem, UnsafePath))

    @property
    def clients(self) -> Optional[int]:
        """Connected clients, without the one that asked; None where that is not known."""
        if self.server is not None:
            return self.server.connections - 1
        return None if self.alive else self.left

    @property
    def uris(self) -> Tuple[str, ...]:
        """The controllers that are served."""
        return tuple(sorted(controller.uri for controller in self.server.controllers)) if self.server else ()

    @property
    def ours(self) -> bool:
        """Whether who listens is the server that was started here."""
        return self.process is not None and self.pid == self.process.pid

    @property
    def foreign(self) -> bool:
        """Whether the socket that is served belongs to neither root nor this user, and is not of a server of ours.

        The folder of sockets is open to everybody, so that a name in it says nothing.
        """
        return self.alive and not self.ours and self.owner not in (None, 0, os.geteuid())

    @property
    def dead(self) -> Tuple[str, ...]:
        """The controllers that died under our server; the reference one has no totals for all but the first."""
        if self.server is None or self.record is None or self.record.kind != NATIVE:
            return ()
        return tuple(controller.uri for controller in self.server.controllers if not controller.nsq_total)

    @property
    def drifted(self) -> bool:
        """Whether our server no longer serves what it was started with."""
        if self.server is None or self.record is None:
            return False
        return bool(self.dead) or self.uris != tuple(sorted(self.record.uris))

    @property
    def state(self) -> str:
        """In words, for the diff."""
        if self.alive and self.server is None:
            return "of another wire version" if isinstance(self.problem, VersionMismatch) else "not understood"
        if self.server is None and self.waiting is not None:
            return "waiting to be started"
        return "serving " + ", ".join(self.uris) if self.server else "not serving"


def observe(cplane_id: int, socket_dir: str, registry: Optional[Registry], timeout: float = ASK) -> Have:
    """Look at one id, for little more than ``timeout`` seconds. What is wrong with a server is part of the answer.

    Without a registry nothing is known of how a server was started. Raises CplaneError when it cannot be read.
    """
    record = registry.load(cplane_id) if registry else None
    unit = SystemdManager.state(cplane_id) if record and record.manager == SystemdManager.name else None
    process = _process(cplane_id, registry, unit) if registry else None
    server, problem = _ask(cplane_id, socket_dir, timeout)
    pid = server.peer.pid if server else _peer(cplane_id, socket_dir, problem)
    ours = process is not None and pid in (None, process.pid)
    held = held_by(process.pid, socket_dir) if process and pid is None else None
    owner, access = _socket(socket_path(cplane_id, socket_dir))
    waiting = (unit.status or _WAITING) if unit and unit.is_starting else None
    return Have(
        server=server,
        problem=problem,
        pid=pid,
        process=process,
        record=record if ours or (waiting is not None and pid is None) else None,
        access=access,
        left=0 if process is None else (held.connections if held else None),
        proven=ours or _is_listener(pid, cplane_id, socket_dir),
        owner=owner,
        waiting=waiting,
    )


def _ask(cplane_id: int, socket_dir: str, timeout: float) -> Tuple[Optional[ServerInfo], Optional[CplaneError]]:
    try:
        return read_server(cplane_id, socket_dir, timeout), None
    except NotServed:
        return None, None
    except CplaneError as error:
        return None, error


def _peer(cplane_id: int, socket_dir: str, problem: Optional[CplaneError]) -> Optional[int]:
    """Who listens where no answer was understood."""
    if problem is None or isinstance(problem, UnsafePath):
        return None
    try:
        with connect(cplane_id, socket_dir, _ASK_PEER) as connection:
            return connection.peer().pid or None
    except CplaneError:
        return None


def _process(cplane_id: int, registry: Registry, unit: Optional[UnitState]) -> Optional[Process]:
    if unit is None:
        return registry.process(cplane_id)
    return identify(unit.pid) if unit.pid else None


def _is_listener(pid: Optional[int], cplane_id: int, socket_dir: str) -> bool:
    """Whether the process that once listened is the one that serves the id now.

    Our server binds ``.ID.PID`` and moves it in place, the reference one binds the place itself.
    """
    names = rf"xnvme-homi-{cplane_id}\.sock|\.{cplane_id}\.[0-9]+"
    return pid is not None and listens_alone(pid, socket_dir, names)


def _socket(path: str) -> Tuple[Optional[int], Optional[Access]]:
    """Owner and access of a socket."""
    try:
        found = os.lstat(path)
    except OSError:
        return None, None
    if not stat.S_ISSOCK(found.st_mode):
        return None, None
    return found.st_uid, Access(stat.S_IMODE(found.st_mode), found.st_gid)


def describe(cplane_id: int, have: Have) -> Dict[str, Any]:
    """A server as the modules return it."""
    server = have.server
    asked = have.alive and server is None
    return {
        "cplane_id": cplane_id,
        "alive": have.alive,
        "pid": have.pid or (have.process.pid if have.process else None),
        "owner": have.owner if have.alive else None,
        "version": VERSION if server else _other_version(have.problem),
        "protocol": _protocol(have),
        "connections": server.connections if server else (None if asked else 0),
        "clients": None if asked else have.clients,
        "restart_pending": have.drifted and bool(have.clients),
        "controllers": [describe_controller(have, controller) for controller in server.controllers] if server else [],
        "error": have.problem.message if have.problem else have.waiting,
    }


def _other_version(problem: Optional[CplaneError]) -> Optional[int]:
    """The version that a server answered in, where the client's error carries it."""
    version = problem.details.get("version") if isinstance(problem, VersionMismatch) else None
    return version if isinstance(version, int) else None


def _protocol(have: Have) -> Optional[str]:
    if not have.alive:
        return None
    if have.server is not None:
        return "ok"
    return "mismatch" if isinstance(have.problem, VersionMismatch) else "unknown"


def describe_controller(have: Have, controller: CtrlrInfo) -> Dict[str, Any]:
    """A controller as the modules return it; ``name`` is how it was configured, its URI where that is not known."""
    names = dict(zip(have.record.uris, have.record.controllers)) if have.record else {}
    return {"name": names.get(controller.uri, controller.uri), **controller._asdict()}
