# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Four test hosts, as the scenarios need them. Runs inside a lab: hosts.py run pytest tests/hosts/test_hosts.py."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator

import pytest
from ansible_collections.iofabric.sharing.tests.hosts.inside import hosts, on

SUITES = {"one": "bookworm", "two": "bookworm", "three": "trixie", "four": "trixie"}
MODULES = Path(sys.executable).with_name("ansible")


def ansible(pattern: str, module: str) -> str:
    """Runs a module of Ansible on hosts; what it prints."""
    inventory = ["-i", ",".join(SUITES) + ",", "--ssh-common-args", "-F /run/iofabric-hosts/ssh_config"]
    variables = ["-e", "ansible_python_interpreter=/usr/bin/python3"]
    done = subprocess.run(
        [MODULES, pattern, *inventory, *variables, "-m", module], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reaches(name: str) -> bool:
    """Whether a host's ssh answers here."""
    try:
        with socket.create_connection((name, 22), timeout=0.5) as link:
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture(scope="module", autouse=True)
def _four() -> Iterator[None]:
    hosts("up", *(f"{name}={suite}" for name, suite in SUITES.items()))
    yield
    hosts("down")


def boot(name: str) -> str:
    """The id of a host's boot."""
    return on(name, "cat /proc/sys/kernel/random/boot_id")


def test_all_are_up() -> None:
    """What was asked for is listed, with addresses of its own."""
    rows: Dict[str, list[str]] = {line.split()[0]: line.split()[1:] for line in hosts("list").splitlines()}
    assert {name: row[1] for name, row in rows.items()} == SUITES
    assert {row[2] for row in rows.values()} == {"up"}
    assert len({row[0] for row in rows.values()}) == len(SUITES)


@pytest.mark.parametrize("name", SUITES)
def test_is_a_real_system(name: str) -> None:
    """Each is the Debian that it should be, has systemd as process 1 and nothing failed."""
    assert on(name, ". /etc/os-release; echo $VERSION_CODENAME") == SUITES[name]
    assert on(name, "readlink -f /proc/1/exe").endswith("/systemd")
    assert on(name, "systemctl is-system-running --wait") == "running"
    assert on(name, "hostname") == name


def test_ansible_reaches_all() -> None:
    """Over real ssh."""
    assert ansible("all", "ansible.builtin.ping").count("pong") == len(SUITES)


def test_ansible_reboots() -> None:
    """The reboot module works, and the disk outlives it."""
    before = boot("three")
    on("three", "echo kept > /root/file")
    assert "rebooted" in ansible("three", "ansible.builtin.reboot")
    assert boot("three") != before
    assert on("three", "cat /root/file") == "kept"


def test_power_cut() -> None:
    """Peers hear nothing of it; the disk is as it was."""
    before = boot("two")
    on("two", "echo kept > /root/file")
    with socket.create_connection(("two", 22), timeout=5) as link:
        assert link.recv(4) == b"SSH-"
        hosts("crash", "two")
        link.settimeout(1)
        with pytest.raises(socket.timeout):
            while link.recv(4096):
                pass
    assert not reaches("two")
    hosts("up", "two")
    assert boot("two") != before
    assert on("two", "cat /root/file") == "kept"


@pytest.mark.parametrize("name", ["two", "four"])
def test_services_start_after_a_power_cut(name: str) -> None:
    """What is started in a new control group lives, with each Debian."""
    hosts("crash", name)
    hosts("up", name)
    assert on(name, "systemd-run --quiet --wait --pipe echo started") == "started"
    assert on(name, "systemctl is-system-running --wait") == "running"


def test_cut_cable() -> None:
    """A host without its cable is not reached by anybody until it is healed."""
    hosts("cut", "four")
    assert not reaches("four")
    hosts("heal", "four")
    assert eventually(lambda: reaches("four"))


def test_cut_between_two() -> None:
    """Two hosts lose each other while both are reached from here, and they reach others."""
    ping = "ping -q -c 1 -W 1 {} >/dev/null && echo yes || echo no"
    assert on("one", ping.format("three")) == "yes"
    hosts("cut", "one", "three")
    assert on("one", ping.format("three")) == "no"
    assert on("three", ping.format("one")) == "no"
    assert on("one", ping.format("four")) == "yes"
    hosts("heal", "one", "three")
    assert on("one", ping.format("three")) == "yes"


def test_taken_away() -> None:
    """A host that was taken away is made anew the next time."""
    on("one", "echo gone > /root/file")
    hosts("down", "one")
    assert "one" not in hosts("list").split()
    hosts("up", "one=bookworm")
    assert on("one", "test -e /root/file || echo no") == "no"


def test_unknown_host() -> None:
    """A name that is not there is an error that tells which are."""
    with pytest.raises(AssertionError, match="there is no host five; there are: "):
        hosts("crash", "five")
