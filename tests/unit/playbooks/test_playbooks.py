# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks without hosts to work on: who is meant, what is refused at once, what is decided from what was found."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest
from ansible_collections.iofabric.sharing.tests.unit.ansible_env import ansible_env

COLLECTION = Path(__file__).resolve().parents[3]
PLAYBOOKS = COLLECTION / "playbooks"
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")

Json = Dict[str, Any]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a playbook over an inventory of hosts that are all this machine."""

    def runs(playbook: str, groups: Json, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        everybody: Json = {"vars": {"ansible_connection": "local"}, "children": {}, "hosts": {}}
        for group, hosts in groups.items():
            target = everybody if group == "ungrouped" else everybody["children"].setdefault(group, {})
            target["hosts"] = hosts if isinstance(hosts, dict) else {host: {} for host in hosts}
        (tmp_path / "inventory.json").write_text(json.dumps({"all": everybody}))
        env = ansible_env(tmp_path, ANSIBLE_DEVEL_WARNING="false", ANSIBLE_NOCOLOR="true")
        command = [str(ANSIBLE), "-i", str(tmp_path / "inventory.json"), playbook, *words]
        command += ["-e", json.dumps({"ansible_python_interpreter": sys.executable, **variables})]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300, check=False)

    return runs


# -- who is meant ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("playbook", ["site", "status", "drain", "teardown", "ci_environment"])
@pytest.mark.parametrize("group", ["ungrouped", "lenders", "cplane_servers"])
def test_groups_are_optional(run: Run, playbook: str, group: str) -> None:
    """An inventory with one group only, or none: no failure, no warning."""
    done = run(f"iofabric.sharing.{playbook}", {group: ["one"]}, "--list-hosts", drain_lender=["one"])
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr, done.stderr


def hosts_of(listing: str) -> Dict[str, List[str]]:
    """The hosts of each play, by its name."""
    found: Dict[str, List[str]] = {}
    name = ""
    for line in listing.splitlines():
        if line.startswith("  play #"):
            name = line.partition(": ")[2].partition("\t")[0]
            found[name] = []
        elif line.startswith("      ") and name:
            found[name].append(line.strip())
    return {name: sorted(hosts) for name, hosts in found.items()}


GROUPS = {"lenders": ["l1", "l2"], "borrowers": ["b1", "b2"], "cplane_servers": ["b1", "c1"], "software_nodes": ["l1"]}


def test_the_plays_of_site(run: Run) -> None:
    plays = hosts_of(run("iofabric.sharing.site", GROUPS, "--list-hosts").stdout)
    assert list(plays.values())[:4] == [["l1"], ["l1", "l2"], ["b1", "b2"], ["b1", "c1"]]
    plays = hosts_of(run("iofabric.sharing.site", GROUPS, "--list-hosts", "--limit", "b1").stdout)
    assert list(plays.values())[:4] == [[], [], ["b1"], ["b1"]]


@pytest.mark.parametrize(
    ("given", "looked_at", "taken_back"),
    [
        ({"drain_lender": ["l2"]}, ["b1", "b2"], ["l2"]),
        ({"drain_lender": "l1, l2"}, ["b1", "b2"], ["l1", "l2"]),
        ({"drain_borrower": ["b2"]}, ["b2"], []),
        ({"drain_lender": "l1", "drain_borrower": "b2"}, ["b1", "b2"], ["l1"]),
        ({"drain_everything": True}, ["b1", "b2", "c1"], ["l1", "l2"]),
    ],
)
def test_the_plays_of_drain(run: Run, given: Json, looked_at: List[str], taken_back: List[str]) -> None:
    plays = hosts_of(run("iofabric.sharing.drain", GROUPS, "--list-hosts", **given).stdout)
    assert plays["Look at the borrowers, and change nothing"] == looked_at
    assert plays["Give back"] == looked_at
    assert plays["Take back"] == taken_back


# -- what is refused at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("playbook", "given", "words"),
    [
        ("drain", {}, "nothing is named to be drained: give drain_lender or drain_borrower"),
        ("drain", {"drain_lender": []}, "nothing is named to be drained"),
        (
            "drain",
            {"drain_lender": "x9"},
            "drain_lender: x9 is not in the group lenders of the inventory, which has l1, l2",
        ),
        ("drain", {"drain_borrower": "l1"}, "drain_borrower: l1 is not in the group borrowers"),
        ("teardown", {}, "nothing was done: this takes all sharing away from"),
        ("teardown", {"teardown_confirm": False}, "-e teardown_confirm=true"),
        ("ci_environment", {"ci_environment_state": "gone"}, "ci_environment_state: gone is none of"),
    ],
)
def test_refused_at_once(run: Run, playbook: str, given: Json, words: str) -> None:
    done = run(f"iofabric.sharing.{playbook}", GROUPS, **given)
    assert done.returncode != 0
    assert words in " ".join(done.stdout.replace('\\"', "").split()), done.stdout
    assert done.stdout.count("PLAY [") == 1


# -- what is decided ---------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluate(run: Run, tmp_path: Path) -> Callable[..., Any]:
    """The value of variables of a playbook on one host, where hosts have found what their variables say."""

    def values(playbook: str, names: List[str], groups: Json, host: str, **variables: Any) -> Json:
        answer = tmp_path / "answer.json"
        template = "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | to_json }}"
        task = {"name": "Tell", "ansible.builtin.copy": {"content": template, "dest": str(answer)}}
        play = {
            "name": "Evaluate",
            "hosts": "all",
            "gather_facts": False,
            "vars_files": [str(PLAYBOOKS / "vars/common.yml"), str(PLAYBOOKS / f"vars/{playbook}.yml")],
            "tasks": [{**task, "when": f"inventory_hostname == '{host}'"}],
        }
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        done = run(str(tmp_path / "play.yml"), groups, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        found: Json = json.loads(answer.read_text())
        return found

    return values


def device(fdid: str, node_id: Optional[int], **more: Any) -> Json:
    """A row of smartio_info."""
    row = {"fdid": fdid, "node_id": node_id, "label": None, "vdev": "0000:04:05.0", "borrowed": True, "error": None}
    return {**row, **more}


def found_on(*devices: Json, **more: Any) -> Json:
    """What the tasks of drain_look.yml find on a borrower."""
    found = {"drain_before": {"devices": list(devices)}, "drain_servers": {"servers": []}}
    return {**found, "drain_recorded": recorded(), **more}


def recorded(*devices: Json, mounts: Optional[List[Json]] = None, cplanes: Optional[List[Json]] = None) -> Json:
    return {"sharing": {"borrower": {"devices": list(devices), "mounts": mounts or []}, "cplanes": cplanes or []}}


def in_use(**reasons: List[str]) -> Json:
    """What smartio_borrow says in check mode; the keys are fdids behind an underscore."""
    errors = [{"element": fdid[1:], "msg": "in use", "in_use": words} for fdid, words in reasons.items()]
    return {"devices": [], "errors": errors}


LENDERS = {"l1": {"software_node_id": 4}, "l2": {"software_node_id": 8}}


def test_only_what_is_of_the_lender_is_affected(evaluate: Callable[..., Any]) -> None:
    rows = [
        device("48100", 4, label="scratch"),
        device("84100", 8),
        device("48200", 4, borrowed=False, vdev=None),
        # Out of reach: whose it is was recorded, or is suggested by its id.
        device("99999", None, borrowed=None, vdev=None),
        device("48300", None, borrowed=None, vdev=None),
    ]
    found = found_on(*rows, drain_recorded=recorded({"fdid": "99999", "node_id": 4, "label": "far"}))
    groups = {"lenders": LENDERS, "borrowers": {"b1": found}}
    names = ["drain_fdids", "drain_labels", "drain_is_whole"]
    of_one = evaluate("drain", names, groups, "b1", drain_lender=["l1"])
    assert of_one["drain_fdids"] == ["48100", "99999", "48300"]
    assert of_one["drain_labels"] == ["scratch", "far"]
    assert not of_one["drain_is_whole"]
    everything = evaluate("drain", names, groups, "b1", drain_borrower="b1")
    assert everything["drain_fdids"] == ["48100", "84100", "99999", "48300"]


def test_mounts_of_the_claim_are_no_refusal(evaluate: Callable[..., Any]) -> None:
    claims = [
        {"label": "scratch", "mount": {"path": "/srv/scratch/"}},
        {"label": "data", "mount": {"path": "/srv/data"}},
        {"label": "cuda"},
    ]
    users = in_use(
        _48100=["mounted at /srv/scratch (nvme0n1p1)"],
        _84100=["mounted at /srv/data (nvme1n1)", "mounted at /mnt (nvme1n1)"],
    )
    devices = [device("48100", 4, label="scratch"), device("84100", 8, label="data")]
    found = found_on(*devices, borrower_claims=claims, drain_returnable=users)
    groups = {"lenders": LENDERS, "borrowers": {"b1": found}}
    names = ["drain_mounts", "drain_refusals"]
    one = evaluate("drain", names, groups, "b1", drain_lender=["l1"])
    assert one == {"drain_mounts": ["/srv/scratch"], "drain_refusals": []}
    both = evaluate("drain", names, groups, "b1", drain_lender=["l1", "l2"])
    assert both["drain_mounts"] == ["/srv/scratch", "/srv/data"]
    assert both["drain_refusals"] == ["b1: 84100 (data, 0000:04:05.0): mounted at /mnt (nvme1n1)"]


def test_a_mount_that_lies_on_another_device_stays(evaluate: Callable[..., Any]) -> None:
    """A label with devices of two lenders, whose filesystem is on the other one's."""
    found = found_on(
        device("48100", 4, label="scratch"),
        device("84100", 8, label="scratch"),
        drain_recorded=recorded(mounts=[{"label": "scratch", "path": "/srv/x"}]),
        drain_returnable=in_use(_84100=["mounted at /srv/x (nvme1n1)"]),
    )
    groups = {"lenders": LENDERS, "borrowers": {"b1": found}}
    one = evaluate("drain", ["drain_mounts", "drain_refusals"], groups, "b1", drain_lender=["l1"])
    assert one == {"drain_mounts": [], "drain_refusals": []}


