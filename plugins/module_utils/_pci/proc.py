# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the node itself says is mounted, swapped to and routed, read once from proc for all devices."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from .address import printable

_RTF_UP, _RTF_REJECT, _RTF_LOCAL = 0x1, 0x200, 0x80000000
_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32  # sizeof(struct ifreq)
_MAX_BYTES = 64 << 20
_MAX_ANCESTORS = 64
_NVIDIA = 195  # the major number of its devices (Documentation/admin-guide/devices.txt)


@dataclass(frozen=True)
class Mount:
    """A mounted filesystem and the block device it is on: "major:minor" and name, each ``""`` where unknown.

    ``pool`` is the name of the ZFS pool that it is on instead. ``owner`` is a process that sees it, where this one and
    process 1 do not.
    """

    number: str
    name: str
    point: str
    pool: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Swap:
    """An active swap area and the block device it is on, as in Mount; ``file`` is the path of a swap file."""

    number: str
    name: str
    file: Optional[str] = None


@dataclass(frozen=True)
class Route:
    """A route of the main table. ``network`` is the destination's bytes (4 or 16)."""

    interface: str
    network: bytes
    prefix: int

    def covers(self, address: bytes) -> bool:
        """Whether the address (packed) is behind this route."""
        if len(address) != len(self.network):
            return False
        shift = len(address) * 8 - self.prefix
        return int.from_bytes(address, "big") >> shift == int.from_bytes(self.network, "big") >> shift


@dataclass(frozen=True)
class Problem:
    """A sentence about what could not be read; ``missing``: it is not there at all, as in a kernel built without."""

    text: str
    missing: bool = False


@dataclass(frozen=True)
class Storage:
    """Mounts and swap. ``problems`` are sentences about what could not be read."""

    mounts: Tuple[Mount, ...] = ()
    swaps: Tuple[Swap, ...] = ()
    problems: Tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Network:
    """Interfaces by what they carry. ``problems`` are sentences about what could not be read."""

    routed: FrozenSet[str] = frozenset()
    default: FrozenSet[str] = frozenset()
    connection: FrozenSet[str] = frozenset()
    problems: Tuple[Problem, ...] = ()


def local_addresses() -> Dict[str, str]:
    """IPv4 addresses of this node, address to interface name; empty where the kernel does not tell."""
    room = array.array("B", bytes(_IFREQ_BYTES * 1024))
    address, _count = room.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, struct.pack("iP", len(room), address))
    except OSError:
        return {}
    used: int = struct.unpack("iP", answer)[0]
    data = room.tobytes()[:used]
    found = {}
    for start in range(0, used, _IFREQ_BYTES):
        label = data[start : start + 16].split(b"\0", 1)[0].decode("utf-8", "replace")
        found[socket.inet_ntoa(data[start + 20 : start + 24])] = label.split(":")[0]
    return found


def ssh_connection(proc: str, environ: Mapping[str, str]) -> str:
    """SSH_CONNECTION ("client port server port") of this process, else of an ancestor (sudo drops it), else ``""``."""
    if environ.get("SSH_CONNECTION"):
        return environ["SSH_CONNECTION"]
    pid = "self"
    for _generation in range(_MAX_ANCESTORS):
        pid = _parent(proc, pid)
        if pid in ("", "0", "1"):
            break
        for entry in _read_or_empty(os.path.join(proc, pid, "environ")).split("\0"):
            if entry.startswith("SSH_CONNECTION="):
                return entry.partition("=")[2]
    return ""


def read_storage(proc: str) -> Storage:
    """Mounts of this process and of pid 1 (where its table is readable), and the active swap areas."""
    problems: List[Problem] = []
    mounts = _own_mounts(proc, problems)
    mounts += mounts_of(proc, "1")
    lines = [re.split(r"[ \t]+", line) for line in _lines(os.path.join(proc, "swaps"), problems)[1:]]
    swaps = [_swap(_unescape(fields[0]), fields[1] == "file", mounts) for fields in lines if len(fields) >= 2]
    return Storage(tuple(dict.fromkeys(mounts)), tuple(swaps), tuple(problems))


