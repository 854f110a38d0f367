# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sysfs and a proc to build up, and the real lspci over a generated dump."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, List, Sequence

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice, Sysfs


class FakeSysfs:
    """Builds a sysfs tree laid out as the kernel does: folders below devices/, links to them elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    @property
    def sysfs(self) -> Sysfs:
        return Sysfs(str(self.root))

    def write(self, path: str, text: str = "") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def link(self, path: str, target: str) -> None:
        """Link ``path`` to ``target``, both relative to the root."""
        source = self.root / path
        source.parent.mkdir(parents=True, exist_ok=True)
        source.symlink_to(os.path.relpath(self.root / target, source.parent))

    def device(self, bdf: str, parent: str = "devices/pci0000:80", driver: str = "", **attributes: str) -> str:
        """Add a PCI device; the path of its folder, relative to the root."""
        folder = f"{parent}/{bdf}"
        (self.root / folder).mkdir(parents=True)
        self.link(f"bus/pci/devices/{bdf}", folder)
        for name, value in attributes.items():
            self.write(f"{folder}/{name}", value)
        if driver:
            (self.root / f"bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")
        return folder

    def disk(self, folder: str, number: str, kind: str = "disk") -> str:
        """Add a disk or partition whose name is the last part of ``folder``."""
        name = folder.rsplit("/", 1)[1]
        self.write(f"{folder}/dev", number)
        major, minor = number.split(":")
        self.write(f"{folder}/uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE={kind}")
        (self.root / folder / "holders").mkdir()
        if kind == "partition":
            self.write(f"{folder}/partition", "1")
        self.link(f"class/block/{name}", folder)
        return folder

    def nvme(self, bdf: str = "0000:81:00.0", partitions: int = 2) -> str:
        """An NVMe drive, nvme0 with one namespace (259:0) and its partitions (259:1, ...)."""
        folder = self.device(bdf, driver="nvme", vendor="0x144d", device="0xa808", **{"class": "0x010802"})
        controller = f"{folder}/nvme/nvme0"
        self.write(f"{controller}/uevent", "MAJOR=240\nMINOR=0\nDEVNAME=nvme0")
        self.write(f"{controller}/dev", "240:0")
        self.write(f"{controller}/serial", "S4EVNX0R  ")
        self.write(f"{controller}/model", "Samsung SSD 970 EVO Plus 500GB          ")
        self.write(f"{controller}/ng0n1/dev", "239:0")
        self.write(f"{controller}/ng0n1/uevent", "MAJOR=239\nMINOR=0\nDEVNAME=ng0n1")
        self.link(f"{controller}/device", folder)
        self.disk(f"{controller}/nvme0n1", "259:0")
        for index in range(1, partitions + 1):
            self.disk(f"{controller}/nvme0n1/nvme0n1p{index}", f"259:{index}", "partition")
        return folder

    def holder(self, below: str, name: str, number: str) -> None:
        """A device-mapper or md device ``name`` on top of the block device ``below``."""
        if not (self.root / "class/block" / name).exists():
            self.disk(f"devices/virtual/block/{name}", number)
        real = os.path.relpath(os.path.realpath(self.root / "class/block" / below), os.path.realpath(self.root))
        self.link(f"{real}/holders/{name}", f"devices/virtual/block/{name}")

    def interface(self, folder: str, flags: str = "0x1002") -> None:
        """A network interface whose name is the last part of ``folder``."""
        self.write(f"{folder}/flags", flags)
        self.write(f"{folder}/uevent", f"INTERFACE={folder.rsplit('/', 1)[1]}\nIFINDEX=2")
        self.link(f"class/net/{folder.rsplit('/', 1)[1]}", folder)


class FakeProc:
    """A proc folder with nothing mounted, swapped or routed until it is told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = str(root)
        self.write("self/mountinfo", "22 1 0:21 / /proc rw shared:5 - proc proc rw")
        self.write("swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority")
        self.write("net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT")
        self.write("net/ipv6_route", "")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n" if text else "")

    def append(self, path: str, line: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as file:
            file.write(line + "\n")

    def mount(self, number: str, point: str, source: str = "none", namespace: str = "self", kind: str = "ext4") -> None:
        """A mount that a process (``namespace``) sees."""
        self.append(f"{namespace}/mountinfo", f"36 22 {number} / {point} rw shared:1 master:2 - {kind} {source} rw")

    def process(self, pid: int, name: str, *opened: str, mounts: str = "", vfio: str = "") -> None:
        """A process with files open, by what their links say; ``mounts`` names its mount namespace.

        ``vfio`` is what its kernel tells of a device of VFIO.
        """
        self.write(f"{pid}/comm", name)
        folder = self.root / str(pid)
        (folder / "fd").mkdir()
        for number, target in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(target)
            self.write(f"{pid}/fdinfo/{number}", f"pos:\t0\nflags:\t02\n{vfio}")
        if mounts:
            (folder / "ns").mkdir()
            (folder / "ns/mnt").symlink_to(f"mnt:[{mounts}]")

    def swap(self, path: str, kind: str = "partition") -> None:
        self.append("swaps", f"{path}                          {kind}\t1048572\t\t0\t\t-2")

    def route(self, interface: str, destination: str = "00000000", mask: str = "00000000", flags: str = "0003") -> None:
        """An IPv4 route; the numbers as a little-endian machine prints them."""
        self.append("net/route", f"{interface}\t{destination}\t0100000A\t{flags}\t0\t0\t100\t{mask}\t0\t0\t0")


@pytest.fixture
def fake(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture(scope="session")
def real_lspci(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[PciDevice], List[str]], List[str]]:
    """The BDFs that the real lspci lists for a filter over generated devices; ValueError where it refuses."""
    program = shutil.which("lspci", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        if "IOFABRIC_NO_LSPCI" in os.environ:
            pytest.skip("lspci is not installed and IOFABRIC_NO_LSPCI is set")
        pytest.fail("lspci is not installed: install pciutils, or set IOFABRIC_NO_LSPCI to do without this check")
    dump = tmp_path_factory.mktemp("lspci") / "dump"

    def select(devices: Sequence[PciDevice], arguments: List[str]) -> List[str]:
        dump.write_text("".join(_dumped(device) for device in devices))
        command = [program, "-F", str(dump), "-n", "-D", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        return [line.split()[0] for line in done.stdout.splitlines()]

    return select


def _dumped(device: PciDevice) -> str:
    """The first 64 bytes of the device's configuration space as ``lspci -x`` prints them."""
    config = bytearray(64)
    config[0:2] = bytes.fromhex(device.vendor_id)[::-1]
    config[2:4] = bytes.fromhex(device.device_id)[::-1]
    config[9:12] = bytes.fromhex(device.class_code)[::-1]
    rows = [f"{start:02x}: {config[start : start + 16].hex(' ')}\n" for start in range(0, 64, 16)]
    return f"{device.bdf} device\n{''.join(rows)}\n"
