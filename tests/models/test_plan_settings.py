# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections, parameters and scans: what no command lists, or only the tool knows."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Dict, List, Mapping, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import connections, settings
from ansible_collections.iofabric.sharing.tests.models.fabric import Fabric, Fault, Killed
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.models.memory import Answer, run, twin
from ansible_collections.iofabric.sharing.tests.models.wishes import DEVICES
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

OWN, PEERS, TREE = 8, (4, 12, 16), 72
FLAGS = st.sampled_from([False, False, True])
FAULTS = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["connect", "config", "scan", "list", "show", "*"]),
        st.sampled_from(["before", "after", "die before", "die after", "garble"]),
        st.sampled_from([5, 12, 16, 22]),
    ),
    max_size=2,
)
WISHES = st.one_of(
    st.sampled_from([4, 12, 16, 99]).map(lambda number: {"node_id": number, "hostname": None, "adapter": 0}),
    st.sampled_from([4, 99]).map(lambda number: {"node_id": None, "hostname": f"host{number}", "adapter": 0}),
    st.just({"node_id": 4, "hostname": "host4", "adapter": 1}),
)
VALUES = st.sampled_from([0, 1, True, "yes", "N", "off", "2"])


class Settings(Machine):
    """One node that connects, is configured and scans."""

    @initialize(strict=st.booleans(), shows=st.booleans())
    def begin(self, strict: bool, shows: bool) -> None:
        self.fabric = Fabric()
        self.node = self.fabric.node(OWN, *copy.deepcopy(DEVICES[:2]), strict=strict)
        self.node.shows_parameters = shows
        for peer in PEERS:
            self.fabric.node(peer)

    @rule(peer=st.sampled_from(PEERS))
    def cut_or_heal(self, peer: int) -> None:
        self.fabric.cut ^= {peer}

    @rule(name=st.sampled_from(["autoborrow_transparent", "verbose"]), value=st.sampled_from(["0", "1"]))
    def by_hand(self, name: str, value: str) -> None:
        if self.node.shows_parameters:  # otherwise nobody can see it, and what was set last is taken for what is
            self.node.execute("smartio_tool", ("config", name, value))

    @rule(devices=st.sets(st.sampled_from([2, 3, 4])))
    def rebuild_tree(self, devices: set[int]) -> None:
        self.node.transparent = [copy.deepcopy(DEVICES[index]) for index in sorted(devices)]

    @rule()
    def restart(self) -> None:
        self.node.restart()
        self.node.parameters = dict.fromkeys(self.node.parameters, "0")

    @rule()
    def lose_ledger(self) -> None:
        self.node.ledger = None

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=4), reconnect=FLAGS, warn=FLAGS, faults=FAULTS)
    def connect(self, wishes: List[Dict[str, Any]], reconnect: bool, warn: bool, faults: List[Fault]) -> None:
        params = {
            **dict.fromkeys(("node_ids", "hostnames")),
            "adapter": 0,
            "connections": wishes,
            "reconnect": reconnect,
            "on_unreachable": "warn" if warn else "fail",
        }
        before = set(self.node.connections)
        done = self._cycle(connections.resource, params, faults, repeats=reconnect)
        assert self.node.connections >= before, "a connection was lost"
        wanted = {int(one["node_id"] or one["hostname"][4:]) for one in wishes if one["adapter"] == 0}
        reachable = wanted & set(PEERS) - self.fabric.cut
        assert reachable <= self.node.connections
        assert self.node.connections - before <= wanted
        turned = run(twin(self.node), connections.resource, {**params, "connections": wishes[::-1]})
        assert len(turned.report.errors) == len(done.report.errors)

    @rule(values=st.dictionaries(st.sampled_from(["autoborrow_transparent", "verbose"]), VALUES), faults=FAULTS)
    def configure(self, values: Dict[str, Any], faults: List[Fault]) -> None:
        before = dict(self.node.parameters)
        done = self._cycle(settings.config_resource, {"settings": values}, faults)
        assert not done.failed
        meant = {
            name: {"yes": "1", "N": "0", "off": "0", "True": "1"}.get(str(value), str(value))
            for name, value in values.items()
        }
        for name, value in self.node.parameters.items():
            found = {"yes": "1", "N": "0", "off": "0"}.get(value, value)
            assert found == meant.get(name, found)
            assert name in values or value == before[name]

    @rule(
        autoborrow=st.sampled_from([None, False, True]), node_id=st.sampled_from([TREE, TREE, TREE, 12]), faults=FAULTS
    )
    def scan(self, autoborrow: Optional[bool], node_id: int, faults: List[Fault]) -> None:
        params = {"node_id": node_id, "adapter": 0, "autoborrow": autoborrow}
        have = {one.hardware.bdf for one in self.fabric.pool.values() if one.tree == TREE}
        done = self._cycle(settings.scan_resource, params, faults, repeats=True, is_exact=False)
        found = {one.hardware.bdf for one in self.fabric.pool.values() if one.tree == TREE}
        assert done.failed == (node_id != TREE)
        assert found == ({one.bdf for one in self.node.transparent} if node_id == TREE else have)

    def _cycle(
        self, make: Any, params: Mapping[str, Any], faults: List[Fault], repeats: bool = False, is_exact: bool = True
    ) -> Answer:
        """Check mode, a run with trouble, a run, and another one; ``repeats``: its command runs each time."""
        everything = self.fabric.picture()
        check = run(self.node, make, params, check=True)
        assert self.fabric.picture() == everything, "check mode changed something"
        assert check.commands == []
        if faults:
            self.node.faults = copy.deepcopy(faults)
            with contextlib.suppress(Killed):
                run(self.node, make, params)
            self.node.faults = []
        done = run(self.node, make, params)
        missed = bool(done.report.warnings)  # a node out of reach, which only the tool could know
        if not faults and not done.failed and is_exact and not missed:
            assert check.report == done.report
        everything = self.fabric.picture()
        again = run(self.node, make, params)
        assert self.fabric.picture() == everything
        assert len(again.report.errors) == len(done.report.errors)
        if not repeats:
            assert not again.report.changed
            assert again.failed or missed or again.commands == []
        return done


def test_settings(request: pytest.FixtureRequest) -> None:
    drive(Settings, request, "plan", steps=12)
