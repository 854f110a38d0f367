# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command of the manual page, between real nodes: what it does, what it prints, what it exits with.

The nodes are shared by the tests of this module; each test leaves the pool as it found it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

DRIVE, DRIVE2, GPU = "0000:06:00.0", "0000:07:00.0", "0000:09:00.0"


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Any], models: Any) -> Any:
    nvme, quadro, net = models["nvme"], models["quadro"], models["net"]
    tree = [{"bdf": "01:00.0", **nvme, "serial": "T1"}, {"bdf": "02:00.0", **nvme, "serial": "T2"}]
    lender = {
        "name": "lender",
        "node_id": [8, 12],
        "devices": [
            {"bdf": DRIVE, **nvme, "serial": "S1", "slot": "4"},
            {"bdf": DRIVE2, **nvme, "serial": "S2"},
            {"bdf": GPU, **quadro},
            {"bdf": "0a:00.0", **net, "sriov": {"totalvfs": 2}},
            {"bdf": "0a:00.1", **net, "physfn": "0a:00.0"},
        ],
    }
    second = {
        "name": "second",
        "node_id": 24,
        "devices": [{"bdf": "41:00.0", **quadro}],
        "transparent": [{"adapter": 0, "devices": tree}],
    }
    borrower = {"name": "borrower", "node_id": 4, "devices": [{"bdf": "01:00.0", **nvme, "serial": "OWN"}]}
    return new_cluster([lender, second, borrower, {"name": "other", "node_id": 28}])


@pytest.fixture
def lender(cluster: Any) -> Any:
    return cluster["lender"]


@pytest.fixture
def borrower(cluster: Any) -> Any:
    return cluster["borrower"]


@pytest.fixture
def lent(lender: Any, borrower: Any) -> Iterator[str]:
    """A drive that is open to the borrower; taken out of the pool afterwards."""
    lender.ok("connect", "4")
    lender.ok("add", "06:00.0")
    lender.ok("available", "--force", "06:00.0")
    yield "80600"
    borrower.run("return", "80600")
    lender.ok("unavailable", "06:00.0")
    lender.ok("remove", "06:00.0")


def test_help_and_usage(lender: Any) -> None:
    text = lender.ok("--help")
    for name in ("connect <NODEID>", "available [--force] <BDF>", "enable-p2p", "scan <node id>", "config <CONFIG>"):
        assert name in text
    for args in ((), ("connect",), ("list", "x"), ("show",), ("nonsense",), ("config", "a"), ("available", "--force")):
        done = lender.run(*args)
        assert done.returncode == errno.EINVAL, args
        assert done.stderr.startswith(b"smartio_tool: "), args


def test_node_ids(lender: Any, borrower: Any) -> None:
    assert lender.ok("-gn", program="dis_config") == "Card 1 - NodeId:  8\nCard 2 - NodeId: 12\n"
    assert borrower.ok("get-nodeid", "-hostname", "borrower", program="disinfo") == "4\n"
    assert borrower.ok("get-nodeid", "-hostname", "second", program="disinfo") == "24\n"
    assert borrower.run("get-nodeid", "-hostname", "nobody", program="disinfo").returncode == errno.ENOENT
    assert borrower.run("-x", program="dis_config").returncode == errno.EINVAL
    assert borrower.run("get-nodeid", program="disinfo").returncode == errno.EINVAL


def test_a_connection_opens_the_pool_to_one_borrower(cluster: Any, lender: Any, borrower: Any) -> None:
    other = cluster["other"]
    lender.ok("add", "06:00.0")
    line = "80600: Non-Volatile memory controller: Intel Corporation Device [unavailable]\n"
    assert lender.ok("list") == line
    assert other.ok("list") == ""
    assert other.status("show", "80600") == errno.ENODEV
    lender.ok("connect", "28", "1")
    assert other.ok("list") == line
    assert lender.ok("list") == line
    lender.ok("remove", "06:00.0")
    assert other.ok("list") == lender.ok("list") == ""


