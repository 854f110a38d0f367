# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server is started and stopped: as a detached process with a pid file, or as a systemd unit.

Everything that is known of a server lies in one folder, named by its id: ``ID.json`` (what it was started with),
``ID.settings.json`` (what our server reads again on SIGHUP), ``ID.bound.json`` (the controllers that were given another
driver for it, and are to be given back), ``ID.pid`` and ``ID.log``.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import shutil
import signal
import stat
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional

from .._plan import Deadline
from .client import socket_path
from .errors import ConfigError, CplaneError, NotYet, UnsafePath
from .process import (
    Process,
    homi_command,
    homi_usage,
    identify,
    inspect,
    native_command,
    send_signal,
    served_by,
    start,
    stop,
)
from .program import ProgramPlace
from .units import UnitState, systemctl, unit_of, unit_state
from .wanted import CLAIM, NONE, Wanted

NATIVE, HOMI = "native", "homi"
LABEL_PLACES = ("tool", "sysfs", "proc", "dev", "smartio_state_dir")
"""Where SmartIO keeps its things, by the names of the module's options."""
_SYSTEM_DIR = "/run/iofabric/cplane"


def default_state_dir() -> str:
    """Where servers are remembered: one folder for the system, another user's own without root."""
    if os.geteuid() == 0:
        return _SYSTEM_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    parent = runtime if os.path.isdir(runtime) else os.path.expanduser("~/.local/state")
    return os.path.join(parent, "iofabric", "cplane")


@dataclass(frozen=True)
class Programs:
    """What servers are run with: the zipapp of ours, and the reference tool (a path, or a name on PATH)."""

    native: ProgramPlace
    homi: str

    def find_homi(self) -> Optional[str]:
        """The reference tool's path; None where it is not installed."""
        return shutil.which(self.homi)

    def check(self, kind: str) -> None:
        """Raise NotYet (or another CplaneError) where a server of this kind cannot be run."""
        if kind == NATIVE:
            self.native.check()
        elif self.find_homi() is None:
            raise NotYet(f"the reference tool {self.homi} is not installed; install xNVMe, or name its path in 'homi'")

    def digest(self, kind: str) -> str:
        """What tells one build of our server from another; nothing does for the reference tool."""
        return self.native.digest if kind == NATIVE else ""


@dataclass(frozen=True)
class Record:
    """What a server was started with, enough to start it again.

    ``controllers`` and ``uris`` are what it serves, ``written`` is what was asked for (with ``claim:LABEL``), in an
    order of its own. They are empty where what was asked for could not be started yet. ``program`` is the digest of
    our zipapp, empty for the reference tool; ``unit`` that of the unit's files, empty for a process. ``driver`` is what
    a start binds controllers to.
    """

    kind: str
    manager: str
    controllers: List[str]
    uris: List[str]
    backend: Optional[str]
    heap_size: Optional[int]
    program: str
    access: Dict[str, Any]
    written: List[str] = field(default_factory=list)
    unit: str = ""
    places: Dict[str, Any] = field(default_factory=dict)
    driver: str = NONE


@dataclass(frozen=True)
class Taken:
    """A controller that was given a driver for a server. ``inode`` is that of its folder in sysfs: another device that
    later comes to the same address has another one."""

    inode: int
    driver: str


def start_places(wanted: Wanted, kind: str, places: Mapping[str, Any]) -> Dict[str, Any]:
    """Of all programs and folders, those that a start of this server depends on."""
    names = {"socket_dir", "homi" if kind == HOMI else "program"}
    if any(name.startswith(CLAIM) for name in wanted.written):
        names.update(LABEL_PLACES)
    return {name: places[name] for name in sorted(names)}


def access_of(wanted: Wanted) -> Dict[str, Any]:
    """Who may connect, in the words of the server's settings file."""
    return {
        "socket_mode": wanted.socket_mode,
        "socket_group": wanted.socket_group,
        "allow_uids": list(wanted.allow_uids),
    }


