# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests in a lab ask of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

HERE = Path(__file__).parent
PROGRAM = HERE / "hosts.py"
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


def hosts(*words: str) -> str:
    """Runs the program of the lab; its output."""
    done = subprocess.run([sys.executable, "-B", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on(name: str, command: str) -> str:
    """Runs a command on a host; its output."""
    return hosts("ssh", "-o", "ConnectTimeout=5", name, command).strip()


class Run:
    """One run of ansible-playbook, and what every task answered."""

    def __init__(self, folder: Path, *arguments: str, **variables: Any) -> None:
        record = folder / "record.json"
        record.unlink(missing_ok=True)
        env = {
            **os.environ,
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "host_record",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": "/run/iofabric-hosts/ssh",
            "HOST_RECORD": str(record),
        }
        words = [str(PLAYBOOK), *arguments, "-e", json.dumps(variables)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
        self.output = done.stdout + done.stderr
        assert record.exists(), self.output
        self.rows: List[Tuple[str, str, str, Dict[str, Any]]] = [tuple(row) for row in json.loads(record.read_text())]
        self.rc = done.returncode

    def with_status(self, *statuses: str) -> Set[Tuple[str, str]]:
        """Host and task of what ended so."""
        return {(host, task) for task, host, status, _result in self.rows if status in statuses}

    @property
    def changed(self) -> Set[Tuple[str, str]]:
        """Host and task of what changed."""
        return self.with_status("changed")

    def failure(self, host: str) -> str:
        """The sentence that a host failed with."""
        sentences = [result["msg"] for _task, one, status, result in self.rows if (one, status) == (host, "failed")]
        assert len(sentences) == 1, self.output
        return str(sentences[0])

    def warnings(self, host: str) -> str:
        """What a host was warned of, by modules and in messages."""
        results = [result for _task, one, _status, result in self.rows if one == host]
        told = [str(one) for result in results for one in result.get("warnings", [])]
        return "\n".join(told + [str(r["msg"]) for r in results if str(r.get("msg")).startswith("WARNING")])
