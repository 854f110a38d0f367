# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drivers of what xnvme_cplane serves: given before, and back afterwards; by the module, and by a unit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from pathlib import Path
from typing import Any, Dict, Iterator, List
from unittest import mock

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import launch
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import Lab, alive, wait_for
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.test_pci_driver import ONE, TWO, Node

WRONG = "0000:de:0d.0"
"""A controller that the stand-in of the reference tool cannot open."""
TRY_AGAIN = 75


class Host:
    """A lab whose drives are those of a kernel of files."""

    def __init__(self, lab: Lab, node: Node) -> None:
        self.lab, self.node = lab, node
        lab.args.update(node.args)
        lab.env.update(node.env)

    def cycle(self, action: str, *controllers: str, **more: Any) -> Dict[str, Any]:
        wanted = {"server": "homi", "controllers": list(controllers), "driver": "vfio-pci"}
        return self.lab.cycle(action, **wanted, **more)

    def stop(self, action: str = "stop, give_back") -> None:
        self.lab.cycle(action, state="stopped")

    def drivers(self, *bdfs: str) -> List[Any]:
        return [self.node.kernel.driver(bdf) for bdf in bdfs]

    @property
    def bound(self) -> Path:
        return self.lab.state / "7.bound.json"

    def kill(self) -> None:
        """End the server without a word."""
        pid = self.lab.served()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid))

    def use(self, bdf: str) -> Path:
        """Put a device to a use that sysfs tells."""
        path = Path(self.node.args["sysfs"], "bus/pci/devices", bdf, "sriov_numvfs")
        path.write_text("2\n")
        return path


@pytest.fixture
def host(tmp_path: Path, programs: Path) -> Iterator[Host]:
    for name in ("lab", "node"):
        (tmp_path / name).mkdir()
    lab, node = Lab(tmp_path / "lab", programs), Node(tmp_path / "node")
    yield Host(lab, node)
    lab.close()
    node.close()


def test_drives_are_bound_and_given_back(host: Host) -> None:
    host.cycle("bind, start", ONE, TWO)
    assert host.drivers(ONE, TWO) == ["vfio-pci"] * 2
    host.stop()
    assert host.drivers(ONE, TWO) == ["nvme"] * 2
    assert [host.node.kernel.override(bdf) for bdf in (ONE, TWO)] == ["", ""]
    assert not host.bound.exists()


def test_what_is_served_no_more_goes_back(host: Host) -> None:
    host.cycle("bind, start", ONE)
    host.cycle("stop, bind, start, give_back", TWO)
    assert host.drivers(ONE, TWO) == ["nvme", "vfio-pci"]
    assert list(json.loads(host.bound.read_text())) == [TWO]
    host.stop()
    assert host.drivers(ONE, TWO) == ["nvme", "nvme"]


def test_what_had_the_driver_keeps_it(host: Host) -> None:
    assert not host.node.run("vfio-pci", devices=[ONE]).failed
    host.cycle("bind, start", ONE, TWO)
    host.stop()
    assert host.drivers(ONE, TWO) == ["vfio-pci", "nvme"]
    host.cycle("start", ONE)
    host.stop("stop")
    assert host.drivers(ONE) == ["vfio-pci"]


def test_another_device_at_the_same_address_is_not_given_back(host: Host) -> None:
    host.cycle("bind, start", ONE)
    taken = json.loads(host.bound.read_text())
    taken[ONE]["inode"] += 1
    host.bound.write_text(json.dumps(taken))
    host.stop("stop")
    assert host.drivers(ONE) == ["vfio-pci"]


