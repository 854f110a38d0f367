# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Borrowing, returning and peer-to-peer: two lenders whose devices come and go, a borrower, and its rival."""

from __future__ import annotations

import contextlib
import copy
import errno
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import borrowing, p2p
from ansible_collections.iofabric.sharing.tests.models.fabric import Fabric, Fault, Killed, Node, Pooled
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive, in_another_order
from ansible_collections.iofabric.sharing.tests.models.memory import Answer, ModelStore, run, twin
from ansible_collections.iofabric.sharing.tests.models.wishes import DEVICES
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

LENDERS, BORROWER, RIVAL = (8, 12), 4, 16
#: The two lenders have different devices, but for two that are alike.
OF_LENDER = {8: DEVICES[:3], 12: (DEVICES[0], *DEVICES[3:])}
PLACES = tuple((node, one.bdf) for node in LENDERS for one in OF_LENDER[node])
FLAGS = st.sampled_from([False, False, True])
PAIRS = st.tuples(st.sampled_from(PLACES), st.sampled_from(PLACES), st.sampled_from([None, 0, 3]))
WAITS = st.sampled_from(["none", "vdev", "driver"])
LABELS = st.sampled_from([None, None, "a", "b"])
NOTHING: Mapping[str, Any] = dict.fromkeys(("node_id", "bdf", "uuid", "serial", "vendor_id", "device_id", "name_regex"))
FAULTS = st.builds(
    Fault,
    st.sampled_from(["borrow", "return", "list", "show", "get-vdev", "enable-p2p", "disable-p2p", "*"]),
    st.sampled_from(["before", "after", "die before", "die after", "lie", "garble"]),
    st.sampled_from([5, 12, 16, 19, 22, 255]),
)


@dataclass(frozen=True)
class Claim:
    """One element. ``place`` names the device whose fdid is claimed; otherwise ``select`` holds."""

    place: Optional[Tuple[int, str]]
    select: Mapping[str, Any]
    count: Optional[int]
    all: bool
    label: Optional[str]

    def element(self, node: Node) -> Dict[str, Any]:
        """As it is written for the module."""
        made: Dict[str, Any] = {"fdid": None, "select": None, "count": None, "all": None, "dma_window": None}
        if self.place is not None:
            return {**made, "fdid": "0x" + fdid_of(node, self.place).upper(), "label": self.label}
        counted = {"all": True} if self.all else {"count": self.count}
        return {**made, **counted, "select": {**NOTHING, **self.select}, "label": self.label}

    def matches(self, node: Node, entry: Pooled) -> bool:
        """Whether a device of the pool is what is claimed."""
        if self.place is not None:
            return entry.fdid == fdid_of(node, self.place)
        have = {
            "node_id": entry.owner,
            "vendor_id": entry.hardware.vendor,
            "device_id": entry.hardware.device,
            "serial": entry.hardware.serial,
            "bdf": entry.hardware.bdf,
        }
        return all(have[name] == value for name, value in self.select.items())


def fdid_of(node: Node, place: Tuple[int, str]) -> str:
    """The id of a device in the pool; of one that is not, an id that nobody has."""
    entry = node.fabric.pooled(*place)
    return entry.fdid if entry else f"{place[0] << 16 | 0xFFF0 + PLACES.index(place):x}"


SELECTS = st.sampled_from(
    [{"node_id": 8}, {"node_id": 12}, {"vendor_id": "8086"}, {"serial": "S2"}, {"serial": "S5"}, {"serial": "S9"}]
    + [{"node_id": 8, "vendor_id": "8086"}, {"node_id": 12, "bdf": "0000:01:00.0"}, {"device_id": "f1a5"}]
)
CLAIMS = st.one_of(
    st.builds(Claim, st.none(), SELECTS, st.sampled_from([None, 1, 2, 3]), FLAGS, LABELS),
    st.builds(Claim, st.sampled_from(PLACES), st.just({}), st.none(), st.just(False), LABELS),
)


def is_unique(claims: Sequence[Claim]) -> bool:
    """Whether no device is named twice, which is refused."""
    places = [one.place for one in claims if one.place]
    return len(places) == len(set(places))


TASKS = st.lists(CLAIMS, min_size=1, max_size=3).filter(is_unique)


def params(node: Node, claims: Sequence[Claim], state: str, force: bool, wait_for: str = "vdev") -> Dict[str, Any]:
    return {
        "devices": [one.element(node) for one in claims],
        "state": state,
        "force": force,
        "wait_for": wait_for,
        "unmounted": [],
        "ended": [],
    }


