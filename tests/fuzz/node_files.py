# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of itself in sysfs and proc: any content, and trees that change, vanish or fail while they are read.

A device is in use in every one of the scenes. Whatever happens while it is looked at, it must not be told free:
- what is there and cannot be read hides something, so it is a reason;
- what only goes away cannot hide what is still there at the end;
- a device that went away, or is another one by now, was not seen.
"""

from __future__ import annotations

import errno
import functools
import stat
from typing import Callable, Dict, Iterator, List, Tuple

from ...plugins.module_utils._pci import claims, proc, processes, sysfs, usage
from ...plugins.module_utils._pci.sysfs import Sysfs
from ...plugins.module_utils._plan import SharingError
from .memory_files import Files, Node
from .target import Taker, Target

BDF, VF, BEHIND = "0000:81:00.0", "0000:81:00.1", "10000:e1:00.0"
TOP = f"/sys/devices/pci0000:80/{BDF}"
MODULES = (claims, proc, processes, sysfs, usage)
FAULTS = (errno.EIO, errno.EACCES, errno.EINVAL, errno.ENOMEM)
ACCESSES = 120
"""About as many accesses as one look takes; a change may be set for any of them."""


def bare() -> Files:
    """A node with nothing but one device that nobody uses."""
    files = Files()
    for path, text in (
        ("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"),
        ("/proc/swaps", "Filename Type Size Used Priority\n"),
        ("/proc/net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"),
        ("/proc/net/ipv6_route", ""),
        ("/proc/1/comm", "systemd\n"),
        ("/proc/812/comm", "fio\n"),
    ):
        files.write(path, text)
    for pid in ("1", "812"):
        files.folder(f"/proc/{pid}/fd")
    device(files, BDF, TOP, "010802")
    return files


def device(files: Files, bdf: str, folder: str, code: str) -> None:
    """Add a PCI device."""
    attributes = {"vendor": "0x144d", "device": "0xa80a", "class": f"0x{code}", "sriov_numvfs": "0"}
    for name, value in attributes.items():
        files.write(f"{folder}/{name}", value + "\n")
    files.link(f"{folder}/driver", "/sys/bus/pci/drivers/nvme")
    files.folder("/sys/bus/pci/drivers/nvme")
    files.link(f"/sys/bus/pci/devices/{bdf}", folder)


def disk(files: Files, folder: str = TOP, name: str = "nvme0n1", number: str = "259:0") -> str:
    """Add a disk with a partition to a device; the disk's folder."""
    place = f"{folder}/nvme/nvme0/{name}"
    for path, kind, own, known in (
        (place, "disk", name, number),
        (f"{place}/{name}p1", "partition", name + "p1", "259:1"),
    ):
        files.write(f"{path}/dev", known + "\n")
        files.write(f"{path}/uevent", f"DEVNAME={own}\nDEVTYPE={kind}\n")
        files.folder(f"{path}/holders")
        files.link(f"/sys/class/block/{own}", path)
    files.write(f"{place}/{name}p1/partition", "1\n")
    return place


def mounted() -> Files:
    """A filesystem on a partition."""
    files = bare()
    disk(files)
    files.write("/proc/self/mountinfo", "2 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw\n")
    return files


def held() -> Files:
    """A volume on the disk, which is mounted."""
    files = bare()
    place = disk(files)
    files.write("/sys/devices/virtual/block/dm-0/dev", "254:0\n")
    files.link("/sys/class/block/dm-0", "/sys/devices/virtual/block/dm-0")
    files.link(f"{place}/holders/dm-0", "/sys/devices/virtual/block/dm-0")
    files.write("/proc/self/mountinfo", "2 1 254:0 / /data rw - ext4 /dev/mapper/data rw\n")
    return files


def swapped() -> Files:
    """Swap on a partition."""
    files = bare()
    disk(files)
    files.device("/dev/nvme0n1p1", stat.S_IFBLK, (259, 1))
    files.write("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 8 0 -2\n")
    return files


def up() -> Files:
    """A network interface."""
    files = bare()
    files.write(f"{TOP}/net/eth0/flags", "0x1003\n")
    files.write(f"{TOP}/net/eth0/operstate", "up\n")
    files.link("/sys/class/net/eth0", f"{TOP}/net/eth0")
    return files


def opened() -> Files:
    """A character device that a process has open."""
    files = bare()
    files.write(f"{TOP}/nvme/nvme0/dev", "242:0\n")
    files.device("/dev/nvme0", stat.S_IFCHR, (242, 0))
    files.link("/proc/812/fd/3", "/dev/nvme0")
    return files


