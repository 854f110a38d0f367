# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles lender and borrower make of the inventory and of what modules returned.

Every case is a host of one inventory, so that one run of ansible-playbook, on this machine, tells them all.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.tests.unit.ansible_env import ansible_env

pytestmark = pytest.mark.xdist_group("role-variables")  # run the playbook once, not once a worker

ROOT = Path(__file__).resolve().parents[3]
NODE = "/run/iofabric-software-node"

LENDERS: Dict[str, Dict[str, Any]] = {
    "by_group": {},
    "in_both_groups": {},
    "by_hand": {
        "lender_borrowers": [
            16,
            "20",
            {"node_id": 24, "adapter": 1},
            {"hostname": "real", "adapter": 2},
            "outside",
            "28",
        ],
        "lender_adapter": 3,
    },
    "software": {"software_node_id": 4},
    "software_over_real_devices": {"software_node_id": 4, "software_node_sysfs": "/sys"},
    "placed": {"software_node_id": 4, "smartio_places": {"tool": "/opt/tool"}},
    "went_wrong": {
        "lender_connected": {
            "msg": "...",
            "connections": [
                {"node_id": 8, "hostname": None, "adapter": 0, "state": "connected", "action": "connect"},
                {"node_id": 12, "hostname": "b", "adapter": 1, "state": "unreachable", "action": "none"},
                {"node_id": 16, "hostname": None, "adapter": 0, "state": None, "action": "none"},
                {"node_id": None, "hostname": "nobody", "adapter": 0, "state": None, "action": "none"},
            ],
            "errors": [{"element": "host nobody", "msg": "no such host"}],
        },
        "lender_split": {
            "devices": [
                {"bdf": "0000:5e:00.0", "numvfs": 4, "vfs": ["0000:5e:02.0"], "action": "enable"},
                {"bdf": "0000:5e:00.1", "numvfs": 0, "vfs": [], "action": "disable"},
                {"bdf": "0000:5e:00.2", "numvfs": 1, "vfs": ["0000:5e:03.0"], "action": "none"},
            ],
            "errors": [{"element": "0000:5e:00.2", "msg": "in use"}],
            "msg": "...",
        },
        "lender_lent": {
            "devices": [{"bdf": "0000:81:00.0", "state": "available"}],
            "errors": [{"element": "99:00.0", "msg": "no PCI device 99:00.0", "not_found": True}],
            "msg": "...",
        },
    },
    "predicted": {
        "lender_split": {"devices": [{"bdf": "0000:5e:00.0", "numvfs": 2, "vfs": None, "action": "enable"}]},
        "lender_lent": {
            "devices": [],
            "errors": [
                {"element": "5e:02.0", "msg": "no PCI device 5e:02.0", "not_found": True},
                {"element": "0000:81:00.0", "msg": "0000:81:00.0 is in use"},
            ],
            "msg": "...",
        },
    },
    "pending": {
        "lender_split": {"devices": [{"bdf": "5e:00.0", "numvfs": 2, "vfs": None, "action": "pending"}]},
        "lender_connected": {
            "connections": [{"node_id": None, "hostname": "b", "adapter": 0, "state": "connected", "action": "pending"}]
        },
    },
}

DRIVE = {"fdid": "48100", "label": "scratch", "vdev": "0000:04:05.0", "device_nodes": ["/dev/nvme0n1"]}
CARD = {"fdid": "48200", "label": "uplink", "vdev": "0000:04:06.0", "device_nodes": []}
FSTAB = b"UUID=A-1 /srv/scratch auto nofail,x-systemd.after=iofabric-sharing.service 0 0\n"
MOUNT = {"path": "/srv/scratch/", "uuid": "A-1"}
SCRATCH = {"label": "scratch", "select": {"node_id": 4}, "dma_window": "512", "mount": MOUNT}
UPLINK = {"label": "uplink", "fdid": "48200", "count": None}
SHORT = {"element": "scratch (a)", "msg": "scratch (a): 0 of 1 devices", "label": "scratch"}
MOUNTED = {"element": "48100", "msg": "48100 is in use: ...", "in_use": ["mounted at /srv/scratch (nvme0n1)"]}

