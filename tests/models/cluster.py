# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters of software nodes that are started once and reset: what they are, what was run, what is in use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.iofabric.sharing.tests.models.fabric import CHANGING
from ansible_collections.iofabric.sharing.tests.unit.software_node.conftest import ClusterHandle
from software_node import tool

LENDERS = {"lender": 8, "other": 12}
NODES = {**LENDERS, "borrower": 4}
_NVME = {"vendor_id": "8086", "device_id": "f1a5", "class": "010802"}
DEVICES: Dict[str, List[Dict[str, Any]]] = {
    "lender": [
        {"bdf": "01:00.0", **_NVME, "serial": "S1", "iommu_group": 1},
        {"bdf": "02:00.0", **_NVME, "serial": "S2", "iommu_group": 2},
        {"bdf": "02:00.1", "vendor_id": "10de", "device_id": "0ff3", "class": "030000", "driver": "nvidia",
         "iommu_group": 2},
        {"bdf": "03:00.0", "vendor_id": "8086", "device_id": "1572", "class": "020000", "driver": "i40e",
         "sriov": {"totalvfs": 3}},
    ],
    "other": [{"bdf": "01:00.0", **_NVME, "serial": "S5"}],
    "borrower": [],
}  # fmt: skip
TREE = [{"adapter": 0, "devices": [{"bdf": "0b:00.0", **_NVME, "serial": "S7"}]}]


class Node:
    """One node, asked over its socket: a tool that is a process costs thirty times as much."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.sysfs, self.proc = folder / "sysfs", folder / "proc"
        self.state_dir = folder.parent / f"{name}.run"
        self.args = {
            "tool": str(folder / "sbin/smartio_tool"),
            "sysfs": str(self.sysfs),
            "proc": str(self.proc),
            "dev": str(folder / "dev"),
            "state_dir": str(self.state_dir),
            "timeout": 5,
        }

    def ask(self, *args: str, program: str = "smartio_tool") -> Tuple[int, str]:
        """Exit status and standard output of a command."""
        link = tool.connect(str(self.folder))
        try:
            tool._send(link, b"A", b"\0".join(word.encode() for word in (program, *args)))
            text = b""
            while True:
                letter, payload = tool._receive(link)
                if letter == b"X":
                    return int(payload), text.decode(errors="replace")
                text += payload if letter == b"O" else b""
                if letter == b"Q":
                    tool._send(link, b"L", b"")
        finally:
            link.close()

    def fault(self, *settings: str) -> None:
        status, _text = self.ask(*settings, program="fault")
        assert status == 0, settings

    def mark(self) -> int:
        return (self.folder / "log").stat().st_size

    def changing(self, mark: int) -> List[str]:
        """The changing commands that were run since, as they are written."""
        with open(self.folder / "log", errors="replace") as log:
            log.seek(mark)
            lines = [line.split(" ", 2)[1:] for line in log]
        calls = [rest[1].rpartition(" -> ")[0] for rest in lines if rest[0] == "smartio_tool"]
        return [call for call in calls if call.split(" ")[0] in CHANGING]

    def ledger(self) -> Optional[bytes]:
        path = self.state_dir / "ledger.json"
        return path.read_bytes() if path.exists() else None

    def pool(self) -> Dict[str, str]:
        """Fdid -> the last bracket, of every device that the node sees."""
        lines = self.ask("list")[1].splitlines()
        return {line.removeprefix("ID ").split(":")[0]: line.rpartition("[")[2].rstrip("]") for line in lines}

    def shown(self, fdid: str) -> Dict[str, str]:
        pairs = [line.partition(": ") for line in self.ask("show", fdid)[1].splitlines()]
        return {key: value for key, _colon, value in pairs}

    def own(self) -> Dict[str, Tuple[str, str]]:
        """BDF -> fdid and state, of the node's own devices in the pool."""
        found = {}
        for fdid, word in self.pool().items():
            shown = self.shown(fdid)
            if shown.get("Location") == "local" and shown.get("NodeId") == str(NODES[self.name]):
                found[shown["Remote BDF"]] = (fdid, word)
        return found

    def driver(self, bdf: str) -> str:
        link = self.sysfs / "bus/pci/devices" / bdf / "driver"
        return os.path.basename(os.readlink(link)) if link.is_symlink() else ""

    def vdevs(self) -> Dict[str, str]:
        """Fdid -> virtual BDF of what is borrowed here."""
        asked = {fdid: self.ask("get-vdev", fdid) for fdid in self.pool()}
        return {fdid: text.strip() for fdid, (status, text) in asked.items() if status == 0 and text.strip()}

    def mount(self, bdf: str, where: Optional[str]) -> None:
        """Mount the first disk of a device (None: nothing is mounted any more)."""
        line = ""
        numbers = sorted((self.sysfs / "bus/pci/devices" / bdf).resolve().glob("nvme/*/nvme*n1/dev"))
        if where and numbers:
            line = f"30 20 {numbers[0].read_text().strip()} / {where} rw shared:2 - ext4 /dev/disk rw\n"
        (self.proc / "self/mountinfo").write_text(line)

    def reset(self) -> None:
        """Nothing borrowed, nothing lent, nothing in use, nothing remembered; connections cannot be undone."""
        self.fault("clear")
        self.mount("none", None)
        for fdid in self.vdevs():
            self.ask("return", fdid)
        self.ask("config", "autoborrow_transparent", "0")
        shutil.rmtree(self.state_dir, ignore_errors=True)

    def empty(self) -> None:
        """The second half of a reset, once nobody has borrowed anything: take everything out of the pool."""
        for bdf in self.own():
            self.ask("unavailable", bdf)
            self.ask("remove", bdf)


class Cluster:
    """Three nodes, started once."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._handle = ClusterHandle(folder)
        nodes = [{"name": name, "node_id": number, "devices": DEVICES[name]} for name, number in NODES.items()]
        nodes[-1]["transparent"] = TREE
        self._handle.write(nodes, options)
        self._handle.up()
        self.nodes = {name: Node(name, self._handle.state / name) for name in NODES}

    def reset(self) -> None:
        for node in self.nodes.values():
            node.reset()
        for name in LENDERS:
            self.nodes[name].empty()
            assert self.nodes[name].own() == {}

    def close(self) -> None:
        self._handle.do("down")
