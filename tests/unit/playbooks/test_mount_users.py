# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who keeps a mount point from being unmounted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "playbooks/files/mount_users.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mount_users", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two processes and three mounts; process 7 is gone while it is looked at."""
    for pid, name, cwd in ((812, "bash", "/srv/x/home"), (813, "cat", "/srv/xyz")):
        folder = tmp_path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cwd").symlink_to(cwd)
        (folder / "root").symlink_to("/")
        (folder / "fd" / "0").symlink_to("/dev/null")
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    points = ["/", "/srv/x", "/srv/x/deep", "/srv/with\\040space"]
    lines = [f"{number} 1 8:1 / {point} rw - ext4 /dev/sda1 rw\n" for number, point in enumerate(points)]
    (tmp_path / "self/mountinfo").write_text("".join(lines))
    return tmp_path


def test_look(script: ModuleType, proc: Path) -> None:
    assert script.look(str(proc), ["/srv/x", "/srv/with space", "/srv/none"]) == {
        "/srv/x": {"mounted": True, "users": ["bash (pid 812)"], "below": ["/srv/x/deep"]},
        "/srv/with space": {"mounted": True, "users": [], "below": []},
        "/srv/none": {"mounted": False, "users": [], "below": []},
    }


def test_open_files_count(script: ModuleType, proc: Path) -> None:
    (proc / "813/fd/5").symlink_to("/srv/x/log (deleted)")
    assert script.users(str(proc), "/srv/x") == ["bash (pid 812)", "cat (pid 813)"]
    assert script.users(str(proc), "/srv/xyz") == ["cat (pid 813)"]


def test_as_it_is_run() -> None:
    """By exec, from standard input, with the paths as arguments."""
    done = subprocess.run(
        [sys.executable, "-c", "import json, sys; exec(json.loads(sys.stdin.readline()))", "/proc", "/nowhere"],
        input=json.dumps(SCRIPT.read_text()) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["/nowhere"] == {"mounted": False, "users": [], "below": []}
    assert answer["/proc"]["mounted"] is os.path.ismount("/proc")
