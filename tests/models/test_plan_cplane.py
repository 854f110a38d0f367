# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a control plane: what is decided, and where that leads, with clients, strangers and half a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import FrozenSet, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import client, process
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.deciding import (
    CONFIGURE,
    START,
    STATES,
    STOP,
    Decision,
    Means,
    Options,
    decide_start,
    decide_stop,
    record_of,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import VersionMismatch
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.have import Access, Have
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.managers import Record
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.wanted import Wanted
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
URIS = {"emu:a": "ffff:00:01.0", "emu:b": "ffff:00:02.0"}
NAMES = st.frozensets(st.sampled_from(sorted(URIS)), min_size=1)


@dataclass
class Server:
    """Who serves the id. Without a record somebody else started it; ``speaks`` our version of the wire or not."""

    names: FrozenSet[str]
    mode: str
    record: Optional[Record] = None
    clients: int = 0
    speaks: bool = True
    proven: bool = True


class Serving(Machine):
    """One id."""

    @initialize()
    def begin(self) -> None:
        self.server: Optional[Server] = None
        self.program = "digest 1"

    # - what others do

    @rule(names=NAMES, speaks=st.booleans(), proven=st.booleans())
    def somebody_serves(self, names: FrozenSet[str], speaks: bool, proven: bool) -> None:
        if self.server is None:
            self.server = Server(names, "0755", speaks=speaks, proven=proven)

    @rule(number=st.integers(0, 2))
    def clients(self, number: int) -> None:
        if self.server is not None:
            self.server.clients = number

    @rule()
    def dies(self) -> None:
        self.server = None

    @rule(mode=st.sampled_from(["0600", "0666"]))
    def chmod(self, mode: str) -> None:
        if self.server is not None:
            self.server.mode = mode

    @rule()
    def upgrade(self) -> None:
        self.program += "+"

    # - runs

    @rule(
        names=NAMES,
        state=st.sampled_from(STATES),
        force=FLAGS,
        mode=st.sampled_from(["0660", "0600"]),
        heap=st.sampled_from([None, 1 << 20]),
        dies_after=st.one_of(st.none(), st.integers(0, 1)),
    )
    def wish(
        self, names: FrozenSet[str], state: str, force: bool, mode: str, heap: Optional[int], dies_after: Optional[int]
    ) -> None:
        ordered = tuple(sorted(names))
        wanted = Wanted(7, ordered, tuple(URIS[one] for one in ordered), True, heap_size=heap, socket_mode=mode)
        wanted = replace(wanted, written=ordered)
        means = Means("native", "process", self.program, Access(int(mode, 8), 0))
        options = Options(state, force)
        before = replace(self.server) if self.server else None
        decision = self._decide(wanted, options, means)
        if dies_after is not None:
            self._apply(decision.commands[:dies_after], wanted, means)
            decision = self._decide(wanted, options, means)
        self._apply(decision.commands, wanted, means)
        self._is_safe(before, force)
        if decision.error is None:
            self._is_fulfilled(wanted, state, decision, before)
        again = self._decide(wanted, replace(options, state="started" if state == "restarted" else state), means)
        assert again.commands == () or decision.error is not None
        if decision.error is not None and state != "restarted":
            assert (again.commands, again.error is None) == ((), False), "what was refused is done by a second run"

    def _have(self) -> Have:
        one = self.server
        if one is None:
            return Have()
        access = Access(int(one.mode, 8), 0)
        started = process.Process(100, 1, "boot", ("server",)) if one.record else None
        if not one.speaks:
            return Have(None, VersionMismatch("another version"), 200, None, None, access, 0, one.proven)
        uris = sorted(URIS[name] for name in one.names)
        ctrlrs = tuple(client.CtrlrInfo(uri, 0, 0, 0, 64, 64, True) for uri in uris)
        info = client.ServerInfo(7, client.Peer(100, 0, 0), one.clients + 1, len(uris), ctrlrs)
        return Have(info, None, 100, started, one.record, access, 0, one.proven)

    def _decide(self, wanted: Wanted, options: Options, means: Means) -> Decision:
        have = self._have()
        if options.state == "stopped":
            return decide_stop(7, have, options)
        return decide_start(wanted, have, options, means)

    def _apply(self, commands: Tuple[str, ...], wanted: Wanted, means: Means) -> None:
        for command in commands:
            if command == STOP:
                assert self.server is not None, "nobody is stopped"
                self.server = None
            elif command == START:
                assert self.server is None, "a second server is started"
                self.server = Server(frozenset(wanted.controllers), wanted.socket_mode, record_of(wanted, means))
            else:
                assert command == CONFIGURE
                assert self.server is not None and self.server.record is not None, "a stranger's server is changed"
                self.server.mode = wanted.socket_mode
                self.server.record = replace(self.server.record, access=record_of(wanted, means).access)

    # - what must hold

    def _is_safe(self, before: Optional[Server], force: bool) -> None:
        if before is None:
            return
        gone = self.server is None or (
            self.server.record is not before.record and self.server.clients != before.clients
        )
        if before.clients and before.speaks and not force:
            assert not gone, "a server with clients was taken away"
        if not before.proven or (not before.speaks and not force):
            assert self.server is not None and self.server.record is None, "a server that nobody knows was taken away"

    def _is_fulfilled(self, wanted: Wanted, state: str, decision: Decision, before: Optional[Server]) -> None:
        if state == "stopped":
            assert self.server is None
            return
        assert self.server is not None
        assert self.server.names == frozenset(wanted.controllers)
        assert self.server.record is None or self.server.mode == wanted.socket_mode
        is_old = self.server.record is not None and self.server.record.heap_size != wanted.heap_size
        assert not is_old or decision.restart_pending
        if state == "started" and before is not None and decision.commands == ():
            assert self.server.names == before.names


def test_cplane(request: pytest.FixtureRequest) -> None:
    drive(Serving, request, "plan", steps=12)
