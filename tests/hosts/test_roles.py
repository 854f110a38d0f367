# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles lender and borrower on four hosts with software nodes. Runs inside a lab: hosts.py run pytest ...

The tests build on each other: the first ones make the cluster that the later ones change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, Set, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.hosts.inside import Run, hosts, on

SUITES = {"lender1": "bookworm", "lender2": "trixie", "borrower1": "bookworm", "borrower2": "trixie"}
RECORD = "/etc/iofabric/sharing.json"
NODE = "/run/iofabric-software-node"
UUID = "0a5c9d2e-6c1f-4d0a-9b1e-3f6f0f6a2b11"
DRIVE = {"vendor_id": "144d", "device_id": "a80a", "class": "010802", "model": "SAMSUNG MZQL23T8"}
CARD = {"vendor_id": "8086", "device_id": "1572", "class": "020000", "sriov": {"totalvfs": 4}, "driver": "i40e"}

INVENTORY: Dict[str, Any] = {
    "all": {
        "vars": {
            "ansible_ssh_common_args": "-F /run/iofabric-hosts/ssh_config",
            "ansible_python_interpreter": "/usr/bin/python3",
            "software_node_token": "bench",
            # Its own proc, too: what is mounted there decides what may be returned.
            "smartio_places": {"sysfs": f"{NODE}/sysfs", "dev": f"{NODE}/dev", "proc": f"{NODE}/proc"},
        },
        "children": {
            "lenders": {
                "hosts": {
                    "lender1": {
                        "software_node_id": 4,
                        "software_node_devices": [
                            {**DRIVE, "bdf": "81:00.0", "serial": "S1"},
                            {**DRIVE, "bdf": "82:00.0", "serial": "S2"},
                            {**CARD, "bdf": "5e:00.0"},
                        ],
                        "lender_devices": [{"filter": "-d 144d:"}, {"bdf": "5e:00.2"}],
                        "lender_sriov": [{"bdf": "5e:00.0", "numvfs": 2}],
                    },
                    "lender2": {
                        "software_node_id": 8,
                        "software_node_devices": [{**DRIVE, "bdf": "41:00.0", "serial": "S3"}],
                        "lender_devices": [{"bdf": "41:00.0"}],
                        "lender_borrowers": ["borrower1", 16],
                    },
                }
            },
            "borrowers": {
                "hosts": {
                    "borrower1": {
                        "software_node_id": 12,
                        "borrower_claims": [
                            {
                                "label": "scratch",
                                "select": {"serial": "S1"},
                                "mount": {"path": "/srv/scratch dir", "fstype": "fake", "uuid": UUID},
                            },
                            {"label": "uplink", "select": {"node_id": 4, "vendor_id": "8086"}},
                        ],
                        "borrower_p2p": [{"source": "uplink", "destination": "scratch", "bar": 0}],
                    },
                    "borrower2": {
                        "software_node_id": 16,
                        "borrower_claims": [{"label": "data", "select": {"node_id": 8}, "dma_window": "512"}],
                    },
                }
            },
        },
    }
}

PLAYS = [
    {"name": "Nodes", "hosts": "all", "gather_facts": False, "roles": ["iofabric.sharing.software_node"]},
    {
        "name": "Lend",
        "hosts": "lenders",
        "gather_facts": False,
        "serial": "{{ batch | default(0) }}",
        "roles": ["iofabric.sharing.lender"],
    },
    {
        "name": "Borrow",
        "hosts": "borrowers",
        "gather_facts": False,
        "serial": "{{ batch | default(0) }}",
        "roles": ["iofabric.sharing.borrower"],
    },
]

# A mount needs a block device, a kind of filesystem, and systemd's generator, which passes over devices in a container.
FAKE_MOUNTS = f"""
set -e
mkdir -p /dev/disk/by-uuid /etc/systemd/system-generators
[ -e /dev/fake ] || mknod /dev/fake b 250 7
ln -sfn ../../fake /dev/disk/by-uuid/{UUID}
printf '#!/bin/sh\\nexec mount -t tmpfs -o size=1m fake "$2"\\n' > /sbin/mount.fake
cat > /etc/systemd/system-generators/systemd-fstab-generator <<'END'
#!/bin/sh
grep '^UUID=' /etc/fstab | while read -r what where type options rest; do
    path=$(printf '%b' "$(echo "$where" | sed 's/\\\\0/\\\\00/g')")
    exec > "$1/$(systemd-escape --path --suffix=mount "$path")"
    printf '[Unit]\\nAfter=iofabric-sharing.service\\n[Mount]\\nWhat=/dev/disk/by-uuid/%s\\n' "${{what#UUID=}}"
    printf 'Where=%s\\nType=%s\\nOptions=%s\\n' "$path" "$type" "$options"
done
END
chmod 755 /sbin/mount.fake /etc/systemd/system-generators/systemd-fstab-generator
"""


