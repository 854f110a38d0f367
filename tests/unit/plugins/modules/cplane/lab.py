# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node for the tests of the control plane's modules: folders, programs, servers that somebody else started."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional
from unittest import mock

from ansible.module_utils import basic
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import bundle, client, process
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result

HERE = Path(__file__).parent
EMU = "emu:a?size=1M"


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + seconds
    answer = condition()
    while not answer and time.monotonic() < end:
        time.sleep(0.01)
        answer = condition()
    assert answer, "this did not come true in time"
    return answer


def run_here(module: str, args: Dict[str, Any], check: bool = False, env: Optional[Dict[str, str]] = None) -> Result:
    """Run a module in this process, which costs a hundredth of what a payload does; the same code all the same."""
    main = importlib.import_module(f"ansible_collections.iofabric.sharing.plugins.modules.{module}").main
    asked = {**args, "_ansible_check_mode": check, "_ansible_diff": True, "_ansible_tracebacks_for": []}
    out = io.StringIO()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": asked}).encode())
        )
        stack.enter_context(mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True))
        stack.enter_context(mock.patch.dict(os.environ, env or {}))
        stack.enter_context(contextlib.redirect_stdout(out))
        ended = stack.enter_context(contextlib.suppress(SystemExit))
        assert ended is None
        main()
    answer = json.loads(out.getvalue())
    return Result(answer, int(bool(answer.get("failed"))), "", time.monotonic() - began)


