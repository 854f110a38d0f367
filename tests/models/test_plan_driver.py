# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers: devices, their IOMMU groups and users, a kernel that may fail, and runs that end in the middle."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import bounded, usage
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.driver import DEFAULT
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Report, SharingError
from ansible_collections.iofabric.sharing.tests.models.fabric import Killed
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._pci.test_driver import PORT, A, B, C, Lab
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
DRIVERS = st.sampled_from(["vfio-pci", "nvme", "uio_pci_generic", DEFAULT, DEFAULT, "nosuch"])
#: What may be written, and which devices that is.
WAYS: Dict[str, Tuple[str, ...]] = {
    A: (A,),
    "81:00.0": (A,),
    "81:": (A,),
    B: (B,),
    "82:00.0": (B,),
    C: (C,),
    "-s 82:": (B, C),
    "-d ::0108": (A, B, C),
    "77:00.0": (),
}


class Drivers(Machine):
    """A node with three drives, two of them in one group."""

    @initialize(unloaded=st.booleans())
    def begin(self, unloaded: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="t"))
        self.patch = pytest.MonkeyPatch()
        self.lab = Lab(self.folder, self.patch).fill()
        self.kernel = self.lab.kernel
        self.kernel.modules["uio_pci_generic"] = ("uio_pci_generic",)
        if not unloaded:
            self.kernel.load("vfio-pci", "vfio-pci")
        self.used: Dict[str, usage.Usage] = {}
        self.die_at: Optional[int] = None
        write = bounded.write

        def dying(path: str, text: str, seconds: float) -> bounded.Ended:
            if self.die_at is not None and len(self.kernel.written) >= self.die_at:
                raise Killed
            return write(path, text, seconds)

        self.patch.setattr(bounded, "write", dying)
        self.patch.setattr(
            usage, "observe", lambda bdfs, *_rest: {bdf: self.used.get(bdf, usage.Usage()) for bdf in bdfs}
        )

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "patch"):
            self.patch.undo()
            shutil.rmtree(self.folder, ignore_errors=True)

    # - what others do

    @rule(bdf=st.sampled_from([A, B, C]), driver=st.sampled_from(["", "nvme", "vfio-pci"]), override=st.booleans())
    def by_hand(self, bdf: str, driver: str, override: bool) -> None:
        device = self.kernel.root / "bus/pci/devices" / bdf
        if self.kernel.driver(bdf):
            self.kernel.write(str(device / "driver/unbind"), bdf)
        self.kernel.write(str(device / "driver_override"), driver)
        self.kernel.write(str(self.kernel.root / "bus/pci/drivers_probe"), bdf)
        if not override:
            self.kernel.write(str(device / "driver_override"), "")

    @rule(bdf=st.sampled_from([A, B, C]), reasons=st.sampled_from([(), ("mounted at /srv",)]), never=FLAGS)
    def use(self, bdf: str, reasons: Tuple[str, ...], never: bool) -> None:
        self.used[bdf] = usage.Usage(reasons, ("it holds /",) if never else ())

    # - runs

    @rule(
        ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=3),
        driver=DRIVERS,
        group=st.sampled_from(["refuse", "include"]),
        force=FLAGS,
        fails=st.sampled_from([None, None, None, (A, "vfio-pci"), (C, "vfio-pci"), (B, "nvme")]),
        die_after=st.one_of(st.none(), st.integers(0, 6)),
    )
    def give(
        self,
        ways: List[str],
        driver: str,
        group: str,
        force: bool,
        fails: Optional[Tuple[str, str]],
        die_after: Optional[int],
    ) -> None:
        before = self._picture()
        check = self._run(ways, driver, True, group=group, force=force)
        assert self._picture() == before, "check mode changed something"
        trouble = fails is not None or die_after is not None
        if trouble:
            self.kernel.fails = {fails} if fails else set()
            self.die_at = None if die_after is None else len(self.kernel.written) + die_after
            self._run(ways, driver, False, group=group, force=force)
            self.kernel.fails, self.die_at = set(), None
        self._is_safe(ways, before, group, force)
        done = self._run(ways, driver, False, group=group, force=force)
        assert check is not None and done is not None
        self._is_safe(ways, before, group, force)
        if not trouble and not isinstance(done, SharingError) and not isinstance(check, SharingError):
            assert check.changed == done.changed
            assert (check.before, check.after) == (done.before, done.after)
            assert self._actions(check) == self._actions(done)
        if isinstance(check, SharingError) or isinstance(done, SharingError):
            assert isinstance(done, SharingError) and isinstance(check, SharingError)
            return
        assert {name for name, _e in done.errors} <= {name for name, _e in check.errors}, done.errors
        if not done.errors:
            self._is_fulfilled(ways, driver)
        self._settles(ways, driver, group, force, done)

    def _run(self, ways: List[str], driver: str, check: bool, **more: Any) -> Any:
        try:
            return self.lab.run(list(ways), driver, check, **more)
        except SharingError as error:
            return error
        except Killed:
            return None

    @staticmethod
    def _actions(report: Report) -> List[Any]:
        rows: Any = report.results["devices"]
        return [(row["bdf"], row["action"]) for row in rows]

    def _picture(self) -> Dict[str, Tuple[Optional[str], str]]:
        return {bdf: (self.kernel.driver(bdf), self.kernel.override(bdf)) for bdf in (A, B, C, PORT)}

    # - what must hold

    def _is_safe(self, ways: List[str], before: Dict[str, Any], group: str, force: bool) -> None:
        named: Set[str] = {bdf for way in ways for bdf in WAYS[way]}
        if group == "include" and named & {B, C}:
            named |= {B, C}
        for bdf, now in self._picture().items():
            used = self.used.get(bdf, usage.Usage())
            if now == before[bdf]:
                continue
            assert bdf in named, f"{bdf} was not asked for"
            # An override that the driver does not need, or no more, may go while it works.
            assert now[0] == before[bdf][0] or not used.never, f"{bdf} must never be touched"
            assert now[0] == before[bdf][0] or force or not used.reasons, f"{bdf} is in use and was moved"

    def _is_fulfilled(self, ways: List[str], driver: str) -> None:
        for bdf in {bdf for way in ways for bdf in WAYS[way]}:
            found, override = self._picture()[bdf]
            if driver == DEFAULT:
                assert override == "" and found is not None
            else:
                assert found == driver

    def _settles(self, ways: List[str], driver: str, group: str, force: bool, first: Report) -> None:
        before, written = self._picture(), len(self.kernel.written)
        again = self._run(ways, driver, False, group=group, force=force)
        assert not again.changed
        assert [name for name, _e in again.errors] == [name for name, _e in first.errors]
        assert (self._picture(), len(self.kernel.written)) == (before, written)
        turned = self._run(ways[::-1], driver, False, group=group, force=force)
        assert (self._picture(), len(self.kernel.written)) == (before, written), "another order led elsewhere"
        assert len(turned.errors) == len(again.errors)


def test_driver(request: pytest.FixtureRequest) -> None:
    drive(Drivers, request, "plan", steps=8)
