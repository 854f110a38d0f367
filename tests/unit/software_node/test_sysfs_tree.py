# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small sysfs: laid out like the kernel's, and as it was after everything is undone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

import pytest
from software_node.address import parse_bdf
from software_node.config import Device, read_device
from software_node.sysfs_tree import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    result = SysfsTree(str(tmp_path / "sysfs"), str(tmp_path / "dev"))
    result.create()
    return result


def device(data: Dict[str, str], **more: Any) -> Device:
    return read_device({"bdf": "06:00.0", **data, **more}, "node")


def snapshot(root: str) -> List[str]:
    return sorted(os.path.join(place, name) for place, folders, files in os.walk(root) for name in folders + files)


def text(tree: SysfsTree, path: str) -> str:
    return Path(tree.root, path).read_text().rstrip("\n")


def test_a_drive(tree: SysfsTree, models: Any) -> None:
    tree.add(device(models["nvme"], serial="S123", model="Fast Drive", size=1 << 20))
    tree.bind(parse_bdf("06:00.0"))
    here = "bus/pci/devices/0000:06:00.0"
    assert os.readlink(os.path.join(tree.root, here)) == "../../../devices/pci0000:06/0000:06:00.0"
    assert os.readlink(os.path.join(tree.root, here, "driver")) == "../../../bus/pci/drivers/nvme"
    assert text(tree, here + "/vendor") == "0x8086"
    assert text(tree, here + "/class") == "0x010802"
    assert "DRIVER=nvme" in text(tree, here + "/uevent")
    assert text(tree, here + "/nvme/nvme0/serial") == "S123".ljust(20)
    assert text(tree, here + "/nvme/nvme0/state") == "live"
    assert text(tree, "class/block/nvme0n1/size") == "2048"
    assert text(tree, "class/block/nvme0n1p1/partition") == "1"
    assert os.listdir(os.path.join(tree.root, "class/block/nvme0n1/holders")) == []
    major = int(text(tree, "class/block/nvme0n1/dev").split(":")[0])
    assert major >= 4000
    assert Path(tree.root, "dev/block", text(tree, "class/block/nvme0n1p1/dev")).is_dir()
    assert sorted(os.listdir(tree.dev)) == ["disk", "nvme0", "nvme0n1", "nvme0n1p1"]
    by_id = os.path.join(tree.dev, "disk/by-id/nvme-Fast_Drive_S123")
    assert os.path.realpath(by_id) == os.path.realpath(os.path.join(tree.dev, "nvme0n1"))


def test_every_link_leads_somewhere(tree: SysfsTree, models: Any) -> None:
    for number, model in enumerate(models.values()):
        one = device(model, bdf=f"0{number}:00.0", iommu_group=number)
        tree.add(one)
        tree.bind(one.bdf)
    roots = [tree.root, tree.dev]
    links = [path for root in roots for path in snapshot(root) if os.path.islink(path)]
    assert len(links) > 20
    assert [path for path in links if not os.path.exists(path)] == []


def test_a_network_interface_and_a_gpu(tree: SysfsTree, models: Any) -> None:
    tree.add(device(models["net"]))
    tree.bind(parse_bdf("06:00.0"))
    tree.add(device(models["quadro"], bdf="09:00.0"))
    tree.bind(parse_bdf("09:00.0"))
    assert text(tree, "class/net/eth100/operstate") == "down"
    assert text(tree, "class/net/eth100/flags") == "0x1002"
    assert tree.function(parse_bdf("09:00.0")) == "card0"
    assert Path(tree.root, "class/drm/card0/device/vendor").read_text() == "0x10de\n"


@pytest.mark.parametrize("model", ["nvme", "net", "quadro"])
def test_unbind_and_remove_leave_nothing(tree: SysfsTree, models: Any, model: str) -> None:
    bdf = parse_bdf("06:00.0")
    empty = snapshot(tree.root)
    tree.add(device(models[model]))
    unbound = snapshot(tree.root)
    tree.bind(bdf)
    tree.unbind(bdf)
    left = [path for path in snapshot(tree.root) if path not in unbound]
    assert all("/bus/pci/drivers/" in path for path in left)
    assert tree.driver(bdf) == ""
    tree.bind(bdf)
    tree.remove(bdf)
    assert [path for path in snapshot(tree.root) if path not in empty + left] == []
    files = [path for path in snapshot(tree.dev) if not os.path.isdir(path) or os.path.islink(path)]
    assert files == []