class Registry:
    """The folder in which servers are remembered, with its lock."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the folder for one run at a time; raises CplaneError when another one has it for ``timeout`` seconds."""
        try:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            self.check()
            fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CplaneError(
                f"the folder {self.folder} cannot be used: {(error.strerror or str(error)).lower()}; "
                "run as root (become: true), or give another state_dir"
            ) from None
        try:
            self._lock(fd, timeout)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int, timeout: float) -> None:
        for last in Deadline(timeout).pauses():
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if last:
                    raise CplaneError(
                        f"the folder {self.folder} is locked: another run manages servers; wait for it and run again"
                    ) from None

    def check(self) -> None:
        """Refuse a folder that somebody else may change: they could make us end or run what they like."""
        if not self.is_trusted():
            raise CplaneError(
                f"the folder {self.folder} belongs to another user or can be written by others; "
                "remove it, or give another state_dir"
            )

    def is_trusted(self) -> bool:
        """Whether nobody else can change what is remembered; a folder that is not there remembers nothing."""
        try:
            found = os.stat(self.folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def path(self, name: str) -> str:
        """A file of the folder."""
        return os.path.join(self.folder, name)

    def load(self, cplane_id: int) -> Optional[Record]:
        """What a server was started with; None where nothing (readable) says so."""
        try:
            with open(self.path(f"{cplane_id}.json"), encoding="utf-8") as file:
                record = Record(**json.load(file))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        lists = (record.controllers, record.uris, record.written)
        right = all(isinstance(value, list) for value in lists)
        return record if right and isinstance(record.access, dict) and isinstance(record.places, dict) else None

    def process(self, cplane_id: int) -> Optional[Process]:
        """The server that was started as a process and still runs."""
        return inspect(self.path(f"{cplane_id}.pid"))

    def save(self, cplane_id: int, record: Record) -> None:
        """Remember what a server is started with, and (for ours) who may connect."""
        self._write(f"{cplane_id}.settings.json", record.access)
        self._write(f"{cplane_id}.json", asdict(record))

    def forget(self, cplane_id: int) -> None:
        """Remove what was remembered, all but the log and what is to be given back."""
        remembered = (f"{cplane_id}.json", f"{cplane_id}.settings.json")
        for name in (*remembered, *(f"{name}.new" for name in remembered), f"{cplane_id}.pid"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def bound(self, cplane_id: int) -> Dict[str, Taken]:
        """The controllers that were given another driver for a server, by their addresses."""
        try:
            with open(self.path(f"{cplane_id}.bound.json"), encoding="utf-8") as file:
                return {str(bdf): Taken(**taken) for bdf, taken in json.load(file).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def save_bound(self, cplane_id: int, taken: Mapping[str, Taken]) -> None:
        """Remember them; the file is only there while there are any."""
        name = f"{cplane_id}.bound.json"
        if taken:
            self._write(name, {bdf: asdict(one) for bdf, one in taken.items()})
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        path = self.path(name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path + ".new", flags, 0o644), "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1, sort_keys=True)
            os.replace(path + ".new", path)
        except OSError as error:
            raise CplaneError(f"cannot write {path}: {error.strerror}") from None


class ProcessManager:
    """Servers as detached processes."""

    name = "process"

    def __init__(self, registry: Registry, programs: Programs, socket_dir: str) -> None:
        self._registry = registry
        self._programs = programs
        self._socket_dir = socket_dir

    def start(self, wanted: Wanted, kind: str, timeout: float) -> None:
        """Start a server and return when it answers with exactly the wanted controllers."""
        refuse_obstacle(socket_path(wanted.cplane_id, self._socket_dir))
        start(
            self._command(wanted, kind),
            self._registry.path(f"{wanted.cplane_id}.pid"),
            self._registry.path(f"{wanted.cplane_id}.log"),
            served_by(wanted.cplane_id, wanted.uris, self._socket_dir),
            timeout,
        )

    def stop(self, cplane_id: int, timeout: float, kill: bool) -> None:
        """Stop the server that was started here."""
        stop(self._registry.path(f"{cplane_id}.pid"), timeout, kill)

    def process(self, cplane_id: int) -> Optional[Process]:
        """The server that was started here and still runs."""
        return self._registry.process(cplane_id)

    def reload(self, cplane_id: int) -> None:
        """Have our server read its settings again."""
        send_signal(self._registry.path(f"{cplane_id}.pid"), signal.SIGHUP)

    def _command(self, wanted: Wanted, kind: str) -> List[str]:
        if kind == HOMI:
            usage = homi_usage(self._programs.find_homi() or self._programs.homi)
            return homi_command(usage, wanted.uris, wanted.cplane_id, wanted.backend, wanted.heap_size)
        program = [sys.executable, self._programs.native.install()]
        settings = self._registry.path(f"{wanted.cplane_id}.settings.json")
        return native_command(
            program, wanted.controllers, wanted.cplane_id, self._socket_dir, wanted.heap_size, settings
        )


def refuse_obstacle(path: str) -> None:
    """Raise UnsafePath for what no server may take the place of; the reference one removes whatever lies there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnsafePath(f"cannot look at {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafePath(f"{path} is not a socket; it was left as it is: remove it, or choose another cplane_id")
    if found.st_uid != os.geteuid():
        raise UnsafePath(
            f"{path} belongs to user {found.st_uid}; it was left as it is: have them remove it, "
            "or choose another cplane_id"
        )


def set_socket_access(path: str, mode: int, gid: Optional[int]) -> None:
    """Mode and group of the reference server's socket, which leaves both to chance."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UnsafePath(f"{path} is no longer a socket; it was left as it is")
        if gid is not None:
            os.chown(path, -1, gid, follow_symlinks=False)
        os.chmod(path, mode)
    except OSError as error:
        raise CplaneError(f"cannot set mode and group of {path}: {error.strerror}; run as root") from None


def group_id(wanted: Wanted, manager: str) -> Optional[int]:
    """The number of the socket's group; None where it is the group of a unit, which the unit knows.

    Raises NotYet where there is no such group, ConfigError where this user could not give a socket to it.
    """
    group = wanted.socket_group
    if group is None:
        return os.getegid() if manager == ProcessManager.name else None
    gid = int(group) if group.isdigit() else _group_number(group)
    if os.geteuid() != 0 and gid not in (os.getegid(), *os.getgroups()):
        raise ConfigError(
            f"socket_group: this user is not in the group {group!a}; run as root, or name a group of theirs"
        )
    return gid


def _group_number(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise NotYet(f"socket_group: there is no group {name!a} on this node; create it first") from None


class SystemdManager:
    """Servers as instances of a unit that the role cplane_server installs."""

    name = "systemd"

    def __init__(self, registry: Registry, programs: Programs) -> None:
        self._registry = registry
        self._programs = programs

    @staticmethod
    def usable() -> bool:
        """Whether systemd runs here and has the unit."""
        if not os.path.isdir("/run/systemd/system"):
            return False
        return systemctl(["cat", unit_of(1)], 10).returncode == 0

    def start(self, wanted: Wanted, kind: str, timeout: float) -> None:
        """Start the instance, which reads what the registry remembers of it."""
        if kind == NATIVE:
            self._programs.native.install()
        try:
            self._run("start", wanted.cplane_id, timeout)
        except CplaneError:
            said = self.state(wanted.cplane_id).status
            if not said:
                raise
            unit = unit_of(wanted.cplane_id)
            raise CplaneError(f"control plane {wanted.cplane_id}: {said}; see 'journalctl -u {unit}'") from None

    def stop(self, cplane_id: int, timeout: float, kill: bool) -> None:
        """Stop the instance; with ``kill`` the hard way if it does not end."""
        try:
            self._run("stop", cplane_id, timeout)
        except CplaneError:
            if not kill:
                raise
            self._run("kill", cplane_id, timeout, "--signal=SIGKILL")
            self._run("stop", cplane_id, timeout)

    @staticmethod
    def state(cplane_id: int) -> UnitState:
        """The instance as systemd knows it."""
        return unit_state(cplane_id)

    @classmethod
    def process(cls, cplane_id: int) -> Optional[Process]:
        """The main process of the instance, None where it does not run."""
        pid = cls.state(cplane_id).pid
        return identify(pid) if pid else None

    def reload(self, cplane_id: int) -> None:
        """Have our server read its settings again."""
        self._run("reload", cplane_id, 30)

    @staticmethod
    def _run(verb: str, cplane_id: int, timeout: float, *options: str) -> None:
        unit = unit_of(cplane_id)
        done = systemctl([verb, *options, unit], timeout)
        if done.returncode != 0:
            # The lines behind the first one only say where to look.
            said = (done.stdout + done.stderr).strip().partition("\n")[0].strip(
                " ."
            ) or f"exit status {done.returncode}"
            raise CplaneError(f"'systemctl {verb} {unit}' failed: {said}; see 'journalctl -u {unit}'")
