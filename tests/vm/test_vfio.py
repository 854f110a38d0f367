# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The native server over real controllers, behind vfio-pci and an IOMMU; vfio_steps.py is what the guest does."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import bundle
from ansible_collections.iofabric.sharing.tests.vm.guest import Disk, Guest

STEPS = Path(__file__).with_name("inside") / "vfio_steps.py"
SMALL = ("--heap-size", str(16 << 20))
"""Pages of 4 KiB take their time to be locked."""
MIB = 1 << 20


class Lab:
    """A guest with five controllers, the last two of which share an IOMMU group."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.write("/tmp/cplaned.pyz", bundle.CPLANED.build())  # noqa: S108 - in the guest
        guest.write("/tmp/steps.py", STEPS.read_bytes())  # noqa: S108
        guest.run("modprobe -a vfio-pci vfio_iommu_type1")
        self.one, self.two, self.three, self.four, self.five = (
            guest.bdf(serial) for serial in ("ONE", "TWO", "THREE", "FOUR", "FIVE")
        )

    def step(self, *words: object, before: str = "") -> Any:
        """What a step of vfio_steps.py answers."""
        line = f"{before} python3 /tmp/steps.py " + " ".join(map(str, words))
        return json.loads(self.guest.run(line, timeout=300).stdout)

    def watched(self, condition: Callable[[Any], bool]) -> Any:
        """What the client in the background has seen, once that is as it should be."""
        end = time.monotonic() + 120
        while True:
            found = self.guest.run("cat /tmp/end.found", check=False).stdout
            if found and condition(json.loads(found)):
                return json.loads(found)
            assert time.monotonic() < end, (found, self.guest.run("cat /tmp/*.out; dmesg | tail -n 20").stdout)
            time.sleep(0.1)

    def watch(self, close: bool) -> None:
        """Start a client in the background that works on both controllers of the server."""
        self.guest.run("rm -f /tmp/end*")
        self.step("background", "watch", "/tmp/end", int(close))  # noqa: S108
        self.watched(lambda found: min(found["done"]) > 5)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    disks = [Disk("ONE"), Disk("TWO"), Disk("THREE"), Disk("FOUR"), Disk("FIVE", beside=True)]
    with Guest(disks) as guest:
        yield Lab(guest)


def test_what_cannot_be_served_says_why(lab: Lab) -> None:
    words = lab.step("refused", lab.one)
    assert f"{lab.one} is bound to nvme, not to vfio-pci; bind it with iofabric.sharing.pci_driver" in words
    lab.step("bind", "vfio-pci", lab.one, lab.four)
    words = lab.step("refused", lab.one, lab.four)
    assert re.search(rf"IOMMU group \d+ of {lab.four} is not viable: {lab.five} \(nvme\) must be taken", words), words
    nobody = "setpriv --reuid=nobody --regid=nogroup --clear-groups"
    assert "permission denied; run the server as root" in lab.step("refused", lab.one, *SMALL, before=nobody)
    lab.guest.run("chown nobody /dev/vfio/[0-9]*")
    words = lab.step("refused", lab.one, *SMALL, before=f"ulimit -l 8192; exec {nobody}")
    assert "cannot lock 16777216 bytes for DMA: Cannot allocate memory; this user may lock 8388608 bytes" in words
    lab.guest.run("chown root /dev/vfio/[0-9]*")
    assert lab.step("bind", "default", lab.one, lab.four) == {lab.one: "nvme", lab.four: "nvme"}


def test_two_clients_with_a_controller_each(lab: Lab) -> None:
    """Whole sessions at once; what a killed client leaves; DMA that goes astray; the data, by the kernel's driver."""
    lab.step("bind", "vfio-pci", lab.one, lab.two)
    server = lab.step("start", lab.one, lab.two)
    assert f"{lab.one}: QEMU NVMe Ctrl, serial ONE, 64 queue pairs" in server["said"]
    assert "the heap is in pages of 4 KiB instead" in server["said"]
    written = lab.step("two", 0, "ONE", 1 * MIB, 1, "TWO", 2 * MIB)

    killed = lab.step("killed", 8)
    assert killed == {"held": 8, "qids": list(range(2, 10))}

    lab.guest.run("dmesg -c > /dev/null")
    stray = lab.step("stray", 0, 0)
    assert stray["untouched"], "the controller wrote to memory that is not in the heap"
    assert not stray["leaked"], "the controller read memory that is not in the heap"
    log = lab.guest.run("dmesg").stdout
    for kind in ("Write", "Read"):
        assert re.search(rf"DMAR: \[DMA {kind}.*\[{lab.one[5:]}\] fault addr {stray['place']:#x}", log), log

    stopped = lab.step("stop", server["pid"])
    assert stopped["said"] == server["said"]
    assert lab.step("bind", "default", lab.one, lab.two) == {lab.one: "nvme", lab.two: "nvme"}
    for bdf, start, found in ((lab.one, 1 * MIB, written[0]), (lab.two, 2 * MIB, written[1])):
        assert lab.step("kernel_reads", bdf, start, found["nbytes"]) == found["sha256"]


