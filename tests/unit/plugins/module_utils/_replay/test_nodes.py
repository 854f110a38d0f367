# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packed program on software nodes, as a service manager runs it: killed, too early, too late, once a boot."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._replay import store
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.bundle import SHARING
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import (
    DEFAULT_PLACES,
    BorrowedEntry,
    End,
    LentEntry,
    PairEntry,
    Sharing,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.connections import Connection
from ansible_collections.iofabric.sharing.tests.unit.software_node.conftest import (
    NVME,
    QUADRO,
    ClusterHandle,
    NodeHandle,
    poll,
)

A, B, C = "0000:81:00.0", "0000:82:00.0", "0000:03:00.0"
DEVICES: List[Dict[str, Any]] = [
    {"bdf": "81:00.0", "serial": "S1", **NVME},
    {"bdf": "82:00.0", "serial": "S2", **NVME},
    {"bdf": "03:00.0", **QUADRO},
]


class Service:
    """The program on one node, with what is recorded for it."""

    def __init__(self, folder: Path, node: NodeHandle, program: str) -> None:
        self.folder = folder
        self.node = node
        self.program = program
        self.state_dir = folder / "state"
        self.ready = folder / "ready"
        folder.mkdir()

    def record(self, **parts: Any) -> None:
        there = {"sysfs": self.node.sysfs, "proc": self.node.folder / "proc", "dev": self.node.dev}
        named = {name: str(path) for name, path in there.items()}
        tool = self.node.command("smartio_tool")[0]
        places = dataclasses.replace(DEFAULT_PLACES, tool=tool, state_dir=str(self.state_dir), **named)
        sharing = Sharing(places=places, **{name: tuple(entries) for name, entries in parts.items()})
        store.write(str(self.folder / "sharing.json"), sharing)

    def start(self, *words: str, notify: Optional[str] = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", self.program, "--file", str(self.folder / "sharing.json")]
        command += ["--run-dir", str(self.folder / "run"), *(words or ("replay",))]
        env = {"PATH": os.environ.get("PATH", os.defpath), **({"NOTIFY_SOCKET": notify} if notify else {})}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    def run(self, *words: str, seconds: float = 120) -> List[str]:
        """Run the program to its end; its lines and, as the last one, its exit status."""
        process = self.start(*words)
        try:
            out, _none = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return [*out.splitlines(), str(process.returncode)]

    def power_cut(self) -> None:
        """The node forgets everything, and so does what lies in /run."""
        self.node.cluster.do("kill", self.node.name)
        for path in [*(self.folder / "run").glob("*"), *self.state_dir.glob("*")]:
            path.unlink()
        self.node.cluster.do("start", self.node.name)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Dict[str, Service]]:
    """A lender and a borrower that is granted all its devices."""
    cluster = ClusterHandle(tmp_path / "nodes")
    nodes = [{"name": "lender", "node_id": 4, "devices": DEVICES}, {"name": "borrower", "node_id": 8}]
    cluster.write(nodes)
    cluster.up()
    program = SHARING.write(str(tmp_path))
    made = {name: Service(tmp_path / name, cluster[name], program) for name in ("lender", "borrower")}
    ids = [{"vendor_id": one["vendor_id"], "device_id": one["device_id"]} for one in DEVICES]
    made["lender"].record(
        connections=[Connection(8, 0)],
        lent=[
            LentEntry(A, serial="S1", **ids[0]),
            LentEntry(B, serial="S2", **ids[1]),
            LentEntry(C, **ids[2]),
        ],
    )
    made["borrower"].record(
        borrowed=[
            BorrowedEntry("1", "scratch", 4, A, serial="S1", **ids[0]),
            BorrowedEntry("2", "scratch", 4, B, serial="S2", **ids[1]),
            BorrowedEntry("3", "cuda", 4, C, **ids[2]),
        ],
        pairs=[PairEntry(End(4, A), End(4, C))],
    )
    yield made
    cluster.do("down")


def vdevs(service: Service) -> List[str]:
    """The virtual devices of a borrower, those that commands know."""
    return sorted(
        service.node.ok("get-vdev", fdid).strip()
        for fdid in ("48100", "48200", "40300")
        if service.node.status("get-vdev", fdid) == 0
    )


def test_a_borrower_waits_for_its_lender(services: Dict[str, Service]) -> None:
    """Whoever was first: its devices are there when the lender is back, and a second run does nothing."""
    lender, borrower = services["lender"], services["borrower"]
    for _boot in range(2):
        waiting = borrower.start()
        assert waiting.stdout is not None
        assert "4 of 4 entries" in waiting.stdout.readline()
        assert "not yet, it is not in the pool yet" in waiting.stdout.readline()
        lines = lender.run()
        assert lines[-2:] == ["4 of 4 entries are back", "0"]
        out, _none = waiting.communicate(timeout=60)
        assert waiting.returncode == 0
        assert out.splitlines()[-1] == "4 of 4 entries are back"
        assert len(vdevs(borrower)) == 3
        assert borrower.run() == ["4 of 4 entries are back", "0"]
        assert borrower.run("check") == ["0"]
        assert [line[:7].strip() for line in borrower.run("status")[1:-1]] == ["ok"] * 4
        for service in (lender, borrower):
            service.power_cut()


@pytest.mark.parametrize("name", ["lender", "borrower"])
def test_killed_at_any_moment_it_goes_on_where_it_was(services: Dict[str, Service], name: str) -> None:
    """Nothing is done twice that cannot be, nothing is half written, nothing is forgotten."""
    service, dice = services[name], random.Random(name)  # noqa: S311 - the same moments every time
    if name == "borrower":
        assert services["lender"].run()[-1] == "0"
    for _time in range(12):
        process = service.start()
        try:
            process.wait(dice.uniform(0.1, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate(timeout=20)
        for file in (service.folder / "run" / "replayed.json", service.state_dir / "ledger.json"):
            assert not file.exists() or json.loads(file.read_text())["format"] == 1
    lines = service.run()
    assert lines[-2:] == ["4 of 4 entries are back", "0"], lines
    if name == "borrower":
        found = vdevs(service)
        assert len(found) == len(set(found)) == 3
        names = {path.name for path in (service.node.sysfs / "bus/pci/devices").glob("0000:04:*")}
        assert names == set(found)
    else:
        listed = service.node.ok("list")
        assert listed.count("[available]") == 3
    assert service.run("check") == ["0"]


def test_sigterm_ends_it_at_once(services: Dict[str, Service]) -> None:
    borrower = services["borrower"]
    waiting = borrower.start()
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.stdout.readline()
    began = time.monotonic()
    waiting.terminate()
    rest, _none = waiting.communicate(timeout=20)
    assert waiting.returncode == -signal.SIGTERM
    assert time.monotonic() - began < 5
    assert "Traceback" not in rest
    # Within a command, too: what hangs is ended with it.
    borrower.node.fault("hang=list:child")
    hanging = borrower.start()
    assert hanging.stdout is not None
    assert "node 8" in hanging.stdout.readline()
    hung = poll(lambda: _children(hanging.pid))
    assert hung
    hanging.terminate()
    hanging.communicate(timeout=20)
    assert hanging.returncode == -signal.SIGTERM
    assert poll(lambda: not any(_is_alive(pid) for pid in hung))


def _children(pid: int) -> List[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_service_manager_is_told(services: Dict[str, Service], tmp_path: Path) -> None:
    """Ready after the first pass, and what is waited for; a node that is not up yet is no failure."""
    lender, borrower = services["lender"], services["borrower"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        borrower.node.cluster.do("kill", "borrower")
        waiting = borrower.start(notify=str(tmp_path / "notify"))
        told = [manager.recv(4096).decode() for _message in range(2)]
        assert told[0].startswith("STATUS=waiting for 4 of 4 entries: borrowed device 0000:81:00.0 of node 4")
        assert told[1] == "READY=1"
        borrower.node.cluster.do("start", "borrower")
        assert lender.run()[-1] == "0"
        out, _none = waiting.communicate(timeout=120)
        assert waiting.returncode == 0, out
        while not told[-1].startswith("STATUS=4 of 4"):
            told.append(manager.recv(4096).decode())
        assert told.count("READY=1") == 1
    assert len(vdevs(borrower)) == 3


def test_a_restart_of_the_node_is_a_reload_of_its_module(services: Dict[str, Service]) -> None:
    lender = services["lender"]
    assert lender.run()[-1] == "0"
    lender.node.cluster.do("kill", "lender")
    lender.node.cluster.do("start", "lender")
    assert lender.node.ok("list").strip() == ""
    lines = lender.run()
    assert any("loaded, since the last replay" in line for line in lines)
    assert lines[-2:] == ["4 of 4 entries are back", "0"]
    assert lender.node.ok("list").count("[available]") == 3


def test_a_link_that_is_cut_delays_only_what_needs_it(services: Dict[str, Service]) -> None:
    lender = services["lender"]
    lender.node.fault("link_down=8")
    waiting = lender.start()
    assert waiting.stdout is not None
    lines = [waiting.stdout.readline() for _line in range(5)]
    assert lender.node.ok("list").count("[available]") == 3
    assert any("node 4 cannot connect to node 8" in line and "EIO" in line for line in lines)
    lender.node.fault("clear")
    out, _none = waiting.communicate(timeout=60)
    assert (waiting.returncode, out.splitlines()[-1]) == (0, "4 of 4 entries are back")


@pytest.mark.parametrize("content", ["{", '{"format": 2}'])
def test_a_damaged_file_is_one_line(services: Dict[str, Service], content: str) -> None:
    lender = services["lender"]
    (lender.folder / "sharing.json").write_text(content)
    for command in ("replay", "check", "status"):
        lines = lender.run(command)
        assert lines[-1] == "1"
        assert len(lines) == 2
        assert "damaged" in lines[0]
    assert lender.node.ok("list").strip() == ""


def test_the_program_is_complete_and_the_same_every_time(tmp_path: Path) -> None:
    path = SHARING.write(str(tmp_path))
    assert SHARING.build() == Path(path).read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert names == sorted(names)
    assert not any("bundle" in name or "ansible" in name.replace("iofabric", "") for name in names)
    for package in ("_cplane", "_pci", "_replay", "_smartio"):
        assert f"iofabric_sharing/{package}/__init__.py" in names
    done = subprocess.run([sys.executable, "-I", path, "--help"], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("replay", "check", "status", "serve"))
    done = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
