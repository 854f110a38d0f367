# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small /sys (and /dev) with PCI devices, their drivers and what the drivers make: disks, interfaces, GPU nodes.

The paths have the shape of the kernel's: ``bus/pci/devices/BDF`` is a link into ``devices/``, ``class/block`` and
``class/net`` link to the same directories. A device is described by a dictionary::

    {"bdf", "vendor", "device", "class", "subvendor", "subdevice", "name", "class_name", "serial", "uuid",
     "driver": name or None, "kind": "nvme" | "net" | "gpu" | "plain", "unit": number of the disk or interface}

``class`` is the six digit number ("010802"); ids are four digits without 0x. Only ``os`` is imported: the stub of
the tool uses this file too and has to start fast.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

Hardware = Dict[str, Any]


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def link(path: str, target: str) -> None:
    """A relative link, as in the kernel's sysfs."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(path):
        os.unlink(path)
    os.symlink(os.path.relpath(target, os.path.dirname(path)), path)


def unlink(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def remove_tree(path: str) -> None:
    if not os.path.isdir(path):
        return
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        for name in folders:
            full = os.path.join(folder, name)
            if os.path.islink(full):
                os.unlink(full)
            else:
                os.rmdir(full)
    os.rmdir(path)


def make_root(sysfs: str) -> None:
    for folder in ("bus/pci/devices", "bus/pci/drivers", "class/block", "class/net", "class/nvme", "class/drm"):
        os.makedirs(os.path.join(sysfs, folder), exist_ok=True)
    for folder in ("block", "dev/block", "dev/char", "devices/virtual/block", "devices/virtual/net", "module"):
        os.makedirs(os.path.join(sysfs, folder), exist_ok=True)


def device_path(sysfs: str, bdf: str) -> str:
    return os.path.join(sysfs, "devices", "pci" + bdf[:7], bdf)


def add_device(sysfs: str, dev: str, hardware: Hardware) -> None:
    """Put a PCI device in the tree, bound to its driver if it has one."""
    bdf = hardware["bdf"]
    path = device_path(sysfs, bdf)
    for name, value in (
        ("vendor", "0x" + hardware["vendor"]),
        ("device", "0x" + hardware["device"]),
        ("class", "0x" + hardware["class"]),
        ("subsystem_vendor", "0x" + hardware["subvendor"]),
        ("subsystem_device", "0x" + hardware["subdevice"]),
        ("revision", "0x01"),
        ("driver_override", "(null)"),
        ("numa_node", "0"),
        ("enable", "0"),
        ("irq", "0"),
        ("uevent", f"PCI_SLOT_NAME={bdf}"),
        ("modalias", f"pci:v0000{hardware['vendor'].upper()}d0000{hardware['device'].upper()}sv*sd*bc*sc*i*"),
    ):
        write(os.path.join(path, name), value + "\n")
    link(os.path.join(path, "subsystem"), os.path.join(sysfs, "bus/pci"))
    link(os.path.join(sysfs, "bus/pci/devices", bdf), path)
    if hardware.get("driver"):
        bind(sysfs, dev, hardware)


def remove_device(sysfs: str, dev: str, hardware: Hardware) -> None:
    unbind(sysfs, dev, hardware)
    unlink(os.path.join(sysfs, "bus/pci/devices", hardware["bdf"]))
    remove_tree(device_path(sysfs, hardware["bdf"]))


def bind(sysfs: str, dev: str, hardware: Hardware) -> None:
    path = device_path(sysfs, hardware["bdf"])
    driver = os.path.join(sysfs, "bus/pci/drivers", hardware["driver"])
    os.makedirs(driver, exist_ok=True)
    link(os.path.join(path, "driver"), driver)
    link(os.path.join(driver, hardware["bdf"]), path)
    make = {"nvme": _bind_nvme, "net": _bind_net, "gpu": _bind_gpu}.get(hardware["kind"])
    if make:
        make(sysfs, dev, path, hardware)


def unbind(sysfs: str, dev: str, hardware: Hardware) -> None:
    path = device_path(sysfs, hardware["bdf"])
    if hardware.get("driver"):
        unlink(os.path.join(sysfs, "bus/pci/drivers", hardware["driver"], hardware["bdf"]))
    unlink(os.path.join(path, "driver"))
    for name in nodes(hardware):
        unlink(os.path.join(dev, name))
    unit = hardware.get("unit")
    if hardware["kind"] == "nvme":
        unlink(os.path.join(sysfs, f"class/nvme/nvme{unit}"))
        unlink(os.path.join(dev, "disk/by-id", by_id(hardware)))
        for name in blocks(hardware):
            unlink(os.path.join(sysfs, "class/block", name))
            unlink(os.path.join(sysfs, "block", name))
            unlink(os.path.join(sysfs, "dev/block", number(hardware, name)))
        remove_tree(os.path.join(path, "nvme"))
    if hardware["kind"] == "net":
        unlink(os.path.join(sysfs, f"class/net/eth{unit}"))
        remove_tree(os.path.join(path, "net"))
    if hardware["kind"] == "gpu":
        unlink(os.path.join(sysfs, f"class/drm/renderD{128 + hardware['unit']}"))
        remove_tree(os.path.join(path, "drm"))


def blocks(hardware: Hardware) -> List[str]:
    """Disk and partition; every drive of the tests has one of each."""
    return [f"nvme{hardware['unit']}n1", f"nvme{hardware['unit']}n1p1"]


def nodes(hardware: Hardware) -> List[str]:
    """Device files below /dev that the driver makes."""
    if hardware["kind"] == "nvme":
        return [f"nvme{hardware['unit']}", *blocks(hardware)]
    if hardware["kind"] == "gpu":
        return [f"dri/renderD{128 + hardware['unit']}"]
    return []


def number(hardware: Hardware, name: str) -> str:
    """major:minor of a disk (``nvme0n1``) or its partition."""
    return f"259:{2 * hardware['unit'] + (1 if name.endswith('p1') else 0)}"


def by_id(hardware: Hardware) -> str:
    return f"nvme-STUB_{hardware['serial']}"


def _bind_nvme(sysfs: str, dev: str, path: str, hardware: Hardware) -> None:
    controller = f"nvme{hardware['unit']}"
    disk, partition = blocks(hardware)
    top = os.path.join(path, "nvme", controller)
    for name, value in (
        ("dev", f"240:{hardware['unit']}"),
        ("serial", hardware["serial"]),
        ("model", "STUB"),
        ("state", "live"),
        ("transport", "pcie"),
        ("address", hardware["bdf"]),
        ("cntlid", "1"),
    ):
        write(os.path.join(top, name), value + "\n")
    link(os.path.join(top, "device"), path)
    link(os.path.join(top, "subsystem"), os.path.join(sysfs, "class/nvme"))
    link(os.path.join(sysfs, "class/nvme", controller), top)
    for name, folder in ((disk, os.path.join(top, disk)), (partition, os.path.join(top, disk, partition))):
        write(os.path.join(folder, "dev"), number(hardware, name) + "\n")
        write(os.path.join(folder, "size"), "2048\n")
        write(os.path.join(folder, "ro"), "0\n")
        write(os.path.join(folder, "uevent"), f"DEVNAME={name}\n")
        os.makedirs(os.path.join(folder, "holders"), exist_ok=True)
        link(os.path.join(folder, "subsystem"), os.path.join(sysfs, "class/block"))
        link(os.path.join(sysfs, "class/block", name), folder)
        link(os.path.join(sysfs, "dev/block", number(hardware, name)), folder)
    os.makedirs(os.path.join(top, disk, "slaves"), exist_ok=True)
    write(os.path.join(top, disk, partition, "partition"), "1\n")
    link(os.path.join(top, disk, "device"), top)
    link(os.path.join(sysfs, "block", disk), os.path.join(top, disk))
    for name in nodes(hardware):
        write(os.path.join(dev, name), "")
    link(os.path.join(dev, "disk/by-id", by_id(hardware)), os.path.join(dev, disk))


def _bind_net(sysfs: str, _dev: str, path: str, hardware: Hardware) -> None:
    name = f"eth{hardware['unit']}"
    make_interface(sysfs, os.path.join(path, "net", name), hardware["unit"] + 2)
    link(os.path.join(path, "net", name, "device"), path)


def make_interface(sysfs: str, folder: str, index: int) -> None:
    """A network interface that is down."""
    for attribute, value in (
        ("ifindex", str(index)),
        ("iflink", str(index)),
        ("operstate", "down"),
        ("flags", "0x1002"),
        ("address", f"02:00:00:00:00:{index:02x}"),
        ("type", "1"),
        ("mtu", "1500"),
    ):
        write(os.path.join(folder, attribute), value + "\n")
    link(os.path.join(folder, "subsystem"), os.path.join(sysfs, "class/net"))
    link(os.path.join(sysfs, "class/net", os.path.basename(folder)), folder)


def _bind_gpu(sysfs: str, dev: str, path: str, hardware: Hardware) -> None:
    name = f"renderD{128 + hardware['unit']}"
    folder = os.path.join(path, "drm", name)
    write(os.path.join(folder, "dev"), f"226:{128 + hardware['unit']}\n")
    write(os.path.join(folder, "uevent"), f"DEVNAME=dri/{name}\n")
    link(os.path.join(folder, "device"), path)
    link(os.path.join(folder, "subsystem"), os.path.join(sysfs, "class/drm"))
    link(os.path.join(sysfs, "class/drm", name), folder)
    write(os.path.join(dev, "dri", name), "")
