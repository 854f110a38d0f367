# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's guard ends what came from its command, however deep and in whatever session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.extensions.demo import guard

#: Leaves a process in a session of its own, and writes its id to a file.
LEAVES_ONE = 'setsid sh -c \'echo $$ > "$0".new; mv "$0".new "$0"; exec sleep 600\' "$0" &'


class Guarded:
    """A guard with a command, and the writing end of its lifeline."""

    def __init__(self, script: str, file: Path) -> None:
        self.file = file
        reading, self.lifeline = os.pipe()
        words: List[str] = [sys.executable, guard.__file__, str(reading), "sh", "-c", script, str(file)]
        self.process = subprocess.Popen(words, pass_fds=[reading])
        os.close(reading)

    def left(self) -> int:
        """The id of the process that the command left."""
        wait_for(self.file.exists)
        return int(self.file.read_text())

    def cut(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.lifeline = -1


Start = Callable[[str], Guarded]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Start]:
    started: List[Guarded] = []

    def start(script: str) -> Guarded:
        started.append(Guarded(script, tmp_path / "pid"))
        return started[-1]

    yield start
    for one in started:
        one.cut()
        one.process.wait(30)


def test_the_exit_status_is_the_commands(guarded: Start) -> None:
    assert guarded("exit 7").process.wait(20) == 7


def test_what_a_command_leaves_is_ended_with_it(guarded: Start) -> None:
    one = guarded(LEAVES_ONE + ' while [ ! -e "$0" ]; do sleep 0.01; done')
    pid = one.left()
    assert one.process.wait(20) == 0
    assert not is_alive(pid)


def test_everything_ends_when_the_lifeline_is_cut(guarded: Start) -> None:
    one = guarded(LEAVES_ONE + " exec sleep 600")
    pid = one.left()
    assert is_alive(pid)
    one.cut()
    assert one.process.wait(20) == 128 + signal.SIGTERM
    assert not is_alive(pid)


def test_everything_ends_when_the_guard_is_told_to(guarded: Start) -> None:
    one = guarded(LEAVES_ONE + " exec sleep 600")
    pid = one.left()
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(20) == 128 + signal.SIGTERM
    assert not is_alive(pid)


def test_a_command_ends_with_a_guard_that_is_killed(guarded: Start) -> None:
    one = guarded('echo $$ > "$0".new; mv "$0".new "$0"; exec sleep 600')
    pid = one.left()
    one.process.kill()
    wait_for(lambda: not is_alive(pid))
    assert one.process.wait(20) == -signal.SIGKILL
