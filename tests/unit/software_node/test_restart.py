# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that die and come back: what the others notice, what is forgotten."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from software_node import tool

FDID = "80600"


@pytest.fixture
def cluster(new_cluster: Callable[..., Any], models: Any) -> Any:
    devices = [{"bdf": "06:00.0", **models["nvme"]}]
    nodes = [
        {"name": "lender", "node_id": 8, "devices": devices},
        {"name": "borrower", "node_id": 4},
        {"name": "other", "node_id": 12},
    ]
    result = new_cluster(nodes)
    open_up(result["lender"])
    return result


def open_up(lender: Any) -> None:
    lender.ok("connect", "4")
    lender.ok("connect", "12")
    lender.ok("add", "06:00.0")
    lender.ok("available", "--force", "06:00.0")


def identity(node: Any) -> Dict[str, Any]:
    module = (node.sysfs / "module/dis_smartio").stat()
    boot = (node.folder / "proc/sys/kernel/random/boot_id").read_text()
    return {"inode": module.st_ino, "ctime": module.st_ctime_ns, "boot": boot}


def test_a_lender_that_dies(cluster: Any, poll: Any) -> None:
    lender, borrower = cluster["lender"], cluster["borrower"]
    before = identity(lender)
    vdev = borrower.ok("borrow", FDID).split("Local virtual device: ")[1].split()[0]
    cluster.do("kill", "lender")
    assert lender.status("list") == errno.ENXIO
    assert poll(lambda: borrower.status("get-vdev", FDID) == errno.EIO)
    assert borrower.status("show", FDID) == borrower.status("borrow", FDID) == errno.EIO
    assert borrower.ok("list") == ""
    assert borrower.driver(vdev) == "nvme"

    cluster.do("start", "lender")
    after = identity(lender)
    assert all(before[key] != after[key] for key in before)
    assert lender.ok("list") == ""  # the pool is forgotten
    assert lender.driver("0000:06:00.0") == "nvme"
    assert borrower.ok("list") == ""
    lender.ok("add", "06:00.0")
    assert borrower.ok("list") == ""  # and so are the connections
    lender.ok("remove", "06:00.0")
    assert borrower.status("get-vdev", FDID) == errno.ENODEV  # what it had is gone with the lender that lent it
    assert not (borrower.sysfs / "bus/pci/devices" / vdev).exists()
    assert f"80600: {vdev} was removed by surprise: node 8, which lent it, was restarted" in borrower.kmsg()
    assert borrower.status("return", FDID) == errno.EINVAL
    open_up(lender)
    assert FDID in borrower.ok("list")
    borrower.ok("borrow", FDID)
    assert cluster["other"].status("borrow", FDID) == errno.EBUSY


def test_a_daemon_that_ends_before_it_has_read_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As without a daemon: nothing was done, and no number is told that the tool does not know."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(tool.SOCKET_NAME)
        listener.listen()

        def end_without_reading() -> None:
            link, _address = listener.accept()
            select.select([link], [], [], 10)
            link.close()

        daemon = threading.Thread(target=end_without_reading)
        daemon.start()
        status = tool.main(os.fspath(tmp_path), "smartio_tool", ["list"])
        daemon.join()
    assert status == errno.ENXIO
    assert "smartio_tool: the SmartIO driver is not loaded" in capfd.readouterr().err


def test_a_daemon_that_has_ended_is_no_closed_output() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ConnectionResetError):
        tool.talk(ours, "smartio_tool", ["list"])


def test_a_lender_that_is_back_is_noticed_without_a_question(cluster: Any, poll: Any) -> None:
    lender, borrower = cluster["lender"], cluster["borrower"]
    vdev = borrower.ok("borrow", FDID).split("Local virtual device: ")[1].split()[0]
    cluster.do("kill", "lender")
    cluster.do("start", "lender")
    assert poll(lambda: not (borrower.sysfs / "bus/pci/devices" / vdev).exists())
    open_up(lender)
    borrower.ok("borrow", FDID)


def test_a_lender_that_is_stopped(cluster: Any, poll: Any) -> None:
    lender, borrower = cluster["lender"], cluster["borrower"]
    before = identity(lender)
    borrower.ok("borrow", FDID)
    cluster.do("down", "lender")
    assert not lender.sysfs.exists()
    assert poll(lambda: borrower.status("get-vdev", FDID) == errno.EIO)
    borrower.ok("return", FDID)
    assert borrower.status("get-vdev", FDID) == errno.ENODEV
    cluster.do("start", "lender")
    after = identity(lender)
    assert all(before[key] != after[key] for key in before)


def test_a_borrower_that_dies(cluster: Any, poll: Any) -> None:
    lender, borrower = cluster["lender"], cluster["borrower"]
    borrower.ok("borrow", FDID)
    assert lender.status("unavailable", "06:00.0") == errno.EBUSY
    borrower.fault("killed")
    assert poll(lambda: cluster["other"].status("borrow", FDID) == 0)
    cluster["other"].ok("return", FDID)
    cluster.do("start", "borrower")
    assert "[available]" in borrower.ok("list")  # the lender's connection reaches it again
    assert borrower.status("get-vdev", FDID) == errno.ENODEV
    borrower.ok("borrow", FDID)


def test_a_borrower_that_was_cut_off_when_it_died_borrows_its_device_at_once(cluster: Any, poll: Any) -> None:
    lender, borrower, other = cluster["lender"], cluster["borrower"], cluster["other"]
    borrower.ok("borrow", FDID)
    lender.fault("link_down=4")
    assert poll(lambda: borrower.status("get-vdev", FDID) == errno.EIO)
    cluster.do("kill", "borrower")
    cluster.do("start", "borrower")
    assert other.status("borrow", FDID) == errno.EBUSY  # as far as the lender knows, it is in use
    lender.fault("clear")
    borrower.ok("borrow", FDID)
    assert other.status("borrow", FDID) == errno.EBUSY


def test_a_borrower_that_is_stopped(cluster: Any, poll: Any) -> None:
    lender, borrower = cluster["lender"], cluster["borrower"]
    borrower.ok("borrow", FDID)
    cluster.do("down", "borrower")
    assert poll(lambda: lender.status("unavailable", "06:00.0") == 0)
    assert lender.status("connect", "4") == errno.EIO
