# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How what was granted joins what is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

from ansible_collections.iofabric.sharing.plugins.module_utils._replay.merge import Change, forget, remember
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import (
    DEFAULT_PLACES,
    BorrowedEntry,
    CplaneEntry,
    LentEntry,
    MountEntry,
    PairEntry,
    Sharing,
    SriovEntry,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.connections import Connection
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.p2p import Pair
from hypothesis import given
from hypothesis import strategies as st

A, B, C = "0000:81:00.0", "0000:82:00.0", "0000:83:00.0"
BDFS = st.sampled_from([A, B, C])
SERIALS = st.sampled_from([None, "S1", "S2"])
LENT = st.builds(LentEntry, BDFS, st.sampled_from(["available", "unavailable"]), SERIALS)


def told(number: int, label: Optional[str], uuid: bool, serial: bool) -> BorrowedEntry:
    """One of three devices, as a tool that tells less or more of it does."""
    return BorrowedEntry(
        fdid=f"48{number}00",
        label=label,
        node_id=4,
        bdf=(A, B, C)[number - 1],
        uuid=f"u{number}" if uuid else None,
        serial=f"S{number}" if serial else None,
    )


BORROWED = st.builds(told, st.integers(1, 3), st.sampled_from([None, "scratch", "cuda"]), st.booleans(), st.booleans())
CHANGES = st.builds(
    Change,
    connections=st.lists(st.builds(Connection, st.integers(4, 6), st.integers(0, 1)), max_size=3).map(tuple),
    sriov=st.lists(st.builds(SriovEntry, BDFS, st.integers(0, 2)), max_size=2).map(tuple),
    lent=st.lists(LENT, max_size=3, unique_by=lambda one: one.bdf).map(tuple),
    borrowed=st.lists(BORROWED, max_size=3, unique_by=lambda one: one.fdid).map(tuple),
    returned=st.lists(BORROWED, max_size=1).map(tuple),
    claims=st.frozensets(st.sampled_from(["scratch", "cuda"])),
    pairs=st.lists(st.just(Pair("48100", "48200")), max_size=1).map(tuple),
    mounts=st.lists(st.builds(MountEntry, st.just("scratch"), st.sampled_from(["/a", "/b"])), max_size=2).map(tuple),
    cplanes=st.lists(st.builds(CplaneEntry, st.integers(1, 3)), max_size=2).map(tuple),
)


def recorded(changes: List[Change]) -> Sharing:
    sharing = Sharing()
    for change in changes:
        sharing, _unknown = remember(sharing, change)
    return sharing


@given(st.lists(CHANGES, max_size=3), CHANGES)
def test_a_change_made_twice_is_made_once(before: List[Change], change: Change) -> None:
    once = recorded([*before, change])
    again, _unknown = remember(once, change)
    assert again == once


@given(st.lists(CHANGES, max_size=4))
def test_nothing_is_recorded_twice(changes: List[Change]) -> None:
    sharing = recorded(changes)
    for keys in (
        [one.bdf for one in sharing.lent],
        [one.place for one in sharing.borrowed],
        [one.uuid for one in sharing.borrowed if one.uuid],
        [one.bdf for one in sharing.sriov],
        [one.path for one in sharing.mounts],
        [one.cplane_id for one in sharing.cplanes],
        list(sharing.connections),
        list(sharing.pairs),
    ):
        assert len(keys) == len(set(keys)), keys
    places = {one.place for one in sharing.borrowed}
    assert all({pair.source, pair.destination} <= places for pair in sharing.pairs)
    assert all(one.numvfs for one in sharing.sriov)


@given(st.lists(CHANGES, max_size=3), CHANGES)
def test_what_is_not_named_stays(before: List[Change], change: Change) -> None:
    have, after = recorded(before), recorded([*before, change])
    named = {one.bdf for one in change.lent}
    serials = {one.serial for one in change.lent}
    stays = [one for one in have.lent if one.bdf not in named and one.serial not in serials]
    assert [one for one in after.lent if one in stays] == stays
    assert set(have.connections) <= set(after.connections)
    others = {one.place for one in have.borrowed if one.label not in change.claims}
    touched = [*change.borrowed, *change.returned]
    uuids = {one.uuid for one in touched if one.uuid}
    others -= {one.place for one in touched} | {one.place for one in have.borrowed if one.uuid in uuids}
    assert others <= {one.place for one in after.borrowed}


@given(CHANGES)
def test_what_was_recorded_can_be_forgotten(change: Change) -> None:
    gone = replace(change, taken_out=frozenset(one.bdf for one in change.lent))
    sharing = forget(recorded([change]), gone)
    assert sharing == replace(Sharing(), mounts=sharing.mounts)
    assert all(one not in change.mounts for one in sharing.mounts)


def test_a_drive_that_moved_is_recorded_at_its_new_address_only() -> None:
    have = Sharing(lent=(LentEntry(A, serial="S1"), LentEntry(B, serial="S2")))
    new = LentEntry(C, serial="S1")
    change = Change(lent=(new,), mentioned=frozenset([C]), present={C: "S1", B: None})
    assert remember(have, change)[0].lent == (have.lent[1], new)
    # Two functions of one card share a serial number: both are there.
    both = replace(change, present={A: "S1", C: "S1"})
    assert remember(have, both)[0].lent == (*have.lent, new)
    # Somebody else is in the old place.
    swapped = replace(change, present={A: "S9", C: "S1"})
    assert remember(have, swapped)[0].lent == (have.lent[1], new)


def test_what_is_not_told_any_more_is_kept_of_the_same_device() -> None:
    drive = LentEntry(A, serial="S1", vendor_id="144d", device_id="a80a")
    have = Sharing(lent=(drive,))
    for serial in (None, "00-11-22-33-44-55-66-77"):
        seen = replace(drive, serial=serial, state="unavailable")
        assert remember(have, Change(lent=(seen,)))[0].lent == (replace(drive, state="unavailable"),)
    other = LentEntry(A, vendor_id="10de", device_id="0ff3")
    assert remember(have, Change(lent=(other,)))[0].lent == (other,)
    other = replace(drive, serial="S2")
    assert remember(have, Change(lent=(other,)))[0].lent == (other,)


def test_a_borrowed_device_keeps_its_window_and_place() -> None:
    old = BorrowedEntry("48100", "scratch", 4, A, "u1", "S1", "144d", "a80a", "512")
    have = Sharing(borrowed=(old,))
    new = BorrowedEntry("49999", "scratch", 4, A)
    assert remember(have, Change(borrowed=(new,)))[0].borrowed == (replace(old, fdid="49999"),)
    told = Change(borrowed=(new,), window_told=frozenset(["49999"]))
    assert remember(have, told)[0].borrowed == (replace(old, fdid="49999", dma_window=None),)
    # Another device in its place has nothing of it.
    other = BorrowedEntry("48100", "scratch", 4, A, uuid="u2")
    assert remember(have, Change(borrowed=(other,)))[0].borrowed == (other,)
    # Neither owner nor address: the id must do.
    assert remember(have, Change(borrowed=(BorrowedEntry("48100"),)))[0].borrowed == (replace(old, label=None),)


def test_an_id_of_another_boot_does_not_name_a_device() -> None:
    """What this run borrowed is meant, where an old entry has the same id."""
    old, new = BorrowedEntry("80000", "a", 4, A), BorrowedEntry("80000", "b", 4, B)
    other = BorrowedEntry("80002", "b", 4, C)
    change = Change(borrowed=(new, other), pairs=(Pair("80000", "80002", 2),))
    sharing, unknown = remember(Sharing(borrowed=(old,)), change)
    assert unknown == []
    assert new.place is not None
    assert other.place is not None
    assert sharing.pairs == (PairEntry(new.place, other.place, 2),)
    assert sharing.borrowed == (old, new, other)
    # A pair goes with a device of it.
    assert forget(sharing, Change(claims=frozenset("b"))).pairs == ()
    assert remember(sharing, Change(returned=(other,)))[0].pairs == ()


def test_places_are_those_of_runs_that_say_something_of_smartio() -> None:
    places = replace(DEFAULT_PLACES, sysfs="/elsewhere")
    first, _unknown = remember(Sharing(), Change(places=places, cplanes=(CplaneEntry(7),)))
    assert first.places == places
    second, _unknown = remember(first, Change(places=DEFAULT_PLACES, connections=(Connection(8, 0),)))
    assert second.places == DEFAULT_PLACES
    third, _unknown = remember(second, Change(places=places, cplanes=(CplaneEntry(8),)))
    assert third.places == DEFAULT_PLACES
