# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme_cplane with the reference tool (a stand-in), and with devices that are claimed by a label."""

from __future__ import annotations

import os
import signal
import stat
from typing import Any

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import EMU, Lab, alive, wait_for
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, nvme

DRIVE, DRIVE2 = "0000:81:00.0", "0000:82:00.0"


def mode_of(lab: Lab) -> str:
    return f"{stat.S_IMODE(lab.path().stat().st_mode):04o}"


@pytest.mark.parametrize(
    ("build", "verb", "option"),
    [("current", "serve", "--homi-id"), ("start", "start", "--homi-id"), ("shm", "start", "--shm_id")],
)
def test_every_build_is_driven(lab: Lab, build: str, verb: str, option: str) -> None:
    lab.env["FAKE_HOMI_BUILD"] = build
    server = lab.cycle("start", server="homi", controllers=["82:00.0", DRIVE], backend="upcie", heap_size="16M")
    assert [one["name"] for one in server["controllers"]] == [DRIVE, DRIVE2]
    assert lab.commands() == [[verb, DRIVE, DRIVE2, option, "7", "--be", "upcie", "--host_heap_size", str(16 << 20)]]
    lab.cycle("stop", state="stopped")
    assert lab.path().is_socket()  # left behind, and no obstacle
    lab.cycle("start", server="homi", controllers=[DRIVE])


def test_mode_and_group_of_its_socket_are_set(lab: Lab) -> None:
    server = lab.cycle("start", server="homi", controllers=[DRIVE])
    assert mode_of(lab) == "0660"
    with lab.client():
        after = lab.cycle("configure", server="homi", controllers=[DRIVE], socket_mode="0600")
    assert (mode_of(lab), after["pid"]) == ("0600", server["pid"])
    lab.cycle("none", server="homi", controllers=[DRIVE], socket_mode="0600")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a socket to another group, which needs root")
def test_the_group_is_set_and_taken_back(lab: Lab) -> None:
    lab.cycle("start", server="homi", controllers=[DRIVE], socket_group="65534")
    assert lab.path().stat().st_gid == 65534
    lab.cycle("configure", server="homi", controllers=[DRIVE])
    assert lab.path().stat().st_gid == os.getegid()


def test_credentials_are_refused(lab: Lab) -> None:
    lab.refused("allow_uids", server="homi", controllers=[DRIVE], allow_uids=[1])


def test_one_that_dies_while_starting_says_why(lab: Lab) -> None:
    result = lab.bad("while starting", "not bound to vfio-pci", server="homi", controllers=["0000:de:0d.0", DRIVE])
    assert not result.changed


def test_sighup_kills_it_and_the_next_run_starts_it(lab: Lab) -> None:
    pid = lab.good(server="homi", controllers=[DRIVE])["server"]["pid"]
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: not alive(pid))
    assert lab.cycle("start", server="homi", controllers=[DRIVE])["pid"] != pid


def test_a_second_start_leaves_a_living_one(lab: Lab) -> None:
    """The reference server would take the path away from it."""
    pid = lab.foreign(DRIVE)
    inode = lab.path().stat().st_ino
    assert lab.cycle("none", server="homi", controllers=[DRIVE])["pid"] == pid
    lab.refused("did not start", server="homi", controllers=[DRIVE2])
    assert (lab.path().stat().st_ino, lab.commands()) == (inode, [])


def test_a_file_in_its_way_is_refused_before_it_can_remove_it(lab: Lab) -> None:
    lab.path().write_text("precious")
    lab.refused("not a socket", server="homi", controllers=[DRIVE])
    assert (lab.path().read_text(), lab.commands()) == ("precious", [])


# -- auto -------------------------------------------------------------------------------------------------------------


def test_auto_takes_homi_for_drives_and_native_for_emulated_ones(lab: Lab) -> None:
    lab.cycle("start", controllers=[DRIVE])
    assert len(lab.commands()) == 1
    lab.cycle("stop, start", controllers=[EMU])
    assert len(lab.commands()) == 1


def test_auto_keeps_what_runs(lab: Lab) -> None:
    lab.good(server="homi", controllers=[DRIVE])
    lab.homi.rename(lab.homi.with_name("gone"))
    lab.cycle("none", controllers=[DRIVE])


def test_without_homi_drives_are_refused_and_pending_in_check_mode(lab: Lab) -> None:
    lab.homi.unlink()
    for server in ("auto", "homi"):
        check = lab.good(True, server=server, controllers=[DRIVE])
        assert (check["pending"], check.changed, check["server"]["action"]) == (True, True, "pending")
        lab.bad("is installed" if server == "auto" else "not installed", "homi", server=server, controllers=[DRIVE])


# -- labels -----------------------------------------------------------------------------------------------------------


def borrower(fabric: Fabric, lab: Lab) -> Node:
    fabric.node(4, [nvme(DRIVE, 0), nvme(DRIVE2, 1)])
    node = fabric.node(8)
    fabric.connect(4, 8)
    fabric.lend(4, DRIVE, DRIVE2)
    places = dict(node.args)
    lab.args["smartio_state_dir"] = places.pop("state_dir")
    lab.args.update({name: places[name] for name in ("tool", "sysfs", "proc", "dev")})
    return node


def test_a_label_is_what_is_borrowed_under_it_at_each_start(lab: Lab, fabric: Fabric) -> None:
    node = borrower(fabric, lab)
    claim: Any = {"controllers": ["claim:scratch"]}
    check = lab.good(True, **claim)
    assert (check["pending"], check["server"]["action"]) == (True, "pending")
    lab.bad("nothing is borrowed", "scratch", **claim)
    good(node, "smartio_borrow", select={"node_id": 4}, label="scratch")
    first = lab.cycle("start", **claim)
    (vdev,) = [one["uri"] for one in first["controllers"]]
    assert lab.commands()[0][1] == vdev
    good(node, "smartio_borrow", select={"node_id": 4}, label="scratch", count=2)
    second = lab.cycle("stop, start", **claim)
    assert len(second["controllers"]) == 2


def test_a_label_with_nothing_beside_a_drive_is_not_left_out(lab: Lab, fabric: Fabric) -> None:
    borrower(fabric, lab)
    lab.bad("nothing is borrowed", controllers=[DRIVE, "claim:scratch"])
    assert lab.commands() == []


def test_without_smartio_a_label_is_pending_in_check_mode_and_stopped_needs_none(lab: Lab) -> None:
    lab.args["tool"] = str(lab.home / "smartio_tool")
    assert lab.good(True, controllers=["claim:scratch"])["pending"] is True
    lab.bad("smartio_tool", controllers=["claim:scratch"])
    lab.cycle("none", state="stopped", controllers=["claim:scratch"])
