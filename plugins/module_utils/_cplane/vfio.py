# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices through vfio-pci and the type1 IOMMU: the kernel's interface (linux/vfio.h), and nothing of NVMe.

Registers are reached through the device's descriptor, never through a map: four aligned bytes are one access of 32
bits, a device whose memory space is switched off gives an error and no signal, and there is no map that could be left
behind, which would keep the device from its next driver for ever.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._pci.sysfs import Sysfs
from .errors import ConfigError, CplaneError, DeviceBusy, NotYet
from .holders import has_open, vfio_holders

DRIVER = "vfio-pci"
NVME_CLASS = "010802"
_HARMLESS = (None, DRIVER, "pci-stub", "pcieport")
"""Drivers of other devices of a group that leave it to us; they start no DMA."""

# _IO(';', 100 + n)
(
    _GET_API_VERSION,
    _CHECK_EXTENSION,
    _SET_IOMMU,
    _GROUP_GET_STATUS,
    _GROUP_SET_CONTAINER,
    _GROUP_UNSET_CONTAINER,
    _GROUP_GET_DEVICE_FD,
    _DEVICE_GET_INFO,
    _DEVICE_GET_REGION_INFO,
    _DEVICE_GET_IRQ_INFO,
    _DEVICE_SET_IRQS,
    _DEVICE_RESET,
    _IOMMU_GET_INFO,
    _IOMMU_MAP_DMA,
) = range(0x3B64, 0x3B64 + 14)
_TYPE1V2 = 3
_VIABLE = 1 << 0
_MAP_READ, _MAP_WRITE = 1 << 0, 1 << 1
_IRQ_EVENTFD, _IRQ_TRIGGER = 1 << 2, 1 << 5
_INFO_CAPS = 1 << 1
_CAP_IOVA_RANGE = 1

BAR0, CONFIG = 0, 7
"""Numbers of regions."""
ERROR_IRQ, REQUEST_IRQ = 3, 4
"""What may be signalled: an uncorrectable error, and that the device is wanted back."""

_GROUP_STATUS = struct.Struct("=II")
_IOMMU_INFO = struct.Struct("=IIQI4x")
_CAP_HEADER = struct.Struct("=HHI")
_RANGES = struct.Struct("=II")
_RANGE = struct.Struct("=QQ")
_DMA_MAP = struct.Struct("=IIQQQ")
_REGION_INFO = struct.Struct("=IIIIQQ")
_IRQ_SET = struct.Struct("=IIIIIi")

_COMMAND = 0x04
_MEMORY, _BUS_MASTER = 1 << 1, 1 << 2
_MSI_WINDOW = 0xFEE00000
"""Where x86 has interrupts instead of memory; for kernels that do not tell what is reserved."""

_EFD_NONBLOCK, _EFD_CLOEXEC = 0o4000, 0o2000000


@dataclass(frozen=True)
class Places:
    """Where the kernel's filesystems are."""

    sysfs: str = "/sys"
    dev: str = "/dev"
    proc: str = "/proc"

    def node(self, group: str) -> str:
        """The device file of an IOMMU group."""
        return f"{self.dev}/vfio/{group}"


HOST = Places()

# -- what is known before anything is opened ----------------------------------------------------------------------


def check_device(bdf: str, places: Places = HOST) -> str:
    """Return the IOMMU group of a controller that can be opened; raises ConfigError or NotYet that say what to do."""
    sysfs = Sysfs(places.sysfs)
    if sysfs.inode(bdf) is None:
        raise ConfigError(f"{bdf}: there is no such PCI device on this host")
    device = sysfs.device(bdf)
    if device.class_code != NVME_CLASS:
        raise ConfigError(f"{bdf} is no NVMe controller (its class is {device.class_code or 'unknown'})")
    if device.iommu_group is None:
        raise ConfigError(
            f"{bdf} has no IOMMU group, so nothing would confine what it writes to; switch the IOMMU on, in the "
            "firmware and for the kernel (intel_iommu=on), and boot again"
        )
    if device.driver != DRIVER:
        has = f"is bound to {device.driver}, not to {DRIVER}" if device.driver else "has no driver"
        raise NotYet(f"{bdf} {has}; bind it with iofabric.sharing.pci_driver and 'driver: {DRIVER}'")
    _check_group(bdf, device.iommu_group, sysfs)
    _check_node(bdf, device.iommu_group, places)
    return device.iommu_group


