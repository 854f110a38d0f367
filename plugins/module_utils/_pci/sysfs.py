# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices as sysfs shows them. The root is a parameter: a software node keeps a small sysfs of its own.

Nothing here raises because an attribute is missing: devices vanish while they are looked at, and small trees have only
the attributes that somebody needed. What is there and cannot be read is a SysfsError.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .._plan import SharingError
from .address import normalise

_MODULES = ("dis_smartio", "dis_sio")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ROOT_BUS = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")  # the buses behind a VMD controller
_HIDDEN_PATH = re.compile(r"nvme(\d+)c\d+n(\d+)")  # one path to a namespace that native multipath merges
_NAMESPACE = re.compile(r"nvme\d+n\d+(p\d+)?")
_CLASS_FOLDERS = ("block", "net", "nvme")
_DULL_FOLDERS = frozenset({"power", "msi_irqs", "statistics", "queues", "mq", "queue", "trace", "integrity"})
_MAX_FOLDERS = 50000
_MAX_ATTRIBUTE = 65536
_IFF_UP = 1
_SERIAL_CAPABILITY = 0x0003
_NUMBER = re.compile(r"[0-9]{1,9}")
# What the kernel says of that which is not there, or goes away just now. Every other error hides something.
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO))


class SysfsError(SharingError):
    """A name that cannot be one in sysfs, what cannot be read, or a device tree too large to look through."""


@dataclass(frozen=True)
class PciDevice:
    """Attributes of one device. Ids are lower-case hex without 0x: four digits, the class six, ``""`` where missing."""

    bdf: str
    vendor_id: str = ""
    device_id: str = ""
    subsystem_vendor_id: str = ""
    subsystem_device_id: str = ""
    class_code: str = ""
    driver: Optional[str] = None
    iommu_group: Optional[str] = None
    physfn: Optional[str] = None  # BDF of the physical function, for a virtual function
    numvfs: Optional[int] = None  # virtual functions enabled; None where SR-IOV is not there


@dataclass(frozen=True)
class Entry:
    """A device or network interface: its name, its folder in sysfs, and a device's "major:minor" or ``""``."""

    name: str
    folder: str
    number: str = ""


@dataclass(frozen=True)
class Export:
    """What an NVMe target of the kernel serves: the path of a device or file, and the name of the subsystem."""

    path: str
    nqn: str


@dataclass(frozen=True)
class Tree:
    """What is below a device in sysfs, in a stable order; other PCI devices behind it are named, not entered."""

    nodes: Tuple[str, ...] = ()  # names below /dev
    interfaces: Tuple[Entry, ...] = ()
    blocks: Tuple[Entry, ...] = ()  # partitions too
    chars: Tuple[Entry, ...] = ()  # character devices, by their names below /dev
    children: Tuple[str, ...] = ()  # BDFs of the PCI devices directly behind it
    foreign_interfaces: bool = False  # it has interfaces, but none that this network namespace may see


