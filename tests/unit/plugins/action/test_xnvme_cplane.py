# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin of xnvme_cplane, through the command line of Ansible: the native server's program on the node."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import VERSION, bundle, process
from ansible_collections.iofabric.sharing.tests.unit.ansible_env import ansible_env


class Node:
    """This machine as a node, with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.state = folder / "state"
        self.args: Dict[str, Any] = {
            "cplane_id": 7,
            "controllers": ["emu:a?size=1M"],
            "manager": "process",
            "socket_dir": str(folder),
            "state_dir": str(self.state),
            "program_dir": str(self.programs),
        }
        self.env = ansible_env(
            folder, ANSIBLE_LOAD_CALLBACK_PLUGINS="1", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.minimal"
        )

    @property
    def program(self) -> Path:
        return self.programs / f"xnvme-cplaned-{VERSION}.pyz"

    def run(self, *options: str, **args: Any) -> Dict[str, Any]:
        """One ad-hoc command; what the module answered, with ``failed``."""
        words = [str(Path(sys.executable).with_name("ansible")), "localhost", "-c", "local"]
        words += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", "iofabric.sharing.xnvme_cplane"]
        words += ["-a", json.dumps({**self.args, **args}), *options]
        done = subprocess.run(
            words, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        head, brace, tail = done.stdout.partition("=> {")
        assert brace, done.stdout + done.stderr
        answer: Dict[str, Any] = json.JSONDecoder().raw_decode("{" + tail)[0]
        assert ("FAILED" in head) == (done.returncode != 0), done.stdout
        assert not [word for word in ("need_program", '"_program') if word in json.dumps(answer)]
        return {**answer, "failed": done.returncode != 0}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    process.stop(str(made.state / "7.pid"), 5, kill=True)


def test_the_program_is_brought_where_it_is_needed(node: Node) -> None:
    check = node.run("--check")
    assert (check["changed"], check["server"]["action"]) == (True, "start")
    assert not node.programs.exists()
    assert not node.state.exists()

    first = node.run()
    assert (first["changed"], first["server"]["action"], first["server"]["alive"]) == (True, "start", True)
    assert first["program"] == str(node.program)
    assert hashlib.sha256(node.program.read_bytes()).hexdigest() == bundle.CPLANED.digest()
    inode = node.program.stat().st_ino
    assert not any((node.folder / "remote").iterdir())

    second = node.run()
    assert (second["changed"], second["server"]["pid"]) == (False, first["server"]["pid"])

    # Another build in its place, and a server that runs it: replaced, since nobody is connected.
    node.program.write_bytes(node.program.read_bytes() + b"\n")
    record = json.loads((node.state / "7.json").read_text())
    (node.state / "7.json").write_text(json.dumps({**record, "program": "another build"}))
    third = node.run()
    assert (third["changed"], third["server"]["action"]) == (True, "stop, start")
    assert node.program.stat().st_ino != inode
    assert hashlib.sha256(node.program.read_bytes()).hexdigest() == bundle.CPLANED.digest()

    # Nothing is brought to stop it.
    node.program.unlink()
    stopped = node.run(state="stopped")
    assert (stopped["changed"], stopped["server"]["alive"]) == (True, False)
    assert not node.program.exists()


def test_what_is_not_ours_is_not_replaced(node: Node) -> None:
    node.programs.mkdir()
    (node.folder / "elsewhere").write_text("precious")
    node.program.symlink_to(node.folder / "elsewhere")
    refused = node.run()
    assert "symbolic link" in refused["msg"]
    assert (refused["failed"], refused["changed"]) == (True, False)
    assert (node.folder / "elsewhere").read_text() == "precious"
    assert not (node.folder / "xnvme-homi-7.sock").exists()
    node.program.unlink()
    node.program.mkdir()
    refused = node.run()
    assert str(node.program) in refused["msg"]
    assert node.program.is_dir()
