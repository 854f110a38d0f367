# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual functions: cards with users of their functions, a kernel that goes through none, runs that end between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import sriov, usage
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice, Sysfs
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Report
from ansible_collections.iofabric.sharing.tests.models.fabric import Killed
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.models.memory import ModelDeadline
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

TOTALS: Dict[str, Optional[int]] = {"0000:01:00.0": 4, "0000:01:00.1": 2, "0000:02:00.0": None}
FLAGS = st.sampled_from([False, False, True])
WAYS = {"0000:01:00.0": "0000:01:00.0", "01:00.0": "0000:01:00.0", "01:00.1": "0000:01:00.1", "2:": "0000:02:00.0"}


class Kernel(Sysfs):
    """Acts on what was written to sriov_numvfs whenever somebody looks. ``die_at`` is the write that is the last."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.root_folder = root
        self.numvfs = dict.fromkeys(TOTALS, 0)
        self.writes: List[Tuple[str, int]] = []
        self.users: Dict[str, usage.Usage] = {}
        self.die_at: Optional[int] = None
        for bdf in TOTALS:
            (root / bdf).mkdir()

    def _obey(self) -> None:
        for bdf, total in TOTALS.items():
            path = self.root_folder / bdf / "sriov_numvfs"
            if not path.exists():
                continue
            wanted = int(path.read_text())
            path.unlink()
            self.writes.append((bdf, wanted))
            if not (wanted and self.numvfs[bdf]) and wanted <= (total or 0):
                self.numvfs[bdf] = wanted
            if self.die_at is not None and len(self.writes) >= self.die_at:
                raise Killed

    def addresses(self) -> List[str]:
        functions = [vf for bdf in TOTALS for vf in self.virtual_functions(bdf)]
        return [*TOTALS, *functions]

    def folder(self, bdf: str) -> str:
        return str(self.root_folder / bdf)

    def totalvfs(self, bdf: str) -> Optional[int]:
        return TOTALS.get(bdf)

    def virtual_functions(self, bdf: str) -> List[str]:
        self._obey()
        return [f"{bdf[:8]}1{bdf[-1]}.{number}" for number in range(self.numvfs.get(bdf, 0))]

    def device(self, bdf: str) -> PciDevice:
        self._obey()
        physfn = next((card for card in TOTALS if bdf in self.virtual_functions(card)), None)
        return PciDevice(bdf, numvfs=self.numvfs.get(bdf) if TOTALS.get(bdf) else None, physfn=physfn)

    def usage(self, bdfs: Any) -> Dict[str, usage.Usage]:
        return {bdf: self.users.get(bdf, usage.Usage()) for bdf in bdfs}


class Functions(Machine):
    """One node with two cards and a device that can do no such thing."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="t"))
        self.kernel = Kernel(self.folder)
        self.pooled: set[str] = set()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(card=st.sampled_from(["0000:01:00.0", "0000:01:00.1"]), reasons=FLAGS, never=FLAGS, pooled=FLAGS)
    def use(self, card: str, reasons: bool, never: bool, pooled: bool) -> None:
        for vf in self.kernel.virtual_functions(card)[:1]:
            self.kernel.users[vf] = usage.Usage(("eth3 is up",) if reasons else (), ("a route",) if never else ())
            self.pooled = self.pooled | {vf} if pooled else self.pooled - {vf}

    @rule(card=st.sampled_from(["0000:01:00.0", "0000:01:00.1"]), number=st.integers(0, 2))
    def by_hand(self, card: str, number: int) -> None:
        if not any(self._is_used(vf, True) for vf in self.kernel.virtual_functions(card)):
            self.kernel.numvfs[card] = number

    @rule(
        wishes=st.lists(st.tuples(st.sampled_from(sorted(WAYS)), st.integers(0, 5)), min_size=1, max_size=3),
        force=FLAGS,
        die_after=st.one_of(st.none(), st.integers(1, 3)),
    )
    def wish(self, wishes: List[Tuple[str, int]], force: bool, die_after: Optional[int]) -> None:
        before = dict(self.kernel.numvfs)
        writes = len(self.kernel.writes)
        check = self._run(wishes, force, True)
        assert (self.kernel.numvfs, len(self.kernel.writes)) == (before, writes), "check mode changed something"
        if die_after is not None:
            self.kernel.die_at = writes + die_after
            self._run(wishes, force, False)
            self.kernel.die_at = None
        done = self._run(wishes, force, False)
        assert check is not None and done is not None
        if die_after is None:
            assert (check.changed, check.before, check.after) == (done.changed, done.before, done.after)
            assert self._rows(check) == self._rows(done)
        assert {name for name, _e in done.errors} <= {name for name, _e in check.errors}
        self._is_right(wishes, before, force, done)
        writes = len(self.kernel.writes)
        for order in (wishes, wishes[::-1]):
            again = self._run(order, force, False)
            assert again is not None and not again.changed
            assert len(again.errors) == len(done.errors)
            assert len(self.kernel.writes) == writes, "a run that follows writes again"

    def _run(self, wishes: List[Tuple[str, int]], force: bool, check: bool) -> Optional[Report]:
        functions = sriov.Functions(self.kernel, "/nowhere", ModelDeadline(4), lambda: self.pooled)
        try:
            return functions.run([sriov.Wish(bdf, number) for bdf, number in wishes], force, check)
        except Killed:
            return None

    @staticmethod
    def _rows(report: Report) -> List[Any]:
        rows: Any = report.results["devices"]
        return [(row["bdf"], row["before"], row["numvfs"], row["action"]) for row in rows]

    def _is_used(self, vf: str, force: bool) -> bool:
        used = self.kernel.users.get(vf, usage.Usage())
        return bool(used.never) or (not force and (bool(used.reasons) or vf in self.pooled))

    def _is_right(self, wishes: List[Tuple[str, int]], before: Dict[str, int], force: bool, done: Report) -> None:
        wanted: Dict[str, set[int]] = {}
        for way, number in wishes:
            wanted.setdefault(WAYS[way], set()).add(number)
        for bdf, was in before.items():
            now, want = self.kernel.numvfs[bdf], wanted.get(bdf, set())
            functions = [f"{bdf[:8]}1{bdf[-1]}.{number}" for number in range(was)]
            used = any(self._is_used(vf, force) for vf in functions)
            if len(want) != 1 or used or max(want) > (TOTALS[bdf] or 0):
                assert now == was or {now} == want, f"{bdf} went from {was} to {now}"
                assert now == was or not used, f"a function of {bdf} is in use"
            else:
                assert {now} == want
        if not done.errors:
            assert all({self.kernel.numvfs[bdf]} == want for bdf, want in wanted.items())


def test_sriov(request: pytest.FixtureRequest) -> None:
    drive(Functions, request, "plan", steps=10)
