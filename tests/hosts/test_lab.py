# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab leaves nothing behind, however it ends. Runs outside of labs, as root."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

PROGRAM = Path(__file__).with_name("hosts.py")
RUN = Path("/run/iofabric-hosts")


def program(*words: str) -> List[str]:
    """A command line of the program under test."""
    return [sys.executable, "-B", str(PROGRAM), *words]


def in_lab(then: str) -> List[str]:
    """A command line that runs a lab with one host, prints the lab's settings, and goes on with a shell command."""
    up = f"{sys.executable} -B {PROGRAM} up probe=bookworm && cat {RUN}/lab.json && echo && {then}"
    return program("run", "sh", "-c", up)


def leftovers(lab: str) -> List[str]:
    """What there still is of a lab."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/iofabric-hosts-{lab}")]
    found += [str(path) for path in RUN.glob(f"{lab}*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            if lab in words or lab in (process / "cgroup").read_text():
                found.append(f"process {process.name}")
        except OSError:
            continue
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [line for line in mounts if str(RUN) in line or "probe" in line]


def start(then: str) -> tuple[subprocess.Popen[str], str]:
    """A lab that runs, and its name."""
    process = subprocess.Popen(in_lab(then), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lab: str = json.loads(process.stdout.readline())["name"]
    assert leftovers(lab), "nothing of a running lab is found: the test looks in the wrong place"
    return process, lab


def test_ends_with_its_command() -> None:
    """The status is the command's, and all is gone, also what the command left running."""
    done = subprocess.run(in_lab("{ sleep 600 & exit 3; }"), stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert leftovers(json.loads(done.stdout)["name"]) == []


def test_ends_by_sigterm() -> None:
    """A signal ends the lab at once."""
    process, lab = start("exec sleep 600")
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert leftovers(lab) == []


def test_ends_by_sigkill() -> None:
    """Even without the program, processes and mounts are gone; the next run removes the rest."""
    process, lab = start("exec sleep 600")
    process.kill()
    process.wait(20)
    deadline = time.monotonic() + 10
    while any(one.startswith("process") for one in leftovers(lab)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [one for one in leftovers(lab) if not one.startswith("/")]
    subprocess.run(program("run", "true"), check=True)
    assert leftovers(lab) == []


def test_two_at_once() -> None:
    """Labs have nothing in common: the same name and address can be used in two, and one does not sweep the other."""
    process, lab = start("exec sleep 600")
    done = subprocess.run(in_lab("true"), stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert leftovers(lab) != []
    process.terminate()
    process.wait(20)
    assert leftovers(lab) == []


def test_outside_of_a_lab() -> None:
    """What needs a lab says how to get one."""
    done = subprocess.run(program("up", "a=bookworm"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hosts.py run" in done.stderr
