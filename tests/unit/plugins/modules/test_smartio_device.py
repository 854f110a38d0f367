# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_device against the stub."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import (
    agree,
    bad,
    case,
    good,
    on,
    settled,
    start,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import (
    Fabric,
    Node,
    gpu,
    hardware,
    nic,
    nvme,
)

MODULE = "smartio_device"
DRIVE, DRIVE2, GPU, GPU2, NIC = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0", "0000:84:00.0", "0000:85:00.0"


def make(fabric: Fabric, **quirks: Any) -> Node:
    """A lender with two drives, two GPUs (the second without a driver) and a network adapter."""
    devices = [nvme(DRIVE, 0), nvme(DRIVE2, 1, device="f1a6"), gpu(GPU, 0), gpu(GPU2, 1, device="28b0", driver=None)]
    return fabric.node(4, [*devices, nic(NIC, 3)], **quirks)


# --- the states -------------------------------------------------------------------------------------------------------

TRANSITIONS: List[Tuple[str, str, str, str]] = [
    ("absent", "present", "add", "unavailable"),
    ("absent", "available", "add, available", "available"),
    ("absent", "unavailable", "add", "unavailable"),
    ("absent", "absent", "none", "absent"),
    ("unavailable", "present", "none", "unavailable"),
    ("unavailable", "available", "available", "available"),
    ("unavailable", "unavailable", "none", "unavailable"),
    ("unavailable", "absent", "remove", "absent"),
    ("available", "present", "none", "available"),
    ("available", "available", "none", "available"),
    ("available", "unavailable", "unavailable", "unavailable"),
    ("available", "absent", "unavailable, remove", "absent"),
]


