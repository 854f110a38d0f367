# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_borrow against the stub."""

from __future__ import annotations

import errno
import os
import time
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import (
    agree,
    bad,
    case,
    good,
    settled,
    start,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

MODULE = "smartio_borrow"
DRIVE, DRIVE2, GPU, FAR = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0", "0000:05:00.0"
DRIVES = {"vendor_id": "8086"}


def make(fabric: Fabric, **quirks: Any) -> Tuple[Node, Dict[str, str]]:
    """A borrower (8) that sees two drives and a GPU of node 4 and a drive of node 12; the fdids by address."""
    fabric.node(4, [nvme(DRIVE, 0), nvme(DRIVE2, 1), gpu(GPU, 0)], **quirks)
    fabric.node(12, [nvme(FAR, 5, device="0a54")], **quirks)
    borrower = fabric.node(8, **quirks)
    fabric.connect(4, 8)
    fabric.connect(12, 8)
    bdfs = [DRIVE, DRIVE2, GPU]
    fdids = dict(zip(bdfs, fabric.lend(4, *bdfs)))
    fdids[FAR] = fabric.lend(12, FAR)[0]
    return borrower, fdids


def got(result: Dict[str, Any]) -> List[str]:
    return [device["fdid"] for device in result["devices"]]


# --- which device -----------------------------------------------------------------------------------------------------


def test_by_fdid(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **quirks)
    result = case(MODULE, {"fdid": fdids[DRIVE2]}, borrower, expect_changed=True, actions=["borrow"])
    assert borrower.borrowed() == [fdids[DRIVE2]]
    device = result["devices"][0]
    assert device["fdid"] == fdids[DRIVE2]
    assert (device["node_id"], device["bdf"]) == (4, DRIVE2)
    assert (device["serial"], device["uuid"]) == (nvme(DRIVE2, 1)["serial"], nvme(DRIVE2, 1)["uuid"])
    assert (device["vdev"], device["driver"]) == ("0000:04:00.0", "nvme")
    assert any(node.endswith("nvme20n1") for node in device["device_nodes"]), device
    assert "nvme-STUB_" in str(device["by_id"])


def test_filesystems(fabric: Fabric) -> None:
    """Links by UUID with the node of each, as they are when the answer is made."""
    borrower, fdids = make(fabric)
    links = borrower.dev / "disk/by-uuid"
    links.mkdir(parents=True)
    for name, node in (("B-1", "nvme21n1p1"), ("A-2", "nvme21n1"), ("C-3", "sda1")):
        (links / name).symlink_to(f"../../{node}")
    claim = {"fdid": fdids[DRIVE2], "wait_for": "filesystem", "timeout": 0.3}
    assert bad(borrower, MODULE, **claim).says("its filesystem did not appear", "driver nvme, no filesystem")
    (links / "D-4").symlink_to("../../nvme20n1")
    assert not good(borrower, MODULE, **claim).changed
    good(borrower, MODULE, fdid=fdids[DRIVE2], state="returned")
    (links / "D-4").unlink()
    (device,) = good(borrower, MODULE, fdid=fdids[DRIVE])["devices"]
    found = {str(links / "A-2"): f"{borrower.dev}/nvme21n1", str(links / "B-1"): f"{borrower.dev}/nvme21n1p1"}
    assert device["by_uuid"] == found
    (device,) = good(borrower, MODULE, fdid=fdids[DRIVE], state="returned")["devices"]
    assert device["by_uuid"] is None


def test_errors_of_claims_have_their_labels(fabric: Fabric) -> None:
    """Of a claim that falls short, of one whose label holds something else, and of a driver that does not come."""
    borrower, fdids = make(fabric, vdev_driver=None)
    good(borrower, MODULE, fdid=fdids[DRIVE], label="held", wait_for="vdev")
    claims = [
        {"select": {"node_id": 99}, "label": "short"},
        {"select": {"vendor_id": "10de"}, "label": "held"},
        {"fdid": fdids[FAR], "label": "late"},
        {"fdid": fdids[DRIVE2], "label": "well"},
    ]
    result = bad(borrower, MODULE, devices=claims, timeout=0)
    assert sorted(error["label"] for error in result["errors"]) == ["held", "late", "short", "well"]
    assert sorted(got(result)) == sorted([fdids[DRIVE2], fdids[FAR]])


@pytest.mark.parametrize("form", ["0x{}", "{}", "0X{}"])
def test_forms_of_an_fdid(fabric: Fabric, form: str) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=form.format(fdids[FAR].upper()))
    assert borrower.borrowed() == [fdids[FAR]] == ["c0500"]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"node_id": 12}, FAR),
        ({"node_id": 4, "bdf": DRIVE2}, DRIVE2),
        ({"node_id": 4, "bdf": "82:00.0"}, DRIVE2),
        ({"uuid": nvme(DRIVE2, 1)["uuid"]}, DRIVE2),
        ({"serial": nvme(DRIVE2, 1)["serial"]}, DRIVE2),
        ({"vendor_id": "10de"}, GPU),
        ({"vendor_id": "8086", "device_id": "0a54"}, FAR),
        ({"name_regex": r"Quadro K\d+"}, GPU),
    ],
)
def test_select(fabric: Fabric, two_quirks: Dict[str, Any], select: Dict[str, Any], expected: str) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    result = good(borrower, MODULE, select=select)
    assert got(result) == [fdids[expected]]
    assert borrower.borrowed() == [fdids[expected]]


