# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pci_driver as Ansible runs it, over a sysfs of files whose writes a thread acts on, as the kernel would."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._pci.conftest import FakeProc, FakeSysfs
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._pci.kernel import Kernel
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result, agree, run

ONE, TWO = "0000:81:00.0", "0000:82:00.0"
MODPROBE = """#!{python}
import os, sys
name, root = sys.argv[-1], {root!r}
if name.startswith("pci:"):
    print("nvme")
elif name != "vfio-pci":
    sys.exit(f"modprobe: FATAL: Module {{name}} not found in directory /lib/modules/6.1")
elif "-D" not in sys.argv:
    os.makedirs(f"{{root}}/bus/pci/drivers/vfio-pci")
"""


class Node:
    """A node with two drives, and a thread that is its kernel."""

    def __init__(self, root: Path) -> None:
        fake, proc = FakeSysfs(root / "sys"), FakeProc(root / "proc")
        self.kernel = Kernel(fake)
        self.kernel.load("nvme", "nvme")
        for number, bdf in enumerate((ONE, TWO)):
            self.kernel.add(bdf, driver="nvme", group=str(number))
        fake.write("bus/pci/drivers_probe")
        fake.write("bus/pci/drivers/nvme/unbind")
        (root / "bin").mkdir()
        program = root / "bin/modprobe"
        program.write_text(MODPROBE.format(python=sys.executable, root=str(fake.root)))
        program.chmod(0o755)
        self.env = {"PATH": f"{root / 'bin'}:/usr/bin:/bin"}
        self.args = {"sysfs": str(fake.root), "proc": proc.path}
        self._root = fake.root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _act(self) -> None:
        """What is written to a control file is acted on, and is then gone from it."""
        while not self._stop.is_set():
            for path in (self._root / "bus/pci/drivers").iterdir():
                (path / "unbind").touch()
            for path in (self._root / "bus/pci/drivers_probe", *self._root.glob("bus/pci/drivers/*/unbind")):
                bdf = path.read_text().strip()
                if bdf:
                    path.write_text("")
                    where = (
                        path if path.name == "drivers_probe" else f"{self._root}/bus/pci/devices/{bdf}/driver/unbind"
                    )
                    self.kernel.write(str(where), bdf)
            time.sleep(0.005)

    def run(self, driver: str, check: bool = False, **more: Any) -> Result:
        args: Mapping[str, Any] = {"devices": [ONE, TWO], "driver": driver, **more, **self.args}
        return run("pci_driver", args, check=check, env=self.env)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def rows(result: Result, *names: str) -> List[Any]:
    return [tuple(row[name] for name in names) for row in result["devices"]]


def case(node: Node, driver: str, changed: bool, **more: Any) -> Result:
    """Check mode, apply, apply again."""
    written = len(node.kernel.written)
    check = node.run(driver, check=True, **more)
    assert len(node.kernel.written) == written
    apply = node.run(driver, **more)
    assert not apply.failed, apply.text
    assert apply.changed == changed
    agree(check, apply)
    written = len(node.kernel.written)
    again = node.run(driver, **more)
    assert not again.changed and set(again.actions) == {"none"}
    assert len(node.kernel.written) == written
    return apply


def test_to_vfio_and_back(node: Node) -> None:
    there = case(node, "vfio-pci", changed=True)
    assert rows(there, "bdf", "before", "after", "action") == [
        (ONE, "nvme", "vfio-pci", "modprobe, unbind, override, probe"),
        (TWO, "nvme", "vfio-pci", "unbind, override, probe"),
    ]
    assert there["diff"]["after"] == f"{ONE}: vfio-pci, override vfio-pci\n{TWO}: vfio-pci, override vfio-pci\n"
    back = case(node, "default", changed=True)
    assert rows(back, "before", "after", "action") == [("vfio-pci", "nvme", "unbind, override, probe")] * 2
    case(node, "nvme", changed=False)


def test_failures_are_told_element_by_element(node: Node) -> None:
    result = node.run("no-driver", devices=[ONE, "99:00.0", 4860.0])
    assert result.failed and not result.changed
    assert [error["element"] for error in result["errors"]] == ["99:00.0", "4860.0", ONE]
    assert result.says("no PCI device 99:00.0", "quote it", "Module no-driver not found")


def test_what_hangs_does_not_keep_ansible(node: Node) -> None:
    """The child that is left behind holds nothing open that Ansible would wait for."""
    unbind = Path(node.args["sysfs"], "bus/pci/drivers/nvme/unbind")
    node.close()
    unbind.unlink()
    os.mkfifo(unbind)
    result = node.run("vfio-pci", devices=[ONE], timeout=2)
    assert result.failed and result.seconds < 30
    assert result.says(f"could not unbind nvme from {ONE} within", "process", "who has the device open")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"driver": "../x"}, "no driver's name"),
        ({"driver": "nvme", "timeout": 0}, "number of seconds"),
        ({"driver": "nvme", "devices": []}, "devices is empty"),
    ],
)
def test_arguments_that_make_no_sense(node: Node, arguments: Dict[str, Any], words: str) -> None:
    driver = arguments.pop("driver")
    assert words in node.run(driver, **arguments)["msg"]