def rows_of(answer: Answer) -> List[Tuple[Any, ...]]:
    """What a prediction must get right of each device."""
    rows = answer.report.results.get("devices")
    return [] if rows is None else [(row["fdid"], row["label"], row["action"]) for row in answer.rows("devices")]


def _of_claim(row: Sequence[Any]) -> Tuple[str, str]:
    return str(row[0]), str(row[1])


class Borrowing(Machine):
    """One borrower, and all the others that it knows nothing of."""

    @initialize(
        strict=st.booleans(),
        located=st.booleans(),
        absent=st.sampled_from([(19, ""), (0, ""), (0, "N/A"), (22, "")]),
        word=st.sampled_from(["in use", "", "unavailable"]),
        lent=st.sets(st.sampled_from(PLACES)),
    )
    def begin(
        self, strict: bool, located: bool, absent: Tuple[int, str], word: str, lent: set[Tuple[int, str]]
    ) -> None:
        self.fabric = Fabric()
        for node in LENDERS:
            lender = self.fabric.node(node, *copy.deepcopy(OF_LENDER[node]), strict=strict, located=located)
            lender.connections.update((BORROWER, RIVAL))
        self.node = self.fabric.node(BORROWER, strict=strict, absent=absent, lent_word=word)
        self.rival = self.fabric.node(RIVAL)
        for place in sorted(lent):
            self.lender_acts(place, "add")
            self.lender_acts(place, "available")

    # - what others do

    @rule(place=st.sampled_from(PLACES), command=st.sampled_from(["add", "available", "unavailable", "remove"]))
    def lender_acts(self, place: Tuple[int, str], command: str) -> None:
        force = ["--force"] if command == "available" else []
        self.fabric.nodes[place[0]].execute("smartio_tool", (command, *force, place[1]))

    @rule(place=st.sampled_from(PLACES), command=st.sampled_from(["borrow", "return"]), rival=st.booleans())
    def somebody_borrows(self, place: Tuple[int, str], command: str, rival: bool) -> None:
        node = self.rival if rival else self.node
        node.execute("smartio_tool", (command, fdid_of(node, place)))

    @rule(place=st.sampled_from(PLACES), used=st.sampled_from([(), ("mounted at /srv",)]), never=FLAGS)
    def use(self, place: Tuple[int, str], used: Tuple[str, ...], never: bool) -> None:
        vdev = self.node.vdevs.get(fdid_of(self.node, place))
        if vdev is not None:
            vdev.used, vdev.never = used, ("it holds /",) if never else ()

    @rule(node=st.sampled_from(LENDERS))
    def cut_or_heal(self, node: int) -> None:
        self.fabric.cut ^= {node}

    @rule(node=st.sampled_from([*LENDERS, BORROWER]))
    def restart(self, node: int) -> None:
        if node not in self.fabric.cut:
            self.fabric.nodes[node].restart()
            if node in LENDERS:
                self.fabric.nodes[node].connections.update((BORROWER, RIVAL))

    @rule()
    def lose_ledger(self) -> None:
        self.node.ledger = None

    # - runs

    @rule(
        claims=TASKS, force=FLAGS, timeout=st.sampled_from([0, 4]), wait_for=st.sampled_from(["none", "vdev", "driver"])
    )
    def borrow(self, claims: Sequence[Claim], force: bool, timeout: float, wait_for: str) -> None:
        wish = params(self.node, claims, "borrowed", force, wait_for)
        before, everything = copy.deepcopy(self.node.vdevs), self.fabric.picture()
        labels = dict(ModelStore(self.node).load().borrowed)
        check = run(self.node, borrowing.resource, wish, check=True, timeout=timeout)
        assert self.fabric.picture() == everything, "check mode changed something"
        assert check.commands == []
        done = run(self.node, borrowing.resource, wish, timeout=timeout)
        self._keeps(before)
        after = ModelStore(self.node).load().borrowed
        moved = [fdid for fdid in before if labels.get(fdid) not in (None, after.get(fdid))]
        assert not moved, "a device was taken from the claim that it was borrowed for"
        if not done.failed:
            self._is_filled(claims, done)
        if not check.failed and not check.report.results.get("pending") and not self._surprises(done):
            assert check.report.changed == done.report.changed
            assert rows_of(check) == rows_of(done)
        if len(claims) == 1:
            self._is_justified(claims[0], before, done, force)
        if done.failed and wait_for != "driver":
            assert self.node.vdevs.keys() - before.keys() <= self._rows(done), "more was kept than is told"
        self._settles(wish, done, timeout)

    @rule(claims=TASKS, force=FLAGS, turn=st.integers(0, 5))
    def borrow_in_another_order(self, claims: Sequence[Claim], force: bool, turn: int) -> None:
        """On a copy of the fabric: the order of claims may decide who gets which, but not whether all get theirs."""
        results = []
        for order in (list(claims), in_another_order(claims, turn)):
            node = twin(self.node)
            done = run(node, borrowing.resource, params(node, order, "borrowed", force, "none"))
            results.append((done.failed, None if done.failed else (done.report.changed, len(node.vdevs))))
        assert results[0] == results[1], f"{claims} in another order led elsewhere"

    @rule(claims=TASKS, force=FLAGS, faults=st.lists(FAULTS, min_size=1, max_size=3))
    def borrow_with_trouble(self, claims: Sequence[Claim], force: bool, faults: List[Fault]) -> None:
        wish = params(self.node, claims, "borrowed", force, "none")
        before = copy.deepcopy(self.node.vdevs)
        ideal = run(twin(self.node), borrowing.resource, wish)
        self.node.faults = copy.deepcopy(faults)
        with contextlib.suppress(Killed):
            run(self.node, borrowing.resource, wish)
        self.node.faults = []
        # A get-vdev that fails with anything but EIO says that a device is not borrowed here.
        lies = [fault for fault in faults if fault.command in ("get-vdev", "*") and fault.status != errno.EIO]
        if any(fault.what in ("before", "after") for fault in lies) or any(fault.what == "garble" for fault in faults):
            before = {fdid: vdev for fdid, vdev in before.items() if vdev.used or vdev.never}
        self._keeps(before)
        good = run(self.node, borrowing.resource, wish)
        self._keeps(before)
        if not ideal.failed:
            assert not good.failed, good.report.errors
            self._is_filled(claims, good)
        self._settles(wish, good, 4)

    @rule(claims=TASKS, force=FLAGS, label=LABELS, faults=st.lists(FAULTS, max_size=2))
    def give_back(self, claims: Sequence[Claim], force: bool, label: Optional[str], faults: List[Fault]) -> None:
        wish = params(self.node, claims, "returned", force)
        if label is not None:
            wish["devices"].append({**claims[0].element(self.node), "fdid": None, "select": None, "label": label})
            wish["devices"][-1].update(count=None, all=None)
        before, everything = copy.deepcopy(self.node.vdevs), self.fabric.picture()
        labels = ModelStore(self.node).load().borrowed
        check = run(self.node, borrowing.resource, wish, check=True)
        assert self.fabric.picture() == everything, "check mode changed something"
        assert check.commands == []
        ideal, other = twin(self.node), twin(self.node)
        undisturbed = run(ideal, borrowing.resource, wish)
        turned = run(other, borrowing.resource, {**wish, "devices": wish["devices"][::-1]})
        assert (other.vdevs.keys(), turned.report.changed) == (ideal.vdevs.keys(), undisturbed.report.changed)
        assert (check.report.changed, rows_of(check)) == (undisturbed.report.changed, rows_of(undisturbed))
        # Of a lender out of reach nobody can see whether what was returned is gone: the tool's word is all there is.
        self.node.faults = [copy.copy(fault) for fault in faults if not (self.fabric.cut and fault.what == "lie")]
        with contextlib.suppress(Killed):
            run(self.node, borrowing.resource, wish)
        self.node.faults = []
        good = run(self.node, borrowing.resource, wish)
        assert self.node.vdevs.keys() == ideal.vdevs.keys(), "a good run did not lead where it leads without trouble"
        for fdid in before.keys() - self.node.vdevs.keys():
            assert not before[fdid].never, f"{fdid} must never be touched"
            assert force or not before[fdid].used, f"{fdid} is in use and was returned"
            named = [one for one in claims if self._is_meant(one, fdid, labels)]
            assert named or (label and labels.get(fdid) == label), f"{fdid} was not asked for"
        self._settles(wish, good, 4)

    @rule(
        pairs=st.lists(PAIRS, min_size=1, max_size=3),
        state=st.sampled_from(["enabled", "disabled"]),
        faults=st.lists(FAULTS, max_size=2),
    )
    def pair(self, pairs: Sequence[Tuple[Any, Any, Optional[int]]], state: str, faults: List[Fault]) -> None:
        elements = [
            {"source": fdid_of(self.node, one), "destination": fdid_of(self.node, other), "bar": number}
            for one, other, number in pairs
            if one != other
        ]
        wish = {"pairs": elements, "state": state}
        everything = self.fabric.picture()
        check = run(self.node, p2p.resource, wish, check=True)
        assert self.fabric.picture() == everything, "check mode changed something"
        undisturbed = run(twin(self.node), p2p.resource, wish)
        if not undisturbed.failed and not check.report.results.get("pending"):
            assert check.report.changed == undisturbed.report.changed
            assert [row["action"] for row in check.rows("pairs")] == [
                row["action"] for row in undisturbed.rows("pairs")
            ]
        # Nobody can see whether a pair is set: the tool's word is all there is.
        self.node.faults = [copy.copy(fault) for fault in faults if fault.what != "lie"]
        with contextlib.suppress(Killed):
            run(self.node, p2p.resource, wish)
        self.node.faults = []
        good = run(self.node, p2p.resource, wish)
        assert good.failed == undisturbed.failed, good.report.errors
        reachable = not self.fabric.cut
        for element in elements:
            ends = (element["source"], element["destination"])
            is_set = (*ends, "-" if element["bar"] is None else str(element["bar"])) in self.node.p2p
            both = all(fdid in self.node.vdevs for fdid in ends)
            if reachable:
                assert is_set == (both and state == "enabled"), element
        self._settles(wish, good, 4, p2p.resource)

    # - what must hold

    def _keeps(self, before: Mapping[str, Any]) -> None:
        for fdid, vdev in before.items():
            assert self.node.vdevs.get(fdid) == vdev, f"{fdid} was borrowed here and was taken away"

    @staticmethod
    def _rows(done: Answer) -> set[str]:
        return {str(row["fdid"]) for row in done.rows("devices")} if "devices" in done.report.results else set()

    def _surprises(self, done: Answer) -> bool:
        """Whether a device was tried that somebody else has or nobody can reach: only the tool knew."""
        tried = {args[1] for args in done.commands if args[0] == "borrow"}
        return bool(tried - self.node.vdevs.keys()) or bool(self.fabric.cut)

    def _is_filled(self, claims: Sequence[Claim], done: Answer) -> None:
        fdids = [row["fdid"] for row in done.rows("devices")]
        assert len(fdids) == len(set(fdids)), "a device was given to two claims"
        assert set(fdids) <= self.node.vdevs.keys()
        for row in done.rows("devices"):
            assert row["vdev"] == self.node.vdevs[row["fdid"]].bdf
        left = [self.fabric.pool[fdid] for fdid in fdids if fdid in self.fabric.pool]
        for claim in claims:
            mine = [entry for entry in left if claim.matches(self.node, entry)]
            assert len(mine) >= (1 if claim.place else 0 if claim.all else claim.count or 1), claim
        remembered = ModelStore(self.node).load().borrowed
        for row in done.rows("devices"):
            assert remembered.get(row["fdid"]) == row["label"], row

    def _is_justified(self, claim: Claim, before: Mapping[str, Any], done: Answer, force: bool) -> None:
        """A single claim fails only where there are not enough devices for it, or where nobody can be asked."""
        if self.fabric.cut or force:
            return
        labels = ModelStore(self.node).load().borrowed
        mine = [one for one in self.fabric.pool.values() if claim.matches(self.node, one)]
        free = [one for one in mine if one.fdid in self.node.vdevs or (one.available and one.borrower is None)]
        of_others = [one for one in free if one.fdid in before and labels.get(one.fdid) not in (None, claim.label)]
        enough = len(free) - len(of_others) >= (1 if claim.all else claim.count or 1)
        messages = [error.message for _name, error in done.report.errors]
        if enough and claim.place is None:
            # A label that holds another device, and a driver that never comes, are failures of another kind.
            assert all("holds" in text or "did not appear" in text for text in messages), messages

    def _is_meant(self, claim: Claim, fdid: str, labels: Mapping[str, Optional[str]]) -> bool:
        if claim.place is not None:
            return fdid_of(self.node, claim.place) == fdid
        entry = self.fabric.pool.get(fdid)
        is_labelled = claim.label is None or labels.get(fdid) == claim.label
        return is_labelled and entry is not None and claim.matches(self.node, entry)

    def _settles(self, wish: Mapping[str, Any], first: Answer, timeout: float, make: Any = borrowing.resource) -> None:
        vdevs, repeats = copy.deepcopy(self.node.vdevs), self.node.repeats
        again = run(self.node, make, wish, timeout=timeout)
        assert self.node.vdevs == vdevs
        assert not again.report.changed, "a second run reports a change"
        assert [name for name, _e in again.report.errors] == [name for name, _e in first.report.errors]
        if not first.failed:
            assert again.commands == [] or self._surprises(again), "a second run ran a changing command"
            assert self.node.repeats == repeats
            if make is borrowing.resource and wish["state"] == "borrowed":
                # Claims that are alike and have no label may change places.
                assert sorted(map(_of_claim, rows_of(again))) == sorted(map(_of_claim, rows_of(first)))


def test_borrowing(request: pytest.FixtureRequest) -> None:
    drive(Borrowing, request, "plan", steps=12)