def test_what_speaks_against_it(evaluate: Callable[..., Any]) -> None:
    server = {"cplane_id": 7, "pid": 812, "controllers": [{"uri": "0000:04:05.0", "name": "claim:scratch"}]}
    other = {"cplane_id": 8, "pid": 813, "controllers": [{"uri": "ffff:01:00.0", "name": "emu:x"}]}
    errors = [
        {"element": "48100", "msg": "x", "in_use": ["open by homi (pid 812)", "open by dd (pid 900)"]},
        {"element": "48200", "msg": "node 12 cannot reach node 4"},
    ]
    found = found_on(
        device("48100", 4, label="scratch"),
        device("48200", 4, vdev=None, borrowed=None),
        drain_servers={"servers": [server, other]},
        drain_recorded=recorded(cplanes=[{"cplane_id": 9, "controllers": ["claim:scratch"]}]),
        drain_stoppable={"errors": [{"element": "control plane 7", "msg": "control plane 7: 2 clients are connected"}]},
        drain_returnable={"errors": errors},
    )
    groups = {"lenders": LENDERS, "borrowers": {"b1": found}}
    one = evaluate("drain", ["drain_cplanes", "drain_refusals"], groups, "b1", drain_lender=["l1"])
    assert one["drain_cplanes"] == [{"cplane_id": 7}, {"cplane_id": 9}]
    assert one["drain_refusals"] == [
        "b1: 48100 (scratch, 0000:04:05.0): open by dd (pid 900)",
        "b1: 48200: node 12 cannot reach node 4",
        "b1: control plane 7: 2 clients are connected",
    ]


