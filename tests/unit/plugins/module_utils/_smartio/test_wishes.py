# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.wishes import (
    Catalogue,
    LocalSelect,
    Target,
    Wish,
    elements_of,
    hex_id,
    hex_prefix,
    pattern,
    resolve,
    wish_from,
    written,
)
from hypothesis import given
from hypothesis import strategies as st

GPU, NVME0, NVME1, NIC = "0000:09:00.0", "0000:81:00.0", "0000:81:00.1", "10000:01:00.0"
PRESENT = {
    GPU: PciDevice(GPU, "10de", "28b0", class_code="030000"),
    NVME0: PciDevice(NVME0, "144d", "a808", class_code="010802"),
    NVME1: PciDevice(NVME1, "144d", "a809", class_code="010802"),
    NIC: PciDevice(NIC, "8086", "1572", class_code="020000"),
}
SERIALS = {NVME0: "S1", NVME1: "S2"}
NAMES = {GPU: ["NVIDIA Quadro K420"], NVME0: ["Samsung 970", "NVMe disk"], NVME1: ["Samsung 980"], NIC: []}
CATALOGUE = Catalogue(PRESENT, lambda bdf: [SERIALS.get(bdf)], lambda bdf: NAMES[bdf])


def element(**given_: object) -> Dict[str, object]:
    return {"bdf": None, "filter": None, "select": None, **given_}


def select(**given_: object) -> Dict[str, object]:
    keys = ("vendor_id", "device_id", "class", "serial", "name_regex")
    return element(select={**dict.fromkeys(keys), **given_})


@pytest.mark.parametrize(
    ("wanted", "bdfs"),
    [
        (element(bdf="0000:09:00.0"), [GPU]),
        (element(bdf="09:00.0"), [GPU]),
        (element(bdf="9:"), [GPU]),
        (element(bdf="10000:1:"), [NIC]),
        (element(filter="-d 144d:"), [NVME0, NVME1]),
        (element(filter="-d 144d:a809"), [NVME1]),
        (element(filter="-s 81:"), [NVME0, NVME1]),
        (element(filter="-d ::0108"), [NVME0, NVME1]),
        (select(vendor_id="144d"), [NVME0, NVME1]),
        (select(vendor_id="0x144D", device_id="A809"), [NVME1]),
        (select(**{"class": "01"}), [NVME0, NVME1]),
        (select(**{"class": "0x0108"}), [NVME0, NVME1]),
        (select(**{"class": "030000"}), [GPU]),
        (select(serial="S2"), [NVME1]),
        (select(name_regex="970|Quadro"), [GPU, NVME0]),
        (select(name_regex="^NVMe disk$"), [NVME0]),
        (select(name_regex="(?i)samsung", serial="S1"), [NVME0]),
    ],
)
def test_resolve(wanted: Dict[str, object], bdfs: List[str]) -> None:
    targets, errors = resolve([wish_from(wanted, "available")], CATALOGUE, False)
    assert targets == [Target(bdf, "available") for bdf in bdfs]
    assert errors == []


@pytest.mark.parametrize(
    ("wanted", "named", "message"),
    [
        (element(bdf="99:00.0"), "99:00.0", "no PCI device 99:00.0 on this node"),
        (element(bdf=4860.0), "4860.0", "an unquoted 81:00.0"),
        (element(bdf="81:"), "81:", "names 2 PCI devices"),
        (element(bdf="zz"), "zz", "not a PCI address"),
        (element(filter="-d 1af4:"), "filter '-d 1af4:'", "filter '-d 1af4:' matches no PCI device of this node"),
        (element(filter="-x"), "filter '-x'", "not understood"),
        (select(serial="S9"), "select {serial: S9}", "matches no PCI device"),
        (select(vendor_id="144d", serial="S9"), "select {vendor_id: 144d, serial: S9}", "allow_empty: true"),
    ],
)
def test_what_cannot_be_resolved_is_named(wanted: Dict[str, object], named: str, message: str) -> None:
    wishes = [wish_from(element(bdf="9:"), "available"), wish_from(wanted, "available")]
    targets, errors = resolve(wishes, CATALOGUE, False)
    assert targets == [Target(GPU, "available")]
    ((name, error),) = errors
    assert name == named
    assert message in error.message


@pytest.mark.parametrize(("allow_empty", "failures"), [(False, 1), (True, 0)])
def test_matching_nothing(allow_empty: bool, failures: int) -> None:
    for wishes in ([], [wish_from(element(filter="-d 1af4:"), "present")]):
        targets, errors = resolve(wishes, CATALOGUE, allow_empty)
        assert (targets, len(errors)) == ([], failures)


def test_a_missing_bdf_is_an_error_whatever_is_allowed() -> None:
    assert len(resolve([wish_from(element(bdf="99:00.0"), "absent")], CATALOGUE, True)[1]) == 1


