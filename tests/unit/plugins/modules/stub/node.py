# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fabrics of stub nodes for tests: folders, quirks, what is in use, and what was run."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub import fakefs

HERE = Path(__file__).resolve().parent

#: Commands that change something. The rest only reads.
CHANGING = frozenset(
    {
        *("connect", "add", "remove", "available", "unavailable", "add-filter", "available-filter"),
        *("unavailable-filter", "scan", "borrow", "return", "enable-p2p", "disable-p2p", "config"),
    }
)

#: The quirks of a node, as they are unless a test says otherwise.
DEFAULTS: Dict[str, Any] = {
    "adapter": 0,
    "generation": "current",  # of the output of list: current, id-prefix, 2018
    "fdid": "arithmetic",  # or counter
    "strict": False,  # repeating a command is an error
    "repeat_status": {},  # command -> another status for that error
    "reverse": False,  # list in another order
    "lent_words": {"owner": None, "self": None, "other": None},  # list's word for a borrowed device; NODE is filled in
    "get_vdev_absent": {"exit": 19, "text": "Device is not borrowed"},
    "show": {"drop": [], "extra": {}, "reverse": False, "local_bdf": None, "users": 0, "asks_owner": False},
    "sysfs_follows": True,  # available and unavailable move driver links
    "vdev_sysfs": True,  # a borrowed device shows up in sysfs
    "vdev_driver": "own",  # "own", None or a name
    "vdev_delay": 0,  # seconds until the driver is there
    "settle": {},  # command -> calls until its effect shows
    "vanish": [],  # fdids that leave the pool after they were listed
    "transparent": [],  # hardware that scan finds
    "parameters": ["autoborrow_transparent", "verbose"],
    "dis_config": "works",
    "disinfo": {},  # host -> the node id that is printed (text), or an exit status
    "rules": [],  # faults, see rule()
}

#: Deliberately different sets of quirks; the suites run over all of them.
VARIANTS: Dict[str, Dict[str, Any]] = {
    "lenient-current": {},
    "strict-id-prefix": {
        "generation": "id-prefix",
        "fdid": "counter",
        "strict": True,
        "reverse": True,
        "sysfs_follows": False,
        "get_vdev_absent": {"exit": 0, "text": "N/A"},
        "lent_words": {"owner": "busy by NODE", "self": "in use", "other": "busy by NODE"},
        "show": {"reverse": True, "extra": {"Firmware": "1.2: [beta]", "Link": "Gen4 x4"}, "drop": ["Physical slot"]},
    },
    "strict-2018": {
        "generation": "2018",
        "fdid": "counter",
        "strict": True,
        "repeat_status": {"connect": 17, "add": 114},
        "get_vdev_absent": {"exit": 22, "text": ""},
        "lent_words": {"owner": "unavailable", "self": "in use", "other": "unavailable"},
        "show": {"drop": ["Location", "Adapter", "Local users"], "users": 3},
    },
    "no-local-bdf": {
        "lent_words": {"owner": "in use", "self": "available", "other": "in use"},
        "get_vdev_absent": {"exit": 0, "text": ""},
        "show": {"local_bdf": "N/A", "drop": ["Location"], "users": 1},
    },
}


def nvme(bdf: str, unit: int, **more: Any) -> Dict[str, Any]:
    return hardware(bdf, "8086", "f1a5", "010802", "nvme", unit, **more)


def gpu(bdf: str, unit: int, **more: Any) -> Dict[str, Any]:
    return hardware(bdf, "10de", "0ff3", "030000", "gpu", unit, **more)


def nic(bdf: str, unit: int, **more: Any) -> Dict[str, Any]:
    return hardware(bdf, "15b3", "1017", "020000", "net", unit, **more)


CLASSES = {
    "01": "Non-Volatile memory controller",
    "02": "Ethernet controller",
    "03": "VGA compatible controller",
    "06": "PCI bridge",
    "12": "Processing accelerators",
}
NAMES = {
    "8086": "Intel Corporation Device",
    "10de": "NVIDIA Corporation GK107GL [Quadro K420] (rev a1)",
    "15b3": "Mellanox Technologies MT27800 Family [ConnectX-5]",
}
DRIVERS = {"nvme": "nvme", "net": "mlx5_core", "gpu": "nouveau"}


