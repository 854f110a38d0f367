# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of a device before it is opened, and the structures of linux/vfio.h."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import holders, vfio
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
    ConfigError,
    CplaneError,
    DeviceBusy,
    NotYet,
)
from hypothesis import given
from hypothesis import strategies as st

BDF = "0000:81:00.0"
OTHER = "0000:82:00.0"
DEVICE = "anon_inode:[vfio-device]"


class Host:
    """Small sysfs, dev and proc trees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = vfio.Places(str(root / "sys"), str(root / "dev"), str(root / "proc"))
        for folder in ("sys/bus/pci/devices", "dev/vfio", "proc"):
            (root / folder).mkdir(parents=True)

    def device(
        self, bdf: str = BDF, driver: Optional[str] = "vfio-pci", group: Optional[str] = "7", code: str = "0x010802"
    ) -> None:
        """Add a PCI device."""
        folder = self.root / "sys/bus/pci/devices" / bdf
        folder.mkdir()
        (folder / "class").write_text(code + "\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        if group:
            members = self.root / "sys/kernel/iommu_groups" / group / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (folder / "iommu_group").symlink_to(members.parent)
            (members / bdf).symlink_to(folder)

    def node(self, name: str = "7") -> str:
        """Add a group's device file."""
        path = self.root / "dev/vfio" / name
        path.touch()
        return str(path)

    def process(self, pid: int, comm: str, files: List[str], info: Optional[Dict[int, str]] = None) -> None:
        """Add a process with open files, numbered from 3 on."""
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "comm").write_text(comm + "\n")
        for number, target in enumerate(files, 3):
            (folder / "fd" / str(number)).symlink_to(target)
            (folder / "fdinfo" / str(number)).write_text("pos:\t0\n" + (info or {}).get(number, ""))

    def holders(self, server: Optional[int] = None) -> List[str]:
        """Who has the device open."""
        return holders.vfio_holders(self.places.node("7"), BDF, self.places.proc, server)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host without devices."""
    return Host(tmp_path)


def test_a_device_that_can_be_opened(host: Host) -> None:
    """Its group may have bridges, and devices that no driver uses for DMA."""
    host.device()
    host.device("0000:80:01.0", "shpchp", "7", "0x060400")
    host.device("0000:81:00.1", None, "7")
    host.device("0000:81:00.2", "pci-stub", "7")
    host.device("0000:81:00.3", "vfio-pci", "7")
    host.node()
    assert vfio.check_device(BDF, host.places) == "7"
    vfio.check_free(BDF, host.places)


@pytest.mark.parametrize(
    ("device", "nodes", "kind", "words"),
    [
        (None, [], ConfigError, "there is no such PCI device on this host"),
        ({"code": "0x010601"}, ["7"], ConfigError, "no NVMe controller (its class is 010601)"),
        ({"group": None, "driver": "nvme"}, [], ConfigError, "switch the IOMMU on"),
        ({"driver": "nvme"}, ["7"], NotYet, "is bound to nvme, not to vfio-pci; bind it with iofabric.sharing.pci_dr"),
        ({"driver": None}, ["7"], NotYet, "has no driver; bind it"),
        ({}, [], NotYet, "load the modules vfio-pci and vfio_iommu_type1"),
        ({}, ["noiommu-7"], ConfigError, "without an IOMMU only"),
    ],
)
def test_devices_that_cannot_be_opened(
    host: Host, device: Optional[Dict[str, Any]], nodes: List[str], kind: type, words: str
) -> None:
    """One sentence, with the device and what to do."""
    if device is not None:
        host.device(**device)
    for name in nodes:
        host.node(name)
    with pytest.raises(CplaneError) as caught:
        vfio.check_device(BDF, host.places)
    assert isinstance(caught.value, kind) and caught.value.__class__ is kind
    assert words in caught.value.message
    assert BDF in caught.value.message


def test_a_group_that_is_not_viable(host: Host) -> None:
    """What else must be bound is named, with who has it."""
    host.device()
    host.device("0000:81:00.1", "nvme")
    host.device("0000:81:00.2", "xhci_hcd", "7", "0x0c0330")
    host.device(OTHER, "nvme", "8")
    host.node()
    with pytest.raises(NotYet) as caught:
        vfio.check_device(BDF, host.places)
    assert "0000:81:00.1 (nvme), 0000:81:00.2 (xhci_hcd) must be" in caught.value.message
    assert OTHER not in caught.value.message


def test_a_group_that_may_not_be_opened(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as root, from whom files can be kept in other ways."""
    host.device()
    host.node()

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="permission denied; run the server as root"):
        vfio.check_free(BDF, host.places)


# -- who has it open ----------------------------------------------------------------------------------------------


