# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook ci_environment on two bare hosts. Runs inside a lab: hosts.py run pytest ...

The tests build on each other: two runners, named one and two, share the hosts until both are gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

import ansible
import pytest
from ansible_collections.iofabric.sharing.tests.hosts.inside import HERE, PROGRAM, Run, hosts, on

SUITES = {"ci1": "bookworm", "ci2": "trixie"}
# New at every start of a node.
STAMP = "stat -c %i /run/iofabric-software-node/sysfs/module/dis_smartio"
# With what is installed beside it and says which version it is.
ANSIBLE = ("ansible", "ansible_core", "jinja2", "markupsafe", "packaging", "resolvelib", "yaml", "pyyaml")
COLLECTION = ("galaxy.yml", "meta", "playbooks", "plugins", "roles")


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    hosts("up", *(f"{name}={suite}" for name, suite in SUITES.items()))
    yield tmp_path_factory.mktemp("ci")
    hosts("down")


def job(folder: Path, label: str, *arguments: str, state: str = "present", **variables: Any) -> Run:
    """One run for a runner. Neither an inventory of its own nor a user's settings are needed."""
    run = Run(
        folder,
        *("-i", ",".join(SUITES) + ","),
        *("--ssh-common-args", "-F /run/iofabric-hosts/ssh_config"),
        "iofabric.sharing.ci_environment",
        *arguments,
        ansible_python_interpreter="/usr/bin/python3",
        ci_environment_label=label,
        ci_environment_state=state,
        **variables,
    )
    assert run.rc == 0, run.output
    return run


def of_playbook(rows: Set[Tuple[str, str]]) -> Set[Tuple[str, str]]:
    """Without the tasks of the software node, whose handler only a real run can tell to change."""
    return {(host, task) for host, task in rows if ".software_node : " not in task}


def facts(run: Run, host: str) -> Dict[str, Any]:
    """What a host is left with for plays that follow."""
    found = [row for task, one, _status, row in run.rows if (one, task) == (host, "Keep it for plays that follow")]
    return dict(found[0]["ansible_facts"])


def vdevs(run: Run, host: str) -> List[str]:
    """The virtual devices that a host borrowed."""
    return [str(one["vdev"]) for one in facts(run, host)["ci_environment_borrowed"]]


def sockets(host: str) -> List[str]:
    """The sockets of a host's control planes; a server that ends takes its own along."""
    return on(host, "ls /tmp | grep 'xnvme-homi-[0-9]*.sock$' || true").split()


def send(host: str, folder: Path, names: Sequence[str], to: str) -> None:
    """Copies files and folders to a host."""
    packed = subprocess.run(["tar", "-C", folder, "-c", *names], capture_output=True, check=True).stdout
    command = f"mkdir -p {to} && tar -x --no-same-owner -C {to}"
    subprocess.run([sys.executable, "-B", PROGRAM, "ssh", host, command], input=packed, check=True)


def test_one_command_gives_bare_hosts_a_fabric(folder: Path) -> None:
    """Check mode predicts it, task by task; every host borrows a drive, has a driver on it, and serves a controller."""
    check = job(folder, "one", "--check")
    run = job(folder, "one")
    assert of_playbook(run.changed) == of_playbook(check.changed), run.output
    for host in SUITES:
        kept = facts(run, host)
        assert [one["driver"] for one in kept["ci_environment_borrowed"]] == ["nvme"]
        assert [one["label"] for one in kept["ci_environment_borrowed"]] == ["one/scratch"]
        (served,) = kept["ci_environment_served"]
        assert served["alive"]
        assert [one["initialized"] for one in served["controllers"]] == [True]


def test_the_next_job_frees_what_the_one_before_had(folder: Path) -> None:
    """Even where it is in use; and the nodes are not restarted for it."""
    before = {host: on(host, STAMP) for host in SUITES}
    check = job(folder, "one", "--check")
    run = job(folder, "one")
    assert run.changed == check.changed, run.output
    tasks = ["Stop the control planes of the label", "Return what is borrowed under the label", "Claim", "Serve"]
    assert run.changed == {(host, task) for host in SUITES for task in tasks}
    assert {host: on(host, STAMP) for host in SUITES} == before


def test_runners_share_hosts(folder: Path) -> None:
    """Another runner's job takes nothing away, also when it is limited to a host, and ends for itself alone."""
    first = {host: sockets(host) for host in SUITES}
    other = job(folder, "two", "--limit", "ci2")
    assert {host for host, _task in other.changed} == {"ci2"}
    assert len(vdevs(other, "ci2")) == 1
    assert set(first["ci2"]) < set(sockets("ci2"))
    freed = job(folder, "two", state="freed")
    assert {host for host, _task in freed.changed} == {"ci2"}
    assert {host: sockets(host) for host in SUITES} == first
    assert job(folder, "two", state="freed").changed == set()


def test_absent_leaves_bare_hosts(folder: Path) -> None:
    """Check mode predicts it, and a second run changes nothing."""
    check = job(folder, "one", "--check", state="absent")
    run = job(folder, "one", state="absent")
    assert of_playbook(run.changed) == of_playbook(check.changed), run.output
    for host in SUITES:
        assert on(host, "ls -d /opt/DIS /etc/iofabric/software-node.json 2>/dev/null || true") == ""
        assert sockets(host) == []
    assert job(folder, "one", state="absent").changed == set()


def test_a_host_sets_itself_up(folder: Path) -> None:
    """``-i localhost, -c local``, with Ansible on the host itself."""
    site = Path(ansible.__file__).parent.parent
    send("ci1", site, [one.name for one in site.iterdir() if one.name.split("-")[0].lower() in ANSIBLE], "/root/site")
    send("ci1", HERE.parent.parent, COLLECTION, "/root/collections/ansible_collections/iofabric/sharing")
    command = (
        "cd; PYTHONPATH=/root/site ANSIBLE_COLLECTIONS_PATH=/root/collections python3 -m ansible.cli.playbook "
        "iofabric.sharing.ci_environment -i localhost, -c local -e ansible_python_interpreter=/usr/bin/python3"
    )
    told = on("ci1", command)
    assert "failed=0" in told, told
    assert "changed=0" not in told
    assert len(sockets("ci1")) == 1
    assert json.loads(on("ci1", "cat /etc/iofabric/software-node.json"))["token"] == ""
    on("ci1", f"{command} -e ci_environment_state=absent")
    assert sockets("ci1") == []
