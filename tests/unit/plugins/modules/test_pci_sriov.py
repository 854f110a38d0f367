# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pci_sriov against a small sysfs, behind which a thread does what the kernel would."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result, agree, run
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub import fakefs
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, nic, nvme

MODULE = "pci_sriov"
CARD, OTHER, DRIVE = "0000:5e:00.0", "0000:5e:00.1", "0000:81:00.0"
TOTAL = 4


class Kernel:
    """Obeys ``sriov_numvfs`` of the cards of a node, from none to some and back, and notes what was written."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made: Dict[str, List[Dict[str, Any]]] = {CARD: [], OTHER: []}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written: List[str] = []
        self.stubborn = False
        for bdf in self._made:
            fakefs.write(self._file(bdf, "sriov_totalvfs"), f"{TOTAL}\n")
            fakefs.write(self._file(bdf, "sriov_numvfs"), "0\n")
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _file(self, bdf: str, name: str) -> str:
        return os.path.join(fakefs.device_path(str(self._node.sysfs), bdf), name)

    def _run(self) -> None:
        while not self._end.wait(0.01):
            for bdf, made in self._made.items():
                text = Path(self._file(bdf, "sriov_numvfs")).read_text()
                if text and text != f"{len(made)}\n":
                    self.written.append(f"{bdf} {text}")
                    self._obey(bdf, made, int(text))

    def _obey(self, bdf: str, made: List[Dict[str, Any]], wanted: int) -> None:
        if not self.stubborn and not (made and wanted):
            while made:
                self._remove(bdf, made.pop())
            made += [self._add(bdf, number) for number in range(wanted)]
        fakefs.write(self._file(bdf, "sriov_numvfs"), f"{len(made)}\n")

    def _add(self, bdf: str, number: int) -> Dict[str, Any]:
        function = nic(f"0000:5e:0{2 if bdf == CARD else 3}.{number}", 10 * int(bdf[-1]) + 10 + number)
        sysfs = str(self._node.sysfs)
        fakefs.add_device(sysfs, str(self._node.dev), function)
        path = fakefs.device_path(sysfs, function["bdf"])
        fakefs.link(os.path.join(path, "physfn"), fakefs.device_path(sysfs, bdf))
        fakefs.link(self._file(bdf, f"virtfn{number}"), path)
        return function

    def _remove(self, bdf: str, function: Dict[str, Any]) -> None:
        fakefs.unlink(self._file(bdf, f"virtfn{function['bdf'][-1]}"))
        fakefs.remove_device(str(self._node.sysfs), str(self._node.dev), function)


@pytest.fixture(name="node")
def _node(fabric: Fabric) -> Node:
    return fabric.node(4, [nic(CARD, 0), nic(OTHER, 1), nvme(DRIVE, 0)])


@pytest.fixture(name="kernel")
def _kernel(node: Node) -> Iterator[Kernel]:
    kernel = Kernel(node)
    yield kernel
    kernel.stop()


def places(node: Node) -> Dict[str, Any]:
    own = {"sysfs": str(node.sysfs), "proc": str(node.proc), "smartio_state_dir": str(node.state_dir)}
    return {**own, "timeout": 10}


def sriov(node: Node, check: bool = False, **args: Any) -> Result:
    return run(MODULE, {**places(node), **args}, check=check)


def good(node: Node, kernel: Optional[Kernel] = None, **args: Any) -> Result:
    """Check mode, a run that it predicted, and another one that writes nothing."""
    before = list(kernel.written) if kernel else []
    check = sriov(node, check=True, **args)
    assert not check.failed, check.text
    assert not kernel or kernel.written == before
    result = sriov(node, **args)
    assert not result.failed, result.text
    agree(check, result)
    written = list(kernel.written) if kernel else []
    again = sriov(node, **args)
    assert not again.failed and not again.changed, again.text
    assert not kernel or kernel.written == written
    return result


def bad(node: Node, **args: Any) -> Result:
    result = sriov(node, **args)
    assert result.failed, result.text
    return result


def test_from_none_to_some(node: Node, kernel: Kernel) -> None:
    result = good(node, kernel, bdf="5e:00.0", numvfs=2)
    assert result.changed
    assert result["devices"] == [
        {
            "bdf": CARD,
            "before": 0,
            "numvfs": 2,
            "totalvfs": TOTAL,
            "vfs": ["0000:5e:02.0", "0000:5e:02.1"],
            "action": "enable",
        }
    ]
    assert result["diff"] == {
        "before": f"{CARD}: 0 virtual functions\n",
        "after": f"{CARD}: 2 virtual functions\n",
    }
    assert kernel.written == [f"{CARD} 2"]


def test_what_only_the_kernel_knows_is_not_predicted(node: Node, kernel: Kernel) -> None:
    (device,) = sriov(node, check=True, bdf=CARD, numvfs=2)["devices"]
    assert (device["numvfs"], device["vfs"]) == (2, None)


def test_over_none_to_another_number(node: Node, kernel: Kernel) -> None:
    good(node, kernel, bdf=CARD, numvfs=2)
    result = good(node, kernel, bdf=CARD, numvfs=3)
    (device,) = result["devices"]
    assert (device["before"], device["numvfs"], device["action"]) == (2, 3, "disable, enable")
    assert kernel.written == [f"{CARD} 2", f"{CARD} 0", f"{CARD} 3"]


def test_back_to_none(node: Node, kernel: Kernel) -> None:
    good(node, kernel, bdf=CARD, numvfs=1)
    (device,) = good(node, kernel, bdf=CARD, numvfs=0)["devices"]
    assert (device["vfs"], device["action"]) == ([], "disable")


def test_several_devices(node: Node, kernel: Kernel) -> None:
    result = good(node, kernel, devices=[{"bdf": CARD, "numvfs": 1}, {"bdf": OTHER, "numvfs": 2}])
    assert [len(device["vfs"]) for device in result["devices"]] == [1, 2]


def test_one_that_fails_leaves_the_others_done(node: Node, kernel: Kernel) -> None:
    wanted = [{"bdf": DRIVE, "numvfs": 2}, {"bdf": CARD, "numvfs": 2}, {"bdf": OTHER, "numvfs": TOTAL + 1}]
    result = bad(node, devices=[*wanted, {"bdf": "99:00.0", "numvfs": 1}])
    assert result.changed
    assert [device["action"] for device in result["devices"]] == ["none", "enable", "none"]
    assert [error["element"] for error in result["errors"]] == ["99:00.0", DRIVE, OTHER]
    texts = {error["element"]: error["msg"] for error in result["errors"]}
    assert "has no SR-IOV capability" in texts[DRIVE]
    assert f"can have {TOTAL} virtual functions at most, not {TOTAL + 1}" in texts[OTHER]
    assert result["errors"][0]["not_found"]


def test_none_is_right_for_a_device_that_can_have_none(node: Node) -> None:
    assert not good(node, bdf=DRIVE, numvfs=0).changed


def test_a_virtual_function_has_none_of_its_own(node: Node, kernel: Kernel) -> None:
    good(node, kernel, bdf=CARD, numvfs=1)
    assert bad(node, bdf="0000:5e:02.0", numvfs=1).says("is itself a virtual function, of " + CARD)


@pytest.mark.parametrize("numvfs", [0, 3])
def test_in_use(node: Node, kernel: Kernel, numvfs: int) -> None:
    """Nothing is written, and the reason names the virtual function."""
    good(node, kernel, bdf=CARD, numvfs=2)
    node.interface_up("eth11")
    written = list(kernel.written)
    check, result = sriov(node, check=True, bdf=CARD, numvfs=numvfs), bad(node, bdf=CARD, numvfs=numvfs)
    assert check["msg"] == result["msg"]
    assert "0000:5e:02.1: eth11 is up" in result["msg"]
    assert "force: true" in result["msg"]
    assert result["errors"][0]["in_use"] == ["0000:5e:02.1: eth11 is up"]
    assert (result.changed, kernel.written) == (False, written)
    assert not sriov(node, bdf=CARD, numvfs=2).changed
    assert good(node, kernel, bdf=CARD, numvfs=numvfs, force=True).changed


def test_never_even_with_force(node: Node, kernel: Kernel) -> None:
    good(node, kernel, bdf=CARD, numvfs=1)
    node.route("eth10")
    assert bad(node, bdf=CARD, numvfs=0, force=True).says("eth10 carries the default route", "even with force")
    assert kernel.written == [f"{CARD} 1"]


def test_in_the_pool(node: Node, kernel: Kernel, fabric: Fabric) -> None:
    """A lender cannot see who borrowed it, and its driver is gone: only the ledger tells."""
    good(node, kernel, bdf=CARD, numvfs=1)
    function = {**nic("0000:5e:02.0", 10)}
    with fabric.edit() as state:
        state["nodes"]["4"]["hardware"].append(function)
    assert not run("smartio_device", {**node.args, "bdf": "5e:02.0"}).failed
    assert bad(node, bdf=CARD, numvfs=2).says("0000:5e:02.0: is in the SmartIO pool", "force")
    assert sriov(node, check=True, bdf=CARD, numvfs=0, taken_back=["0000:5e:02.0"]).changed
    assert sriov(node, bdf=CARD, numvfs=2, force=True).changed


def test_virtual_functions_that_do_not_come(node: Node, kernel: Kernel) -> None:
    kernel.stubborn = True
    result = bad(node, bdf=CARD, numvfs=2, timeout=0.3)
    assert result.says("was asked for 2 virtual functions, but 0 are there after 0.3 seconds")
    (device,) = result["devices"]
    assert (device["numvfs"], device["vfs"], device["action"]) == (0, [], "none")


def test_a_write_that_the_kernel_refuses(node: Node) -> None:
    folder = Path(fakefs.device_path(str(node.sysfs), CARD))
    (folder / "sriov_totalvfs").write_text("4\n")
    (folder / "sriov_numvfs").symlink_to("/dev/full")
    assert bad(node, bdf=CARD, numvfs=1).says(f"{CARD} cannot have 1 virtual function: ENOSPC from sriov_numvfs")
    (folder / "sriov_numvfs").unlink()
    (folder / "sriov_numvfs").mkdir()
    assert bad(node, bdf=CARD, numvfs=1).says("could not read", "sriov_numvfs: is a directory")


def test_pending_where_there_is_no_sysfs_yet(node: Node) -> None:
    bare = {**places(node), "sysfs": str(node.folder / "not-yet")}
    wanted = {"devices": [{"bdf": "5e:00.0", "numvfs": 2}, {"bdf": "5e:00.1", "numvfs": 0}]}
    result = run(MODULE, {**bare, **wanted}, check=True)
    assert not result.failed, result.text
    assert (result.changed, result["pending"]) == (True, True)
    assert [device["action"] for device in result["devices"]] == ["pending", "none"]
    assert run(MODULE, {**bare, **wanted}).failed


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"bdf": CARD},
        {"numvfs": 1},
        {"bdf": CARD, "numvfs": -1},
        {"bdf": CARD, "numvfs": 65536},
        {"bdf": 5000.0, "numvfs": 1},
        {"bdf": CARD, "devices": [{"bdf": CARD, "numvfs": 1}]},
        {"devices": [{"bdf": CARD, "numvfs": 1}, {"bdf": "5e:00.0", "numvfs": 2}]},
        {"bdf": CARD, "numvfs": 1, "timeout": -1},
    ],
)
def test_refused_arguments(node: Node, kernel: Kernel, wanted: Dict[str, Any]) -> None:
    result = bad(node, **wanted)
    assert result["msg"]
    assert kernel.written == []
