# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A resource as a module, in a process of its own as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, Tuple

import pytest

MODULE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import ansible.module_utils.basic as basic
basic._ANSIBLE_ARGS = sys.argv[2].encode()
basic._ANSIBLE_PROFILE = "legacy"
from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Report, Resource, SharingError

def make(params):
    if params["kind"] == "bad option":
        raise SharingError("kind: bad; use another", hint="another")
    def run(check):
        if params["kind"] == "raises":
            raise SharingError("no node; start it", rc=5)
        report = Report({"devices": ["x"], "check": check}, changed=True)
        report.before, report.after = ["d1: 1", "d2: 1"], ["d1: 2", "d2: 1"]
        if params["kind"] == "partly":
            report.errors = [("d2", SharingError("busy", rc=16))]
        report.warnings = ["careful"]
        return report
    return Resource("devices", run)

run_module({"kind": {"type": "str", "required": True}}, make, mutually_exclusive=[("kind", "other")])
"""


def run(kind: str, check: bool = False) -> Tuple[int, Dict[str, Any], str]:
    """Exit status, answer and standard error of the module."""
    arguments = {"ANSIBLE_MODULE_ARGS": {"kind": kind, "_ansible_check_mode": check, "_ansible_diff": True}}
    command = [sys.executable, "-c", MODULE, json.dumps(sys.path), json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("check", [False, True])
def test_success(check: bool) -> None:
    status, answer, errors = run("good", check)
    assert (status, errors) == (0, "")
    assert answer["changed"] is True
    assert (answer["devices"], answer["check"]) == (["x"], check)
    assert answer["diff"] == {"before": "d1: 1\nd2: 1\n", "after": "d1: 2\nd2: 1\n"}
    assert "careful" in str(answer["warnings"])
    assert "failed" not in answer


def test_what_changed_is_told_beside_what_failed() -> None:
    status, answer, _errors = run("partly")
    assert status == 1
    assert (answer["failed"], answer["changed"]) == (True, True)
    assert answer["msg"] == "1 of 2 devices failed: d2: busy"
    assert answer["errors"] == [{"element": "d2", "msg": "busy", "rc": 16}]
    assert answer["devices"] == ["x"]
    assert "diff" in answer


@pytest.mark.parametrize(
    ("kind", "message", "more"),
    [("raises", "no node; start it", {"rc": 5}), ("bad option", "kind: bad; use another", {"hint": "another"})],
)
def test_a_foreseen_error(kind: str, message: str, more: Dict[str, object]) -> None:
    status, answer, errors = run(kind)
    assert (status, errors) == (1, "")
    assert (answer["failed"], answer["msg"]) == (True, message)
    assert {name: answer[name] for name in more} == more
    assert "Traceback" not in json.dumps(answer)
