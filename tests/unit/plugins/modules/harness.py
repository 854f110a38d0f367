# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules of the collection the way Ansible runs them: an AnsiballZ payload in a fresh Python process."""

from __future__ import annotations

import copy
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Node

HERE = Path(__file__).resolve().parent
COLLECTION = HERE.parents[3]
COLLECTIONS_PATH = COLLECTION / ".build" / "collections"
NAMESPACE = "iofabric.sharing."

#: Results that hold one entry an element of the task.
ELEMENTS = ("connections", "devices", "pairs")
#: What the prediction of check mode must equal where both name it.
IDENTITY = ("bdf", "fdid", "node_id", "adapter", "name", "before", "label", "source", "destination", "bar")


class Result(Dict[str, Any]):
    """What a module answered, with the process's exit status and standard error."""

    def __init__(self, answer: Mapping[str, Any], rc: int, stderr: str, seconds: float) -> None:
        super().__init__(answer)
        self.rc = rc
        self.stderr = stderr
        self.seconds = seconds

    @property
    def changed(self) -> bool:
        return bool(self.get("changed"))

    @property
    def failed(self) -> bool:
        return bool(self.get("failed"))

    @property
    def elements(self) -> List[Dict[str, Any]]:
        """The entries of the list in the result that holds one entry an element, for any Smartio module."""
        found = [self[name] for name in ELEMENTS if name in self]
        assert len(found) == 1, f"expected one list of elements, got {sorted(self)}"
        entries: List[Dict[str, Any]] = found[0]
        return entries

    @property
    def actions(self) -> List[Any]:
        return [entry.get("action") for entry in self.elements]

    @property
    def text(self) -> str:
        """All that a person can read in the result: what was asked (``invocation``) does not count."""
        shown = {key: value for key, value in self.items() if key not in ("invocation", "exception")}
        return json.dumps(shown, ensure_ascii=False)

    def says(self, *words: str) -> bool:
        """Whether every word occurs in the result, in any case."""
        text = self.text.lower()
        missing = [word for word in words if word.lower() not in text]
        assert not missing, f"{missing} not said in {self.text}"
        return True


