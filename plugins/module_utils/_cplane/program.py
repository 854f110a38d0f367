# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where our server's program lies on a node, and whether it is the one that this collection brings.

The action plugin knows what the zipapp must be (its digest) and hands it over when the node has not got it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Optional

from . import VERSION
from .errors import ConfigError, CplaneError, NotYet

NAME = f"xnvme-cplaned-{VERSION}.pyz"
_SYSTEM_DIR = "/var/lib/iofabric"


def program_dir() -> str:
    """The folder for programs on a node: the system's, or another user's own without root."""
    return _SYSTEM_DIR if os.geteuid() == 0 else os.path.expanduser("~/.local/share/iofabric")


def file_digest(path: str) -> Optional[str]:
    """The SHA-256 of a file in hex; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _is_safe(path: str) -> bool:
    """Whether only this user or root can change what lies there; a symbolic link's target may be anybody's."""
    try:
        found = os.lstat(path)
    except OSError:
        return True  # nothing there, or nothing that could be run or replaced
    return (
        not stat.S_ISLNK(found.st_mode)
        and found.st_uid in (0, os.geteuid())
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@dataclass(frozen=True)
class ProgramPlace:
    """``given`` is a path that a person named, ``folder`` where the collection's own program belongs (None: the usual
    one), ``wanted`` the digest that it has, ``source`` a file that was brought to the node."""

    given: Optional[str]
    folder: Optional[str]
    wanted: Optional[str]
    source: Optional[str]

    @property
    def path(self) -> str:
        """Where the program lies, or belongs."""
        return self.given or os.path.join(self.folder or program_dir(), NAME)

    @property
    def digest(self) -> str:
        """The digest of the program that a server started now would run; empty where there is none."""
        return (self.wanted if not self.given else None) or file_digest(self.path) or ""

    @property
    def missing(self) -> bool:
        """Whether the program must be brought to the node first."""
        return not self.given and self.wanted is not None and not self.source and file_digest(self.path) != self.wanted

    def check(self) -> None:
        """Raise where no server could be started: no program, or one that somebody else could change."""
        if self.given:
            if not os.path.isfile(self.given):
                raise NotYet(f"program: {self.given} is not a file on the node; correct it, or leave it out")
            return
        if self.wanted is None and not os.path.isfile(self.path):
            raise ConfigError(f"xnvme-cplaned is not at {self.path}; run the module through Ansible, or give 'program'")
        for path in (os.path.dirname(self.path), self.path):
            if not _is_safe(path):
                raise CplaneError(
                    f"{path} belongs to another user, can be written by others or is a symbolic link; "
                    "it was left as it is: remove it, or give another program_dir"
                )

    def install(self) -> str:
        """The program's path, after putting what was brought in its place in one step."""
        self.check()
        if self.source and not self.given and file_digest(self.path) != self.wanted:
            self._copy(self.source)
        return self.path

    def _copy(self, source: str) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            with open(source, "rb") as file:
                data = file.read()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.path + ".new", flags, 0o755), "wb") as file:
                file.write(data)
            os.replace(self.path + ".new", self.path)
        except OSError as error:
            raise CplaneError(
                f"cannot put xnvme-cplaned at {self.path}: {error.strerror or error}; "
                "make room for it, or give another program_dir"
            ) from None
