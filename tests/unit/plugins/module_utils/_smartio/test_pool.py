# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import ToolError, exited
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.model import FabricDevice, PoolEntry, PoolList
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.pool import Pool, find_local, identify
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.tool import SmartioTool
from hypothesis import given
from hypothesis import strategies as st

A, B, C = "0000:81:00.0", "0000:82:00.0", "0000:82:00.1"
NONE: FrozenSet[str] = frozenset()
DEVICES = {
    A: PciDevice(A, "10de", "28b0", "10de", "1870"),
    B: PciDevice(B, vendor_id="144d", device_id="a808"),
    C: PciDevice(C, vendor_id="144d", device_id="a808"),
}


class FakeTool(SmartioTool):
    """A pool in memory that counts what is asked."""

    def __init__(
        self,
        shown: Mapping[str, object],
        node_ids: Optional[Mapping[int, int]] = None,
        unread: Sequence[str] = (),
        words: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__("smartio_tool", lambda subjects: [])
        self.devices = dict(shown)
        self.ids = {0: 4} if node_ids is None else dict(node_ids)
        self.unread = tuple(unread)
        self.words = dict(words or {})
        self.shows: List[str] = []
        self.asked_ids = 0

    def list(self) -> PoolList:
        entries = [PoolEntry(fdid, "NVMe", self.words.get(fdid, "unavailable")) for fdid in self.devices]
        return PoolList(tuple(entries), self.unread)

    def show(self, fdid: str) -> FabricDevice:
        self.shows.append(fdid)
        answer = self.devices[fdid]
        if isinstance(answer, SharingError):
            raise answer
        assert isinstance(answer, FabricDevice)
        return answer

    def node_ids(self) -> Dict[int, int]:
        self.asked_ids += 1
        return dict(self.ids)


@pytest.mark.parametrize(
    ("device", "own", "bdfs", "doubt"),
    [
        # NodeId decides.
        (FabricDevice("48100", node_id=4, bdf=A), {4}, {A}, ""),
        (FabricDevice("48100", node_id=4, bdf=A, location="remote"), {4}, {A}, ""),
        (FabricDevice("48100", node_id=4, bdf=A), {4, 12}, {A}, ""),
        (FabricDevice("c8100", node_id=12, bdf=A), {4, 12}, {A}, ""),
        (FabricDevice("48100", node_id=8, bdf=A), {4}, NONE, ""),
        (FabricDevice("48100", node_id=8, bdf=A, location="local"), {4}, NONE, ""),
        (FabricDevice("48100", node_id=4, bdf="0000:99:00.0"), {4}, NONE, ""),
        # Then Location.
        (FabricDevice("88100", location="local", bdf=A), {4}, {A}, ""),
        (FabricDevice("88100", location="Local", bdf=A), NONE, {A}, ""),
        (FabricDevice("48100", location="remote", bdf=A), {4}, NONE, ""),
        (FabricDevice("48100", node_id=4, location="local", bdf=A), NONE, {A}, ""),
        (FabricDevice("48100", node_id=4, location="remote", bdf=A), NONE, NONE, ""),
        # Then the fdid's hint.
        (FabricDevice("48100", bdf=A), {4}, {A}, ""),
        (FabricDevice("88100", bdf=A), {4}, NONE, ""),
        # Nothing tells whose it is.
        (FabricDevice("48100", bdf=A), NONE, {A}, "which node owns pool device 48100"),
        (FabricDevice("48100", node_id=4, bdf=A), NONE, {A}, "which node owns pool device 48100"),
        (FabricDevice("48100", node_id=4, bdf="0000:99:00.0"), NONE, NONE, ""),
        # A word that is neither local nor remote tells nothing.
        (FabricDevice("48100", location="this node", bdf=A), NONE, {A}, "which node owns pool device 48100"),
        (FabricDevice("48100", location="this node", bdf=A), {4}, {A}, ""),
        # No address: the hint among devices of the same ids, then the ids alone.
        (FabricDevice("48100", node_id=4, vendor_id="10de", device_id="28b0"), {4}, {A}, ""),
        (FabricDevice("40000", node_id=4, vendor_id="10de", subsystem_device_id="1870"), {4}, {A}, ""),
        (FabricDevice("48200", node_id=4, vendor_id="144d", device_id="a808"), {4}, {B}, ""),
        (FabricDevice("48201", node_id=4, vendor_id="144d"), {4}, {C}, ""),
        (FabricDevice("40002", node_id=4, vendor_id="144d"), {4}, {B, C}, "which local device pool device 40002 is"),
        (FabricDevice("48200", node_id=4, vendor_id="8086"), {4}, NONE, "which local device pool device 48200 is"),
        (FabricDevice("40002", node_id=4), {4}, {A, B, C}, "which local device pool device 40002 is"),
        (FabricDevice("48100", vendor_id="10de"), NONE, {A}, "which node owns pool device 48100"),
        (FabricDevice("48100", vendor_id="8086"), NONE, NONE, ""),
        (FabricDevice("48100", node_id=8, vendor_id="10de"), {4}, NONE, ""),
    ],
)
def test_identify(device: FabricDevice, own: set[int], bdfs: set[str], doubt: str) -> None:
    found, reason = identify(device, frozenset(own), DEVICES)
    assert found == bdfs
    assert bool(reason) == bool(doubt)
    assert doubt in reason


@given(
    st.builds(
        FabricDevice,
        fdid=st.sampled_from(["48100", "48200", "40000", "88100"]),
        location=st.sampled_from([None, "local", "remote", "?"]),
        node_id=st.sampled_from([None, 4, 8]),
        bdf=st.sampled_from([None, A, "0000:99:00.0"]),
        vendor_id=st.sampled_from([None, "10de", "144d", "8086"]),
    ),
    st.sampled_from([NONE, frozenset([4]), frozenset([4, 8]), frozenset([12])]),
)
def test_identify_names_only_devices_of_this_node(device: FabricDevice, own: FrozenSet[int]) -> None:
    found, reason = identify(device, own, DEVICES)
    assert found <= set(DEVICES)
    assert len(found) <= 1 or reason
    if device.node_id is not None and own and device.node_id not in own:
        assert (found, reason) == (NONE, "")
    if found and device.bdf:
        assert found == {device.bdf}


def arithmetic(node: int, bdf: str) -> str:
    _domain, bus, rest = bdf.split(":")
    slot, function = rest.split(".")
    return f"{node << 16 | int(bus, 16) << 8 | int(slot, 16) << 3 | int(function):x}"


def cluster(scheme: str, nodes: Sequence[int] = (4, 8, 12, 16)) -> Dict[str, FabricDevice]:
    """Four nodes with the same devices each, in either scheme of ids."""
    devices = {}
    for node in nodes:
        for count, bdf in enumerate(DEVICES):
            fdid = arithmetic(node, bdf) if scheme == "arithmetic" else f"{node << 16 | count * 2:x}"
            devices[fdid] = FabricDevice(fdid, node_id=node, bdf=bdf)
    return devices


@pytest.mark.parametrize(
    ("scheme", "wanted", "shows"),
    [("arithmetic", [A], 1), ("arithmetic", [A, C], 2), ("arithmetic", [A, B, C], 3), ("arithmetic", [], 0),
     ("counter", [A], 1), ("counter", [C], 3), ("counter", [A, B, C], 3)],
)  # fmt: skip
@pytest.mark.parametrize("own", [4, 16])
def test_find_local_asks_about_few(scheme: str, wanted: List[str], shows: int, own: int) -> None:
    tool = FakeTool(cluster(scheme), {0: own})
    local = find_local(Pool(tool), wanted, DEVICES)
    assert set(local.found) >= set(wanted)
    assert local.doubts == {}
    assert all(tool.devices[entry.fdid].node_id == own for entry in local.found.values())  # type: ignore[attr-defined]
    assert len(tool.shows) == shows


def test_find_local_without_hints_asks_until_all_are_found() -> None:
    devices = {fdid: FabricDevice(fdid, location="remote", bdf=A) for fdid in ("11", "12", "13")}
    devices["14"] = FabricDevice("14", location="local", bdf=B)
    devices["15"] = FabricDevice("15", location="local", bdf=A)
    tool = FakeTool(devices, {})
    local = find_local(Pool(tool), [B], DEVICES)
    assert {bdf: entry.fdid for bdf, entry in local.found.items() if bdf == B} == {B: "14"}
    assert "15" not in tool.shows


def test_find_local_of_one_that_is_not_in_the_pool() -> None:
    devices = cluster("arithmetic")
    del devices[arithmetic(4, A)]
    tool = FakeTool(devices)
    local = find_local(Pool(tool), [A], DEVICES)
    assert A not in local.found
    assert local.doubt_about(A) is None
    assert len(tool.shows) == len(devices)


def test_show_is_asked_once() -> None:
    tool = FakeTool(cluster("counter"))
    pool = Pool(tool)
    find_local(pool, [A], DEVICES)
    pool.refresh()
    find_local(pool, [A], DEVICES)
    assert len(tool.shows) == 1
    assert tool.asked_ids == 1
    pool.forget(tool.shows[0])
    find_local(pool, [A], DEVICES)
    assert len(tool.shows) == 2


def error(status: int) -> ToolError:
    return exited(["smartio_tool", "show", "48100"], status, "", [], "")


@pytest.mark.parametrize(("status", "doubtful"), [(19, False), (5, False), (16, True), (1, True), (200, True)])
def test_find_local_when_show_fails(status: int, doubtful: bool) -> None:
    tool = FakeTool({"48100": error(status), "48200": FabricDevice("48200", node_id=4, bdf=B)})
    local = find_local(Pool(tool), [A, B], DEVICES)
    assert set(local.found) == {B}
    assert local.doubt_about(B) is None
    doubt = local.doubt_about(A)
    assert bool(doubt) == doubtful
    assert doubt is None or "pool device 48100 could not be looked at" in doubt


def test_a_failed_show_is_asked_once_until_the_pool_is_read_again() -> None:
    tool = FakeTool({"48100": error(16)})
    pool = Pool(tool)
    assert (pool.show("48100"), pool.show("48100")) == (None, None)
    assert tool.shows == ["48100"]
    tool.devices["48100"] = FabricDevice("48100", node_id=4, bdf=A)
    pool.refresh()
    assert pool.show("48100") is not None


def test_doubts_are_about_the_devices_that_it_may_be() -> None:
    tool = FakeTool({"40002": FabricDevice("40002", node_id=4, vendor_id="144d")})
    local = find_local(Pool(tool), [A, B, C], DEVICES)
    assert local.found == {}
    assert local.doubt_about(A) is None
    assert "which local device pool device 40002 is" in (local.doubt_about(B) or "")
    assert local.doubt_about(B) == local.doubt_about(C)


def test_what_list_printed_and_nobody_can_read_may_be_any_device() -> None:
    tool = FakeTool(cluster("arithmetic"), unread=["'8\\ufffd: NVMe [available]'"])
    local = find_local(Pool(tool), [A], DEVICES)
    assert local.doubt_about(A) is None
    assert "cannot be read" in (local.doubt_about("0000:99:00.0") or "")


@given(order=st.permutations(list(cluster("counter"))), wanted=st.sets(st.sampled_from([A, B, C])))
def test_the_order_of_the_pool_does_not_matter(order: List[str], wanted: set[str]) -> None:
    devices = cluster("counter")
    tool = FakeTool({fdid: devices[fdid] for fdid in order})
    local = find_local(Pool(tool), wanted, DEVICES)
    found = {bdf: local.found[bdf].fdid for bdf in wanted}
    assert found == {bdf: f"{4 << 16 | list(DEVICES).index(bdf) * 2:x}" for bdf in wanted}
