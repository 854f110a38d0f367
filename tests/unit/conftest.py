# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all unit tests share."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Iterator

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: the path of a unix socket has at most 107 bytes, which pytest's own folders fill."""
    folder = Path(tempfile.mkdtemp(prefix="t"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
