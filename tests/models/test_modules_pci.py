# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pci_driver and pci_sriov, as processes over the sysfs of a software node, which acts on what is written there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.models.cluster import Cluster, Node
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.models.warm import Warm
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result
from ansible_collections.iofabric.sharing.tests.unit.software_node.conftest import poll
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
KILLS = st.one_of(st.none(), st.none(), st.floats(0.005, 0.3))
NATIVE = {"0000:01:00.0": "nvme", "0000:02:00.0": "nvme", "0000:02:00.1": "nvidia"}
CARD = "0000:03:00.0"
#: The modules of this kernel; the machine's own are none of a test's business.
MODPROBE = """#!/bin/sh
case "$*" in
*pci:*10DE*) echo nvidia ;;
*pci:*) echo nvme ;;
*nosuch*) echo "modprobe: FATAL: Module nosuch not found in directory /lib/modules" >&2; exit 1 ;;
esac
"""


class Pci(Machine):
    """The devices of one node: their drivers, and the functions of a card."""

    node: Node
    warm: Warm
    env: Dict[str, str]

    @initialize()
    def begin(self) -> None:
        self.node.mount("none", None)
        self.held: Optional[Tuple[str, str]] = None
        for name in ("vfio-pci", "nvme", "nvidia"):
            (self.node.sysfs / "bus/pci/drivers" / name).mkdir(exist_ok=True)
        for bdf, driver in NATIVE.items():
            if self.node.driver(bdf) != driver or self._override(bdf):
                self._give(bdf, driver)
        for bdf in self.node.own():
            self.node.ask("remove", bdf)
        self._write(f"bus/pci/devices/{CARD}/sriov_numvfs", "0")
        assert poll(lambda: self._numvfs() == 0)

    def _give(self, bdf: str, driver: str) -> None:
        now = self.node.driver(bdf)
        if now:
            self._write(f"bus/pci/drivers/{now}/unbind", bdf)
            assert poll(lambda: not self.node.driver(bdf))
        self._write(f"bus/pci/devices/{bdf}/driver_override", "\n")
        self._write("bus/pci/drivers_probe", bdf)
        assert poll(lambda: self.node.driver(bdf) == driver)

    def _write(self, path: str, text: str) -> None:
        (self.node.sysfs / path).write_text(text)

    def _override(self, bdf: str) -> str:
        text = (self.node.sysfs / "bus/pci/devices" / bdf / "driver_override").read_text().strip()
        return "" if text == "(null)" else text

    def _numvfs(self) -> int:
        return len(list((self.node.sysfs / "bus/pci/devices" / CARD).resolve().glob("virtfn*")))

    def _picture(self) -> Any:
        return {bdf: (self.node.driver(bdf), self._override(bdf)) for bdf in NATIVE}, self._numvfs(), self.node.pool()

    def _is_quiet(self) -> bool:
        """Whether the node has done what was written: a kernel does it within the write, which no kill can divide."""
        files = [self.node.sysfs / "bus/pci/drivers_probe", *self.node.sysfs.glob("bus/pci/drivers/*/unbind")]
        numvfs = (self.node.sysfs / "bus/pci/devices" / CARD / "sriov_numvfs").read_text().strip()
        quiet = not any(path.read_text() for path in files) and numvfs == str(self._numvfs())
        self.node.pool()  # what is being done holds the lock that this needs
        return quiet and numvfs == str(self._numvfs())

    # - what others do

    @rule(bdf=st.sampled_from(["0000:01:00.0", "0000:02:00.0"]), where=st.sampled_from([None, "/srv", "/"]))
    def mount(self, bdf: str, where: Optional[str]) -> None:
        self.node.mount(bdf, where if self.node.driver(bdf) == "nvme" else None)
        self.held = (bdf, where) if where and self.node.driver(bdf) == "nvme" else None

    @rule()
    def add_function(self) -> None:
        """A virtual function goes to the pool, by the module, which remembers it."""
        if self._numvfs():
            link = self.node.sysfs / "bus/pci/devices" / CARD / "virtfn0"
            self._run("smartio_device", {**self.node.args, "bdf": link.resolve().name, "state": "present"})

    @rule()
    def take_functions_back(self) -> None:
        for bdf in self.node.own():
            self._run("smartio_device", {**self.node.args, "bdf": bdf, "state": "absent"})

    # - runs

    @rule(
        devices=st.lists(
            st.sampled_from(["0000:01:00.0", "01:00.0", "1:", "02:00.0", "-s 02:", "-d 8086:f1a5", "77:00.0"]),
            min_size=1,
            max_size=3,
        ),
        driver=st.sampled_from(["vfio-pci", "nvme", "default", "default", "nosuch"]),
        group=st.sampled_from(["refuse", "include"]),
        force=FLAGS,
        kill=KILLS,
    )
    def driver(self, devices: List[str], driver: str, group: str, force: bool, kill: Optional[float]) -> None:
        places = {name: self.node.args[name] for name in ("sysfs", "proc")}
        args = {**places, "devices": devices, "driver": driver, "group": group, "force": force, "timeout": 20}
        self._cycle("pci_driver", args, force, kill)

    @rule(
        wishes=st.lists(
            st.tuples(st.sampled_from([CARD, "03:00.0", "1:"]), st.sampled_from([0, 1, 2, 3, 4])),
            min_size=1,
            max_size=2,
        ),
        force=FLAGS,
        kill=KILLS,
    )
    def functions(self, wishes: List[Tuple[str, int]], force: bool, kill: Optional[float]) -> None:
        args = {
            **{name: self.node.args[name] for name in ("sysfs", "proc")},
            "smartio_state_dir": self.node.args["state_dir"],
            "devices": [{"bdf": bdf, "numvfs": number} for bdf, number in wishes],
            "force": force and not self.node.own(),  # this kernel takes none away that is in the pool
            "timeout": 10,
        }
        pooled, before = bool(self.node.own()), self._numvfs()
        self._cycle("pci_sriov", args, force, kill)
        assert self._numvfs() == before or not pooled, "functions in the pool were taken away"

    def _run(self, module: str, args: Mapping[str, Any], check: bool = False) -> Result:
        result = self.warm.run(module, args, check, self.env)
        assert result is not None
        return result

    def _cycle(self, module: str, args: Mapping[str, Any], force: bool, kill: Optional[float]) -> None:
        with self.chapter(f"{module}: {dict(args)}, killed after: {kill}"):
            self._run_cycle(module, args, force, kill)

    def _run_cycle(self, module: str, args: Mapping[str, Any], force: bool, kill: Optional[float]) -> None:
        before = self._picture()
        check = self._run(module, args, check=True)
        assert self._picture() == before, "check mode changed something"
        if kill is not None:
            self.warm.run(module, args, env=self.env, kill_after=kill)
            assert poll(self._is_quiet) or self._is_quiet_once_whole()
        done = self._run(module, args)
        self._is_safe(before, force)
        if kill is None:
            assert (check.failed, check.changed) == (done.failed, done.changed), f"{check.text}\n{done.text}"
            for foreseen, row in zip(check.get("devices", ()), done.get("devices", ())):
                assert (foreseen["bdf"], foreseen["action"]) == (row["bdf"], row["action"])
        elif not check.failed:
            assert not done.failed, done.text
        now = self._picture()
        for turned in (args, {**args, "devices": args["devices"][::-1]}):
            again = self._run(module, turned)
            assert not again.changed, f"a second run: {again.text}"
            assert again.failed == done.failed
            assert self._picture() == now

    def _is_quiet_once_whole(self) -> bool:
        """A kill between truncating and writing left an empty attribute, which no kernel has: put back what it was."""
        path = self.node.sysfs / "bus/pci/devices" / CARD / "sriov_numvfs"
        assert path.read_text() == ""
        path.write_text(f"{self._numvfs()}\n")
        return poll(self._is_quiet)

    def _is_safe(self, before: Any, force: bool) -> None:
        if self.held is not None and (self.held[1] == "/" or not force):
            bdf, where = self.held
            assert self.node.driver(bdf) == before[0][bdf][0], f"{bdf} is mounted at {where} and was moved"


@pytest.mark.xdist_group("pci")
def test_pci(request: pytest.FixtureRequest, warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "modprobe").write_text(MODPROBE)
    (tmp_path / "modprobe").chmod(0o755)
    cluster = Cluster(tmp_path / "cluster")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    machine = type("Pci", (Pci,), {"node": cluster.nodes["lender"], "warm": warm, "env": env})
    try:
        drive(machine, request, "module", steps=4)
    finally:
        cluster.close()
