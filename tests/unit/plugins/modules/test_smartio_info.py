# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_info against the stub."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result, bad, good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

MODULE = "smartio_info"
DRIVE, DRIVE2, GPU, FAR = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0", "0000:05:00.0"


def make(fabric: Fabric, **quirks: Any) -> Tuple[Node, Dict[str, str]]:
    fabric.node(4, [nvme(DRIVE, 0), nvme(DRIVE2, 1), gpu(GPU, 0)], **quirks)
    fabric.node(12, [nvme(FAR, 5, device="0a54")], **quirks)
    node = fabric.node(8, **quirks)
    fabric.connect(4, 8)
    fabric.connect(12, 8)
    fdids = dict(zip([DRIVE, GPU], fabric.lend(4, DRIVE, GPU)))
    fdids[DRIVE2] = fabric.lend(4, DRIVE2, state="unavailable")[0]
    fdids[FAR] = fabric.lend(12, FAR)[0]
    return node, fdids


def shown(result: Result) -> List[str]:
    return sorted(device["fdid"] for device in result["devices"])


def test_all_devices(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    node, fdids = make(fabric, **quirks)
    for check in (False, True):
        result = good(node, MODULE, check=check)
        assert not result.changed
        assert result["node_id"] == 8
        assert shown(result) == sorted(fdids.values())
        by_fdid = {device["fdid"]: device for device in result["devices"]}
        assert by_fdid[fdids[DRIVE]]["state"] == "available"
        assert by_fdid[fdids[DRIVE2]]["state"] == "unavailable"
        assert "[Quadro K420] (rev a1)" in by_fdid[fdids[GPU]]["name"]
        assert by_fdid[fdids[GPU]]["state"] == "available"
    assert node.changing() == []


def test_details(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    node, fdids = make(fabric, **quirks)
    (device,) = good(node, MODULE, details=True, fdids=[fdids[GPU]])["devices"]
    wanted = gpu(GPU, 0)
    assert (device["fdid"], device["node_id"], device["bdf"]) == (fdids[GPU], 4, GPU)
    assert (device["serial"], device["uuid"]) == (wanted["serial"], wanted["uuid"])
    assert (device["vendor_id"], device["device_id"]) == ("10de", "0ff3")


def test_list_only_is_one_call(fabric: Fabric) -> None:
    node, _fdids = make(fabric)
    good(node, MODULE, details=False)
    assert [command for command in node.commands() if not command.startswith("dis_config")] == ["list"]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"node_id": 12}, [FAR]),
        ({"vendor_id": "10de"}, [GPU]),
        ({"node_id": 4, "bdf": DRIVE2}, [DRIVE2]),
        ({"name_regex": "Quadro"}, [GPU]),
        ({"vendor_id": "1af4"}, []),
    ],
)
def test_select(fabric: Fabric, two_quirks: Dict[str, Any], select: Dict[str, Any], expected: List[str]) -> None:
    node, fdids = make(fabric, **two_quirks)
    assert shown(good(node, MODULE, select=select)) == sorted(fdids[bdf] for bdf in expected)


def test_fdids_in_any_form(fabric: Fabric) -> None:
    node, fdids = make(fabric)
    assert shown(good(node, MODULE, fdids=["0xC0500", "48100"])) == sorted([fdids[FAR], fdids[DRIVE]])


def test_an_fdid_that_is_not_there(fabric: Fabric) -> None:
    """Asking is no demand: an empty answer, or a failure that names it; never something else."""
    node, _fdids = make(fabric)
    result = good(node, MODULE, fdids=["99999"])
    assert result["devices"] == []


def test_lspci(fabric: Fabric) -> None:
    node, fdids = make(fabric)
    (device,) = good(node, MODULE, lspci=True, fdids=[fdids[GPU]])["devices"]
    assert "83:00.0 VGA compatible controller" in str(device["lspci"])


