# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pci_driver over a real kernel: real controllers, real groups, a driver that really does not let go."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.vm.guest import Disk, Guest
from ansible_collections.iofabric.sharing.tests.vm.playing import Answer, play, task

# Opens a device as a user of VFIO does, says so, and keeps it for as long as it lives.
HOLDER = """
import fcntl, os, struct, sys, time
group, bdf = sys.argv[1:]
container = os.open("/dev/vfio/vfio", os.O_RDWR)
opened = os.open(f"/dev/vfio/{group}", os.O_RDWR)
fcntl.ioctl(opened, 0x3B68, struct.pack("i", container))  # VFIO_GROUP_SET_CONTAINER
fcntl.ioctl(container, 0x3B66, 1)  # VFIO_SET_IOMMU, type 1
fcntl.ioctl(opened, 0x3B6A, bytearray(bdf.encode() + b"\\0"))  # VFIO_GROUP_GET_DEVICE_FD
open("/tmp/held", "w").close()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Guest([Disk("ONE"), Disk("TWO"), Disk("PAIR-A"), Disk("PAIR-B", beside=True)]) as started:
        started.run("! grep -q vfio /proc/modules")
        yield started


def rows(answer: Answer, *names: str) -> List[Tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in answer["devices"]]


def bind(driver: str, *devices: str, check: bool = False, **more: Any) -> Dict[str, Any]:
    return task("pci_driver", check=check, devices=list(devices), driver=driver, **more)


def nodes(guest: Guest) -> Dict[str, str]:
    """The disks that are there: serial number to name."""
    words = guest.run("cd /sys/block; for disk in nvme*; do cat $disk/device/serial; echo $disk; done").stdout.split()
    return dict(zip(words[::2], words[1::2]))


def test_two_controllers_to_vfio_and_back_with_their_data(guest: Guest) -> None:
    one, two = guest.bdf("ONE"), guest.bdf("TWO")
    for serial in ("ONE", "TWO"):
        guest.run(f"dd if=/dev/urandom of=/dev/{nodes(guest)[serial]} bs=1M count=8 oflag=direct 2>/dev/null")
    sums = {serial: guest.run(f"md5sum < /dev/{nodes(guest)[serial]}").stdout for serial in ("ONE", "TWO")}
    check, there, again = play(
        guest, bind("vfio-pci", one, two, check=True), bind("vfio-pci", one, two), bind("vfio-pci", one, two)
    )
    moved = [("nvme", "vfio-pci", "modprobe, unbind, override, probe"), ("nvme", "vfio-pci", "unbind, override, probe")]
    assert rows(check, "before", "after", "action") == rows(there, "before", "after", "action") == moved
    assert check.changed and there.changed and check["diff"] == there["diff"]
    assert not again.changed and rows(again, "action") == [("none",), ("none",)]
    assert set(nodes(guest)) == {"PAIR-A", "PAIR-B"}
    assert set(guest.run("ls /dev/vfio").stdout.split()) == {row["iommu_group"] for row in there["devices"]} | {"vfio"}
    check, back, again = play(
        guest, bind("default", one, two, check=True), bind("default", one, two), bind("default", one, two)
    )
    assert rows(check, "before", "after", "action") == [("vfio-pci", None, "unbind, override, probe")] * 2
    assert rows(back, "before", "after", "action") == [("vfio-pci", "nvme", "unbind, override, probe")] * 2
    assert check["diff"] == back["diff"] and not again.changed
    for serial in ("ONE", "TWO"):
        guest.run(f"until [ -e /dev/{nodes(guest)[serial]} ]; do sleep 0.02; done")
        assert guest.run(f"md5sum < /dev/{nodes(guest)[serial]}").stdout == sums[serial]


def test_a_group_is_refused_in_part_and_moved_as_a_whole(guest: Guest) -> None:
    first, second = guest.bdf("PAIR-A"), guest.bdf("PAIR-B")
    refused, included, back, missing = play(
        guest,
        bind("vfio-pci", first),
        bind("vfio-pci", first, group="include"),
        bind("default", second, group="include"),
        bind("no-such-driver", first),
    )
    assert refused.failed and not refused.changed
    assert f"{first} shares its IOMMU group" in refused["msg"] and f"with {second} (nvme)" in refused["msg"]
    assert rows(included, "bdf", "after") == [(first, "vfio-pci"), (second, "vfio-pci")]
    assert rows(back, "bdf", "after") == [(second, "nvme"), (first, "nvme")]
    assert "the kernel module no-such-driver cannot be loaded (modprobe: FATAL: Module no-such-driver" in missing["msg"]


def test_a_driver_that_does_not_take_it_is_replaced_by_the_old_one(guest: Guest) -> None:
    one = guest.bdf("ONE")
    (answer,) = play(guest, bind("virtio-pci", one))
    assert answer["msg"] == f"{one}: virtio-pci did not take it; see dmesg; {one} was put back as it was (nvme)"
    assert answer.changed
    assert guest.run(f"cat /sys/bus/pci/devices/{one}/driver_override").stdout == "(null)\n"


def test_an_unbind_that_hangs_is_given_up_and_ends_with_its_cause(guest: Guest) -> None:
    one = guest.bdf("ONE")
    (there,) = play(guest, bind("vfio-pci", one))
    guest.write("/tmp/holder.py", HOLDER)  # noqa: S108 - in the guest
    group = there["devices"][0]["iommu_group"]
    guest.run(f"python3 /tmp/holder.py {group} {one} > /tmp/said 2>&1 & echo $! > /tmp/pid")
    guest.run("until [ -e /tmp/held ]; do sleep 0.05; done", timeout=20)
    (given_up,) = play(guest, bind("default", one, force=True, timeout=3))
    assert given_up["msg"].startswith(f"{one}: could not unbind vfio-pci from {one} within ")
    assert "cannot be ended" in given_up["msg"] and f"{one} is left as it is" in given_up["msg"]
    guest.run(f"kill $(cat /tmp/pid); while [ -e /sys/bus/pci/devices/{one}/driver ]; do sleep 0.05; done")
    (back,) = play(guest, bind("default", one))
    assert rows(back, "before", "after", "action") == [(None, "nvme", "override, probe")]