def exported() -> Files:
    """What the kernel's own target serves."""
    files = bare()
    disk(files)
    files.device("/dev/nvme0n1", stat.S_IFBLK, (259, 0))
    space = "/sys/kernel/config/nvmet/subsystems/nqn.fuzz/namespaces/1"
    files.write(f"{space}/device_path", "/dev/nvme0n1\n")
    files.write(f"{space}/enable", "1\n")
    return files


def of_function() -> Files:
    """A virtual function whose interface is up."""
    files = bare()
    place = TOP.replace(BDF, VF)
    device(files, VF, place, "020000")
    files.write(f"{TOP}/sriov_numvfs", "1\n")
    files.link(f"{TOP}/virtfn0", place)
    files.write(f"{place}/net/eth1/flags", "0x1003\n")
    return files


def behind() -> Files:
    """A drive behind the device, as behind a VMD controller."""
    files = bare()
    place = f"{TOP}/pci10000:e0/{BEHIND}"
    device(files, BEHIND, place, "010802")
    disk(files, place)
    files.write("/proc/self/mountinfo", "2 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw\n")
    return files


def looped() -> Files:
    """A loop device on the disk, and on that a filesystem."""
    files = bare()
    disk(files)
    files.device("/dev/nvme0n1", stat.S_IFBLK, (259, 0))
    files.write("/sys/devices/virtual/block/loop0/dev", "7:0\n")
    files.write("/sys/devices/virtual/block/loop0/loop/backing_file", "/dev/nvme0n1\n")
    files.link("/sys/class/block/loop0", "/sys/devices/virtual/block/loop0")
    return files


SCENES: Tuple[Callable[[], Files], ...] = (
    mounted,
    held,
    swapped,
    up,
    opened,
    exported,
    of_function,
    behind,
    looped,
)


def look(files: Files) -> bool:
    """Whether the device is told to be in use; a foreseen error for it as a whole is as good."""
    files.accesses = 0
    try:
        with files.instead(*MODULES):
            found = usage.observe([BDF], Sysfs("/sys"), "/proc", "", dict)[BDF]
    except SharingError as error:
        assert error.message.isprintable()
        return True
    assert all(text.isprintable() for text in found.all)
    return bool(found.all)


def run_usage(data: bytes) -> None:
    """A scene, and what happens to it."""
    taker = Taker(data)
    scene = taker.pick(SCENES)
    taker.pick([fail, fail, vanish, vanish, replace, rename, fill, fill])(scene, taker)


def fail(scene: Callable[[], Files], taker: Taker) -> None:
    """Some of it cannot be read, at once or in the middle."""
    files = scene()
    places = _places(files)
    for _fault in range(1 + taker.number() % 3):
        node = files.find(taker.pick(places), follow=False)
        number = taker.pick(FAULTS)
        if stat.S_ISREG(node.kind) and taker.flag():
            node.mid_read = number
        else:
            node.fault = number
    assert look(files)


def _places(files: Files) -> List[str]:
    """What belongs to the device, or tells of it. Links to it are as good as it is: the kernel makes both at once."""
    return [path for path in files.paths("/sys") if not path.startswith("/sys/bus/pci/drivers")]


def vanish(scene: Callable[[], Files], taker: Taker) -> None:
    """Some of it goes away while it is looked at. If it was in use all the while, it is told so."""
    files = scene()
    places = _places(files)
    gone = {taker.number() % ACCESSES: taker.pick(places) for _change in range(1 + taker.number() % 3)}
    files.plan = {at: functools.partial(files.remove, path) for at, path in gone.items()}
    if look(files):
        return
    before = scene()
    states = [look(before)]
    for at, path in sorted(gone.items()):
        if at <= files.accesses:
            before.remove(path)
            states.append(look(before))
    assert not all(states)


def replace(scene: Callable[[], Files], taker: Taker) -> None:
    """The device is pulled in the middle, and another one comes in its place, or none."""
    files = scene()
    with_another = taker.flag()

    def change() -> None:
        files.remove(TOP)
        if with_another:
            device(files, BDF, TOP, "010802")

    at = 2 + taker.number() % ACCESSES
    files.plan[at] = change
    told = look(files)
    assert told or files.accesses < at


def rename(scene: Callable[[], Files], taker: Taker) -> None:
    """An interface gets another name in the middle; it was up all the time."""
    files = scene()

    def change() -> None:
        for folder in (f"{TOP}/net", f"{TOP.replace(BDF, VF)}/net"):
            node = files.remove(f"{folder}/eth0") or files.remove(f"{folder}/eth1")
            if node is not None:
                files.put(f"{folder}/enp1s0", node)

    files.plan[1 + taker.number() % ACCESSES] = change
    assert look(files)