def mounts_of(proc: str, pid: str) -> List[Mount]:
    """What a process sees mounted; nothing where its table cannot be read."""
    return _parse_mountinfo(_read_or_empty(os.path.join(proc, pid, "mountinfo")))


def mount_of(path: str, mounts: Iterable[Mount]) -> Optional[Mount]:
    """The mount that a path, as this process sees it, is on."""
    around = [mount for mount in mounts if not mount.owner and path.startswith(mount.point.rstrip("/") + "/")]
    return max(around, key=lambda mount: len(mount.point), default=None)


def nvidia_number(proc: str, bdf: str) -> str:
    """Number ("major:minor") of a GPU's node where its vendor's driver has it, which sysfs does not tell; or ``""``."""
    text = _read_or_empty(os.path.join(proc, "driver/nvidia/gpus", bdf, "information"))
    found = re.search(r"^Device Minor:\s*([0-9]+)$", text, re.MULTILINE)
    return f"{_NVIDIA}:{found.group(1)}" if found else ""


def read_network(proc: str, connection: str, addresses: Callable[[], Mapping[str, str]]) -> Network:
    """Routes of the main tables, and the interfaces that the SSH connection (SSH_CONNECTION's text) goes through."""
    problems: List[Problem] = []
    routes = list(_routes(os.path.join(proc, "net", "route"), _ipv4_route, problems))
    routes += _routes(os.path.join(proc, "net", "ipv6_route"), _ipv6_route, problems, optional=True)
    local = dict(_ipv6_addresses(proc))
    local.update(addresses() if connection else {})
    return Network(
        routed=frozenset(route.interface for route in routes),
        default=frozenset(route.interface for route in routes if route.prefix == 0),
        connection=frozenset(_connected_through(connection, local, routes)),
        problems=tuple(problems),
    )