class Lab:
    """One node. ``close`` ends every server that runs under one of its ids."""

    def __init__(self, folder: Path, programs: Path, runner: Callable[..., Result] = run_here) -> None:
        self._run = runner
        self.sockets, self.state = folder / "s", folder / "state"
        self.sockets.mkdir(mode=0o755)
        self.home = folder / "home"
        self.home.mkdir()
        self.program = str(programs / bundle.CPLANED.name)
        self.homi_log = folder / "homi.log"
        self.homi = folder / "homi"
        script = shlex.join([sys.executable, str(HERE / "fake_homi.py")])
        self.homi.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
        self.homi.chmod(0o755)
        self.args: Dict[str, Any] = {
            "socket_dir": str(self.sockets),
            "state_dir": str(self.state),
            "program": self.program,
            "homi": str(self.homi),
            "manager": "process",
            "timeout": 20,
        }
        self.env = {"HOME": str(self.home), "FAKE_HOMI_DIR": str(self.sockets), "FAKE_HOMI_LOG": str(self.homi_log)}
        self._others: List[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        for pid_file in self.state.glob("*.pid"):
            process.stop(str(pid_file), 3, kill=True)
        for other in self._others:
            if other.poll() is None:
                other.kill()
            other.wait()
            for pipe in (other.stdin, other.stdout):
                if pipe is not None:
                    pipe.close()

    # -- runs of the modules ------------------------------------------------------------------------------------------

    def run(self, check: bool = False, **args: Any) -> Result:
        """One run of xnvme_cplane for the id 7, unless ``cplane_id`` or ``servers`` says otherwise."""
        ids = {} if "servers" in args else {"cplane_id": 7}
        return self._run("xnvme_cplane", {**self.args, **ids, **args}, check=check, env=self.env)

    def good(self, check: bool = False, **args: Any) -> Result:
        result = self.run(check, **args)
        assert not result.failed, result.text
        return result

    def bad(self, *words: str, check: bool = False, **args: Any) -> Result:
        """A run that must fail, with these words, and in one line."""
        result = self.run(check, **args)
        assert result.failed, f"should have failed: {result.text}"
        assert result["msg"].count("\n") < 30
        result.says(*words)
        return result

    def refused(self, *words: str, **args: Any) -> Result:
        """A run that is refused by check mode, too, and changes nothing."""
        foreseen = self.bad(*words, check=True, **args)
        result = self.bad(*words, **args)
        assert not foreseen.changed
        assert not result.changed, result.text
        return result

    def cycle(self, action: str, again: bool = True, **args: Any) -> Dict[str, Any]:
        """Check mode, a run, and a second run that changes nothing; returns the server after the first run."""
        before = self.served()
        check = self.good(True, **args)
        assert self.served() == before, "check mode touched the server"
        apply = self.good(**args)
        assert apply["server"]["action"] == action, apply.text
        agree(check, apply)
        if again:
            second = self.good(**args)
            assert (second.changed, second["server"]["action"]) == (False, "none"), second.text
            assert second["server"]["pid"] == apply["server"]["pid"]
        server: Dict[str, Any] = apply["server"]
        return server

    def info(self, **args: Any) -> Result:
        places = {name: self.args[name] for name in ("socket_dir", "state_dir")}
        result = self._run("xnvme_cplane_info", {**places, **args}, env=self.env)
        assert not result.failed, result.text
        assert not result.changed
        return result

    # -- what is there ------------------------------------------------------------------------------------------------

    def path(self, cplane_id: int = 7) -> Path:
        return self.sockets / f"xnvme-homi-{cplane_id}.sock"

    def served(self, cplane_id: int = 7) -> Optional[int]:
        """Who serves the id: the process, None for nobody."""
        try:
            with client.connect(cplane_id, str(self.sockets), 3) as connection:
                return connection.peer().pid
        except client.NotServed:
            return None

    def client(self, cplane_id: int = 7) -> client.Connection:
        """A client; it is one for the server, too, once this returns."""
        connection = client.connect(cplane_id, str(self.sockets), 5)
        connection.try_status(0)
        return connection

    def commands(self) -> List[List[str]]:
        """The command lines that homi was run with."""
        return [json.loads(line) for line in self.homi_log.read_text().splitlines()] if self.homi_log.exists() else []

    # -- servers that somebody else started ---------------------------------------------------------------------------

    def foreign(self, *bdfs: str, cplane_id: int = 7, arguments: Any = ()) -> int:
        """A server of the wire table's own; returns its pid."""
        words = [sys.executable, str(HERE / "wire_server.py"), str(self.path(cplane_id)), *bdfs, *arguments]
        return self._popen(words)

    def native(self, *controllers: str, cplane_id: int = 7) -> int:
        """Our server, started by hand."""
        words = [sys.executable, self.program, "serve", *controllers, "--homi-id", str(cplane_id)]
        return self._popen([*words, "--directory", str(self.sockets)])

    def _popen(self, words: List[str]) -> int:
        other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._others.append(other)
        assert other.stdout is not None
        assert other.stdout.readline(), "it did not start"
        return other.pid

    def ended(self, pid: int) -> bool:
        """Whether a server that was started here by hand has ended."""
        (other,) = [one for one in self._others if one.pid == pid]
        return other.poll() is not None


def alive(pid: int) -> bool:
    """Whether a process runs that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> List[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def agree(check: Result, apply: Result) -> None:
    """What check mode predicted is what the run did."""
    assert (check.changed, check.get("diff")) == (apply.changed, apply.get("diff"))
    for foreseen, done in zip(check["servers"], apply["servers"]):
        for key in ("cplane_id", "alive", "action", "clients", "restart_pending"):
            assert foreseen[key] == done[key], f"{key}: check {foreseen}\napply {done}"
        assert [(one["name"], one["uri"]) for one in foreseen["controllers"]] == [
            (one["name"], one["uri"]) for one in done["controllers"]
        ]


def seen_by(uid: int, lab: Lab, cplane_id: int = 7) -> str:
    """What another user without groups meets at the socket: ``denied``, ``closed`` or ``answered``."""
    words = ("answered", "closed", "denied")
    child = os.fork()
    if not child:
        status = 3
        try:
            os.chdir(lab.sockets)  # the folders above may be closed to others
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            status = words.index(_meet(lab.path(cplane_id).name))
        finally:
            os._exit(status)
    return words[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def _meet(name: str) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        try:
            sock.connect(name)
            sock.sendall(struct.pack("<II96x", 7, 4))
            return "answered" if sock.recv(104) else "closed"
        except PermissionError:
            return "denied"
        except ConnectionError:
            return "closed"