def test_an_unquoted_address_is_refused(fabric: Fabric) -> None:
    borrower, _fdids = make(fabric)
    assert bad(borrower, MODULE, select={"bdf": 4860.0}).says("quote it")
    assert bad(borrower, MODULE, devices=[{"select": {"node_id": 4, "bdf": 4860.0}}]).says("quote it")
    assert borrower.changing() == []


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"fdid": "48100", "select": {"node_id": 4}},
        {"select": {"node_id": 4}, "count": 0},
        {"select": {"node_id": 4}, "count": 2, "all": True},
        {"select": {"name_regex": "("}},
        {"fdid": "not hex"},
        {"select": {}},
    ],
)
def test_refused_arguments(fabric: Fabric, wanted: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric)
    assert not bad(borrower, MODULE, timeout=0, **wanted).changed
    assert borrower.changing() == []


# --- how many ---------------------------------------------------------------------------------------------------------


def test_count(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    args = {"select": {"node_id": 4, **DRIVES}, "count": 2}
    result = case(MODULE, args, borrower, expect_changed=True, actions=["borrow", "borrow"])
    assert borrower.borrowed() == sorted([fdids[DRIVE], fdids[DRIVE2]]) == sorted(got(result))


def test_count_grows(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    first = got(good(borrower, MODULE, select=DRIVES))
    result = case(MODULE, {"select": DRIVES, "count": 3}, borrower, expect_changed=True)
    assert sorted(result.actions) == ["borrow", "borrow", "none"]
    assert first[0] in got(result)
    assert len(borrower.borrowed()) == 3


def test_all(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    args = {"select": DRIVES, "all": True}
    case(MODULE, args, borrower, expect_changed=True, actions=["borrow", "borrow", "borrow"])
    assert borrower.borrowed() == sorted([fdids[DRIVE], fdids[DRIVE2], fdids[FAR]])


def test_a_list_of_claims_takes_different_devices(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    claims = [
        {"label": "one", "select": DRIVES},
        {"label": "gpu", "fdid": fdids[GPU]},
        {"label": "two", "select": DRIVES},
    ]
    result = case(MODULE, {"devices": claims}, borrower, expect_changed=True, actions=["borrow"] * 3)
    assert [device["label"] for device in result["devices"]] == ["one", "gpu", "two"]
    assert len(set(got(result))) == 3
    assert got(result)[1] == fdids[GPU]


def test_a_label_keeps_its_device(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    claims = [{"label": name, "select": DRIVES} for name in ("one", "two", "three")]
    first = {one["label"]: one["fdid"] for one in good(borrower, MODULE, devices=claims)["devices"]}
    for order in (claims[::-1], claims[1:], claims[2:]):
        result = settled(MODULE, {"devices": order}, borrower)
        assert {one["label"]: one["fdid"] for one in result["devices"]} == {
            claim["label"]: first[str(claim["label"])] for claim in order
        }


def test_dma_window(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE], dma_window=512)
    assert borrower.changing() == [f"borrow {fdids[DRIVE]} 512"]


def test_what_is_borrowed_already_is_kept(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    """Borrowed by hand, or the ledger was lost: nothing is borrowed twice."""
    borrower, _fdids = make(fabric, **quirks)
    first = got(good(borrower, MODULE, select={"node_id": 4, **DRIVES}, count=2))
    borrower.lose_ledger()
    result = settled(MODULE, {"select": {"node_id": 4, **DRIVES}, "count": 2}, borrower)
    assert sorted(got(result)) == sorted(first)


@pytest.mark.parametrize("content", [b"\xff{", b"{}", b'{"borrowed": "nonsense", "version": 999}', b"[]"])
def test_a_foreign_ledger_does_no_harm(fabric: Fabric, content: bytes) -> None:
    borrower, _fdids = make(fabric)
    args = {"devices": [{"label": "data", "select": DRIVES}]}
    good(borrower, MODULE, **args)
    borrower.write_ledger(content)
    good(borrower, MODULE, **args)
    assert len(borrower.borrowed()) == 1
    settled(MODULE, args, borrower)


# --- busy, late, missing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [16, 5])
def test_a_busy_candidate_is_skipped(fabric: Fabric, two_quirks: Dict[str, Any], status: int) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    for bdf in (DRIVE, DRIVE2):
        borrower.rule("borrow", "exit", arg=fdids[bdf], exit=status)
    result = good(borrower, MODULE, select=DRIVES)
    assert got(result) == [fdids[FAR]]
    assert borrower.borrowed() == [fdids[FAR]]


def test_a_device_that_somebody_else_has_is_skipped(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **quirks)
    fabric.lent_to(fdids[DRIVE], 16)
    args = {"select": {"node_id": 4, **DRIVES}}
    assert got(good(borrower, MODULE, **args)) == [fdids[DRIVE2]]
    assert borrower.borrowed() == [fdids[DRIVE2]]
    settled(MODULE, args, borrower)


def test_lost_races_are_run_again(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    borrower.rule("borrow", "exit", exit=16, times=5)
    assert got(good(borrower, MODULE, fdid=fdids[DRIVE])) == [fdids[DRIVE]]
    assert len(borrower.changing()) == 6


@pytest.mark.parametrize("late", ["lent", "available", "connected"])
def test_waits_for_a_device(fabric: Fabric, late: str) -> None:
    lender = fabric.node(4, [nvme(DRIVE, 0)])
    borrower = fabric.node(8)
    if late == "available":
        fabric.connect(4, 8)
        fabric.lend(4, DRIVE, state="unavailable")
    elif late == "lent":
        fabric.connect(4, 8)
    else:
        fabric.lend(4, DRIVE)
    running = start(MODULE, {**borrower.args, "select": DRIVES})
    borrower.wait_for_call("list")
    while borrower.commands().count("list") < 2:
        assert running.process.poll() is None, running.finish().text
        time.sleep(0.02)
    if late == "lent":
        fabric.lend(4, DRIVE)
    elif late == "available":
        fabric.set_device(lender.fdid(DRIVE), state="available")
    else:
        fabric.connect(4, 8)
    result = running.finish()
    assert not result.failed, result.text
    assert borrower.borrowed() == [lender.fdid(DRIVE)]


def test_the_deadline(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    result = bad(borrower, MODULE, select={"vendor_id": "1af4"}, timeout=1)
    assert not result.changed
    assert 0.9 < result.seconds < 8
    assert result.says("1af4")


def test_a_shortfall_is_named_and_given_back(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    fabric.lent_to(fdids[DRIVE], 16)
    result = bad(borrower, MODULE, select={"node_id": 4, **DRIVES}, count=2, timeout=1)
    assert "2" in result["msg"]
    assert borrower.borrowed() == []
    with fabric.edit() as state:
        state["devices"][fdids[DRIVE]]["borrowers"] = {}
    case(MODULE, {"select": {"node_id": 4, **DRIVES}, "count": 2}, borrower, expect_changed=True)


def test_a_shortfall_keeps_what_was_there_before(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    before = got(good(borrower, MODULE, select=DRIVES))
    bad(borrower, MODULE, select=DRIVES, count=4, timeout=1)
    assert borrower.borrowed() == before
    settled(MODULE, {"select": DRIVES}, borrower)


def test_one_claim_falls_short_the_other_is_filled(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    claims = [{"label": "many", "select": DRIVES, "count": 5}, {"label": "gpu", "select": {"vendor_id": "10de"}}]
    result = bad(borrower, MODULE, devices=claims, timeout=1)
    assert result.changed
    assert "many" in result["msg"]
    assert borrower.borrowed() == [fdids[GPU]]


@pytest.mark.parametrize("asks_owner", [False, True])
def test_an_unreachable_lender_fails_only_its_claims(fabric: Fabric, asks_owner: bool) -> None:
    borrower, fdids = make(fabric, show={"asks_owner": asks_owner})
    fabric.link_down(12)
    claims = [{"label": "far", "fdid": fdids[FAR]}, {"label": "near", "select": {"node_id": 4, **DRIVES}}]
    result = bad(borrower, MODULE, devices=claims, timeout=1)
    assert result.changed
    assert result.says("EIO", "far")
    assert len(borrower.borrowed()) == 1
    assert fdids[FAR] not in borrower.borrowed()
    fabric.link_down(12, False)
    case(MODULE, {"devices": claims}, borrower, expect_changed=True, actions=["borrow", "none"])


def test_effects_that_settle_late(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks, settle={"borrow": 4})
    result = case(MODULE, {"fdid": fdids[DRIVE]}, borrower, expect_changed=True, actions=["borrow"])
    assert result["devices"][0]["vdev"] == "0000:04:00.0"


# --- waiting for the device itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_for", ["driver", "device_node"])
def test_waits_for_the_driver(fabric: Fabric, wait_for: str) -> None:
    borrower, fdids = make(fabric, vdev_delay=0.7)
    result = good(borrower, MODULE, fdid=fdids[DRIVE], wait_for=wait_for)
    assert result["devices"][0]["driver"] == "nvme"
    if wait_for == "device_node":
        assert any(node.endswith("nvme20n1") for node in result["devices"][0]["device_nodes"])
    settled(MODULE, {"fdid": fdids[DRIVE], "wait_for": wait_for}, borrower)


@pytest.mark.parametrize("wait_for", ["none", "vdev"])
def test_without_a_driver(fabric: Fabric, wait_for: str) -> None:
    borrower, fdids = make(fabric, vdev_driver=None)
    args = {"fdid": fdids[DRIVE], "wait_for": wait_for}
    result = case(MODULE, args, borrower, expect_changed=True, actions=["borrow"])
    assert result["devices"][0]["driver"] is None


def test_a_driver_that_never_comes(fabric: Fabric) -> None:
    borrower, fdids = make(fabric, vdev_driver=None)
    result = bad(borrower, MODULE, fdid=fdids[DRIVE], timeout=1)
    assert result.says("driver", fdids[DRIVE])
    assert result.seconds < 8
    borrower.knobs(vdev_driver="own")
    assert not good(borrower, MODULE, fdid=fdids[DRIVE], wait_for="vdev").failed
    assert borrower.borrowed() == [fdids[DRIVE]]


def test_a_device_that_never_shows_up_in_sysfs(fabric: Fabric) -> None:
    borrower, fdids = make(fabric, vdev_sysfs=False)
    bad(borrower, MODULE, fdid=fdids[DRIVE], wait_for="device_node", timeout=1)
    good(borrower, MODULE, fdid=fdids[DRIVE2], wait_for="none")
    assert fdids[DRIVE2] in borrower.borrowed()


# --- returning --------------------------------------------------------------------------------------------------------


def test_return(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    args = {"fdid": fdids[DRIVE], "state": "returned"}
    case(MODULE, args, borrower, expect_changed=True, actions=["return"])
    assert borrower.borrowed() == []


def test_return_touches_only_what_is_borrowed_here(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **quirks)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    fabric.lent_to(fdids[DRIVE2], 16)
    result = case(MODULE, {"select": DRIVES, "state": "returned"}, borrower, expect_changed=True)
    assert result.actions.count("return") == 1
    assert borrower.changing()[-1] == f"return {fdids[DRIVE]}"
    assert fabric.borrowers(fdids[DRIVE2]) == [16]
    case(MODULE, {"fdid": fdids[DRIVE2], "state": "returned"}, borrower, expect_changed=False)


def test_a_label_keeps_its_devices_from_claims_that_name_them(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE], label="scratch")
    wish = {"fdid": fdids[DRIVE], "label": "other"}
    assert good(borrower, MODULE, check=True, **wish)["pending"]  # an earlier task may return it
    result = bad(borrower, MODULE, **wish)
    assert result.says(f"{fdids[DRIVE]} is borrowed here for another claim (label scratch); return that first")
    assert not result.changed
    case(MODULE, {"fdid": fdids[DRIVE]}, borrower, expect_changed=False)
    case(MODULE, {"fdid": fdids[DRIVE], "label": "scratch"}, borrower, expect_changed=False)


def test_return_by_label(fabric: Fabric) -> None:
    borrower, _fdids = make(fabric)
    claims = [{"label": name, "select": DRIVES} for name in ("one", "two")]
    first = {one["label"]: one["fdid"] for one in good(borrower, MODULE, devices=claims)["devices"]}
    case(MODULE, {"devices": claims[1:], "state": "returned"}, borrower, expect_changed=True, actions=["return"])
    assert borrower.borrowed() == [first["one"]]


def test_what_is_in_use_is_not_returned(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    good(borrower, MODULE, devices=[{"fdid": fdids[DRIVE]}, {"fdid": fdids[GPU]}])
    borrower.mount("nvme20n1p1", "/scratch")
    mark = borrower.mark()
    for check in (True, False):
        result = bad(borrower, MODULE, check=check, fdid=fdids[DRIVE], state="returned")
        assert result.says("mounted at /scratch", "nvme20n1p1")
        assert not result.changed
    assert borrower.changing(mark) == []
    both = {"devices": [{"fdid": fdids[DRIVE]}, {"fdid": fdids[GPU]}], "state": "returned"}
    result = bad(borrower, MODULE, **both)
    assert result.changed
    assert borrower.borrowed() == [fdids[DRIVE]]
    borrower.unmount("/scratch")
    good(borrower, MODULE, **both)
    assert borrower.borrowed() == []


def test_only_check_mode_believes_in_what_will_be_unmounted(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    borrower.mount("nvme20n1p1", "/scratch")
    args = {"fdid": fdids[DRIVE], "state": "returned", "unmounted": ["/scratch/", "/elsewhere"], "ended": [1]}
    assert good(borrower, MODULE, check=True, **args).changed
    mark = borrower.mark()
    assert bad(borrower, MODULE, **args).says("mounted at /scratch")
    assert borrower.changing(mark) == []
    borrower.unmount("/scratch")
    case(MODULE, args, borrower, expect_changed=True, actions=["return"])


def test_force_returns_what_is_in_use(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    borrower.mount("nvme20n1p1", "/scratch")
    args = {"fdid": fdids[DRIVE], "state": "returned", "force": True}
    case(MODULE, args, borrower, expect_changed=True, actions=["return"])


def test_return_of_what_never_was(fabric: Fabric) -> None:
    borrower, _fdids = make(fabric)
    case(MODULE, {"select": {"vendor_id": "1af4"}, "state": "returned"}, borrower, expect_changed=False)


# --- races and accidents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("honest", "rounds"), [(False, 8), (True, 3)])
def test_two_borrowers_at_the_same_moment(fabric: Fabric, honest: bool, rounds: int) -> None:
    """Many rounds; the lender's list does, or does not, say that a device is lent."""
    words = {"owner": "in use", "self": "in use", "other": "in use"} if honest else {}
    fabric.node(4, [nvme(DRIVE, 0), nvme(DRIVE2, 1)])
    borrowers = [fabric.node(node, lent_words=words) for node in (8, 9)]
    for borrower in borrowers:
        fabric.connect(4, borrower.node_id)
    fdids = fabric.lend(4, DRIVE, DRIVE2)
    for _round in range(rounds):
        runs = [start(MODULE, {**borrower.args, "select": DRIVES}) for borrower in borrowers]
        results = [running.finish() for running in runs]
        for result in results:
            assert not result.failed, result.text
            assert result.changed
        taken = [borrower.borrowed() for borrower in borrowers]
        assert sorted(taken[0] + taken[1]) == sorted(fdids), taken
        assert [got(result) for result in results] == taken
        back = [start(MODULE, {**borrower.args, "select": DRIVES, "state": "returned"}) for borrower in borrowers]
        for running in back:
            assert running.finish().changed


def test_two_claims_at_once_on_one_node(fabric: Fabric) -> None:
    """Two labels that fit the same devices end with different ones, and both are remembered."""
    borrower, _fdids = make(fabric)
    for _round in range(2):
        claims = [{"label": name, "select": DRIVES} for name in ("one", "two")]
        runs = [start(MODULE, {**borrower.args, "devices": [claim]}) for claim in claims]
        results = [running.finish() for running in runs]
        for result in results:
            assert not result.failed, result.text
        assert len(borrower.borrowed()) == 2
        assert sorted(got(results[0]) + got(results[1])) == borrower.borrowed()
        again = settled(MODULE, {"devices": claims}, borrower)
        assert got(again) == got(results[0]) + got(results[1])
        good(borrower, MODULE, devices=claims, state="returned")


@pytest.mark.parametrize("done", [False, True])
def test_a_killed_run_is_made_good(fabric: Fabric, two_quirks: Dict[str, Any], done: bool) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    borrower.rule("borrow", "hang", done=done)
    args = {"devices": [{"label": "data", "select": DRIVES}]}
    running = start(MODULE, {**borrower.args, **args})
    borrower.wait_for_call("borrow")
    while done and not borrower.borrowed():
        assert running.process.poll() is None
    running.kill()
    borrower.end_hung()
    borrower.no_rules()
    good(borrower, MODULE, **args)
    assert len(borrower.borrowed()) == 1
    settled(MODULE, args, borrower)


def test_a_borrow_that_worked_although_it_failed(fabric: Fabric) -> None:
    """The command reports EIO after the device was injected: one device in the end, not two."""
    borrower, _fdids = make(fabric)
    borrower.rule("borrow", "exit", exit=5, done=True, times=1)
    good(borrower, MODULE, select=DRIVES)
    assert len(borrower.borrowed()) == 1


def test_after_a_reboot_the_label_finds_a_device(fabric: Fabric) -> None:
    borrower, _fdids = make(fabric)
    args = {"devices": [{"label": "data", "select": DRIVES}]}
    good(borrower, MODULE, **args)
    borrower.reboot()
    case(MODULE, args, borrower, expect_changed=True, actions=["borrow"])
    assert len(borrower.borrowed()) == 1


# --- a lender that was restarted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "vdev_status"),
    [(errno.EBUSY, 0), (errno.EIO, errno.EIO), (errno.EEXIST, 0), (errno.EALREADY, errno.EIO)],
)
def test_a_stale_borrow_is_returned_and_borrowed_again(
    fabric: Fabric, two_quirks: Dict[str, Any], status: int, vdev_status: int
) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    args = {"devices": [{"label": "data", "select": {"node_id": 4, **DRIVES}}, {"label": "far", "fdid": fdids[FAR]}]}
    good(borrower, MODULE, **args)
    (fdid,) = (fdid for fdid in borrower.borrowed() if fdid != fdids[FAR])
    fabric.forget_borrow(fdid, status, vdev_status)
    mark = borrower.mark()
    result = case(MODULE, args, borrower, expect_changed=True, actions=["borrow", "none"])
    assert borrower.changing(mark) == [f"borrow {fdid}", f"return {fdid}", f"borrow {fdid}"]
    assert result["devices"][0]["fdid"] == fdid
    assert result.says(f"{fdid} was borrowed here and is forgotten by its lender")


def test_a_label_gets_its_own_device_back(fabric: Fabric) -> None:
    """Others that match and are free come first in the order, and were none of its."""
    borrower, fdids = make(fabric)
    fabric.set_device(fdids[DRIVE], state="unavailable")
    args = {"devices": [{"label": "data", "select": {"node_id": 4, **DRIVES}}]}
    good(borrower, MODULE, **args)
    fabric.set_device(fdids[DRIVE], state="available")
    fabric.forget_borrow(fdids[DRIVE2], errno.EBUSY)
    case(MODULE, args, borrower, expect_changed=True, actions=["borrow"])
    assert borrower.borrowed() == [fdids[DRIVE2]]


def test_nothing_is_returned_that_this_node_did_not_borrow(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    fabric.forget_borrow(fdids[DRIVE], errno.EBUSY)
    borrower.lose_ledger()
    mark = borrower.mark()
    assert bad(borrower, MODULE, fdid=fdids[DRIVE], timeout=0).says("EBUSY")
    assert borrower.changing(mark) == [f"borrow {fdids[DRIVE]}"]


def test_what_somebody_else_has_got_meanwhile_is_tried_once(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE])
    fabric.forget_borrow(fdids[DRIVE], errno.EBUSY)
    fabric.lent_to(fdids[DRIVE], 99)
    mark = borrower.mark()
    assert bad(borrower, MODULE, fdid=fdids[DRIVE], timeout=1).says("EBUSY", "of node 4")
    assert borrower.changing(mark).count(f"return {fdids[DRIVE]}") == 1
    assert fabric.borrowers(fdids[DRIVE]) == [99]
    mark = borrower.mark()
    bad(borrower, MODULE, fdid=fdids[DRIVE], timeout=0)  # it was returned: there is nothing of ours any more
    assert borrower.changing(mark) == [f"borrow {fdids[DRIVE]}"]


def out_of_reach(borrower: Node, fdid: str) -> None:
    for command in ("show", "get-vdev", "borrow", "return"):
        borrower.rule(command, "exit", arg=fdid, exit=errno.EIO, err="no answer")


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_out_of_reach_is_neither_returned_nor_replaced(fabric: Fabric, listed: bool) -> None:
    borrower, fdids = make(fabric)
    args = {"devices": [{"label": "data", "select": DRIVES, "count": 2}]}
    good(borrower, MODULE, **args)
    mine = borrower.borrowed()
    assert fdids[FAR] not in mine
    fdid = mine[0]
    out_of_reach(borrower, fdid)
    if not listed:
        fabric.set_device(fdid, hidden_until=10**9)
    mark = borrower.mark()
    check = good(borrower, MODULE, check=True, timeout=1, **args)
    assert check["pending"]
    result = bad(borrower, MODULE, timeout=1, **args)
    assert result.says(fdid, "EIO", "node 8 cannot reach node 4")
    assert result["errors"][0]["label"] == "data"
    assert borrower.changing(mark) == []
    # It comes back as it was, also to a run that finds it in doubt no more.
    borrower.no_rules()
    fabric.set_device(fdid, hidden_until=0)
    settled(MODULE, args, borrower)
    assert borrower.borrowed() == mine


def test_a_return_of_what_is_out_of_reach(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE], label="data")
    out_of_reach(borrower, fdids[DRIVE])
    mark = borrower.mark()
    for check in (True, False):
        for args in ({"label": "data"}, {"fdid": fdids[DRIVE]}, {"select": {"node_id": 4}}):
            result = bad(borrower, MODULE, check=check, state="returned", **args)
            assert result.says(fdids[DRIVE], "EIO", "node 8 cannot reach node 4")
    assert borrower.changing(mark) == []
    result = bad(borrower, MODULE, state="returned", label="data", force=True)  # it is tried at least
    assert result["errors"][0]["label"] == "data"
    assert borrower.changing(mark) == [f"return {fdids[DRIVE]}"]
    borrower.no_rules()
    case(MODULE, {"state": "returned", "label": "data"}, borrower, expect_changed=True, actions=["return"], again=False)


def test_a_return_of_what_the_lender_forgot(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    good(borrower, MODULE, fdid=fdids[DRIVE], label="data")
    fabric.forget_borrow(fdids[DRIVE], errno.EIO, errno.EIO)
    args = {"state": "returned", "label": "data"}
    case(MODULE, args, borrower, expect_changed=True, actions=["return"], again=False)
    assert good(borrower, MODULE, **args)["devices"] == []


def test_errors_name_the_label(fabric: Fabric) -> None:
    borrower, fdids = make(fabric)
    claims = [{"label": "many", "select": DRIVES, "count": 5}, {"fdid": "99999"}]
    result = bad(borrower, MODULE, devices=claims, timeout=0)
    assert [error["label"] for error in result["errors"]] == ["many", None]
    result = good(borrower, MODULE, fdid=fdids[DRIVE], label="data")
    borrower.mount(os.path.basename(result["devices"][0]["device_nodes"][-1]), "/srv")
    result = bad(borrower, MODULE, select={"node_id": 4}, state="returned")
    assert [error["label"] for error in result["errors"]] == ["data"]


@pytest.mark.parametrize("how", ["EIO", "garbage", "vanish"])
def test_show_of_another_device_fails(fabric: Fabric, two_quirks: Dict[str, Any], how: str) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    if how == "vanish":
        borrower.knobs(vanish=[fdids[FAR]])
    else:
        borrower.rule("show", "exit", arg=fdids[FAR], exit=5 if how == "EIO" else 0, out="?? \x02\n")
    good(borrower, MODULE, select={"vendor_id": "10de"})
    assert borrower.borrowed() == [fdids[GPU]]


# --- check mode, and what it costs ------------------------------------------------------------------------------------


def test_check_mode_does_not_wait(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, _fdids = make(fabric, **two_quirks)
    result = good(borrower, MODULE, check=True, select={"vendor_id": "1af4"}, timeout=30)
    assert result.changed
    assert result["pending"] is True
    assert "pending" in result.actions
    assert result.seconds < 5
    bad(borrower, MODULE, check=True, select={"vendor_id": "1af4"}, timeout=0)
    bad(borrower, MODULE, select={"vendor_id": "1af4"}, timeout=0)
    assert borrower.changing() == []


def test_check_mode_before_anything_is_connected(fabric: Fabric) -> None:
    borrower = fabric.node(8)
    result = good(borrower, MODULE, check=True, devices=[{"label": "data", "select": DRIVES}])
    assert result.changed
    assert result["pending"] is True


def test_without_a_tool(fabric: Fabric) -> None:
    borrower = fabric.node(8)
    borrower.tool.unlink()
    result = bad(borrower, MODULE, select=DRIVES, timeout=1)
    assert result.says(str(borrower.tool))
    check = good(borrower, MODULE, check=True, select=DRIVES)
    assert check.changed
    assert check["pending"] is True
    assert check.actions == ["pending"]


def test_process_count(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **quirks)
    args = {"select": {"node_id": 4, **DRIVES}, "count": 2}
    good(borrower, MODULE, **args)
    mark = borrower.mark()
    settled(MODULE, args, borrower)
    assert len(borrower.calls(mark)) <= len(fdids) + 2 + 2, borrower.commands(mark)


def test_prediction_with_a_mix_of_kept_and_new(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    borrower, fdids = make(fabric, **two_quirks)
    good(borrower, MODULE, devices=[{"label": "two", "select": {"node_id": 4, "bdf": DRIVE2}}])
    args = {"devices": [{"label": "one", "select": DRIVES}, {"label": "two", "select": DRIVES}]}
    check = good(borrower, MODULE, check=True, **args)
    apply = good(borrower, MODULE, **args)
    agree(check, apply)
    assert apply.actions == ["borrow", "none"]
    assert apply["devices"][1]["fdid"] == fdids[DRIVE2]
