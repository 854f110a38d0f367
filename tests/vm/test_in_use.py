# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lender's devices in real use, in front of a software node over the kernel's own sysfs.

One guest with a device for each kind of use. What is refused must be refused in the words that are promised, and be
untouched; what is free is really unbound, and really comes back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.tests.vm.guest import Disk, Guest
from ansible_collections.iofabric.sharing.tests.vm.playing import Answer, play, task

FILES = Path(__file__).resolve().parents[2] / "roles/software_node/files"
NODE = "/run/node"
SERIALS = ("FREE", "MOUNT", "SWAP", "LVM", "MD", "BTRFS-A", "BTRFS-B", "EXPORT", "OPEN", "OTHER", "LAZY", "LOOP")
# Two virtual functions of an NVMe controller, and two network cards.
DEVICES = (
    *("-device", "pcie-root-port,id=pv,chassis=90,slot=90,addr=10.0", "-device", "nvme-subsys,id=subsystem"),
    "-device",
    "nvme,serial=SRIOV,bus=pv,subsys=subsystem,sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,"
    "max_ioqpairs=6,msix_qsize=7",
    *("-device", "e1000e,addr=11.0", "-device", "e1000e,addr=12.0"),
)
ETH0, ETH1 = "0000:00:11.0", "0000:00:12.0"
# Every disk is in a variable named as its serial number.
SETUP = r"""
set -e
modprobe -a ext4 btrfs raid1 dm-mod nvmet loop bonding 8021q e1000e
mkdir -p /srv /btrfs /other /lazy
printf 'o\nn\np\n1\n\n+20M\nn\np\n2\n\n\nw\n' | fdisk $MOUNT > /dev/null
until [ -e ${MOUNT}p2 ]; do sleep 0.05; done
mkfs.ext4 -q ${MOUNT}p1
mount ${MOUNT}p1 /srv
mkswap $SWAP > /dev/null
swapon $SWAP
vgcreate -q vg $LVM
lvcreate -q -n data -L 20M vg
mdadm --quiet --create /dev/md127 --run --level=1 --raid-devices=2 $MD missing
mkfs.btrfs -q $BTRFS_A $BTRFS_B
mount $BTRFS_A /btrfs
mount -t configfs configfs /sys/kernel/config
mkdir -p /sys/kernel/config/nvmet/subsystems/nqn.test/namespaces/1
cd /sys/kernel/config/nvmet/subsystems/nqn.test/namespaces/1
echo $EXPORT > device_path
echo 1 > enable
cd /
sleep 600 < $OPEN > /dev/null 2>&1 &
echo $! > /tmp/open.pid
mkfs.ext4 -q $OTHER
unshare --mount sh -c "mount $OTHER /other; touch /tmp/other; exec sleep 600" > /dev/null 2>&1 &
echo $! > /tmp/other.pid
mkfs.ext4 -q $LAZY
mount $LAZY /lazy
(cd /lazy; exec sleep 600) > /dev/null 2>&1 &
until [ /lazy -ef /proc/$!/cwd ]; do sleep 0.05; done
umount -l /lazy
losetup /dev/loop0 $LOOP
until [ -e /tmp/other ]; do sleep 0.05; done
"""
NETWORK = r"""
set -e
echo 2 > /sys/bus/pci/devices/$SRIOV/sriov_numvfs
name() { ls /sys/bus/pci/devices/$1/net; }
ip link add bond0 type bond
ip link set $(name $ETH1) master bond0
ip link add link bond0 name bond0.5 type vlan id 5
ip link set bond0 up
ip link set bond0.5 up
ip addr add 192.0.2.1/24 dev bond0.5
ip link set $(name $ETH0) up
ip addr add 198.51.100.1/24 dev $(name $ETH0)
ip route add default dev $(name $ETH0)
"""


