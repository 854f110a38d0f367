# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of running nodes, switched on and off again."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

FDID = "80600"


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Any], models: Any) -> Any:
    devices = [{"bdf": "06:00.0", **models["nvme"]}, {"bdf": "07:00.0", **models["nvme"], "serial": "S2"}]
    nodes = [
        {"name": "lender", "node_id": 8, "devices": devices},
        {"name": "borrower", "node_id": 4},
        {"name": "other", "node_id": 12, "faults": {"slow": 0.3, "fail": ["show:EPERM", "list:EIO:1"]}},
    ]
    result = new_cluster(nodes)
    result["lender"].ok("connect", "4")
    result["lender"].ok("connect", "12")
    result["lender"].ok("add", "06:00.0")
    result["lender"].ok("available", "--force", "06:00.0")
    return result


@pytest.fixture
def lender(cluster: Any) -> Iterator[Any]:
    yield cluster["lender"]
    cluster["lender"].fault("clear")


@pytest.fixture
def borrower(cluster: Any) -> Iterator[Any]:
    yield cluster["borrower"]
    cluster["borrower"].fault("clear")
    if cluster["borrower"].status("return", FDID) == 0:
        assert cluster["borrower"].status("get-vdev", FDID) == errno.ENODEV


def test_faults_of_the_configuration(cluster: Any) -> None:
    other = cluster["other"]
    before = time.monotonic()
    assert other.status("list") == errno.EIO
    assert time.monotonic() - before >= 0.3
    assert other.status("list") == 0
    assert other.status("show", FDID) == errno.EPERM
    assert other.fault() == "slow=0.3\nfail=show:1\n"
    other.fault("clear")


def test_slow_does_not_hold_up_the_peers(lender: Any, borrower: Any) -> None:
    lender.fault("slow=1")
    before = time.monotonic()
    with subprocess.Popen(lender.command("smartio_tool", "list"), stdout=subprocess.DEVNULL) as child:
        borrower.ok("show", FDID)
        assert time.monotonic() - before < 1
        assert child.wait(10) == 0
    assert time.monotonic() - before >= 1


@pytest.mark.parametrize("side", ["lender", "borrower"])
@pytest.mark.parametrize("which", [FDID, "all"])
def test_busy(cluster: Any, lender: Any, borrower: Any, side: str, which: str) -> None:
    cluster[side].fault(f"busy={which}")
    assert borrower.status("borrow", FDID) == errno.EBUSY
    cluster[side].fault("busy=")
    borrower.ok("borrow", FDID)


def test_fail(lender: Any) -> None:
    lender.fault("fail=add:ENOMEM")
    assert lender.status("add", "07:00.0") == errno.ENOMEM
    lender.ok("list")
    lender.fault("fail=dis_config:EPERM")
    assert lender.run("-gn", program="dis_config").returncode == errno.EPERM


def test_garbled_output(lender: Any) -> None:
    good = lender.ok("list").encode()
    lender.fault("garble=list")
    binary = lender.run("list")
    assert binary.returncode == 0
    assert b"\0" in binary.stdout
    with pytest.raises(UnicodeDecodeError):
        binary.stdout.decode()
    lender.fault("garble=list:truncated")
    assert good.startswith(lender.run("list").stdout)
    assert len(lender.run("list").stdout) < len(good) - 5
    lender.fault("garble=list:megabytes")
    assert len(lender.run("list").stdout) > 4 << 20


def test_a_garbled_command_works_all_the_same(lender: Any) -> None:
    lender.fault("garble=add")
    lender.run("add", "07:00.0")
    lender.fault("clear")
    assert "80700: " in lender.ok("list")
    lender.ok("remove", "07:00.0")


def children_of(pid: int) -> List[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_hanging_tool_ignores_sigterm(lender: Any, poll: Any) -> None:
    lender.fault("hang=list")
    child = subprocess.Popen(lender.command("smartio_tool", "list"), stdout=subprocess.DEVNULL)
    assert poll(lambda: ignores_sigterm(child.pid))
    child.terminate()
    assert lender.status("show", FDID) == 0
    assert child.poll() is None
    lender.fault("clear")
    assert child.wait(5) != 0


def ignores_sigterm(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) & 1 << signal.SIGTERM - 1)
    return False


