# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that the kernel may never come back from, in a child process that is given up after a while.

A write that unbinds a driver sleeps until the driver lets go of its device, and cannot be interrupted.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from typing import Callable, NoReturn, Sequence

_KEPT_BYTES = 8192
# How long a child that was killed may take to be gone.
_GRACE = 1.0
# The status of work that a signal ended: of a system call it is the kernel's own, after a fault in a driver.
KILLED = 255


@dataclass(frozen=True)
class Ended:
    """Work that ended: 0, or the errno that it failed with (of a program: its status), or KILLED; what it printed."""

    status: int
    output: str


class GivenUp(Exception):
    """Work that did not end in time: process ``pid`` was killed, and may be ``stuck`` in the kernel all the same."""

    def __init__(self, pid: int, stuck: bool) -> None:
        super().__init__(pid)
        self.pid = pid
        self.stuck = stuck


def write(path: str, text: str, seconds: float) -> Ended:
    """Write to a file, in one system call."""

    def work() -> None:
        target = os.open(path, os.O_WRONLY | os.O_TRUNC)
        os.write(target, text.encode())

    return _bounded(work, seconds)


def run(command: Sequence[str], seconds: float) -> Ended:
    """Run a program, given by its path, in the C locale."""

    def work() -> None:
        os.execve(command[0], list(command), {**os.environ, "LC_ALL": "C"})  # noqa: S606 - no shell is wanted

    return _bounded(work, seconds)


def _bounded(work: Callable[[], None], seconds: float) -> Ended:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(work, theirs)
    os.close(theirs)
    try:
        return _wait(pid, ours, seconds)
    finally:
        os.close(ours)


def _be_child(work: Callable[[], None], output: int) -> NoReturn:
    """Nothing of the parent may stay open in a child that is left behind: Ansible waits for the end of its output."""
    status = KILLED
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 4096)
        work()
        status = 0
    except OSError as error:
        status = error.errno or KILLED
    finally:
        os._exit(status)


def _wait(pid: int, output: int, seconds: float) -> Ended:
    end, pause, printed = time.monotonic() + seconds, 0.0005, b""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        printed = (printed + _read(output))[-_KEPT_BYTES:]
        if done:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED
            return Ended(code, printed.decode("utf-8", "replace").strip())
        if time.monotonic() > end:
            raise GivenUp(pid, stuck=not _killed(pid))
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _read(output: int) -> bytes:
    """What was printed and not read yet."""
    data = b""
    while select.select([output], [], [], 0)[0]:
        chunk = os.read(output, 4096)
        if not chunk:
            break
        data += chunk
    return data


def _killed(pid: int) -> bool:
    """Kill a child; whether it is gone."""
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + _GRACE
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False