def test_a_lender_is_found_by_each_of_its_ids(cluster: Any, lender: Any, borrower: Any, poll: Any) -> None:
    lender.ok("connect", "4", "1")
    lender.ok("add", "06:00.0")
    for node_id in ("8", "12"):
        borrower.fault(f"link_down={node_id}")
        assert borrower.status("show", "80600") == errno.EIO
        assert borrower.ok("list") == ""
        borrower.fault("clear")
        assert "NodeId: 8\n" in borrower.ok("show", "80600")
    lender.ok("remove", "06:00.0")


def test_connections_that_fail(lender: Any) -> None:
    assert lender.status("connect", "99") == errno.EIO
    assert lender.status("connect", "x") == errno.EINVAL
    assert lender.status("connect", "4", "2") == errno.ENODEV
    assert "node 99" in lender.kmsg()
    lender.ok("connect", "8")  # its own node: that connection is always there


def test_add_and_remove(lender: Any) -> None:
    lender.ok("add", "0000:07:00.0")
    lender.ok("add", "07:")
    assert lender.driver(DRIVE2) == "nvme"
    assert lender.ok("list").startswith("80700: ")
    lender.ok("remove", "7:")
    assert lender.status("remove", "7:") == errno.ENODEV
    assert lender.status("add", "55:00.0") == errno.ENODEV
    assert lender.status("add", "0a:") == errno.EINVAL  # two functions
    assert lender.status("add", "zz") == errno.EINVAL
    assert lender.status("available", "07:00.0") == errno.ENODEV
    assert lender.status("unavailable", "07:00.0") == errno.ENODEV


def test_available_asks_when_a_driver_is_bound(lender: Any) -> None:
    lender.ok("add", "06:00.0")
    for answer in ("", "\n", "n\n", "nonsense\n", "y"):
        done = lender.run("available", "06:00.0", stdin=answer)
        assert done.returncode == errno.ECANCELED, answer
        assert b"bound to driver nvme" in done.stdout
        assert lender.driver(DRIVE) == "nvme"
        assert "[unavailable]" in lender.ok("list")
    assert lender.status("available", "06:00.0", stdin="y\n") == 0
    assert lender.driver(DRIVE) == ""
    assert "[available]" in lender.ok("list")
    assert lender.run("available", "06:00.0").stdout == b""
    lender.ok("unavailable", "06:00.0")
    assert lender.driver(DRIVE) == "nvme"
    assert lender.status("unavailable", "06:00.0") == errno.EINVAL
    lender.ok("remove", "06:00.0")


def test_available_without_a_driver_does_not_ask(lender: Any) -> None:
    lender.ok("add", "06:00.0")
    lender.ok("available", "--force", "06:00.0")
    lender.ok("remove", "06:00.0")
    assert lender.driver(DRIVE) == ""
    lender.ok("add", "06:00.0")
    assert lender.run("available", "06:00.0").stdout == b""
    lender.ok("unavailable", "06:00.0")
    lender.ok("remove", "06:00.0")
    assert lender.driver(DRIVE) == "nvme"


def test_the_nodes_of_a_lent_device_vanish_and_come_back(lender: Any, lent: str) -> None:
    assert not (lender.dev / "nvme0").exists()
    assert (lender.dev / "nvme1n1p1").exists()
    assert not (lender.sysfs / "class/block/nvme0n1").exists()
    lender.ok("unavailable", "06:00.0")
    assert (lender.dev / "nvme0n1p1").exists()
    lender.ok("available", "--force", "06:00.0")