class Lender:
    """A guest with a software node that lends the guest's own devices. ``disks`` has /dev's names by serial number."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        found = guest.run(
            "cd /sys/block; for disk in nvme*; do cat $disk/device/serial; echo $disk; done"
        ).stdout.split()
        self.disks = dict(zip(found[::2], found[1::2]))
        self.bdfs = {serial: guest.bdf(serial) for serial in (*SERIALS, "SRIOV")}

    def shell(self, script: str) -> str:
        """Runs a script that knows the devices."""
        known = {serial.replace("-", "_"): f"/dev/{name}" for serial, name in self.disks.items()}
        known.update(ETH0=ETH0, ETH1=ETH1, SRIOV=self.bdfs["SRIOV"])
        return self.guest.run(
            "".join(f"{name}={value}\n" for name, value in known.items()) + script, timeout=180
        ).stdout

    def start(self) -> None:
        """Starts the software node."""
        devices = [{"bdf": bdf} for bdf in (*self.bdfs.values(), ETH0, ETH1)]
        node = {"name": "lender", "node_id": 4, "sysfs": "/sys", "devices": devices}
        self.guest.run("cp -r /share/software_node /root")
        self.guest.write("/root/node.json", json.dumps(node))
        command = f"cd /root; python3 -m software_node daemon --config node.json --dir {NODE} > /root/log 2>&1 &"
        self.guest.run(command + " until grep -q ready /root/log; do sleep 0.1; done")

    def lend(self, *devices: str, check: bool = False, **more: Any) -> Dict[str, Any]:
        """A task for smartio_device."""
        elements = [{"bdf": self.bdfs.get(device, device)} for device in devices]
        return task("smartio_device", check=check, devices=elements, tool=f"{NODE}/sbin/smartio_tool", **more)

    def driver(self, device: str) -> str:
        """The driver that a device has; empty for none."""
        path = f"/sys/bus/pci/devices/{self.bdfs.get(device, device)}/driver"
        return self.guest.run(f"[ ! -e {path} ] || basename $(readlink {path})").stdout.strip()

    def in_use(self) -> Dict[str, List[str]]:
        """What must be said of each device, the reasons that force does not override first."""
        disk, pid = self.disks, {name: self.shell(f"cat /tmp/{name}.pid").strip() for name in ("open", "other")}
        card, bonded = (self.guest.run(f"ls /sys/bus/pci/devices/{bdf}/net").stdout.strip() for bdf in (ETH0, ETH1))
        return {
            "MOUNT": [f"mounted at /srv ({disk['MOUNT']}p1)"],
            "SWAP": [f"active swap ({disk['SWAP']})"],
            "LVM": [f"held by dm-0 ({disk['LVM']})"],
            "MD": [f"held by md127 ({disk['MD']})"],
            "BTRFS-A": [f"mounted at /btrfs ({disk['BTRFS-A']})"],
            "BTRFS-B": [f"mounted at /btrfs ({disk['BTRFS-B']})"],
            "EXPORT": [f"exported as nqn.test ({disk['EXPORT']})"],
            "OPEN": [f"open by sleep (pid {pid['open']})"],
            "OTHER": [f"mounted at /other as sleep (pid {pid['other']}) sees it ({disk['OTHER']})"],
            "LAZY": [f"claimed for exclusive use ({disk['LAZY']})"],
            "LOOP": [f"held by loop0 ({disk['LOOP']})"],
            "SRIOV": ["2 virtual functions are enabled"],
            ETH0: [f"{card} carries the default route", f"{card} is up"],
            ETH1: [
                f"{bonded} is up",
                f"{bonded} is in bond0",
                "bond0 is in bond0.5",
                f"{bonded} carries a route (through bond0.5)",
            ],
        }


@pytest.fixture(scope="module")
def lender() -> Iterator[Lender]:
    with Guest([Disk(serial, mib=128) for serial in SERIALS], share=FILES, devices=DEVICES) as guest:
        made = Lender(guest)
        made.shell(SETUP)
        made.shell(NETWORK)
        made.start()
        yield made


def said(answer: Answer) -> Dict[str, str]:
    """What was said of each device that was refused."""
    return {error["element"]: error["msg"] for error in answer["errors"]}


def test_a_free_device_is_unbound_and_comes_back(lender: Lender) -> None:
    lender.shell("echo data > $FREE")
    check, there, again, back = play(
        lender.guest,
        lender.lend("FREE", check=True),
        lender.lend("FREE"),
        lender.lend("FREE"),
        lender.lend("FREE", state="unavailable", borrowers_checked=True),
    )
    assert check["devices"][0]["action"] == there["devices"][0]["action"] == "add, available"
    assert (there["devices"][0]["driver_before"], there["devices"][0]["driver"]) == ("nvme", None)
    assert there.changed and not again.changed and not again.failed
    assert (back["devices"][0]["state"], back["devices"][0]["driver"]) == ("unavailable", "nvme")
    assert lender.shell("head -n 1 $FREE") == "data\n"


def test_what_is_in_use_is_refused_in_these_words_and_is_untouched(lender: Lender) -> None:
    expected = lender.in_use()
    before = {device: lender.driver(device) for device in expected}
    lending, binding = play(
        lender.guest,
        lender.lend(*expected, "FREE"),
        task("pci_driver", devices=[lender.bdfs[name] for name in ("MOUNT", "OPEN", "SWAP")], driver="vfio-pci"),
    )
    assert {row["bdf"]: row["in_use"] for row in lending["devices"]} == {
        **{lender.bdfs.get(device, device): reasons for device, reasons in expected.items()},
        lender.bdfs["FREE"]: [],
    }
    words = said(lending)
    assert len(words) == len(expected)
    for device, reasons in expected.items():
        bdf = lender.bdfs.get(device, device)
        if device in ("SWAP", ETH0):
            assert words[bdf].startswith(f"{bdf} must not be touched: {reasons[0]}")
        else:
            assert words[bdf] == f"{bdf} is in use: {'; '.join(reasons)}; free it first, or give force: true"
    assert lending.changed and lending["devices"][-1]["state"] == "available"
    assert [row["action"] for row in lending["devices"][:-1]] == ["none"] * len(expected)
    assert [row["action"] for row in binding["devices"]] == ["none"] * 3
    assert f"{lender.bdfs['MOUNT']} is in use: {expected['MOUNT'][0]}" in said(binding)[lender.bdfs["MOUNT"]]
    assert {device: lender.driver(device) for device in expected} == before
    assert lender.shell("touch /srv/still-here; cat /proc/swaps | wc -l") == "2\n"


def test_force_overrides_what_it_may(lender: Lender) -> None:
    forced = ("OPEN", "EXPORT", "LOOP", "SRIOV", ETH1)
    (answer,) = play(lender.guest, lender.lend(*forced, "SWAP", ETH0, force=True))
    assert [row["state"] for row in answer["devices"]] == ["available"] * len(forced) + ["absent"] * 2
    assert set(said(answer)) == {lender.bdfs["SWAP"], ETH0}
    assert all(words.endswith("refused even with force") for words in said(answer).values())
    assert [lender.driver(device) for device in forced] == [""] * len(forced)
    assert (lender.driver("SWAP"), lender.driver(ETH0)) == ("nvme", "e1000e")
