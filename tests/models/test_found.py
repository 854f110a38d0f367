# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sequences that the state machines found, each of which failed once; most of them as they were printed."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
from ansible_collections.iofabric.sharing.tests.models.fabric import Fault, Quirks
from ansible_collections.iofabric.sharing.tests.models.test_plan_borrowing import Borrowing, Claim
from ansible_collections.iofabric.sharing.tests.models.test_plan_lending import Lending, Task
from ansible_collections.iofabric.sharing.tests.models.test_plan_settings import Settings
from ansible_collections.iofabric.sharing.tests.models.test_plan_sriov import Functions
from ansible_collections.iofabric.sharing.tests.models.wishes import Written

ONE, GPU = "0000:01:00.0", "0000:02:00.1"
ALL_OF_8 = {(8, ONE), (8, "0000:02:00.0"), (8, GPU)}
OF_8 = {"node_id": 8}


@pytest.fixture
def lending() -> Lending:
    machine = Lending()
    machine.begin(False, False, "", False, "in use", False, False, False)
    return machine


@pytest.fixture
def borrowing() -> Borrowing:
    machine = Borrowing()
    machine.begin(strict=False, located=False, absent=(19, ""), word="in use", lent={*ALL_OF_8, (12, ONE)})
    return machine


@pytest.fixture
def functions() -> Iterator[Functions]:
    machine = Functions()
    machine.begin()
    yield machine
    machine.teardown()


def task(*elements: Any, state: str = "available", **options: Any) -> Task:
    """A task for devices that are named by BDF, each with a state of its own or None."""
    written = [Written({"bdf": bdf, "filter": None, "select": None, "state": own}) for bdf, own in elements]
    given = {"force": False, "borrowers_checked": False, "on_in_use": "fail", "allow_empty": False, "purge": False}
    return Task(tuple(written), state, **{**given, **options})


def claim(select: Any = None, label: Any = None, count: Any = None, of_all: bool = False, place: Any = None) -> Claim:
    return Claim(place, select or {}, count, of_all, label)


@pytest.mark.parametrize("states", [("available", "present"), ("absent", "available")])
def test_wanted_in_two_states(lending: Lending, states: Any) -> None:
    lending.wish(task(*((ONE, state) for state in states)), 1)
    lending.wish(task(*((ONE, state) for state in reversed(states)), purge=True), 1)


def test_two_numbers_of_functions(functions: Functions) -> None:
    functions.wish([("01:00.0", 1), ("0000:01:00.0", 2)], force=False, die_after=None)
    functions.wish([("01:00.0", 2), ("01:00.1", 1)], force=False, die_after=None)
    functions.wish([("01:00.0", 0), ("0000:01:00.0", 2)], force=True, die_after=None)


@pytest.mark.parametrize("what", ["die after", "after"])
@pytest.mark.parametrize("want", ["unavailable", "absent"])
def test_taking_back_a_device_without_a_driver_is_interrupted(lending: Lending, what: str, want: str) -> None:
    lending.wish(task((GPU, None)), 1)
    lending.wish_with_trouble(task((GPU, want), borrowers_checked=True), [Fault("unavailable", what, 5)])
    lending.wish(task((GPU, "available")), 1)


def test_a_removal_that_does_not_happen(lending: Lending) -> None:
    lending.wish(task((ONE, "present")), 1)
    lending.wish_with_trouble(task(("0000:02:00.0", "present"), purge=True), [Fault("remove", "lie")])


def test_a_fabric_device_id_that_is_given_again(lending: Lending) -> None:
    lending.node.quirks.located = True
    lending.wish(task(("0001:81:00.0", "present")), 1)
    lending.wish(task(("0001:81:00.0", "absent"), ("0000:81:00.0", "present")), 1)


@pytest.mark.parametrize(
    "claims",
    [
        [claim(OF_8, of_all=True), claim(OF_8)],
        [claim(OF_8), claim({"serial": "S1"})],
        [claim(OF_8, count=2), claim({"vendor_id": "8086"}), claim({"serial": "S2"})],
    ],
)
def test_the_order_of_claims(borrowing: Borrowing, claims: Any) -> None:
    for turn in range(6):
        borrowing.borrow_in_another_order(claims, force=False, turn=turn)
    borrowing.borrow(claims, force=False, timeout=0, wait_for="none")
    borrowing.borrow(claims[::-1], force=False, timeout=0, wait_for="none")


