# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme_cplane, as a process over emulated controllers: clients, strangers, and runs that end in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import bundle
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.models.warm import Warm
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import Lab, agree, wait_for
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
NAMES = ["emu:a?size=1M", "emu:b?size=1M"]
IDS = (7, 9)


class Cplane(Machine):
    """Two ids of a control plane."""

    lab: Lab
    warm: Warm

    @initialize()
    def begin(self) -> None:
        self.clients: Dict[int, Any] = {}
        self._stop_all()

    def teardown(self) -> None:
        super().teardown()
        for client in getattr(self, "clients", {}).values():
            client.close()

    def _stop_all(self) -> None:
        for cplane_id in IDS:
            self._run({"cplane_id": cplane_id, "state": "stopped", "force": True})
            assert self.lab.served(cplane_id) is None

    # - what others do

    @rule(cplane_id=st.sampled_from(IDS))
    def client(self, cplane_id: int) -> None:
        """A client comes, or the one that is there goes."""
        if cplane_id in self.clients:
            self.clients.pop(cplane_id).close()
        elif self.lab.served(cplane_id):
            self.clients[cplane_id] = self.lab.client(cplane_id)

    @rule(cplane_id=st.sampled_from(IDS))
    def crash(self, cplane_id: int) -> None:
        pid = self.lab.served(cplane_id)
        if pid is not None:
            self._forget(cplane_id)
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: self.lab.served(cplane_id) is None)

    def _forget(self, cplane_id: int) -> None:
        if cplane_id in self.clients:
            self.clients.pop(cplane_id).close()

    # - runs

    @rule(
        ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=2, unique=True),
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
        state=st.sampled_from(["started", "started", "stopped", "restarted"]),
        mode=st.sampled_from(["0660", "0600"]),
        force=FLAGS,
        kill=st.one_of(st.none(), st.none(), st.floats(0.01, 0.5)),
    )
    def wish(self, ids: List[int], names: List[str], state: str, mode: str, force: bool, kill: Optional[float]) -> None:
        with self.chapter(f"{ids} {names} {state} {mode} force {force}, killed after {kill}"):
            self._wish(ids, names, state, mode, force, kill)

    def _wish(
        self, ids: List[int], names: List[str], state: str, mode: str, force: bool, kill: Optional[float]
    ) -> None:
        servers = [{"cplane_id": one, "controllers": names} for one in ids]
        args = {"servers": servers, "state": state, "socket_mode": mode, "force": force}
        before = self._picture()
        check = self._run(args, check=True)
        assert self._picture() == before, "check mode touched a server"
        if kill is not None:
            self.warm.run("xnvme_cplane", {**self.lab.args, **args}, env=self.lab.env, kill_after=kill)
            self._is_safe(before, force)
        done = self._run(args)
        self._is_safe(before, force)
        if kill is None:
            assert (check.failed, check.changed) == (done.failed, done.changed), f"{check.text}\n{done.text}"
            if not done.failed:
                agree(check, done)
        elif not check.failed:
            assert not done.failed, done.text
        for cplane_id in ids:
            if not done.failed:
                assert (self.lab.served(cplane_id) is None) == (state == "stopped")
            if self._pid(before, cplane_id) != self.lab.served(cplane_id):
                self._forget(cplane_id)
        if state != "restarted":
            self._settles(args, done)

    def _run(self, args: Mapping[str, Any], check: bool = False) -> Result:
        result = self.warm.run("xnvme_cplane", {**self.lab.args, **args}, check, self.lab.env)
        assert result is not None
        return result

    def _picture(self) -> Dict[int, Any]:
        found: Dict[int, Any] = {}
        for cplane_id in IDS:
            mode = None
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(self.lab.path(cplane_id).stat().st_mode)
            found[cplane_id] = (self.lab.served(cplane_id), mode)
        return found

    @staticmethod
    def _pid(picture: Mapping[int, Any], cplane_id: int) -> Optional[int]:
        pid: Optional[int] = picture[cplane_id][0]
        return pid

    def _is_safe(self, before: Mapping[int, Any], force: bool) -> None:
        for cplane_id in self.clients:
            if not force:
                assert self.lab.served(cplane_id) == self._pid(before, cplane_id), "a server with a client was ended"

    def _settles(self, args: Mapping[str, Any], done: Result) -> None:
        now = self._picture()
        for turned in (args, {**args, "servers": args["servers"][::-1]}):
            again = self._run(turned)
            assert not again.changed, f"a second run: {again.text}"
            assert again.failed == done.failed
            assert self._picture() == now


@pytest.mark.xdist_group("cplane")
def test_cplane(request: pytest.FixtureRequest, warm: Warm, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    bundle.CPLANED.write(str(programs))
    lab = Lab(tmp_path, programs)
    machine = type("Cplane", (Cplane,), {"lab": lab, "warm": warm})
    try:
        drive(machine, request, "module", steps=4)
    finally:
        lab.close()
