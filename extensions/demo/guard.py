# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a command: end it and everything that came from it when whoever asked for it is gone.

Usage: guard.py LIFELINE COMMAND...

LIFELINE is a descriptor, the reading end of a pipe. When its other end is closed, by will or because the process that
held it was killed, the command gets SIGTERM. Processes that the command started and left, in whatever session or group,
become this one's children (Linux gives them to the nearest "subreaper") and are killed at the end. The exit status is
the command's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Optional

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 12.0  # seconds that a command has to end by itself; bringing down four nodes that hang takes less
POLL = 0.05  # seconds


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> list[int]:
    """The process ids of this process's children, also of those that ended and were not waited for."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                # The name in brackets may hold anything; state and parent follow its last bracket.
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def end_descendants() -> None:
    """Kill all descendants: children first, then the orphans that this makes, until there are none."""
    while True:
        for pid in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Signals:
    """Remembers that this process was told to end, instead of ending it in the middle of something."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: Optional[FrameType]) -> None:
        self.number = self.number or number


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Run the command line; the exit status of the command, or 143 when it was told to end."""
    signals = Signals()
    lifeline, words = int(arguments[0]), arguments[1:]
    adopt_orphans()
    # The command has children of its own to end, so it must not live on should this process be killed.
    command = subprocess.Popen(words, preexec_fn=lambda: end_with_parent(signal.SIGTERM))  # noqa: PLW1509 - no threads
    while command.poll() is None and not signals.number and not select.select([lifeline], [], [], POLL)[0]:
        pass
    if command.poll() is None:
        command.terminate()
        deadline = time.monotonic() + GRACE
        while command.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL)
        end_descendants()
        return 128 + signal.SIGTERM
    end_descendants()
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