BORROWERS: Dict[str, Dict[str, Any]] = {
    "nothing": {},
    "all_is_well": {
        "borrower_claims": [SCRATCH, UPLINK],
        "borrower_p2p": [
            {"source": "uplink", "destination": "scratch", "bar": 0},
            {"source": "scratch", "destination": "99999"},
        ],
        "borrower_borrowed": {"devices": [DRIVE, {**DRIVE, "fdid": "48300"}, CARD]},
        "borrower_paired": {"pairs": [{"source": "48200", "destination": "48100", "bar": 0, "state": "enabled"}]},
        "borrower_listed": {"changed": True},
        "borrower_remembered": {
            "borrowed": [{"fdid": "1", "label": None}, {"fdid": "2", "label": "uplink"}, {"fdid": "3", "label": "old"}]
        },
    },
    "pending": {
        "borrower_claims": [SCRATCH, UPLINK],
        "borrower_p2p": [{"source": "uplink", "destination": "scratch"}],
        "borrower_borrowed": {"devices": [{**DRIVE, "fdid": None, "vdev": None}, {**CARD, "fdid": None}]},
    },
    "one_falls_short": {
        "borrower_claims": [SCRATCH, UPLINK],
        "borrower_p2p": [{"source": "uplink", "destination": "scratch"}],
        "borrower_borrowed": {"devices": [CARD], "errors": [SHORT], "msg": "..."},
        "borrower_listed": {},
    },
    "all_fail": {"borrower_claims": [SCRATCH, UPLINK], "borrower_borrowed": {"msg": "the state folder is locked"}},
    "returned": {
        "borrower_claims": [{**SCRATCH, "state": "returned"}, UPLINK],
        "borrower_looked": {"facts": {"tool": "/opt/DIS/sbin/smartio_tool"}},
        "borrower_returnable": {"devices": [DRIVE], "errors": [MOUNTED], "msg": "..."},
        "borrower_fstab": {"content": base64.b64encode(FSTAB).decode()},
        "borrower_unmounted": {
            "results": [{"item": {"label": "scratch", "path": "/srv/scratch", "field": "/srv/scratch"}}]
        },
        "borrower_gave_back": {"devices": [{**DRIVE, "action": "return", "vdev": None}]},
    },
    "refused": {
        "borrower_claims": [SCRATCH, UPLINK],
        "borrower_state": "absent",
        "borrower_looked": {"facts": {"tool": "/opt/DIS/sbin/smartio_tool"}},
        "borrower_returnable": {
            "devices": [DRIVE],
            "errors": [{**MOUNTED, "in_use": [*MOUNTED["in_use"], "mounted at /mnt (nvme0n1)"]}],
        },
        "borrower_unmounted": {"results": [{"item": {"path": "/srv/uplink"}, "msg": "target is busy"}]},
    },
    "bare": {"borrower_claims": [{**SCRATCH, "state": "returned"}], "borrower_looked": {"facts": {"tool": None}}},
    "told_apart": {
        "borrower_claims": [
            {**SCRATCH, "mount": {"path": "srv"}},
            {**SCRATCH, "mount": {"path": "/srv"}},
            {**UPLINK, "mount": {"path": "/srv/"}},
        ]
    },
    "mistaken": {
        "borrower_claims": [
            {**SCRATCH, "mount": {"path": "/etc"}},
            UPLINK,
            {**UPLINK, "label": "again", "mount": {"path": "/var/lib/again"}},
        ],
        "borrower_p2p": [
            {"source": "scrach", "destination": "uplink"},
            {"source": "scrach", "destination": "0x48300"},
        ],
    },
}

TOLD = """
lender_connections lender_places lender_failures lender_expected lender_valid_connections lender_valid_sriov

borrower_wanted borrower_returned borrower_places borrower_pairs borrower_failures borrower_rows
borrower_complete_labels borrower_recorded_mounts borrower_to_return borrower_to_unmount borrower_to_unlist
borrower_unclaimed borrower_obstacles borrower_mountable borrower_returned_labels
"""
WANTED = dict(zip(("lender", "borrower"), (names.split() for names in TOLD.split("\n\n"))))

PLAYS = [
    {
        "hosts": f"tried_{role}s",
        "connection": "local",
        "gather_facts": False,
        # The role's defaults and variables are there, and none of its tasks is run.
        "roles": [{"role": f"iofabric.sharing.{role}", "tags": ["passed_over"]}],
        "post_tasks": [
            {
                "name": "Tell",
                "ansible.builtin.debug": {
                    "msg": "{{ {" + ", ".join(f"'{name}': {name}" for name in WANTED[role]) + "} }}"
                },
            }
        ],
    }
    for role in WANTED
]

