# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device is the recorded one; another one never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.match import (
    Found,
    Seen,
    compare_borrowed,
    compare_lent,
    find_borrowed,
    find_lent,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import BorrowedEntry, LentEntry
from hypothesis import given
from hypothesis import strategies as st

A, B, C = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0"
ENTRY = BorrowedEntry("1", "scratch", 4, A, "u1", "S1", "144d", "a80a")
SEEN = Seen("48100", A, 4, "S1", "u1", "144d", "a80a")
CAPABILITY = "00-11-22-33-44-55-66-77"


@pytest.mark.parametrize(
    ("entry", "seen", "verdict"),
    [
        ({}, {}, "same"),
        ({}, {"bdf": B}, "same"),  # the drive moved to another slot
        ({}, {"node_id": 8}, "other"),  # and to another host
        ({}, {"serial": "S2"}, "other"),
        ({}, {"serial": "S2", "uuid": "u1"}, "other"),
        ({}, {"vendor_id": "10de"}, "other"),
        ({}, {"device_id": None}, "same"),
        ({}, {"node_id": None}, "untold"),
        ({}, {"serial": None}, "same"),  # by its UUID
        ({"serial": "00-00-00-00-00-00-00-00"}, {"serial": "00-00-00-00-00-00-00-00", "uuid": "u2"}, "other"),
        ({"serial": "0000"}, {"serial": "S1"}, "same"),
        ({}, {"serial": CAPABILITY, "uuid": "u2"}, "other"),
        ({}, {"serial": None, "uuid": None}, "same"),  # by its place and ids
        ({}, {"serial": None, "uuid": None, "bdf": B}, "other"),
        ({}, {"serial": None, "uuid": None, "bdf": None}, "untold"),
        ({}, {"serial": None, "uuid": None, "node_id": None}, "untold"),
        ({}, {"serial": None, "uuid": None, "device_id": None}, "untold"),
        ({"serial": None, "uuid": None, "vendor_id": None, "device_id": None}, {}, "same"),
        ({"serial": None, "uuid": None, "bdf": None}, {}, "untold"),
    ],
)
def test_a_pool_device(entry: Any, seen: Any, verdict: str) -> None:
    assert compare_borrowed(replace(ENTRY, **entry), replace(SEEN, **seen)) == verdict


@pytest.mark.parametrize(
    ("serial", "seen", "verdict", "patient"),
    [
        ("S1", {}, "same", "same"),
        ("S1", {"bdf": B}, "same", "same"),
        ("S1", {"serial": "S2"}, "other", "other"),
        ("S1", {"serial": None}, "same", "untold"),
        ("S1", {"serial": CAPABILITY}, "same", "untold"),
        ("S1", {"serial": None, "bdf": B}, "other", "other"),
        ("S1", {"serial": None, "device_id": None}, "untold", "untold"),
        ("S1", {"device_id": "0000"}, "other", "other"),
        (None, {}, "same", "same"),
        (None, {"bdf": B}, "other", "other"),
    ],
)
def test_a_local_device(serial: Optional[str], seen: Any, verdict: str, patient: str) -> None:
    entry = LentEntry(A, "available", serial, "144d", "a80a")
    there = replace(SEEN, name=A, **seen)
    assert compare_lent(entry, there, False) == verdict
    assert compare_lent(entry, there, True) == patient


def test_functions_of_one_card_share_a_serial_number() -> None:
    entries = [replace(ENTRY, bdf=bdf, uuid=None) for bdf in (A, B)]
    seen = [replace(SEEN, name=name, bdf=bdf, uuid=None) for name, bdf in (("2", B), ("1", A), ("3", C))]
    assert [find_borrowed(entries, seen)[entry].name for entry in entries] == ["1", "2"]
    moved = find_borrowed(entries[:1], [one for one in seen if one.bdf != A])
    assert moved[entries[0]].name is None
    assert "2 devices in the pool could be meant" in moved[entries[0]].why


def test_another_device_in_the_place_is_told() -> None:
    found = find_borrowed([ENTRY], [replace(SEEN, serial="S2")])[ENTRY]
    assert (found.name, found.is_other) == (None, True)
    assert "144d:a80a, serial number S2" in found.why
    assert find_borrowed([ENTRY], [])[ENTRY] == Found(None, "it is not in the pool yet")
    lent = LentEntry(A, serial="S1", vendor_id="144d", device_id="a80a")
    assert find_lent([lent], [replace(SEEN, name=A, serial="S2")], False)[lent].is_other
    assert find_lent([lent], [], False)[lent] == Found(None, "it is not on this host yet")


DEVICES = st.builds(
    Seen,
    name=st.uuids().map(str),
    bdf=st.sampled_from([A, B, C, None]),
    node_id=st.sampled_from([4, 8, None]),
    serial=st.sampled_from(["S1", "S2", CAPABILITY, None]),
    uuid=st.sampled_from(["u1", "u2", None]),
    vendor_id=st.sampled_from(["144d", None]),
    device_id=st.sampled_from(["a80a", "0ff3", None]),
)
ENTRIES = st.builds(
    BorrowedEntry,
    fdid=st.just("1"),
    label=st.sampled_from(["a", "b"]),
    node_id=st.sampled_from([4, 8, None]),
    bdf=st.sampled_from([A, B, C, None]),
    uuid=st.sampled_from(["u1", "u2", None]),
    serial=st.sampled_from(["S1", "S2", CAPABILITY, None]),
    vendor_id=st.sampled_from(["144d", None]),
    device_id=st.sampled_from(["a80a", "0ff3", None]),
)


@given(st.lists(ENTRIES, max_size=4, unique=True), st.lists(DEVICES, max_size=5))
def test_nothing_is_ever_substituted(entries: List[BorrowedEntry], devices: List[Seen]) -> None:
    found = find_borrowed(entries, devices)
    by_name = {device.name: device for device in devices}
    names = [one.name for one in found.values() if one.name is not None]
    assert len(names) == len(set(names))
    for entry, one in found.items():
        if one.name is None:
            assert one.why
            continue
        device = by_name[one.name]
        told = [
            (getattr(entry, name), getattr(device, name))
            for name in ("node_id", "serial", "vendor_id", "device_id")
            if getattr(entry, name) is not None and getattr(device, name) is not None
        ]
        assert all(mine == theirs or CAPABILITY in (mine, theirs) for mine, theirs in told)
        by_serial = entry.serial is not None and entry.serial == device.serial
        by_uuid = entry.uuid is not None and entry.uuid == device.uuid
        assert by_serial or by_uuid or (entry.node_id, entry.bdf) == (device.node_id, device.bdf)
