# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where our server's program lies on a node: where a person said, or where the collection puts its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from .._program import Program, file_digest
from . import VERSION
from .errors import NotYet

NAME = f"xnvme-cplaned-{VERSION}.pyz"
_SYSTEM_DIR = "/var/lib/iofabric"


def program_dir() -> str:
    """The folder for programs on a node: the system's, or another user's own without root."""
    return _SYSTEM_DIR if os.geteuid() == 0 else os.path.expanduser("~/.local/share/iofabric")


@dataclass(frozen=True)
class ProgramPlace:
    """``given`` is a path that a person named, ``folder`` where the collection's own program belongs (None: the usual
    one), ``wanted`` the digest that it has, ``source`` a file that was brought to the node."""

    given: Optional[str]
    folder: Optional[str]
    wanted: Optional[str]
    source: Optional[str]

    @property
    def _own(self) -> Program:
        return Program(os.path.join(self.folder or program_dir(), NAME), self.wanted, self.source)

    @property
    def path(self) -> str:
        """Where the program lies, or belongs."""
        return self.given or self._own.path

    @property
    def digest(self) -> str:
        """The digest of the program that a server started now would run; empty where there is none."""
        return (self.wanted if not self.given else None) or file_digest(self.path) or ""

    @property
    def missing(self) -> bool:
        """Whether the program must be brought to the node first."""
        return not self.given and self._own.missing

    def check(self) -> None:
        """Raise where no server could be started: no program, or one that somebody else could change."""
        if not self.given:
            self._own.check()
        elif not os.path.isfile(self.given):
            raise NotYet(f"program: {self.given} is not a file on the node; correct it, or leave it out")

    def install(self) -> str:
        """The program's path, after putting what was brought in its place in one step."""
        self.check()
        if not self.given:
            self._own.install()
        return self.path
