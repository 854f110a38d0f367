# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the replay of this boot, and of this load of the kernel module, has come.

A replay that was killed goes on where it was; a finished one does nothing when it is started again. What the file does
not say is done again, which is harmless: what is there already costs no command.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import Dict, Optional, Set

from .._program import replace_file
from .._smartio.ledger import Stamp

FORMAT = 1
_FILE = "replayed.json"


@dataclass
class Progress:
    """The keys of entries that are done, and of those that were refused for good, with the reason."""

    stamp: Optional[Stamp] = None
    done: Set[str] = field(default_factory=set)
    refused: Dict[str, str] = field(default_factory=dict)


def load(run_dir: str) -> Progress:
    """What is remembered; nothing where it is missing or damaged."""
    try:
        with open(os.path.join(run_dir, _FILE), encoding="utf-8") as file:
            data = json.load(file)
        if data["format"] != FORMAT:
            return Progress()
        inode, ctime = data["module"]
        stamp = Stamp(str(data["boot_id"]), (int(inode), int(ctime)))
        refused = {str(key): str(reason) for key, reason in data["refused"].items()}
        return Progress(stamp, {str(key) for key in data["done"]}, refused)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Progress()


def save(run_dir: str, progress: Progress) -> None:
    """Remember it. Where that is not possible, the next replay only has more to look at."""
    if progress.stamp is None:
        return
    data = {
        "format": FORMAT,
        "boot_id": progress.stamp.boot_id,
        "module": list(progress.stamp.module),
        "done": sorted(progress.done),
        "refused": progress.refused,
    }
    with contextlib.suppress(OSError):
        replace_file(os.path.join(run_dir, _FILE), (json.dumps(data, indent=1) + "\n").encode(), 0o644)