def test_a_child_holds_the_output_of_a_tool_that_was_killed(lender: Any, poll: Any) -> None:
    lender.fault("hang=list:child")
    reading, writing = os.pipe()
    child = subprocess.Popen(lender.command("smartio_tool", "list"), stdout=writing)
    os.close(writing)
    held = poll(lambda: children_of(child.pid))
    assert held
    child.kill()
    child.wait()
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.set_blocking(reading, True)
    lender.fault("clear")
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_a_question_in_spite_of_force(lender: Any) -> None:
    lender.fault("ask=available", "ask=add")
    lender.ok("add", "07:00.0", stdin="y\n")
    assert lender.status("available", "--force", "07:00.0") == errno.ECANCELED
    assert lender.status("available", "--force", "07:00.0", stdin="n\n") == errno.ECANCELED
    assert "80700: Non-Volatile memory controller: Intel Corporation Device [unavailable]" in lender.ok("list")
    done = lender.run("available", "--force", "07:00.0", stdin="yes\n")
    assert (done.returncode, done.stdout) == (0, b"Are you sure? [y/N] ")
    lender.ok("unavailable", "07:00.0")
    lender.ok("remove", "07:00.0")


def test_effects_that_come_later(lender: Any, borrower: Any, poll: Any) -> None:
    lender.ok("add", "07:00.0")
    lender.fault("settle=0.4")
    lender.ok("available", "--force", "07:00.0")
    assert "[unavailable]" in lender.ok("list")
    assert borrower.status("borrow", "80700") == errno.EBUSY
    assert poll(lambda: "[unavailable]" not in lender.ok("list"))
    borrower.fault("settle=0.6")
    vdev = borrower.ok("borrow", "80700").split("Local virtual device: ")[1].split()[0]
    device = borrower.sysfs / "bus/pci/devices" / vdev
    assert borrower.status("get-vdev", "80700") == errno.ENODEV
    assert not device.exists()
    assert poll(lambda: device.exists() and not borrower.driver(vdev))
    assert poll(lambda: borrower.status("get-vdev", "80700") == 0)
    assert borrower.driver(vdev) == "nvme"
    borrower.ok("return", "80700")
    assert device.exists()
    assert poll(lambda: borrower.status("get-vdev", "80700") == errno.ENODEV)
    assert not device.exists()
    lender.ok("unavailable", "07:00.0")
    lender.ok("remove", "07:00.0")


@pytest.mark.parametrize("kind", ["", ":drop"])
@pytest.mark.parametrize("side", ["lender", "borrower"])
def test_a_cut_link(cluster: Any, lender: Any, borrower: Any, poll: Any, side: str, kind: str) -> None:
    vdev = borrower.ok("borrow", FDID).split("Local virtual device: ")[1].split()[0]
    cluster[side].fault(f"link_down={'4' if side == 'lender' else '8'}{kind}")
    assert poll(lambda: borrower.status("get-vdev", FDID) == errno.EIO)
    assert borrower.status("show", FDID) == errno.EIO
    assert borrower.ok("list") == ""
    assert lender.status("connect", "4") == errno.EIO
    assert borrower.driver(vdev) == "nvme"
    assert (borrower.sysfs / "class/nvme/nvme0/state").read_text() == "dead\n"
    assert cluster["other"].status("borrow", FDID) == lender.status("unavailable", "06:00.0") == errno.EBUSY
    cluster[side].fault("clear")
    assert FDID in borrower.ok("list")  # the connection is there again by itself
    assert poll(lambda: borrower.status("get-vdev", FDID) == 0)
    assert borrower.ok("get-vdev", FDID) == f"{vdev}\n"
    assert (borrower.sysfs / "class/nvme/nvme0/state").read_text() == "live\n"
    borrower.ok("show", FDID)
    assert cluster["other"].status("borrow", FDID) == errno.EBUSY


@pytest.mark.parametrize("side", ["lender", "borrower"])
def test_a_return_while_the_link_is_cut(cluster: Any, lender: Any, borrower: Any, poll: Any, side: str) -> None:
    vdev = borrower.ok("borrow", FDID).split("Local virtual device: ")[1].split()[0]
    cluster[side].fault(f"link_down={'4' if side == 'lender' else '8'}")
    assert poll(lambda: borrower.status("get-vdev", FDID) == errno.EIO)
    borrower.ok("return", FDID)
    assert not (borrower.sysfs / "bus/pci/devices" / vdev).exists()
    assert cluster["other"].status("borrow", FDID) == errno.EBUSY
    cluster[side].fault("clear")
    assert poll(lambda: cluster["other"].status("borrow", FDID) == 0)
    cluster["other"].ok("return", FDID)


def test_one_dead_peer_does_not_spoil_the_list(cluster: Any, borrower: Any) -> None:
    borrower.fault("link_down=12:drop")
    before = time.monotonic()
    assert FDID in borrower.ok("list")
    assert time.monotonic() - before < 4
    borrower.fault("link_down=")
    before = time.monotonic()
    borrower.ok("list")
    assert time.monotonic() - before < 2


def test_faults_that_do_not_exist(lender: Any) -> None:
    assert "unknown" in lender.cluster.python("fault", "--dir", str(lender.folder), "broken=1", check=False)
    assert lender.fault() == ""
