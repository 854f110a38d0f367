# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd unit of a server: an instance of what the role cplane_server installs."""

from __future__ import annotations

import glob
import hashlib
import os
import subprocess
from dataclasses import dataclass
from typing import Dict, Iterator, Optional, Sequence

from .errors import CplaneError

_TEMPLATE = "xnvme-cplane@.service"
# Where systemd looks for units; the first file of a name is the one that counts.
_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
_SHOWN = ("ActiveState", "MainPID", "StatusText")


def unit_of(cplane_id: int) -> str:
    """The systemd unit that serves an id."""
    return f"xnvme-cplane@{cplane_id}.service"


@dataclass(frozen=True)
class UnitState:
    """An instance as systemd knows it now. ``pid`` is its main process, None where it has none; ``status`` is what it
    last said of itself, which is forgotten when it is stopped."""

    pid: Optional[int] = None
    is_starting: bool = False
    """It has no server yet: it is being started, or will be tried again."""
    status: str = ""


def unit_state(cplane_id: int) -> UnitState:
    """Ask systemd; a unit that it does not know, or that cannot be asked for, does nothing."""
    done = systemctl(["show", *(f"--property={name}" for name in _SHOWN), unit_of(cplane_id)], 10)
    shown: Dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _equals, value = line.partition("=")
        shown[name] = value
    pid = shown.get("MainPID", "")
    return UnitState(
        int(pid) if pid.isdigit() and int(pid) else None,
        shown.get("ActiveState") == "activating",
        shown.get("StatusText", ""),
    )


def unit_digest(cplane_id: int, folders: Sequence[str] = _FOLDERS) -> str:
    """What tells one version of an instance's unit from another: its file and its drop-ins, without comments.

    Empty where there is no such unit.
    """
    instance = unit_of(cplane_id)
    found = [path for name in (instance, _TEMPLATE) for path in _first(name, folders)][:1]
    if not found:
        return ""
    for name in (_TEMPLATE, instance):
        dropins: Dict[str, str] = {}
        for folder in reversed(folders):
            dropins.update({os.path.basename(path): path for path in glob.glob(f"{folder}/{name}.d/*.conf")})
        found += [dropins[key] for key in sorted(dropins)]
    whole = hashlib.sha256()
    for path in found:
        whole.update("".join(_settings(path)).encode())
    return whole.hexdigest()


def _first(name: str, folders: Sequence[str]) -> Iterator[str]:
    return (path for path in (f"{folder}/{name}" for folder in folders) if os.path.exists(path))


def _settings(path: str) -> Iterator[str]:
    """The lines of a unit file that say something."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().encode("utf-8", "replace").decode().splitlines()
    except OSError:
        return iter(())
    return (f"{line.strip()}\n" for line in lines if line.strip() and line.strip()[0] not in "#;")


def systemctl(arguments: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run systemctl for at most ``timeout`` seconds, whatever its exit status."""
    command = ["systemctl", "--no-pager", *arguments]
    try:
        return subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=max(1.0, timeout),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CplaneError(f"'{' '.join(command)}' did not end within {timeout:g} seconds") from None
    except OSError as error:
        raise CplaneError(f"systemctl cannot be run: {error.strerror}; use manager: process") from None
