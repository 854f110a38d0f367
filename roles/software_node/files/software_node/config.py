# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a node (node.json): reading, checking and its defaults. README.md describes every key."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .address import Bdf, parse_bdf
from .errors import ConfigError

GENERATIONS = ("2018", "id-prefix", "current")
KINDS = ("nvme", "gpu", "net", "other")

# Fixed, so that the default UUID of a device is the same on every run.
_UUID_SPACE = uuid.UUID("6f2c1a54-7b0e-4d6a-9a0d-1f3f5d0c8e11")

CLASS_NAMES = {
    0x0104: "RAID bus controller",
    0x0106: "SATA controller",
    0x0107: "Serial Attached SCSI controller",
    0x0108: "Non-Volatile memory controller",
    0x0200: "Ethernet controller",
    0x0207: "Infiniband controller",
    0x0280: "Network controller",
    0x0300: "VGA compatible controller",
    0x0302: "3D controller",
    0x0380: "Display controller",
    0x0403: "Audio device",
    0x0604: "PCI bridge",
    0x0680: "Bridge",
    0x0C03: "USB controller",
    0x1200: "Processing accelerators",
}
VENDOR_NAMES = {
    0x1002: "Advanced Micro Devices, Inc. [AMD/ATI]",
    0x10DE: "NVIDIA Corporation",
    0x10EE: "Xilinx Corporation",
    0x144D: "Samsung Electronics Co Ltd",
    0x14E4: "Broadcom Inc. and subsidiaries",
    0x15B3: "Mellanox Technologies",
    0x1987: "Phison Electronics Corporation",
    0x1AF4: "Red Hat, Inc.",
    0x1B36: "Red Hat, Inc.",
    0x8086: "Intel Corporation",
}


@dataclass(frozen=True)
class Device:
    """One PCI function, as configured (and as lenders describe it to borrowers)."""

    bdf: Bdf
    vendor_id: int
    device_id: int
    class_code: int
    subsystem_vendor_id: int
    subsystem_device_id: int
    name: str
    uuid: str
    kind: str
    driver: str = ""
    serial: str = ""
    model: str = ""
    slot: str = ""
    size: int = 1 << 30
    partitions: int = 1
    numa_node: int = 0
    totalvfs: int = 0
    physfn: str = ""
    iommu_group: int = -1

    @property
    def class_name(self) -> str:
        """The words lspci has for the class."""
        return CLASS_NAMES.get(self.class_code >> 8, f"Class {self.class_code >> 8:04x}")


@dataclass(frozen=True)
class Tree:
    """A transparent tree: devices behind an adapter that belong to no host until they are scanned."""

    adapter: int
    devices: Tuple[Device, ...]


@dataclass(frozen=True)
class Peer:
    """Where another node listens, and its host name (for disinfo)."""

    node_id: int
    host: str
    port: int
    name: str = ""


@dataclass(frozen=True)
class NodeConfig:
    """One node."""

    name: str
    node_ids: Tuple[int, ...]
    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    peers: Tuple[Peer, ...] = ()
    devices: Tuple[Device, ...] = ()
    transparent: Tuple[Tree, ...] = ()
    generation: str = "current"
    strict: bool = False
    borrowed_word: str = "available"
    virtual_bus: str = "0000:04"
    autoborrow_transparent: int = 0
    boot_id: str = ""
    sysfs: str = ""
    faults: Tuple[Tuple[str, str], ...] = ()

    @property
    def node_id(self) -> int:
        """The id that this node's devices belong to: that of adapter 0."""
        return self.node_ids[0]


