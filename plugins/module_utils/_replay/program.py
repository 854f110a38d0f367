# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""iofabric-sharing: the program that units of systemd run on a node, without Ansible."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Callable, Dict, List, Optional, Sequence

from .._notify import notify
from .._plan import SharingError
from . import store

RUN_DIR = "/run/iofabric"
HOLD = "hold"


def say(text: str) -> None:
    """One line for the journal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hold_reason(run_dir: str) -> Optional[str]:
    """Why nothing is to be replayed: the text of the hold file, or that there is one; None without one."""
    path = os.path.join(run_dir, HOLD)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(200).strip() or f"{path} exists"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _replay(options: argparse.Namespace) -> int:
    reason = hold_reason(options.run_dir)
    if reason is not None:
        say(f"nothing is replayed, on hold: {reason}")
    else:
        store.read(options.file)
    notify("READY=1")
    return 0


def _check(options: argparse.Namespace) -> int:
    store.read(options.file)
    return 0


def _status(options: argparse.Namespace) -> int:
    say(store.to_text(store.read(options.file) or store.Sharing()))
    return 0


def _serve(options: argparse.Namespace) -> int:
    # Only a start of a control plane needs all that is needed to start one.
    launch = importlib.import_module(".._cplane.launch", __package__)
    arguments: List[str] = [options.id, *options.arguments]
    status: int = launch.main(arguments)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="iofabric-sharing", description=__doc__)
    parser.add_argument("--file", default=store.PATH, help="what is recorded (default: %(default)s)")
    parser.add_argument("--run-dir", default=RUN_DIR, help="the folder of the hold file (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("replay", help="do again what was granted to this host")
    commands.add_parser("check", help="report what is recorded and not there")
    commands.add_parser("status", help="the same for people")
    serve = commands.add_parser("serve", help="be a control plane's server")
    serve.add_argument("id", help="the control plane's id")
    serve.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


_COMMANDS: Dict[str, Callable[[argparse.Namespace], int]] = {
    "replay": _replay,
    "check": _check,
    "status": _status,
    "serve": _serve,
}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
    except SharingError as error:
        say(f"iofabric-sharing: {error.message}")
        return 1
