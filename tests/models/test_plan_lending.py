# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lending: random wishes for the devices of a node whose pool, users, borrowers and ledger move about."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import lending
from ansible_collections.iofabric.sharing.tests.models.fabric import Fabric, Fault, Killed, Node
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive, in_another_order
from ansible_collections.iofabric.sharing.tests.models.memory import Answer, ModelStore, run, twin
from ansible_collections.iofabric.sharing.tests.models.wishes import BDFS, DEVICES, ELEMENTS, STATES, Written
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

LENDER, BORROWER = 8, 4
FLAGS = st.sampled_from([False, False, True])
COMMANDS = ("add", "remove", "available", "unavailable", "list", "show", "*")
FAULTS = st.builds(
    Fault,
    st.sampled_from(COMMANDS),
    st.sampled_from(["before", "after", "die before", "die after", "lie", "garble"]),
    st.sampled_from([5, 12, 16, 19, 22, 255]),
)


@dataclass(frozen=True)
class Task:
    """One task: what is wanted, as written, and how far it may go."""

    elements: Tuple[Written, ...]
    state: str
    force: bool
    borrowers_checked: bool
    on_in_use: str
    allow_empty: bool
    purge: bool

    def params(self, order: Optional[Sequence[int]] = None) -> Dict[str, Any]:
        """The module's parameters, the elements in another order where one is given."""
        elements = [self.elements[index] for index in order] if order else self.elements
        options = {
            name: getattr(self, name)
            for name in ("state", "force", "borrowers_checked", "on_in_use", "allow_empty", "purge")
        }
        return {**options, "devices": [dict(one.element) for one in elements]}

    def wanted(self, node: Node) -> Tuple[Dict[str, str], bool]:
        """Device -> wanted state, without those that are wanted in two states, and whether every element is sound."""
        meant = [
            (one.means(node.hardware, lambda bdf: knows_serial(node, bdf)), str(one.element["state"] or self.state))
            for one in self.elements
        ]
        states: Dict[str, set[str]] = {}
        for bdfs, state in meant:
            for bdf in bdfs:
                states.setdefault(bdf, set()).add(state)
        torn = {bdf for bdf, found in states.items() if len(found) > 1}
        sound = [
            not bdfs & torn and (bool(bdfs) or self._may_be_empty(one)) for (bdfs, _s), one in zip(meant, self.elements)
        ]
        wanted = {bdf: state for (bdfs, state), good in zip(meant, sound) if good for bdf in bdfs}
        return wanted, all(sound) and (bool(self.elements) or self.allow_empty)

    def _may_be_empty(self, one: Written) -> bool:
        return self.allow_empty and one.element["bdf"] is None


TASKS = st.builds(
    Task,
    st.lists(ELEMENTS, max_size=4).map(tuple),
    st.sampled_from([state for state in STATES if state]),
    FLAGS,
    FLAGS,
    st.sampled_from(["fail", "fail", "skip"]),
    FLAGS,
    FLAGS,
)


def knows_serial(node: Node, bdf: str) -> bool:
    """Whether sysfs, the pool or the ledger tells the serial number of a device."""
    one = node.hardware[bdf]
    in_ledger = bdf in ModelStore(node).load().serials
    return one.bound or one.driver != "nvme" or in_ledger or node.fabric.pooled(node.node_id, bdf) is not None


def state_of(node: Node, bdf: str) -> str:
    """What a device truly is."""
    entry = node.fabric.pooled(node.node_id, bdf)
    if entry is None:
        return "absent"
    if entry.borrower is not None:
        return "borrowed"
    return "available" if entry.available else "unavailable"


def picture(node: Node) -> Dict[str, Tuple[str, bool]]:
    """Every device's state, and whether its driver is bound."""
    return {bdf: (state_of(node, bdf), one.bound) for bdf, one in node.hardware.items()}


def steps(state: str, want: str) -> List[str]:
    """The commands that lead from a state to another one, as the manual page has them."""
    if state == "borrowed":
        state = "available"
    to_pool = ["add"] if state == "absent" else []
    if want == "absent":
        return {"absent": [], "unavailable": ["remove"], "available": ["unavailable", "remove"]}[state]
    if want == "available":
        return [] if state == "available" else [*to_pool, "available"]
    return to_pool if want == "present" or state != "available" else ["unavailable"]


def is_right(state: str, want: str) -> bool:
    return not steps(state, want)


def run_device(node: Node, params: Mapping[str, Any], check: bool = False) -> Answer:
    return run(node, lending.resource, params, check)


