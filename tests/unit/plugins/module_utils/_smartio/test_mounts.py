# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystem of a claim is mounted where."""

from __future__ import annotations

from typing import Any, Dict, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.mounts import ORDERING, plan_mounts

NODES = ["/dev/nvme0", "/dev/nvme0n1", "/dev/nvme0n1p1", "/dev/nvme0n1p2"]
LINE = f"UUID=A-1 /srv/data auto defaults,{ORDERING} 0 0"


def row(label: str = "data", vdev: Optional[str] = "0000:04:05.0", **links: str) -> Dict[str, Any]:
    """A borrowed drive with filesystems, each by its UUID with the name of its device node."""
    by_uuid = {f"/dev/disk/by-uuid/{uuid.replace('_', '-')}": f"/dev/{node}" for uuid, node in links.items()}
    here = vdev is not None
    return {
        "label": label,
        "vdev": vdev,
        "device_nodes": NODES if here else None,
        "by_uuid": by_uuid if here else None,
    }


def plan(*rows: Dict[str, Any], fstab: str = "", **mount: Any) -> Dict[str, Any]:
    (planned,) = plan_mounts([{"label": "data", "mount": {"path": "/srv/data", **mount}}], rows, fstab)
    return planned


def test_the_one_filesystem_that_is_there() -> None:
    found = plan(row(A_1="nvme0n1p1"), row(label="other", B_2="sda1"))
    assert found == {
        "label": "data",
        "path": "/srv/data",
        "field": "/srv/data",
        "line": LINE,
        "search": True,
        "listed": False,
        "error": "",
    }


def test_rows_of_two_runs_count_once() -> None:
    assert plan(row(A_1="nvme0n1"), row(A_1="nvme0n1"))["error"] == ""


def test_type_and_options() -> None:
    found = plan(row(A_1="nvme0n1p1"), fstype="ext4", options="noatime,ro")
    assert found["line"] == f"UUID=A-1 /srv/data ext4 noatime,ro,{ORDERING} 0 0"


@pytest.mark.parametrize(
    ("path", "clean", "field"),
    [
        ("/srv/data/", "/srv/data", "/srv/data"),
        ("/", "/", "/"),
        ("/srv/my data\t\\x", "/srv/my data\t\\x", "/srv/my\\040data\\011\\134x"),
    ],
)
def test_paths(path: str, clean: str, field: str) -> None:
    found = plan(row(A_1="nvme0n1"), path=path)
    assert (found["path"], found["field"]) == (clean, field)
    assert found["line"].split()[1] == field


def test_a_given_uuid_needs_no_device() -> None:
    """It is known in check mode, and where nobody tells what is on the device."""
    for rows in ([], [row(vdev=None)], [row()], [row(A_1="nvme0n1", B_2="nvme0n1p1")]):
        found = plan(*rows, uuid="A-1")
        assert (found["line"], found["error"], found["search"]) == (LINE, "", False)


def test_a_given_uuid_that_is_not_there() -> None:
    assert plan(row(A_1="nvme0n1p1"), uuid="C-3")["error"] == (
        "claim data: there is no filesystem C-3 on nvme0, nvme0n1, nvme0n1p1, nvme0n1p2, but A-1; correct mount.uuid"
    )


@pytest.mark.parametrize("rows", [[], [row(vdev=None)]])
def test_what_is_not_borrowed_yet_has_a_line_that_nobody_has(rows: Any) -> None:
    found = plan(*rows)
    assert (found["error"], found["line"].split()[0]) == ("", "UUID=not-known-yet")


def test_no_filesystem() -> None:
    error = plan(row())["error"]
    assert error.startswith(
        "claim data: there is no filesystem on nvme0, nvme0n1, nvme0n1p1, nvme0n1p2; nothing is form"
    )


def test_several_filesystems_and_a_choice() -> None:
    drive = row(A_1="nvme0n1p1", B_2="nvme0n1p2")
    assert "there are several filesystems on" in plan(drive)["error"]
    assert "(A-1, B-2); choose one by mount.uuid or mount.partition" in plan(drive)["error"]
    assert plan(drive, partition=1)["line"] == LINE
    assert plan(drive, uuid="A-1")["line"] == LINE
    assert "(partition 3)" in plan(drive, partition=3)["error"]
    whole = row(A_1="nvme0n1", B_2="nvme0n11")
    assert "no filesystem" in plan(whole, partition=1)["error"]


def test_a_partition_of_a_disk_without_a_number_in_its_name() -> None:
    disk = {**row(), "device_nodes": ["/dev/sda", "/dev/sda1"], "by_uuid": {"/dev/disk/by-uuid/A-1": "/dev/sda1"}}
    assert plan(disk, partition=1)["line"] == LINE


@pytest.mark.parametrize(
    ("fstab", "listed", "error"),
    [
        (f"# UUID=B-2 /srv/data ext4 x 0 0\n{LINE}\n", True, False),
        (f"UUID=B-2 /srv/data ext4 noatime,{ORDERING} 0 2\n", True, False),
        ("UUID=B-2 /srv/other ext4 defaults 0 2\n\n#\nx\n", False, False),
        ("  /dev/sda1\t/srv/data\text4 defaults 0 2\n", False, True),
    ],
)
def test_a_line_of_somebody_else_is_left_alone(fstab: str, listed: bool, error: bool) -> None:
    found = plan(row(A_1="nvme0n1"), fstab=fstab)
    assert (found["listed"], "another line for /srv/data" in found["error"]) == (listed, error)


def test_claims_without_a_mount_are_left_out() -> None:
    assert plan_mounts([{"label": "a"}, {"label": "b", "mount": None}], [], "") == []
