# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server is started and stopped: as a detached process with a pid file, or as a systemd unit.

Everything that is known of a server lies in one folder, named by its id: ``ID.json`` (what it was started with),
``ID.settings.json`` (what our server reads again on SIGHUP), ``ID.pid`` and ``ID.log``.
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
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from .client import socket_path
from .errors import ConfigError, CplaneError
from .process import homi_command, homi_usage, native_command, send_signal, served_by, start, stop
from .wanted import Wanted

NATIVE, HOMI = "native", "homi"
_UNIT = "xnvme-cplane@%d.service"
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
    """What servers are run with: the zipapp of ours (None where it is not on the node), and the reference tool."""

    native: Optional[str]
    native_digest: Optional[str]
    homi: str

    def find_homi(self) -> Optional[str]:
        """The reference tool's path; None where it is not installed."""
        return shutil.which(self.homi)


@dataclass(frozen=True)
class Record:
    """What a server was started with. ``program`` is the digest of our zipapp, empty for the reference tool."""

    kind: str
    manager: str
    controllers: List[str]
    uris: List[str]
    backend: Optional[str]
    heap_size: Optional[int]
    program: str
    access: Dict[str, Any]


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
    def locked(self) -> Iterator[None]:
        """Hold the folder for one run at a time."""
        try:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            self._refuse_foreign()
            fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CplaneError(
                f"the folder {self.folder} cannot be used: {(error.strerror or str(error)).lower()}; "
                "run as root (become: true), or give another state_dir"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _refuse_foreign(self) -> None:
        """A folder that somebody else may change could make us end or run what they like."""
        found = os.stat(self.folder)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CplaneError(
                f"the folder {self.folder} belongs to another user or can be written by others; "
                "remove it, or give another state_dir"
            )

    def path(self, name: str) -> str:
        """A file of the folder."""
        return os.path.join(self.folder, name)

    def load(self, cplane_id: int) -> Optional[Record]:
        """What a server was started with; None where nothing (readable) says so."""
        try:
            with open(self.path(f"{cplane_id}.json"), encoding="utf-8") as file:
                return Record(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, cplane_id: int, record: Record) -> None:
        """Remember what a server is started with, and (for ours) who may connect."""
        self._write(f"{cplane_id}.settings.json", record.access)
        self._write(f"{cplane_id}.json", asdict(record))

    def forget(self, cplane_id: int) -> None:
        """Remove what was remembered, all but the log."""
        for name in (f"{cplane_id}.json", f"{cplane_id}.settings.json", f"{cplane_id}.pid"):
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
        command = self._command(wanted, kind)
        self._registry.save(wanted.cplane_id, record_of(wanted, kind, self.name, self._programs))
        start(
            command,
            self._registry.path(f"{wanted.cplane_id}.pid"),
            self._registry.path(f"{wanted.cplane_id}.log"),
            served_by(wanted.cplane_id, wanted.uris, self._socket_dir),
            timeout,
        )
        if kind == HOMI:
            set_socket_access(wanted, self._socket_dir)

    def stop(self, cplane_id: int, timeout: float, kill: bool) -> bool:
        """Stop the server that was started here; whether there was one."""
        return stop(self._registry.path(f"{cplane_id}.pid"), timeout, kill)

    def reload(self, cplane_id: int) -> None:
        """Have our server read its settings again."""
        send_signal(self._registry.path(f"{cplane_id}.pid"), signal.SIGHUP)

    def _command(self, wanted: Wanted, kind: str) -> List[str]:
        if kind == HOMI:
            tool = self._programs.find_homi()
            if tool is None:
                raise ConfigError(
                    f"the reference tool {self._programs.homi} is not installed; install xNVMe, or give 'homi'"
                )
            return homi_command(homi_usage(tool), wanted.uris, wanted.cplane_id, wanted.backend, wanted.heap_size)
        program = [sys.executable, str(self._programs.native)]
        settings = self._registry.path(f"{wanted.cplane_id}.settings.json")
        return native_command(
            program, wanted.controllers, wanted.cplane_id, self._socket_dir, wanted.heap_size, settings
        )


def record_of(wanted: Wanted, kind: str, manager: str, programs: Programs) -> Record:
    """What is remembered of a server."""
    return Record(
        kind=kind,
        manager=manager,
        controllers=list(wanted.controllers),
        uris=list(wanted.uris),
        backend=wanted.backend,
        heap_size=wanted.heap_size,
        program=(programs.native_digest or "") if kind == NATIVE else "",
        access=access_of(wanted),
    )


def set_socket_access(wanted: Wanted, socket_dir: str) -> None:
    """Mode and group of the reference server's socket, which leaves both to chance."""
    path = socket_path(wanted.cplane_id, socket_dir)
    try:
        if wanted.socket_group is not None:
            os.chown(path, -1, group_id(wanted.socket_group), follow_symlinks=False)
        os.chmod(path, int(wanted.socket_mode, 8))
    except OSError as error:
        raise CplaneError(f"cannot set mode and group of {path}: {error.strerror}") from None


def group_id(group: str) -> int:
    """A group by name or number."""
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"socket_group: there is no group {group!a} on this node; create it first") from None


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
        return _systemctl(["cat", _UNIT % 1], 10).returncode == 0

    def start(self, wanted: Wanted, kind: str, timeout: float) -> None:
        """Start the instance; the unit is ready when the server is."""
        self._registry.save(wanted.cplane_id, record_of(wanted, kind, self.name, self._programs))
        self._run("start", wanted.cplane_id, timeout)

    def stop(self, cplane_id: int, timeout: float, kill: bool) -> bool:
        """Stop the instance."""
        if kill:
            self._run("kill", cplane_id, timeout, "--signal=SIGKILL")
        self._run("stop", cplane_id, timeout)
        return True

    def reload(self, cplane_id: int) -> None:
        """Have our server read its settings again."""
        self._run("reload", cplane_id, 30)

    @staticmethod
    def _run(verb: str, cplane_id: int, timeout: float, *options: str) -> None:
        unit = _UNIT % cplane_id
        done = _systemctl([verb, *options, unit], timeout)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise CplaneError(
                f"'systemctl {verb} {unit}' failed: {said or done.returncode}; see 'journalctl -u {unit}'"
            )


def _systemctl(arguments: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--no-pager", *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=max(1.0, timeout),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CplaneError(f"'{' '.join(command)}' did not end within {timeout:g} seconds") from None
    except OSError as error:
        raise CplaneError(f"systemctl cannot be run: {error.strerror}; use manager: process") from None
