# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_scan against the stub."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import bad, good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

MODULE = "smartio_scan"
TREE = [nvme("0000:41:00.0", 40), gpu("0000:42:00.0", 41)]


def make(fabric: Fabric, **quirks: Any) -> Node:
    fabric.node(12)
    return fabric.node(8, transparent=TREE, **quirks)


def tree(fabric: Fabric) -> Dict[str, str]:
    """The fdids of the scanned tree by address."""
    return {found["bdf"]: fdid for fdid, found in fabric.state["devices"].items() if found["owner"] == 32}


def test_scan(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    node = make(fabric, **quirks)
    mark = node.mark()
    good(node, MODULE, check=True, node_id=32)
    assert node.changing(mark) == []
    result = good(node, MODULE, node_id=32)
    assert result.changed
    fdids = tree(fabric)
    assert len(result["added"]) == 2
    assert result["removed"] == []
    assert all(fdid in str(result["added"]) for fdid in fdids.values())
    again = good(node, MODULE, node_id=32)
    assert not again.changed
    assert (again["added"], again["removed"]) == ([], [])


def test_a_device_went(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    node = make(fabric, **two_quirks)
    good(node, MODULE, node_id=32)
    gone = tree(fabric)["0000:42:00.0"]
    node.knobs(transparent=TREE[:1])
    result = good(node, MODULE, node_id=32)
    assert result.changed
    assert len(result["removed"]) == 1
    assert gone in str(result["removed"])
    assert result["added"] == []


def test_another_lender_adds_a_device_meanwhile(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    node = make(fabric, **two_quirks)
    fabric.connect(12, 8)
    good(node, MODULE, node_id=32)
    node.rule("scan", "intrude", owner=12, hardware=nvme("0000:05:00.0", 5))
    result = good(node, MODULE, node_id=32)
    assert result["added"] == []
    assert not result.changed


def test_adapter(fabric: Fabric) -> None:
    node = make(fabric, adapter=1)
    assert good(node, MODULE, node_id=32, adapter=1).changed
    assert node.changing() == ["scan 32 1"]


def test_autoborrow_is_set_before_the_scan(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    node = make(fabric, **two_quirks)
    assert good(node, MODULE, node_id=32, autoborrow=True).changed
    assert node.changing()[0] == "config autoborrow_transparent 1"
    assert node.changing()[1].startswith("scan 32")
    assert node.borrowed() == sorted(tree(fabric).values())
    assert not good(node, MODULE, node_id=32, autoborrow=True).changed


@pytest.mark.parametrize("autoborrow", [None, True])
def test_a_node_id_in_use(fabric: Fabric, autoborrow: object) -> None:
    node = make(fabric)
    more = {} if autoborrow is None else {"autoborrow": autoborrow}
    result = bad(node, MODULE, node_id=12, **more)
    assert result.says("12", "EINVAL")


def test_the_node_id_is_needed(fabric: Fabric) -> None:
    node = make(fabric)
    assert bad(node, MODULE).says("node_id")
    assert node.calls() == []


def test_scanned_devices_are_not_purged(fabric: Fabric) -> None:
    node = fabric.node(8, [nvme("0000:81:00.0", 0)], transparent=TREE)
    good(node, MODULE, node_id=32)
    good(node, "smartio_device", bdf="81:00.0", state="present", purge=True)
    good(node, "smartio_device", devices=[], purge=True, allow_empty=True)
    assert node.pool() == {}
    assert sorted(tree(fabric)) == ["0000:41:00.0", "0000:42:00.0"]


def test_without_a_tool(fabric: Fabric) -> None:
    node = make(fabric)
    node.tool.unlink()
    assert bad(node, MODULE, node_id=32).says(str(node.tool))
    check = good(node, MODULE, check=True, node_id=32)
    assert check.changed
    assert check["pending"] is True
