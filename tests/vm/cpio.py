# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives in the form that the kernel unpacks at its start ("newc"); several in a row count as one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

FOLDER, LINK = stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777
PROGRAM, TEXT = stat.S_IFREG | 0o755, stat.S_IFREG | 0o644


def add(archive: BinaryIO, name: str, mode: int, data: bytes = b"") -> None:
    """Adds a file, folder or link of root's; ``name`` is without a slash in front, a link's data is its target."""
    path = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, checksum
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    archive.write(_padded(head))
    archive.write(_padded(data))


def add_path(archive: BinaryIO, name: str, path: Path) -> None:
    """Adds what lies at a path; a folder without what is in it."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        add(archive, name, LINK, os.readlink(path).encode())
    elif stat.S_ISDIR(mode):
        add(archive, name, FOLDER)
    else:
        add(archive, name, PROGRAM if mode & 0o100 else TEXT, path.read_bytes())


def end(archive: BinaryIO) -> None:
    """Ends an archive."""
    add(archive, "TRAILER!!!", 0)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
