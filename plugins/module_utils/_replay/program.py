# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""iofabric-sharing: the program that units of systemd run on a node, without Ansible."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from typing import Callable, Dict, Optional, Sequence

from .._plan import SharingError
from . import drift, store
from .replay import RUN_DIR, Replay, Setting, hold_reason
from .store import Sharing
from .units import Systemd


class _Terminated(BaseException):
    """SIGTERM arrived. What runs is ended on the way out, and nothing is left half written."""


def say(text: str) -> None:
    """One line for the journal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _replay(options: argparse.Namespace) -> int:
    def terminate(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        return Replay(Setting(options.file, options.run_dir, options.again), Systemd(), say).run()
    except _Terminated:
        _end_children()
        # The service manager, or whoever asks, shall see that it was the signal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return 128 + signal.SIGTERM


def _end_children() -> None:
    """End a command that was just being started: whoever waits for it ends all others."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for pid in file.read().split():
            os.kill(int(pid), signal.SIGKILL)


def _check(options: argparse.Namespace) -> int:
    for line in drift.check(_read(options), Systemd(), options.run_dir, hold_reason(options.run_dir) or ""):
        say(line)
    return 0


def _status(options: argparse.Namespace) -> int:
    for line in drift.describe(_read(options), Systemd(), options.run_dir, hold_reason(options.run_dir) or ""):
        say(line)
    return 0


def _read(options: argparse.Namespace) -> Sharing:
    return store.read(options.file) or Sharing()


def _start(options: argparse.Namespace) -> int:
    from .._cplane import launch  # only a start of a control plane needs all that is needed to start one

    step = launch.bind if options.command == "bind" else launch.main
    return step([options.id, *options.arguments])


_COMMANDS: Dict[str, Callable[[argparse.Namespace], int]] = {
    "replay": _replay,
    "check": _check,
    "status": _status,
    "bind": _start,
    "serve": _start,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="iofabric-sharing", description=__doc__)
    parser.add_argument("--file", default=store.PATH, help="what is recorded (default: %(default)s)")
    parser.add_argument("--run-dir", default=RUN_DIR, help="the folder of hold and progress (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    replay = commands.add_parser("replay", help="do again what was granted to this host, once a boot")
    replay.add_argument("--again", action="store_true", help="also what was done in this boot already")
    commands.add_parser("check", help="report what is recorded and not there")
    commands.add_parser("status", help="list what is recorded, and whether it is there")
    starts = {"bind": "bind the controllers of a control plane to their driver", "serve": "be a control plane's server"}
    for name, words in starts.items():
        start = commands.add_parser(name, help=words)
        start.add_argument("id", help="the control plane's id")
        start.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except SharingError as error:
        say(f"iofabric-sharing: {error.message}")
        return 1