def test_holders_are_named(host: Host) -> None:
    """Those with the group, those whose device the kernel tells, and those that were handed one it does not tell."""
    node = host.node()
    host.process(10, "qemu-system-x86", [DEVICE, node])
    host.process(11, "client", ["/dev/null", DEVICE])
    host.process(12, "told", [DEVICE], {3: f"vfio-device-syspath: /sys/devices/pci0000:80/{BDF}\n"})
    host.process(13, "elsewhere", [DEVICE], {3: f"vfio-device-syspath: /sys/devices/pci0000:80/{OTHER}\n"})
    host.process(14, "other vm", [DEVICE, "/dev/vfio/8"])
    host.process(15, "shell", ["/dev/pts/0"])
    assert host.holders() == ["qemu-system-x86 (pid 10)", "client (pid 11)", "told (pid 12)"]


def test_beside_a_server_only_what_it_has_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel compares open files; clients of another server are left alone."""
    node = host.node()
    host.process(10, "server", [DEVICE, node])
    host.process(11, "client", ["/dev/null", DEVICE])
    host.process(12, "other client", [DEVICE])
    asked = []

    def same(pid: int, fd: int, other: int, other_fd: int) -> bool:
        asked.append((pid, fd, other, other_fd))
        return pid == 11

    monkeypatch.setattr(holders, "_same_file", same)
    assert host.holders(server=10) == ["client (pid 11)"]
    assert asked == [(11, 4, 10, 3), (12, 3, 10, 3)]


@pytest.mark.parametrize(
    ("other", "info", "compared", "certain"),
    [
        ([DEVICE], {}, 1, True),
        ([DEVICE], {}, 2, True),
        ([DEVICE], {}, 0, False),
        ([DEVICE], {}, -1, False),  # the kernel does not tell
        ([DEVICE], {3: f"vfio-device-syspath: /sys/devices/pci0000:80/{OTHER}\n"}, 0, True),
        ([DEVICE], {3: f"vfio-device-syspath: /sys/devices/pci0000:80/{BDF}\n"}, 1, False),
        (["/dev/null"], {}, 0, True),
    ],
)
def test_a_server_that_alone_has_its_device(
    host: Host, monkeypatch: pytest.MonkeyPatch, other: List[str], info: Dict[int, str], compared: int, certain: bool
) -> None:
    """What cannot be told is not certain."""
    host.process(10, "server", [DEVICE, host.node()])
    host.process(11, "another", other, info)
    host.process(12, "shell", ["/dev/pts/0"])
    monkeypatch.setattr(holders, "_compare", lambda *_unused: compared)
    assert holders.is_sole_holder(10, BDF, host.places.proc) is certain
    assert holders.is_sole_holder(12, BDF, host.places.proc) is False  # it has no device itself


def test_the_kernel_compares_open_files() -> None:
    """With itself, a copy, and another one of the same file."""
    fd = os.open("/dev/null", os.O_RDONLY)
    copy, other = os.dup(fd), os.open("/dev/null", os.O_RDONLY)
    me = os.getpid()
    assert holders._same_file(me, fd, me, copy)
    assert not holders._same_file(me, fd, me, other)
    assert not holders._same_file(me, fd, 2**30, other)
    for number in (fd, copy, other):
        os.close(number)


def test_a_device_in_use_is_refused_unless_it_is_to_be_replaced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server that ends has is free afterwards, what its client keeps is not."""
    host.device()
    node = host.node()
    host.process(10, "server", [node, DEVICE])
    real = os.open

    def busy(path: str, flags: int) -> int:
        if path == node:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", busy)
    with pytest.raises(DeviceBusy, match=r"in use, by server \(pid 10\); end that first") as caught:
        vfio.check_free(BDF, host.places)
    assert caught.value.details["holders"] == ["server (pid 10)"]
    vfio.check_free(BDF, host.places, server=10)
    host.process(11, "client", [DEVICE])
    monkeypatch.setattr(holders, "_same_file", lambda *_unused: True)
    with pytest.raises(DeviceBusy, match=r"client \(pid 11\)"):
        vfio.check_free(BDF, host.places, server=10)
    # A server that has not got it does not explain why it is busy.
    with pytest.raises(DeviceBusy, match=r"server \(pid 10\) and client \(pid 11\)"):
        vfio.check_free(BDF, host.places, server=12)


