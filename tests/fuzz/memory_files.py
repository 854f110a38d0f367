# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files in memory that take the place of sysfs, proc and dev, and change, vanish or fail while they are read.

What reads them sees them through its names ``os`` and ``open``. Every access counts, and a change can be set for any.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import stat
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union
from unittest import mock

_MOST_LINKS = 40
Plan = Dict[int, Callable[[], object]]


class Node:
    """A file, a folder, a link or a device node. ``fault`` is the errno of every access, ``mid_read`` that of read."""

    _count = 100

    def __init__(self, kind: int, content: bytes = b"", target: str = "", rdev: int = 0) -> None:
        Node._count += 1
        self.inode = Node._count
        self.kind = kind
        self.content = content
        self.target = target
        self.rdev = rdev
        self.entries: Dict[str, Node] = {}
        self.fault = 0
        self.mid_read = 0


class Entry:
    """What scandir yields."""

    def __init__(self, files: Files, folder: str, name: str, node: Node) -> None:
        self._files, self._path, self._node = files, f"{folder}/{name}", node
        self.name = name

    def is_dir(self, follow_symlinks: bool = True) -> bool:
        """As the original: what is not there is none."""
        if not stat.S_ISLNK(self._node.kind):
            return stat.S_ISDIR(self._node.kind)
        try:
            return follow_symlinks and stat.S_ISDIR(self._files.find(self._path).kind)
        except FileNotFoundError:
            return False


class File(io.BytesIO):
    """An open file, which may fail later than when it was opened."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.content)
        self._node = node

    def read(self, size: Optional[int] = -1, /) -> bytes:
        """As the original."""
        if self._node.mid_read:
            raise OSError(self._node.mid_read, os.strerror(self._node.mid_read))
        return super().read(size)


class Files:
    """The whole tree. Paths are absolute."""

    def __init__(self) -> None:
        self.root = Node(stat.S_IFDIR)
        self.accesses = 0
        self.plan: Plan = {}

    # -- building, which is no access -----------------------------------------------------------------------------

    def folder(self, path: str) -> Node:
        """A folder, made with all above it where it is not there."""
        node = self.root
        for name in path.strip("/").split("/"):
            found = node.entries.get(name)
            if found is None:
                found = node.entries[name] = Node(stat.S_IFDIR)
            node = found
        return node

    def put(self, path: str, node: Node) -> Node:
        """Put something in a place."""
        above, _slash, name = path.rpartition("/")
        self.folder(above).entries[name] = node
        return node

    def write(self, path: str, content: Union[str, bytes]) -> None:
        """A file."""
        self.put(path, Node(stat.S_IFREG, content.encode() if isinstance(content, str) else content))

    def link(self, path: str, target: str) -> None:
        """A link to an absolute path, or to what is none."""
        self.put(path, Node(stat.S_IFLNK, target=target))

    def device(self, path: str, kind: int, number: Tuple[int, int]) -> None:
        """A device node."""
        self.put(path, Node(kind, rdev=os.makedev(*number)))

    def remove(self, path: str) -> Optional[Node]:
        """Take something away; what it was, if it was there."""
        above, _slash, name = path.rpartition("/")
        node: Optional[Node] = self.root
        for part in above.strip("/").split("/"):
            node = node.entries.get(part) if node else None
        return node.entries.pop(name, None) if node else None

    def paths(self, top: str) -> List[str]:
        """Everything below a folder, parents first."""
        found = [f"{top}/{name}" for name in self.folder(top).entries]
        return [deep for path in found for deep in (path, *self._below(path))]

    def _below(self, path: str) -> List[str]:
        above, _slash, name = path.rpartition("/")
        return self.paths(path) if stat.S_ISDIR(self.folder(above).entries[name].kind) else []

    # -- accesses -------------------------------------------------------------------------------------------------

    def find(self, path: str, follow: bool = True) -> Node:
        """What a path leads to; raises OSError."""
        return self._walk(path, follow)[-1][1]

    def real(self, path: str) -> str:
        """The path without links; what is not there counts as a plain name."""
        try:
            return "/" + "/".join(name for name, _node in self._walk(path, True)[1:])
        except OSError:
            return posixpath.normpath(path)

    def _walk(self, path: str, follow: bool) -> List[Tuple[str, Node]]:
        if "\0" in path:
            raise ValueError("embedded null byte")
        left = path.split("/")[::-1]
        trail: List[Tuple[str, Node]] = [("", self.root)]
        links = 0
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                trail[1:] = trail[1:-1]
                continue
            above = trail[-1][1]
            if not stat.S_ISDIR(above.kind):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            node = above.entries.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if stat.S_ISLNK(node.kind) and (follow or any(left)):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                trail = trail[:1] if node.target.startswith("/") else trail
                left += node.target.split("/")[::-1]
                continue
            trail.append((name, node))
        return trail

    def access(self, path: str, follow: bool = True) -> Node:
        """Count, change what is to change now, and find; raises OSError."""
        self.accesses += 1
        change = self.plan.get(self.accesses)
        if change is not None:
            change()
        node = self.find(path, follow)
        if node.fault:
            raise OSError(node.fault, os.strerror(node.fault), path)
        return node

    def listdir(self, path: str) -> List[str]:
        """As os.listdir."""
        node = self.access(path)
        if not stat.S_ISDIR(node.kind):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return list(node.entries)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[List[Entry]]:
        """As os.scandir."""
        names = self.listdir(path)
        yield [Entry(self, path, name, self.find(path).entries[name]) for name in names]

    def readlink(self, path: str) -> str:
        """As os.readlink."""
        node = self.access(path, follow=False)
        if not stat.S_ISLNK(node.kind):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return node.target

    def stat(self, path: str) -> os.stat_result:
        """As os.stat."""
        node = self.access(path)
        fields = (node.kind, node.inode, 1, 1, 0, 0, len(node.content), 0, 0, 0)
        return os.stat_result(fields, {"st_rdev": node.rdev, "st_ctime_ns": node.inode})

    def open(self, path: str, mode: str = "r", encoding: str = "utf-8", errors: str = "strict") -> Any:
        """As open, for reading."""
        node = self.access(path)
        if stat.S_ISDIR(node.kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        file = File(node)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, errors)

    @contextlib.contextmanager
    def instead(self, *modules: ModuleType) -> Iterator[None]:
        """Have modules see these files and no others."""
        seen = _Os(self)
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(mock.patch.object(module, "os", seen))
                stack.enter_context(mock.patch.object(module, "open", self.open, create=True))
                if hasattr(module, "in_time"):  # nothing here takes time, but to start a thread does
                    stack.enter_context(mock.patch.object(module, "in_time", _at_once))
            yield


def _at_once(work: Callable[[], None], _seconds: float) -> bool:
    work()
    return True


class _Path:
    """os.path, with the answers of these files."""

    def __init__(self, files: Files) -> None:
        self.realpath = files.real
        self.samefile = lambda _one, _other: False

    def __getattr__(self, name: str) -> Any:
        return getattr(posixpath, name)


class _Os:
    """os, likewise."""

    def __init__(self, files: Files) -> None:
        self.path = _Path(files)
        self.listdir, self.scandir, self.readlink, self.stat = files.listdir, files.scandir, files.readlink, files.stat

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