class Lending(Machine):
    """One lender; a borrower that takes what it can."""

    @initialize(
        strict=st.booleans(),
        reverse=st.booleans(),
        prefix=st.sampled_from(["", "ID "]),
        located=st.booleans(),
        word=st.sampled_from(["in use", "", "borrowed", "unavailable"]),
        hides_bdf=FLAGS,
        hides_node=FLAGS,
        keeps=FLAGS,
    )
    def begin(
        self,
        strict: bool,
        reverse: bool,
        prefix: str,
        located: bool,
        word: str,
        hides_bdf: bool,
        hides_node: bool,
        keeps: bool,
    ) -> None:
        self.fabric = Fabric()
        self.node = self.fabric.node(
            LENDER,
            *copy.deepcopy(DEVICES),
            strict=strict,
            reverse=reverse,
            prefix=prefix,
            located=located,
            lent_word=word,
            hides_bdf=hides_bdf and located,  # with neither, nobody can tell two alike devices apart
            hides_node=hides_node,
            keeps_driver=keeps,
        )
        self.borrower = self.fabric.node(BORROWER)
        self.node.connections.add(BORROWER)
        self.unplugged: Dict[str, Any] = {}

    # - what others do

    @rule(command=st.sampled_from(["add", "remove", "available", "unavailable"]), bdf=st.sampled_from(BDFS))
    def by_hand(self, command: str, bdf: str) -> None:
        """As another administrator. What a device without a driver is that was made available before nobody can tell
        (design: it counts as lent), so such a one is left alone.
        """
        one = self.node.hardware.get(bdf)
        if one is not None and one.driver is None and bdf in ModelStore(self.node).load().available:
            return
        self.node.execute("smartio_tool", (command, *(["--force"] if command == "available" else []), bdf))

    @rule(bdf=st.sampled_from(BDFS), command=st.sampled_from(["borrow", "borrow", "return"]))
    def borrower_acts(self, bdf: str, command: str) -> None:
        entry = self.fabric.pooled(LENDER, bdf)
        if entry is not None:
            self.borrower.execute("smartio_tool", (command, entry.fdid))

    @rule(bdf=st.sampled_from(BDFS), used=st.sampled_from([(), ("mounted at /srv",)]), never=FLAGS)
    def use(self, bdf: str, used: Tuple[str, ...], never: bool) -> None:
        if bdf in self.node.hardware:
            self.node.hardware[bdf].used = used
            self.node.hardware[bdf].never = ("it holds /",) if never else ()

    @rule(bdf=st.sampled_from(BDFS))
    def plug(self, bdf: str) -> None:
        """A device vanishes with its place in the pool, or comes back."""
        if bdf in self.unplugged:
            self.node.hardware[bdf] = self.unplugged.pop(bdf)
        elif state_of(self.node, bdf) != "borrowed":
            entry = self.fabric.pooled(LENDER, bdf)
            if entry is not None:
                del self.fabric.pool[entry.fdid]
            self.unplugged[bdf] = self.node.hardware.pop(bdf)

    @rule()
    def lose_ledger(self) -> None:
        self.node.ledger = None

    @rule()
    def restart(self) -> None:
        self.node.restart()
        self.node.connections.add(BORROWER)

    # - runs

    @rule(task=TASKS, turn=st.integers(0, 23))
    def wish(self, task: Task, turn: int) -> None:
        before = picture(self.node)
        everything = self.fabric.picture()
        other = twin(self.node)
        check = run_device(self.node, task.params(), check=True)
        assert self.fabric.picture() == everything, "check mode changed something"
        assert check.commands == []
        done = run_device(self.node, task.params())
        self._is_safe(task, before)
        self._agrees(check, done)
        if not done.failed:
            self._is_fulfilled(task)
        self._is_justified(task, before, done)
        self._settles(task, done)
        order = in_another_order(range(len(task.elements)), turn)
        shuffled = run_device(other, task.params(order))
        assert picture(other) == picture(self.node), f"another order {order} led elsewhere"
        assert sorted(name for name, _e in shuffled.report.errors) == sorted(name for name, _e in done.report.errors)

    @rule(task=TASKS, faults=st.lists(FAULTS, min_size=1, max_size=3))
    def wish_with_trouble(self, task: Task, faults: List[Fault]) -> None:
        before = picture(self.node)
        ideal = twin(self.node)
        undisturbed = run_device(ideal, task.params())
        self.node.faults = list(copy.deepcopy(faults))
        with contextlib.suppress(Killed):
            run_device(self.node, task.params())
        self.node.faults = []
        self._is_safe(task, before, in_trouble=True)
        good = run_device(self.node, task.params())
        assert len(good.report.errors) <= len(undisturbed.report.errors), good.report.errors
        assert picture(self.node) == picture(ideal), "a good run did not lead where it leads without the trouble"
        self._settles(task, good)

    # - what must hold

    def _is_safe(self, task: Task, before: Mapping[str, Tuple[str, bool]], in_trouble: bool = False) -> None:
        wanted, _sound = task.wanted(self.node)
        for bdf, (state, bound) in picture(self.node).items():
            was, was_bound = before[bdf]
            one = self.node.hardware[bdf]
            opened = (was == "available") != (state == "available") or bound != was_bound
            assert not (opened and one.never), f"{bdf} must never be touched"
            assert not (opened and one.used and not task.force), f"{bdf} is in use and was touched"
            assert was != "borrowed" or state == "borrowed", f"{bdf} was taken from its borrower"
            if was == "available" and state != was:
                assert task.borrowers_checked or task.force, f"{bdf} may be borrowed"
            if bdf not in wanted and (state, bound) != (was, was_bound):
                assert task.purge, f"{bdf} was not asked for: {was} -> {state}"
                assert state == "absent" or in_trouble

    def _agrees(self, check: Answer, done: Answer) -> None:
        broken = {name for name, _e in done.report.errors} - {name for name, _e in check.report.errors}
        assert not {name for name, _e in check.report.errors} - {name for name, _e in done.report.errors}
        # By force, a device that is lent and not known to be is made available again, and then known to be lent.
        lent = {bdf for bdf in self.node.hardware if state_of(self.node, bdf) == "borrowed"}
        if not broken:
            assert check.report.changed == done.report.changed
        if not broken | lent:
            assert (check.report.before, check.report.after) == (done.report.before, done.report.after)
        assert ("devices" in check.report.results) == ("devices" in done.report.results)
        if "devices" in done.report.results:
            assert len(check.rows("devices")) == len(done.rows("devices"))
            for foreseen, row in zip(check.rows("devices"), done.rows("devices")):
                assert foreseen["bdf"] == row["bdf"]
                if row["bdf"] not in broken:
                    assert foreseen["action"] == row["action"]
                    is_lent = row["bdf"] in lent and row["state"] == "lent"
                    assert foreseen["state"] == ("available" if is_lent and row["action"] != "none" else row["state"])
        for name in broken:
            assert state_of(self.node, name) == "borrowed", f"only a borrower may surprise a lender: {name}"

    def _is_fulfilled(self, task: Task) -> None:
        wanted, sound = task.wanted(self.node)
        assert sound, "an element that cannot be meant was passed over"
        for bdf, want in wanted.items():
            one = self.node.hardware[bdf]
            if task.on_in_use == "skip" and (one.used or one.never):
                continue
            assert is_right(state_of(self.node, bdf), want), f"{bdf} is not {want}"

    def _is_justified(self, task: Task, before: Mapping[str, Tuple[str, bool]], done: Answer) -> None:
        """Every refusal has a reason; what is sound and free is done, each command once and none too many."""
        wanted, _sound = task.wanted(self.node)
        failed = {name for name, _e in done.report.errors}
        for bdf, want in wanted.items():
            was, _bound = before[bdf]
            todo = steps(was, want)
            ran = [args[0] for args in done.commands if args[-1] == bdf]
            one = self.node.hardware[bdf]
            touched = {"available", "unavailable"} & set(todo)
            in_use = touched and (one.never or (one.used and not task.force))
            closing = "unavailable" in todo and not (task.force or task.borrowers_checked)
            if was == "borrowed":
                continue
            if in_use or (closing and not in_use):
                assert ran == [], f"{bdf} was refused and touched"
                assert bdf in failed or task.on_in_use == "skip"
            else:
                assert ran == todo, f"{bdf}: {was} -> {want} ran {ran}"
                assert bdf not in failed

    def _settles(self, task: Task, first: Answer) -> None:
        everything, repeats = self.fabric.picture(), self.node.repeats
        again = run_device(self.node, task.params())
        surprised = {name for name, _e in again.report.errors if state_of(self.node, name) == "borrowed"}
        assert {args[-1] for args in again.commands} <= surprised, "a second run ran a changing command"
        assert [name for name, _e in again.report.errors] == [name for name, _e in first.report.errors]
        if not surprised:
            assert not again.report.changed
            assert self.fabric.picture() == everything
            assert self.node.repeats == repeats


def test_lending(request: pytest.FixtureRequest) -> None:
    drive(Lending, request, "plan", steps=12)
