# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded for the next boot: rows as modules return them, in any order, some of them of tasks that failed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, Mapping

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Report, SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._replay import persist
from ansible_collections.iofabric.sharing.tests.models.fabric import Killed
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
BDFS = st.sampled_from(["0000:01:00.0", "0000:02:00.0", "0001:81:00.0"])
LENT = st.builds(
    lambda bdf, state, action: {"bdf": bdf, "state": state, "action": action},
    BDFS,
    st.sampled_from(["available", "lent", "unavailable", "absent", "in use", "unknown"]),
    st.sampled_from(["none", "add", "available", "unavailable, remove"]),
)
_DEVICES = (("80100", 8, "0000:01:00.0"), ("80200", 8, "0000:02:00.0"), ("c0100", 12, "0000:01:00.0"))
BORROWED = st.builds(
    lambda who, label, action, vdev: {
        "fdid": who[0],
        "node_id": who[1],
        "bdf": who[2],
        "label": label,
        "action": action,
        "vdev": vdev or ("0001:00:01.0" if action == "borrow" else None),
    },
    st.sampled_from(_DEVICES),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from(["none", "borrow", "return"]),
    st.sampled_from([None, "0001:00:01.0"]),
)
CONNECTIONS = st.builds(
    lambda node_id, state: {"node_id": node_id, "adapter": 0, "state": state},
    st.sampled_from([4, 8, 12]),
    st.sampled_from(["connected", "unreachable", None]),
)
CPLANES = st.builds(
    lambda number, names: {"cplane_id": number, "controllers": sorted(names)},
    st.sampled_from([7, 9]),
    st.sets(st.sampled_from(["emu:a", "claim:a", "0000:01:00.0"]), min_size=1),
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "lent": st.lists(LENT, max_size=3, unique_by=lambda row: row["bdf"]),
        "borrowed": st.lists(BORROWED, max_size=3, unique_by=lambda row: row["fdid"]),
        "connections": st.lists(CONNECTIONS, max_size=3, unique_by=lambda row: row["node_id"]),
        "cplanes": st.lists(CPLANES, max_size=2, unique_by=lambda row: row["cplane_id"]),
        "mounts": st.lists(st.sampled_from(["/srv", "/mnt"]), unique=True).map(
            lambda paths: [{"path": path, "label": "a"} for path in paths]
        ),
        "claims": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "sriov": st.lists(st.tuples(BDFS, st.integers(0, 2)), max_size=2, unique_by=lambda one: one[0]).map(
            lambda pairs: [{"bdf": bdf, "numvfs": number} for bdf, number in pairs]
        ),
    },
)
_NAMES = ("lent", "borrowed", "connections", "cplanes", "mounts", "claims", "sriov", "p2p", "errors")


class Persisting(Machine):
    """One host and its file."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="t"))
        (self.folder / "iofabric-sharing.pyz").touch()
        (self.folder / "sys/bus/pci/devices").mkdir(parents=True)
        self.path = self.folder / "sharing.json"

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(rows=ROWS, absent=FLAGS, everything=FLAGS, dies=FLAGS)
    def record(self, rows: Dict[str, Any], absent: bool, everything: bool, dies: bool) -> None:
        params = self._params(rows, absent, everything and absent)
        before = self._bytes()
        check = self._run(params, True)
        assert self._bytes() == before, "check mode changed the file"
        turned = self._run(
            self._params({name: found[::-1] for name, found in rows.items()}, absent, everything and absent), True
        )
        assert _as_set(turned) == _as_set(check), "another order recorded something else"
        if dies:
            self._die(params)
            assert self._bytes() == before, "half a file was left"
        done = self._run(params, False)
        assert (done.changed, done.results["sharing"]) == (check.changed, check.results["sharing"])
        assert done.changed == (self._bytes() != before)
        after = self._bytes()
        again = self._run(params, False)
        assert not again.changed
        assert self._bytes() == after
        if after is not None:
            assert json.loads(after) == done.results["sharing"]
        self._is_recorded(rows, absent, done)

    def _params(self, rows: Mapping[str, Any], absent: bool, everything: bool) -> Dict[str, Any]:
        places = {name: str(self.folder / name) for name in ("proc", "dev", "state_dir")}
        return {
            **dict.fromkeys(_NAMES),
            **places,
            "tool": "smartio_tool",
            "sysfs": str(self.folder / "sys"),
            "timeout": 4.0,
            "path": str(self.path),
            "state": "absent" if absent else "present",
            "all": everything,
            "program_dir": str(self.folder),
            "_program_digest": None,
            "_program_source": None,
            **rows,
        }

    def _bytes(self) -> Any:
        return self.path.read_bytes() if self.path.exists() else None

    def _run(self, params: Mapping[str, Any], check: bool) -> Report:
        return persist.resource(params).run(check)

    def _die(self, params: Mapping[str, Any]) -> None:
        """A run that is killed when it has written all but the name of the file."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", _killed)
            patch.setattr(os, "unlink", _killed)
            with contextlib.suppress(Killed):
                self._run(params, False)

    def _is_recorded(self, rows: Mapping[str, Any], absent: bool, done: Report) -> None:
        sharing: Any = done.results["sharing"]
        if absent or not sharing:
            return
        lent = {one["bdf"]: one["state"] for one in sharing.get("lender", {}).get("devices", ())}
        for row in rows.get("lent", ()):
            wanted = {"available": "available", "lent": "available", "unavailable": "unavailable"}.get(row["state"])
            if wanted:
                assert lent.get(row["bdf"]) == wanted
            elif row["state"] == "absent":
                assert row["bdf"] not in lent


def _killed(*_args: Any, **_options: Any) -> None:
    raise Killed


def _as_set(report: Report) -> Any:
    """The record without the order of its lists."""

    def flat(value: Any) -> Any:
        if isinstance(value, dict):
            return tuple(sorted((name, flat(one)) for name, one in value.items()))
        return tuple(sorted(map(repr, map(flat, value)))) if isinstance(value, list) else value

    return report.changed, flat(report.results["sharing"])


def test_persist(request: pytest.FixtureRequest) -> None:
    try:
        drive(Persisting, request, "plan", steps=8)
    except SharingError as error:  # a failure of a run is one of the test
        raise AssertionError(error.message) from error
