# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two borrowers and one device: exactly one gets it, every time."""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Callable, List

import pytest

ROUNDS = 25


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Any], models: Any) -> Any:
    devices = [{"bdf": "06:00.0", **models["nvme"]}]
    borrowers = [{"name": f"borrower{number}", "node_id": number} for number in (4, 12)]
    result = new_cluster([{"name": "lender", "node_id": 8, "devices": devices}, *borrowers])
    lender = result["lender"]
    for args in (("connect", "4"), ("connect", "12"), ("add", "06:00.0"), ("available", "--force", "06:00.0")):
        lender.ok(*args)
    return result


def together(commands: List[List[str]]) -> List[int]:
    """Exit statuses of commands that are started at the same time."""
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]
    return [child.wait(20) for child in children]


def test_one_wins_and_the_other_is_told_busy(cluster: Any) -> None:
    borrowers = [cluster["borrower4"], cluster["borrower12"]]
    seen: Counter[int] = Counter()
    for turn in range(ROUNDS):
        order = borrowers[:: 1 if turn % 2 else -1]
        statuses = together([one.command("smartio_tool", "borrow", "80600") for one in order])
        assert sorted(statuses) == [0, errno.EBUSY]
        winner, loser = (order[statuses.index(status)] for status in (0, errno.EBUSY))
        seen[borrowers.index(winner)] += 1
        assert loser.status("get-vdev", "80600") == errno.ENODEV
        winner.ok("return", "80600")
    assert sum(seen.values()) == ROUNDS


def test_one_borrower_that_asks_many_times(cluster: Any) -> None:
    node = cluster["borrower4"]
    statuses = together([node.command("smartio_tool", "borrow", "80600") for _time in range(6)])
    assert set(statuses) <= {0, errno.EBUSY}
    assert 0 in statuses
    assert len([path for path in node.dev.iterdir() if path.name.endswith("n1")]) == 1
    node.ok("return", "80600")
    assert node.status("return", "80600") == errno.EINVAL


def test_nothing_leaks(cluster: Any, poll: Any, processes_of: Callable[[Path], List[int]]) -> None:
    lender = cluster["lender"]
    (pid,) = processes_of(lender.folder)

    def resources() -> Any:
        return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))

    lender.ok("list")
    poll(lambda: resources()[0] <= 4)
    before = resources()
    for _time in range(5):
        together([cluster[name].command("smartio_tool", "list") for name in ("borrower4", "borrower12", "lender")])
        cluster["borrower4"].ok("borrow", "80600")
        cluster["borrower4"].ok("return", "80600")
    assert poll(lambda: resources() == before), (before, resources())
