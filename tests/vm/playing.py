# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run tasks and plays on a guest through Ansible, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from .guest import Guest

_HERE = Path(__file__).resolve().parent
_COLLECTIONS = _HERE.parents[1] / ".build/collections"
NAMESPACE = "iofabric.sharing."


class Answer(Dict[str, Any]):
    """What a task answered. ``status`` is ok, failed, skipped or unreachable."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        super().__init__(entry["result"])
        self.task: str = entry["task"]
        self.action: str = entry["action"]
        self.status: str = entry["status"]

    @property
    def changed(self) -> bool:
        return bool(self.get("changed"))

    @property
    def failed(self) -> bool:
        return self.status in ("failed", "unreachable")


def task(module: str, *, check: bool = False, **arguments: Any) -> Dict[str, Any]:
    """A task of a module of this collection, or of another by its full name."""
    return {"name": module, module if "." in module else NAMESPACE + module: arguments, "check_mode": check}


def play(guest: Guest, *tasks: Mapping[str, Any], timeout: float = 300, **keywords: Any) -> List[Answer]:
    """Runs tasks on a guest; their answers in order, each task whether or not one before failed.

    ``keywords`` are those of a play (``vars``, ``roles``, ``module_defaults``, ...).
    """
    whole = {"name": "Guest", "hosts": "guest", "gather_facts": False, "diff": True, "ignore_errors": True}
    return run_plays(guest, [{**whole, **keywords, "tasks": list(tasks)}], timeout=timeout)


def apply_role(guest: Guest, role: str, *, check: bool = False, timeout: float = 300, **variables: Any) -> List[Answer]:
    """Applies a role of this collection to a guest, as a play of its own that ends with the first task that fails."""
    import_role = {"name": f"Apply {role}", "ansible.builtin.import_role": {"name": NAMESPACE + role}}
    whole = {"name": "Guest", "hosts": "guest", "gather_facts": False, "vars": variables, "tasks": [import_role]}
    return run_plays(guest, [whole], check=check, timeout=timeout)


def changes(answers: Sequence[Answer]) -> List[str]:
    """The names of the tasks that changed something, or would."""
    return [answer.task for answer in answers if answer.changed]


def failures(answers: Sequence[Answer]) -> List[str]:
    """What the tasks that failed said."""
    return [answer["msg"] for answer in answers if answer.failed]


def run_plays(
    guest: Guest,
    plays: Sequence[Mapping[str, Any]],
    *,
    groups: Sequence[str] = (),
    check: bool = False,
    timeout: float = 300,
) -> List[Answer]:
    """Runs the plays of a playbook, whose only host is ``guest``; the answers of all tasks that were run, in order.

    ``groups`` are those of the inventory that the host is in.

    A playbook that Ansible refuses, or that is not done in time, is an AssertionError. A failed task is not.
    """
    with tempfile.TemporaryDirectory(prefix="play") as scratch:
        playbook, results = Path(scratch, "playbook.json"), Path(scratch, "results")
        playbook.write_text(json.dumps(plays), encoding="utf-8")
        inventory = Path(scratch, "inventory.json")
        children: Dict[str, Any] = {group: {"hosts": {"guest": {}}} for group in groups}
        whole = {"all": {"hosts": {"guest": _variables(guest)}, "children": children}}
        inventory.write_text(json.dumps(whole), encoding="utf-8")
        results.touch()
        program = Path(sys.executable).with_name("ansible-playbook")
        done = subprocess.run(
            [program, "-i", inventory, playbook, *(["--check", "--diff"] if check else [])],
            env=_environment(Path(scratch)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            text=True,
        )
        answers = [Answer(json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
        # 0: all is well, 2: a task failed, 4: the guest did not answer
        assert done.returncode in (0, 2, 4) and (answers or not plays), done.stdout
        return answers


def _variables(guest: Guest) -> Dict[str, str]:
    return {
        "ansible_connection": "guest",
        "ansible_python_interpreter": "/usr/bin/python3",
        "guest_socket": str(guest.address),
    }


def _environment(scratch: Path) -> Dict[str, str]:
    """Nothing of the caller's own settings, which would make every machine another one."""
    (scratch / "ansible.cfg").touch()
    return {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "HOME": str(scratch),
        "ANSIBLE_CONFIG": str(scratch / "ansible.cfg"),
        "ANSIBLE_HOME": str(scratch / "home"),
        "ANSIBLE_COLLECTIONS_PATH": str(_COLLECTIONS),
        "ANSIBLE_CONNECTION_PLUGINS": str(_HERE / "connection"),
        "ANSIBLE_CALLBACK_PLUGINS": str(_HERE / "callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "results",
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_REMOTE_TEMP": "/tmp/ansible",  # noqa: S108 - in the guest
        "ANSIBLE_NOCOLOR": "true",
        "GUEST_RESULTS": str(scratch / "results"),
    }