def hardware(
    bdf: str, vendor: str, device_id: str, pci_class: str, kind: str, unit: int, **more: Any
) -> Dict[str, Any]:
    """A device as ``fakefs`` describes it. Serial and UUID follow from address and unit, so that they are stable."""
    return {
        "bdf": bdf,
        "vendor": vendor,
        "device": device_id,
        "class": pci_class,
        "subvendor": vendor,
        "subdevice": f"{0x1000 + unit:04x}",
        "kind": kind,
        "unit": unit,
        "name": NAMES.get(vendor, "Unknown vendor Device"),
        "class_name": CLASSES.get(pci_class[:2], "Unclassified device"),
        "serial": f"S{unit:03d}-{bdf.replace(':', '-')}",
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{bdf} {unit}")),
        "driver": DRIVERS.get(kind),
        **more,
    }


class Fabric:
    """Stub nodes that share devices; everything lives below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_file = folder / "fabric.json"
        self.nodes: Dict[int, Node] = {}
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "library"
        library.mkdir()
        for name in ("smartio_stub.py", "fakefs.py"):
            shutil.copy(HERE / name, library / name)
        empty: Dict[str, Any] = {
            "nodes": {},
            "connections": [],
            "down": [],
            "trees": [],
            "devices": {},
            "next": {},
            "calls": {},
            "fired": {},
            "vdevs": {},
            "p2p": [],
            "settings": {},
        }
        self.state_file.write_text(json.dumps(empty))

    @contextlib.contextmanager
    def edit(self) -> Iterator[Dict[str, Any]]:
        """The state of the fabric, to look at or to change, under the lock that the tools take."""
        with open(f"{self.state_file}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(self.state_file.read_text())
            yield state
            self.state_file.write_text(json.dumps(state))

    @property
    def state(self) -> Dict[str, Any]:
        with self.edit() as state:
            return dict(state)

    def node(self, node_id: int, hardware: Sequence[Dict[str, Any]] = (), **quirks: Any) -> Node:
        node = Node(self, node_id, list(hardware), quirks)
        self.nodes[node_id] = node
        return node

    def connect(self, lender: int, borrower: int) -> None:
        with self.edit() as state:
            state["connections"].append([lender, borrower, 0])

    def link_down(self, node_id: int, down: bool = True) -> None:
        with self.edit() as state:
            state["down"] = [node for node in state["down"] if node != node_id] + ([node_id] if down else [])

    def lend(self, lender: int, *bdfs: str, state: str = "available") -> List[str]:
        """Put devices in the pool without the tool, as another administrator would; the fdids."""
        fdids = []
        with self.edit() as data:
            for bdf in bdfs:
                found = next(one for one in data["nodes"][str(lender)]["hardware"] if one["bdf"] == bdf)
                fdid = self._new_fdid(data, lender, bdf)
                data["devices"][fdid] = {
                    "owner": lender,
                    "bdf": bdf,
                    "hardware": found,
                    "state": state,
                    "borrowers": {},
                }
                fdids.append(fdid)
                node = self.nodes[lender]
                if state == "available" and node.config["sysfs_follows"]:
                    fakefs.unbind(str(node.sysfs), str(node.dev), found)
        return fdids

    def _new_fdid(self, data: Dict[str, Any], lender: int, bdf: str) -> str:
        if self.nodes[lender].config["fdid"] == "arithmetic":
            return f"{(lender << 16) | (int(bdf[5:7], 16) << 8) | (int(bdf[8:10], 16) << 3) | int(bdf[11]):x}"
        count: int = data["next"].get(str(lender), 0)
        data["next"][str(lender)] = count + 2
        return f"{(lender << 16) | count:x}"

    def borrowers(self, fdid: str) -> List[int]:
        return sorted(int(node) for node in self.state["devices"][fdid]["borrowers"])

    def set_device(self, fdid: str, **values: Any) -> None:
        with self.edit() as state:
            state["devices"][fdid].update(values)

    def lent_to(self, fdid: str, node_id: int) -> None:
        """Some node of the fabric, not one of the stub's, borrowed the device."""
        with self.edit() as state:
            device = state["devices"][fdid]
            device["borrowers"][str(node_id)] = {"hardware": device["hardware"], "from": 0, "fdid": fdid}

    def forget_borrow(self, fdid: str, status: int, vdev_status: int = 0) -> None:
        """The lender was restarted, and lends the device again. Its borrower still holds it, dead, until it returns it.

        ``status`` is what borrow answers there, ``vdev_status`` what get-vdev does (0: as for any other device).
        """
        with self.edit() as state:
            device = state["devices"][fdid]
            ((node, held),) = device["borrowers"].items()
            device["dead"] = {node: {**held, "status": status, "vdev_status": vdev_status}}
            device["borrowers"] = {}

    def close(self) -> None:
        for node in self.nodes.values():
            node.end_hung()


