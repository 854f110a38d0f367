# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small sysfs and /dev of a node: plain directories, attribute files and links, laid out like the kernel's.

Device numbers and interface names are ones that no real host has in use, so that nothing here ever matches a mount, a
swap area or an interface of the machine the node runs on.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from typing import Dict, List, Set, Tuple

from .address import Bdf, parse_bdf
from .config import Device

# Drivers that are there from the start, without devices of their own.
GENERIC_DRIVERS = ("vfio-pci", "uio_pci_generic")
NVME_MAJOR = 4240
BLOCK_MAJOR = 4259
DRM_MAJOR = 4226
FIRST_INTERFACE = 100
FIRST_IFINDEX = 400000


@dataclass
class _Placed:
    """A function that is in the tree: what it is, and what its driver made outside of its directory."""

    device: Device
    path: str
    driver: str = ""
    function: str = ""  # the name the driver gave it: nvme0, eth100, card0
    outside: List[str] = field(default_factory=list)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().strip()


def _attributes(directory: str, values: Dict[str, str]) -> None:
    for name, value in values.items():
        _write(os.path.join(directory, name), value + "\n" if value and not value.endswith("\n") else value)


class SysfsTree:
    """Not locked by itself: the node calls it with its lock held."""

    def __init__(self, root: str, dev: str) -> None:
        self.root = root
        self.dev = dev
        self._placed: Dict[Bdf, _Placed] = {}

    def create(self) -> None:
        """The skeleton of an empty tree."""
        for name in ("bus/pci/devices", "bus/pci/drivers", "class/block", "class/net", "class/nvme", "class/drm"):
            os.makedirs(os.path.join(self.root, name))
        for name in ("block", "dev/block", "dev/char", "devices", "module", "kernel/iommu_groups"):
            os.makedirs(os.path.join(self.root, name))
        _attributes(os.path.join(self.root, "bus/pci"), {"drivers_probe": ""})
        for name in GENERIC_DRIVERS:
            self._driver_folder(name)

    # Functions of the bus

    def add(self, device: Device) -> None:
        """Puts a function in the tree, without a driver."""
        bdf = device.bdf
        path = os.path.join(self.root, f"devices/pci{bdf.domain:04x}:{bdf.bus:02x}", str(bdf))
        os.makedirs(path)
        self._placed[bdf] = _Placed(device, path)
        _attributes(path, self._pci_attributes(device))
        self._link(os.path.join(path, "subsystem"), os.path.join(self.root, "bus/pci"))
        self._link(os.path.join(self.root, "bus/pci/devices", str(bdf)), path)
        if device.iommu_group >= 0:
            group = os.path.join(self.root, "kernel/iommu_groups", str(device.iommu_group))
            os.makedirs(os.path.join(group, "devices"), exist_ok=True)
            self._link(os.path.join(group, "devices", str(bdf)), path)
            self._link(os.path.join(path, "iommu_group"), group)
        if device.physfn:
            self._join_physical(path, parse_bdf(device.physfn))
        self._refresh_uevent(bdf)

    def remove(self, bdf: Bdf) -> None:
        """Takes a function out of the tree, its driver first."""
        self.unbind(bdf)
        placed = self._placed.pop(bdf)
        if placed.device.physfn:
            self._leave_physical(placed)
        os.unlink(os.path.join(self.root, "bus/pci/devices", str(bdf)))
        if placed.device.iommu_group >= 0:
            group = os.path.join(self.root, "kernel/iommu_groups", str(placed.device.iommu_group))
            os.unlink(os.path.join(group, "devices", str(bdf)))
        shutil.rmtree(placed.path)
        bus = os.path.dirname(placed.path)
        if not os.listdir(bus):
            os.rmdir(bus)

    def has(self, bdf: Bdf) -> bool:
        """Whether a function is in the tree."""
        return bdf in self._placed

    def driver(self, bdf: Bdf) -> str:
        """The driver that is bound, or an empty string."""
        return self._placed[bdf].driver

    def function(self, bdf: Bdf) -> str:
        """The name that the driver gave to the device (``nvme0``), or an empty string."""
        return self._placed[bdf].function

    def bind(self, bdf: Bdf) -> None:
        """Probes a function: the driver of driver_override takes it, else its native one, with its devices."""
        placed = self._placed[bdf]
        driver = self._wanted_driver(placed)
        if placed.driver or not driver:
            return
        placed.driver = driver
        folder = self._driver_folder(driver)
        self._link(os.path.join(folder, str(bdf)), placed.path)
        self._link(os.path.join(placed.path, "driver"), folder)
        build = {"nvme": self._build_nvme, "net": self._build_net, "gpu": self._build_gpu}.get(placed.device.kind)
        if build and driver == placed.device.driver:
            build(placed)
        self._refresh_uevent(bdf)

    def unbind(self, bdf: Bdf) -> None:
        """Takes the driver away, and with it what it made."""
        placed = self._placed[bdf]
        if not placed.driver:
            return
        # The newest first: directories of /dev are emptied before they are removed.
        for path in reversed(placed.outside):
            os.unlink(path)
        placed.outside.clear()
        for name in ("nvme", "net", "drm"):
            shutil.rmtree(os.path.join(placed.path, name), ignore_errors=True)
        os.unlink(os.path.join(placed.path, "driver"))
        os.unlink(os.path.join(self.root, "bus/pci/drivers", placed.driver, str(bdf)))
        placed.driver = placed.function = ""
        self._refresh_uevent(bdf)

    # What is written to the control files

    def obey(self) -> None:
        """Does what was written to drivers_probe and to the drivers' bind and unbind since the last call."""
        bus = os.path.join(self.root, "bus/pci")
        for bdf in self._commanded(os.path.join(bus, "drivers_probe")):
            self.bind(bdf)
        for name in os.listdir(os.path.join(bus, "drivers")):
            folder = os.path.join(bus, "drivers", name)
            for bdf in self._commanded(os.path.join(folder, "unbind")):
                if self._placed[bdf].driver == name:
                    self.unbind(bdf)
            for bdf in self._commanded(os.path.join(folder, "bind")):
                if self._wanted_driver(self._placed[bdf]) == name:
                    self.bind(bdf)

    def wanted_vfs(self) -> Dict[Bdf, Tuple[int, int]]:
        """Physical functions whose sriov_numvfs was written to: {address: (how many there are, how many wanted)}."""
        result = {}
        for bdf, placed in self._placed.items():
            if placed.device.totalvfs:
                text = _read(os.path.join(placed.path, "sriov_numvfs"))
                have = len(self._virtual(placed))
                # An empty file was just opened for writing.
                if text and text != str(have):
                    result[bdf] = (have, int(text) if text.isdigit() else -1)
        return result

    def count_vfs(self, bdf: Bdf) -> int:
        """How many virtual functions there are."""
        return len(self._virtual(self._placed[bdf]))

    def reset_numvfs(self, bdf: Bdf) -> None:
        """Shows the number of virtual functions that there are."""
        placed = self._placed[bdf]
        _write(os.path.join(placed.path, "sriov_numvfs"), f"{len(self._virtual(placed))}\n")

    def _commanded(self, path: str) -> List[Bdf]:
        if not os.stat(path).st_size:
            return []
        text = _read(path)
        _write(path, "")
        try:
            bdf = parse_bdf(text)
        except ValueError:
            return []
        return [bdf] if bdf in self._placed else []

    def _wanted_driver(self, placed: _Placed) -> str:
        """What driver_override says, when there is such a driver, else the native driver."""
        override = _read(os.path.join(placed.path, "driver_override"))
        if override in ("", "(null)"):
            return placed.device.driver
        known = override == placed.device.driver or override in os.listdir(os.path.join(self.root, "bus/pci/drivers"))
        return override if known else ""

    def _driver_folder(self, name: str) -> str:
        folder = os.path.join(self.root, "bus/pci/drivers", name)
        if not os.path.isdir(folder):
            os.makedirs(folder)
            _attributes(folder, {"bind": "", "unbind": ""})
        return folder

    # What drivers make

    def set_state(self, bdf: Bdf, state: str) -> None:
        """The state attribute of an NVMe controller: live or dead."""
        placed = self._placed.get(bdf)
        if placed and placed.device.kind == "nvme" and placed.function:
            _write(os.path.join(placed.path, "nvme", placed.function, "state"), state + "\n")

    def _build_nvme(self, placed: _Placed) -> None:
        number = self._free_number("nvme", 0)
        name = placed.function = f"nvme{number}"
        device = placed.device
        serial = device.serial or device.uuid[:8]
        path = os.path.join(placed.path, "nvme", name)
        number_text = f"{NVME_MAJOR}:{number}"
        _attributes(
            path,
            {
                "model": device.model.ljust(40),
                "serial": serial.ljust(20),
                "firmware_rev": "1.0     ",
                "transport": "pcie",
                "address": str(device.bdf),
                "state": "live",
                "dev": number_text,
                "uevent": f"MAJOR={NVME_MAJOR}\nMINOR={number}\nDEVNAME={name}\n",
            },
        )
        self._link(os.path.join(path, "device"), placed.path)
        self._link(os.path.join(path, "subsystem"), os.path.join(self.root, "class/nvme"))
        self._outside(placed, os.path.join(self.root, "class/nvme", name), path)
        self._outside(placed, os.path.join(self.root, "dev/char", number_text), path)
        self._node(placed, name)
        by_id = f"nvme-{device.model}_{serial}"
        self._build_disk(placed, path, name + "n1", by_id, number * 16)

    def _build_disk(self, placed: _Placed, parent: str, name: str, by_id: str, minor: int) -> None:
        sectors = placed.device.size // 512
        disk = os.path.join(parent, name)
        self._build_block(placed, disk, minor, sectors, {"uuid": placed.device.uuid, "removable": "0"}, "disk")
        self._link(os.path.join(disk, "device"), parent)
        self._outside(placed, os.path.join(self.root, "block", name), disk)
        self._by_id(placed, by_id, name)
        for part in range(1, placed.device.partitions + 1):
            share = sectors // placed.device.partitions
            values = {"partition": str(part), "start": str((part - 1) * share)}
            path = os.path.join(disk, f"{name}p{part}")
            self._build_block(placed, path, minor + part, share, values, "partition")
            self._by_id(placed, f"{by_id}-part{part}", f"{name}p{part}")

    def _build_block(
        self, placed: _Placed, path: str, minor: int, sectors: int, more: Dict[str, str], devtype: str
    ) -> None:
        name, number = os.path.basename(path), f"{BLOCK_MAJOR}:{minor}"
        uevent = f"MAJOR={BLOCK_MAJOR}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE={devtype}\n"
        _attributes(path, dict(more, dev=number, size=str(sectors), ro="0", uevent=uevent))
        os.makedirs(os.path.join(path, "holders"))
        if devtype == "disk":
            os.makedirs(os.path.join(path, "slaves"))
        self._link(os.path.join(path, "subsystem"), os.path.join(self.root, "class/block"))
        self._outside(placed, os.path.join(self.root, "class/block", name), path)
        self._outside(placed, os.path.join(self.root, "dev/block", number), path)
        self._node(placed, name)

    def _build_net(self, placed: _Placed) -> None:
        number = self._free_number("eth", FIRST_INTERFACE)
        name = placed.function = f"eth{number}"
        path = os.path.join(placed.path, "net", name)
        index = FIRST_IFINDEX + number
        low = placed.device.bdf.low16
        _attributes(
            path,
            {
                "address": f"02:53:49:{number & 0xFF:02x}:{low >> 8:02x}:{low & 0xFF:02x}",
                "operstate": "down",
                "carrier": "0",
                "flags": "0x1002",
                "type": "1",
                "mtu": "1500",
                "ifindex": str(index),
                "iflink": str(index),
                "uevent": f"INTERFACE={name}\nIFINDEX={index}\n",
            },
        )
        self._link(os.path.join(path, "device"), placed.path)
        self._link(os.path.join(path, "subsystem"), os.path.join(self.root, "class/net"))
        self._outside(placed, os.path.join(self.root, "class/net", name), path)

    def _build_gpu(self, placed: _Placed) -> None:
        number = self._free_number("card", 0)
        name = placed.function = f"card{number}"
        path = os.path.join(placed.path, "drm", name)
        text = f"{DRM_MAJOR}:{number}"
        uevent = f"MAJOR={DRM_MAJOR}\nMINOR={number}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n"
        _attributes(path, {"dev": text, "uevent": uevent})
        self._link(os.path.join(path, "device"), placed.path)
        self._link(os.path.join(path, "subsystem"), os.path.join(self.root, "class/drm"))
        self._outside(placed, os.path.join(self.root, "class/drm", name), path)
        self._outside(placed, os.path.join(self.root, "dev/char", text), path)
        self._node(placed, f"dri/{name}")

    # Helpers

    def _free_number(self, prefix: str, first: int) -> int:
        """The lowest instance that is free, as the kernel's allocators give it."""
        taken: Set[str] = {placed.function for placed in self._placed.values()}
        number = first
        while f"{prefix}{number}" in taken:
            number += 1
        return number

    def _link(self, path: str, target: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.path.relpath(target, os.path.dirname(path)), path)

    def _outside(self, placed: _Placed, path: str, target: str) -> None:
        self._link(path, target)
        placed.outside.append(path)

    def _node(self, placed: _Placed, name: str) -> None:
        path = os.path.join(self.dev, name)
        _write(path, "")
        placed.outside.append(path)

    def _by_id(self, placed: _Placed, name: str, target: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9#+.:=@_-]", "_", name.strip())
        path = os.path.join(self.dev, "disk/by-id", safe)
        if not os.path.islink(path):
            self._outside(placed, path, os.path.join(self.dev, target))

    def _virtual(self, parent: _Placed) -> List[str]:
        return sorted(name for name in os.listdir(parent.path) if name.startswith("virtfn"))

    def _join_physical(self, path: str, physical: Bdf) -> None:
        parent = self._placed[physical]
        self._link(os.path.join(path, "physfn"), parent.path)
        before = len(self._virtual(parent))
        self._link(os.path.join(parent.path, f"virtfn{before}"), path)
        self._show_numvfs(physical, before)

    def _leave_physical(self, placed: _Placed) -> None:
        physical = parse_bdf(placed.device.physfn)
        parent = self._placed[physical]
        before = len(self._virtual(parent))
        for name in self._virtual(parent):
            if os.path.basename(os.readlink(os.path.join(parent.path, name))) == str(placed.device.bdf):
                os.unlink(os.path.join(parent.path, name))
        self._show_numvfs(physical, before)

    def _show_numvfs(self, physical: Bdf, before: int) -> None:
        """Show how many there are now, unless a number was asked for: it stands there already, or the next one does."""
        if _read(os.path.join(self._placed[physical].path, "sriov_numvfs")) == str(before):
            self.reset_numvfs(physical)

    def _pci_attributes(self, device: Device) -> Dict[str, str]:
        values = {
            "vendor": f"0x{device.vendor_id:04x}",
            "device": f"0x{device.device_id:04x}",
            "subsystem_vendor": f"0x{device.subsystem_vendor_id:04x}",
            "subsystem_device": f"0x{device.subsystem_device_id:04x}",
            "class": f"0x{device.class_code:06x}",
            "driver_override": "(null)",
            "numa_node": str(device.numa_node),
            "modalias": _modalias(device),
        }
        if device.totalvfs:
            values.update(sriov_totalvfs=str(device.totalvfs), sriov_numvfs="0")
        return values

    def _refresh_uevent(self, bdf: Bdf) -> None:
        placed = self._placed[bdf]
        device = placed.device
        lines = [f"DRIVER={placed.driver}"] if placed.driver else []
        lines += [
            f"PCI_CLASS={device.class_code:X}",
            f"PCI_ID={device.vendor_id:04X}:{device.device_id:04X}",
            f"PCI_SUBSYS_ID={device.subsystem_vendor_id:04X}:{device.subsystem_device_id:04X}",
            f"PCI_SLOT_NAME={bdf}",
            f"MODALIAS={_modalias(device)}",
        ]
        _write(os.path.join(placed.path, "uevent"), "".join(line + "\n" for line in lines))


def _modalias(device: Device) -> str:
    code = device.class_code
    return (
        f"pci:v{device.vendor_id:08X}d{device.device_id:08X}"
        f"sv{device.subsystem_vendor_id:08X}sd{device.subsystem_device_id:08X}"
        f"bc{code >> 16:02X}sc{code >> 8 & 0xFF:02X}i{code & 0xFF:02X}"
    )