def recorded(name: str) -> Dict[str, Any]:
    """What is recorded on a host."""
    found: Dict[str, Any] = json.loads(on(name, f"cat {RECORD}"))
    return found


def play(folder: Path, *arguments: str, **variables: Any) -> Run:
    """One run of all plays; with ``--limit``, of the roles alone."""
    if "--limit" in arguments:  # the software nodes are there already
        arguments = (*arguments, "--tags", "lender,borrower")
    return Run(folder, "-i", str(folder / "inventory.json"), str(folder / "site.json"), *arguments, **variables)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("roles")
    (folder / "inventory.json").write_text(json.dumps(INVENTORY))
    (folder / "site.json").write_text(json.dumps(PLAYS))
    hosts("up", *(f"{name}={suite}" for name, suite in SUITES.items()))
    on("borrower1", FAKE_MOUNTS)
    yield folder
    hosts("down")


def good(folder: Path, *arguments: str, **variables: Any) -> Run:
    """A run that nothing may fail in."""
    run = play(folder, *arguments, **variables)
    assert run.rc == 0, run.output
    return run


def of_roles(rows: Set[Tuple[str, str]]) -> Set[Tuple[str, str]]:
    """Without the tasks of the software node, whose handler only a real run can tell to change."""
    return {(host, task) for host, task in rows if ".software_node : " not in task}


def test_check_mode_on_bare_hosts_predicts_the_tasks_that_change(folder: Path) -> None:
    """Task by task; and a second run, one host at a time, changes nothing."""
    check = good(folder, "--check")
    run = good(folder)
    assert of_roles(run.changed) == of_roles(check.changed), run.output
    assert len(of_roles(run.changed)) > 20
    again = good(folder, batch=1)
    assert again.changed == set(), again.output


def test_what_is_recorded_is_what_was_granted() -> None:
    """Never how it was selected."""
    lender = recorded("lender1")["lender"]
    assert lender["connections"] == [{"node_id": 12, "adapter": 0}, {"node_id": 16, "adapter": 0}]
    assert lender["sriov"] == [{"bdf": "0000:5e:00.0", "numvfs": 2}]
    found = [(device["bdf"], device["state"], device["serial"]) for device in lender["devices"]]
    assert [one[:2] for one in found] == [(f"0000:{bdf}", "available") for bdf in ("81:00.0", "82:00.0", "5e:00.2")]
    assert [one[2] for one in found[:2]] == ["S1", "S2"]
    borrower = recorded("borrower1")["borrower"]
    assert [(one["label"], one["bdf"]) for one in borrower["devices"]] == [
        ("scratch", "0000:81:00.0"),
        ("uplink", "0000:5e:00.2"),
    ]
    assert borrower["mounts"] == [{"label": "scratch", "path": "/srv/scratch dir"}]
    (pair,) = borrower["p2p"]
    assert (pair["source"]["bdf"], pair["destination"]["bdf"], pair["bar"]) == ("0000:5e:00.2", "0000:81:00.0", 0)
    (device,) = recorded("borrower2")["borrower"]["devices"]
    assert (device["serial"], device["dma_window"]) == ("S3", "512")


def test_the_mount_is_there_and_waits_for_nothing() -> None:
    """By UUID, with the order after the replay."""
    assert on("borrower1", "findmnt -n -o FSTYPE '/srv/scratch dir'") == "tmpfs"
    line = f"UUID={UUID} /srv/scratch\\040dir fake defaults,nofail,x-systemd.after=iofabric-sharing.service 0 0"
    assert on("borrower1", "grep scratch /etc/fstab") == line