def fill(scene: Callable[[], Files], taker: Taker) -> None:
    """Any content, in place of some of it, and files that are folders now; whatever it says, it is read."""
    files = scene()
    places = [*_places(files), *files.paths("/proc"), *(f"{TOP}/{name}" for name in NEW)]
    for _file in range(1 + taker.number() % 4):
        path, kind = taker.pick(places), taker.number() % 4
        if kind == 0:
            files.put(path, Node(stat.S_IFDIR))
        elif kind == 1:
            files.put(
                path, Node(stat.S_IFLNK, target=taker.chunk().decode("utf-8", "surrogateescape").replace("\0", ""))
            )
        else:
            files.write(path, taker.chunk() * (1 if taker.flag() else taker.number()))
    look(files)


NEW = ("config", "physfn", "iommu_group", "virtfn0", "net/eth0/flags", "block/sda/dev", "x/uevent", "net/eth0/master")


def usage_seeds() -> Iterator[bytes]:
    """Every scene with everything that may happen."""
    for scene in range(len(SCENES)):
        for deed in range(8):
            yield bytes((scene, deed, 1, 10 + scene, 1, 5, 3, 20, 2, 7)) + b"0x144d\n"


GOOD: Dict[str, str] = {
    "/proc/self/mountinfo": "77 1 259:7 / /good rw - ext4 /dev/good rw",
    "/proc/swaps": "/good/swap file 8 0 -2",
    "/proc/net/route": "good0 00000000 0101A8C0 0003 0 0 0 00000000 0 0 0",
    "/proc/net/ipv6_route": f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} 0 0 0 00000003 good6",
    "/proc/net/if_inet6": "fe800000000000000000000000000001 02 40 20 80 good6",
}
"""A line of each file; among any others it must be found."""


def run_proc(data: bytes) -> None:
    """Any content around one good line of each file; environment and status of processes, and of a GPU."""
    taker = Taker(data)
    files = bare()
    for path, line in GOOD.items():
        before, after = taker.chunk(), taker.chunk()
        files.write(path, b"first\n" + before + b"\n" + line.encode() + b"\n" + after)
    connection = taker.chunk().decode("utf-8", "surrogateescape")
    for path in ("/proc/self/status", "/proc/812/environ", "/proc/1/mountinfo", "/proc/812/mountinfo"):
        files.write(path, taker.chunk())
    files.write(f"/proc/driver/nvidia/gpus/{BDF}/information", taker.rest())
    with files.instead(*MODULES):
        storage = proc.read_storage("/proc")
        network = proc.read_network("/proc", connection, dict)
        assert isinstance(proc.ssh_connection("/proc", {}), str)
        number = proc.nvidia_number("/proc", BDF)
        seen = processes.read_processes("/proc", ["b259:7"], storage.mounts)
    assert any((mount.number, mount.point) == ("259:7", "/good") for mount in storage.mounts)
    assert any(swap.file == "/good/swap" for swap in storage.swaps)
    assert {"good0", "good6"} <= network.routed
    assert {"good0", "good6"} <= network.default
    problems = [one.text for one in (*storage.problems, *network.problems)]
    assert all(text.isprintable() for text in [*problems, *seen.problems])
    assert not number or number.startswith("195:")


def proc_seeds() -> Iterator[bytes]:
    """Lines as the kernel writes them, by file."""
    lines = (
        "35 24 0:30 / /z rw - zfs pool/set rw\n36 1 0:31 /@ /b rw - btrfs /dev/mapper/x rw\n"
        "37 1 8:2 / /a\\040b rw - xfs /dev/a rw",
        "/dev/dm-1 partition 8 0 -2\n/a\\040b (deleted) file 8 0 -2",
        "eth0 0000A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0",
        f"20010db8{'0' * 24} 40 {'0' * 32} 00 {'0' * 32} 100 1 0 00000001 eth0",
        "20010db8000000000000000000000001 02 40 00 80 eth0",
    )
    chunks = [chunk for line in lines for chunk in (line.encode(), b"")]
    for connection in (
        "192.168.0.9 50000 192.168.0.1 22",
        "2001:db8::9 50000 2001:db8::1%eth0 22",
        "::ffff:10.0.0.1 1 ::1 2",
    ):
        rest = (connection, "Name: a\nPPid:\t812\n", "A=b\0SSH_CONNECTION=1 2 3 4\0", "", "")
        whole = [*chunks, *(text.encode() for text in rest)]
        yield b"".join(bytes((len(chunk),)) + chunk for chunk in whole) + b"Device Minor: \t 3\n"


USAGE = Target(run_usage, usage_seeds, longest=512)
PROC = Target(
    run_proc,
    proc_seeds,
    longest=2048,
    words=[
        b" - zfs ",
        b" - ext4 /dev/",
        b"\\040",
        b"\\000",
        b"0:30",
        b"(deleted)",
        b"0003",
        b"ffffffff",
        b"-1",
        b"file",
    ],
)