def test_a_mount_in_use_speaks_against_it(evaluate: Callable[..., Any]) -> None:
    users = {"/srv/x": {"mounted": True, "users": ["bash (pid 9)"], "below": ["/srv/x/deep"]}}
    found = found_on(
        device("48100", 4, label="scratch"),
        drain_recorded=recorded(mounts=[{"label": "scratch", "path": "/srv/x"}]),
        drain_mount_users={"stdout": json.dumps(users)},
    )
    groups = {"lenders": LENDERS, "borrowers": {"b1": found}}
    one = evaluate("drain", ["drain_refusals", "drain_mounted"], groups, "b1", drain_lender=["l1"])
    assert one["drain_mounted"] == ["/srv/x"]
    assert one["drain_refusals"] == ["b1: /srv/x/deep is mounted below /srv/x", "b1: /srv/x is in use by bash (pid 9)"]


CONNECTED = [{"node_id": 12, "adapter": 0}]
ASKED = {
    "software_node_id": 4,
    "drain_asked": {"node_ids": {"0": 4}, "connections": CONNECTED},
    "drain_lender_recorded": {"sharing": {"lender": {"connections": CONNECTED, "sriov": [], "devices": []}}},
}


def test_every_borrower_has_to_confirm(evaluate: Callable[..., Any]) -> None:
    held = [{"fdid": "48100", "owner": 4, "label": "scratch"}, {"fdid": "84100", "owner": 8, "label": ""}]
    borrowers = {
        "empty": {"software_node_id": 12, "drain_before": {}, "drain_holding": []},
        "holds": {"drain_before": {}, "drain_holding": held},
        "left_out": {},
        "away": {"drain_before": {"unreachable": True}},
        "broken": {"drain_before": {}},
    }
    groups = {"lenders": {"l1": ASKED}, "borrowers": borrowers}
    found = evaluate("drain", ["drain_unconfirmed", "drain_left_over"], groups, "l1", drain_lender="l1")
    assert sorted(found["drain_unconfirmed"]) == [
        "away cannot be reached",
        "broken failed",
        "holds still holds 48100 (scratch)",
        "left_out was not asked, since this run leaves it out",
    ]
    assert found["drain_left_over"] == []
    found = evaluate("drain", ["drain_left_over"], groups, "l1", drain_borrower="empty,away,left_out")
    assert sorted(found["drain_left_over"]) == [
        "away was not drained, since it cannot be reached",
        "left_out was not drained, since this run leaves it out",
    ]