def test_filters(lender: Any) -> None:
    done = lender.ok("add-filter", "-d", "10de:")
    assert done == "Adding 09:00.0 VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)\n"
    assert len(lender.ok("add-filter", "-d", "8086:f1a5").splitlines()) == 2
    assert lender.ok("add-filter", "-d", "ffff:") == ""
    assert lender.status("available-filter", "-d", "8086:f1a5", stdin="y\n") == errno.ECANCELED
    assert lender.ok("list").count("[available]") == 1
    lender.ok("available-filter", "-d", "::0108", "-s", "07:", "--force")
    assert lender.ok("list").count("[available]") == 2
    lender.ok("unavailable-filter", "-d", "::0108")
    assert lender.ok("list").count("[unavailable]") == 3
    assert lender.status("available-filter", "-s", "0a:00.1", stdin="y\n") == errno.ENODEV
    assert lender.status("add-filter", "10de:") == errno.EINVAL
    for bdf in ("06:00.0", "07:00.0", "09:00.0"):
        lender.ok("remove", bdf)


def test_show_on_both_sides(lender: Any, borrower: Any, lent: str) -> None:
    uuid = re.search(r"^UUID: ([0-9a-f-]{36})$", lender.ok("show", lent), re.M)
    assert uuid
    expected = (
        "Name: Non-Volatile memory controller Intel Corporation Device f1a5\n"
        "Available: available\n"
        "Location: remote\n"
        "Adapter: 0\n"
        "NodeId: 8\n"
        "Remote BDF: 0000:06:00.0\n"
        "Physical slot: 4\n"
        "Serial Number: S1\n"
        f"UUID: {uuid.group(1)}\n"
        "Vendor ID: 8086\n"
        "Device ID: f1a5\n"
        "Subsystem Vendor ID: 8086\n"
        "Subsystem Device ID: f1a5\n"
        "Local users: 0\n"
    )
    assert borrower.ok("show", "0x80600") == expected
    assert lender.ok("show", lent) == expected.replace("remote", "local")
    assert borrower.status("show", "8ffff") == errno.ENODEV
    assert borrower.status("show", "990000") == errno.ENODEV
    assert borrower.status("show", "xyz") == errno.EINVAL


def test_lspci_of_a_fabric_device(lender: Any, borrower: Any) -> None:
    lender.ok("connect", "4")
    lender.ok("add", "09:00.0")
    line = "09:00.0 VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)\n"
    assert borrower.ok("lspci", "80900") == line
    assert borrower.ok("lspci", "80900", "-n") == "09:00.0 0300: 10de:0ff3 (rev a1)\n"
    assert "driver in use: nvidia" in lender.ok("lspci", "80900", "-v")
    assert "driver in use" not in borrower.ok("lspci", "80900", "-v")
    assert borrower.status("lspci", "80900", "-xxx") == errno.EINVAL
    assert borrower.status("lspci", "1") == errno.ENODEV
    lender.ok("remove", "09:00.0")


def test_borrow_and_return(lender: Any, borrower: Any, lent: str) -> None:
    text = borrower.ok("borrow", lent, "512")
    found = re.search(r"^Local virtual device: (0000:04:[01][0-9a-f]\.0)$", text, re.M)
    assert found
    vdev = found.group(1)
    assert text == (
        "Name: Non-Volatile memory controller Intel Corporation Device f1a5\n"
        "Local users: 1\n"
        f"Local virtual device: {vdev}\n"
        "Bound to driver: nvme\n"
        "NVMe namespace: nvme1\n"
    )
    assert borrower.ok("get-vdev", lent) == f"{vdev}\n"
    assert borrower.driver(vdev) == "nvme"
    assert sorted(path.name for path in borrower.dev.glob("nvme1*")) == ["nvme1", "nvme1n1", "nvme1n1p1"]
    assert (borrower.dev / "disk/by-id/nvme-Software_NVMe_S1").resolve() == (borrower.dev / "nvme1n1").resolve()
    block = (borrower.sysfs / "class/block/nvme1n1p1").resolve()
    assert vdev in block.parts
    assert borrower.ok("show", lent).endswith("Local users: 1\n")
    assert lender.ok("show", lent).endswith("Local users: 0\n")
    assert borrower.ok("borrow", lent) == text

    assert lender.status("unavailable", "06:00.0") == errno.EBUSY
    assert lender.status("remove", "06:00.0") == errno.EBUSY
    assert "lent to node 4" in lender.kmsg()

    borrower.ok("return", lent)
    assert not (borrower.sysfs / "bus/pci/devices" / vdev).is_symlink()
    assert list(borrower.dev.glob("nvme1*")) == []
    assert (borrower.dev / "nvme0n1").exists()
    assert borrower.status("get-vdev", lent) == errno.ENODEV
    assert borrower.status("return", lent) == errno.EINVAL
    assert borrower.status("return", "8ffff") == errno.EINVAL
    again = borrower.ok("borrow", lent)
    assert vdev not in again  # virtual addresses move
    borrower.ok("return", lent)