def block_number(path: str) -> str:
    """Number ("major:minor") of a block device node, ``""`` for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISBLK(found.st_mode) else ""


def block_name(path: str) -> str:
    """Name of the block device that a path below /dev stands for, also through links such as /dev/mapper."""
    if not path.startswith("/dev/"):
        return ""
    try:
        return os.path.basename(os.path.realpath(path))
    except ValueError:
        return ""  # with a NUL in it, no path is one


def _mount(number: str, point: str, source: str, kind: str) -> Mount:
    """Filesystems with an anonymous number (0:...: btrfs, overlay) are on the device that their source names."""
    if kind == "zfs":
        return Mount("", "", point, pool=source.partition("/")[0])
    known = "" if number.startswith("0:") else number
    return Mount(known or block_number(source), block_name(source), point)


def _swap(path: str, is_file: bool, mounts: List[Mount]) -> Swap:
    suffix = " (deleted)"
    path = path[: -len(suffix)] if path.endswith(suffix) else path
    if not is_file:
        return Swap(block_number(path), block_name(path))
    place = mount_of(path, mounts) or Mount("", "", "")
    return Swap(place.number, place.name, file=path)


def _own_mounts(proc: str, problems: List[Problem]) -> List[Mount]:
    missed: List[Problem] = []
    lines = _lines(os.path.join(proc, "self", "mountinfo"), missed)
    if not missed:
        return _parse_mountinfo("\n".join(lines))
    for name in ("self/mounts", "mounts"):
        entries = [line.split(" ") for line in _read_or_empty(os.path.join(proc, name)).split("\n")]
        if len(entries) > 1:
            entries = [entry for entry in entries if len(entry) >= 3]
            return [_mount("", _unescape(entry[1]), _unescape(entry[0]), entry[2]) for entry in entries]
    problems += missed
    return []


def _parse_mountinfo(text: str) -> List[Mount]:
    """proc_pid_mountinfo(5): id, parent, major:minor, root, mount point, options, tags, ``-``, type, source, ..."""
    mounts = []
    for line in text.split("\n"):
        left, _dash, right = line.partition(" - ")
        fields, source = left.split(" "), right.split(" ")
        if len(fields) >= 5 and len(source) >= 2:
            mounts.append(_mount(fields[2], _unescape(fields[4]), _unescape(source[1]), source[0]))
    return mounts


def _routes(
    path: str, parse: Callable[[List[str]], Optional[Route]], problems: List[Problem], optional: bool = False
) -> Iterable[Route]:
    for line in _lines(path, problems, optional):
        fields = line.split()
        try:
            route = parse(fields) if fields else None
        except (IndexError, ValueError, OverflowError):
            problems.append(Problem(f"could not understand {line[:80]!r} in {printable(path)}"))
            continue
        if route is not None:
            yield route


def _ipv4_route(fields: List[str]) -> Optional[Route]:
    """A line of proc/net/route: the numbers are in network order, printed as integers of this machine."""
    if fields[0] == "Iface" or not _usable(fields[0], int(fields[3], 16)):
        return None
    network, mask = (_native(fields[place]) for place in (1, 7))
    return Route(fields[0], network, bin(int.from_bytes(mask, "big")).count("1"))


def _native(number: str) -> bytes:
    return (int(number, 16) & 0xFFFFFFFF).to_bytes(4, sys.byteorder)


def _ipv6_route(fields: List[str]) -> Optional[Route]:
    """A line of proc/net/ipv6_route; the own, link-local and multicast addresses of every interface are no routes."""
    flags = int(fields[8], 16)
    if fields[0].startswith(("fe80", "ff")) or flags & _RTF_LOCAL or not _usable(fields[9], flags):
        return None
    return Route(fields[9], int(fields[0], 16).to_bytes(16, "big"), min(int(fields[1], 16), 128))


def _usable(interface: str, flags: int) -> bool:
    return bool(flags & _RTF_UP) and not flags & _RTF_REJECT and interface not in ("lo", "*")


def _ipv6_addresses(proc: str) -> Iterable[Tuple[str, str]]:
    for line in _read_or_empty(os.path.join(proc, "net", "if_inet6")).splitlines():
        fields = line.split()
        if len(fields) >= 6 and re.fullmatch(r"[0-9a-f]{32}", fields[0]):
            yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])), fields[5]


def _connected_through(connection: str, local: Mapping[str, str], routes: List[Route]) -> Iterable[str]:
    """The interface with the server's address, and the one that the replies to the client leave through."""
    fields = connection.split()
    if len(fields) != 4:
        return
    server, _percent, zone = fields[2].partition("%")
    if zone:
        yield zone
    packed = _packed(server)
    if packed is not None:
        family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        name = local.get(socket.inet_ntop(family, packed))
        if name not in (None, "lo"):
            yield str(name)
    client = _packed(fields[0].partition("%")[0])
    behind = [route for route in routes if client is not None and route.covers(client)]
    best = max((route.prefix for route in behind), default=None)
    yield from (route.interface for route in behind if route.prefix == best)


def _packed(address: str) -> Optional[bytes]:
    text = address[len("::ffff:") :] if address.startswith("::ffff:") and "." in address else address
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
    return None


def _parent(proc: str, pid: str) -> str:
    found = re.search(r"^PPid:\s*(\d+)$", _read_or_empty(os.path.join(proc, pid, "status")), re.MULTILINE)
    return found.group(1) if found else ""


def _lines(path: str, problems: List[Problem], optional: bool = False) -> List[str]:
    """Lines of a file; one that cannot be read adds a sentence to ``problems``, unless it may be missing and is."""
    try:
        return _read(path).rstrip("\n").split("\n")
    except FileNotFoundError as error:
        if not optional:
            problems.append(Problem(f"could not read {printable(path)}: {error.strerror}", missing=True))
    except OSError as error:
        problems.append(Problem(f"could not read {printable(path)}: {error.strerror}"))
    return []


def _read_or_empty(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "surrogateescape")


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline, backslash and #."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
