# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of systemd that wait for what is borrowed: mounts, and servers of the control plane."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from .._plan import SharingError
from .._smartio.command import Finished, run

_LIMIT = 30.0
_ENABLED = ("enabled", "enabled-runtime", "static", "generated", "linked", "linked-runtime", "alias", "indirect")
SERVICE = "iofabric-sharing.service"


def mount_unit(path: str) -> str:
    """The name of the unit of a mount point, as ``systemd-escape --path --suffix=mount`` makes it."""
    parts = [part for part in path.split("/") if part and part != "."]
    text = "/".join(parts)
    escaped = [_escape(char, place) for place, char in enumerate(text)]
    return ("".join(escaped) or "-") + ".mount"


def _escape(char: str, place: int) -> str:
    if char == "/":
        return "-"
    if re.fullmatch(r"[A-Za-z0-9:_.]", char, re.ASCII) and not (char == "." and place == 0):
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True)
class Systemd:
    """The service manager. ``booted`` is the folder that there is where systemd is process 1."""

    program: str = "systemctl"
    booted: str = "/run/systemd/system"

    @property
    def is_running(self) -> bool:
        """Whether there is one to ask."""
        return os.path.isdir(self.booted)

    def is_enabled(self, unit: str) -> bool:
        """Whether a unit is started by itself, at boot or by another one."""
        return self._ask("is-enabled", unit).stdout.strip() in _ENABLED

    def is_active(self, unit: str) -> bool:
        """Whether a unit runs, or is mounted."""
        return self._ask("is-active", unit).status == 0

    def start(self, unit: str) -> None:
        """Ask for a start, and do not wait for it: the unit may be ordered after this very program."""
        self._do("start", unit)

    def restart(self, unit: str) -> None:
        """Ask for a restart, which starts what does not run."""
        self._do("restart", unit)

    def _do(self, verb: str, unit: str) -> None:
        finished = run([self.program, verb, "--no-block", "--", unit], _LIMIT)
        if finished.status != 0:
            said = finished.output.strip().splitlines()
            why = said[0] if said else f"exit status {finished.status}"
            raise SharingError(f"'systemctl {verb} {unit}' failed: {why}")

    def _ask(self, *words: str) -> Finished:
        return run([self.program, *words], _LIMIT)