class _Devices(Mapping[str, PciDevice]):
    """Every device by BDF, each read when it is asked for and then kept."""

    def __init__(self, addresses: List[str], read: Callable[[str], PciDevice]) -> None:
        self._read = read
        self._known: Dict[str, Optional[PciDevice]] = dict.fromkeys(addresses)

    def __getitem__(self, bdf: str) -> PciDevice:
        device = self._known[bdf]
        if device is None:
            device = self._known[bdf] = self._read(bdf)
        return device

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Sysfs:
    """Reads one sysfs tree. Methods that take a BDF take it in full and raise AddressError for anything else."""

    def __init__(self, root: str = "/sys") -> None:
        self.root = root

    def addresses(self) -> List[str]:
        """BDFs of all devices, in order; one folder is listed, nothing else is read."""
        found = [name for name in _listdir(self._path("bus/pci/devices")) if _BDF.fullmatch(name)]
        return sorted(found, key=lambda bdf: (len(bdf), bdf))

    def devices(self) -> Mapping[str, PciDevice]:
        """All devices by BDF, in order; the attributes of each are read at its first use."""
        return _Devices(self.addresses(), self.device)

    def device(self, bdf: str) -> PciDevice:
        """The attributes of one device; all of them are empty when it is not there."""
        folder = self.folder(bdf)
        return PciDevice(
            bdf=normalise(bdf),
            vendor_id=_read_hex(folder, "vendor", 4),
            device_id=_read_hex(folder, "device", 4),
            subsystem_vendor_id=_read_hex(folder, "subsystem_vendor", 4),
            subsystem_device_id=_read_hex(folder, "subsystem_device", 4),
            class_code=_read_hex(folder, "class", 6),
            driver=_link_name(folder, "driver"),
            iommu_group=_link_name(folder, "iommu_group"),
            physfn=_link_name(folder, "physfn"),
            numvfs=_read_number(folder, "sriov_numvfs"),
        )

    def folder(self, bdf: str) -> str:
        """Path of the device's folder (a link to it in a real sysfs)."""
        return self._path("bus/pci/devices", normalise(bdf))

    def totalvfs(self, bdf: str) -> Optional[int]:
        """How many virtual functions the device can have; None where it has no SR-IOV capability."""
        return _read_number(self.folder(bdf), "sriov_totalvfs")

    def virtual_functions(self, bdf: str) -> List[str]:
        """BDFs of the device's virtual functions that are there, in the order of their numbers."""
        folder = self.folder(bdf)
        links = [name for name in _sorted(_listdir(folder)) if re.fullmatch(r"virtfn[0-9]+", name)]
        found = [_link_name(folder, link) or "" for link in links]
        return [bdf for bdf in found if _BDF.fullmatch(bdf) and self.inode(bdf)]

    def driver(self, bdf: str) -> Optional[str]:
        """Name of the bound driver."""
        return _link_name(self.folder(bdf), "driver")

    def driver_override(self, bdf: str) -> Optional[str]:
        """The only driver that the kernel may bind, ``""`` for any; None where that cannot be set."""
        text = _read(os.path.join(self.folder(bdf), "driver_override"))
        return "" if text == "(null)" else text

    def modalias(self, bdf: str) -> str:
        """What modules are found by, ``""`` where sysfs does not tell."""
        return _read(os.path.join(self.folder(bdf), "modalias")) or ""

    def group_members(self, bdf: str) -> List[str]:
        """BDFs of all devices of its IOMMU group, itself included; none where it is in none."""
        return _sorted(_listdir(os.path.join(self.folder(bdf), "iommu_group/devices")))

    def has_driver(self, driver: str) -> bool:
        """Whether a PCI driver is loaded."""
        return _exists(self._path("bus/pci/drivers", driver))

    def drivers_of(self, module: str) -> Optional[List[str]]:
        """The PCI drivers of a kernel module; None where it is not loaded."""
        folder = self._path("module", module.replace("-", "_"))
        if not _exists(folder):
            return None
        prefix = "pci:"
        names = _listdir(os.path.join(folder, "drivers"))
        return [name[len(prefix) :] for name in names if name.startswith(prefix)]

    def inode(self, bdf: str) -> Optional[int]:
        """Inode of the device's own folder, new for every appearance of the device; None when it is not there."""
        found = _stat(self.folder(bdf))
        return None if found is None else found.st_ino

    def serial(self, bdf: str) -> Optional[str]:
        """Serial number: of the NVMe controller, else the PCIe capability (written 00-11-22-... as lspci does)."""
        config = os.path.join(self.folder(bdf), "config")
        return self._nvme_attribute(bdf, "serial") or _serial_capability(_read_bytes(config))

    def model(self, bdf: str) -> Optional[str]:
        """Model name of an NVMe controller, None for anything else."""
        return self._nvme_attribute(bdf, "model")

    def tree(self, bdf: str) -> Tree:
        """Everything below the device, in one walk; SysfsError when there is too much of it."""
        return _Walk(self).run(self.folder(bdf))

    def device_nodes(self, bdf: str) -> List[str]:
        """Names below /dev: ``nvme0``, ``nvme0n1``, ``nvme0n1p1``, ``dri/card0``, ..."""
        return list(self.tree(bdf).nodes)

    def interfaces(self, bdf: str) -> List[str]:
        """Names of its network interfaces."""
        return [entry.name for entry in self.tree(bdf).interfaces]

    def block_devices(self, bdf: str) -> Dict[str, str]:
        """Its disks and partitions, name to "major:minor" (``""`` where sysfs does not tell)."""
        return {entry.name: entry.number for entry in self.tree(bdf).blocks}

    def block(self, name: str) -> Entry:
        """A block device found by name; one that is not there has no number."""
        subsystems = self._path("class/nvme-subsystem")
        places = [self._path("class/block"), self._path("block")]
        places += [os.path.join(subsystems, entry) for entry in _listdir(subsystems)]
        found = [place for place in places if _exists(os.path.join(place, name))]
        return _block(os.path.join((found or places)[0], name))

    def partitions(self, disk: Entry) -> List[Entry]:
        """The partitions of a disk, in order."""
        folders = [os.path.join(disk.folder, name) for name in _sorted(_listdir(disk.folder))]
        return [_block(folder) for folder in folders if _exists(os.path.join(folder, "partition"))]

    def holders(self, block: Entry) -> List[str]:
        """Names of the block devices that are built on this one (dm, md, bcache)."""
        return _sorted(_listdir(os.path.join(block.folder, "holders")))

    def is_bcache(self, block: Entry) -> bool:
        """Whether bcache has this block device, as a cache that may have nothing to cache yet, too."""
        return _exists(os.path.join(block.folder, "bcache"))

    def loops(self) -> List[Tuple[str, str]]:
        """The loop devices that are set up, each with the path of what it is on."""
        top = self._path("class/block")
        found = [(name, _read(os.path.join(top, name, "loop/backing_file"))) for name in self._named(top, "loop")]
        return [(name, path) for name, path in found if path]

    def exports(self) -> List[Export]:
        """What the kernel's own NVMe target serves, whether or not a host is connected."""
        top = self._path("kernel/config/nvmet/subsystems")
        found = []
        for nqn in _sorted(_listdir(top)):
            spaces = os.path.join(top, nqn, "namespaces")
            folders = [os.path.join(spaces, name) for name in _sorted(_listdir(spaces))]
            for folder in [*folders, os.path.join(top, nqn, "passthru")]:
                path = _read(os.path.join(folder, "device_path"))
                if path and _read(os.path.join(folder, "enable")) == "1":
                    found.append(Export(path, nqn))
        return found

    def vfio_group(self, device: PciDevice) -> Optional[Entry]:
        """The node below /dev through which the device's group is used with VFIO; None where there is none."""
        for name in (device.iommu_group, f"noiommu-{device.iommu_group}"):
            folder = self._path("class/vfio", str(name))
            number = _read(os.path.join(folder, "dev"))
            if number:
                return Entry(f"vfio/{name}", folder, number)
        return None

    def btrfs_peers(self, block: Entry) -> List[Entry]:
        """The other members of the mounted btrfs that this block device belongs to: mounts name only one of them."""
        top = self._path("fs/btrfs")
        groups = [_listdir(os.path.join(top, uuid, "devices")) for uuid in _listdir(top)]
        return [self.block(name) for group in groups if block.name in group for name in group if name != block.name]

    def interface(self, name: str) -> Entry:
        """An interface found by name, whether or not it is there."""
        return Entry(name, self._path("class/net", name))

    def is_up(self, interface: Entry) -> bool:
        """IFF_UP among the interface's flags; where these are missing, its operstate is ``up``.

        SysfsError where the interface is not there any more, as far as can be told: it may be up under another name.
        """
        try:
            return bool(int(_read(os.path.join(interface.folder, "flags")) or "", 16) & _IFF_UP)
        except ValueError:
            state = _read(os.path.join(interface.folder, "operstate"))
        # The kernel gives both to every interface; a small tree need not.
        if state is None and (self.is_kernels() or not _exists(interface.folder)):
            raise SysfsError(f"{interface.folder} went away while it was looked at; run again")
        return state == "up"

    def uppers(self, interface: Entry) -> List[str]:
        """Names of the interfaces directly above this one: its bond or bridge (master), VLANs and the like."""
        prefix = "upper_"
        above = {entry[len(prefix) :] for entry in _listdir(interface.folder) if entry.startswith(prefix)}
        master = _link_name(interface.folder, "master")
        return _sorted(above | {master} if master else above)

    def module(self) -> Optional[Tuple[str, Optional[str]]]:
        """Name and version of the SmartIO module that is loaded; None without one, no version where it tells none."""
        for name in _MODULES:
            if _exists(self._path("module", name)):
                return name, _read(self._path("module", name, "version")) or None
        return None

    def has_iommu(self) -> Optional[bool]:
        """Whether an IOMMU is active; None where this is not the sysfs of a whole machine, as a software node's."""
        if not _exists(self._path("devices/system")):
            return None
        return bool(_listdir(self._path("class/iommu")) or _listdir(self._path("kernel/iommu_groups")))

    def module_stamp(self) -> Optional[Tuple[int, int]]:
        """Inode and ctime (ns) of the SmartIO module's folder: they change with every load. None without the module."""
        for module in _MODULES:
            found = _stat(self._path("module", module))
            if found is not None:
                return found.st_ino, found.st_ctime_ns
        return None

    def parameter(self, name: str) -> Optional[str]:
        """Value of a parameter of the SmartIO module, None where sysfs does not show it."""
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise SysfsError(f"{name!r} cannot be the name of a module parameter; use letters, digits and _")
        values = (self.parameter_of(module, name) for module in _MODULES)
        return next((value for value in values if value is not None), None)

    def parameter_of(self, module: str, name: str) -> Optional[str]:
        """Value of a parameter of a kernel module, None where sysfs does not show it."""
        return _read(self._path("module", module, "parameters", name))

    def is_kernels(self) -> bool:
        """Whether this is the sysfs of the kernel that runs here, not a small one or a copy."""
        try:
            return os.path.samefile(self.root, "/sys")
        except OSError:
            return False

    def _named(self, folder: str, prefix: str) -> List[str]:
        return [name for name in _sorted(_listdir(folder)) if name.startswith(prefix)]

    def _path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def _nvme_attribute(self, bdf: str, attribute: str) -> Optional[str]:
        controllers = os.path.join(self.folder(bdf), "nvme")
        for name in _sorted(_listdir(controllers)):
            value = _read(os.path.join(controllers, name, attribute))
            if value:
                return value
        return None


