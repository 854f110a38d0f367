# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the packed program of the replay is made of: all that the modules plan and act with."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

from .._zipapp import Zipapp
from .persist import PROGRAM

_FOLDERS = ("_cplane", "_pci", "_replay", "_smartio")
_FILES = ("_notify.py", "_plan.py", "_program.py")


def _sources(module_utils: Path) -> Tuple[str, ...]:
    found = [path for folder in _FOLDERS for path in (module_utils / folder).glob("*.py") if path.name != "bundle.py"]
    return tuple(sorted([*_FILES, *(str(path.relative_to(module_utils)) for path in found)]))


SHARING = Zipapp(name=PROGRAM, main="_replay.program", sources=_sources(Path(__file__).parents[1]))
