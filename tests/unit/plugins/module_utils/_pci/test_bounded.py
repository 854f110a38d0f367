# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import bounded
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.bounded import Ended, GivenUp

SHELL = "/bin/sh"


def test_a_write(tmp_path: Path) -> None:
    file = tmp_path / "unbind"
    file.write_text("a longer text than before")
    assert bounded.write(str(file), "0000:81:00.0", 10) == Ended(0, "")
    assert file.read_text() == "0000:81:00.0"
    assert bounded.write(str(tmp_path / "missing"), "x", 10).status == errno.ENOENT
    assert not (tmp_path / "missing").exists()


def test_a_write_that_never_ends_is_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "unbind"
    os.mkfifo(pipe)
    started = time.monotonic()
    with pytest.raises(GivenUp) as caught:
        bounded.write(str(pipe), "x", 0.2)
    assert not caught.value.stuck and time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(caught.value.pid, 0)


def test_one_that_cannot_be_killed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_killed", lambda pid: False)
    pipe = tmp_path / "unbind"
    os.mkfifo(pipe)
    with pytest.raises(GivenUp) as caught:
        bounded.write(str(pipe), "x", 0.1)
    assert caught.value.stuck
    monkeypatch.undo()
    assert bounded._killed(caught.value.pid)


def test_a_program() -> None:
    assert bounded.run([SHELL, "-c", "echo out; echo err >&2; echo $LC_ALL; exit 3"], 10) == Ended(3, "out\nerr\nC")
    assert len(bounded.run([SHELL, "-c", "yes | head -c 1000000"], 30).output) <= 8192
    assert bounded.run([SHELL, "-c", "kill -9 $$"], 10).status == 255


def test_what_is_left_behind_holds_nothing_open(tmp_path: Path) -> None:
    """Whoever reads the output of a module, as Ansible does, is not kept by a child that nobody can end."""
    pipe = tmp_path / "unbind"
    os.mkfifo(pipe)
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import bounded
bounded._killed = lambda pid: False
try:
    bounded.write({str(pipe)!r}, "x", 0.1)
except bounded.GivenUp as error:
    print(error.pid)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    try:
        assert time.monotonic() - started < 50
        os.kill(int(done.stdout), 0)
    finally:
        os.kill(int(done.stdout), 9)
