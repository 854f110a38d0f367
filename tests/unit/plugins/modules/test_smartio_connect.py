# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_connect against the stub."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import agree, bad, case, good, settled
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, nvme

MODULE = "smartio_connect"


def lender_with_peers(fabric: Fabric, **quirks: Any) -> Node:
    lender = fabric.node(4, [nvme("0000:81:00.0", 0)], **quirks)
    for peer in (8, 12, 16):
        fabric.node(peer)
    return lender


def test_connects_each_node_once(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    lender = lender_with_peers(fabric, **quirks)
    result = case(MODULE, {"node_ids": [12, 8]}, lender, expect_changed=True, actions=["connect", "connect"])
    assert [(one["node_id"], one["adapter"]) for one in result["connections"]] == [(12, 0), (8, 0)]
    assert lender.connections() == [[12, 0], [8, 0]]


def test_one_node_ad_hoc(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    result = case(MODULE, {"node_id": "8"}, lender, expect_changed=True, actions=["connect"])
    assert result["connections"] == [
        {"node_id": 8, "hostname": None, "adapter": 0, "state": "connected", "action": "connect"}
    ]


def test_adapter(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric, adapter=1)
    case(MODULE, {"node_ids": [8], "adapter": 1}, lender, expect_changed=True, actions=["connect"])
    assert lender.connections() == [[8, 1]]


def test_connections_with_an_adapter_each(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    wanted = {"connections": [{"node_id": 8, "adapter": 0}, {"node_id": 12}]}
    case(MODULE, wanted, lender, expect_changed=True, actions=["connect", "connect"])
    assert lender.connections() == [[8, 0], [12, 0]]


def test_only_what_is_missing(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = lender_with_peers(fabric, **two_quirks)
    good(lender, MODULE, node_ids=[8])
    mark = lender.mark()
    case(MODULE, {"node_ids": [8, 16]}, lender, expect_changed=True, actions=["none", "connect"])
    assert lender.changing(mark) in (["connect 16"], ["connect 16 0"])


def test_one_of_three_is_unreachable(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    lender = lender_with_peers(fabric, **quirks)
    fabric.link_down(12)
    result = bad(lender, MODULE, node_ids=[8, 12, 16])
    assert result.changed
    assert result.says("12", "EIO")
    assert "12" in result["msg"]
    assert "EIO" in result["msg"]
    assert lender.connections() == [[8, 0], [16, 0]]
    by_node = {one["node_id"]: (one["action"], one["state"]) for one in result["connections"]}
    assert by_node == {8: ("connect", "connected"), 12: ("none", "unreachable"), 16: ("connect", "connected")}
    (error,) = result["errors"]
    assert (error["errno_name"], error["node_id"], error["adapter"]) == ("EIO", 12, 0)
    fabric.link_down(12, False)
    case(MODULE, {"node_ids": [8, 12, 16]}, lender, expect_changed=True, actions=["none", "connect", "none"])


def test_all_unreachable_is_no_change(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    for peer in (8, 12):
        fabric.link_down(peer)
    result = bad(lender, MODULE, node_ids=[8, 12])
    assert not result.changed
    assert result.says("8", "12", "EIO")


def test_an_unreachable_node_can_be_a_warning(fabric: Fabric) -> None:
    """The sentence names both nodes, and what else goes wrong is still a failure."""
    lender = lender_with_peers(fabric)
    fabric.link_down(12)
    result = good(lender, MODULE, node_ids=[8, 12], on_unreachable="warn")
    assert result.changed
    assert [one["state"] for one in result["connections"]] == ["connected", "unreachable"]
    assert len(result["warnings"]) == 1
    assert result.says("node 4 cannot connect to node 12 (adapter 0): ", "EIO")
    assert "node 12 (adapter 0): not known to be connected\n" in result["diff"]["after"]
    lender.rule("connect", "exit", arg="16", exit=19)
    result = bad(lender, MODULE, node_ids=[12, 16], on_unreachable="warn")
    assert [one["state"] for one in result["connections"]] == ["unreachable", None]
    assert [error["errno_name"] for error in result["errors"]] == ["ENODEV"]


def test_names(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    """Asked on this node; a name that turns out to be a node that is listed already is connected once."""
    lender = lender_with_peers(fabric, **two_quirks, disinfo={"build1": "8", "build2": " 12"})
    wanted = {"node_ids": [8], "hostnames": ["build1", "build2"]}
    result = case(MODULE, wanted, lender, expect_changed=True, actions=["connect", "connect"])
    assert [(one["node_id"], one["hostname"]) for one in result["connections"]] == [(8, "build1"), (12, "build2")]
    assert lender.connections() == [[8, 0], [12, 0]]
    assert "disinfo get-nodeid -hostname build2" in lender.commands()


def test_names_with_an_adapter_each(fabric: Fabric) -> None:
    """A name beside an id is for messages only."""
    lender = lender_with_peers(fabric, disinfo={"build2": "12"})
    mark = lender.mark()
    wanted = {"connections": [{"node_id": 8, "hostname": "build1"}, {"hostname": "build2", "adapter": 0}]}
    result = case(MODULE, wanted, lender, expect_changed=True, actions=["connect", "connect"])
    assert [(one["node_id"], one["hostname"]) for one in result["connections"]] == [(8, "build1"), (12, "build2")]
    assert "disinfo get-nodeid -hostname build1" not in lender.commands(mark)
    fabric.link_down(16)
    down = bad(lender, MODULE, connections=[{"node_id": 16, "hostname": "build3"}])
    assert down["msg"].startswith("node 4 cannot connect to node 16 (adapter 0), host build3: ")


@pytest.mark.parametrize("answer", [2, "", "no such host", "0", "-1", None])
def test_a_name_that_cannot_be_resolved(fabric: Fabric, answer: Any) -> None:
    """Fails for itself alone, names the host and says what to do; in check mode, too."""
    lender = lender_with_peers(fabric, disinfo={"build1": "8", **({} if answer is None else {"build9": answer})})
    check = bad(lender, MODULE, check=True, hostnames=["build9", "build1"], on_unreachable="warn")
    assert lender.changing() == []
    result = bad(lender, MODULE, hostnames=["build9", "build1"], on_unreachable="warn")
    agree(check, result)
    assert result.changed
    assert lender.connections() == [[8, 0]]
    assert result["msg"].startswith("1 of 2 connections failed: the node id of host build9 cannot be told here: ")
    assert "smartio_node_id" in result["msg"]
    assert [(one["node_id"], one["state"], one["action"]) for one in result["connections"]] == [
        (8, "connected", "connect"),
        (None, None, "none"),
    ]
    assert result["errors"][0]["hostname"] == "build9"


def test_without_disinfo(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    (lender.tool.parent / "disinfo").unlink()
    assert bad(lender, MODULE, hostnames=["build1"]).says("build1", "there is no disinfo beside", "smartio_node_id")


def test_connections_that_are_not_wanted_any_more_are_told(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    good(lender, MODULE, node_ids=[8, 12])
    result = good(lender, MODULE, node_ids=[8, 16])
    assert result["others"] == [{"node_id": 12, "adapter": 0}]
    assert good(lender, MODULE, check=True, node_ids=[8, 12, 16])["others"] == []


def test_pending_on_a_bare_host(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    lender.tool.unlink()
    result = good(lender, MODULE, check=True, connections=[{"node_id": 8}, {"hostname": "build1"}])
    assert result.changed
    assert result["pending"]
    assert result["connections"] == [
        {"node_id": 8, "hostname": None, "adapter": 0, "state": "connected", "action": "pending"},
        {"node_id": None, "hostname": "build1", "adapter": 0, "state": "connected", "action": "pending"},
    ]
    assert bad(lender, MODULE, node_ids=[8]).says("install")


@pytest.mark.parametrize("status", [17, 106, 114])
def test_done_already_counts_as_done(fabric: Fabric, status: int) -> None:
    """Connected by somebody else: the command runs once, and is no failure."""
    lender = lender_with_peers(fabric, strict=True, repeat_status={"connect": status})
    fabric.connect(4, 8)
    result = good(lender, MODULE, node_ids=[8])
    assert len(result["connections"]) == 1
    settled(MODULE, {"node_ids": [8]}, lender)


@pytest.mark.parametrize("loss", ["lost", "garbage", "empty object", "foreign", "other boot", "other load"])
def test_the_ledger_is_not_trusted_blindly(fabric: Fabric, loss: str) -> None:
    lender = lender_with_peers(fabric)
    good(lender, MODULE, node_ids=[8])
    if loss == "lost":
        lender.lose_ledger()
    elif loss == "garbage":
        lender.write_ledger(b"\x00\xff{[")
    elif loss == "empty object":
        lender.write_ledger(b"{}")
    elif loss == "foreign":
        lender.write_ledger(b'["made by", {"another": "program"}]')
    elif loss == "other boot":
        lender.new_boot_id()
        lender.forget()
    else:
        lender.reload_module()
    mark = lender.mark()
    good(lender, MODULE, node_ids=[8])
    assert lender.changing(mark) in (["connect 8"], ["connect 8 0"])
    assert [8, 0] in lender.connections()
    settled(MODULE, {"node_ids": [8]}, lender)


def test_without_the_kernel_module_in_sysfs_the_ledger_is_not_trusted(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    lender.unload_module()
    good(lender, MODULE, node_ids=[8])
    mark = lender.mark()
    good(lender, MODULE, node_ids=[8])
    assert len(lender.changing(mark)) == 1


def test_reconnect_runs_the_command_again(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = lender_with_peers(fabric, **two_quirks)
    good(lender, MODULE, node_ids=[8])
    mark = lender.mark()
    check = good(lender, MODULE, check=True, node_ids=[8], reconnect=True)
    assert lender.changing(mark) == []
    apply = good(lender, MODULE, node_ids=[8], reconnect=True)
    agree(check, apply)
    assert apply.actions == ["connect"]
    assert len(lender.changing(mark)) == 1


def test_repeated_node_ids_are_connected_once(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric, strict=True)
    good(lender, MODULE, node_ids=[8, 8])
    assert lender.connections() == [[8, 0]]
    assert len(lender.changing()) == 1


def test_check_mode_leaves_no_trace(fabric: Fabric) -> None:
    lender = lender_with_peers(fabric)
    good(lender, MODULE, check=True, node_ids=[8])
    assert lender.connections() == []
    assert good(lender, MODULE, node_ids=[8]).changed


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"node_ids": [8], "connections": [{"node_id": 8}]},
        {"hostnames": ["build1"], "connections": [{"node_id": 8}]},
        {"node_ids": ["eight"]},
        {"node_ids": [-8]},
        {"connections": [{"adapter": 0}]},
        {"hostnames": ["-x"]},
        {"hostnames": ["two words"]},
        {"hostnames": [""]},
    ],
)
def test_refused_arguments(fabric: Fabric, wanted: Dict[str, Any]) -> None:
    lender = lender_with_peers(fabric)
    result = bad(lender, MODULE, **wanted)
    assert not result.changed
    assert lender.changing() == []


def test_process_count(fabric: Fabric) -> None:
    """A run with nothing to do needs few processes, whatever the number of nodes."""
    lender = lender_with_peers(fabric)
    good(lender, MODULE, node_ids=[8, 12, 16])
    mark = lender.mark()
    settled(MODULE, {"node_ids": [8, 12, 16]}, lender)
    assert len(lender.calls(mark)) <= 2
