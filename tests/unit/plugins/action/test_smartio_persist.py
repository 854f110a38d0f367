# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin of smartio_persist, through the command line of Ansible: the program of the replay on the node."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

from ansible_collections.iofabric.sharing.plugins.module_utils._replay.bundle import SHARING
from ansible_collections.iofabric.sharing.tests.unit.ansible_env import ansible_env


def persist(folder: Path, *options: str, **args: Any) -> Dict[str, Any]:
    """Run the module on this machine, with folders of its own; what it answered, which is no failure."""
    env = ansible_env(folder, ANSIBLE_LOAD_CALLBACK_PLUGINS="1", ANSIBLE_STDOUT_CALLBACK="ansible.builtin.minimal")
    places = {
        "path": str(folder / "etc/sharing.json"),
        "program_dir": str(folder / "lib"),
        "state_dir": str(folder / "s"),
    }
    words = [str(Path(sys.executable).with_name("ansible")), "localhost", "-c", "local", *options]
    words += ["-e", f"ansible_python_interpreter={sys.executable}", "-m", "iofabric.sharing.smartio_persist"]
    words += ["-a", json.dumps({**places, **args})]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: Dict[str, Any] = json.JSONDecoder().raw_decode("{" + done.stdout.partition("=> {")[2])[0]
    assert not [word for word in ("need_program", '"_program') if word in json.dumps(answer)]
    return answer


def test_the_program_is_brought_with_what_is_recorded(tmp_path: Path) -> None:
    entries = {"cplanes": [{"cplane_id": 7, "controllers": ["emu:a"]}]}
    assert persist(tmp_path, "--check", **entries)["changed"]
    assert not (tmp_path / "lib").exists()
    assert not (tmp_path / "etc").exists()

    first = persist(tmp_path, **entries)
    program = Path(first["program"])
    assert (first["changed"], program.parent) == (True, tmp_path / "lib")
    assert hashlib.sha256(program.read_bytes()).hexdigest() == SHARING.digest()
    assert json.loads((tmp_path / "etc/sharing.json").read_text()) == first["sharing"]
    assert not any((tmp_path / "remote").iterdir())
    command = [sys.executable, "-I", str(program), "--file", first["path"], "check"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""

    assert not persist(tmp_path, **entries)["changed"]
    program.write_bytes(b"another build")
    assert persist(tmp_path, **entries)["changed"]
    assert hashlib.sha256(program.read_bytes()).hexdigest() == SHARING.digest()

    # Nothing is brought to forget.
    program.unlink()
    assert persist(tmp_path, all=True, state="absent")["changed"]
    assert not program.exists()
    assert not (tmp_path / "etc/sharing.json").exists()
