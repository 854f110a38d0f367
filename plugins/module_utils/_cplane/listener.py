# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The place where a server listens: taken only when nobody answers there, and who may connect to it.

The directory is open to everybody. A place is therefore taken under a lock file, by binding to a private name and
renaming; it is refused when it holds anything but a dead socket of our own user; and what is removed at the end is
only the socket that we bound.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import re
import socket
import stat
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import FrozenSet, Optional, Tuple, Type

from .client import MAX_ID, socket_path
from .errors import AlreadyServed, ConfigError, CplaneError, UnsafePath, errno_name

BACKLOG = 1024
"""Connections that may wait to be accepted; the system may allow fewer."""
_LOCK_TIME = 5.0
"""How long to wait for another start or stop of the same id, in seconds."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_PEERCRED = struct.Struct("3i")


@dataclass(frozen=True)
class Access:
    """Who may connect: the socket's mode and group, and the users that are served.

    With ``allow_uids`` and ``allow_gids`` both empty, whoever may open the socket is served. Otherwise the peer's user
    or primary group must be listed; root and the server's own user always are.
    """

    mode: int = 0o660
    group: Optional[str] = None
    allow_uids: FrozenSet[int] = frozenset()
    allow_gids: FrozenSet[int] = frozenset()

    def allows(self, uid: int, gid: int) -> bool:
        """Whether a peer with these credentials is served."""
        if not self.allow_uids and not self.allow_gids:
            return True
        return uid in (0, os.geteuid()) or uid in self.allow_uids or gid in self.allow_gids

    def apply(self, path: str) -> None:
        """Give the socket at ``path`` its mode and group; raises ConfigError."""
        try:
            os.chown(path, -1, _gid(self.group) if self.group is not None else os.getegid())
            os.chmod(path, self.mode)
        except OSError as error:
            raise ConfigError(
                f"cannot give {path} mode {self.mode:04o} and group {self.group or os.getegid()}: {error.strerror}"
            ) from None


def _gid(group: str) -> int:
    # The highest number is no group: it tells chown to leave things as they are.
    if _NUMBER.fullmatch(group) and int(group) < MAX_ID:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise ConfigError(f"there is no group {group!r}") from None


def peer_of(sock: socket.socket) -> Tuple[int, int, int]:
    """Return pid, uid and gid of the other side, as they were when it connected."""
    pid, uid, gid = _PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    return pid, uid, gid


class _Lock:
    """The lock of an id: a file beside the socket, there only while somebody takes or leaves the place."""

    def __init__(self, cplane_id: int, directory: str) -> None:
        self._path = os.path.join(directory, f".xnvme-homi-{cplane_id}.lock")
        self._fd = -1

    def __enter__(self) -> _Lock:
        end = time.monotonic() + _LOCK_TIME
        while not self._try():
            if time.monotonic() > end:
                raise CplaneError(f"{self._path} is locked: another server of this id starts or stops")
            time.sleep(0.02)
        return self

    def __exit__(
        self, _type: Optional[Type[BaseException]], _error: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        _unlink(self._path)
        os.close(self._fd)

    def _try(self) -> bool:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise UnsafePath(f"cannot lock {self._path}: {error.strerror}") from None
        try:
            mine = os.fstat(fd)
            if not stat.S_ISREG(mine.st_mode) or mine.st_uid != os.geteuid():
                raise UnsafePath(f"{self._path} is not a file of ours; it was left as it is")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had the lock removed the file at the end; then this is no longer the one that others see.
            if not _same(self._path, mine):
                raise BlockingIOError
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True


def _same(path: str, found: os.stat_result) -> bool:
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)


class Listener:
    """A listening socket at the place of an id, ours until close."""

    def __init__(self, cplane_id: int, directory: str, access: Access) -> None:
        self.path = socket_path(cplane_id, directory)
        if len(os.fsencode(self.path)) > 107:
            raise UnsafePath(f"{self.path}: too long for the path of a socket (107 bytes at most)")
        self._id, self._directory = cplane_id, directory
        private = os.path.join(directory, f".{cplane_id}.{os.getpid()}")
        with _Lock(cplane_id, directory):
            _refuse_taken(self.path, cplane_id)
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._bind(private, access)
                os.rename(private, self.path)
            except BaseException:
                self.sock.close()
                _unlink(private)
                raise
            self._found = os.lstat(self.path)

    def _bind(self, private: str, access: Access) -> None:
        try:
            # One of an earlier process with our number; the name is ours alone.
            _unlink(private)
            self.sock.bind(private)
        except OSError as error:
            raise CplaneError(f"cannot listen in {self._directory}: {error.strerror}") from None
        access.apply(private)
        self.sock.listen(BACKLOG)
        self.sock.setblocking(False)

    def apply(self, access: Access) -> None:
        """Change mode and group while serving; raises ConfigError, or UnsafePath when the place is lost."""
        if not _same(self.path, self._found):
            raise UnsafePath(f"{self.path} is no longer our socket; it was left as it is")
        access.apply(self.path)

    def close(self) -> None:
        """Stop listening, and remove the socket while it is still ours."""
        self.sock.close()
        with _Lock(self._id, self._directory):
            if _same(self.path, self._found):
                os.unlink(self.path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _refuse_taken(path: str, cplane_id: int) -> None:
    """Raise unless ``path`` is free, or a socket of our own user that nobody answers on."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CplaneError(f"cannot look at {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafePath(f"{path} is not a socket; it was left as it is")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        number = sock.connect_ex(path)
    if number in (0, errno.EAGAIN):  # EAGAIN: its backlog is full, but it is there
        raise AlreadyServed(f"id {cplane_id} is served already: somebody answers at {path}")
    if found.st_uid != os.geteuid():
        raise UnsafePath(f"{path} belongs to user {found.st_uid}; it was left as it is")
    if number not in (errno.ECONNREFUSED, errno.ENOENT):
        raise UnsafePath(f"cannot tell whether somebody answers at {path} ({errno_name(number)}); it was left as it is")