def test_check_mode_on_a_converged_cluster_predicts_nothing_and_a_hold_ends(folder: Path) -> None:
    """The next explicit run ends a hold, and that is all that it does."""
    on("lender2", "touch /run/iofabric/hold || { mkdir -p /run/iofabric && touch /run/iofabric/hold; }")
    ends = {("lender2", "iofabric.sharing.lender : End the hold that somebody put on what is shared")}
    assert good(folder, "--check", "--diff").changed == ends
    assert good(folder, "--limit", "lender2").changed == ends
    assert on("lender2", "ls /run/iofabric") == ""


def test_a_borrower_that_is_down_stops_nothing(folder: Path) -> None:
    """It is a warning that names both nodes; the connection is recorded all the same."""
    hosts("crash", "borrower2")
    on("lender1", "systemctl restart iofabric-software-node.service && rm -f /etc/iofabric/sharing.json")
    run = good(folder, "--limit", "lender1")
    assert "node 4 cannot connect to node 16 (adapter 0), host borrower2" in run.warnings("lender1")
    assert "EIO" in run.warnings("lender1")
    lender = recorded("lender1")["lender"]
    assert lender["connections"] == [{"node_id": 12, "adapter": 0}, {"node_id": 16, "adapter": 0}]
    assert [device["bdf"] for device in lender["devices"]] == ["0000:81:00.0", "0000:82:00.0", "0000:5e:00.2"]
    hosts("up", "borrower2")
    again = good(folder, "--limit", "lender1")
    assert again.warnings("lender1") == ""
    assert {task for _host, task in again.changed} == {
        "iofabric.sharing.lender : Connect to the borrowers, and warn of those that are down"
    }


def test_everything_else_is_done_beside_what_goes_wrong(folder: Path) -> None:
    """And all that went wrong is said at the end, each with its host or address."""
    devices = [{"bdf": "82:00.0"}, {"bdf": "99:00.0"}]
    variables = {"lender_devices": devices, "lender_sriov": [{"bdf": "82:00.0", "numvfs": 1}], "lender_purge": False}
    run = play(folder, "--limit", "lender1", lender_borrowers=["borrower1", "nobody"], **variables)
    sentence = run.failure("lender1")
    assert sentence.startswith("lender1: 0000:82:00.0 has no SR-IOV capability")
    assert "the node id of host nobody cannot be told here" in sentence
    assert "smartio_node_id" in sentence
    assert "no PCI device 99:00.0 on this node" in sentence
    assert ("lender1", "iofabric.sharing.persistence : Write the units") in run.with_status("ok")
    assert "nodes that are not named any more (16)" in run.warnings("lender1")


def test_preflight_stops_a_host_before_anything_is_changed(folder: Path) -> None:
    """With what is wrong and what to do."""
    run = play(folder, "--limit", "lender1", smartio_node_id=8)
    assert "lender1 cannot lend: this node's id is 4 (adapter 0)" in run.failure("lender1")
    assert "correct smartio_node_id" in run.failure("lender1")
    assert run.changed == set()
    assert "Create the virtual functions" not in run.output


def test_a_claim_that_is_not_in_the_inventory_any_more_is_reported(folder: Path) -> None:
    """Nothing is returned, and nothing forgotten."""
    before = recorded("borrower2")
    run = good(folder, "--limit", "borrower2", borrower_claims=[])
    assert "labels that are not claimed any more (data)" in run.warnings("borrower2")
    assert recorded("borrower2") == before


def test_claims_that_cannot_be_filled_leave_the_others(folder: Path) -> None:
    """And stay recorded as they were."""
    claims = INVENTORY["all"]["children"]["borrowers"]["hosts"]["borrower1"]["borrower_claims"]
    wanted = [*claims, {"label": "more", "select": {"node_id": 99}}]
    run = play(folder, "--limit", "borrower1", borrower_claims=wanted, borrower_timeout=0)
    assert "more (select {node_id: 99}): 0 of 1 devices could be borrowed" in run.failure("borrower1")
    assert [one["label"] for one in recorded("borrower1")["borrower"]["devices"]] == ["scratch", "uplink"]