def test_a_node_outside_of_the_inventory_cannot_confirm(evaluate: Callable[..., Any]) -> None:
    groups = {"lenders": {"l1": ASKED}, "borrowers": {}}
    found = evaluate("drain", ["drain_unconfirmed"], groups, "l1", drain_lender=["l1"])
    assert found["drain_unconfirmed"] == ["node 12, which may borrow from it, is no host of the inventory"]


@pytest.mark.parametrize(
    ("hosts", "ids"),
    [
        ({"a": {}, "b": {}, "c": {}}, {"a": 4, "b": 8, "c": 12}),
        ({"a": {}, "b": {"software_node_id": 4}, "c": {}}, {"a": 8, "b": 4, "c": 12}),
        ({"a": {"software_node_id": 30}, "b": {}}, {"a": 30, "b": 4}),
    ],
)
def test_numbers_of_nodes(evaluate: Callable[..., Any], hosts: Json, ids: Dict[str, int]) -> None:
    found = evaluate("ci_environment", ["ci_ids", "ci_other_ids", "ci_peers"], {"ungrouped": hosts}, "a")
    assert found["ci_ids"] == ids
    assert sorted(found["ci_other_ids"]) == sorted(ids[host] for host in ids if host != "a")
    assert [peer["node_id"] for peer in found["ci_peers"]] == [ids[host] for host in ids if host != "a"]


