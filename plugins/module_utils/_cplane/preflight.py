# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be known of our server's start before a running one is taken away for it; changes nothing.

The server has the last word: that a file is in use, or memory short, shows when it starts.
"""

from __future__ import annotations

import os
import stat
from typing import Optional, Sequence

from .config import PAGE, EmulatedConfig, PciConfig, parse_controllers
from .errors import ConfigError
from .vfio import check_free

MIN_HEAP = 2 * (64 << 10) + (4 << 20) + 16 * PAGE
"""The least memory that our server takes for a controller: one queue pair and what describes it, in bytes."""
MAX_HEAP = 1 << 48


def check_startable(
    controllers: Sequence[str],
    heap_size: Optional[int],
    server: Optional[int] = None,
    unbound: Sequence[str] = (),
) -> None:
    """Raise ConfigError for a heap, a file of an emulated controller, or a real controller that our server would end
    over, and DeviceBusy for one that somebody has open; but not for what ``server`` has, a process that is to be
    replaced, nor for what is still ``unbound``.
    """
    if heap_size is not None and not MIN_HEAP <= heap_size <= MAX_HEAP:
        raise ConfigError(
            f"heap_size: a heap of {heap_size} bytes is too {'small' if heap_size < MIN_HEAP else 'large'}; "
            f"give {MIN_HEAP} to {MAX_HEAP} bytes for each controller"
        )
    files = set()
    for config in parse_controllers(controllers):
        if isinstance(config, EmulatedConfig) and config.path is not None:
            _check_file(config.label, config.path, config.size)
            real = os.path.realpath(config.path)
            if real in files:
                raise ConfigError(f"{config.label}: path={config.path} is the file of another controller, too")
            files.add(real)
        elif isinstance(config, PciConfig) and config.bdf not in unbound:
            check_free(config.bdf, server=server)


def _check_file(label: str, path: str, size: Optional[int]) -> None:
    where = f"{label}: path={path}"
    try:
        found = os.stat(path)
    except FileNotFoundError:
        _check_new(where, path, size)
        return
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{where} is not a regular file")
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise ConfigError(f"{where} {_why_not(path) or 'cannot be read and written by this user'}")
    if not (found.st_size or size) or found.st_size % PAGE or (size and found.st_size not in (0, size)):
        raise ConfigError(
            f"{where} has {found.st_size} bytes, not {size or 'a multiple of 4096'}; give its size, or move it away"
        )


def _check_new(where: str, path: str, size: Optional[int]) -> None:
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise ConfigError(f"{where}: there is no folder {folder}; create it first")
    if size is None:
        raise ConfigError(f"{where}: there is no such file; create it, or give its size")
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError(f"{where} {_why_not(folder) or f'cannot be created by this user in {folder}'}")


def _why_not(path: str) -> str:
    """Why nobody can write there, in words; empty where others could."""
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return "lies where all is read-only (a unit needs ReadWritePaths= for its folder)" if read_only else ""
