# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import proc as proc_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import processes as processes_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import sysfs as sysfs_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import targets as targets_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import usage as usage_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.claims import is_claimed, zfs_pool
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.proc import (
    Mount,
    Route,
    local_addresses,
    read_storage,
    ssh_connection,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.processes import read_processes
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import Sysfs
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.usage import Ending, Usage, observe
from hypothesis import given
from hypothesis import strategies as st

BDF = "0000:81:00.0"
NIC = "0000:82:00.0"
NAMESPACE = "devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1"


def look(fake: Any, proc: Any, bdf: str = BDF, connection: str = "", **addresses: str) -> Usage:
    return observe([bdf], fake.sysfs, proc.path, connection, lambda: {ip: name for name, ip in addresses.items()})[bdf]


def nic(fake: Any, *names: str, flags: str = "0x1002") -> None:
    folder = fake.device(NIC, driver="mlx5_core", **{"class": "0x020000"})
    for name in names:
        fake.interface(f"{folder}/net/{name}", flags)


def test_a_drive_with_data_alone_is_not_in_use(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("8:1", "/")
    assert look(fake, proc) == Usage()


def test_mounts_match_by_number(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("259:1", "/srv", "/dev/nvme9n9p9")
    proc.mount("259:0", r"/with\040space\011and\134", "none")
    proc.mount("8:1", "/elsewhere", "/dev/nvme0n1p2")
    usage = look(fake, proc)
    assert usage.reasons == ("mounted at /with space\\tand\\ (nvme0n1)", "mounted at /srv (nvme0n1p1)")
    assert usage.never == ()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_octal_escapes_of_the_kernel_are_undone(path: str) -> None:
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in path)
    assert proc_module._unescape(escaped) == path


def test_a_mount_point_is_one_line_of_a_message(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("259:1", "/a\\012b\x1b[2J\u2028\u00a0é")
    assert look(fake, proc).reasons == ("mounted at /a\\nb\\x1b[2J\\u2028\\xa0é (nvme0n1p1)",)


@pytest.mark.parametrize("point", ["/", "/boot", "/boot/efi", "/efi"])
@pytest.mark.parametrize("namespace", ["self", "1"])
def test_the_system_disk_is_never_touched(fake: Any, proc: Any, point: str, namespace: str) -> None:
    fake.nvme()
    proc.mount("259:2", point, namespace=namespace)
    assert look(fake, proc) == Usage(never=(f"holds {point} (nvme0n1p2)",))


def test_mounts_of_pid_1_count_and_none_counts_twice(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("259:1", "/srv")
    proc.mount("259:1", "/srv", namespace="1")
    proc.mount("259:1", "/host", namespace="1")
    assert look(fake, proc).reasons == ("mounted at /srv (nvme0n1p1)", "mounted at /host (nvme0n1p1)")


def test_filesystems_without_a_number_match_by_source(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("0:44", "/", "/dev/nvme0n1p2", kind="btrfs")
    proc.mount("0:45", "/srv", "nvme0n1p1", kind="overlay")
    assert look(fake, proc) == Usage(never=("holds / (nvme0n1p2)",))


def test_every_member_of_a_mounted_btrfs_is_in_use(fake: Any, proc: Any) -> None:
    fake.nvme()
    fake.disk("devices/virtual/block/sda", "8:0")
    for name, folder in (("nvme0n1p1", f"{NAMESPACE}/nvme0n1p1"), ("sda", "devices/virtual/block/sda")):
        fake.link(f"fs/btrfs/6c1d/devices/{name}", folder)
    proc.mount("0:44", "/", "/dev/sda", kind="btrfs")
    assert look(fake, proc).never == ("holds / (nvme0n1p1)",)


@pytest.mark.parametrize("name", ["self/mounts", "mounts"])
def test_mounts_stand_in_for_mountinfo(fake: Any, proc: Any, name: str) -> None:
    fake.nvme()
    (proc.root / "self/mountinfo").unlink()
    proc.write(name, "proc /proc proc rw 0 0\n/dev/nvme0n1p1 /my\\040srv ext4 rw 0 0")
    assert look(fake, proc).reasons == ("mounted at /my srv (nvme0n1p1)",)


def test_a_disk_without_a_number_matches_by_name(fake: Any, proc: Any) -> None:
    fake.write(f"{fake.device(BDF)}/nvme/nvme0/nvme0n1/size", "1")
    proc.mount("259:1", "/srv", "/dev/nvme0n1")
    assert look(fake, proc).reasons == ("mounted at /srv (nvme0n1)",)


def test_swap_is_never_touched(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.swap("/dev/nvme0n1p2")
    proc.swap("/dev/sdz9")
    assert look(fake, proc) == Usage(never=("active swap (nvme0n1p2)",))


def test_swap_by_the_number_of_its_path(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    monkeypatch.setattr(proc_module, "block_number", lambda path: {"/dev/mapper/swap": "259:2"}.get(path, ""))
    proc.swap("/dev/mapper/swap")
    assert look(fake, proc).never == ("active swap (nvme0n1p2)",)


def test_a_swap_file_is_on_the_disk_of_its_mount(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("8:1", "/")
    proc.mount("259:1", "/srv")
    proc.swap(r"/srv/swap\040file", "file")
    proc.swap("/srv2/swap", "file")
    proc.swap(r"/srv/gone\040(deleted)", "file")
    assert look(fake, proc) == Usage(
        reasons=("mounted at /srv (nvme0n1p1)",),
        never=("active swap (/srv/swap file on nvme0n1p1)", "active swap (/srv/gone on nvme0n1p1)"),
    )


def test_holders_and_what_is_mounted_through_them(fake: Any, proc: Any) -> None:
    fake.nvme()
    fake.holder("nvme0n1", "md127", "9:127")
    fake.holder("nvme0n1p1", "dm-0", "253:0")
    fake.holder("dm-0", "dm-1", "253:1")
    proc.mount("253:0", "/srv")
    proc.mount("253:0", "/data")
    assert look(fake, proc) == Usage(
        reasons=(
            "held by md127 (nvme0n1)",
            "held by dm-0 (nvme0n1p1), mounted at /srv, mounted at /data",
            "held by dm-1 (dm-0)",
        )
    )


def test_system_mounts_and_swap_through_holders(fake: Any, proc: Any) -> None:
    fake.nvme()
    fake.holder("nvme0n1p1", "dm-0", "253:0")
    fake.holder("nvme0n1p1", "dm-1", "253:1")
    fake.holder("nvme0n1p2", "md0", "9:0")
    fake.disk("devices/virtual/block/md0/md0p1", "259:9", "partition")
    proc.mount("253:0", "/", "/dev/mapper/vg-root")
    proc.mount("259:9", "/boot")
    proc.swap("/dev/dm-1")
    usage = look(fake, proc)
    assert usage.never == (
        "holds / (dm-0 on nvme0n1p1)",
        "holds /boot (md0p1 on nvme0n1p2)",
        "active swap (dm-1 on nvme0n1p1)",
    )
    assert usage.reasons[0] == "held by dm-0 (nvme0n1p1)"
    assert usage.all == usage.never + usage.reasons


def test_holders_that_hold_each_other_end(fake: Any, proc: Any) -> None:
    fake.nvme()
    fake.holder("nvme0n1", "dm-0", "253:0")
    fake.holder("dm-0", "nvme0n1", "259:0")
    assert look(fake, proc).reasons == ("held by dm-0 (nvme0n1)",)


def test_what_is_behind_a_vmd_controller_counts(fake: Any, proc: Any) -> None:
    vmd = fake.device(BDF, driver="vmd", **{"class": "0x010400"})
    port = fake.device("10000:00:02.0", parent=f"{vmd}/pci10000:00", **{"class": "0x060400"})
    drive = fake.device("10000:01:00.0", parent=port)
    fake.disk(f"{drive}/nvme/nvme1/nvme1n1", "259:4")
    proc.mount("259:4", "/")
    assert look(fake, proc).never == ("holds / (nvme1n1)",)


def test_interfaces_that_are_down_are_free(fake: Any, proc: Any) -> None:
    nic(fake, "eth3", "eth4")
    assert look(fake, proc, NIC) == Usage()


def test_interfaces_that_are_up(fake: Any, proc: Any) -> None:
    nic(fake, "eth3", "eth4", flags="0x1003")
    assert look(fake, proc, NIC) == Usage(reasons=("eth3 is up", "eth4 is up"))


def test_operstate_stands_in_for_flags(fake: Any, proc: Any) -> None:
    folder = fake.device(NIC)
    fake.write(f"{folder}/net/eth3/operstate", "up")
    fake.write(f"{folder}/net/eth4/operstate", "down")
    assert look(fake, proc, NIC).reasons == ("eth3 is up",)


@pytest.mark.parametrize("link", ["master", "upper_br0"])
def test_bridges_and_their_routes(fake: Any, proc: Any, link: str) -> None:
    nic(fake, "eth3")
    fake.interface("devices/virtual/net/br0")
    fake.link(f"devices/pci0000:80/{NIC}/net/eth3/{link}", "devices/virtual/net/br0")
    assert look(fake, proc, NIC).reasons == ("eth3 is in br0",)
    proc.route("br0", "0000000A", "000000FF")
    assert look(fake, proc, NIC).reasons == ("eth3 is in br0", "eth3 carries a route (through br0)")
    proc.route("br0")
    assert look(fake, proc, NIC) == Usage(
        reasons=("eth3 is in br0",), never=("eth3 carries the default route (through br0)",)
    )


def test_a_vlan_over_a_bond(fake: Any, proc: Any) -> None:
    nic(fake, "eth3")
    fake.interface("devices/virtual/net/bond0")
    fake.interface("devices/virtual/net/bond0.7")
    fake.link(f"devices/pci0000:80/{NIC}/net/eth3/master", "devices/virtual/net/bond0")
    fake.link("devices/virtual/net/bond0/upper_bond0.7", "devices/virtual/net/bond0.7")
    usage = look(fake, proc, NIC, "10.0.0.9 51000 10.0.0.1 22", **{"bond0.7": "10.0.0.1"})
    assert usage.never == ("eth3 carries this connection (through bond0.7)",)
    assert usage.reasons == ("eth3 is in bond0", "bond0 is in bond0.7")


@pytest.mark.parametrize(
    ("route", "usage"),
    [
        (("eth3",), Usage(never=("eth3 carries the default route",))),
        (("eth3", "0000A8C0", "0000FFFF"), Usage(reasons=("eth3 carries a route",))),
        (("eth3", "00000000", "00000000", "0200"), Usage()),  # down
        (("eth3", "00000000", "00000000", "0201"), Usage()),  # unreachable
        (("eth9",), Usage()),
    ],
)
def test_ipv4_routes(fake: Any, proc: Any, route: Tuple[str, ...], usage: Usage) -> None:
    nic(fake, "eth3")
    proc.route(*route)
    assert look(fake, proc, NIC) == usage


ZERO = "0" * 32


@pytest.mark.parametrize(
    ("destination", "prefix", "flags", "usage"),
    [
        (ZERO, "00", "00450003", Usage(never=("eth3 carries the default route",))),
        (ZERO, "00", "00200200", Usage()),
        ("20010db8" + "0" * 24, "40", "00000001", Usage(reasons=("eth3 carries a route",))),
        ("20010db8" + "0" * 23 + "1", "80", "80200001", Usage()),  # the address itself
        ("fe80" + "0" * 28, "40", "00000001", Usage()),
        ("ff00" + "0" * 28, "08", "00000001", Usage()),
    ],
)
def test_ipv6_routes(fake: Any, proc: Any, destination: str, prefix: str, flags: str, usage: Usage) -> None:
    nic(fake, "eth3")
    proc.append("net/ipv6_route", f"{destination} {prefix} {ZERO} 00 {ZERO} 00000400 00000001 00000000 {flags} eth3")
    assert look(fake, proc, NIC) == usage


@pytest.mark.parametrize(
    ("connection", "addresses", "carries"),
    [
        ("10.0.0.9 51000 10.0.0.1 22", {"eth3": "10.0.0.1"}, True),
        ("::ffff:10.0.0.9 51000 ::ffff:10.0.0.1 22", {"eth3": "10.0.0.1"}, True),
        ("fe80::9 51000 fe80::1%eth3 22", {}, True),
        ("2001:db8::9 51000 2001:DB8::1 22", {}, True),  # from if_inet6
        ("172.16.5.9 51000 203.0.113.1 22", {}, True),  # by the route to the client
        ("10.0.0.9 51000 10.0.0.1 22", {"eth9": "10.0.0.1"}, False),
        ("172.17.0.9 51000 203.0.113.1 22", {}, False),
        ("", {}, False),
        ("nonsense", {}, False),
        ("a b c d", {}, False),
        ("10.0.0.9\x00 1 \x00 22", {}, False),
    ],
)
def test_this_connection(fake: Any, proc: Any, connection: str, addresses: Dict[str, str], carries: bool) -> None:
    nic(fake, "eth3")
    proc.write("net/if_inet6", "20010db8000000000000000000000001 02 40 00 80     eth3")
    proc.route("eth3", "000010AC", "0000FFFF")
    never = look(fake, proc, NIC, connection, **addresses).never
    assert never == (("eth3 carries this connection",) if carries else ())


def test_the_connection_is_found_in_the_environment_or_that_of_an_ancestor(proc: Any) -> None:
    assert ssh_connection(proc.path, {"SSH_CONNECTION": "1.2.3.4 1 5.6.7.8 22"}) == "1.2.3.4 1 5.6.7.8 22"
    assert ssh_connection(proc.path, {}) == ""
    proc.write("self/status", "Name:\tpython3\nPPid:\t70\n")
    proc.write("70/status", "Name:\tsudo\nPPid:\t60\n")
    proc.write("60/status", "Name:\tsh\nPPid:\t1\n")
    proc.write("70/environ", "HOME=/nowhere\0")
    assert ssh_connection(proc.path, {}) == ""
    proc.write("60/environ", "HOME=/home/me\0SSH_CONNECTION=10.0.0.9 51000 10.0.0.1 22\0TERM=dumb\0")
    assert ssh_connection(proc.path, {}) == "10.0.0.9 51000 10.0.0.1 22"


def test_ancestors_that_go_round_in_circles_end(proc: Any) -> None:
    proc.write("self/status", "PPid:\t70\n")
    proc.write("70/status", "PPid:\t70\n")
    assert ssh_connection(proc.path, {}) == ""


def test_the_environment_is_asked_by_default(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nic(fake, "eth3")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 51000 10.0.0.1 22")
    usage = observe([NIC], fake.sysfs, proc.path, addresses=lambda: {"10.0.0.1": "eth3"})[NIC]
    assert usage.never == ("eth3 carries this connection",)


def test_an_interface_in_another_network_namespace(fake: Any, proc: Any) -> None:
    folder = fake.device(NIC, driver="mlx5_core")
    (fake.root / folder / "net").mkdir()
    assert look(fake, proc, NIC).reasons == ("its network interface is in another network namespace",)


@pytest.mark.parametrize(
    ("attributes", "driver", "never"),
    [
        ({"class": "0x060400"}, "pcieport", ("is a PCI bridge",)),
        ({"class": "0x060000"}, "", ("is a PCI bridge",)),
        ({"class": "0x068000", "vendor": "0x11c8"}, "", ("is a PCI bridge", "is the fabric's own adapter")),
        ({"vendor": "0x11c8"}, "", ("is the fabric's own adapter",)),
        ({"vendor": "0x10b5", "subsystem_vendor": "0x11c8"}, "", ("is the fabric's own adapter",)),
        ({"vendor": "0x10b5"}, "dis_px", ("is the fabric's own adapter",)),
        ({"vendor": "0x10b5"}, "display", ()),
    ],
)
def test_devices_that_are_never_touched(fake: Any, proc: Any, attributes: Any, driver: str, never: Any) -> None:
    fake.device(BDF, driver=driver, **attributes)
    assert look(fake, proc) == Usage(never=never)


@pytest.mark.parametrize(
    ("count", "reasons"),
    [("4", ("4 virtual functions are enabled",)), ("1", ("1 virtual function is enabled",)), ("0", ())],
)
def test_virtual_functions(fake: Any, proc: Any, count: str, reasons: Tuple[str, ...]) -> None:
    fake.device(BDF, driver="ixgbe", sriov_numvfs=count)
    assert look(fake, proc) == Usage(reasons=reasons)


def test_what_cannot_be_read_is_a_reason_where_it_applies(fake: Any, proc: Any, tmp_path: Path) -> None:
    fake.nvme()
    nic(fake, "eth3")
    gpu = fake.device("0000:09:00.0", driver="nvidia")
    fake.write(f"{gpu}/drm/card0/uevent", "DEVNAME=dri/card0")
    nothing = str(tmp_path / "nothing")
    seen = observe([BDF, NIC, "0000:09:00.0"], fake.sysfs, nothing, "")
    assert seen[BDF].reasons == (
        f"could not read {nothing}/self/mountinfo: No such file or directory",
        f"could not read {nothing}/swaps: No such file or directory",
        f"could not look at open files: {nothing}: No such file or directory",
    )
    assert seen[NIC].reasons == (f"could not read {nothing}/net/route: No such file or directory",)
    assert seen["0000:09:00.0"] == Usage()


def test_a_file_that_is_there_and_unreadable(fake: Any, proc: Any) -> None:
    nic(fake, "eth3")
    (proc.root / "net/ipv6_route").unlink()
    assert look(fake, proc, NIC).reasons == ()  # a kernel without IPv6
    (proc.root / "net/ipv6_route").mkdir()
    assert look(fake, proc, NIC).never == (f"could not read {proc.path}/net/ipv6_route: Is a directory",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("hidden", ["", "nvme", "nvme/nvme0/nvme0n1", "nvme/nvme0/nvme0n1/holders", "class", "driver"])
def test_what_may_not_be_read_holds_against_force(fake: Any, proc: Any, hidden: str) -> None:
    fake.nvme()
    folder = os.path.realpath(fake.sysfs.folder(BDF))
    path = os.path.join(folder, hidden)
    if hidden == "driver":  # a link's own mode says nothing; what it lies in does
        path = folder
    os.chmod(path, 0)
    assert _as_nobody(fake, proc) >= {"never"}


def _as_nobody(fake: Any, proc: Any) -> Set[str]:
    """Which kinds of findings a process without rights has of the device; asked in a child."""
    top = Path(proc.path)
    for folder in [top, *top.parents][:-2]:
        folder.chmod(folder.stat().st_mode | 0o055)
    with multiprocessing.get_context("fork").Pool(1, initializer=os.setuid, initargs=(65534,)) as pool:
        return set(pool.apply(_kinds, (fake.sysfs.root, proc.path)))


def _kinds(root: str, proc_path: str) -> List[str]:
    seen = observe([BDF], Sysfs(root), proc_path, "")[BDF]
    return [name for name in ("reasons", "never") if getattr(seen, name)]


def test_lines_that_make_no_sense_do_no_harm(fake: Any, proc: Any) -> None:
    fake.nvme()
    nic(fake, "eth3")
    for name in ("self/mountinfo", "1/mountinfo", "swaps", "net/route", "net/ipv6_route", "net/if_inet6"):
        (proc.root / name).parent.mkdir(exist_ok=True)
        (proc.root / name).write_bytes(
            b"\n\xff\xfe - \n1 2 3 - \na b c d e f g h i j k\n - - - -\n" + bytes(range(256))
        )
    seen = observe([BDF, NIC], fake.sysfs, proc.path, "10.0.0.9 1 10.0.0.1 22")
    assert seen[BDF].never == ()
    assert seen[NIC].never
    assert all(reason.startswith("could not understand") and reason.isprintable() for reason in seen[NIC].never)


def test_a_tree_that_is_too_large_is_a_reason(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    monkeypatch.setattr(sysfs_module, "_MAX_FOLDERS", 2)
    assert "more than 2 folders" in look(fake, proc).never[0]


def test_proc_is_read_once_for_all_devices(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    fake.disk(f"{fake.device(NIC)}/block/sda", "8:0")
    read: List[str] = []
    original = proc_module._read

    def recorded(path: str) -> str:
        read.append(path)
        return original(path)

    monkeypatch.setattr(proc_module, "_read", recorded)
    observe([BDF, NIC], fake.sysfs, proc.path, "")
    assert sorted(read) == sorted(set(read))
    assert f"{proc.path}/swaps" in read
    assert f"{proc.path}/net/route" not in read


@pytest.mark.parametrize(
    ("network", "prefix", "address", "covered"),
    [
        ("10.0.0.0", 8, "10.1.2.3", True),
        ("10.0.0.0", 8, "11.1.2.3", False),
        ("128.0.0.0", 0, "11.1.2.3", True),
        ("10.0.0.1", 32, "10.0.0.1", True),
        ("10.0.0.1", 32, "10.0.0.0", False),
    ],
)
def test_routes_cover(network: str, prefix: int, address: str, covered: bool) -> None:
    assert Route("eth0", socket.inet_aton(network), prefix).covers(socket.inet_aton(address)) is covered
    assert not Route("eth0", socket.inet_aton(network), prefix).covers(b"\0" * 16)


# Processes


@pytest.fixture
def gpu(fake: Any) -> str:
    """A device with one character device, whose number is that of /dev/null: real processes can open it."""
    folder = fake.device(BDF, driver="xe", **{"class": "0x030000"})
    fake.write(f"{folder}/drm/card0/dev", "1:3")
    fake.write(f"{folder}/drm/card0/uevent", "MAJOR=1\nMINOR=3\nDEVNAME=dri/card0")
    return str(folder)


def test_who_has_a_device_open(fake: Any, proc: Any, gpu: str) -> None:
    proc.process(1, "systemd", "/dev/zero", "socket:[17]", "/missing/file")
    proc.process(812, "qemu-system-x86", "/dev/null", "anon_inode:[eventpoll]", "/dev/null")
    proc.process(9, "Xorg", "/dev/null")
    assert look(fake, proc) == Usage(("open by Xorg (pid 9)", "open by qemu-system-x86 (pid 812)"))


def test_who_has_it_open_through_another_name(fake: Any, proc: Any, gpu: str, tmp_path: Path) -> None:
    (tmp_path / "private").symlink_to("/dev/null")
    proc.process(1, "init", str(tmp_path / "private"))
    assert look(fake, proc).reasons == ("open by init (pid 1)",)


def test_udev_and_this_process_do_not_count(fake: Any, proc: Any, gpu: str) -> None:
    proc.process(1, "systemd")
    proc.process(40, "systemd-udevd", "/dev/null")
    proc.process(41, "(udev-worker)", "/dev/null")
    proc.process(os.getpid(), "python3", "/dev/null")
    assert look(fake, proc) == Usage()


def test_many_processes_are_counted(fake: Any, proc: Any, gpu: str) -> None:
    for pid in range(1, 10):
        proc.process(pid, f"cuda{pid}", "/dev/null")
    reasons = look(fake, proc).reasons
    assert reasons[0] == "open by cuda1 (pid 1)"
    assert (len(reasons), reasons[-1]) == (6, "open by 4 more processes")


def test_a_name_of_a_process_is_one_line(fake: Any, proc: Any, gpu: str) -> None:
    proc.process(1, "a\nb\x1b[2J", "/dev/null")
    assert look(fake, proc).reasons == ("open by a\\nb\\x1b[2J (pid 1)",)


def test_open_files_are_not_looked_at_where_there_is_nothing_to_open(
    fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.device(BDF, **{"class": "0x010802"})
    nic(fake, "eth3")
    monkeypatch.setattr(usage_module, "read_processes", lambda *_arguments: pytest.fail("nobody needs this"))
    proc.process(1, "systemd", "/dev/null")
    seen = observe([BDF, NIC], fake.sysfs, proc.path, "")
    assert seen == {BDF: Usage(), NIC: Usage()}


def test_processes_are_looked_at_once_for_all_devices(
    fake: Any, proc: Any, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.disk(f"{fake.device(NIC)}/block/sda", "8:0")
    asked: List[Any] = []

    def recorded(*arguments: Any) -> Any:
        asked.append(arguments)
        return read_processes(*arguments)

    monkeypatch.setattr(usage_module, "read_processes", recorded)
    observe([BDF, NIC], fake.sysfs, proc.path, "")
    assert [sorted(wanted) for _proc, wanted, _known in asked] == [["b8:0", "c1:3"]]


def test_processes_that_may_not_be_looked_at_are_a_reason(
    fake: Any, proc: Any, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.process(1, "systemd", "/dev/null")
    proc.process(2, "other", "/dev/null")
    listdir = os.listdir

    def denied(path: Any = ".") -> List[str]:
        if str(path).endswith("/1/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", denied)
    assert look(fake, proc) == Usage(
        ("open by other (pid 2)", "could not look at the open files of 1 processes: run as root (become: true)")
    )


def test_hidden_processes_are_a_reason(fake: Any, proc: Any, gpu: str) -> None:
    proc.process(77, "bash")
    assert "their processes are hidden (hidepid)" in look(fake, proc).reasons[0]


def test_a_limit_of_time_and_of_files(fake: Any, proc: Any, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.process(1, "systemd", "/dev/null", "/dev/null", "/dev/null")
    monkeypatch.setattr(processes_module, "_MOST_FILES", 2)
    assert look(fake, proc).reasons == (
        "open by systemd (pid 1)",
        "could not look at all open files: there are more than 2",
    )
    hanging = threading.Event()
    monkeypatch.setattr(processes_module, "_SECONDS", 0.05)
    monkeypatch.setattr(processes_module, "_opened", lambda link: (str(hanging.wait(60)), ""))
    assert look(fake, proc).reasons == ("could not look at all open files within 0.05 seconds",)
    hanging.set()


def test_mounts_that_only_another_namespace_has(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.process(1, "systemd", mounts="1")
    proc.mount("259:2", "/srv", namespace="1")
    proc.process(900, "nginx", mounts="2")
    proc.mount("259:2", "/srv", namespace="900")
    proc.mount("259:1", "/", namespace="900")
    proc.mount("259:1", "/data", namespace="900")
    proc.process(901, "nginx", mounts="2")
    assert look(fake, proc) == Usage(
        ("mounted at / as nginx (pid 900) sees it (nvme0n1p1)", "mounted at /srv (nvme0n1p2)")
    )


def test_who_computes_on_a_gpu(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.device(BDF, driver="nvidia", **{"class": "0x030000"})
    proc.write(f"driver/nvidia/gpus/{BDF}/information", "Model: \t\t NVIDIA A2\nDevice Minor: \t 3")
    proc.process(1, "systemd")
    proc.process(900, "train", "/dev/null")
    assert look(fake, proc) == Usage()
    monkeypatch.setattr(proc_module, "_NVIDIA", 1)  # the device is 1:3 now, /dev/null
    assert look(fake, proc).reasons == ("open by train (pid 900)",)


def test_what_will_have_ended_does_not_count(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.process(1, "systemd", mounts="1")
    proc.mount("259:1", "/srv")
    proc.mount("259:2", "/srv/deep")
    proc.process(900, "nginx", mounts="2")
    proc.mount("259:0", "/srv", namespace="900")
    folder = fake.device(NIC, driver="nvidia", **{"class": "0x030000"})
    fake.write(f"{folder}/drm/card0/dev", "1:3")
    fake.write(f"{folder}/drm/card0/uevent", "MAJOR=1\nMINOR=3\nDEVNAME=dri/card0")
    for pid in (81, 812, 181):
        proc.process(pid, "train", "/dev/null")
    ending = Ending(frozenset(["/srv"]), frozenset([81, 900]))
    used = observe([BDF, NIC], fake.sysfs, proc.path, "", dict, ending)
    assert used[BDF].reasons == (
        "mounted at /srv as nginx (pid 900) sees it (nvme0n1)",
        "mounted at /srv/deep (nvme0n1p2)",
    )
    assert used[NIC].reasons == ("open by train (pid 181)", "open by train (pid 812)")


def test_the_system_disk_does_not_end(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("259:1", "/boot")
    used = observe([BDF], fake.sysfs, proc.path, "", dict, Ending(frozenset(["/boot"])))
    assert used[BDF].never == ("holds /boot (nvme0n1p1)",)


def test_users_of_vfio(fake: Any, proc: Any) -> None:
    folder = fake.device(BDF, driver="vfio-pci", **{"class": "0x010802"})
    fake.link(f"{folder}/iommu_group", "kernel/iommu_groups/17")
    fake.write("class/vfio/17/dev", "1:3")
    path = "vfio-device-syspath: /sys/devices/pci0000:80/"
    proc.process(1, "systemd")
    proc.process(812, "qemu-system-x86", "/dev/null")
    proc.process(813, "app", "anon_inode:[vfio-device]", vfio=f"{path}{BDF}\n")
    proc.process(814, "other", "anon_inode:[vfio-device]", vfio=f"{path}{NIC}\n")
    proc.process(815, "client", "anon_inode:[vfio-device]")
    proc.process(816, "server", "anon_inode:[vfio-device]", "/dev/vfio/99")
    assert look(fake, proc).reasons == (
        "open by qemu-system-x86 (pid 812)",
        "open by app (pid 813)",
        "may be open by client (pid 815), which was handed a device of VFIO",
    )


# What neither mounts nor holders tell


def test_loop_devices_on_a_disk_and_on_its_files(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    for number, path in enumerate(["/live/root.squashfs", "/dev/nvme0n1p2", "/elsewhere/file", "/live/more"]):
        fake.disk(f"devices/virtual/block/loop{number}", f"7:{number}")
        fake.write(f"devices/virtual/block/loop{number}/loop/backing_file", path)
    monkeypatch.setattr(proc_module, "block_number", {"/dev/nvme0n1p2": "259:2"}.get)
    monkeypatch.setattr(targets_module, "block_number", lambda path: {"/dev/nvme0n1p2": "259:2"}.get(path, ""))
    proc.mount("259:1", "/live")
    proc.mount("8:1", "/elsewhere")
    proc.mount("7:0", "/")
    proc.mount("7:1", "/srv")
    assert look(fake, proc) == Usage(
        reasons=(
            "mounted at /live (nvme0n1p1)",
            "held by loop0 (nvme0n1p1)",
            "held by loop3 (nvme0n1p1)",
            "held by loop1 (nvme0n1p2), mounted at /srv",
        ),
        never=("holds / (loop0 on nvme0n1p1)",),
    )


def test_a_cache_without_anything_to_cache(fake: Any, proc: Any) -> None:
    fake.nvme()
    (fake.root / f"{NAMESPACE}/nvme0n1p1/bcache").mkdir()
    (fake.root / f"{NAMESPACE}/nvme0n1p2/bcache").mkdir()
    fake.holder("nvme0n1p2", "bcache0", "251:0")
    assert look(fake, proc).reasons == ("held by bcache (nvme0n1p1)", "held by bcache0 (nvme0n1p2)")


def export(fake: Any, name: str, path: str, enable: str = "1") -> None:
    fake.write(f"kernel/config/nvmet/subsystems/{name}/device_path", path)
    fake.write(f"kernel/config/nvmet/subsystems/{name}/enable", enable)


def test_exports(fake: Any, proc: Any) -> None:
    fake.nvme()
    fake.holder("nvme0n1p2", "dm-0", "253:0")
    export(fake, "nqn.a/namespaces/1", "/dev/nvme0n1p1")
    export(fake, "nqn.b/namespaces/1", "/dev/dm-0")
    export(fake, "nqn.c/passthru", "/dev/nvme0")
    export(fake, "nqn.d/namespaces/1", "/dev/nvme0n1", enable="0")
    export(fake, "nqn.e/namespaces/7", "/dev/nvme7n1")
    assert look(fake, proc).reasons == (
        "held by dm-0 (nvme0n1p2)",
        "exported as nqn.a (nvme0n1p1)",
        "exported as nqn.b (dm-0 on nvme0n1p2)",
        "exported as nqn.c (nvme0)",
    )


def claimed(monkeypatch: pytest.MonkeyPatch, pool: Optional[str], *names: str) -> List[str]:
    """Have the kernel say that these are claimed; the list of what it is asked for."""
    asked: List[str] = []

    def answer(path: str, number: str) -> bool:
        asked.append(path[len("/dev/") :])
        return path[len("/dev/") :] in names

    monkeypatch.setattr(Sysfs, "is_kernels", lambda self: True)
    monkeypatch.setattr(usage_module, "is_claimed", answer)
    monkeypatch.setattr(usage_module, "zfs_pool", lambda path: pool)
    return asked


def test_what_somebody_claimed(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    asked = claimed(monkeypatch, None, "nvme0n1p1", "nvme0n1")
    assert look(fake, proc).reasons == ("claimed for exclusive use (nvme0n1p1)",)
    assert asked == ["nvme0n1p2", "nvme0n1p1"]


def test_what_is_explained_is_not_asked_for(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    fake.holder("nvme0n1p1", "dm-0", "253:0")
    asked = claimed(monkeypatch, None, "nvme0n1p1", "nvme0n1")
    assert look(fake, proc).reasons == ("held by dm-0 (nvme0n1p1)",)
    assert asked == ["nvme0n1p2"]


def test_members_of_a_zfs_pool(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme()
    claimed(monkeypatch, "rpool", "nvme0n1p2")
    assert look(fake, proc).reasons == ("held by the ZFS pool rpool (nvme0n1p2)",)
    proc.mount("0:33", "/srv", "rpool/srv", kind="zfs")
    proc.mount("0:34", "/tank", "tank", kind="zfs")
    assert look(fake, proc).reasons == ("held by the ZFS pool rpool (nvme0n1p2), mounted at /srv",)
    proc.mount("0:35", "/", "rpool/ROOT/debian", kind="zfs")
    assert look(fake, proc).never == ("holds / (nvme0n1p2)",)


def test_a_disk_that_may_not_be_opened(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.nvme(partitions=0)
    claimed(monkeypatch, None)

    def denied(path: str, number: str) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(usage_module, "is_claimed", denied)
    assert look(fake, proc).reasons == ("could not open /dev/nvme0n1 to see whether it is claimed: Permission denied",)


def test_a_claim_is_not_asked_for_of_what_is_not_the_kernels(fake: Any, proc: Any) -> None:
    fake.nvme()
    assert look(fake, proc) == Usage()
    assert is_claimed("/dev/null", "1:3") is None
    assert is_claimed("/dev/missing", "8:0") is None


def packed(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode() + bytes(-len(text) % 4)


def pair(name: str, kind: int, value: bytes) -> bytes:
    body = packed(name) + struct.pack(">ii", kind, 1) + value
    return struct.pack(">ii", len(body) + 8, 64) + body


def label(*pairs: bytes) -> bytes:
    return bytes(16 << 10) + b"\1\1\0\0" + struct.pack(">ii", 0, 1) + b"".join(pairs) + bytes(8)


@pytest.mark.parametrize(
    ("content", "pool"),
    [
        (label(pair("version", 8, bytes(8)), pair("name", 9, packed("tank")), pair("state", 8, bytes(8))), "tank"),
        (label(pair("version", 8, bytes(8))), None),
        (label(), None),
        (bytes(1 << 20), None),
        (b"", None),
        (label(struct.pack(">ii", 1 << 30, 0)), None),
    ],
)
def test_labels_of_zfs(tmp_path: Path, content: bytes, pool: Optional[str]) -> None:
    (tmp_path / "disk").write_bytes(content)
    assert zfs_pool(str(tmp_path / "disk")) == pool
    assert zfs_pool(str(tmp_path / "missing")) is None


@given(st.binary(max_size=200))
def test_no_label_of_zfs_does_harm(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16 << 10) + b"\1" + content)
        file.flush()
        assert isinstance(zfs_pool(file.name), (str, type(None)))


# Virtual functions


def test_a_device_is_in_use_where_a_virtual_function_is(fake: Any, proc: Any) -> None:
    folder = fake.device(NIC, driver="ice", sriov_numvfs="2", **{"class": "0x020000"})
    for number in (0, 1):
        function = fake.device(f"0000:82:02.{number}", driver="iavf", **{"class": "0x020000"})
        fake.link(f"{folder}/virtfn{number}", function)
        fake.link(f"{function}/physfn", folder)
        fake.interface(f"{function}/net/eth{number}", flags="0x1003" if number else "0x1002")
    proc.route("eth1")
    assert look(fake, proc, NIC) == Usage(
        reasons=("2 virtual functions are enabled", "0000:82:02.1: eth1 is up"),
        never=("0000:82:02.1: eth1 carries the default route",),
    )


def test_this_machine() -> None:
    storage = read_storage("/proc")
    assert "/" in [mount.point for mount in storage.mounts]
    assert storage.problems == ()
    assert local_addresses()["127.0.0.1"] == "lo"
    sysfs = Sysfs()
    seen = observe(sysfs.addresses(), sysfs)
    assert list(seen) == sysfs.addresses()
    for bdf, usage in seen.items():
        assert ("is a PCI bridge" in usage.never) == sysfs.device(bdf).class_code.startswith("06")


def test_a_real_block_device_behind_the_root_is_found() -> None:
    """The number of / in mountinfo is what stat says, wherever / has a number of its own."""
    found = [mount for mount in read_storage("/proc").mounts if mount.point == "/"]
    device = os.stat("/").st_dev
    assert found[-1].number in ("", f"{os.major(device)}:{os.minor(device)}")
    assert isinstance(found[-1], Mount)


# -- what changes or fails while it is looked at ------------------------------------------------------------------


@pytest.mark.parametrize("function", ["listdir", "scandir", "readlink", "stat"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOMEM])
def test_what_cannot_be_read_is_a_reason(
    fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    """It may hide that the device must never be touched, so force does not override it."""
    fake.nvme()
    place = {
        "listdir": "/nvme0n1/holders",
        "scandir": f"/devices/{BDF}",
        "readlink": f"/{BDF}/driver",
        "stat": "/nvme0n1/bcache",
    }[function]
    real = getattr(os, function)

    def failing(path: Any = ".", *rest: Any, **more: Any) -> Any:
        if str(path).endswith(place):
            raise OSError(number, os.strerror(number), path)
        return real(path, *rest, **more)

    assert look(fake, proc) == Usage()
    monkeypatch.setattr(os, function, failing)
    found = look(fake, proc)
    monkeypatch.undo()
    assert not found.reasons
    assert len(found.never) == 1
    assert found.never[0].startswith("could not read ")
    assert os.strerror(number).lower() in found.never[0]
    assert ("run as root" in found.never[0]) == (number == errno.EACCES)


def test_an_attribute_that_became_a_folder_is_a_reason(fake: Any, proc: Any) -> None:
    folder = fake.nvme()
    (fake.root / folder / "class").unlink()
    (fake.root / folder / "class").mkdir()
    assert [text.endswith("class: is a directory") for text in look(fake, proc).never] == [True]


def after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[[], object]) -> None:
    """Have something happen once a function of a module has returned."""
    real = getattr(module, name)

    def then(*args: Any, **more: Any) -> Any:
        result = real(*args, **more)
        change()
        return result

    monkeypatch.setattr(module, name, then)


@pytest.mark.parametrize("with_another", [False, True])
def test_a_device_that_was_pulled_was_not_seen(
    fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch, with_another: bool
) -> None:
    """Also where another one is in its place at once."""
    folder = fake.nvme()

    def pull() -> None:
        if with_another:
            shutil.copytree(fake.root / folder, fake.root / "other", symlinks=True)
        shutil.rmtree(fake.root / folder)
        if with_another:
            (fake.root / "other").rename(fake.root / folder)

    after(monkeypatch, usage_module, "target", pull)
    assert look(fake, proc).never == ("went away or came anew while it was looked at; run again",)


def test_an_interface_that_is_renamed_may_be_up(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nic(fake, "eth0", flags="0x1003")
    place = fake.root / f"devices/pci0000:80/{NIC}/net"
    after(monkeypatch, usage_module, "target", lambda: (place / "eth0").rename(place / "enp1s0"))
    (text,) = look(fake, proc, NIC).never
    assert text.endswith("net/eth0 went away while it was looked at; run again")


def test_an_interface_that_tells_nothing_may_be_up(fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes away just now, or comes: the kernel's own sysfs always tells. A small tree need not."""
    nic(fake, "eth0", flags="")
    assert look(fake, proc, NIC) == Usage()
    (fake.root / f"devices/pci0000:80/{NIC}/net/eth0/flags").unlink()
    assert look(fake, proc, NIC) == Usage()
    monkeypatch.setattr(Sysfs, "is_kernels", lambda _self: True)
    assert len(look(fake, proc, NIC).never) == 1


def test_one_device_that_cannot_be_read_does_not_hide_the_others(
    fake: Any, proc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.nvme()
    nic(fake, "eth0")
    place = fake.root / f"devices/pci0000:80/{NIC}/net"
    real = usage_module.target

    def renamed(bdf: str, *rest: Any) -> Any:
        found = real(bdf, *rest)
        if bdf == NIC:
            (place / "eth0").rename(place / "enp1s0")
        return found

    monkeypatch.setattr(usage_module, "target", renamed)
    found = observe([BDF, NIC], fake.sysfs, proc.path, "", dict)
    assert found[BDF] == Usage()
    assert found[NIC].never


@pytest.mark.parametrize("count", ["9" * 5000, "\u00b2", "-1", "1 1"])
def test_a_number_that_is_none_is_not_told(fake: Any, proc: Any, count: str) -> None:
    fake.device(BDF, sriov_numvfs=count, **{"class": "0x020000"})
    assert fake.sysfs.device(BDF).numvfs is None
    assert look(fake, proc) == Usage()


def test_a_virtual_function_that_is_no_device_is_none(fake: Any, proc: Any) -> None:
    folder = fake.device(BDF, sriov_numvfs="1", **{"class": "0x020000"})
    (fake.root / folder / "virtfn0").symlink_to("../nonsense")
    assert fake.sysfs.virtual_functions(BDF) == []
    assert look(fake, proc).reasons == ("1 virtual function is enabled",)


@pytest.mark.parametrize(
    "line", ["1" * 33 + " 00 0 00 0 0 0 0 00000001 eth0", "-1 00 0 00 0 0 0 0 00000001 eth0", "0 0", "z"]
)
def test_a_route_that_is_none_is_a_problem(fake: Any, proc: Any, line: str) -> None:
    nic(fake, "eth0")
    proc.append("net/ipv6_route", line)
    (text,) = look(fake, proc, NIC).never
    assert text.startswith("could not understand")


def test_a_path_with_a_nul_is_none(fake: Any, proc: Any) -> None:
    fake.nvme()
    proc.mount("0:40", "/data", "/dev/nvme0\0n1")
    proc.mount("259:1", "/srv")
    assert look(fake, proc).reasons == ("mounted at /srv (nvme0n1p1)",)
