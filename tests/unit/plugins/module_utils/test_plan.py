# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import List, Sequence, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import (
    Action,
    Deadline,
    Item,
    Outcome,
    Plan,
    SharingError,
    describe_error,
    failure_sentence,
    run_plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st


class Clock:
    """A clock that moves only by sleeping, and a little by every look at it."""

    def __init__(self, start: float = 1000.0, tick: float = 0.0) -> None:
        self.now = start
        self.tick = tick
        self.slept: List[float] = []

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


SECONDS = st.floats(0, 20, allow_subnormal=False)


@given(SECONDS, st.floats(0, 1e9), st.floats(0.05, 5), st.floats(0.05, 5), st.sampled_from([0.0, 1e-6, 0.01]))
@settings(deadline=None)
def test_pauses(seconds: float, start: float, first: float, most: float, tick: float) -> None:
    clock = Clock(start, tick)
    deadline = Deadline(seconds, clock)
    lasts, times = [], []
    for last in deadline.pauses(first, most, clock.sleep):
        lasts.append(last)
        times.append(clock.now)
        assert len(lasts) < 10_000
    assert lasts.count(True) == 1
    assert lasts[-1] is True
    assert times[0] <= start + 3 * tick  # always a first try, at once
    assert times[-1] >= start + seconds  # always a last one when the time is up ...
    assert times[-1] <= start + seconds + (len(lasts) * 3 + 3) * tick + 1e-6  # ... and never one much later
    assert all(pause <= max(first, most) for pause in clock.slept)


def test_pauses_grow_up_to_the_longest() -> None:
    clock = Clock()
    tries = list(Deadline(20, clock).pauses(0.1, 2.0, clock.sleep))
    slept = [pause for pause in clock.slept if pause > 0]
    assert slept[:3] == pytest.approx([0.1, 0.16, 0.256])
    assert slept[:-1] == sorted(slept[:-1])
    assert max(slept) == 2.0
    assert sum(slept) == pytest.approx(20)
    assert len(tries) == len(slept) + 1


@pytest.mark.parametrize("seconds", [0, -1])
def test_without_time_there_is_one_try(seconds: float) -> None:
    clock = Clock()
    deadline = Deadline(seconds, clock)
    assert list(deadline.pauses(sleep=clock.sleep)) == [True]
    assert deadline.left() == 0.0
    assert sum(clock.slept) == 0


def test_a_deadline_that_passed_during_a_try() -> None:
    clock = Clock()
    tries = []
    for last in Deadline(1, clock).pauses(sleep=clock.sleep):
        tries.append(last)
        clock.now += 100
    assert tries == [False, True]
    assert sum(clock.slept) == 0


def test_all_waiting_shares_one_deadline() -> None:
    clock = Clock()
    deadline = Deadline(10, clock)
    assert deadline.left() == 10
    list(deadline.pauses(sleep=clock.sleep))
    assert list(deadline.pauses(sleep=clock.sleep)) == [True]
    assert (deadline.left(), deadline.seconds) == (0.0, 10)


ACTIONS = st.builds(Action, st.sampled_from(["add", "available", "remove"]), st.just(("x",)), st.just("words"))
ITEMS = st.one_of(
    st.builds(Item, st.text(max_size=4), st.just("before"), st.just("after"), st.lists(ACTIONS, max_size=3).map(tuple)),
    st.builds(
        Item, st.text(max_size=4), st.just("same"), st.just("same"), error=st.builds(SharingError, st.text(max_size=5))
    ),
)
PLANS = st.builds(Plan, st.lists(ITEMS, max_size=5).map(tuple))


@given(PLANS)
@settings(deadline=None)
def test_a_prediction_is_what_a_run_does(plan: Plan) -> None:
    performed: List[Action] = []
    applied = plan.apply(performed.append)
    assert plan.predict() == applied
    assert performed == [action for item in plan.items for action in item.actions]
    predicted, _outcomes = run_plan(plan, True, performed.append)
    report, _outcomes = run_plan(plan, False, performed.append)
    assert predicted == report