def test_a_runner_frees_its_own_only(evaluate: Callable[..., Any]) -> None:
    labels = ["ci-1/scratch", "ci-1/gpu", "ci-10/scratch", "ci-1x/scratch", "ci-1", "ci-1/x/y", None]
    pool = {"borrowed": [{"fdid": "1", "label": label} for label in labels]}
    names = ["ci_own", "ci_wishes", "ci_stopped_cplanes"]
    groups = {"ungrouped": {"a": {"ci_pool": pool}}}
    found = evaluate("ci_environment", names, groups, "a", ci_environment_label="ci-1")
    assert found["ci_own"] == [{"label": "ci-1/scratch"}, {"label": "ci-1/gpu"}]
    assert found["ci_wishes"][0]["label"] == "ci-1/scratch"
    other = evaluate("ci_environment", names, groups, "a", ci_environment_label="ci-2")
    assert other["ci_own"] == []
    assert other["ci_stopped_cplanes"] != found["ci_stopped_cplanes"]


def test_the_token_that_hosts_have_is_kept(evaluate: Callable[..., Any]) -> None:
    config = {"content": base64.b64encode(b'{"token": "kept"}').decode()}
    groups: Json = {"ungrouped": {"a": {"ci_new_token": "new"}, "b": {"ci_config": config}}}
    assert evaluate("ci_environment", ["ci_token"], groups, "a") == {"ci_token": "kept"}
    groups["ungrouped"]["b"] = {}
    assert evaluate("ci_environment", ["ci_token"], groups, "a") == {"ci_token": "new"}
    groups["ungrouped"]["a"].update({"software_node_token": "given"})
    assert evaluate("ci_environment", ["ci_token"], groups, "a") == {"ci_token": "given"}
    assert evaluate("ci_environment", ["ci_token"], {"ungrouped": {"a": {}}}, "a") == {"ci_token": ""}


def test_lines_of_the_status(evaluate: Callable[..., Any]) -> None:
    where = {"bdf": "0000:81:00.0"}
    lent = device("48100", 4, **where, borrowed=False, vdev=None, state="available", serial="S1")
    lender = {
        "status_recorded": {"sharing": {}},
        "status_pool": {"node_ids": {"0": 4}, "devices": [lent]},
        "status_compared": {"rc": 0, "stdout_lines": ["MISSING  connection to node 99  not connected", "ok  x"]},
    }
    borrowed = device("48100", 4, **where, label="scratch", driver="nvme", device_nodes=["/dev/nvme0n1"])
    lost = device("84100", None, borrowed=None, vdev=None, bdf=None, driver=None, error="node 12 cannot reach node 8")
    borrower = {
        "status_recorded": {"sharing": {}},
        "status_pool": {"node_ids": {"0": 12}, "devices": [borrowed, lost]},
        "status_compared": {"rc": 0, "stdout_lines": []},
    }
    away = {"status_recorded": {"unreachable": True}}
    groups = {"lenders": {"l1": lender}, "borrowers": {"b1": borrower, "b2": away}}
    assert evaluate("status", ["status_lines"], groups, "l1")["status_lines"] == [
        "l1 (lenders): node 4",
        "  lends  0000:81:00.0  48100  available  borrowed by b1 as scratch  S1",
        "  MISSING  connection to node 99  not connected",
    ]
    lines = evaluate("status", ["status_lines"], groups, "b1")["status_lines"]
    assert [" ".join(line.split()) for line in lines] == [
        "b1 (borrowers): node 12",
        "borrows 0000:04:05.0 48100 nvme node 4 0000:81:00.0 scratch, nvme0n1",
        "borrows OUT OF REACH 84100 owner not known no label",
        "PROBLEM node 12 cannot reach node 8",
        "all that is recorded is there",
    ]
    assert evaluate("status", ["status_lines"], groups, "b2")["status_lines"] == ["b2 cannot be reached: see above"]