class _Reader:
    """Takes typed values out of one JSON object and refuses what is left over."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: must be an object, not {type(data).__name__}")
        self._data: Dict[str, Any] = dict(data)
        self._where = where

    def bad(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._where}: {key} {problem}")

    def take(self, key: str, default: Any = None) -> Any:
        return self._data.pop(key, default)

    def text(self, key: str, default: Optional[str] = None) -> str:
        value = self.take(key, default)
        if value is None:
            raise self.bad(key, "is missing")
        if not isinstance(value, str) or "\n" in value:
            raise self.bad(key, f"must be one line of text, not {value!r}")
        return value

    def number(self, key: str, default: Optional[int] = None, low: int = 0, high: int = 1 << 62) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(key, f"must be a whole number from {low} to {high}, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self.take(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, f"must be true or false, not {value!r}")
        return value

    def hexadecimal(self, key: str, limit: int, default: Optional[int] = None) -> int:
        value = self.take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not re.match(r"^(0[xX])?[0-9a-fA-F]{1,6}$", value) or int(value, 16) > limit:
            raise self.bad(key, f'must be hexadecimal in quotes, like "8086", not {value!r}')
        return int(value, 16)

    def choice(self, key: str, words: Tuple[str, ...], default: str) -> str:
        value = self.text(key, default)
        if value not in words:
            raise self.bad(key, f"must be one of {', '.join(words)}, not {value!r}")
        return value

    def items(self, key: str) -> List[Any]:
        value = self.take(key, [])
        if not isinstance(value, list):
            raise self.bad(key, "must be a list")
        return value

    def end(self) -> None:
        if self._data:
            raise ConfigError(f"{self._where}: unknown key {sorted(self._data)[0]!r}")


def default_name(vendor_id: int, device_id: int) -> str:
    """What lspci prints for a device that its table does not know: the vendor, and the id instead of a name."""
    return f"{VENDOR_NAMES.get(vendor_id, f'Vendor {vendor_id:04x}')} Device {device_id:04x}"


def kind_of(class_code: int) -> str:
    """The kind of device that a class code means."""
    if class_code >> 8 == 0x0108:
        return "nvme"
    return {0x03: "gpu", 0x02: "net"}.get(class_code >> 16, "other")


def _class_code(reader: _Reader) -> int:
    value = reader.text("class")
    digits = value[2:] if value[:2].lower() == "0x" else value
    if not re.match(r"^([0-9a-fA-F]{4}|[0-9a-fA-F]{6})$", digits):
        raise reader.bad("class", f'must be 4 or 6 hexadecimal digits, like "010802", not {value!r}')
    return int(digits.ljust(6, "0"), 16)


def _bdf(reader: _Reader, key: str) -> Bdf:
    try:
        return parse_bdf(reader.text(key))
    except ValueError as error:
        raise reader.bad(key, str(error)) from None


def _uuid(reader: _Reader, default: str) -> str:
    value = reader.text("uuid", "") or default
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise reader.bad("uuid", f"is not a UUID: {value!r}") from None


def _totalvfs(reader: _Reader) -> int:
    data = reader.take("sriov")
    if data is None:
        return 0
    inner = _Reader(data, "sriov")
    total = inner.number("totalvfs", high=256)
    inner.end()
    return total


def read_device(data: Any, node_name: str) -> Device:
    """A device of the JSON form in README.md; ConfigError names what is wrong."""
    reader = _Reader(data, f"device {data.get('bdf', '?')}" if isinstance(data, dict) else "device")
    bdf = _bdf(reader, "bdf")
    vendor, device = reader.hexadecimal("vendor_id", 0xFFFF), reader.hexadecimal("device_id", 0xFFFF)
    class_code = _class_code(reader)
    kind = reader.choice("kind", KINDS, kind_of(class_code))
    serial = reader.text("serial", "")
    physfn = str(_bdf(reader, "physfn")) if data.get("physfn") else reader.text("physfn", "")
    result = Device(
        bdf=bdf,
        vendor_id=vendor,
        device_id=device,
        class_code=class_code,
        subsystem_vendor_id=reader.hexadecimal("subsystem_vendor_id", 0xFFFF, vendor),
        subsystem_device_id=reader.hexadecimal("subsystem_device_id", 0xFFFF, device),
        name=reader.text("name", "") or default_name(vendor, device),
        uuid=_uuid(reader, str(uuid.uuid5(_UUID_SPACE, f"{node_name}/{bdf}/{serial}"))),
        kind=kind,
        driver=reader.text("driver", "nvme" if kind == "nvme" else ""),
        serial=serial,
        model=reader.text("model", "Software NVMe" if kind == "nvme" else ""),
        slot=reader.text("slot", ""),
        size=reader.number("size", 1 << 30),
        partitions=reader.number("partitions", 1, high=15),
        numa_node=reader.number("numa_node", 0, low=-1, high=1023),
        totalvfs=_totalvfs(reader),
        physfn=physfn,
        iommu_group=reader.number("iommu_group", -1, low=-1),
    )
    reader.end()
    if not re.match(r"^[A-Za-z0-9_.-]*$", result.driver):
        raise reader.bad("driver", f"is not a driver's name: {result.driver!r}")
    return result


def device_to_json(device: Device) -> Dict[str, Any]:
    """The form that ``device_from_json`` reads: for nodes that talk to each other, not for people."""
    data: Dict[str, Any] = dict(vars(device))
    data["bdf"] = str(device.bdf)
    return data


def device_from_json(data: Mapping[str, Any]) -> Device:
    """What a peer sent; ValueError, TypeError or KeyError when it is not a device."""
    fields = dict(data)
    fields["bdf"] = parse_bdf(str(fields["bdf"]))
    device = Device(**fields)
    for name in ("name", "driver", "serial", "model"):
        value = getattr(device, name)
        if not isinstance(value, str) or "\n" in value:
            raise ValueError(f"{name} is not one line of text")
    # What a peer sends becomes names of files here.
    if device.kind not in KINDS or not re.match(r"^[A-Za-z0-9_.-]*$", device.driver) or device.driver in (".", ".."):
        raise ValueError("kind or driver is not a plain word")
    if not all(isinstance(value, int) for value in (device.size, device.partitions, device.class_code)):
        raise ValueError("size, partitions and class_code are numbers")
    return device


def _peer(node_id: str, value: Any) -> Peer:
    reader = _Reader({"address": value} if isinstance(value, str) else value, f"peer {node_id}")
    address, name = reader.text("address"), reader.text("name", "")
    reader.end()
    host, _colon, port = address.rpartition(":")
    if not node_id.isdigit() or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f'peer {node_id}: must be a node id with "host:port", not {address!r}')
    return Peer(int(node_id), host.strip("[]"), int(port), name)


def _peers(reader: _Reader) -> Tuple[Peer, ...]:
    value = reader.take("peers", {})
    if not isinstance(value, dict):
        raise reader.bad("peers", 'must be an object like {"8": "127.0.0.1:4711"}')
    return tuple(_peer(node_id, value[node_id]) for node_id in value)


def _node_ids(reader: _Reader) -> Tuple[int, ...]:
    value = reader.take("node_id")
    numbers = value if isinstance(value, list) else [value]
    good = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
    if len(good) != len(numbers) or not good or not all(0 < number < 1 << 20 for number in good):
        raise reader.bad("node_id", f"must be a number above 0, or a list of them (one an adapter), not {value!r}")
    if len(set(good)) != len(good):
        raise reader.bad("node_id", "names an id twice")
    return tuple(good)


def _faults(reader: _Reader) -> Tuple[Tuple[str, str], ...]:
    value = reader.take("faults", {})
    if not isinstance(value, dict):
        raise reader.bad("faults", 'must be an object like {"slow": 0.5}')
    pairs: List[Tuple[str, str]] = []
    for name, setting in value.items():
        pairs.extend((name, str(one)) for one in (setting if isinstance(setting, list) else [setting]))
    return tuple(pairs)


def _trees(reader: _Reader, node_name: str) -> Tuple[Tree, ...]:
    trees = []
    for data in reader.items("transparent"):
        inner = _Reader(data, "transparent tree")
        adapter = inner.number("adapter", 0, high=15)
        trees.append(Tree(adapter, tuple(read_device(one, node_name) for one in inner.items("devices"))))
        inner.end()
    return tuple(trees)


def is_loopback(host: str) -> bool:
    """True when only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _virtual_bus(reader: _Reader) -> str:
    value = reader.text("virtual_bus", "0000:04")
    if not re.match(r"^[0-9a-f]{4}:[0-9a-f]{2}$", value):
        raise reader.bad("virtual_bus", f'must be like "0000:04", not {value!r}')
    return value


