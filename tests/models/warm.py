# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules as processes, each a fork of one that has imported everything: a fresh process costs most of a second.

Run as a program this is the parent of those forks. It reads a request a line, and writes two lines for each: the
process id of the module, and once that has ended its wait status. Without a request it ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import run_here
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import COLLECTIONS_PATH, Result

_MODULES = "ansible_collections.iofabric.sharing.plugins.modules."
_NAMES = ("connect", "device", "borrow", "p2p", "scan", "config", "persist")
MODULES = (*(f"smartio_{name}" for name in _NAMES), "pci_driver", "pci_sriov", "xnvme_cplane")


class Warm:
    """The parent of all modules of one test; started at first use."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self._answer = Path(self._folder.name) / "answer.json"
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": self._folder.name, "LC_ALL": "C.UTF-8"}
        software_node = COLLECTIONS_PATH.parents[1] / "roles/software_node/files"
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(Path(__file__).resolve())],
            env={**env, "PYTHONPATH": f"{COLLECTIONS_PATH}:{software_node}", "TMPDIR": self._folder.name},
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self,
        module: str,
        args: Mapping[str, Any],
        check: bool = False,
        env: Optional[Dict[str, str]] = None,
        kill_after: Optional[float] = None,
    ) -> Optional[Result]:
        """Run a module; None where it was killed, so many seconds after its start, before it could answer."""
        self._answer.unlink(missing_ok=True)
        request = {"module": module, "args": dict(args), "check": check, "env": env or {}, "to": str(self._answer)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)  # a moment at random, not one that anybody waits for
            os.kill(pid, signal.SIGKILL)  # a zombie at worst: its parent waits for the word below
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        else:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        status = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        if kill_after is not None and (status == -signal.SIGKILL or not self._answer.exists()):
            return None
        assert status == 0, f"{module} ended with {status}"
        answer = json.loads(self._answer.read_text())
        assert "Traceback" not in json.dumps(answer), answer
        return Result(answer, int(bool(answer.get("failed"))), "", 0.0)


def _be_module(request: Mapping[str, Any]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    answer = run_here(request["module"], request["args"], request["check"], request["env"])
    Path(request["to"] + ".new").write_text(json.dumps(answer))
    os.replace(request["to"] + ".new", request["to"])


def main() -> None:
    """Serve requests until there are no more."""
    for name in MODULES:
        __import__(_MODULES + name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                _be_module(json.loads(line))
                status = 0
            finally:
                os._exit(status)
        print(child, flush=True)
        sys.stdin.readline()  # from here on the process id may be given to another process
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