class PayloadBuilder:
    """The process that builds payloads, started at first use and kept."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[str]] = None
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._lock = threading.Lock()

    def _start(self) -> subprocess.Popen[str]:
        self._folder = tempfile.TemporaryDirectory(prefix="payloads-")
        home = self._folder.name
        (Path(home) / "ansible.cfg").touch()
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_HOME": home,
            "ANSIBLE_LOCAL_TEMP": home,
            "ANSIBLE_CONFIG": str(Path(home) / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS_PATH),
            "ANSIBLE_DEVEL_WARNING": "false",
        }
        command = [sys.executable, str(HERE / "payload_builder.py")]
        return subprocess.Popen(
            command, env=env, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def build(self, module: str, args: Mapping[str, Any], check: bool, diff: bool, interpreter: str) -> str:
        request = {"module": module, "args": args, "check": check, "diff": diff, "interpreter": interpreter}
        with self._lock:
            if self._process is None:
                self._process = self._start()
            process = self._process
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # the reason is in its standard error
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the payload builder ended: {process.stderr.read()}")
        answer: Dict[str, str] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"no payload for {module}: {answer['error']}")
        return answer["payload"]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


BUILDER = PayloadBuilder()


class Started:
    """A module that runs; ``finish()`` gives its result."""

    def __init__(self, payload: str, interpreter: str, env: Mapping[str, str], terminal: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="module-")
        self.module = "a module"
        script = Path(self._folder.name) / "AnsiballZ_module.py"
        script.write_text(payload)
        home = Path(self._folder.name) / "home"
        home.mkdir()
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(home), **env}
        self._master: Optional[int] = None
        stdin: Any = subprocess.DEVNULL
        command = [interpreter, str(script)]
        if terminal:
            self._master, stdin = pty.openpty()
            # setsid --ctty: the module gets a terminal, as with a connection that asks for one
            command = ["setsid", "--ctty", "--wait", *command]
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=clean,
            cwd=str(home),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=not terminal,
        )
        if terminal:
            os.close(stdin)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End the module the hard way, without a word to its children."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None
        self._folder.cleanup()

    def terminal_output(self) -> bytes:
        """What was written to the terminal so far."""
        assert self._master is not None
        shown = b""
        while select.select([self._master], [], [], 0)[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        return shown

    def finish(self, timeout: float = 60) -> Result:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self._close()
            raise AssertionError(f"the module still ran after {timeout} s") from None
        seconds = time.monotonic() - self._began
        self._close()
        stderr = err.decode(errors="replace")
        try:
            answer = json.loads(out.decode())
        except ValueError:
            raise AssertionError(f"no JSON from the module: {out!r} (stderr: {stderr})") from None
        return Result(answer, self.process.returncode, stderr, seconds)


def full_name(module: str) -> str:
    return module if "." in module else NAMESPACE + module


def start(
    module: str,
    args: Mapping[str, Any],
    *,
    check: bool = False,
    diff: bool = True,
    env: Optional[Mapping[str, str]] = None,
    interpreter: Optional[str] = None,
    terminal: bool = False,
) -> Started:
    """Start a module and do not wait for it."""
    python = interpreter or sys.executable
    payload = BUILDER.build(full_name(module), args, check, diff, python)
    return Started(payload, python, env or {}, terminal)


def run(
    module: str,
    args: Mapping[str, Any],
    check: bool = False,
    diff: bool = True,
    env: Optional[Mapping[str, str]] = None,
    timeout: float = 60,
    interpreter: Optional[str] = None,
    terminal: bool = False,
) -> Result:
    """Run a module (a name of this collection or a full one) and return what it answered."""
    started = start(module, args, check=check, diff=diff, env=env, interpreter=interpreter, terminal=terminal)
    result = started.finish(timeout)
    assert "Traceback" not in result.stderr, result.stderr
    assert "Traceback" not in result.get("exception", "") or result.get("msg", "").startswith("Unsupported"), result
    return result


def on(node: Node, module: str, check: bool = False, **args: Any) -> Result:
    """Run a module against a node of the stub."""
    return run(module, {**node.args, **args}, check=check)


def good(node: Node, module: str, check: bool = False, **args: Any) -> Result:
    """Run a module against a node of the stub; it must succeed."""
    result = on(node, module, check=check, **args)
    assert not result.failed, result.text
    return result


def bad(node: Node, module: str, check: bool = False, **args: Any) -> Result:
    """Run a module against a node of the stub; it must fail, and say why in one line."""
    result = on(node, module, check=check, **args)
    assert result.failed, f"should have failed: {result.text}"
    assert result.get("msg"), result
    return result


def agree(check: Result, apply: Result) -> None:
    """What check mode predicted is what the apply did: changed, and of every element the action and the state."""
    assert check.changed == apply.changed, f"predicted changed={check.changed}\ncheck {check.text}\napply {apply.text}"
    assert len(check.elements) == len(apply.elements), f"check {check.text}\napply {apply.text}"
    for foreseen, done in zip(check.elements, apply.elements):
        for key in ("action", "state"):
            assert foreseen.get(key) == done.get(key), f"{key}: check {foreseen}\napply {done}"
        for key in IDENTITY:
            if foreseen.get(key) is not None and done.get(key) is not None:
                assert foreseen[key] == done[key], f"{key}: check {foreseen}\napply {done}"
    if "diff" in check and "diff" in apply:
        assert check["diff"] == apply["diff"]


def case(
    module: str,
    args: Mapping[str, Any],
    node: Node,
    *,
    expect_changed: bool,
    actions: Optional[Sequence[str]] = None,
    states: Optional[Sequence[str]] = None,
    again: bool = True,
) -> Result:
    """Check mode, apply, apply again; returns what the first apply answered.

    Check mode runs no changing command and predicts the apply; the second apply changes nothing (``again=False``
    leaves it out) and runs no changing command either.
    """
    merged = {**node.args, **copy.deepcopy(dict(args))}
    mark = node.mark()
    check = run(module, merged, check=True)
    assert not check.failed, f"check mode: {check.text}"
    assert node.changing(mark) == [], "check mode ran a changing command"
    mark = node.mark()
    apply = run(module, merged)
    assert not apply.failed, f"apply: {apply.text}"
    assert apply.changed == expect_changed, f"apply: {apply.text}"
    assert bool(node.changing(mark)) == expect_changed, node.changing(mark)
    agree(check, apply)
    if expect_changed:
        assert apply.get("diff"), f"changed without a diff: {apply.text}"
    if actions is not None:
        assert apply.actions == list(actions), apply.text
    if states is not None:
        assert [entry.get("state") for entry in apply.elements] == list(states), apply.text
    if again:
        settled(module, merged, node)
    return apply


def settled(module: str, args: Mapping[str, Any], node: Node) -> Result:
    """A run that must find nothing to do."""
    mark = node.mark()
    result = run(module, {**node.args, **args})
    assert not result.failed, f"second apply: {result.text}"
    assert not result.changed, f"second apply: {result.text}"
    assert set(result.actions) <= {"none"}, f"second apply: {result.text}"
    assert node.changing(mark) == [], "the second apply ran a changing command"
    return result