def test_from_each_state_to_each_state(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    """All transitions in one task; every second device has a driver."""
    devices = [
        hardware(f"0000:{16 + index:02x}:00.0", "1234", f"{index:04x}", "120000", "plain", index, driver=driver)
        for index, driver in zip(range(len(TRANSITIONS)), ["accel", None] * len(TRANSITIONS))
    ]
    lender = fabric.node(4, devices, **quirks)
    bdfs = [device["bdf"] for device in devices]
    for bdf, (before, _wanted, _action, _after) in zip(bdfs, TRANSITIONS):
        if before != "absent":
            fabric.lend(4, bdf, state=before)
    wanted = [{"bdf": bdf, "state": state} for bdf, (_before, state, _action, _after) in zip(bdfs, TRANSITIONS)]
    result = case(
        MODULE,
        {"devices": wanted, "borrowers_checked": True},
        lender,
        expect_changed=True,
        actions=[action for _before, _wanted, action, _after in TRANSITIONS],
        states=[after for _before, _wanted, _action, after in TRANSITIONS],
    )
    for bdf, device, (before, _wanted, _action, after) in zip(bdfs, result["devices"], TRANSITIONS):
        assert (device["bdf"], device["before"]) == (bdf, before)
        assert lender.pool().get(bdf, "absent") == after
        if after != "absent":
            assert device["fdid"] == lender.fdid(bdf)


def test_the_default_is_available(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    result = case(MODULE, {"bdf": "81:00.0"}, lender, expect_changed=True, actions=["add, available"])
    device = result["devices"][0]
    assert device["fdid"] == lender.fdid(DRIVE)
    assert device["driver_before"] == "nvme"
    assert device["driver"] == lender.driver(DRIVE)
    assert device["in_use"] == []
    assert "Non-Volatile memory controller" in device["name"]
    forced = [command for command in lender.changing() if command.startswith("available")]
    assert forced, lender.changing()
    assert all("--force" in command for command in forced), "available asks on the terminal without --force"


def test_back_to_the_local_driver(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, bdf=DRIVE)
    args = {"bdf": DRIVE, "state": "absent", "borrowers_checked": True}
    result = case(MODULE, args, lender, expect_changed=True, actions=["unavailable, remove"])
    assert lender.driver(DRIVE) == "nvme"
    assert result["devices"][0]["driver"] == "nvme"


# --- which devices ----------------------------------------------------------------------------------------------------


def test_a_filter_and_a_selection_from_check_to_rest(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    wanted = [{"filter": "-d 10de:"}, {"select": {"serial": nvme(DRIVE2, 1)["serial"]}}]
    actions = ["add, available"] * 3
    result = case(MODULE, {"devices": wanted}, lender, expect_changed=True, actions=actions)
    assert [device["bdf"] for device in result["devices"]] == [GPU, GPU2, DRIVE2]
    assert lender.pool() == {GPU: "available", GPU2: "available", DRIVE2: "available"}


@pytest.mark.parametrize("text", [DRIVE, "81:00.0", "81:", "81:0.0", "81:00"])
def test_forms_of_an_address(fabric: Fabric, text: str) -> None:
    lender = make(fabric)
    result = good(lender, MODULE, check=True, bdf=text)
    assert [device["bdf"] for device in result["devices"]] == [DRIVE]


def test_a_short_hand_of_two_devices_is_refused(fabric: Fabric) -> None:
    lender = fabric.node(4, [gpu("0000:83:00.0", 0), gpu("0000:83:00.1", 1)])
    result = bad(lender, MODULE, bdf="83:")
    assert result.says("83:")
    assert not result.changed
    assert lender.changing() == []


@pytest.mark.parametrize("value", [4860.0, 4860, 4860.1])
@pytest.mark.parametrize("nested", [False, True])
def test_an_unquoted_address_is_refused(fabric: Fabric, value: object, nested: bool) -> None:
    """YAML reads ``81:00.0`` as the number 4860.0."""
    lender = make(fabric)
    result = bad(lender, MODULE, **({"devices": [{"bdf": value}]} if nested else {"bdf": value}))
    assert result.says("quote it")
    assert lender.changing() == []


@pytest.mark.parametrize("value", ["0000:99:00.0", "99:", "not-an-address", "0001:81:00.0", "81:00.7", "81:00.9", ""])
def test_an_address_that_is_not_there_is_an_error(fabric: Fabric, value: str) -> None:
    lender = make(fabric)
    result = bad(lender, MODULE, bdf=value)
    assert not result.changed
    assert value in result.text
    assert lender.changing() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-d 10de:", [GPU, GPU2]),
        ("-d 8086:f1a5", [DRIVE]),
        ("-d :28b0", [GPU2]),
        ("-d ::0108", [DRIVE, DRIVE2]),
        ("-d 8086::0108", [DRIVE, DRIVE2]),
        ("-s 82:", [DRIVE2]),
        ("-s 0000:83:00.0", [GPU]),
        ("-s 82: -d 8086:", [DRIVE2]),
    ],
)
def test_filters(fabric: Fabric, text: str, expected: List[str]) -> None:
    lender = make(fabric)
    result = good(lender, MODULE, check=True, filter=text)
    assert [device["bdf"] for device in result["devices"]] == expected


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ({"vendor_id": "10de"}, [GPU, GPU2]),
        ({"vendor_id": "8086", "device_id": "f1a6"}, [DRIVE2]),
        ({"class": "0108"}, [DRIVE, DRIVE2]),
        ({"class": "02"}, [NIC]),
        ({"serial": nvme(DRIVE2, 1)["serial"]}, [DRIVE2]),
    ],
)
def test_select(fabric: Fabric, select: Dict[str, str], expected: List[str]) -> None:
    lender = make(fabric)
    result = good(lender, MODULE, check=True, select=select)
    assert [device["bdf"] for device in result["devices"]] == expected


@pytest.mark.parametrize("wanted", [{"filter": "-d 1234:"}, {"select": {"vendor_id": "1234"}}, {"devices": []}])
def test_matching_nothing(fabric: Fabric, wanted: Dict[str, Any]) -> None:
    lender = make(fabric)
    assert not bad(lender, MODULE, **wanted).changed
    bad(lender, MODULE, check=True, **wanted)
    result = case(MODULE, {**wanted, "allow_empty": True}, lender, expect_changed=False)
    assert result["devices"] == []