def _check_group(bdf: str, group: str, sysfs: Sysfs) -> None:
    """Nothing of the group may be in the hands of a driver that could have it do DMA."""
    others = [f"{other} ({driver})" for other, driver in _others(bdf, group, sysfs) if driver not in _HARMLESS]
    if others:
        raise NotYet(
            f"IOMMU group {group} of {bdf} is not viable: {', '.join(others)} must be taken from its driver, too; "
            "bind the whole group with iofabric.sharing.pci_driver and 'group: include'"
        )


def _others(bdf: str, group: str, sysfs: Sysfs) -> List[Tuple[str, object]]:
    folder = os.path.join(sysfs.root, "kernel/iommu_groups", group, "devices")
    try:
        found = sorted(os.listdir(folder))
    except OSError:
        return []  # the kernel has the last word
    # A bridge (class 06) is no endpoint, whatever watches over it.
    return [
        (other, sysfs.driver(other))
        for other in found
        if other != bdf and not sysfs.device(other).class_code.startswith("06")
    ]


def _check_node(bdf: str, group: str, places: Places) -> None:
    if os.path.exists(places.node(group)):
        return
    if os.path.exists(places.node(f"noiommu-{group}")):
        raise ConfigError(f"{bdf} is open to {DRIVER} without an IOMMU only, which would let it write anywhere")
    raise NotYet(f"{bdf}: there is no {places.node(group)}; load the modules vfio-pci and vfio_iommu_type1")


def check_free(bdf: str, places: Places = HOST, server: Optional[int] = None) -> None:
    """Raise ConfigError or NotYet when a controller cannot be opened, DeviceBusy when somebody has it.

    ``server`` is a process that has it by right and is about to be replaced: its clients count, itself it does not.
    """
    node = places.node(check_device(bdf, places))
    try:
        os.close(_open_group(bdf, node, places.proc))
    except DeviceBusy:
        if server is None or not has_open(server, node, places.proc):
            raise
        holders = vfio_holders(node, bdf, places.proc, server)
        if holders:
            raise _busy(bdf, node, holders) from None