def test_what_cannot_be_borrowed(cluster: Any, lender: Any, borrower: Any, lent: str) -> None:
    lender.ok("connect", "28")
    borrower.ok("borrow", lent)
    done = cluster["other"].run("borrow", lent)
    assert (done.returncode, done.stderr) == (errno.EBUSY, b"smartio_tool: borrow: Device or resource busy\n")
    assert lender.status("borrow", lent) == errno.EBUSY
    borrower.ok("return", lent)
    assert borrower.status("borrow", lent, "99999999") == errno.ENOMEM
    assert borrower.status("borrow", lent, "many") == errno.EINVAL
    assert borrower.status("borrow", "8ffff") == errno.ENODEV
    lender.ok("add", "07:00.0")
    assert borrower.status("borrow", "80700") == errno.EBUSY
    lender.ok("remove", "07:00.0")
    assert "lent to node 4" in cluster["other"].kmsg()


def test_a_lender_borrows_its_own_device(lender: Any, lent: str) -> None:
    text = lender.ok("borrow", lent)
    assert "NVMe namespace: nvme0\n" in text
    vdev = lender.ok("get-vdev", lent).strip()
    assert lender.driver(vdev) == "nvme"
    assert lender.status("unavailable", "06:00.0") == errno.EBUSY
    lender.ok("return", lent)
    assert lender.status("get-vdev", lent) == errno.ENODEV


def test_p2p(cluster: Any, lender: Any, borrower: Any, lent: str) -> None:
    second = cluster["second"]
    second.ok("connect", "4")
    second.ok("add", "41:")
    second.ok("available", "--force", "41:")
    assert borrower.status("enable-p2p", lent, "184100") == errno.EINVAL  # not borrowed yet
    borrower.ok("borrow", lent)
    borrower.ok("borrow", "184100")
    assert borrower.status("enable-p2p", lent, "184100", "0") == errno.ENOTCONN
    lender.ok("connect", "24")
    borrower.ok("enable-p2p", lent, "184100", "0")
    borrower.ok("enable-p2p", lent, "184100", "0")
    assert borrower.status("enable-p2p", lent, "184100", "6") == errno.EINVAL
    assert borrower.status("disable-p2p", lent, "184100") == errno.EINVAL  # that pair named a BAR
    borrower.ok("disable-p2p", lent, "184100", "0")
    borrower.ok("enable-p2p", lent, "184100")
    borrower.ok("return", "184100")
    borrower.ok("borrow", "184100")
    assert borrower.status("disable-p2p", lent, "184100") == errno.EINVAL  # gone with the return
    borrower.ok("return", "184100")
    second.ok("unavailable", "41:")
    second.ok("remove", "41:")