@given(PLANS, st.sets(st.integers(0, 14)))
@settings(deadline=None)
def test_a_failing_element_leaves_the_others_done(plan: Plan, failing: set[int]) -> None:
    performed: List[Action] = []
    count = 0

    def perform(action: Action) -> None:
        nonlocal count
        count += 1
        if count - 1 in failing:
            raise SharingError("no luck")
        performed.append(action)

    outcomes = plan.apply(perform)
    assert [outcome.item for outcome in outcomes] == list(plan.items)
    assert [action for outcome in outcomes for action in outcome.done] == performed
    for outcome in outcomes:
        assert tuple(outcome.done) == outcome.item.actions[: len(outcome.done)]
        assert (outcome.error is None) == (
            outcome.item.error is None and len(outcome.done) == len(outcome.item.actions)
        )


def test_predicting_runs_nothing() -> None:
    def never(_action: Action) -> None:
        raise AssertionError

    plan = Plan((Item("a", "x", "y", (Action("add", (), "add a"),)),))
    report, outcomes = run_plan(plan, True, never)
    assert (report.changed, report.before, report.after) == (True, ["a: x"], ["a: y"])
    assert outcomes[0].action == "add"


def test_report_of_a_plan() -> None:
    add, available = Action("add", (), "add"), Action("available", (), "make available")
    refused = SharingError("in use")
    plan = Plan(
        (
            Item("a", "x", "y", (add, available)),
            Item("b", "x", "y", (available,)),
            Item("c", "x", "x", error=refused),
            Item("d", "x", "x"),
        )
    )

    def perform(action: Action) -> None:
        if action is available:
            raise SharingError("busy")

    report, outcomes = run_plan(plan, False, perform)
    assert report.changed
    assert report.before == ["a: x", "b: x", "c: x", "d: x"]
    assert report.after == report.before
    assert [(name, error.message) for name, error in report.errors] == [("a", "busy"), ("b", "busy"), ("c", "in use")]
    assert [outcome.action for outcome in outcomes] == ["add", "none", "none", "none"]


def test_foreign_errors_are_not_swallowed() -> None:
    def broken(_action: Action) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Plan((Item("a", "x", "y", (Action("add", (), "add"),)),)).apply(broken)


@pytest.mark.parametrize(("done", "action"), [([], "none"), (["add"], "add"), (["add", "available"], "add, available")])
def test_action_names(done: List[str], action: str) -> None:
    item = Item("a", "x", "y")
    assert Outcome(item, [Action(name, (), name) for name in done]).action == action


def errors(*pairs: Tuple[str, str]) -> Sequence[Tuple[str, SharingError]]:
    return [(name, SharingError(message)) for name, message in pairs]


@pytest.mark.parametrize(
    ("failed", "total", "sentence"),
    [
        ([("81:00.0", "81:00.0 is in use")], 1, "81:00.0 is in use"),
        ([("81:00.0", "no answer")], 1, "81:00.0: no answer"),
        ([("", "no answer")], 1, "no answer"),
        ([("d1", "no answer")], 3, "1 of 3 devices failed: d1: no answer"),
        ([("d1", "no answer"), ("d2", "d2 is busy")], 2, "2 of 2 devices failed: d1: no answer; d2 is busy"),
        (
            [(f"d{number}", "busy") for number in range(10)],
            12,
            "10 of 12 devices failed: "
            + "; ".join(f"d{number}: busy" for number in range(8))
            + "; and 2 more (see errors)",
        ),
    ],
)
def test_failure_sentence(failed: List[Tuple[str, str]], total: int, sentence: str) -> None:
    assert failure_sentence(errors(*failed), total, "devices") == sentence


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=5)), min_size=1, max_size=12), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_failure_sentence_says_how_many(failed: List[Tuple[str, str]], more: int) -> None:
    total = len(failed) + more
    failures = errors(*failed)
    text = failure_sentence(failures, total, "devices")
    assert failed[0][0] in text
    assert failures[0][1].message in text
    assert total == 1 or text.startswith(f"{len(failed)} of {total} devices failed: ")


def test_describe_error() -> None:
    error = SharingError("busy", rc=16, output="x")
    assert describe_error("a", error) == {"element": "a", "msg": "busy", "rc": 16, "output": "x"}
    assert str(error) == error.message == "busy"