def test_what_is_kept_gives_way_for_what_can_be_borrowed(borrowing: Borrowing) -> None:
    borrowing.somebody_borrows((8, ONE), "borrow", rival=False)
    borrowing.borrow_in_another_order([claim(OF_8), claim({"serial": "S1", "node_id": 8})], force=False, turn=1)
    borrowing.borrow([claim(OF_8), claim({"serial": "S1", "node_id": 8})], force=False, timeout=0, wait_for="none")


def test_two_claims_with_one_label(borrowing: Borrowing) -> None:
    claims = [claim(OF_8, "a"), claim({"node_id": 12}, "a"), claim({"serial": "S1", "node_id": 8}, "a")]
    borrowing.borrow(claims, force=False, timeout=0, wait_for="none")


def test_a_claim_by_fdid_whose_label_holds_another_device(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(label="a", place=(8, ONE))], force=False, timeout=0, wait_for="none")
    borrowing.lender_acts((8, "0000:02:00.0"), "unavailable")
    borrowing.lender_acts((8, "0000:02:00.0"), "remove")
    borrowing.borrow([claim(label="a", place=(8, "0000:02:00.0"))], force=False, timeout=0, wait_for="none")


def test_a_label_that_moves(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(label="a", place=(12, ONE))], force=False, timeout=0, wait_for="none")
    claims = [claim(OF_8, "a"), claim(label="b", place=(12, ONE))]
    borrowing.borrow(claims, force=False, timeout=0, wait_for="none")


def test_a_claim_that_fails_for_its_label_takes_nothing(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(OF_8), claim(label="a", place=(8, GPU))], force=False, timeout=0, wait_for="none")
    claims = [claim({"vendor_id": "8086"}, "a", count=2), claim(OF_8)]
    borrowing.borrow(claims, force=False, timeout=0, wait_for="none")


def test_claims_that_are_alike_keep_their_devices(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(OF_8), claim(OF_8)], force=False, timeout=0, wait_for="none")


def test_a_label_that_is_not_revived(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(label="a", place=(12, ONE))], force=False, timeout=0, wait_for="none")
    borrowing.give_back([claim(OF_8)], False, "a", [Fault("return", "after", 5)])
    borrowing.borrow_with_trouble([claim({"node_id": 12})], False, [Fault("borrow", "die after")])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("status", [5, 22])
def test_what_was_borrowed_before_is_not_given_back(borrowing: Borrowing, strict: bool, status: int) -> None:
    """Get-vdev fails once, and the tool lists what is borrowed as available."""
    borrowing.node.quirks = Quirks(strict=strict, lent_word="")
    borrowing.somebody_borrows((8, ONE), "borrow", rival=False)
    borrowing.use((8, ONE), ("mounted at /srv",), False)
    borrowing.borrow_with_trouble([claim({"serial": "S1"}, count=3)], False, [Fault("get-vdev", "before", status)])


def test_a_selection_returns_nothing_that_cannot_be_looked_at(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(label="a", place=(8, ONE))], force=False, timeout=0, wait_for="none")
    borrowing.cut_or_heal(8)
    borrowing.give_back([claim({"node_id": 12}, "a")], True, None, [])


def test_a_return_by_label_and_by_a_selection_that_cannot_be_told(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(label="a", place=(8, ONE))], force=False, timeout=0, wait_for="none")
    borrowing.cut_or_heal(8)
    borrowing.give_back([claim(OF_8)], True, "a", [Fault("return", "before", 5)])


def test_claims_that_are_alike_after_trouble(borrowing: Borrowing) -> None:
    trouble = [Fault("borrow", "before", 5), Fault("borrow", "die after", 5)]
    borrowing.borrow_with_trouble([claim(OF_8), claim(OF_8)], False, trouble)


def test_a_return_that_does_not_happen(borrowing: Borrowing) -> None:
    borrowing.borrow([claim(OF_8, "a")], force=False, timeout=0, wait_for="none")
    borrowing.give_back([claim({"node_id": 12})], False, "a", [Fault("return", "lie")])


@pytest.mark.parametrize("state", ["enabled", "disabled"])
@pytest.mark.parametrize("what", ["die after", "after"])
def test_a_pair_whose_setting_is_interrupted(borrowing: Borrowing, state: str, what: str) -> None:
    pairs = [((8, ONE), (12, ONE), 0)]
    for node, bdf in ((8, ONE), (12, ONE)):
        borrowing.somebody_borrows((node, bdf), "borrow", rival=False)
    borrowing.pair(pairs, "enabled", [])
    borrowing.pair(pairs, state, [Fault("disable-p2p", what, 5)])
    borrowing.pair(pairs, "disabled", [])


def test_a_scan_under_the_id_of_a_node() -> None:
    machine = Settings()
    machine.begin(strict=False, shows=False)
    machine.scan(None, 12, [])