def test_scan(cluster: Any, borrower: Any, poll: Any) -> None:
    second = cluster["second"]
    second.ok("connect", "4")
    second.ok("scan", "32")
    lines = borrower.ok("list").splitlines()
    assert [line.split(":")[0] for line in lines] == ["200100", "200200"]
    assert all(line.endswith("[available]") for line in lines)
    assert "NodeId: 32\n" in borrower.ok("show", "200100")
    borrower.ok("borrow", "200100")
    assert second.status("borrow", "200100") == errno.EBUSY

    config = json.loads((second.folder / "node.json").read_text())
    tree = config["transparent"][0]["devices"]
    tree[1]["bdf"] = "03:00.0"
    (second.folder / "node.json").write_text(json.dumps(config))
    second.ok("scan", "32", "0")
    assert [line.split(":")[0] for line in borrower.ok("list").splitlines()] == ["200100", "200300"]
    vdev = borrower.ok("get-vdev", "200100").strip()
    assert second.status("scan", "24") == errno.EEXIST
    assert second.status("scan", "8") == errno.EEXIST
    assert second.status("scan", "36") == errno.EEXIST  # this adapter's tree is node 32
    assert second.status("scan", "32", "1") == errno.ENODEV
    config["transparent"][0]["devices"] = []
    (second.folder / "node.json").write_text(json.dumps(config))
    second.ok("borrow", "200300")
    own = second.ok("get-vdev", "200300").strip()
    second.ok("scan", "32")
    assert borrower.ok("list") == ""
    # What was pulled out of the tree is gone wherever it was borrowed.
    assert second.status("get-vdev", "200300") == errno.ENODEV
    assert not (second.sysfs / "bus/pci/devices" / own).exists()
    assert poll(lambda: borrower.status("get-vdev", "200100") == errno.ENODEV)
    assert not (borrower.sysfs / "bus/pci/devices" / vdev).exists()
    assert "removed by surprise" in borrower.kmsg()
    config["transparent"][0]["devices"] = tree
    (second.folder / "node.json").write_text(json.dumps(config))


def test_scanned_devices_are_borrowed_at_once_when_told_so(cluster: Any) -> None:
    second = cluster["second"]
    parameter = second.sysfs / "module/dis_smartio/parameters/autoborrow_transparent"
    assert parameter.read_text() == "0\n"
    second.ok("config", "autoborrow_transparent", "1")
    assert parameter.read_text() == "1\n"
    second.ok("scan", "36")
    vdev = second.ok("get-vdev", "240100").strip()
    assert second.driver(vdev) == "nvme"
    second.ok("return", "240100")
    second.ok("config", "autoborrow_transparent", "0")
    assert second.status("config", "autoborrow_transparent", "2") == errno.EINVAL
    assert second.status("config", "something", "1") == errno.EINVAL


def test_the_module_directory_is_not_touched(lender: Any) -> None:
    module = lender.sysfs / "module/dis_smartio"
    before = module.stat()
    lender.ok("config", "autoborrow_transparent", "1")
    lender.ok("config", "autoborrow_transparent", "0")
    lender.ok("add", "06:00.0")
    lender.ok("remove", "06:00.0")
    after = module.stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def test_the_tables_of_proc_are_empty(lender: Any) -> None:
    proc: Path = lender.folder / "proc"
    assert (proc / "self/mountinfo").read_text() == ""
    assert (proc / "swaps").read_text().startswith("Filename\t")
    assert (proc / "net/route").read_text().startswith("Iface\tDestination\t")
    assert re.match(r"^[0-9a-f]{8}-[0-9a-f-]{27}\n$", (proc / "sys/kernel/random/boot_id").read_text())


def test_the_kernel_log_has_the_kernel_s_form(lender: Any) -> None:
    lender.status("show", "1")
    assert re.match(r"^6,\d+,\d+,-;dis_smartio: 1: no such device$", lender.kmsg().splitlines()[-1])


def test_a_folder_has_one_daemon(lender: Any) -> None:
    config = str(lender.folder / "node.json")
    text = lender.cluster.python("daemon", "--config", config, "--dir", str(lender.folder), check=False)
    assert "a daemon runs here already" in text
    assert os.path.exists(lender.folder / "node.sock")


