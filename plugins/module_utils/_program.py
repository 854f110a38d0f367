# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a program of the collection lies on a node, and whether it is the one that the collection brings.

The action plugin knows what the zipapp must be (its digest) and hands it over when the node has not got it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Optional

from ._plan import SharingError


def file_digest(path: str) -> Optional[str]:
    """The SHA-256 of a file in hex; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def is_safe(path: str) -> bool:
    """Whether only this user or root can change what lies there; a symbolic link's target may be anybody's."""
    try:
        found = os.lstat(path)
    except OSError:
        return True  # nothing there, or nothing that could be run or replaced
    return not stat.S_ISLNK(found.st_mode) and is_owned(found)


def is_owned(found: os.stat_result) -> bool:
    """Whether only this user or root can write what was looked at."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def refuse_unsafe(path: str, option: str) -> None:
    """Raise where somebody else could change ``path`` or replace it; ``option`` is what a person can change."""
    for place in (os.path.dirname(path), path):
        if not is_safe(place):
            raise SharingError(
                f"{place} belongs to another user, can be written by others or is a symbolic link; "
                f"it was left as it is: remove it, or give another {option}"
            )


def replace_file(path: str, data: bytes, mode: int) -> None:
    """Put ``data`` at ``path`` in one step, with its folder: a reader sees what was there before, or all of it.

    Raises OSError.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path + ".new", flags, mode), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


@dataclass(frozen=True)
class Program:
    """``path`` is where the program belongs, ``wanted`` the digest that it has (None: nobody knows), ``source`` a file
    that was brought to the node."""

    path: str
    wanted: Optional[str]
    source: Optional[str]

    @property
    def name(self) -> str:
        """What the program is called, without version and ending."""
        return os.path.basename(self.path).rpartition(".pyz")[0] or self.path

    @property
    def differs(self) -> bool:
        """Whether what lies there is not what the collection brings."""
        return self.wanted is not None and file_digest(self.path) != self.wanted

    @property
    def missing(self) -> bool:
        """Whether the program must be brought to the node first."""
        return self.differs and not self.source

    def check(self) -> None:
        """Raise where it could not be run: no program, or one that somebody else could change."""
        if self.wanted is None and not os.path.isfile(self.path):
            raise SharingError(f"{self.name} is not at {self.path}; run the module through Ansible")
        refuse_unsafe(self.path, "program_dir")

    def install(self) -> None:
        """Put what was brought in its place in one step."""
        self.check()
        if not self.source or not self.differs:
            return
        try:
            with open(self.source, "rb") as file:
                data = file.read()
            replace_file(self.path, data, 0o755)
        except OSError as error:
            raise SharingError(
                f"cannot put {self.name} at {self.path}: {error.strerror or error}; "
                "make room for it, or give another program_dir"
            ) from None