def test_a_device_that_is_in_use_elsewhere_is_not_even_unmounted(folder: Path) -> None:
    """A return is refused with the other mount point; once that is gone, the own mount is undone and it is returned."""
    number = on("borrower1", f"cat {NODE}/sysfs/class/block/nvme0n1p1/dev")
    table = f"{NODE}/proc/self/mountinfo"
    lines = "".join(
        f"36 22 {number} / {path} rw shared:1 - ext4 /dev/nvme0n1p1 rw\\n"
        for path in (r"/srv/scratch\\040dir", "/mnt/other")
    )
    on("borrower1", f"cp {table} /root/mountinfo; printf '{lines}' >> {table}")
    claims = INVENTORY["all"]["children"]["borrowers"]["hosts"]["borrower1"]["borrower_claims"]
    gone = [{**claims[0], "state": "returned"}, claims[1]]
    variables = {"borrower_claims": gone, "borrower_p2p": []}
    run = play(folder, "--limit", "borrower1", **variables)
    assert "mounted at /mnt/other" in run.failure("borrower1")
    assert "claim scratch" in run.failure("borrower1")
    assert run.changed == set()
    assert on("borrower1", "findmnt -n -o FSTYPE '/srv/scratch dir'") == "tmpfs"
    # The own mount alone is undone before the return. What systemd unmounts leaves the real table, not this one.
    on("borrower1", f"grep -v /mnt/other {table} > /root/own; cp /root/own {table}")
    check = good(folder, "--limit", "borrower1", "--check", **variables)
    on("borrower1", f"cp /root/mountinfo {table}")
    run = good(folder, "--limit", "borrower1", **variables)
    assert run.changed == check.changed
    assert on("borrower1", "findmnt -n '/srv/scratch dir' || echo no") == "no"
    assert on("borrower1", "grep -c UUID /etc/fstab || true") == "0"
    borrower = recorded("borrower1")["borrower"]
    assert [one["label"] for one in borrower["devices"]] == ["uplink"]
    assert (borrower["mounts"], borrower["p2p"]) == ([], [])
    assert good(folder, "--limit", "borrower1", **variables).changed == set()


def test_filesystems_that_cannot_be_told(folder: Path) -> None:
    """None or several is an error that says what to do; one is found, and nothing is ever formatted."""
    claims = INVENTORY["all"]["children"]["borrowers"]["hosts"]["borrower1"]["borrower_claims"]
    found = [{**claims[0], "mount": {"path": "/srv/scratch dir", "fstype": "fake"}}, claims[1]]
    run = play(folder, "--limit", "borrower1", borrower_claims=found, borrower_timeout=2)
    assert "there is no filesystem on nvme0, nvme0n1, nvme0n1p1" in run.failure("borrower1")
    links = f"{NODE}/dev/disk/by-uuid"
    on("borrower1", f"mkdir {links}; ln -s ../../nvme0n1 {links}/other; ln -s ../../nvme0n1p1 {links}/{UUID}")
    run = play(folder, "--limit", "borrower1", borrower_claims=found)
    assert f"there are several filesystems on nvme0, nvme0n1, nvme0n1p1 ({UUID}, other)" in run.failure("borrower1")
    found[0]["mount"]["partition"] = 1
    run = good(folder, "--limit", "borrower1", borrower_claims=found)
    assert on("borrower1", "findmnt -n -o FSTYPE '/srv/scratch dir'") == "tmpfs"
    assert good(folder, "--limit", "borrower1", borrower_claims=found).changed == set()


def test_all_is_given_back_and_taken_back(folder: Path) -> None:
    """A lender takes back only what somebody says that no borrower holds."""
    run = play(folder, "--limit", "lender2", lender_state="absent")
    assert "borrowers_checked" in run.failure("lender2")
    assert recorded("lender2")["lender"]["connections"]
    good(folder, "--limit", "borrowers", borrower_state="absent")
    for name in ("borrower1", "borrower2"):
        assert recorded(name)["borrower"] == {"devices": [], "p2p": [], "mounts": []}
    variables = {"lender_state": "absent", "lender_borrowers_checked": True}
    check = good(folder, "--limit", "lenders", "--check", **variables)
    run = good(folder, "--limit", "lenders", **variables)
    assert run.changed == check.changed
    for name in ("lender1", "lender2"):
        assert recorded(name)["lender"] == {"connections": [], "sriov": [], "devices": []}
        assert on(name, "/opt/DIS/sbin/smartio_tool list") == ""
    assert on("lender1", f"cat {NODE}/sysfs/bus/pci/devices/0000:5e:00.0/sriov_numvfs") == "0"
    assert good(folder, "--limit", "lenders,borrowers", borrower_state="absent", **variables).changed == set()