def read_config(data: Any, real_device: Callable[[str, Any], Any] = lambda sysfs, device: device) -> NodeConfig:
    """A node of the JSON form in README.md; ConfigError names what is wrong.

    ``real_device(sysfs, data)`` completes a device from the host's sysfs when the node is configured with one.
    """
    reader = _Reader(data, "node")
    name, sysfs = reader.text("name"), reader.text("sysfs", "")
    devices = reader.items("devices")
    if sysfs:
        devices = [real_device(sysfs, device) for device in devices]
    config = NodeConfig(
        name=name,
        node_ids=_node_ids(reader),
        host=reader.text("host", "127.0.0.1"),
        port=reader.number("port", 0, high=65535),
        token=reader.text("token", ""),
        peers=_peers(reader),
        devices=tuple(read_device(device, name) for device in devices),
        transparent=_trees(reader, name),
        generation=reader.choice("generation", GENERATIONS, "current"),
        strict=reader.flag("strict"),
        borrowed_word=reader.text("borrowed_word", "available"),
        virtual_bus=_virtual_bus(reader),
        autoborrow_transparent=reader.number("autoborrow_transparent", 0, high=1),
        boot_id=reader.text("boot_id", ""),
        sysfs=sysfs,
        faults=_faults(reader),
    )
    reader.end()
    _check(config)
    return config