class _Walk:
    """One walk through a device's folder, parents before children, siblings in natural order."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._nodes: Dict[str, None] = {}
        self._chars: List[Entry] = []
        self._interfaces: Dict[str, Entry] = {}
        self._blocks: Dict[str, Entry] = {}
        self._children: List[str] = []
        self._foreign = False
        self._visited = 0

    def run(self, top: str) -> Tree:
        self._descend(top)
        return Tree(
            nodes=tuple(self._nodes),
            interfaces=tuple(self._interfaces.values()),
            blocks=tuple(self._blocks.values()),
            chars=tuple(self._chars),
            children=tuple(self._children),
            foreign_interfaces=self._foreign and not self._interfaces,
        )

    def _descend(self, folder: str) -> None:
        inside = os.path.basename(folder)
        names = _folders(folder, follow=inside in _CLASS_FOLDERS)
        if inside == "net" and not names:
            self._foreign = True
        for name in names:
            path = os.path.join(folder, name)
            if _BDF.fullmatch(name):
                self._children.append(name)
            elif _ROOT_BUS.fullmatch(name):
                self._children += [entry for entry in _folders(path, follow=False) if _BDF.fullmatch(entry)]
            elif name not in _DULL_FOLDERS:
                self._visit(path, name, inside)

    def _visit(self, path: str, name: str, inside: str) -> None:
        self._visited += 1
        if self._visited > _MAX_FOLDERS:
            raise SysfsError(f"there are more than {_MAX_FOLDERS} folders below {path}; that is no PCI device's tree")
        if inside == "net":
            self._interfaces[name] = Entry(name, path)
        elif _HIDDEN_PATH.fullmatch(name):
            self._add_multipath(_HIDDEN_PATH.sub(r"nvme\1n\2", name))
            return
        else:
            self._add_node(path, name, inside)
        self._descend(path)

    def _add_node(self, path: str, name: str, inside: str) -> None:
        uevent = dict(line.partition("=")[::2] for line in (_read(os.path.join(path, "uevent")) or "").splitlines())
        is_block = (
            inside == "block"
            or uevent.get("DEVTYPE") in ("disk", "partition")
            or _NAMESPACE.fullmatch(name) is not None
            or _exists(os.path.join(path, "partition"))
        )
        number = _read(os.path.join(path, "dev")) or ""
        node = uevent.get("DEVNAME", name)
        if is_block:
            self._blocks[name] = _block(path)
        elif number:
            self._chars.append(Entry(node, path, number))
        if "DEVNAME" in uevent or is_block or inside == "nvme" or number:
            self._nodes[node] = None

    def _add_multipath(self, head: str) -> None:
        disk = self._sysfs.block(head)
        for entry in [disk] + self._sysfs.partitions(disk):
            self._nodes[entry.name] = None
            self._blocks[entry.name] = entry


def _block(folder: str) -> Entry:
    return Entry(os.path.basename(folder), folder, _read(os.path.join(folder, "dev")) or "")


def _natural(name: str) -> List[Tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _sorted(names: Iterable[str]) -> List[str]:
    return sorted(names, key=_natural)


def _unreadable(path: str, error: OSError) -> SysfsError:
    """What cannot be read is no less there: taking it for missing could let a disk in use be lent."""
    advice = "; run as root (become: true)" if isinstance(error, PermissionError) else ""
    said = "permission denied" if advice else (error.strerror or str(error)).lower()
    return SysfsError(f"could not read {path}: {said}{advice}")


def _stat(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unreadable(path, error) from error


def _exists(path: str) -> bool:
    return _stat(path) is not None


def _listdir(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise _unreadable(folder, error) from error


def _folders(folder: str, follow: bool) -> List[str]:
    """Names of the folders in a folder. Links are followed only where asked: others lead to drivers and parents."""
    try:
        with os.scandir(folder) as entries:
            return _sorted([entry.name for entry in entries if entry.is_dir(follow_symlinks=follow)])
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise _unreadable(folder, error) from error


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_ATTRIBUTE)
    except OSError:
        return b""


def _read(path: str) -> Optional[str]:
    """An attribute without the white space around it, None where it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_ATTRIBUTE).decode("utf-8", "replace").strip()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unreadable(path, error) from error


def _read_hex(folder: str, attribute: str, digits: int) -> str:
    text = (_read(os.path.join(folder, attribute)) or "").lower()
    text = text[2:] if text.startswith("0x") else text
    return text.zfill(digits) if re.fullmatch(r"[0-9a-f]+", text) and len(text) <= digits else ""


def _read_number(folder: str, attribute: str) -> Optional[int]:
    text = _read(os.path.join(folder, attribute))
    return int(text) if text and _NUMBER.fullmatch(text) else None


def _link_name(folder: str, link: str) -> Optional[str]:
    try:
        return os.path.basename(os.readlink(os.path.join(folder, link)).rstrip("/"))
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _unreadable(os.path.join(folder, link), error) from error


def _serial_capability(config: bytes) -> Optional[str]:
    """The Device Serial Number capability; without privilege only 64 bytes of the configuration space are readable."""
    offset, seen = 0x100, set()
    while 0x100 <= offset <= len(config) - 12 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _SERIAL_CAPABILITY:
            return "-".join(f"{byte:02x}" for byte in reversed(config[offset + 4 : offset + 12]))
        offset = header >> 20
    return None
