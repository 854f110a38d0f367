# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import sysfs as module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.address import AddressError
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice, Sysfs, SysfsError

BDF = "0000:81:00.0"


def test_attributes_of_a_device(fake: Any) -> None:
    physical = fake.device("0000:81:00.0", sriov_numvfs="4", driver="ixgbe")
    folder = fake.device(
        "0000:81:10.2",
        driver="vfio-pci",
        vendor="0x8086",
        device="0x10ED",
        subsystem_vendor="0x8086",
        subsystem_device="0x7b11",
        **{"class": "0x020000"},
    )
    fake.link(f"{folder}/physfn", physical)
    fake.link(f"{folder}/iommu_group", "kernel/iommu_groups/17")
    assert fake.sysfs.device("81:10.2") == PciDevice(
        "0000:81:10.2", "8086", "10ed", "8086", "7b11", "020000", "vfio-pci", "17", "0000:81:00.0", None
    )
    assert fake.sysfs.device("0000:81:00.0").numvfs == 4
    assert fake.sysfs.driver("0000:81:00.0") == "ixgbe"


def test_missing_and_odd_attributes_do_not_raise(fake: Any) -> None:
    fake.device(BDF, vendor="junk", device="0x123456", sriov_numvfs="many", **{"class": ""})
    empty = PciDevice(BDF)
    assert fake.sysfs.device(BDF) == empty
    assert fake.sysfs.device("0000:82:00.0") == PciDevice("0000:82:00.0")
    assert fake.sysfs.inode("0000:82:00.0") is None
    assert fake.sysfs.device_nodes("0000:82:00.0") == []
    assert Sysfs(str(fake.root / "nothing")).addresses() == []