def _check(config: NodeConfig) -> None:
    if not re.match(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", config.name):
        raise ConfigError(f"node: name {config.name!r} must be a host name")
    if not config.token and not is_loopback(config.host):
        raise ConfigError(f"node: host {config.host} can be reached by others; set a token or listen on 127.0.0.1")
    if any(peer.node_id in config.node_ids for peer in config.peers):
        raise ConfigError("node: a peer has this node's own id")
    _check_devices(config.devices)


def _check_devices(devices: Tuple[Device, ...]) -> None:
    by_address = {device.bdf: device for device in devices}
    for device in devices:
        if by_address[device.bdf] is not device:
            raise ConfigError(f"device {device.bdf}: is there twice")
        if not device.physfn:
            continue
        parent = by_address.get(parse_bdf(device.physfn))
        if parent is None or parent.physfn:
            raise ConfigError(f"device {device.bdf}: its physfn {device.physfn} is not among the devices")
        if parent.totalvfs < sum(1 for one in devices if one.physfn == device.physfn):
            raise ConfigError(f"device {parent.bdf}: has more virtual functions than its sriov.totalvfs")


def virtual_function(physical: Device, number: int) -> Device:
    """The virtual function that a physical one makes by itself, counted from 0."""
    low16 = physical.bdf.low16 + 1 + number
    bdf = Bdf(physical.bdf.domain, low16 >> 8 & 0xFF, low16 >> 3 & 0x1F, low16 & 7)
    identity = str(uuid.uuid5(_UUID_SPACE, f"{physical.uuid}/{bdf}"))
    return replace(physical, bdf=bdf, uuid=identity, physfn=str(physical.bdf), totalvfs=0, serial="", iommu_group=-1)


def load_json(path: str) -> Any:
    """The JSON of a file; ConfigError when it cannot be read or is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
