# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_persist, after the modules whose results it records, against the stub."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result, good, on, run
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

MODULE = "smartio_persist"
A, B = "0000:81:00.0", "0000:82:00.0"


class Record:
    """A node's file, and the module that writes it."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.path = folder / "etc" / "sharing.json"
        self.node = node
        self.args: Dict[str, Any] = {**node.args, "path": str(self.path), "program_dir": str(folder / "lib")}
        (folder / "lib").mkdir()
        (folder / "lib" / "iofabric-sharing.pyz").touch()

    def __call__(self, check: bool = False, **args: Any) -> Result:
        result = run(MODULE, {**self.args, **args}, check=check)
        assert not result.failed, result.text
        return result

    def bad(self, **args: Any) -> Result:
        result = run(MODULE, {**self.args, **args})
        assert result.failed, result.text
        return result

    def case(self, expect_changed: bool = True, **args: Any) -> Dict[str, Any]:
        """Check mode, apply, apply again; what the file holds after it."""
        before = self.path.read_bytes() if self.path.exists() else None
        check = self(check=True, **args)
        assert (self.path.read_bytes() if self.path.exists() else None) == before
        apply = self(**args)
        for key in ("changed", "sharing", "diff"):
            assert check.get(key) == apply.get(key)
        assert apply.changed == expect_changed, apply.text
        again = self(**args)
        assert not again.changed, again.text
        assert again["sharing"] == apply["sharing"]
        assert "diff" not in again or again["diff"]["before"] == again["diff"]["after"]
        if not self.path.exists():
            return {}
        content: Dict[str, Any] = json.loads(self.path.read_text())
        assert content == apply["sharing"]
        assert os.stat(self.path).st_mode & 0o7777 == 0o644
        return content


@pytest.fixture
def record(fabric: Fabric, tmp_path: Path) -> Record:
    """A lender that lends two drives and one device more."""
    node = fabric.node(4, [nvme(A, 0), nvme(B, 1), gpu("0000:03:00.0", 2)])
    fabric.node(8)
    return Record(tmp_path, node)


@pytest.fixture
def borrower(fabric: Fabric, tmp_path: Path) -> Record:
    """A borrower for which another node has lent three devices."""
    fabric.node(4, [nvme(A, 0), nvme(B, 1), gpu("0000:03:00.0", 2)])
    node = fabric.node(8)
    fabric.connect(4, 8)
    fabric.lend(4, A, B, "0000:03:00.0")
    return Record(tmp_path, node)


def test_what_is_lent(record: Record, two_quirks: Dict[str, Any]) -> None:
    record.node.knobs(**two_quirks)
    connected = good(record.node, "smartio_connect", node_ids=[8])
    lent = good(record.node, "smartio_device", devices=[{"bdf": A}, {"bdf": B, "state": "unavailable"}])
    content = record.case(connections=connected["connections"], lent=lent["devices"])
    assert content["lender"] == {
        "connections": [{"node_id": 8, "adapter": 0}],
        "sriov": [],
        "devices": [
            {"bdf": A, "state": "available", "serial": "S000-0000-81-00.0", "vendor_id": "8086", "device_id": "f1a5"},
            {"bdf": B, "state": "unavailable", "serial": "S001-0000-82-00.0", "vendor_id": "8086", "device_id": "f1a5"},
        ],
    }
    assert content["format"] == 1
    assert content["places"] == {name: record.args[name] for name in ("tool", "sysfs", "proc", "dev", "state_dir")}

    failed = [{"element": "node 12 (adapter 0)", "msg": "EIO"}]
    record.case(connections=[{"node_id": 12, "action": "none"}], errors=failed, expect_changed=False)

    # A second run, whose rows say "none", changes nothing.
    again = good(record.node, "smartio_device", devices=[{"bdf": A}, {"bdf": B, "state": "unavailable"}])
    record.case(lent=again["devices"], expect_changed=False)

    gone = good(record.node, "smartio_device", devices=[{"bdf": B, "state": "absent"}])
    assert [one["bdf"] for one in record.case(lent=gone["devices"])["lender"]["devices"]] == [A]


def test_what_failed_stays_as_it_was(record: Record) -> None:
    record.case(lent=good(record.node, "smartio_device", bdf=A)["devices"])
    row = {"bdf": A, "state": "absent", "action": "none"}
    content = record.case(lent=[row], errors=[{"element": A, "msg": "in use"}], expect_changed=False)
    assert [one["bdf"] for one in content["lender"]["devices"]] == [A]
    content = record.case(lent=[{"bdf": A, "state": "busy", "action": "none"}], expect_changed=False)
    assert content["lender"]["devices"][0]["state"] == "available"
    content = record.case(lent=[row], errors=[{"element": A}], state="absent", expect_changed=False)
    assert [one["bdf"] for one in content["lender"]["devices"]] == [A]
    assert record.case(lent=[row], state="absent")["lender"]["devices"] == []


def test_what_is_borrowed(borrower: Record, two_quirks: Dict[str, Any]) -> None:
    borrower.node.knobs(**two_quirks)
    claims = [
        {"select": {"vendor_id": "8086"}, "count": 2, "label": "scratch"},
        {"select": {"vendor_id": "10de"}, "label": "cuda"},
    ]
    foreseen = good(borrower.node, "smartio_borrow", check=True, devices=claims)
    predicted = borrower(check=True, borrowed=foreseen["devices"], claims=["scratch", "cuda"])
    assert predicted.changed
    borrowed = good(borrower.node, "smartio_borrow", devices=claims)
    rows = [{**row, "dma_window": "512"} if row["label"] == "cuda" else row for row in borrowed["devices"]]
    content = borrower.case(borrowed=rows, claims=["scratch", "cuda"], mounts=[{"label": "scratch", "path": "/srv"}])
    devices = content["borrower"]["devices"]
    assert [(one["label"], one["node_id"], one["bdf"], one["dma_window"]) for one in devices] == [
        ("scratch", 4, A, None),
        ("scratch", 4, B, None),
        ("cuda", 4, "0000:03:00.0", "512"),
    ]
    assert all(one["serial"] and one["uuid"] and one["vendor_id"] and one["device_id"] for one in devices)
    assert content["borrower"]["mounts"] == [{"label": "scratch", "path": "/srv"}]
    assert [one["label"] for one in predicted["sharing"]["borrower"]["devices"]] == ["scratch", "scratch", "cuda"]

    # Check mode on what is converged, and a row without a window, change nothing.
    rows = good(borrower.node, "smartio_borrow", check=True, devices=claims)["devices"]
    assert not borrower(check=True, borrowed=rows, claims=["scratch", "cuda"]).changed
    borrower.case(borrowed=rows, expect_changed=False)

    back = good(borrower.node, "smartio_borrow", fdid=devices[0]["fdid"], state="returned")["devices"]
    assert [one["bdf"] for one in borrower.case(borrowed=back)["borrower"]["devices"]] == [B, "0000:03:00.0"]
    # What is not borrowed does not count, unless it is to be forgotten.
    lost = [{"fdid": devices[1]["fdid"], "label": "scratch", "vdev": None, "action": "none"}]
    borrower.case(borrowed=lost, expect_changed=False)
    assert [one["label"] for one in borrower.case(borrowed=lost, state="absent")["borrower"]["devices"]] == ["cuda"]
    content = borrower.case(claims=["scratch", "cuda"], state="absent")
    assert (content["borrower"]["devices"], content["borrower"]["mounts"]) == ([], [])


def test_pending_rows_are_a_change(borrower: Record) -> None:
    pending = {"fdid": None, "label": "scratch", "vdev": None, "node_id": None, "action": "pending"}
    result = borrower(check=True, borrowed=[pending], claims=["scratch"])
    assert (result.changed, result["pending"]) == (True, True)
    result = borrower(check=True, lent=[{"bdf": "filter '-d 144d:'", "state": "available", "action": "pending"}])
    assert (result.changed, result["pending"]) == (True, True)
    assert not borrower.path.exists()


def test_pairs_are_recorded_by_what_the_devices_are(borrower: Record) -> None:
    rows = good(borrower.node, "smartio_borrow", select={"node_id": 4}, count=3)["devices"]
    pair = {"source": rows[0]["fdid"], "destination": rows[1]["fdid"]}
    result = good(borrower.node, "smartio_p2p", pairs=[pair])
    content = borrower.case(borrowed=rows, p2p=result["pairs"])
    ends = [{"node_id": 4, "bdf": row["bdf"]} for row in rows]
    assert content["borrower"]["p2p"] == [{"source": ends[0], "destination": ends[1], "bar": None}]
    failed = {"source": rows[1]["fdid"], "destination": rows[2]["fdid"], "bar": 2, "state": None, "action": "none"}
    borrower.case(p2p=[failed], expect_changed=False)
    unknown = borrower.bad(p2p=[{"source": "999", "destination": rows[0]["fdid"]}], sriov=[{"bdf": A, "numvfs": 2}])
    assert unknown.says("999", "not both devices are recorded")
    assert unknown.changed
    assert json.loads(borrower.path.read_text())["lender"]["sriov"] == [{"bdf": A, "numvfs": 2}]
    assert borrower.case(p2p=[pair], state="absent")["borrower"]["p2p"] == []


def test_control_planes_where_smartio_is_not_installed(tmp_path: Path, fabric: Fabric) -> None:
    record = Record(tmp_path, fabric.node(4))
    record.args.update(tool=str(tmp_path / "nowhere"), sysfs="/nowhere", proc="/proc", state_dir=str(tmp_path / "run"))
    one = {"cplane_id": 7, "controllers": ["emu:a?size=1M", "claim:scratch", A], "socket_mode": "0600"}
    content = record.case(cplanes=[one, {"cplane_id": 8, "controllers": ["emu:b"], "allow_uids": [5]}])
    assert content["cplanes"][0] == {
        "cplane_id": 7,
        "controllers": one["controllers"],
        "server": "auto",
        "backend": None,
        "heap_size": None,
        "socket_mode": "0600",
        "socket_group": None,
        "allow_uids": [],
        "driver": "none",
        "homi": "homi",
        "program": None,
        "socket_dir": "/tmp",  # noqa: S108 - where clients look
        "state_dir": None,
    }
    content = record.case(cplanes=[{"cplane_id": 7, "controllers": ["emu:c"]}])
    assert [entry["controllers"] for entry in content["cplanes"]] == [["emu:c"], ["emu:b"]]
    content = record.case(cplanes=[{"cplane_id": 7}], state="absent")
    assert [entry["cplane_id"] for entry in content["cplanes"]] == [8]
    assert record.bad(cplanes=[{"cplane_id": 7, "socket_mode": 432}]).says("socket_mode", "text")
    assert record.bad(cplanes=[{"cplane_id": 7, "controllers": [4860.0]}]).says("quote it")


def test_a_run_without_smartio_does_not_say_where_it_is(record: Record) -> None:
    record.case(connections=[{"node_id": 8}])
    record.args.update(sysfs="/sys")
    content = record.case(cplanes=[{"cplane_id": 7, "controllers": ["emu:a"]}])
    assert content["places"]["sysfs"] == str(record.node.sysfs)
    assert record.case(sriov=[{"bdf": "81:00.0", "numvfs": 2}])["places"]["sysfs"] == "/sys"


def test_forgetting_everything(record: Record) -> None:
    record.case(all=True, state="absent", expect_changed=False)
    record.case(connections=[{"node_id": 8}])
    record.path.write_text("{")
    assert record.case(all=True, state="absent") == {}
    assert not record.path.exists()


def test_nothing_to_record_makes_no_file(record: Record) -> None:
    assert record.case(expect_changed=False) == {}
    assert not record.path.parent.exists()


def test_a_damaged_file_is_left_alone(record: Record) -> None:
    record.path.parent.mkdir()
    record.path.write_text('{"format": 2}')
    assert record.bad(connections=[{"node_id": 8}]).says(str(record.path), "format is 2")
    assert record.path.read_text() == '{"format": 2}'


def test_a_folder_that_others_can_write_is_refused(record: Record) -> None:
    record.path.parent.mkdir(mode=0o777)
    record.path.parent.chmod(0o777)
    assert record.bad(connections=[{"node_id": 8}]).says(str(record.path.parent), "can be written by others")
    record.path.parent.chmod(0o755)
    record.path.symlink_to(record.node.folder / "elsewhere")
    assert record.bad(connections=[{"node_id": 8}]).says("symbolic link")
    if os.geteuid() == 0:
        record.path.unlink()
        os.chown(record.path.parent, 65534, 65534)
        assert record.bad(connections=[{"node_id": 8}]).says("belongs to another user")


def test_the_lock_is_shared_with_the_other_modules(record: Record) -> None:
    good(record.node, "smartio_connect", node_ids=[8])
    with open(record.node.state_dir / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert record.bad(connections=[{"node_id": 8}], timeout=0.2).says("locked by another run")
        assert not record.path.exists()
    record.case(connections=[{"node_id": 8}])


def test_without_the_program_it_is_asked_for(record: Record, tmp_path: Path) -> None:
    result = on(record.node, MODULE, **{**record.args, "_program_digest": "0" * 64, "connections": [{"node_id": 8}]})
    assert result["need_program"] == str(tmp_path / "lib" / "iofabric-sharing.pyz")
    assert not record.path.exists()
    check = record(check=True, _program_digest="0" * 64)
    assert check.changed
    (tmp_path / "lib" / "iofabric-sharing.pyz").unlink()
    assert record.bad(connections=[{"node_id": 8}]).says("through Ansible")
    # Nothing is needed to forget.
    record(connections=[{"node_id": 8}], state="absent")