class Node:
    """One host: its tool, sysfs, proc, dev and state_dir."""

    _rule_ids = itertools.count()

    def __init__(self, fabric: Fabric, node_id: int, devices: List[Dict[str, Any]], quirks: Dict[str, Any]) -> None:
        self.fabric = fabric
        self.node_id = node_id
        self.folder = fabric.folder / f"node{node_id}"
        self.tool = self.folder / "bin" / "smartio_tool"
        self.sysfs, self.proc, self.dev = self.folder / "sys", self.folder / "proc", self.folder / "dev"
        self.state_dir = self.folder / "run"
        self.log = self.folder / "calls.jsonl"
        self.hung = self.folder / "hung"
        self.devices = {one["bdf"]: one for one in devices}
        self.config: Dict[str, Any] = {}
        self._mounts = ["20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
        self._swaps: List[str] = []
        self._routes: List[str] = []
        self._make(quirks)
        with fabric.edit() as state:
            state["nodes"][str(node_id)] = {"hardware": devices}

    # - making

    def _make(self, quirks: Dict[str, Any]) -> None:
        (self.folder / "bin").mkdir(parents=True)
        self.log.touch()
        self.hung.touch()
        python = os.path.realpath(sys.executable)
        library = self.fabric.folder / "library"
        launcher = (
            f"#!{python} -IS\nimport sys\nsys.path.insert(0, {str(library)!r})\nimport smartio_stub\n"
            f"sys.exit(smartio_stub.main({str(self.tool.parent)!r}))\n"
        )
        for name in ("smartio_tool", "dis_config", "disinfo"):
            path = self.tool.parent / name
            path.write_text(launcher)
            path.chmod(0o755)
        self.config = {**DEFAULTS, "node_id": self.node_id}
        self.knobs(**quirks)
        fakefs.make_root(str(self.sysfs))
        self.dev.mkdir()
        for device in self.devices.values():
            fakefs.add_device(str(self.sysfs), str(self.dev), device)
        self.load_module()
        for folder in ("1/fd", "1/net", "1/ns", "sys/kernel/random"):
            (self.proc / folder).mkdir(parents=True)
        (self.proc / "self").symlink_to("1")
        (self.proc / "mounts").symlink_to("self/mounts")
        (self.proc / "net").symlink_to("self/net")
        (self.proc / "1" / "comm").write_text("init\n")
        (self.proc / "1" / "stat").write_text("1 (init) S 0 1 1 0 -1 4194560\n")
        (self.proc / "1" / "cmdline").write_text("/sbin/init\0")
        (self.proc / "1" / "net" / "ipv6_route").write_text("")
        self.new_boot_id()
        self._write_proc()

    def _write_proc(self) -> None:
        (self.proc / "1" / "mountinfo").write_text("".join(line + "\n" for line in self._mounts))
        fields = [line.split(" - ") for line in self._mounts]
        mounts = "".join(f"{right.split()[1]} {left.split()[4]} {right.split()[0]} rw 0 0\n" for left, right in fields)
        (self.proc / "1" / "mounts").write_text(mounts)
        (self.proc / "swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n" + "".join(self._swaps))
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        (self.proc / "1" / "net" / "route").write_text(head + "".join(self._routes))

    def knobs(self, **quirks: Any) -> None:
        """Change quirks; ``show`` and ``lent_words`` are merged, the others replaced."""
        unknown = set(quirks) - set(DEFAULTS)
        assert not unknown, f"no such quirks: {unknown}"
        for name, value in quirks.items():
            merge = name in ("show", "lent_words")
            self.config[name] = {**self.config[name], **value} if merge else value
        paths = {"state": self.fabric.state_file, "log": self.log, "hung": self.hung, "sysfs": self.sysfs}
        places = {name: str(path) for name, path in {**paths, "dev": self.dev}.items()}
        new = self.tool.parent / "stub.json.new"
        new.write_text(json.dumps({**self.config, **places}))
        new.replace(self.tool.parent / "stub.json")

    def rule(self, command: str, do: str, **more: Any) -> None:
        """A fault of a command (``*``: of all): ``do`` is one of

        exit (``exit``, ``err``, ``out``), hang, sleep (``seconds``), signal
        (``signal``), flood (``megabytes``), binary, ask, lie (status 0, nothing done), intrude (``owner``,
        ``hardware``: another lender adds a device just before). ``arg`` limits it to calls with that argument,
        ``skip`` lets the first calls pass, ``times`` says how many it meets. With ``done`` the fault comes after the
        work.
        """
        known = {"exit", "hang", "sleep", "signal", "flood", "binary", "ask", "lie", "intrude"}
        assert do in known, do
        rule = {"command": command, "do": do, "id": str(next(self._rule_ids)), **more}
        self.knobs(rules=[*self.config["rules"], rule])

    def no_rules(self) -> None:
        self.knobs(rules=[])

    @property
    def args(self) -> Dict[str, Any]:
        """The options that point a module at this node."""
        return {
            "tool": str(self.tool),
            "sysfs": str(self.sysfs),
            "proc": str(self.proc),
            "dev": str(self.dev),
            "state_dir": str(self.state_dir),
        }

    # - what is in use

    def _number(self, block: str) -> str:
        return (self.sysfs / "class/block" / block / "dev").read_text().strip()

    def mount(self, block: str, where: str) -> None:
        number = self._number(block)
        self._mounts.append(f"{30 + len(self._mounts)} 20 {number} / {where} rw shared:2 - ext4 /dev/{block} rw")
        self._write_proc()

    def unmount(self, where: str) -> None:
        self._mounts = [line for line in self._mounts if line.split()[4] != where]
        self._write_proc()

    def root_on(self, block: str) -> None:
        self._mounts[0] = f"20 1 {self._number(block)} / / rw,relatime shared:1 - ext4 /dev/{block} rw"
        self._write_proc()

    def swap_on(self, block: str) -> None:
        self._swaps.append(f"/dev/{block}\tpartition\t1048572\t0\t-2\n")
        self._write_proc()

    def hold(self, block: str, holder: str) -> None:
        """``holder`` (such as md127) is stacked on ``block``."""
        folder = self.sysfs / "devices/virtual/block" / holder
        fakefs.write(str(folder / "dev"), "9:127\n")
        fakefs.write(str(folder / "size"), "2048\n")
        (folder / "holders").mkdir(exist_ok=True)
        fakefs.link(str(self.sysfs / "class/block" / holder), str(folder))
        fakefs.link(str(self.sysfs / "block" / holder), str(folder))
        fakefs.link(str(self.sysfs / "dev/block/9:127"), str(folder))
        real = (self.sysfs / "class/block" / block).resolve()
        fakefs.link(str(real / "holders" / holder), str(folder))
        fakefs.link(str(folder / "slaves" / block), str(real))

    def interface_up(self, name: str, up: bool = True) -> None:
        folder = self.sysfs / "class/net" / name
        (folder / "flags").write_text("0x1003\n" if up else "0x1002\n")
        (folder / "operstate").write_text("up\n" if up else "down\n")

    def route(self, name: str, destination: str = "00000000") -> None:
        mask = "00000000" if destination == "00000000" else "00FFFFFF"
        self._routes.append(f"{name}\t{destination}\t0100A8C0\t0003\t0\t0\t100\t{mask}\t0\t0\t0\n")
        self._write_proc()

    def bond(self, name: str, member: str) -> None:
        """``member`` belongs to the bond ``name``."""
        folder = self.sysfs / "devices/virtual/net" / name
        fakefs.make_interface(str(self.sysfs), str(folder), 90)
        real = (self.sysfs / "class/net" / member).resolve()
        fakefs.link(str(real / "master"), str(folder))
        fakefs.link(str(real / f"upper_{name}"), str(folder))
        fakefs.link(str(folder / f"lower_{member}"), str(real))

    def driver(self, bdf: str) -> Optional[str]:
        path = self.sysfs / "bus/pci/devices" / bdf / "driver"
        return os.path.basename(os.readlink(path)) if path.is_symlink() else None

    # - the kernel module and the boot

    def load_module(self) -> None:
        fakefs.write(str(self.sysfs / "module/dis_smartio/refcnt"), "0\n")
        fakefs.write(str(self.sysfs / "module/dis_smartio/initstate"), "live\n")

    def unload_module(self) -> None:
        fakefs.remove_tree(str(self.sysfs / "module/dis_smartio"))

    def parameter_file(self, name: str, value: str) -> Path:
        path = self.sysfs / "module/dis_smartio/parameters" / name
        fakefs.write(str(path), value + "\n")
        return path

    def new_boot_id(self) -> None:
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    def forget(self) -> None:
        """What SmartIO keeps on this node is gone, as after a reboot or a reload of its module."""
        with self.fabric.edit() as state:
            state["connections"] = [one for one in state["connections"] if one[0] != self.node_id]
            state["devices"] = {
                fdid: found for fdid, found in state["devices"].items() if found["owner"] != self.node_id
            }
            state["settings"].pop(str(self.node_id), None)
            for device in state["devices"].values():
                mine = device["borrowers"].pop(str(self.node_id), None)
                if mine is not None:
                    fakefs.remove_device(str(self.sysfs), str(self.dev), mine["hardware"])
        for device in self.devices.values():
            if device.get("driver"):
                fakefs.bind(str(self.sysfs), str(self.dev), device)

    def reload_module(self) -> None:
        """The kernel module was unloaded and loaded again: its folder is another one."""
        self.forget()
        keep = self.sysfs / "module/keeps_the_inode"
        (self.sysfs / "module/dis_smartio").rename(keep)
        self.load_module()
        fakefs.remove_tree(str(keep))

    def reboot(self) -> None:
        self.reload_module()
        self.new_boot_id()
        if self.state_dir.exists():
            shutil.rmtree(self.state_dir)

    # - the ledger

    def ledger_files(self) -> List[Path]:
        return [path for path in sorted(self.state_dir.rglob("*")) if path.is_file() and path.stat().st_size]

    def write_ledger(self, content: bytes) -> None:
        """Overwrite whatever the ledger consists of."""
        files = self.ledger_files()
        assert files, f"no ledger in {self.state_dir}"
        for path in files:
            path.write_bytes(content)

    def lose_ledger(self) -> None:
        shutil.rmtree(self.state_dir)

    # - what was run

    def mark(self) -> int:
        return len(self.log.read_text().splitlines())

    def calls(self, since: int = 0) -> List[Dict[str, Any]]:
        """The logged calls of both commands."""
        return [json.loads(line) for line in self.log.read_text().splitlines()[since:]]

    def commands(self, since: int = 0) -> List[str]:
        """The calls as text, such as ``available --force 0000:81:00.0`` or ``dis_config -gn``."""
        argvs = [call["argv"] for call in self.calls(since)]
        return [" ".join(argv[1:] if argv[0] == "smartio_tool" else argv) for argv in argvs]

    def changing(self, since: int = 0) -> List[str]:
        return [command for command in self.commands(since) if command.split(" ")[0] in CHANGING]

    def wait_for_call(self, command: str, since: int = 0, timeout: float = 20) -> int:
        """Wait until a command was called; its process id."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for call in self.calls(since):
                if call["argv"][1:2] == [command]:
                    return int(call["pid"])
            time.sleep(0.02)
        raise AssertionError(f"{command} was not called: {self.commands(since)}")

    def hung_pids(self) -> List[int]:
        return [int(line) for line in self.hung.read_text().split()]

    def alive(self, pid: int) -> bool:
        """Whether a process of this stub still runs; a pid that now is somebody else's does not count."""
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            return status != "Z" and str(self.tool).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, IndexError):
            return False

    def end_hung(self) -> None:
        for pid in self.hung_pids():
            if self.alive(pid):
                os.kill(pid, signal.SIGKILL)

    # - the pool

    def pool(self) -> Dict[str, str]:
        """What of this node is in the pool: BDF -> available or unavailable."""
        devices = self.fabric.state["devices"].values()
        return {found["bdf"]: found["state"] for found in devices if found["owner"] == self.node_id}

    def fdid(self, bdf: str) -> str:
        devices = self.fabric.state["devices"].items()
        found: List[str] = [fdid for fdid, one in devices if (one["owner"], one["bdf"]) == (self.node_id, bdf)]
        assert len(found) == 1, found
        return found[0]

    def borrowed(self) -> List[str]:
        """The fdids that this node has borrowed."""
        devices = self.fabric.state["devices"].items()
        return sorted(fdid for fdid, device in devices if str(self.node_id) in device["borrowers"])

    def connections(self) -> List[List[int]]:
        return [[peer, adapter] for one, peer, adapter in self.fabric.state["connections"] if one == self.node_id]