def test_a_server_killed_by_hand_leaves_its_drives_to_the_next_run(host: Host) -> None:
    host.cycle("bind, start", ONE)
    host.kill()
    host.cycle("start", ONE)
    host.kill()
    host.stop("give_back")
    assert host.drivers(ONE) == ["nvme"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_in_use_is_refused_whatever_is_forced(host: Host, force: bool) -> None:
    used = host.use(TWO)
    words = f"control plane 7: {TWO} is in use: 2 virtual functions are enabled; free it first"
    wanted = {"server": "homi", "driver": "vfio-pci", "force": force}
    refused = host.lab.refused(words, controllers=[ONE, TWO], **wanted)
    assert refused["msg"] == words and host.drivers(ONE, TWO) == ["nvme", "nvme"]
    several = [{"cplane_id": 7, "controllers": [ONE]}, {"cplane_id": 8, "controllers": [TWO]}]
    one_of_two = host.lab.bad("1 of 2 servers failed: control plane 8:", servers=several, **wanted)
    assert [row["alive"] for row in one_of_two["servers"]] == [True, False]
    used.write_text("0\n")


def test_a_use_that_came_later_keeps_it_from_going_back(host: Host) -> None:
    host.cycle("bind, start", ONE)
    host.kill()
    used = host.use(ONE)
    host.lab.refused(f"{ONE} is in use: 2 virtual functions are enabled; free it first", state="stopped")
    assert host.bound.exists() and host.drivers(ONE) == ["vfio-pci"]
    used.write_text("0\n")
    host.stop("give_back")


def test_a_server_that_does_not_start_leaves_no_drive_bound(host: Host) -> None:
    host.node.kernel.add(WRONG, driver="nvme", group="9")
    host.lab.bad("is not bound to vfio-pci", server="homi", controllers=[ONE, WRONG], driver="vfio-pci")
    assert host.drivers(ONE, WRONG) == ["nvme", "nvme"]
    assert not host.bound.exists()


def test_a_driver_that_does_not_take_one_is_taken_from_all(host: Host) -> None:
    host.node.kernel.fails.add((TWO, "vfio-pci"))
    host.lab.bad(f"{TWO}: vfio-pci did not take it", server="homi", controllers=[ONE, TWO], driver="vfio-pci")
    assert host.drivers(ONE, TWO) == ["nvme", "nvme"]
    assert not host.bound.exists()


def test_nothing_but_nvme_controllers_is_bound(host: Host) -> None:
    card = "0000:5e:00.0"
    host.node.kernel.add(card, driver="i40e", group="9", **{"class": "0x020000"})
    wanted = {"server": "homi", "driver": "vfio-pci"}
    host.lab.refused(f"{card} is no NVMe controller (its class is 020000)", controllers=[card], **wanted)
    host.lab.refused("0000:99:00.0: there is no such PCI device", controllers=["0000:99:00.0"], **wanted)
    assert host.drivers(card) == ["i40e"]


@pytest.mark.parametrize(
    ("driver", "server", "words"),
    [
        ("default", "homi", "driver: default is not a driver to serve with"),
        ("../x", "homi", "driver: '../x' is no driver's name; give one such as vfio-pci, or none"),
        ("uio_pci_generic", "native", "the native server needs vfio-pci, not uio_pci_generic"),
    ],
)
def test_drivers_that_nothing_is_served_with(host: Host, driver: str, server: str, words: str) -> None:
    host.lab.refused(words, controllers=[ONE], driver=driver, server=server)


def test_a_driver_that_is_set_later_needs_no_restart(host: Host) -> None:
    first = host.lab.cycle("start", server="homi", controllers=[ONE])
    after = host.cycle("configure", ONE)
    assert (after["pid"], host.drivers(ONE)) == (first["pid"], ["nvme"])
    assert json.loads((host.lab.state / "7.json").read_text())["driver"] == "vfio-pci"


# -- by a start of a unit ---------------------------------------------------------------------------------------------


class Start:
    """What the unit does before it serves."""

    def __init__(self, host: Host) -> None:
        self.host, self.config = host, host.lab.home / "sharing.json"
        host.lab.state.mkdir(mode=0o755)

    def record(self, *controllers: str, driver: str = "vfio-pci") -> None:
        entry = {"cplane_id": 7, "controllers": controllers, "driver": driver, "homi": str(self.host.lab.homi)}
        entry.update(socket_dir=str(self.host.lab.sockets), state_dir=str(self.host.lab.state))
        self.config.write_text(json.dumps({"format": 1, "cplanes": [entry], "places": self.host.node.args}))

    def bind(self, status: int) -> str:
        """Its exit status must be this; what it said."""
        said = io.StringIO()
        with mock.patch.dict(os.environ, self.host.lab.env), contextlib.redirect_stderr(said):
            assert launch.bind(["7", "--config", str(self.config)]) == status
        return said.getvalue()


@pytest.fixture
def start(host: Host) -> Start:
    return Start(host)


def test_a_unit_binds_what_is_recorded(start: Start) -> None:
    start.record(ONE)
    assert (start.bind(0), start.host.drivers(ONE, TWO)) == ("", ["vfio-pci", "nvme"])
    written = len(start.host.node.kernel.written)
    assert start.bind(0) == ""
    assert len(start.host.node.kernel.written) == written
    # The module gives back what the unit took.
    start.host.stop("give_back")
    assert start.host.drivers(ONE) == ["nvme"]


def test_a_unit_that_must_not_bind_tries_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PATIENCE", 0.0)
    start.record(ONE)
    used = start.host.use(ONE)
    for _turn in range(2):
        assert start.bind(TRY_AGAIN) == f"{ONE} is in use: 2 virtual functions are enabled; free it first\n"
    assert start.host.drivers(ONE) == ["nvme"]
    used.write_text("0\n")
    start.bind(0)
    assert start.host.drivers(ONE) == ["vfio-pci"]


def test_a_unit_leaves_what_is_not_its_own_to_the_server(start: Start) -> None:
    """That nothing is recorded is for the server to say, whose exit status ends the unit for good."""
    assert start.bind(0) == ""
    start.record(ONE, driver="none")
    assert (start.bind(0), start.host.drivers(ONE)) == ("", ["nvme"])
    start.record(ONE)
    start.host.lab.foreign(ONE)
    assert "is served already" in start.bind(TRY_AGAIN)
    assert start.host.drivers(ONE) == ["nvme"]
