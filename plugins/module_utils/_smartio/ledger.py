# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no SmartIO command can list, remembered: connections, what was added and made available, p2p pairs, settings,
and the device that was borrowed under a label.

The ledger is a JSON file in the state folder. It is valid for one boot and one load of the kernel module; where either
cannot be told it is not trusted, and starts empty. A lost entry means that a harmless command runs again, or that a
device with an unknown state word is refused. Written atomically, after a command succeeded, under one lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Iterator, List, Optional, Tuple

from .._pci.sysfs import Sysfs
from .._plan import Deadline
from .errors import LedgerError

FORMAT = 1
_FILE = "ledger.json"
_LOCK = "lock"


@dataclass(frozen=True)
class Stamp:
    """What the ledger is valid for: the boot id, and inode and ctime (ns) of the kernel module's folder in sysfs."""

    boot_id: str
    module: Tuple[int, int]


@dataclass
class Ledger:
    """The remembered facts. BDFs are in full, fdids and node ids as the tools print them."""

    connections: List[Tuple[int, int]] = field(default_factory=list)
    """(node id, adapter) of every connect that succeeded."""
    added: List[str] = field(default_factory=list)
    """BDFs that this collection added to the pool."""
    available: Dict[str, Optional[str]] = field(default_factory=dict)
    """BDF -> driver that sysfs showed after the device was made available (normally None)."""
    serials: Dict[str, str] = field(default_factory=dict)
    """BDF -> serial number that a device had before it was made available."""
    p2p: Dict[str, PairState] = field(default_factory=dict)
    """pair_key() -> what was last set for it."""
    settings: Dict[str, str] = field(default_factory=dict)
    """Parameters of the kernel module that were set."""
    scanned: List[int] = field(default_factory=list)
    """Node ids of transparent trees that were scanned."""
    borrowed: Dict[str, Optional[str]] = field(default_factory=dict)
    """fdid -> label (None without one) of every device that was borrowed."""

    @property
    def pooled(self) -> FrozenSet[str]:
        """BDFs of the devices that this collection put in the pool."""
        return frozenset(self.added) | frozenset(self.available)

    def serial_of(self, bdf: str, sysfs: Sysfs) -> Optional[str]:
        """A local device's serial number: a drive's leaves sysfs with its driver, and then it is remembered here."""
        return self.serials.get(bdf) or sysfs.serial(bdf)

    def forget_device(self, fdid: str) -> None:
        """Forget a borrowed device that was returned, and the p2p pairs that it was in."""
        self.borrowed.pop(fdid, None)
        self.p2p = {key: pair for key, pair in self.p2p.items() if fdid not in key.split()[:2]}


@dataclass(frozen=True)
class PairState:
    """A p2p pair's last setting, and what both virtual devices were then: BDF and inode in sysfs, as one text each."""

    enabled: bool
    vdevs: Tuple[str, str]


def pair_key(source: str, destination: str, bar_number: Optional[int]) -> str:
    """The ledger's key of a p2p pair."""
    return "{} {} {}".format(source, destination, "-" if bar_number is None else bar_number)


