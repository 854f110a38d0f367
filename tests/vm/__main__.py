# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the guests, to be run from the folder of the project; see README.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import image
from .guest import Disk, Guest, GuestError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.vm", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("prepare", help="make the image, in $VM_DIR or else .build/vm, unless it is there")
    run = actions.add_parser("run", help="run a command, as a shell takes it, in a new guest")
    run.add_argument("--disk", action="append", default=[], metavar="SERIAL", help="a disk; may be repeated")
    run.add_argument("--share", type=Path, help="a folder that the guest sees as /share")
    run.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    run.add_argument("command")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    with Guest([Disk(serial) for serial in arguments.disk], share=arguments.share) as guest:
        booted = time.monotonic()
        done = guest.run(arguments.command, timeout=arguments.timeout, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        print(f"vm: up after {booted - started:.1f} s, status {done.rc} after {done.seconds:.1f} s", file=sys.stderr)
        return done.rc


def main() -> int:
    """Runs one command line; the exit status."""
    arguments = _parser().parse_args()
    try:
        if arguments.action == "run":
            return _run(arguments)
        image.make()
    except (image.ImageError, GuestError) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
