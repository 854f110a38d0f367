# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real nodes for the tests: processes of this machine that talk over TCP on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
import software_node

PACKAGE = Path(software_node.__file__).parent.parent

NVME = {"vendor_id": "8086", "device_id": "f1a5", "class": "010802"}
QUADRO = {
    "vendor_id": "10de",
    "device_id": "0ff3",
    "class": "030000",
    "name": "NVIDIA Corporation GK107GL [Quadro K420] (rev a1)",
    "driver": "nvidia",
}
NET = {"vendor_id": "8086", "device_id": "1572", "class": "020000", "driver": "i40e"}


class NodeHandle:
    """One node of a test cluster."""

    def __init__(self, name: str, folder: Path, cluster: ClusterHandle) -> None:
        self.name = name
        self.folder = folder
        self.cluster = cluster
        self.sysfs = folder / "sysfs"
        self.dev = folder / "dev"

    def command(self, program: str, *args: str) -> List[str]:
        return [str(self.folder / "sbin" / program), *args]

    def run(self, *args: str, stdin: str = "", program: str = "smartio_tool") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(program, *args), input=stdin.encode(), capture_output=True, timeout=20, check=False
        )

    def ok(self, *args: str, stdin: str = "", program: str = "smartio_tool") -> str:
        done = self.run(*args, stdin=stdin, program=program)
        assert done.returncode == 0, (args, done)
        return done.stdout.decode()

    def status(self, *args: str, stdin: str = "") -> int:
        return self.run(*args, stdin=stdin).returncode

    def fault(self, *settings: str) -> str:
        return self.cluster.python("fault", "--dir", str(self.folder), *settings)

    def kmsg(self) -> str:
        return (self.dev / "kmsg").read_text()

    def driver(self, bdf: str) -> str:
        link = self.sysfs / "bus/pci/devices" / bdf / "driver"
        return os.path.basename(os.readlink(link)) if link.is_symlink() else ""


class ClusterHandle:
    """A cluster of local nodes, by its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "cluster.json.in"
        self.state = folder / "c"
        self.nodes: Dict[str, NodeHandle] = {}

    def python(self, *args: str, check: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-m", "software_node", *args],
            cwd=PACKAGE,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert not check or done.returncode == 0, done
        return done.stdout + done.stderr

    def write(self, nodes: List[Dict[str, Any]], defaults: Optional[Dict[str, Any]] = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps({"defaults": defaults or {}, "nodes": nodes}))
        self.nodes = {node["name"]: NodeHandle(node["name"], self.state / node["name"], self) for node in nodes}

    def up(self) -> None:
        self.python("cluster", "up", str(self.file), "--dir", str(self.state))

    def do(self, action: str, *names: str) -> str:
        return self.python("cluster", action, "--dir", str(self.state), *names)

    def __getitem__(self, name: str) -> NodeHandle:
        return self.nodes[name]


def processes_of(folder: Path) -> List[int]:
    """The processes whose command line names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in words and state not in "ZX":
            found.append(int(entry.name))
    return found


def poll(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Waits for a condition; what it gave last."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.01)


@pytest.fixture(name="poll", scope="session")
def poll_fixture() -> Callable[..., Any]:
    return poll


@pytest.fixture(name="processes_of", scope="session")
def processes_fixture() -> Callable[[Path], List[int]]:
    return processes_of


@pytest.fixture(scope="session")
def models() -> Dict[str, Dict[str, str]]:
    return {"nvme": NVME, "quadro": QUADRO, "net": NET}


@pytest.fixture(scope="module")
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ClusterHandle]]:
    """Makes clusters; at the end of the module all are down and no process is left."""
    made: List[ClusterHandle] = []

    def make(nodes: List[Dict[str, Any]], up: bool = True, **defaults: Any) -> ClusterHandle:
        cluster = ClusterHandle(tmp_path_factory.mktemp("nodes"))
        made.append(cluster)
        cluster.write(nodes, defaults)
        if up:
            cluster.up()
        return cluster

    yield make
    for cluster in made:
        cluster.do("down")
        assert poll(lambda folder=cluster.state: not processes_of(folder)), "a process is left"
        left = [path for path in cluster.state.glob("*/*") if path.name in ("node.sock", "sysfs", "dev", "proc")]
        assert left == []
