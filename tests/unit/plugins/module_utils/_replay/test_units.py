# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units that wait for what is borrowed, and a tool that hangs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.units import unit_of
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.cautious import CautiousTool, Memory
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.units import Systemd, mount_unit
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import ToolError, ToolUnusable

PATHS = {
    "/": "-.mount",
    "/srv": "srv.mount",
    "/srv/scratch/": "srv-scratch.mount",
    "//srv//a-b/./c": "srv-a\\x2db-c.mount",
    "/.hidden/.x": "\\x2ehidden-.x.mount",
    "/a b:c_d.e~f": "a\\x20b:c_d.e\\x7ef.mount",
    "/ü": "\\xc3\\xbc.mount",
}


@pytest.mark.parametrize("path", list(PATHS))
def test_the_unit_of_a_mount_point(path: str) -> None:
    assert mount_unit(path) == PATHS[path]
    if shutil.which("systemd-escape"):
        told = subprocess.run(
            ["systemd-escape", "--path", "--suffix=mount", path], capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == mount_unit(path)


def fake(folder: Path, body: str) -> str:
    """A program."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_systemd_is_asked_without_waiting(tmp_path: Path) -> None:
    script = f'echo "$@" >>{tmp_path}/calls; test "$1" = is-enabled && echo enabled; exit 0'
    systemd = Systemd(fake(tmp_path, script), str(tmp_path))
    assert systemd.is_running
    assert systemd.is_enabled(unit_of(7))
    assert systemd.is_active("a.mount")
    systemd.start("a.mount")
    systemd.restart("b.service")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "is-enabled xnvme-cplane@7.service",
        "is-active a.mount",
        "start --no-block -- a.mount",
        "restart --no-block -- b.service",
    ]
    assert not Systemd("systemctl", str(tmp_path / "nowhere")).is_running


def test_what_systemd_refuses_is_told(tmp_path: Path) -> None:
    systemd = Systemd(fake(tmp_path, "echo 'Failed to start a.mount: Unit a.mount not found.' >&2; exit 5"))
    with pytest.raises(SharingError, match=r"'systemctl start a\.mount' failed: Failed to start a\.mount: Unit"):
        systemd.start("a.mount")
    assert not systemd.is_enabled("a.mount")
    assert not systemd.is_active("a.mount")
    with pytest.raises(ToolUnusable):
        Systemd("/nowhere/systemctl").start("a.mount")


def test_a_command_that_hangs_costs_its_limit_once(tmp_path: Path) -> None:
    """It is tried again after one pass, two, four; others of its kind in the next one."""
    program = fake(tmp_path, f'echo "$@" >>{tmp_path}/calls; test "$2" = 1 && exec sleep 60; exit 19')
    memory = Memory()
    tool = CautiousTool(program, lambda _subjects: [], memory, limit=0.2)

    def calls() -> List[str]:
        memory.next_pass()
        (tmp_path / "calls").write_text("")
        for fdid in ("1", "2"):
            with pytest.raises(ToolError, match=r"did not end|ENODEV"):
                tool.show(fdid)
        with pytest.raises(ToolError, match="ENODEV"):
            tool.give_back("3")
        return (tmp_path / "calls").read_text().splitlines()

    hung, rested = ["show 1", "return 3"], ["show 2", "return 3"]
    assert [calls() for _pass in range(6)] == [hung, rested, hung, rested, rested, hung]
