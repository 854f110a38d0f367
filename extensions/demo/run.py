# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: four software nodes on this machine, and the playbook over them twice. ``make demo`` runs it.

Everything lies in .build/demo, which is made anew by every run. These processes belong to a run, each the parent of the
next: this one, the guard that cleans up when this one is gone (guard.py), the cluster of software nodes, the scenario
(scenario.py) and ansible-playbook. Nothing of the caller's home folder and no ANSIBLE_* variable has a say.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from guard import POLL, Signals, adopt_orphans, end_descendants, end_with_parent
from report import DemoError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / ".build"
FOLDER = BUILD / "demo"
CLUSTER = HERE / "cluster.json"
LOCK = BUILD / "demo.lock"
LOCK_SECONDS = 20.0  # what a run that was killed needs at most to clean up


class Interrupted(Exception):
    """A signal told the demo to end."""


def lock(signals: Signals) -> TextIO:
    """Hold the lock of .build/demo. Its descriptor is handed to the guard, so it is held until all is cleaned up."""
    file = open(LOCK, "a", encoding="utf-8")  # noqa: SIM115 - open as long as this process runs
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise DemoError(f"another demo runs in {ROOT}; wait for it, or use another clone") from None
            if signals.number:
                raise Interrupted from None
        time.sleep(0.1)


def environment() -> dict[str, str]:
    """The environment of all that is started: the caller's, without what would make every machine another one."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON", "LC_"))}
    ansible = BUILD / "ansible"
    return {
        **kept,
        "HOME": str(BUILD / "home"),
        "LC_ALL": "C.UTF-8",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": str(ROOT / "roles/software_node/files"),
        "ANSIBLE_CONFIG": str(BUILD / "ansible.cfg"),
        "ANSIBLE_HOME": str(ansible),
        "ANSIBLE_LOCAL_TEMP": str(ansible / "tmp"),
        "ANSIBLE_REMOTE_TEMP": str(ansible / "tmp"),
        "ANSIBLE_ASYNC_DIR": str(ansible / "async"),
        "ANSIBLE_COLLECTIONS_PATH": str(BUILD / "collections"),
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "demo_record",
        "ANSIBLE_FORKS": "4",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_NOCOWS": "1",
    }


def describe() -> list[str]:
    """Say what the cluster is; the names of its nodes."""
    nodes = json.loads(CLUSTER.read_text(encoding="utf-8"))["nodes"]
    names = [node["name"] for node in nodes]
    lenders = " and ".join(node["name"] for node in nodes if node.get("devices"))
    borrowers = " and ".join(node["name"] for node in nodes if not node.get("devices"))
    print(f"demo: {len(names)} software nodes on this machine: {lenders} lend, {borrowers} borrow", flush=True)
    return names


def run_guarded(command: list[str], descriptor: int, signals: Signals) -> int:
    """Run a command under the guard, which also holds ``descriptor`` open; the exit status.

    Interrupted when a signal came; then too, nothing is left of the command.
    """
    adopt_orphans()
    lifeline, held = os.pipe()
    words = [sys.executable, str(HERE / "guard.py"), str(lifeline), *command]
    # A session of its own: what is typed at the terminal reaches this process only.
    guard = subprocess.Popen(words, env=environment(), start_new_session=True, pass_fds=[lifeline, descriptor])
    os.close(lifeline)
    while guard.poll() is None and not signals.number:
        time.sleep(POLL)
    os.close(held)
    status = guard.wait()
    end_descendants()  # there are some only when the guard was killed
    if signals.number:
        raise Interrupted
    return status


def demo(signals: Signals) -> str:
    """Run all of it; the closing line. DemoError when anything is not as it has to be."""
    started = time.monotonic()
    for folder in (BUILD / "home", BUILD / "ansible" / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    with lock(signals) as held:
        if FOLDER.exists():
            shutil.rmtree(FOLDER)
        FOLDER.mkdir()
        names = describe()
        command = [sys.executable, "-m", "software_node", "cluster", "run", str(CLUSTER), "--dir", str(FOLDER), "--"]
        command += [sys.executable, str(HERE / "scenario.py"), str(FOLDER), *names]
        if run_guarded(command, held.fileno(), signals) != 0:
            raise DemoError(f"failed; the nodes' logs are in {FOLDER}")
        counts = json.loads((FOLDER / "counts.json").read_text(encoding="utf-8"))
    seconds = time.monotonic() - started
    devices = f"{counts['lent']} devices lent, {counts['borrowed']} borrowed"
    served = f"{counts['served']} controller served to {counts['clients']} processes"
    return f"second run changed nothing; {devices}, {served}, {seconds:.0f} seconds"


def main() -> int:
    """The exit status: 0, 1 for a failure, 128 and the signal's number when interrupted."""
    signals = Signals()
    end_with_parent(signal.SIGTERM)  # make may be killed, too
    try:
        print(f"demo: {demo(signals)}")
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {error.filename or ROOT}: {error.strerror}", file=sys.stderr)
        return 1
    except Interrupted:
        print("demo: interrupted; nothing was left running", file=sys.stderr)
        return 128 + signals.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