class LedgerStore:
    """The ledger's file and lock in a state folder.

    ``stamp`` is None where boot or module load cannot be told: then the ledger reads as empty.
    """

    def __init__(self, state_dir: str, stamp: Optional[Stamp]) -> None:
        self.state_dir = state_dir
        self._stamp = stamp

    def load(self) -> Ledger:
        """The ledger as it is valid now; empty where it is missing, foreign, damaged or of another boot or load."""
        if self._stamp is None:
            return Ledger()
        try:
            with open(self._open_ledger(), encoding="utf-8") as file:
                return _from_json(json.load(file), self._stamp)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Ledger()

    def written_for(self) -> Optional[Stamp]:
        """The boot and module load that the file is about, whether they are over or not; None without one."""
        try:
            with open(self._open_ledger(), encoding="utf-8") as file:
                data = json.load(file)
            inode, ctime = data["module"]
            return Stamp(_text(data["boot_id"]), (_int(inode), _int(ctime)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _open_ledger(self) -> int:
        # What is not a plain file could block for ever.
        fd = os.open(os.path.join(self.state_dir, _FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ValueError("not a file")
        return fd

    def save(self, ledger: Ledger) -> None:
        """Write the ledger in one step: a reader sees the old one or the new one, whatever happens.

        Call it under the lock. Without a stamp nothing is written: nobody could tell later whether it still holds.
        """
        if self._stamp is None:
            return
        path = os.path.join(self.state_dir, _FILE)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path + ".new", flags, 0o644), "w", encoding="utf-8") as file:
                json.dump(_to_json(ledger, self._stamp), file, indent=1, sort_keys=True)
            os.replace(path + ".new", path)
        except OSError as error:
            raise self._unusable(error) from error

    @contextlib.contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        """Hold the one lock that modules and replay share; LedgerError where it is not free before the deadline."""
        fd = self._open_lock()
        try:
            self._take(fd, deadline)
            yield
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        try:
            os.makedirs(self.state_dir, mode=0o755, exist_ok=True)
            self._refuse_foreign()
            return os.open(
                os.path.join(self.state_dir, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise self._unusable(error) from error

    def _refuse_foreign(self) -> None:
        """What the ledger says decides what may be taken back: nobody else may write it."""
        found = os.stat(self.state_dir)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
            raise LedgerError(
                f"the state folder {self.state_dir} belongs to another user or can be written by everybody; "
                "correct its owner and mode, or give another 'state_dir'"
            )

    def _take(self, fd: int, deadline: Deadline) -> None:
        for _try in deadline.pauses(most=0.5):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with contextlib.suppress(OSError):  # a full disk: the name is only a help to others
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            return
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise LedgerError(
            f"the state folder {self.state_dir} is locked by another run (pid {holder}) for more than "
            f"{deadline.seconds:g} seconds; wait for it, or raise 'timeout'"
        )

    def _unusable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"the state folder {self.state_dir} cannot be used: {(error.strerror or str(error)).lower()}; "
            "run as root (become: true), or give another 'state_dir'"
        )


def _to_json(ledger: Ledger, stamp: Stamp) -> Dict[str, object]:
    return {
        "format": FORMAT,
        "boot_id": stamp.boot_id,
        "module": list(stamp.module),
        "connections": [list(connection) for connection in ledger.connections],
        "added": ledger.added,
        "available": ledger.available,
        "serials": ledger.serials,
        "p2p": {key: {"enabled": pair.enabled, "vdevs": list(pair.vdevs)} for key, pair in ledger.p2p.items()},
        "settings": ledger.settings,
        "scanned": ledger.scanned,
        "borrowed": ledger.borrowed,
    }


def _from_json(data: Dict[str, object], stamp: Stamp) -> Ledger:
    """Raises ValueError, TypeError, KeyError or AttributeError for anything that is not a ledger of this stamp."""
    if data["format"] != FORMAT or data["boot_id"] != stamp.boot_id or data["module"] != list(stamp.module):
        raise ValueError("of another boot, module load or format")
    return Ledger(
        connections=[(_int(node), _int(adapter)) for node, adapter in map(_list, _list(data["connections"]))],
        added=[_text(bdf) for bdf in _list(data["added"])],
        available=_optional_texts(data["available"]),
        serials={_text(bdf): _text(serial) for bdf, serial in _dict(data["serials"]).items()},
        p2p={_text(key): _pair(_dict(pair)) for key, pair in _dict(data["p2p"]).items()},
        settings={_text(name): _text(value) for name, value in _dict(data["settings"]).items()},
        scanned=[_int(node) for node in _list(data["scanned"])],
        borrowed=_optional_texts(data["borrowed"]),
    )


def _pair(data: Dict[object, object]) -> PairState:
    source, destination = _list(data["vdevs"])
    return PairState(data["enabled"] is True, (_text(source), _text(destination)))


def _optional_texts(value: object) -> Dict[str, Optional[str]]:
    return {_text(key): None if text is None else _text(text) for key, text in _dict(value).items()}


def _list(value: object) -> List[object]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _dict(value: object) -> Dict[object, object]:
    if not isinstance(value, dict):
        raise TypeError("not a dictionary")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value