def test_a_plain_folder_is_a_device_too(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices" / BDF
    (folder / "nvme/nvme3/nvme3n1").mkdir(parents=True)
    (folder / "net/eth7").mkdir(parents=True)
    (folder / "vendor").write_text("0x144d\n")
    sysfs = Sysfs(str(tmp_path))
    assert list(sysfs.devices()) == [BDF]
    assert sysfs.devices()[BDF].vendor_id == "144d"
    assert sysfs.device_nodes(BDF) == ["nvme3", "nvme3n1"]
    assert sysfs.block_devices(BDF) == {"nvme3n1": ""}
    assert sysfs.interfaces(BDF) == ["eth7"]


def test_devices_are_listed_in_order_and_read_lazily(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for bdf in ("10000:01:00.0", "0000:2a:00.0", "0000:10:00.0", "0000:0a:00.0"):
        fake.device(bdf)
    (fake.root / "bus/pci/devices/not-a-device").mkdir()
    read: List[str] = []
    sysfs = fake.sysfs

    def recorded(bdf: str) -> PciDevice:
        read.append(bdf)
        return PciDevice(bdf)

    monkeypatch.setattr(sysfs, "device", recorded)
    devices = sysfs.devices()
    assert list(devices) == ["0000:0a:00.0", "0000:10:00.0", "0000:2a:00.0", "10000:01:00.0"]
    assert len(devices) == 4
    assert read == []
    assert devices["0000:2a:00.0"] is devices["0000:2a:00.0"]
    assert read == ["0000:2a:00.0"]


@pytest.mark.parametrize("bad", ["../../../etc", "1:", "81:00.0/..", ""])
def test_only_addresses_reach_a_path(fake: Any, bad: str) -> None:
    for method in ("device", "driver", "inode", "serial", "model", "tree", "device_nodes"):
        with pytest.raises(AddressError):
            getattr(fake.sysfs, method)(bad)


def test_the_inode_is_that_of_the_device_not_of_the_link(fake: Any) -> None:
    folder = fake.device(BDF)
    assert fake.sysfs.inode(BDF) == os.stat(fake.root / folder).st_ino
    assert fake.sysfs.inode(BDF) != os.lstat(fake.root / "bus/pci/devices" / BDF).st_ino


def test_an_nvme_drive(fake: Any) -> None:
    fake.nvme(partitions=11)
    partitions = [f"nvme0n1p{index}" for index in range(1, 12)]
    assert fake.sysfs.device_nodes(BDF) == ["nvme0", "ng0n1", "nvme0n1", *partitions]
    assert fake.sysfs.block_devices(BDF) == {
        "nvme0n1": "259:0",
        **{name: f"259:{index}" for index, name in enumerate(partitions, 1)},
    }
    assert fake.sysfs.serial(BDF) == "S4EVNX0R"
    assert fake.sysfs.model(BDF) == "Samsung SSD 970 EVO Plus 500GB"
    assert fake.sysfs.interfaces(BDF) == []


def test_native_multipath_shows_the_disk_of_the_hidden_path(fake: Any) -> None:
    folder = fake.device(BDF)
    fake.write(f"{folder}/nvme/nvme1/dev", "240:1")
    fake.write(f"{folder}/nvme/nvme1/nvme3c1n2/size", "1000")
    subsystem = "devices/virtual/nvme-subsystem/nvme-subsys3"
    fake.disk(f"{subsystem}/nvme3n2", "259:7")
    fake.disk(f"{subsystem}/nvme3n2/nvme3n2p1", "259:8", "partition")
    fake.link("class/nvme-subsystem/nvme-subsys3", subsystem)
    for name in ("nvme3n2", "nvme3n2p1"):
        (fake.root / "class/block" / name).unlink()
    assert fake.sysfs.device_nodes(BDF) == ["nvme1", "nvme3n2", "nvme3n2p1"]
    assert fake.sysfs.block_devices(BDF) == {"nvme3n2": "259:7", "nvme3n2p1": "259:8"}


def test_a_gpu_and_a_scsi_adapter(fake: Any) -> None:
    gpu = fake.device("0000:09:00.0", driver="nvidia")
    fake.write(f"{gpu}/drm/card0/uevent", "MAJOR=226\nMINOR=0\nDEVNAME=dri/card0\nDEVTYPE=drm_minor")
    fake.write(f"{gpu}/drm/card0/card0-DP-1/uevent", "")
    fake.write(f"{gpu}/drm/renderD128/uevent", "DEVNAME=dri/renderD128")
    hba = fake.device("0000:0a:00.0")
    disk = fake.disk(f"{hba}/host0/target0:0:0/0:0:0:0/block/sda", "8:0")
    fake.disk(f"{disk}/sda1", "8:1", "partition")
    fake.link(f"{disk}/device", f"{hba}/host0/target0:0:0/0:0:0:0")
    assert fake.sysfs.device_nodes("0000:09:00.0") == ["dri/card0", "dri/renderD128"]
    assert fake.sysfs.block_devices("0000:09:00.0") == {}
    assert fake.sysfs.device_nodes("0000:0a:00.0") == ["sda", "sda1"]
    assert fake.sysfs.block_devices("0000:0a:00.0") == {"sda": "8:0", "sda1": "8:1"}


def test_interfaces_below_virtio_too(fake: Any) -> None:
    folder = fake.device(BDF)
    fake.interface(f"{folder}/virtio0/net/eth10")
    fake.interface(f"{folder}/virtio0/net/eth2")
    assert fake.sysfs.interfaces(BDF) == ["eth2", "eth10"]
    assert fake.sysfs.device_nodes(BDF) == []


def test_the_walk_stays_out_of_other_devices_and_links(fake: Any) -> None:
    port = fake.device("0000:80:01.0", **{"class": "0x060400"})
    below = fake.device(BDF, parent=port)
    fake.disk(f"{below}/nvme/nvme0/nvme0n1", "259:0")
    vmd = fake.device("0000:5d:05.5")
    child = fake.device("10000:01:00.0", parent=f"{vmd}/pci10000:00")
    fake.disk(f"{child}/nvme/nvme1/nvme1n1", "259:1")
    fake.link(f"{vmd}/subsystem", "devices")
    for top, behind in (("0000:80:01.0", BDF), ("0000:5d:05.5", "10000:01:00.0")):
        tree = fake.sysfs.tree(top)
        assert tree.children == (behind,)
        assert tree.nodes == tree.blocks == ()


def test_the_walk_is_bounded(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake.device(BDF)
    for index in range(11):
        (fake.root / folder / f"f{index}").mkdir()
    monkeypatch.setattr(module, "_MAX_FOLDERS", 10)
    with pytest.raises(SysfsError, match="more than 10 folders"):
        fake.sysfs.tree(BDF)


def test_a_link_that_leads_back_ends_at_the_bound(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fake.device(BDF)
    fake.link(f"{folder}/net/net", f"{folder}/net")
    monkeypatch.setattr(module, "_MAX_FOLDERS", 10)
    with pytest.raises(SysfsError, match="more than 10 folders"):
        fake.sysfs.tree(BDF)


@pytest.mark.parametrize(
    ("capabilities", "serial"),
    [
        ({0x100: (0x0001, 0x140), 0x140: (0x0003, 0)}, "00-25-38-5b-01-02-03-04"),
        ({0x100: (0x0003, 0)}, "00-25-38-5b-01-02-03-04"),
        ({0x100: (0x0001, 0)}, None),
        ({0x100: (0x0001, 0x140), 0x140: (0x0002, 0x100)}, None),  # a loop
        ({0x100: (0xFFFF, 0xFFF)}, None),
        ({}, None),
    ],
)
def test_the_serial_number_capability(fake: Any, capabilities: Any, serial: Optional[str]) -> None:
    config = bytearray(4096)
    for offset, (number, following) in capabilities.items():
        config[offset : offset + 4] = (following << 20 | 1 << 16 | number).to_bytes(4, "little")
        config[offset + 4 : offset + 12] = bytes.fromhex("040302015b382500")
    folder = fake.device(BDF)
    (fake.root / folder / "config").write_bytes(config)
    assert fake.sysfs.serial(BDF) == serial
    (fake.root / folder / "config").write_bytes(config[:64])  # what is readable without privilege
    assert fake.sysfs.serial(BDF) is None


@pytest.mark.parametrize("name", ["dis_smartio", "dis_sio"])
def test_the_module(fake: Any, name: str) -> None:
    assert fake.sysfs.module_stamp() is None
    assert fake.sysfs.parameter("autoborrow_transparent") is None
    fake.write(f"module/{name}/parameters/autoborrow_transparent", "1")
    found = os.stat(fake.root / "module" / name)
    assert fake.sysfs.module_stamp() == (found.st_ino, found.st_ctime_ns)
    assert fake.sysfs.parameter("autoborrow_transparent") == "1"


@pytest.mark.parametrize("name", ["../refcnt", "", "a b", "a\n", "é"])
def test_a_parameter_has_a_plain_name(fake: Any, name: str) -> None:
    with pytest.raises(SysfsError, match="cannot be the name"):
        fake.sysfs.parameter(name)


def test_this_machine() -> None:
    sysfs = Sysfs()
    for bdf, device in sysfs.devices().items():
        assert device.bdf == bdf
        assert len(device.class_code) == 6
        assert set(sysfs.block_devices(bdf)) <= {node.rsplit("/", 1)[-1] for node in sysfs.device_nodes(bdf)}
        assert sysfs.inode(bdf) == os.stat(f"/sys/bus/pci/devices/{bdf}").st_ino
        assert sysfs.serial(bdf) is None or sysfs.serial(bdf)
