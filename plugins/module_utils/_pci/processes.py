# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the processes of this node have open, and what only they see mounted: one pass over proc, bounded.

To ask what is behind a descriptor may take as long as the filesystem that it is on, for ever where that is a dead
server's. So a thread asks, and is not waited for when time is up.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, List, Set, Tuple

from .address import printable
from .proc import Mount, mounts_of

_SECONDS = 15.0
_MOST_FILES = 2000000
_VFIO_DEVICE = "anon_inode:[vfio-device]"
_VFIO_DEVICE_PATH = "vfio-device-syspath:"
_VFIO_GROUP = re.compile(r"/dev/vfio/(noiommu-)?[0-9]+")
# They look at every disk that appears, and let go of it by themselves.
_PASSING = ("systemd-udevd", "(udev-worker)")


@dataclass
class Processes:
    """What was found. Processes are named as in ``fio (pid 812)``.

    ``opened`` has the processes by the number of the device that they have open (see block_key and char_key);
    ``vfio`` by the BDF of the device that they got through VFIO; ``untold`` got one through VFIO, and the kernel does
    not tell which. ``mounts`` are those that neither this process nor process 1 sees.
    """

    opened: Dict[str, List[str]] = field(default_factory=dict)
    vfio: Dict[str, List[str]] = field(default_factory=dict)
    untold: List[str] = field(default_factory=list)
    mounts: List[Mount] = field(default_factory=list)
    problems: List[str] = field(default_factory=list)


def block_key(number: str) -> str:
    """The key in Processes.opened of a block device, by its "major:minor"."""
    return f"b{number}"


def char_key(number: str) -> str:
    """The key in Processes.opened of a character device."""
    return f"c{number}"


def read_processes(proc: str, wanted: Collection[str], known: Collection[Mount]) -> Processes:
    """Look at all processes; of what they have open only the keys ``wanted`` count, of mounts those not ``known``."""
    found = Processes()
    scan = _Scan(proc, frozenset(wanted), found, {(mount.number, mount.name) for mount in known})
    if not in_time(scan.run, _SECONDS):
        found.problems.append(f"could not look at all open files within {_SECONDS:g} seconds")
    return found


def in_time(work: Callable[[], None], seconds: float) -> bool:
    """Do something that may hang, for at most so long; whether it was done. What it raises is raised."""
    failed: List[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # pylint: disable=broad-exception-caught  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return not thread.is_alive()


class _TooManyError(Exception):
    """There are more open files than anybody has time for."""


class _Scan:
    def __init__(self, proc: str, wanted: Collection[str], found: Processes, known: Set[object]) -> None:
        self._proc = proc
        self._wanted = wanted
        self._found = found
        self._known = known
        self._namespaces: Set[str] = set()
        self._hidden = 0
        self._files = 0

    def run(self) -> None:
        try:
            pids = sorted((name for name in os.listdir(self._proc) if name.isdecimal()), key=int)
        except OSError as error:
            self._problem(f"could not look at open files: {printable(self._proc)}: {error.strerror}")
            return
        if not pids:
            return  # a small proc, of a node that has no processes
        for own in ("self", "1"):
            self._is_new_namespace(own)
        try:
            for pid in pids:
                if int(pid) != os.getpid():
                    self._look_at(pid)
        except _TooManyError:
            self._problem(f"could not look at all open files: there are more than {_MOST_FILES}")
        if "1" not in pids:
            self._problem("could not look at the open files of other users: their processes are hidden (hidepid)")
        elif self._hidden:
            self._problem(f"could not look at the open files of {self._hidden} processes: run as root (become: true)")

    def _problem(self, text: str) -> None:
        self._found.problems.append(text)

    def _look_at(self, pid: str) -> None:
        try:
            if self._is_new_namespace(pid):
                self._add_mounts(pid)
            self._add_files(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended
        except OSError:
            self._hidden += 1

    def _is_new_namespace(self, pid: str) -> bool:
        try:
            name = os.readlink(os.path.join(self._proc, pid, "ns/mnt"))
        except OSError:
            return False
        if name in self._namespaces:
            return False
        self._namespaces.add(name)
        return True

    def _add_mounts(self, pid: str) -> None:
        for mount in mounts_of(self._proc, pid):
            key = (mount.number, mount.name)
            if key not in self._known and any(key):
                self._known.add(key)
                owner = self._name(pid)
                self._found.mounts.append(Mount(mount.number, mount.name, mount.point, mount.pool, owner))

    def _add_files(self, pid: str) -> None:
        folder = os.path.join(self._proc, pid, "fd")
        through_vfio: List[str] = []
        of_group = False
        for number in os.listdir(folder):
            self._files += 1
            if self._files > _MOST_FILES:
                raise _TooManyError
            key, target = _opened(os.path.join(folder, number))
            if key in self._wanted:
                self._add(self._found.opened, key, pid)
            if target == _VFIO_DEVICE:
                through_vfio.append(number)
            of_group = of_group or _VFIO_GROUP.fullmatch(target) is not None
        for number in through_vfio:
            bdf = self._vfio_device(pid, number)
            if bdf:
                self._add(self._found.vfio, bdf, pid)
            elif not of_group:
                self._found.untold.append(self._name(pid))

    def _vfio_device(self, pid: str, number: str) -> str:
        """The BDF of the device behind a descriptor of VFIO's; empty where the kernel does not tell (before 6.11)."""
        with open(os.path.join(self._proc, pid, "fdinfo", number), encoding="utf-8", errors="replace") as file:
            paths = [line for line in file if line.startswith(_VFIO_DEVICE_PATH)]
        return os.path.basename(paths[0].strip()) if paths else ""

    def _add(self, found: Dict[str, List[str]], key: str, pid: str) -> None:
        name = self._name(pid)
        names = found.setdefault(key, [])
        if name not in names and not name.startswith(_PASSING):
            names.append(name)

    def _name(self, pid: str) -> str:
        try:
            with open(os.path.join(self._proc, pid, "comm"), encoding="utf-8", errors="replace") as file:
                return f"{file.read().rstrip()} (pid {pid})"
        except OSError:
            return f"a process (pid {pid})"


def _opened(link: str) -> Tuple[str, str]:
    """What a descriptor is: the key of a device, empty for anything else; and how the kernel names it."""
    target = ""
    try:
        target = os.readlink(link)
        if not target.startswith("/"):
            return "", target  # a socket, a pipe or the like
        found = os.stat(link)
    except PermissionError:
        raise
    except OSError:
        return "", target  # closed meanwhile
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if stat.S_ISBLK(found.st_mode):
        return block_key(number), target
    return (char_key(number) if stat.S_ISCHR(found.st_mode) else ""), target