def test_an_empty_pool(fabric: Fabric) -> None:
    node = fabric.node(8)
    assert good(node, MODULE)["devices"] == []


@pytest.mark.parametrize("word", ["in use", "borrowed: node 8"])
def test_an_unknown_word_is_kept(fabric: Fabric, two_quirks: Dict[str, Any], word: str) -> None:
    node, fdids = make(fabric, **two_quirks)
    fabric.set_device(fdids[GPU], word=word)
    states = {device["fdid"]: device["state"] for device in good(node, MODULE)["devices"]}
    assert states[fdids[GPU]] == word
    assert states[fdids[DRIVE2]] == "unavailable"


@pytest.mark.parametrize("name", ["Device [available]", "[unavailable] [x]", "a: b: c [80002]", "Gerät ½ [µ]"])
def test_names_hold_brackets_and_colons(fabric: Fabric, two_quirks: Dict[str, Any], name: str) -> None:
    lender = fabric.node(4, [nvme(DRIVE, 0, name=name)], **two_quirks)
    (fdid,) = fabric.lend(4, DRIVE, state="unavailable")
    (device,) = good(lender, MODULE)["devices"]
    assert (device["fdid"], device["state"]) == (fdid, "unavailable")
    assert name in device["name"]


@pytest.mark.parametrize("how", ["EIO", "garbage", "vanish"])
def test_a_device_that_cannot_be_shown(fabric: Fabric, two_quirks: Dict[str, Any], how: str) -> None:
    node, fdids = make(fabric, **two_quirks)
    if how == "vanish":
        node.knobs(vanish=[fdids[FAR]])
    else:
        node.rule("show", "exit", arg=fdids[FAR], exit=5 if how == "EIO" else 0, out="\x02???\n")
    result = good(node, MODULE, details=True)
    assert set(fdids.values()) - {fdids[FAR]} <= set(shown(result))


def test_what_is_borrowed_is_listed_though_its_lender_is_out_of_reach(fabric: Fabric) -> None:
    node, fdids = make(fabric)
    good(node, "smartio_borrow", fdid=fdids[FAR], label="far")
    good(node, "smartio_borrow", fdid=fdids[DRIVE])
    for command in ("show", "get-vdev"):
        node.rule(command, "exit", arg=fdids[FAR], exit=5)
    fabric.set_device(fdids[FAR], hidden_until=10**9)
    result = good(node, MODULE, borrowed=True)
    rows = {device["fdid"]: device for device in result["devices"]}
    assert {fdid: row["borrowed"] for fdid, row in rows.items()} == {
        fdids[DRIVE]: True,
        fdids[DRIVE2]: False,
        fdids[GPU]: False,
        fdids[FAR]: None,
    }
    far = rows[fdids[FAR]]
    assert (far["label"], far["state"], far["vdev"], far["name"]) == ("far", None, None, None)
    assert "node 8 cannot reach node 12" in far["error"]
    assert shown(good(node, MODULE, borrowed=True, fdids=[fdids[FAR]])) == [fdids[FAR]]
    assert shown(good(node, MODULE)) == sorted(fdids[bdf] for bdf in (DRIVE, DRIVE2, GPU))


def test_what_is_remembered(fabric: Fabric) -> None:
    """Also of a device whose lender is not there any more."""
    node, fdids = make(fabric)
    good(node, "smartio_borrow", devices=[{"fdid": fdids[GPU], "label": "cuda"}, {"fdid": fdids[FAR]}])
    fabric.set_device(fdids[GPU], hidden_until=10**6)
    result = good(node, MODULE, fdids=[])
    assert result["borrowed"] == [{"fdid": fdids[GPU], "label": "cuda"}, {"fdid": fdids[FAR], "label": None}]
    assert result["devices"] == []


def test_without_a_tool(fabric: Fabric) -> None:
    node = fabric.node(8)
    node.tool.unlink()
    assert bad(node, MODULE).says(str(node.tool))