def test_the_number_of_virtual_functions_can_be_written(lender: Any, poll: Callable[..., Any]) -> None:
    devices = lender.sysfs / "bus/pci/devices"
    numvfs = devices / "0000:0a:00.0/sriov_numvfs"

    def functions() -> str:
        return " ".join(sorted(path.name for path in devices.glob("0000:0a:00.[1-7]")))

    assert numvfs.read_text() == "1\n"
    lender.ok("add", "0a:00.1")
    numvfs.write_text("0")
    assert poll(lambda: numvfs.read_text() == "1\n")  # refused: it is in the pool
    assert functions() == "0000:0a:00.1"
    lender.ok("remove", "0a:00.1")
    numvfs.write_text("0")
    assert poll(lambda: functions() == "")
    assert lender.status("add", "0a:00.1") == errno.ENODEV
    numvfs.write_text("3")
    assert poll(lambda: numvfs.read_text() == "0\n")  # refused: more than totalvfs
    numvfs.write_text("2")
    assert poll(lambda: functions() == "0000:0a:00.1 0000:0a:00.2")
    assert poll(lambda: lender.driver("0000:0a:00.2") == "i40e")
    lender.ok("add", "0a:00.2")
    lender.ok("remove", "0a:00.2")


def test_a_driver_can_be_changed_by_hand(lender: Any, poll: Callable[..., Any]) -> None:
    bus = lender.sysfs / "bus/pci"
    (bus / "drivers/nvme/unbind").write_text(DRIVE2)
    assert poll(lambda: lender.driver(DRIVE2) == "")
    (bus / "devices" / DRIVE2 / "driver_override").write_text("vfio-pci")
    (bus / "drivers_probe").write_text(DRIVE2)
    assert poll(lambda: lender.driver(DRIVE2) == "vfio-pci")
    lender.ok("add", DRIVE2)
    assert b"bound to driver vfio-pci" in lender.run("available", DRIVE2).stdout
    lender.ok("available", "--force", DRIVE2)
    (bus / "devices" / DRIVE2 / "driver_override").write_text("")
    lender.ok("unavailable", DRIVE2)
    assert lender.driver(DRIVE2) == "nvme"
    lender.ok("remove", DRIVE2)


@pytest.mark.parametrize(
    ("generation", "first"),
    [
        ("2018", "80000: Non-Volatile memory controller Intel Corporation Device f1a5 [unavailable]\n"),
        ("id-prefix", "ID 80000: Non-Volatile memory controller: Intel Corporation Device [unavailable]\n"),
    ],
)
def test_older_generations_count(new_cluster: Callable[..., Any], models: Any, generation: str, first: str) -> None:
    devices = [{"bdf": "06:00.0", **models["nvme"]}, {"bdf": "07:00.0", **models["nvme"], "serial": "S2"}]
    cluster = new_cluster([{"name": "old", "node_id": 8, "devices": devices}], generation=generation)
    old = cluster["old"]
    old.ok("add", "06:00.0")
    assert old.ok("list") == first
    old.ok("add", "07:00.0")
    assert "80002: " in old.ok("list")
    old.ok("remove", "06:00.0")
    old.ok("add", "06:00.0")
    assert "80004: " in old.ok("list")  # an id is not promised to stay


def test_a_strict_node_refuses_repeats(new_cluster: Callable[..., Any], models: Any) -> None:
    devices = [{"bdf": "06:00.0", **models["nvme"]}]
    nodes = [{"name": "lender", "node_id": 8, "devices": devices}, {"name": "borrower", "node_id": 4}]
    cluster = new_cluster(nodes, strict=True, borrowed_word="in use")
    lender, borrower = cluster["lender"], cluster["borrower"]
    lender.ok("connect", "4")
    assert lender.status("connect", "4") == errno.EISCONN
    assert lender.status("connect", "8") == errno.EISCONN
    lender.ok("add", "06:")
    assert lender.status("add", "06:") == errno.EEXIST
    lender.ok("available", "--force", "06:")
    assert lender.status("available", "--force", "06:") == errno.EALREADY
    borrower.ok("borrow", "80600")
    assert borrower.status("borrow", "80600") == errno.EALREADY
    assert lender.ok("list").endswith(" [in use]\n")
    assert borrower.ok("list").endswith(" [in use]\n")
    assert "Available: in use\n" in borrower.ok("show", "80600")
    borrower.ok("enable-p2p", "80600", "80600")
    assert borrower.status("enable-p2p", "80600", "80600") == errno.EALREADY
