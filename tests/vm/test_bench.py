# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bench itself: what a guest has, the ways into it, and that none outlives its test."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.tests.vm.guest import Disk, Guest, GuestError
from ansible_collections.iofabric.sharing.tests.vm.playing import play, task

ROOT = Path(__file__).resolve().parents[2]


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_guest_ends_with_its_process() -> None:
    words = [sys.executable, "-B", "-m", "tests.vm", "run", "--disk", "ONE", "true"]
    with subprocess.Popen(words, cwd=ROOT) as process:

        def guests() -> List[Path]:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            found = [Path("/proc", child) for child in children]
            return [path for path in found if path.joinpath("comm").read_text().startswith("qemu-system")]

        assert until(lambda: len(guests()) == 1)
        guest = guests()[0]
        process.kill()
    assert until(lambda: not guest.exists())


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share")


@pytest.fixture(scope="module")
def guest(share: Path) -> Iterator[Guest]:
    with Guest([Disk("ONE"), Disk("TWO"), Disk("THREE", beside=True)], share=share) as started:
        yield started


def test_controllers_and_groups(guest: Guest) -> None:
    one, two, three = (guest.bdf(serial) for serial in ("ONE", "TWO", "THREE"))
    assert (one, two, three) == ("0000:01:00.0", "0000:02:00.0", "0000:02:00.1")
    groups = [guest.run(f"readlink /sys/bus/pci/devices/{bdf}/iommu_group").stdout for bdf in (one, two, three)]
    assert groups[0] != groups[1] == groups[2]


def test_modules_of_the_image_load(guest: Guest) -> None:
    guest.run("modprobe -a vfio-pci vfio_iommu_type1 nvmet dm-mod raid1 bcache ext4 btrfs bonding bridge 8021q e1000e")


def test_commands_run_side_by_side_and_end_in_time(guest: Guest) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(guest.run, "until [ -e /tmp/go ]; do sleep 0.05; done; echo gone; exit 3", check=False)
        assert guest.run("touch /tmp/go").rc == 0
        assert (waiting.result().rc, waiting.result().stdout) == (3, "gone\n")
    assert guest.run("sleep 99 & sleep 99", timeout=0.5, check=False).rc == 124
    with pytest.raises(GuestError, match="No such file"):
        guest.run(["/bin/cat", "/missing"])


def test_files(guest: Guest, share: Path) -> None:
    data = bytes(range(256)) * 4096
    guest.write("/tmp/file", data)  # noqa: S108 - in the guest
    guest.run("cp /tmp/file /share/copy")
    assert (share / "copy").read_bytes() == data


def test_a_controller_is_pulled_and_plugged(guest: Guest) -> None:
    device = "/sys/bus/pci/devices/0000:01:00.0"
    guest.run("echo data > /dev/$(ls /sys/bus/pci/devices/0000:01:00.0/nvme)n1; sync")
    guest.pull(0)
    guest.run(f"while [ -e {device} ]; do sleep 0.05; done")
    guest.plug(0)
    guest.run(f"until ls {device}/nvme/*/*n1; do sleep 0.05; done")
    assert guest.run(f"head -n 1 /dev/$(ls {device}/nvme)n1").stdout == "data\n"


def test_ansible(guest: Guest) -> None:
    answers = play(
        guest,
        task("ansible.builtin.command", cmd="false"),
        task("ansible.builtin.copy", dest="/tmp/copied", content="text"),  # noqa: S108 - in the guest
        task("ansible.builtin.copy", dest="/tmp/copied", content="text", check=True),  # noqa: S108
        task("xnvme_cplane_info"),
    )
    assert [answer.status for answer in answers] == ["failed", "ok", "ok", "ok"]
    assert [answer.changed for answer in answers[1:]] == [True, False, False]
    assert answers[3]["servers"] == []
    assert guest.run("cat /tmp/copied").stdout == "text"


def test_a_guest_that_ends_is_told(guest: Guest) -> None:
    with pytest.raises(GuestError, match="the guest ended"):
        guest.run("echo o > /proc/sysrq-trigger; sleep 99")
    with pytest.raises(GuestError, match="the guest ended"):
        guest.run("true")