def _open_group(bdf: str, node: str, proc: str) -> int:
    try:
        return os.open(node, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise _not_opened(node, error) from None
    raise _busy(bdf, node, vfio_holders(node, bdf, proc))


def _busy(bdf: str, node: str, holders: List[str]) -> DeviceBusy:
    by = f", by {' and '.join(holders)}; end that first" if holders else ", and cannot be seen by what"
    return DeviceBusy(f"{bdf}: {node} is in use{by}", holders=holders)


# -- structures ---------------------------------------------------------------------------------------------------


class Region(NamedTuple):
    """A region of a device: bytes, and where they begin in its descriptor."""

    size: int
    offset: int


def parse_ranges(info: bytes) -> List[Tuple[int, int]]:
    """Read the usable IO addresses (first and last of each range) out of a struct vfio_iommu_type1_info.

    A kernel that does not tell (before 5.4) leaves what lies below the interrupts.
    """
    _size, flags, _page_sizes, place = _IOMMU_INFO.unpack_from(info)
    seen = set()
    while flags & _INFO_CAPS and 0 < place <= len(info) - _CAP_HEADER.size and place not in seen:
        seen.add(place)
        identifier, _version, after = _CAP_HEADER.unpack_from(info, place)
        if identifier == _CAP_IOVA_RANGE:
            start = place + _CAP_HEADER.size
            count, _reserved = _RANGES.unpack_from(info, start)
            start += _RANGES.size
            return list(_RANGE.iter_unpack(info[start : start + count * _RANGE.size]))
        place = after
    return [(0, _MSI_WINDOW - 1)]


def reach(ranges: Sequence[Tuple[int, int]]) -> int:
    """Return how many addresses from 0 on can be used without a gap."""
    end = 0
    for first, last in sorted(ranges):
        if first > end:
            break
        end = max(end, last + 1)
    return end


# -- container and groups -----------------------------------------------------------------------------------------


class Container:
    """An IOMMU address space with the groups of these devices. Raises CplaneError and its kinds, with nothing open."""

    def __init__(self, bdfs: Sequence[str], places: Places = HOST) -> None:
        self._places = places
        self._of = {bdf: check_device(bdf, places) for bdf in bdfs}
        self._groups: Dict[str, int] = {}
        self._fd = _open_vfio(f"{places.dev}/vfio/vfio")
        try:
            for bdf, group in self._of.items():
                if group not in self._groups:
                    self._groups[group] = fd = _open_group(bdf, places.node(group), places.proc)
                    self._attach(bdf, group, fd)
        except CplaneError:
            self.close()
            raise

    def _attach(self, bdf: str, group: str, fd: int) -> None:
        status = bytearray(_GROUP_STATUS.pack(_GROUP_STATUS.size, 0))
        try:
            fcntl.ioctl(fd, _GROUP_GET_STATUS, status)
            if not _GROUP_STATUS.unpack(status)[1] & _VIABLE:
                others = [other for other, _driver in _others(bdf, group, Sysfs(self._places.sysfs))]
                raise ConfigError(
                    f"IOMMU group {group} of {bdf} is not viable: a driver still has one of its other devices"
                    f" ({', '.join(others) or 'none can be seen'})"
                )
            fcntl.ioctl(fd, _GROUP_SET_CONTAINER, struct.pack("=i", self._fd))
            if len(self._groups) == 1:
                fcntl.ioctl(self._fd, _SET_IOMMU, _TYPE1V2)
        except OSError as error:
            hint = " (is there interrupt remapping?)" if error.errno == errno.EPERM else ""
            raise CplaneError(f"cannot put {bdf} behind the IOMMU: {error.strerror}{hint}") from None

    def ranges(self) -> List[Tuple[int, int]]:
        """Return the first and last IO address of each range that can be mapped."""
        info = bytearray(_IOMMU_INFO.pack(_IOMMU_INFO.size, 0, 0, 0))
        for _turn in range(2):
            fcntl.ioctl(self._fd, _IOMMU_GET_INFO, info)
            (wanted,) = struct.unpack_from("=I", info)
            if wanted <= len(info):
                break
            # There is more to tell; it wants to be asked with the room for it.
            info = bytearray(_IOMMU_INFO.pack(wanted, 0, 0, 0)).ljust(wanted, b"\0")
        return parse_ranges(bytes(info))

    def map(self, address: int, nbytes: int, iova: int) -> None:
        """Let the devices read and write memory of this process at these IO addresses; locks it."""
        _raise_locked_limit()
        request = _DMA_MAP.pack(_DMA_MAP.size, _MAP_READ | _MAP_WRITE, address, iova, nbytes)
        try:
            fcntl.ioctl(self._fd, _IOMMU_MAP_DMA, request)
        except OSError as error:
            raise CplaneError(
                f"cannot lock {nbytes} bytes for DMA: {error.strerror}{_locked_hint(error, nbytes)}"
            ) from None

    def device(self, bdf: str) -> Device:
        """Open a device of a group that was added."""
        try:
            # A bytearray: with bytes, the buffer would be returned and the descriptor lost.
            fd = fcntl.ioctl(self._groups[self._of[bdf]], _GROUP_GET_DEVICE_FD, bytearray(bdf.encode("ascii") + b"\0"))
        except OSError as error:
            raise CplaneError(f"cannot open {bdf} through {DRIVER}: {error.strerror}") from None
        return Device(bdf, fd)

    def close(self) -> None:
        """Let go of the groups and the address space; devices must have been closed."""
        for fd in self._groups.values():
            os.close(fd)
        os.close(self._fd)


def _open_vfio(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotYet(f"there is no {path}; load the modules vfio-pci and vfio_iommu_type1") from None
    except OSError as error:
        raise _not_opened(path, error) from None
    if fcntl.ioctl(fd, _GET_API_VERSION) or fcntl.ioctl(fd, _CHECK_EXTENSION, _TYPE1V2) != 1:
        os.close(fd)
        raise ConfigError(f"{path} does not offer the type1 IOMMU; load the module vfio_iommu_type1")
    return fd


def _not_opened(path: str, error: OSError) -> CplaneError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(f"{path}: permission denied; run the server as root, or give its user that file")
    return CplaneError(f"cannot open {path}: {error.strerror}")


def _raise_locked_limit() -> None:
    """What may be locked without asking anybody."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def _locked_hint(error: OSError, nbytes: int) -> str:
    limit, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if error.errno != errno.ENOMEM or limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"; this user may lock {limit} bytes: raise that (LimitMEMLOCK= of a unit, ulimit -l), or give a smaller"
        " heap_size"
    )


# -- devices ------------------------------------------------------------------------------------------------------


def eventfd() -> int:
    """Return a new event counter that does not block (Python has none before 3.10)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.eventfd(0, _EFD_NONBLOCK | _EFD_CLOEXEC))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


class Device:
    """A device that was opened. Its descriptor is what clients map at offset 0 to reach BAR0.

    Reads and writes raise OSError (EIO) when the device cannot be reached; one that was pulled reads as all ones.
    """

    def __init__(self, bdf: str, fd: int) -> None:
        self.bdf = bdf
        self.fd = fd
        try:
            self.bar0, self._config = self._region(BAR0), self._region(CONFIG)
        except OSError as error:
            os.close(fd)
            raise CplaneError(f"cannot ask {bdf} for its registers: {error.strerror}") from None

    def _region(self, number: int) -> Region:
        info = bytearray(_REGION_INFO.pack(_REGION_INFO.size, 0, number, 0, 0, 0))
        fcntl.ioctl(self.fd, _DEVICE_GET_REGION_INFO, info)
        return Region(*_REGION_INFO.unpack(info)[4:])

    def read(self, offset: int) -> int:
        """Read a 32-bit register of BAR0."""
        data = os.pread(self.fd, 4, self.bar0.offset + offset)
        if len(data) != 4:
            raise OSError(errno.EIO, f"{self.bdf} was let go")
        return int.from_bytes(data, "little")

    def write(self, offset: int, value: int) -> None:
        """Write a 32-bit register of BAR0, in one access."""
        os.pwrite(self.fd, value.to_bytes(4, "little"), self.bar0.offset + offset)

    def set_bus_master(self, on: bool) -> None:
        """Let the device start DMA, or not; when it returns, whatever it wrote before has arrived."""
        place = self._config.offset + _COMMAND
        word = int.from_bytes(os.pread(self.fd, 2, place), "little") | _MEMORY
        word = word | _BUS_MASTER if on else word & ~_BUS_MASTER
        os.pwrite(self.fd, word.to_bytes(2, "little"), place)
        os.pread(self.fd, 2, place)

    def signal(self, irq: int, event: int) -> None:
        """Have the kernel count an event up when ``irq`` happens; a device that has none is left alone."""
        request = _IRQ_SET.pack(_IRQ_SET.size, _IRQ_EVENTFD | _IRQ_TRIGGER, irq, 0, 1, event)
        try:
            fcntl.ioctl(self.fd, _DEVICE_SET_IRQS, request)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTTY):
                raise

    def release(self) -> None:
        """Give the device back to the kernel while the number of its descriptor stays taken.

        Other threads may be about to use that number, or to pass it on: what they reach from now on is nothing.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, self.fd, inheritable=False)
        os.close(null)

    def close(self) -> None:
        """Let go of the device."""
        os.close(self.fd)