def test_a_device_is_wanted_once_in_the_order_given() -> None:
    wishes = [
        wish_from(element(bdf="81:00.1"), "available"),
        wish_from(element(filter="-d 144d:"), "available"),
        wish_from(element(bdf="9:", state="absent"), "available"),
    ]
    targets, errors = resolve(wishes, CATALOGUE, False)
    assert targets == [Target(NVME1, "available"), Target(NVME0, "available"), Target(GPU, "absent")]
    assert errors == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_device_that_is_wanted_in_two_states_is_left_alone(order: Sequence[int]) -> None:
    """With all else of the wishes that name it, whichever comes first."""
    elements = [element(filter="-d 144d:"), element(bdf="81:00.1", state="absent"), element(bdf="9:", state="present")]
    targets, errors = resolve([wish_from(elements[index], "available") for index in order], CATALOGUE, False)
    assert targets == [Target(GPU, "present")]
    assert len(errors) == 2
    for _name, error in errors:
        assert f"{NVME1} is wanted both " in error.message
        assert "available" in error.message
        assert "absent" in error.message


def test_names_and_serials_are_looked_up_only_when_needed() -> None:
    def never(_bdf: str) -> Any:
        raise AssertionError

    catalogue = Catalogue(PRESENT, never, never)
    assert len(resolve([wish_from(select(vendor_id="144d"), "present")], catalogue, False)[0]) == 2
    assert (
        resolve([wish_from(select(vendor_id="1af4", serial="S1", name_regex="x"), "present")], catalogue, True)[0] == []
    )


@pytest.mark.parametrize("bad", [select(), element(select={"vendor_id": None})])
def test_an_empty_selection_is_refused(bad: Dict[str, object]) -> None:
    with pytest.raises(SharingError, match="select is empty"):
        wish_from(bad, "available")


def test_a_wish_that_names_nothing_matches_nothing() -> None:
    """AnsibleModule takes an option that is null for one that is given; it must not lend every device of the node."""
    for allow_empty in (False, True):
        targets, errors = resolve([wish_from(element(), "available")], CATALOGUE, allow_empty)
        assert targets == []
        assert "give bdf, filter or select" in errors[0][1].message


@pytest.mark.parametrize(
    ("value", "digits"),
    [("10de", "10de"), ("0x10DE", "10de"), ("1", "0001"), (8086, "8086"), ("0X00", "0000"), (None, None)],
)
def test_hex_id(value: object, digits: Optional[str]) -> None:
    assert hex_id(value, "vendor_id") == digits


@pytest.mark.parametrize("value", ["", "0x", "10de0", "10dg", "10de\n", " 10de", True, 1.5, [], "\uff11"])
def test_not_a_hex_id(value: object) -> None:
    with pytest.raises(SharingError, match=r"^vendor_id: .* is not a hexadecimal id of at most 4 digits") as caught:
        hex_id(value, "vendor_id")
    assert caught.value.message.isprintable()


def test_hex_prefix() -> None:
    assert [hex_prefix(value, "class") for value in (None, "01", "0x0108", "010802")] == [None, "01", "0108", "010802"]
    with pytest.raises(SharingError, match="class: '0108020' is not a hexadecimal id of at most 6 digits"):
        hex_prefix("0108020", "class")


def test_pattern() -> None:
    assert pattern(None, "name_regex") is None
    assert pattern("a+", "name_regex") == re.compile("a+")
    with pytest.raises(SharingError, match=r"name_regex: '\(' is not a regular expression: "):
        pattern("(", "name_regex")


@given(st.text())
def test_any_pattern(text: str) -> None:
    try:
        assert pattern(text, "name_regex") is not None
    except SharingError as error:
        assert error.message.isprintable()


def test_elements() -> None:
    one = {"bdf": "1:", "devices": None}
    assert elements_of(one) == [one]
    assert elements_of({"devices": []}) == []
    assert elements_of({"devices": [{"bdf": "1:"}]}) == [{"bdf": "1:"}]


@given(st.dictionaries(st.sampled_from(["bdf", "filter", "select"]), st.text() | st.floats() | st.none()))
def test_written_is_printable(values: Dict[str, object]) -> None:
    assert written(values, ("bdf", "filter", "select")).isprintable()


def test_the_states_of_elements_override_that_of_the_call() -> None:
    assert wish_from(element(bdf="1:"), "absent").state == "absent"
    assert wish_from(element(bdf="1:", state="present"), "absent").state == "present"
    assert wish_from(element(bdf="1:", state=None), "absent").state == "absent"
    assert isinstance(wish_from(select(serial="x"), "absent").select, LocalSelect)
    assert isinstance(wish_from(select(serial="x"), "absent"), Wish)