@pytest.mark.parametrize(
    "wanted", [{}, {"bdf": DRIVE, "filter": "-d 10de:"}, {"bdf": DRIVE, "state": "lent"}, {"devices": [{}]}]
)
def test_refused_arguments(fabric: Fabric, wanted: Dict[str, Any]) -> None:
    lender = make(fabric)
    assert not bad(lender, MODULE, **wanted).changed
    assert lender.changing() == []


def test_a_list_with_a_state_each(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    fabric.lend(4, DRIVE2)
    fabric.lend(4, NIC, state="unavailable")
    wanted = [
        {"filter": "-d 10de:", "state": "present"},
        {"bdf": DRIVE2, "state": "unavailable"},
        {"select": {"device_id": "f1a5"}},
        {"bdf": NIC, "state": "absent"},
    ]
    result = case(
        MODULE,
        {"devices": wanted, "borrowers_checked": True},
        lender,
        expect_changed=True,
        actions=["add", "add", "unavailable", "add, available", "remove"],
        states=["unavailable", "unavailable", "unavailable", "available", "absent"],
    )
    assert [device["bdf"] for device in result["devices"]] == [GPU, GPU2, DRIVE2, DRIVE, NIC]
    assert lender.pool() == {GPU: "unavailable", GPU2: "unavailable", DRIVE2: "unavailable", DRIVE: "available"}


def test_the_state_of_the_task_is_the_default_of_its_elements(fabric: Fabric) -> None:
    lender = make(fabric)
    wanted = {"devices": [{"bdf": DRIVE}, {"bdf": GPU, "state": "available"}], "state": "present"}
    case(MODULE, wanted, lender, expect_changed=True, actions=["add", "add, available"])


def test_one_wrong_element_leaves_the_others_done(fabric: Fabric) -> None:
    lender = make(fabric)
    result = bad(lender, MODULE, devices=[{"bdf": DRIVE}, {"bdf": "99:00.0"}, {"bdf": GPU}])
    assert result.changed
    assert "99:00.0" in result["msg"]
    assert lender.pool() == {DRIVE: "available", GPU: "available"}


def test_devices_of_other_nodes_are_never_touched(fabric: Fabric) -> None:
    """Another lender's device has the same address."""
    lender = make(fabric)
    fabric.node(12, [nvme(DRIVE, 0)])
    fabric.connect(12, 4)
    fabric.lend(12, DRIVE)
    result = case(MODULE, {"bdf": DRIVE}, lender, expect_changed=True, actions=["add, available"])
    assert result["devices"][0]["fdid"] == lender.fdid(DRIVE)
    args = {"bdf": DRIVE, "state": "absent", "borrowers_checked": True}
    case(MODULE, args, lender, expect_changed=True, actions=["unavailable, remove"])
    assert lender.fabric.nodes[12].pool() == {DRIVE: "available"}


# --- in use -----------------------------------------------------------------------------------------------------------


def busy(lender: Node, how: str) -> Tuple[str, List[str]]:
    """Bring a device in use; its address and the words of the reason."""
    if how == "mount":
        lender.mount("nvme0n1p1", "/srv")
        return DRIVE, ["mounted at /srv", "nvme0n1p1"]
    if how == "mount of the disk":
        lender.mount("nvme0n1", "/var/lib/data\\040two")
        return DRIVE, ["mounted at /var/lib/data", "nvme0n1"]
    if how == "md":
        lender.hold("nvme0n1p1", "md127")
        return DRIVE, ["held by md127"]
    if how == "mounted md":
        lender.hold("nvme0n1", "md127")
        lender.mount("md127", "/data")
        return DRIVE, ["md127", "/data"]
    if how == "up":
        lender.interface_up("eth3")
        return NIC, ["eth3 is up"]
    if how == "bond":
        lender.bond("bond0", "eth3")
        lender.interface_up("bond0")
        return NIC, ["eth3", "bond0"]
    assert how == "route"
    lender.route("eth3", "0000A8C0")
    return NIC, ["eth3", "route"]


IN_USE = ["mount", "mount of the disk", "md", "mounted md", "up", "bond", "route"]


@pytest.mark.parametrize("how", IN_USE)
def test_in_use_is_refused_before_anything_is_touched(fabric: Fabric, how: str) -> None:
    lender = make(fabric)
    bdf, words = busy(lender, how)
    for check in (True, False):
        result = bad(lender, MODULE, check=check, bdf=bdf)
        assert result.says(bdf, *words)
        assert not result.changed
    assert lender.changing() == []
    assert lender.pool() == {}


@pytest.mark.parametrize("how", ["mounted md", "bond"])
def test_force_lends_what_is_in_use(fabric: Fabric, how: str) -> None:
    lender = make(fabric)
    bdf, _words = busy(lender, how)
    case(MODULE, {"bdf": bdf, "force": True}, lender, expect_changed=True, actions=["add, available"])
    assert lender.pool() == {bdf: "available"}


def test_every_reason_is_named(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.mount("nvme0n1p1", "/srv")
    lender.mount("nvme0n1p1", "/export")
    lender.hold("nvme0n1", "md127")
    result = bad(lender, MODULE, bdf=DRIVE)
    assert result.says("/srv", "/export", "md127")


def test_in_use_among_others(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    lender.mount("nvme0n1p1", "/srv")
    result = bad(lender, MODULE, devices=[{"bdf": GPU}, {"bdf": DRIVE}, {"bdf": DRIVE2}])
    assert result.changed
    assert result.says(DRIVE, "mounted at /srv (nvme0n1p1)")
    assert "/srv" in result["msg"]
    assert lender.pool() == {GPU: "available", DRIVE2: "available"}
    assert not [command for command in lender.changing() if "81:00.0" in command]
    by_bdf = {device["bdf"]: device for device in result["devices"]}
    assert by_bdf[GPU]["action"] == "add, available"
    lender.unmount("/srv")
    wanted = {"devices": [{"bdf": GPU}, {"bdf": DRIVE}, {"bdf": DRIVE2}]}
    case(MODULE, wanted, lender, expect_changed=True, actions=["none", "add, available", "none"])


def test_in_use_skipped(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    lender.mount("nvme0n1p1", "/srv")
    wanted = {"devices": [{"bdf": DRIVE}, {"bdf": DRIVE2}], "on_in_use": "skip"}
    actions, states = ["none", "add, available"], ["absent", "available"]
    result = case(MODULE, wanted, lender, expect_changed=True, actions=actions, states=states)
    assert "/srv" in "".join(result["devices"][0]["in_use"])
    assert result["devices"][1]["in_use"] == []


def test_data_on_a_disk_is_not_use(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.mount("nvme1n1p1", "/srv")
    case(MODULE, {"bdf": DRIVE}, lender, expect_changed=True)


@pytest.mark.parametrize("how", ["root", "boot", "swap", "default route", "bridge", "root on md"])
def test_never_even_with_force(fabric: Fabric, how: str) -> None:
    lender = fabric.node(
        4, [nvme(DRIVE, 0), nic(NIC, 3), hardware("0000:01:00.0", "8086", "2030", "060400", "plain", 7)]
    )
    bdf = DRIVE
    if how == "root":
        lender.root_on("nvme0n1p1")
    elif how == "boot":
        lender.mount("nvme0n1p1", "/boot")
    elif how == "swap":
        lender.swap_on("nvme0n1p1")
    elif how == "root on md":
        lender.hold("nvme0n1p1", "md127")
        lender.root_on("md127")
    elif how == "default route":
        bdf = NIC
        lender.interface_up("eth3")
        lender.route("eth3")
    else:
        bdf = "0000:01:00.0"
    for check in (True, False):
        result = bad(lender, MODULE, check=check, bdf=bdf, force=True)
        assert result.says(bdf)
        assert not result.changed
    assert lender.changing() == []


def test_the_fabrics_own_adapter_is_never_lent(fabric: Fabric) -> None:
    adapter = hardware("0000:02:00.0", "11c8", "0800", "068000", "plain", 7, driver="dis_px")
    lender = fabric.node(4, [adapter, nvme(DRIVE, 0)])
    bad(lender, MODULE, bdf="0000:02:00.0", force=True)
    assert lender.changing() == []


def test_a_check_that_cannot_be_made_is_a_reason(fabric: Fabric) -> None:
    lender = make(fabric)
    for name in ("mountinfo", "mounts"):
        (lender.proc / "1" / name).unlink()
    bad(lender, MODULE, bdf=DRIVE)
    assert lender.changing() == []


# --- taking back ------------------------------------------------------------------------------------------------------


def test_taking_back_needs_borrowers_checked(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **quirks)
    good(lender, MODULE, bdf=GPU2)
    mark = lender.mark()
    for check, state in ((True, "unavailable"), (True, "absent"), (False, "unavailable"), (False, "absent")):
        result = bad(lender, MODULE, check=check, bdf=GPU2, state=state)
        assert not result.changed
        assert result.says(GPU2, "borrowers_checked")
    assert lender.changing(mark) == []


def test_force_takes_back_too(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, bdf=GPU2)
    args = {"bdf": GPU2, "state": "absent", "force": True}
    case(MODULE, args, lender, expect_changed=True, actions=["unavailable, remove"])


def test_what_was_never_available_needs_no_check_of_borrowers(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, bdf=DRIVE, state="present")
    case(MODULE, {"bdf": DRIVE, "state": "absent"}, lender, expect_changed=True, actions=["remove"])


# --- lent devices and unknown words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["in use", "busy by 8", "unavailable", "lent", "borrowed"])
def test_a_lent_device_is_left_alone(fabric: Fabric, two_quirks: Dict[str, Any], word: str) -> None:
    lender = make(fabric, **{**two_quirks, "lent_words": {"owner": word}})
    good(lender, MODULE, bdf=GPU2)
    fabric.lent_to(lender.fdid(GPU2), 8)
    result = case(MODULE, {"bdf": GPU2}, lender, expect_changed=False, actions=["none"], states=["lent"])
    assert result["devices"][0]["before"] == "lent"
    case(MODULE, {"bdf": GPU2, "state": "present"}, lender, expect_changed=False, actions=["none"])
    mark = lender.mark()
    for state in ("unavailable", "absent"):
        assert not bad(lender, MODULE, bdf=GPU2, state=state).changed
    assert lender.changing(mark) == []


def test_a_lent_device_with_a_driver_that_went(fabric: Fabric) -> None:
    lender = make(fabric, lent_words={"owner": "in use"})
    good(lender, MODULE, bdf=DRIVE)
    fabric.lent_to(lender.fdid(DRIVE), 8)
    case(MODULE, {"bdf": DRIVE}, lender, expect_changed=False, actions=["none"], states=["lent"])


def test_a_lent_device_that_looks_available(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, bdf=DRIVE)
    fabric.lent_to(lender.fdid(DRIVE), 8)
    case(MODULE, {"bdf": DRIVE}, lender, expect_changed=False, actions=["none"], states=["available"])


@pytest.mark.parametrize("how", ["lost", "other boot", "other load", "no ledger at all"])
def test_an_unknown_word_without_the_ledger_is_refused(fabric: Fabric, how: str) -> None:
    lender = make(fabric, lent_words={"owner": "busy by NODE"})
    if how == "no ledger at all":
        fabric.lend(4, GPU2)
    else:
        good(lender, MODULE, bdf=GPU2)
    fdid = lender.fdid(GPU2)
    if how == "lost":
        lender.lose_ledger()
    elif how == "other boot":
        lender.new_boot_id()
    elif how == "other load":
        keep = fabric.state["devices"][fdid]
        lender.reload_module()
        with fabric.edit() as state:
            state["devices"][fdid] = keep
    fabric.lent_to(fdid, 8)
    mark = lender.mark()
    for state in ("available", "unavailable", "absent"):
        for check in (True, False):
            result = bad(lender, MODULE, check=check, bdf=GPU2, state=state, borrowers_checked=True)
            assert result.says("busy by 8", GPU2)
            assert not result.changed
    assert lender.changing(mark) == []


def test_present_does_not_mind_an_unknown_word(fabric: Fabric) -> None:
    lender = make(fabric)
    (fdid,) = fabric.lend(4, GPU2)
    fabric.set_device(fdid, word="quarantined")
    args = {"bdf": GPU2, "state": "present"}
    result = case(MODULE, args, lender, expect_changed=False, actions=["none"], states=["quarantined"])
    assert result["devices"][0]["before"] == "quarantined"


@pytest.mark.parametrize(("under", "state"), [("unavailable", "available"), ("available", "unavailable")])
def test_force_acts_on_an_unknown_word(fabric: Fabric, under: str, state: str) -> None:
    lender = make(fabric)
    (fdid,) = fabric.lend(4, GPU2, state=under)
    fabric.set_device(fdid, word="quarantined")
    case(MODULE, {"bdf": GPU2, "state": state, "force": True}, lender, expect_changed=True, states=[state])
    assert lender.pool() == {GPU2: state}


def test_taking_back_what_is_lent_is_busy(fabric: Fabric) -> None:
    """The borrowers were checked, and yet one still has it: the tool's word counts."""
    lender = make(fabric, strict=True)
    good(lender, MODULE, bdf=GPU2)
    fabric.lent_to(lender.fdid(GPU2), 8)
    result = bad(lender, MODULE, bdf=GPU2, state="absent", borrowers_checked=True)
    assert result.says("EBUSY", GPU2)
    assert not result.changed
    assert lender.pool() == {GPU2: "available"}


# --- purge ------------------------------------------------------------------------------------------------------------


def test_purge_removes_what_this_collection_added(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    fabric.lend(4, NIC, state="unavailable")
    good(lender, MODULE, devices=[{"bdf": DRIVE}, {"bdf": DRIVE2}, {"bdf": GPU}], state="present")
    args = {"bdf": DRIVE, "state": "present", "purge": True}
    check = good(lender, MODULE, check=True, **args)
    assert len(lender.pool()) == 4
    apply = good(lender, MODULE, **args)
    agree(check, apply)
    assert apply.changed
    assert lender.pool() == {DRIVE: "unavailable", NIC: "unavailable"}, "another administrator's stays"
    settled(MODULE, args, lender)


def test_purge_of_available_devices_needs_borrowers_checked(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, devices=[{"bdf": DRIVE}, {"bdf": GPU}])
    mark = lender.mark()
    bad(lender, MODULE, bdf=DRIVE, purge=True)
    assert lender.changing(mark) == []
    good(lender, MODULE, bdf=DRIVE, purge=True, borrowers_checked=True)
    assert lender.pool() == {DRIVE: "available"}


@pytest.mark.parametrize("why", ["unresolved", "refused", "empty"])
def test_nothing_is_purged_when(fabric: Fabric, why: str) -> None:
    lender = make(fabric)
    good(lender, MODULE, devices=[{"bdf": GPU}, {"bdf": GPU2}], state="present")
    lender.mount("nvme0n1p1", "/srv")
    wanted: Dict[str, List[Dict[str, str]]] = {
        "unresolved": [{"bdf": GPU, "state": "present"}, {"bdf": "99:"}],
        "refused": [{"bdf": GPU, "state": "present"}, {"bdf": DRIVE}],
        "empty": [],
    }
    bad(lender, MODULE, devices=wanted[why], purge=True)
    assert lender.pool() == {GPU: "unavailable", GPU2: "unavailable"}


def test_an_empty_list_purges_all_when_allowed(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, devices=[{"bdf": GPU}, {"bdf": GPU2}], state="present")
    assert good(lender, MODULE, devices=[], purge=True, allow_empty=True).changed
    assert lender.pool() == {}


# --- hard times -------------------------------------------------------------------------------------------------------


def test_effects_that_settle_late(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks, settle={"add": 3, "available": 3, "unavailable": 3, "remove": 3})
    case(MODULE, {"bdf": GPU2}, lender, expect_changed=True, actions=["add, available"], states=["available"])
    args = {"bdf": GPU2, "state": "absent", "borrowers_checked": True}
    case(MODULE, args, lender, expect_changed=True, states=["absent"])
    assert lender.pool() == {}


def test_a_command_without_effect_is_a_failure(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.rule("available", "lie")
    result = bad(lender, MODULE, bdf=GPU2, timeout=1)
    assert result.says(GPU2, "unavailable")
    assert result.seconds < 10
    lender.no_rules()
    case(MODULE, {"bdf": GPU2}, lender, expect_changed=True, actions=["available"])


def test_another_lender_adds_devices_meanwhile(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    fabric.node(12, [])
    fabric.connect(12, 4)
    for unit in (8, 9):
        lender.rule("add", "intrude", owner=12, hardware=nvme(f"0000:0{unit}:00.0", unit), skip=unit - 8, times=1)
    result = good(lender, MODULE, devices=[{"bdf": DRIVE}, {"bdf": GPU}])
    assert [device["fdid"] for device in result["devices"]] == [lender.fdid(DRIVE), lender.fdid(GPU)]


def test_an_fdid_that_vanishes_between_list_and_show(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    fabric.node(12, [nvme("0000:08:00.0", 8)])
    fabric.connect(12, 4)
    (fdid,) = fabric.lend(12, "0000:08:00.0")
    lender.knobs(vanish=[fdid])
    assert good(lender, MODULE, bdf=GPU2).changed
    assert lender.pool() == {GPU2: "available"}


def test_a_device_of_another_lender_cannot_be_shown(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    fabric.node(12, [nvme("0000:08:00.0", 8)])
    fabric.connect(12, 4)
    (fdid,) = fabric.lend(12, "0000:08:00.0")
    lender.rule("show", "exit", arg=fdid, exit=5, err="cannot reach")
    case(MODULE, {"bdf": GPU2}, lender, expect_changed=True, actions=["add, available"])


@pytest.mark.parametrize("out", ["\x01\x02 ??\n:::\n", ""])
def test_a_pool_device_that_cannot_be_read(fabric: Fabric, out: str) -> None:
    """It could be the wanted one: either it is proved not to be, or the refusal names it and nothing is run."""
    lender = make(fabric)
    fabric.node(12, [nvme("0000:08:00.0", 8)])
    fabric.connect(12, 4)
    (fdid,) = fabric.lend(12, "0000:08:00.0")
    lender.rule("show", "exit", arg=fdid, exit=0, out=out)
    result = on(lender, MODULE, bdf=GPU2)
    if result.failed:
        assert result.says(fdid)
        assert lender.changing() == []
    lender.no_rules()
    good(lender, MODULE, bdf=GPU2)
    assert lender.pool() == {GPU2: "available"}


def test_twins_are_not_mixed_up(fabric: Fabric) -> None:
    """Nothing in `show` tells two drives apart, and the fdids are a counter's."""
    same = {"serial": "N/A", "uuid": "N/A", "subdevice": "1000"}
    lender = fabric.node(
        4, [nvme(DRIVE, 0, **same), nvme(DRIVE2, 1, **same)], fdid="counter", show={"local_bdf": "N/A"}
    )
    fabric.lend(4, DRIVE2, DRIVE, state="unavailable")
    result = on(lender, MODULE, bdf=DRIVE)
    assert lender.pool()[DRIVE2] == "unavailable"
    if result.failed:
        assert lender.changing() == []
    else:
        device = result["devices"][0]
        assert lender.pool()[DRIVE] == "available"
        assert device["fdid"] in (None, lender.fdid(DRIVE))


def test_one_command_fails(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **two_quirks)
    lender.rule("available", "exit", exit=16, err="something holds it", times=1, skip=1)
    devices = [{"bdf": GPU}, {"bdf": DRIVE2}, {"bdf": GPU2}]
    result = bad(lender, MODULE, devices=devices)
    assert result.changed
    assert result.says(DRIVE2, "EBUSY", "something holds it")
    assert lender.pool() == {GPU: "available", DRIVE2: "unavailable", GPU2: "available"}
    case(MODULE, {"devices": devices}, lender, expect_changed=True, actions=["none", "available", "none"])


@pytest.mark.parametrize("command", ["add", "available"])
@pytest.mark.parametrize("done", [False, True])
def test_a_killed_run_is_made_good(fabric: Fabric, two_quirks: Dict[str, Any], command: str, done: bool) -> None:
    lender = make(fabric, **two_quirks)
    lender.rule(command, "hang", done=done)
    running = start(MODULE, {**lender.args, "bdf": GPU2})
    lender.wait_for_call(command)
    if done:
        state = {"add": "unavailable", "available": "available"}[command]
        while lender.pool() != {GPU2: state}:
            assert running.process.poll() is None
    running.kill()
    lender.end_hung()
    lender.no_rules()
    good(lender, MODULE, bdf=GPU2)
    assert lender.pool() == {GPU2: "available"}
    settled(MODULE, {"bdf": GPU2}, lender)


def test_two_runs_at_once_both_remember(fabric: Fabric) -> None:
    lender = make(fabric, lent_words={"owner": "in use"})
    runs = [start(MODULE, {**lender.args, "bdf": bdf}) for bdf in (DRIVE, GPU, GPU2)]
    for running in runs:
        result = running.finish()
        assert not result.failed, result.text
    for bdf in (DRIVE, GPU, GPU2):
        fabric.lent_to(lender.fdid(bdf), 8)
    devices = [{"bdf": bdf} for bdf in (DRIVE, GPU, GPU2)]
    case(MODULE, {"devices": devices}, lender, expect_changed=False, states=["lent", "lent", "lent"])


def test_after_a_reboot_all_is_done_again(fabric: Fabric) -> None:
    lender = make(fabric)
    good(lender, MODULE, bdf=DRIVE)
    lender.reboot()
    case(MODULE, {"bdf": DRIVE}, lender, expect_changed=True, actions=["add, available"])


# --- before there is a tool, and what it costs ------------------------------------------------------------------------


def test_without_a_tool(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.tool.unlink()
    result = bad(lender, MODULE, bdf=DRIVE)
    assert result.says(str(lender.tool))
    assert not result.changed
    check = good(lender, MODULE, check=True, bdf=DRIVE)
    assert check.changed
    assert check["pending"] is True
    assert check.actions == ["pending"]


def test_a_bare_host_may_get_its_devices_with_the_tool(fabric: Fabric, tmp_path: Path) -> None:
    lender = make(fabric)
    lender.tool.unlink()
    bare = {"sysfs": str(tmp_path / "no-sysfs-yet"), "allow_empty": False}
    wanted = [{"bdf": "41:00.0"}, {"filter": "-d 10de:", "state": "present"}, {"select": {"class": "0108"}}]
    check = good(lender, MODULE, check=True, devices=wanted, **bare)
    assert check.changed
    assert check.actions == ["pending"] * 3
    assert [row["state"] for row in check.elements] == ["available", "unavailable", "available"]
    assert bad(lender, MODULE, check=True, bdf=4860.0, **bare).says("quote it")


def test_process_count(fabric: Fabric, quirks: Dict[str, Any]) -> None:
    lender = make(fabric, **quirks)
    bdfs = [DRIVE, DRIVE2, GPU, GPU2, NIC]
    args = {"devices": [{"bdf": bdf} for bdf in bdfs]}
    good(lender, MODULE, **args)
    mark = lender.mark()
    settled(MODULE, args, lender)
    assert len(lender.calls(mark)) <= len(bdfs) + 2, lender.commands(mark)