def test_a_device_in_use_by_nobody_that_can_be_seen(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's processes, or those of another container."""
    host.device()
    host.node()

    def busy(path: str, flags: int) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    monkeypatch.setattr(os, "open", busy)
    with pytest.raises(DeviceBusy, match="in use, and cannot be seen by what"):
        vfio.check_free(BDF, host.places)


# -- structures ---------------------------------------------------------------------------------------------------


def info(capabilities: List[Tuple[int, bytes]], flags: int = 3) -> bytes:
    """A struct vfio_iommu_type1_info with a chain of capabilities."""
    data = struct.pack("<IIQI4x", 0, flags, 0x1000, 24 if capabilities else 0)
    for number, (identifier, body) in enumerate(capabilities):
        after = len(data) + 8 + len(body) if number + 1 < len(capabilities) else 0
        data += struct.pack("<HHI", identifier, 1, after) + body
    return data


def test_sizes_of_structures() -> None:
    """As the kernel checks them (argsz), on x86-64."""
    assert vfio._IOMMU_INFO.size == 24
    assert vfio._DMA_MAP.size == 32
    assert vfio._REGION_INFO.size == 32
    assert vfio._IRQ_SET.size == 24
    assert vfio._GROUP_STATUS.size == 8
    assert (vfio._GET_API_VERSION, vfio._GROUP_GET_DEVICE_FD, vfio._IOMMU_MAP_DMA) == (0x3B64, 0x3B6A, 0x3B71)


X86 = [(0, 0xFEDFFFFF), (0xFEF00000, 0x7FFFFFFFFF)]


def test_ranges_are_found_in_the_chain() -> None:
    """Whatever else the kernel tells."""
    ranges = struct.pack("<II", len(X86), 0) + b"".join(struct.pack("<QQ", *pair) for pair in X86)
    migration = (2, struct.pack("<I4xQQ", 0, 0x1000, 1 << 20))
    for chain in ([(1, ranges)], [migration, (1, ranges)], [(1, ranges), migration]):
        assert vfio.parse_ranges(info(chain)) == X86


@pytest.mark.parametrize("data", [info([]), info([], 1), info([(3, bytes(4))]), struct.pack("<IIQI4x", 0, 3, 1, 999)])
def test_a_kernel_that_does_not_tell(data: bytes) -> None:
    """What lies below the interrupts of x86 can be used."""
    assert vfio.reach(vfio.parse_ranges(data)) == 0xFEE00000


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], 0),
        (X86, 0xFEE00000),
        ([(0x1000, 0xFFFF)], 0),
        ([(0x8000, 0xFFFF), (0, 0x7FFF)], 0x10000),
        ([(0, 0x7FFF), (0x8001, 0xFFFF)], 0x8000),
        ([(0, 2**64 - 1)], 2**64),
    ],
)
def test_how_far_a_heap_reaches(ranges: List[Tuple[int, int]], expected: int) -> None:
    """From zero on, without a gap."""
    assert vfio.reach(ranges) == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_reach_is_the_first_address_that_is_missing(pairs: List[Tuple[int, int]]) -> None:
    """Compared with counting."""
    ranges = [(first, first + length) for first, length in pairs]
    usable = {address for first, last in ranges for address in range(first, last + 1)}
    assert vfio.reach(ranges) == next(address for address in range(60) if address not in usable)


# -- devices ------------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> vfio.Device:
    """A device whose regions lie one after the other in memory, as they do in a device's descriptor."""
    fd = os.memfd_create("device")
    os.ftruncate(fd, 0x5000)

    def ioctl(_fd: int, request: int, data: bytearray) -> int:
        assert request == vfio._DEVICE_GET_REGION_INFO
        size, flags, number, _cap, _size, _offset = struct.unpack("<IIIIQQ", data)
        assert (size, flags) == (32, 0)
        data[16:] = struct.pack("<QQ", *{0: (0x4000, 0), 7: (0x1000, 0x4000)}[number])
        return 0

    monkeypatch.setattr(vfio.fcntl, "ioctl", ioctl)
    return vfio.Device(BDF, fd)


def test_registers_and_the_command_register(device: vfio.Device) -> None:
    """32 bits at a time; bus mastering changes no other bit."""
    device.write(0x14, 0x00460001)
    assert os.pread(device.fd, 8, 0x10) == bytes.fromhex("0000000001004600")
    assert device.read(0x14) == 0x00460001
    os.pwrite(device.fd, b"\x00\x04", 0x4004)
    device.set_bus_master(True)
    assert os.pread(device.fd, 2, 0x4004) == b"\x06\x04"
    device.set_bus_master(False)
    assert os.pread(device.fd, 2, 0x4004) == b"\x02\x04"
    device.close()


def test_a_device_that_was_given_back(device: vfio.Device) -> None:
    """Its number stays taken, reads fail, and writes go nowhere."""
    fd = device.fd
    device.write(0x14, 1)
    device.release()
    assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
    with pytest.raises(OSError) as caught:
        device.read(0x14)
    assert caught.value.errno == errno.EIO
    device.write(0x14, 2)
    device.set_bus_master(False)
    device.close()


def test_event_counters() -> None:
    """They count, and do not block."""
    fd = vfio.eventfd()
    os.write(fd, (2).to_bytes(8, "little"))
    assert os.read(fd, 8) == (2).to_bytes(8, "little")
    with pytest.raises(BlockingIOError):
        os.read(fd, 8)
    assert not os.get_inheritable(fd)
    os.close(fd)