def test_servers_that_come_and_go(lab: Lab) -> None:
    """Five times in huge pages; one that is killed while its client stays; then the kernel's driver."""
    lab.step("bind", "vfio-pci", lab.two)
    lab.guest.run("echo 16 > /proc/sys/vm/nr_hugepages")
    turns = lab.step("turns", 5, lab.two, *SMALL)
    assert "huge pages" not in turns["said"]
    assert len(turns["times"]) == 5
    assert lab.guest.run("grep HugePages_Free /proc/meminfo").stdout.split() == ["HugePages_Free:", "16"]

    crash = lab.step("crash", lab.two, *SMALL)
    assert crash[
        "words"
    ] == f"xnvme-cplaned: {lab.two}: {crash['node']} is in use, by python3 (pid {crash['client']}); " + (
        "end that first\n"
    )
    assert crash["preflight"] == [f"python3 (pid {crash['client']})"], "a client of a server that is to be replaced"
    session = lab.step("session", 0, "TWO", 4 * MIB)
    lab.step("stop", crash["pid"])
    assert lab.step("bind", "default", lab.two) == {lab.two: "nvme"}
    assert lab.step("kernel_reads", lab.two, MIB, 4096) == turns["sha256"]
    assert lab.step("kernel_reads", lab.two, 4 * MIB, session["nbytes"]) == session["sha256"]


def test_a_controller_that_is_taken_away(lab: Lab) -> None:
    """Its clients are told, the other one goes on, and it comes back with its data."""
    lab.step("bind", "vfio-pci", lab.two, lab.three)
    server = lab.step("start", lab.two, lab.three, *SMALL)
    session = lab.step("session", 1, "THREE", MIB)
    lab.watch(close=True)
    lab.guest.pull(2)
    found = lab.watched(lambda found: found["after"][0] > 20)
    assert found["errors"][0] is None
    assert f"the controller {lab.three} has failed" in found["errors"][1]
    assert found["statuses"] == [-5, -5]
    lab.guest.run(f"while [ -e /sys/bus/pci/devices/{lab.three} ]; do sleep 0.05; done")
    lab.guest.run("touch /tmp/end")
    stopped = lab.step("stop", server["pid"])
    assert f"{lab.three} ({lab.three}) is gone: it is wanted back, or was pulled" in stopped["said"]
    lab.guest.plug(2)
    assert lab.step("kernel_reads", lab.three, MIB, session["nbytes"]) == session["sha256"]
    assert lab.step("bind", "default", lab.two) == {lab.two: "nvme"}


def test_a_controller_that_is_pulled_without_a_word(lab: Lab) -> None:
    """As before, only that nobody asks. The kernel may wait for it for minutes, so this is the last of this guest."""
    lab.step("bind", "vfio-pci", lab.one, lab.two)
    lab.step("start", lab.one, lab.two, *SMALL)
    lab.watch(close=False)
    lab.step(
        "power_off", lab.guest.run(f"basename $(dirname $(realpath /sys/bus/pci/devices/{lab.two}))").stdout.strip()
    )
    found = lab.watched(lambda found: found["after"][0] > 20)
    assert found["errors"][0] is None
    assert f"the controller {lab.two} has failed" in found["errors"][1]
    assert found["statuses"] == [-5, -5]
    assert f"{lab.two} ({lab.two}) is gone: it was pulled" in lab.step("said")
    lab.step("session", 0, "ONE", MIB)