def test_numbers_of_drives_are_the_lowest_that_are_free(tree: SysfsTree, models: Any) -> None:
    drives = [device(models["nvme"], bdf=f"0{number}:00.0", serial=f"S{number}") for number in range(3)]
    for drive in drives:
        tree.add(drive)
        tree.bind(drive.bdf)
    assert [tree.function(drive.bdf) for drive in drives] == ["nvme0", "nvme1", "nvme2"]
    tree.unbind(drives[1].bdf)
    tree.bind(drives[1].bdf)
    assert tree.function(drives[1].bdf) == "nvme1"


def test_virtual_functions(tree: SysfsTree, models: Any) -> None:
    tree.add(device(models["net"], sriov={"totalvfs": 4}))
    tree.add(device(models["net"], bdf="06:00.1", physfn="0000:06:00.0"))
    second = device(models["net"], bdf="06:00.2", physfn="0000:06:00.0")
    tree.add(second)
    physical = Path(tree.root, "bus/pci/devices/0000:06:00.0")
    assert (physical / "sriov_totalvfs").read_text() == "4\n"
    assert (physical / "sriov_numvfs").read_text() == "2\n"
    assert os.path.basename(os.path.realpath(physical / "virtfn1")) == "0000:06:00.2"
    virtual = Path(tree.root, "bus/pci/devices/0000:06:00.2/physfn")
    assert os.path.basename(os.path.realpath(virtual)) == "0000:06:00.0"
    tree.remove(second.bdf)
    assert (physical / "sriov_numvfs").read_text() == "1\n"
    assert not (physical / "virtfn1").is_symlink()
    assert tree.wanted_vfs() == {}
    (physical / "sriov_numvfs").write_text("0")
    assert tree.wanted_vfs() == {parse_bdf("06:00.0"): (1, 0)}


def test_a_name_that_is_no_file_name(tree: SysfsTree, models: Any) -> None:
    tree.add(device(models["nvme"], serial="../../x y", model="A/B"))
    tree.bind(parse_bdf("06:00.0"))
    assert sorted(os.listdir(os.path.join(tree.dev, "disk/by-id"))) == [
        "nvme-A_B_.._.._x_y",
        "nvme-A_B_.._.._x_y-part1",
    ]


def test_a_driver_that_is_overridden(tree: SysfsTree, models: Any) -> None:
    bdf = parse_bdf("06:00.0")
    tree.add(device(models["nvme"]))
    tree.bind(bdf)
    root = Path(tree.root)
    (root / "bus/pci/drivers/nvme/unbind").write_text("0000:06:00.0")
    tree.obey()
    assert tree.driver(bdf) == ""
    assert (root / "bus/pci/drivers/nvme/unbind").read_text() == ""
    override = root / "bus/pci/devices/0000:06:00.0/driver_override"
    override.write_text("vfio-pci\n")
    (root / "bus/pci/drivers/nvme/bind").write_text("0000:06:00.0")
    tree.obey()
    assert tree.driver(bdf) == ""  # not its driver at this moment
    (root / "bus/pci/drivers_probe").write_text("0000:06:00.0\n")
    tree.obey()
    assert (tree.driver(bdf), tree.function(bdf)) == ("vfio-pci", "")
    (root / "bus/pci/drivers/nvme/unbind").write_text("0000:06:00.0")
    tree.obey()
    assert tree.driver(bdf) == "vfio-pci"  # nvme does not hold it
    (root / "bus/pci/drivers/vfio-pci/unbind").write_text("0000:06:00.0")
    override.write_text("\n")
    (root / "bus/pci/drivers/nvme/bind").write_text("0000:06:00.0")
    tree.obey()
    tree.obey()
    assert (tree.driver(bdf), tree.function(bdf)) == ("nvme", "nvme0")
    for path in ("drivers_probe", "drivers/nvme/bind"):
        (root / "bus/pci" / path).write_text("nonsense")
    tree.obey()
    assert tree.driver(bdf) == "nvme"
