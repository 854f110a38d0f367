# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_p2p against the stub."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import agree, bad, case, good, settled
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

MODULE = "smartio_p2p"
DRIVE, GPU, DRIVE2 = "0000:81:00.0", "0000:83:00.0", "0000:05:00.0"


def make(fabric: Fabric, borrow: bool = True, **quirks: Any) -> Tuple[Node, str, str, str]:
    """A borrower (8) and the fdids of a drive, a GPU and another lender's drive, all borrowed."""
    fabric.node(4, [nvme(DRIVE, 0), gpu(GPU, 0)], **quirks)
    fabric.node(12, [nvme(DRIVE2, 5)], **quirks)
    borrower = fabric.node(8, **quirks)
    fabric.connect(4, 8)
    fabric.connect(12, 8)
    fdids = [*fabric.lend(4, DRIVE, GPU), *fabric.lend(12, DRIVE2)]
    if borrow:
        good(borrower, "smartio_borrow", devices=[{"fdid": fdid} for fdid in fdids])
    return borrower, fdids[0], fdids[1], fdids[2]


def test_one_pair(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    borrower, drive, gpu_fdid, _other = make(fabric, **quirks)
    args = {"source": drive, "destination": gpu_fdid}
    mark = borrower.mark()
    case(MODULE, args, borrower, expect_changed=True, actions=["enable-p2p"])
    assert borrower.changing(mark) == [f"enable-p2p {drive} {gpu_fdid}"]
    case(MODULE, {**args, "state": "disabled"}, borrower, expect_changed=True, actions=["disable-p2p"])
    assert fabric.state["p2p"] == []


def test_pairs_with_a_bar(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, drive, gpu_fdid, other = make(fabric, **two_quirks)
    pairs = [
        {"source": drive, "destination": gpu_fdid, "bar": 1},
        {"source": other, "destination": gpu_fdid},
        {"source": other, "destination": gpu_fdid, "bar": 0},
    ]
    case(MODULE, {"pairs": pairs}, borrower, expect_changed=True, actions=["enable-p2p"] * 3)
    assert fabric.state["p2p"] == [[8, drive, gpu_fdid, 1], [8, other, gpu_fdid, -1], [8, other, gpu_fdid, 0]]
    case(MODULE, {"pairs": pairs[:1], "state": "disabled"}, borrower, expect_changed=True)
    case(MODULE, {"pairs": pairs}, borrower, expect_changed=True, actions=["enable-p2p", "none", "none"])


def test_a_lost_ledger_runs_the_command_again(fabric: Fabric) -> None:
    borrower, drive, gpu_fdid, _other = make(fabric, strict=True)
    args = {"source": drive, "destination": gpu_fdid}
    good(borrower, MODULE, **args)
    borrower.lose_ledger()
    good(borrower, MODULE, **args)
    settled(MODULE, args, borrower)


def test_a_pair_ends_with_its_devices(fabric: Fabric) -> None:
    """Returned and borrowed again: these are other virtual devices, the pair has to be enabled again."""
    borrower, drive, gpu_fdid, _other = make(fabric)
    args = {"source": drive, "destination": gpu_fdid}
    good(borrower, MODULE, **args)
    good(borrower, "smartio_borrow", fdid=drive, state="returned")
    good(borrower, "smartio_borrow", fdid=drive)
    case(MODULE, args, borrower, expect_changed=True, actions=["enable-p2p"])


def test_what_is_not_borrowed_is_an_error(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, drive, gpu_fdid, _other = make(fabric, borrow=False, **two_quirks)
    good(borrower, "smartio_borrow", fdid=drive)
    mark = borrower.mark()
    result = bad(borrower, MODULE, source=drive, destination=gpu_fdid)
    assert gpu_fdid in result.text
    assert not result.changed
    assert fabric.state["p2p"] == []
    check = good(borrower, MODULE, check=True, source=drive, destination=gpu_fdid)
    assert check.changed
    assert check.get("pending") is True, check.text
    assert [command for command in borrower.changing(mark) if not command.startswith("enable-p2p")] == []


def test_one_pair_fails_the_others_are_done(fabric: Fabric) -> None:
    borrower, drive, gpu_fdid, other = make(fabric)
    borrower.rule("enable-p2p", "exit", arg=drive, exit=12, err="no window left")
    pairs = [{"source": drive, "destination": gpu_fdid}, {"source": other, "destination": gpu_fdid}]
    result = bad(borrower, MODULE, pairs=pairs)
    assert result.changed
    assert result.says("ENOMEM", "no window left", drive)
    assert fabric.state["p2p"] == [[8, other, gpu_fdid, -1]]


def test_prediction(fabric: Fabric) -> None:
    borrower, drive, gpu_fdid, _other = make(fabric)
    args = {"source": drive, "destination": gpu_fdid, "bar": 2}
    agree(good(borrower, MODULE, check=True, **args), good(borrower, MODULE, **args))
    assert fabric.state["p2p"] == [[8, drive, gpu_fdid, 2]]


@pytest.mark.parametrize("wanted", [{}, {"source": "48100"}, {"source": "zz", "destination": "48100"}])
def test_refused_arguments(fabric: Fabric, wanted: Dict[str, Any]) -> None:
    borrower = fabric.node(8)
    assert not bad(borrower, MODULE, **wanted).changed
    assert borrower.changing() == []