GROUPS: Dict[str, Any] = {
    "tried_lenders": {"hosts": LENDERS},
    "tried_borrowers": {"hosts": {f"b_{name}": found for name, found in BORROWERS.items()}},
    "borrowers": {
        "hosts": {
            "real": {"smartio_node_id": 8, "software_node_id": 9},
            "soft": {"software_node_id": "{{ 6 * 2 }}"},
            "unknown": {},
            "in_both_groups": {},
        }
    },
    "numbered": {"hosts": {"28": {"smartio_node_id": 32}}},
}


@pytest.fixture(name="told", scope="module")
def _told(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Dict[str, Any]]:
    folder = tmp_path_factory.mktemp("variables")
    (folder / "inventory.json").write_text(json.dumps({"all": {"children": GROUPS}}))
    (folder / "play.json").write_text(json.dumps(PLAYS))
    env = ansible_env(
        folder,
        ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/hosts/callback"),
        ANSIBLE_CALLBACKS_ENABLED="host_record",
        HOST_RECORD=str(folder / "record.json"),
    )
    words = ["playbook", "-i", "inventory.json", "play.json", "--skip-tags", "passed_over"]
    command = [sys.executable, "-m", "ansible", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((folder / "record.json").read_text())
    return {host: result["msg"] for task, host, _status, result in rows if task == "Tell"}


# -- lender -----------------------------------------------------------------------------------------------------------


def test_borrowers_of_the_group(told: Dict[str, Any]) -> None:
    """By the id that the inventory tells of them, else by name; a host does not connect to itself."""
    others = [
        {"node_id": 8, "hostname": "real", "adapter": 0},
        {"node_id": 12, "hostname": "soft", "adapter": 0},
        {"hostname": "unknown", "adapter": 0},
    ]
    assert told["by_group"]["lender_connections"] == [*others, {"hostname": "in_both_groups", "adapter": 0}]
    assert told["in_both_groups"]["lender_connections"] == others


def test_borrowers_by_hand(told: Dict[str, Any]) -> None:
    """Digits are a node id unless a host is called so."""
    assert told["by_hand"]["lender_connections"] == [
        {"node_id": 16, "adapter": 3},
        {"node_id": 20, "adapter": 3},
        {"node_id": 24, "adapter": 1},
        {"node_id": 8, "hostname": "real", "adapter": 2},
        {"hostname": "outside", "adapter": 3},
        {"node_id": 32, "hostname": "28", "adapter": 3},
    ]


@pytest.mark.parametrize(
    ("host", "places"),
    [
        ("by_group", {}),
        ("software", {"sysfs": f"{NODE}/sysfs", "dev": f"{NODE}/dev"}),
        ("software_over_real_devices", {}),
        ("placed", {"tool": "/opt/tool"}),
    ],
)
def test_places(told: Dict[str, Any], host: str, places: Dict[str, str]) -> None:
    assert told[host]["lender_places"] == places


def test_nothing_ran_and_nothing_failed(told: Dict[str, Any]) -> None:
    """As with tags that leave everything out."""
    for name in ("lender_failures", "lender_valid_connections", "lender_valid_sriov"):
        assert told["by_group"][name] == []
    lists = [name for name in WANTED["borrower"] if name != "borrower_places"]
    assert {name: told["b_nothing"][name] for name in lists} == {name: [] for name in lists}


def test_what_a_lender_records_although_something_went_wrong(told: Dict[str, Any]) -> None:
    """Connections to nodes that are down, too, but none that nobody can make."""
    found = told["went_wrong"]
    assert found["lender_valid_connections"] == [{"node_id": 8, "adapter": 0}, {"node_id": 12, "adapter": 1}]
    assert found["lender_valid_sriov"] == [
        {"bdf": "0000:5e:00.0", "numvfs": 4},
        {"bdf": "0000:5e:00.1", "numvfs": 0},
    ]
    assert found["lender_failures"] == [
        "0000:5e:00.2: in use",
        "host nobody: no such host",
        "no PCI device 99:00.0",
    ]


def test_virtual_functions_that_check_mode_expects(told: Dict[str, Any]) -> None:
    """What is not there may be one of them; anything else is a failure all the same."""
    found = told["predicted"]
    assert [error["element"] for error in found["lender_expected"]] == ["5e:02.0"]
    assert found["lender_failures"] == ["0000:81:00.0 is in use"]
    assert found["lender_valid_sriov"] == [{"bdf": "0000:5e:00.0", "numvfs": 2}]
    assert told["pending"]["lender_valid_sriov"] == told["pending"]["lender_valid_connections"] == []


# -- borrower ---------------------------------------------------------------------------------------------------------


def test_claims_that_are_filled(told: Dict[str, Any]) -> None:
    found = told["b_all_is_well"]
    assert found["borrower_wanted"] == [
        {"label": "scratch", "select": {"node_id": 4}, "dma_window": "512"},
        {"label": "uplink", "fdid": "48200"},
    ]
    assert found["borrower_returned"] == found["borrower_failures"] == found["borrower_obstacles"] == []
    assert found["borrower_complete_labels"] == ["scratch", "uplink"]
    assert [(row["fdid"], row["dma_window"]) for row in found["borrower_rows"]] == [
        ("48100", "512"),
        ("48300", "512"),
        ("48200", None),
    ]
    assert found["borrower_recorded_mounts"] == [{"label": "scratch", "path": "/srv/scratch"}]
    assert found["borrower_unclaimed"] == ["old"]


def test_pairs_by_label(told: Dict[str, Any]) -> None:
    """Every device of one with every one of the other; what is no label is a device id."""
    assert told["b_all_is_well"]["borrower_pairs"] == [
        {"source": "48200", "destination": "48100", "bar": 0},
        {"source": "48200", "destination": "48300", "bar": 0},
        {"source": "48100", "destination": "99999"},
        {"source": "48300", "destination": "99999"},
    ]


def test_pairs_that_check_mode_expects(told: Dict[str, Any]) -> None:
    """Two ids that no device has."""
    (pair,) = told["b_pending"]["borrower_pairs"]
    assert pair["source"] != pair["destination"]
    assert all(int(end, 16) >> 32 for end in pair.values())


def test_a_claim_that_falls_short_leaves_the_others(told: Dict[str, Any]) -> None:
    """Nothing is recorded of it, so what was recorded stays; and it is not mounted."""
    found = told["b_one_falls_short"]
    assert found["borrower_complete_labels"] == ["uplink"]
    assert found["borrower_failures"] == [
        "scratch (a): 0 of 1 devices",
        "p2p uplink -> scratch: a claim of it was not filled",
    ]
    assert found["borrower_pairs"] == found["borrower_mountable"] == found["borrower_recorded_mounts"] == []
    assert told["b_all_fail"]["borrower_complete_labels"] == []
    assert told["b_all_fail"]["borrower_failures"] == ["the state folder is locked"]


def test_a_claim_that_is_returned(told: Dict[str, Any]) -> None:
    """Its own mount is no reason against it, and is undone first."""
    found = told["b_returned"]
    assert found["borrower_returned"] == found["borrower_to_return"] == [{"label": "scratch"}]
    assert [mount["path"] for mount in found["borrower_to_unmount"]] == ["/srv/scratch"]
    assert [mount["path"] for mount in found["borrower_to_unlist"]] == ["/srv/scratch"]
    assert found["borrower_failures"] == []
    assert found["borrower_returned_labels"] == found["borrower_complete_labels"] == ["scratch"]
    assert [row["action"] for row in found["borrower_rows"]] == ["return"]
    assert told["b_bare"]["borrower_to_return"] == []


def test_a_return_that_is_refused(told: Dict[str, Any]) -> None:
    """By another mount: then not even the own one is undone."""
    found = told["b_refused"]
    assert found["borrower_returned"] == [{"label": "scratch"}, {"label": "uplink"}]
    assert found["borrower_to_return"] == [{"label": "uplink"}]
    assert found["borrower_to_unmount"] == found["borrower_to_unlist"] == found["borrower_returned_labels"] == []
    assert found["borrower_failures"] == [
        "claim scratch: 48100 is in use: ...",
        "/srv/uplink: target is busy",
    ]


def test_claims_that_cannot_be_told_apart(told: Dict[str, Any]) -> None:
    assert told["b_told_apart"]["borrower_obstacles"] == [
        "label scratch is claimed 2 times; give every claim a label of its own",
        "mount.path srv must be an absolute path below /, of one claim only",
        "mount.path /srv must be an absolute path below /, of one claim only",
    ]


def test_claims_that_cannot_be_meant(told: Dict[str, Any]) -> None:
    assert told["b_mistaken"]["borrower_obstacles"] == [
        "mount.path /etc is a folder of the system, which would be hidden; choose another one",
        "fdid 48200 is claimed by uplink and again; a device goes to one claim only",
        "borrower_p2p: there is no claim with the label scrach; there are scratch, uplink, again",
    ]
