# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where our server's program lies on a node, and whether it is the one that this collection brings.

The action plugin knows what the zipapp must be (its digest) and hands it over when the node has not got it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Optional

from . import VERSION
from .errors import ConfigError, CplaneError

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


@dataclass(frozen=True)
class ProgramPlace:
    """``given`` is a path that a person named, ``wanted`` the digest that the collection's own program has, ``source``
    a file that was brought to the node."""

    given: Optional[str]
    wanted: Optional[str]
    source: Optional[str]

    @property
    def path(self) -> str:
        """Where the program lies, or belongs."""
        return self.given or os.path.join(program_dir(), NAME)

    @property
    def digest(self) -> Optional[str]:
        """The digest of the program that a server started now would run."""
        return (self.wanted if not self.given else None) or file_digest(self.path)

    @property
    def missing(self) -> bool:
        """Whether the program must be brought to the node first."""
        return not self.given and self.wanted is not None and not self.source and file_digest(self.path) != self.wanted

    def install(self, check: bool) -> str:
        """The program's path, after putting what was brought in its place in one step."""
        if self.given and not os.path.isfile(self.given):
            raise ConfigError(f"program: {self.given} is not a file on the node; correct it, or leave it out")
        if self.source and not self.given and not check and file_digest(self.path) != self.wanted:
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
            raise CplaneError(f"cannot put xnvme-cplaned at {self.path}: {error.strerror or error}") from None
