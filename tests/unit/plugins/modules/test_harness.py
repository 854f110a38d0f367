# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The harness and the stub themselves, and one small story on each version of Python that a node may have."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import List, Optional

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import run
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme


def call(node: Node, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(node.tool), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )


def test_harness_runs_a_module_as_ansible_does() -> None:
    result = run("ansible.builtin.ping", {"data": "hello"}, check=True)
    assert result["ping"] == "hello"
    assert result.rc == 0
    assert not result.failed


def test_harness_shows_a_refused_option() -> None:
    result = run("ansible.builtin.ping", {"nonsense": 1})
    assert result.failed
    assert "nonsense" in result["msg"]


def test_stub_follows_the_manual_page(fabric: Fabric) -> None:
    lender = fabric.node(4, [nvme("0000:81:00.0", 0), gpu("0000:82:00.0", 0)])
    borrower = fabric.node(8)
    assert call(lender, "add", "81:").returncode == 0
    assert call(lender, "list").stdout.strip().endswith("[unavailable]")
    assert call(borrower, "list").stdout == ""
    assert call(lender, "connect", "8").returncode == 0
    assert call(lender, "connect", "12").returncode == 5
    unsure = call(lender, "available", "81:00.0")
    assert unsure.returncode == 1
    assert "[y/N]" in unsure.stdout
    assert lender.driver("0000:81:00.0") == "nvme"
    assert call(lender, "available", "--force", "81:00.0").returncode == 0
    assert lender.driver("0000:81:00.0") is None
    assert call(borrower, "get-vdev", "48100").returncode == 19
    assert "Local virtual device: 0000:04:00.0\nBound to driver: nvme\n" in call(borrower, "borrow", "48100").stdout
    assert call(borrower, "get-vdev", "0x48100").stdout == "0000:04:00.0\n"
    assert borrower.driver("0000:04:00.0") == "nvme"
    assert call(lender, "remove", "81:00.0").returncode == 16
    assert call(borrower, "return", "48100").returncode == 0
    assert call(lender, "unavailable", "81:00.0").returncode == 0
    assert lender.driver("0000:81:00.0") == "nvme"
    assert call(lender, "add-filter", "-d", "10de:").stdout.startswith("Adding 82:00.0 VGA compatible controller")
    assert lender.pool() == {"0000:81:00.0": "unavailable", "0000:82:00.0": "unavailable"}
    assert lender.changing()[:2] == ["add 81:", "connect 8"]
    seen = lender.calls()[0]
    assert (seen["stdin"], seen["terminal"], seen["lc_all"]) == ("devnull", False, "C")


def python(version: str) -> Optional[str]:
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", "import json"], check=False, capture_output=True).returncode == 0:
        return found
    # A shim of pyenv answers for a Python that is not activated, and then fails; beside it are the real ones.
    pyenv = shutil.which("pyenv")
    root = Path(pyenv).resolve().parents[1] if pyenv else Path.home() / ".pyenv"
    candidates = sorted(root.glob(f"versions/{version}.*/bin/python3"))
    return str(candidates[-1]) if candidates else None


def node_versions() -> List[str]:
    """Pythons that nodes may have: 3.8 only up to ansible-core 2.19."""
    from ansible.release import __version__

    core = tuple(int(part) for part in __version__.split(".")[:2])
    return [*(["3.8"] if core < (2, 20) else []), "3.9", "3.13"]


@pytest.mark.parametrize("version", node_versions())
def test_python_of_the_node(fabric: Fabric, version: str) -> None:
    interpreter = python(version)
    if interpreter is None:
        missing = f"no python{version} on this machine"
        if os.environ.get("IOFABRIC_REQUIRE_PYTHONS"):
            pytest.fail(missing)
        pytest.skip(missing)
    lender = fabric.node(4, [nvme("0000:81:00.0", 0)])
    borrower = fabric.node(8)
    story = [
        (lender, "smartio_connect", {"node_ids": [8]}),
        (lender, "smartio_device", {"bdf": "81:00.0"}),
        (borrower, "smartio_borrow", {"select": {"node_id": 4}}),
    ]
    for changed in (True, False):
        for node, module, args in story:
            result = run(module, {**node.args, **args}, interpreter=interpreter)
            assert not result.failed, result.text
            assert result.changed == changed, result.text
    info = run("smartio_info", borrower.args, interpreter=interpreter)
    assert info["node_id"] == 8
    assert [device["fdid"] for device in info["devices"]] == ["48100"]
