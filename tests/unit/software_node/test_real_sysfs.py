# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's real sysfs, played by a tree whose control files do what the kernel's do."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from software_node.address import parse_bdf
from software_node.config import read_config
from software_node.errors import ConfigError, NodeError
from software_node.real_sysfs import RealSysfs, complete

BDF = parse_bdf("0000:06:00.0")


class FakeKernel:
    """Acts on what is written to the control files, a little later."""

    def __init__(self, root: Path) -> None:
        self.device = root / "devices/pci0000:06/0000:06:00.0"
        self.driver = root / "bus/pci/drivers/nvme"
        self.probe = root / "bus/pci/drivers_probe"
        for folder in (self.device, self.driver, root / "bus/pci/devices"):
            folder.mkdir(parents=True)
        for path in (self.driver / "unbind", self.probe):
            path.write_text("")
        for name, value in (("vendor", "0x144d"), ("device", "0xa808"), ("class", "0x010802")):
            (self.device / name).write_text(value + "\n")
        for name, value in (("subsystem_vendor", "0x144d"), ("subsystem_device", "0xa801")):
            (self.device / name).write_text(value + "\n")
        (self.device / "nvme/nvme3").mkdir(parents=True)
        (self.device / "nvme/nvme3/serial").write_text("S4EV0001            \n")
        (self.device / "nvme/nvme3/model").write_text("Samsung SSD\n")
        (root / "bus/pci/devices/0000:06:00.0").symlink_to(self.device)
        (self.device / "driver").symlink_to(self.driver)
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            if (self.driver / "unbind").read_text():
                (self.driver / "unbind").write_text("")
                (self.device / "driver").unlink()
            if self.probe.read_text():
                self.probe.write_text("")
                (self.device / "driver").symlink_to(self.driver)
            time.sleep(0.02)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    kernel = FakeKernel(tmp_path)
    thread = threading.Thread(target=kernel.run)
    thread.start()
    yield tmp_path
    kernel.stop.set()
    thread.join()


def test_unbind_and_bind(root: Path) -> None:
    real = RealSysfs(str(root))
    assert real.driver(BDF) == "nvme"
    real.unbind(BDF)
    assert real.driver(BDF) == ""
    real.unbind(BDF)
    real.bind(BDF)
    assert real.driver(BDF) == "nvme"


def test_a_device_is_completed_from_sysfs(root: Path) -> None:
    data = {"name": "one", "node_id": 8, "sysfs": str(root), "devices": [{"bdf": "06:00.0", "slot": "7"}]}
    device = read_config(data, complete).devices[0]
    assert (device.vendor_id, device.device_id, device.subsystem_device_id) == (0x144D, 0xA808, 0xA801)
    assert (device.serial, device.model, device.driver, device.slot) == ("S4EV0001", "Samsung SSD", "nvme", "7")


def test_a_device_that_is_not_there(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"07:00\.0"):
        complete(str(root), {"bdf": "07:00.0"})
    with pytest.raises(ConfigError, match="bdf"):
        complete(str(root), {})


def test_a_kernel_that_refuses(tmp_path: Path) -> None:
    driver = tmp_path / "bus/pci/drivers/nvme"
    (driver / "unbind").mkdir(parents=True)  # writing to it fails
    (tmp_path / "bus/pci/devices/0000:06:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:06:00.0/driver").symlink_to(driver)
    with pytest.raises(NodeError) as caught:
        RealSysfs(str(tmp_path)).unbind(BDF)
    assert caught.value.number == errno.EISDIR


def test_a_node_with_the_real_sysfs(root: Path, new_cluster: Callable[..., Any]) -> None:
    lender = {"name": "lender", "node_id": 8, "sysfs": str(root), "devices": [{"bdf": "06:00.0"}]}
    cluster = new_cluster([lender, {"name": "borrower", "node_id": 4}])
    driver = root / "devices/pci0000:06/0000:06:00.0/driver"
    assert not (cluster["lender"].sysfs / "bus/pci/devices/0000:06:00.0").exists()
    cluster["lender"].ok("connect", "4")
    cluster["lender"].ok("add-filter", "-d", "144d:")
    assert cluster["lender"].status("available", "06:00.0") == errno.ECANCELED
    assert driver.is_symlink()
    cluster["lender"].ok("available", "--force", "06:00.0")
    assert not driver.is_symlink()
    # Its own device is the real one, before and after.
    cluster["lender"].ok("borrow", "80600")
    assert driver.is_symlink()
    assert cluster["lender"].ok("get-vdev", "80600").strip() == "0000:06:00.0"
    assert "Kernel driver in use: nvme" in cluster["lender"].ok("lspci", "80600", "-k")
    assert not (cluster["lender"].sysfs / "bus/pci/devices/0000:06:00.0").exists()
    cluster["lender"].ok("return", "80600")
    assert not driver.is_symlink()
    text = cluster["borrower"].ok("borrow", "80600")
    assert "Non-Volatile memory controller Samsung Electronics Co Ltd Device a808\n" in text
    serial = cluster["borrower"].sysfs / "class/nvme/nvme0/serial"
    assert serial.read_text().strip() == "S4EV0001"
    cluster["borrower"].ok("return", "80600")
    cluster["lender"].ok("unavailable", "06:00.0")
    assert driver.is_symlink()
