# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for ``smartio_tool``, ``dis_config`` and ``disinfo``, written from the manual page alone, for tests.

All nodes of a fabric share one state file; every node has a folder with its own copy of the two commands and a
``stub.json`` with its node id and its quirks (``node.DEFAULTS`` lists them). Every call is logged before anything
else happens. The stub is no model of the vendor's software: where the manual is silent, its quirks are there to
show that the modules do not depend on a guess.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import fakefs

EIO, ENOMEM, EBUSY, EEXIST, ENODEV, EINVAL, EISCONN, EALREADY = 5, 12, 16, 17, 19, 22, 106, 114

Device = Dict[str, Any]


class Exit(Exception):
    """Ends the command with this status."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def stdin_kind() -> str:
    try:
        found = os.fstat(0)
    except OSError:
        return "closed"
    if os.isatty(0):
        return "terminal"
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev:
        return "devnull"
    return "other"


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def log_call(config: Dict[str, Any], argv: List[str]) -> None:
    entry = {
        "argv": argv,
        "node": config["node_id"],
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "stdin": stdin_kind(),
        "terminal": has_terminal(),
        "lc_all": os.environ.get("LC_ALL"),
        "time": time.time(),
    }
    line = json.dumps(entry) + "\n"
    target = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(target, line.encode("utf-8", "surrogateescape"))
    os.close(target)


class State:
    """The fabric: a JSON file, held under a lock as long as the object lives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        with open(path) as file:
            self.data: Dict[str, Any] = json.load(file)

    def close(self, save: bool = True) -> None:
        if save:
            with open(self._path + ".new", "w") as file:
                json.dump(self.data, file, indent=1)
            os.replace(self._path + ".new", self._path)
        os.close(self._lock)


# --- faults -----------------------------------------------------------------------------------------------------------


def fire(config: Dict[str, Any], state: State, command: str, args: List[str]) -> Optional[Dict[str, Any]]:
    """The rule that applies to this call, if any; counts how often each was met."""
    for rule in config["rules"]:
        if rule["command"] not in (command, "*"):
            continue
        if "arg" in rule and rule["arg"] not in args:
            continue
        met = state.data["fired"].get(rule["id"], 0) + 1
        state.data["fired"][rule["id"]] = met
        skip = rule.get("skip", 0)
        if met > skip and ("times" not in rule or met <= skip + rule["times"]):
            return dict(rule)
    return None


def hang() -> NoReturn:
    """Ignore every polite request, with a child that keeps the pipes open."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.fork()
    with open(CONFIG["hung"], "a") as file:
        file.write(f"{os.getpid()}\n")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(1)
    os._exit(1)


def ask(question: str) -> bool:
    """Ask on the terminal, or on standard input where there is none. No answer is a no."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        sys.stdout.write(question)
        sys.stdout.flush()
        try:
            return os.read(0, 16).strip().lower() in (b"y", b"yes")
        except OSError:
            return False
    os.write(terminal, question.encode())
    return os.read(terminal, 16).strip().lower() in (b"y", b"yes")


def fault(rule: Dict[str, Any]) -> None:
    """Faults that need no state."""
    kind = rule["do"]
    if kind == "exit":
        sys.stdout.write(rule.get("out", ""))
        raise Exit(rule["exit"], rule.get("err", ""))
    if kind == "hang":
        hang()
    if kind == "sleep":
        time.sleep(rule["seconds"])
    if kind == "signal":
        os.kill(os.getpid(), rule["signal"])
        time.sleep(60)
    if kind == "flood":
        line = "kernel: dis_smartio: something happened again, and again, and again\n" * 1000
        for _count in range(rule["megabytes"] * 1000000 // len(line)):
            (sys.stderr if rule.get("stderr", True) else sys.stdout).write(line)
        if rule.get("exit"):
            raise Exit(rule["exit"])
    if kind == "binary":
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe\x80 not text \xc3(\x00\n")
        sys.stdout.flush()
    if kind == "ask" and not ask("Are you quite sure? [y/N] "):
        raise Exit(1, "Aborted")


# --- the fabric as one node sees it -----------------------------------------------------------------------------------


class Tool:
    """The commands of the manual page, on one node."""

    def __init__(self, config: Dict[str, Any], state: State) -> None:
        self.config = config
        self.state = state.data
        self.me: int = config["node_id"]
        calls = self.state["calls"]
        calls[str(self.me)] = calls.get(str(self.me), 0) + 1
        self.now: int = calls[str(self.me)]
        self.devices: Dict[str, Device] = self.state["devices"]
        for fdid in [fdid for fdid, found in self.devices.items() if found.get("gone_at", self.now + 1) <= self.now]:
            del self.devices[fdid]

    # - helpers

    def settle(self, command: str) -> int:
        return int(self.config["settle"].get(command, 0))

    def repeated(self, command: str, strict: int) -> bool:
        """A command whose effect is there already: an error for the strict, nothing for the lenient."""
        if self.config["strict"]:
            raise Exit(self.config["repeat_status"].get(command, strict), f"{command}: already done")
        return True

    def connected(self, owner: int) -> bool:
        return any(one == owner and other == self.me for one, other, _adapter in self.state["connections"])

    def reachable(self, node: int) -> bool:
        known = str(node) in self.state["nodes"] or node in self.state["trees"]
        return known and node not in self.state["down"]

    def visible(self) -> List[Tuple[str, Device]]:
        found = []
        for fdid, device in self.devices.items():
            own = device["owner"] == self.me or device["owner"] in self.state["trees"]
            if (own or self.connected(device["owner"])) and device.get("hidden_until", 0) <= self.now:
                found.append((fdid, device))
        return found[::-1] if self.config["reverse"] else found

    def word(self, device: Device) -> str:
        """What ``list`` says about a device."""
        if device.get("word"):
            return str(device["word"])
        if device.get("stale") and device["stale"]["until"] > self.now:
            return str(device["stale"]["state"])
        if device["borrowers"]:
            words = self.config["lent_words"]
            role = "owner" if device["owner"] == self.me else "self" if str(self.me) in device["borrowers"] else "other"
            if words.get(role):
                return str(words[role]).replace("NODE", next(iter(device["borrowers"])))
        return str(device["state"])

    def find(self, text: str) -> Tuple[str, Device]:
        """A device by what a person wrote as its fdid."""
        wanted = text.lower()
        wanted = wanted[2:] if wanted.startswith("0x") else wanted
        for fdid, device in self.visible():
            if fdid == wanted:
                return fdid, device
        raise Exit(ENODEV, f"No such device: {text}")

    def hardware(self, text: str) -> Dict[str, Any]:
        """A local device by an address in one of lspci's forms."""
        found = [one for one in self.state["nodes"][str(self.me)]["hardware"] if matches_slot(one["bdf"], text)]
        if len(found) != 1:
            raise Exit(ENODEV, f"{text}: {len(found)} devices")
        return dict(found[0])

    def pooled(self, bdf: str) -> Optional[str]:
        for fdid, device in self.devices.items():
            if device["owner"] == self.me and device["bdf"] == bdf and "gone_at" not in device:
                return fdid
        return None

    def owned(self, text: str) -> Tuple[str, Device, Dict[str, Any]]:
        hardware = self.hardware(text)
        fdid = self.pooled(hardware["bdf"])
        if fdid is None:
            raise Exit(ENODEV, f"{text} is not in the pool")
        return fdid, self.devices[fdid], hardware

    def new_fdid(self, owner: int, bdf: str) -> str:
        if self.config["fdid"] == "arithmetic":
            domain_free = (int(bdf[5:7], 16) << 8) | (int(bdf[8:10], 16) << 3) | int(bdf[11], 16)
            return f"{(owner << 16) | domain_free:x}"
        count = int(self.state["next"].get(str(owner), 0))
        self.state["next"][str(owner)] = count + 2
        return f"{(owner << 16) | count:x}"

    def put(self, owner: int, hardware: Dict[str, Any], state: str) -> str:
        fdid = self.new_fdid(owner, hardware["bdf"])
        self.devices[fdid] = {
            "owner": owner,
            "bdf": hardware["bdf"],
            "hardware": hardware,
            "state": state,
            "borrowers": {},
        }
        return fdid

    # - lender

    def connect(self, args: List[str]) -> None:
        node, adapter = integer(args, 0), integer(args, 1, 0)
        if adapter != self.config["adapter"]:
            raise Exit(ENODEV, f"No adapter {adapter}")
        if [self.me, node, adapter] in self.state["connections"]:
            self.repeated("connect", EISCONN)
            return
        if not self.reachable(node):
            raise Exit(EIO, f"Failed to connect to node {node}")
        self.state["connections"].append([self.me, node, adapter])

    def add(self, args: List[str]) -> None:
        hardware = self.hardware(one(args))
        if self.pooled(hardware["bdf"]) is not None:
            self.repeated("add", EEXIST)
            return
        fdid = self.put(self.me, hardware, "unavailable")
        if self.settle("add"):
            self.devices[fdid]["hidden_until"] = self.now + self.settle("add")

    def remove(self, args: List[str]) -> None:
        fdid, device, _hardware = self.owned(one(args))
        if device["borrowers"] or (self.config["strict"] and device["state"] != "unavailable"):
            raise Exit(EBUSY, "Device is in use")
        if self.settle("remove"):
            device["gone_at"] = self.now + self.settle("remove")
        else:
            del self.devices[fdid]

    def available(self, args: List[str]) -> None:
        force = "--force" in args
        _fdid, device, hardware = self.owned(one([arg for arg in args if arg != "--force"]))
        if device["borrowers"]:
            raise Exit(EBUSY, "Device is borrowed")
        if device["state"] == "available":
            self.repeated("available", EALREADY)
            return
        bound = os.path.islink(os.path.join(fakefs.device_path(self.config["sysfs"], hardware["bdf"]), "driver"))
        if bound and not force and not ask(f"{hardware['bdf']} is bound to a driver. Continue? [y/N] "):
            raise Exit(1, "Aborted")
        self.change(device, "available")
        if self.config["sysfs_follows"]:
            fakefs.unbind(self.config["sysfs"], self.config["dev"], hardware)

    def unavailable(self, args: List[str]) -> None:
        _fdid, device, hardware = self.owned(one(args))
        if device["state"] != "available":
            raise Exit(EINVAL, "Device is not available")
        if device["borrowers"] and self.config["strict"]:
            raise Exit(EBUSY, "Device is borrowed")
        self.change(device, "unavailable")
        if self.config["sysfs_follows"] and hardware.get("driver"):
            fakefs.bind(self.config["sysfs"], self.config["dev"], hardware)

    def change(self, device: Device, state: str) -> None:
        if self.settle(state):
            device["stale"] = {"until": self.now + self.settle(state), "state": device["state"]}
        device["state"] = state
        device.pop("word", None)

    def add_filter(self, args: List[str]) -> None:
        self.each("Adding", args, self.add)

    def available_filter(self, args: List[str]) -> None:
        self.each("Making available", args, self.available)

    def unavailable_filter(self, args: List[str]) -> None:
        self.each("Making unavailable", args, self.unavailable)

    def each(self, verb: str, args: List[str], command: Callable[[List[str]], None]) -> None:
        for hardware in self.state["nodes"][str(self.me)]["hardware"]:
            if matches_filter(hardware, args):
                say(f"{verb} {hardware['bdf'][5:]} {hardware['class_name']}: {hardware['name']}")
                command([hardware["bdf"]])

    # - pool

    def list(self, _args: List[str]) -> None:
        form = {
            "current": "{fdid}: {class_name}: {name} [{word}]",
            "id-prefix": "ID {fdid}: {class_name}: {name} [{word}]",
            "2018": "{fdid}: {class_name} {name} [{word}]",
        }[self.config["generation"]]
        shown = self.visible()
        for fdid, device in shown:
            hardware = device["hardware"]
            say(
                form.format(fdid=fdid, class_name=hardware["class_name"], name=hardware["name"], word=self.word(device))
            )
        for fdid in self.config["vanish"]:
            self.devices.pop(fdid, None)

    def show(self, args: List[str]) -> None:
        fdid, device = self.find(one(args))
        quirks = self.config["show"]
        hardware, own = device["hardware"], device["owner"] == self.me
        if quirks["asks_owner"] and not own and not self.reachable(device["owner"]):
            raise Exit(EIO, "Unable to communicate with the lender")
        serial = hardware["serial"]
        pairs = [
            ("Name", f"{hardware['class_name']} {hardware['name']}"),
            ("Available", self.word(device)),
            ("Location", "local" if own else "remote"),
            ("Adapter", str(self.config["adapter"])),
            ("NodeId", str(device["owner"])),
            ("Remote BDF", quirks["local_bdf"] if own and quirks.get("local_bdf") else hardware["bdf"]),
            ("Physical slot", "N/A"),
            ("Serial Number", serial),
            ("UUID", hardware["uuid"]),
            ("Vendor ID", hardware["vendor"]),
            ("Device ID", hardware["device"]),
            ("Subsystem Vendor ID", hardware["subvendor"]),
            ("Subsystem Device ID", hardware["subdevice"]),
            ("Local users", str(quirks["users"])),
        ]
        pairs = [(key, value) for key, value in pairs if key not in quirks["drop"]]
        pairs = [*quirks["extra"].items(), *pairs]
        if quirks["reverse"]:
            pairs.reverse()
        for key, value in pairs:
            say(f"{key}: {value.replace('FDID', fdid)}")

    def lspci(self, args: List[str]) -> None:
        _fdid, device = self.find(args[0] if args else "")
        hardware = device["hardware"]
        say(f"{hardware['bdf'][5:]} {hardware['class_name']}: {hardware['name']} (rev 01)")

    def scan(self, args: List[str]) -> None:
        node, adapter = integer(args, 0), integer(args, 1, 0)
        if adapter != self.config["adapter"]:
            raise Exit(ENODEV, f"No adapter {adapter}")
        if str(node) in self.state["nodes"]:
            raise Exit(EINVAL, f"Node id {node} is in use")
        if node not in self.state["trees"]:
            self.state["trees"].append(node)
        there = {hardware["bdf"]: hardware for hardware in self.config["transparent"]}
        known = {found["bdf"]: fdid for fdid, found in self.devices.items() if found["owner"] == node}
        for bdf, fdid in known.items():
            if bdf not in there:
                del self.devices[fdid]
        for bdf, hardware in there.items():
            if bdf not in known:
                fdid = self.put(node, hardware, "available")
                if self.parameter("autoborrow_transparent") == "1":
                    self.take(fdid, self.devices[fdid])

    # - borrower

    def borrow(self, args: List[str]) -> None:
        if not args or len(args) > 2:
            raise Exit(EINVAL, "usage: borrow <fdid> [dma window size]")
        if len(args) == 2:
            integer(args, 1)
        fdid, device = self.find(args[0])
        if not self.reachable(device["owner"]) and device["owner"] != self.me:
            raise Exit(EIO, "Unable to communicate with the lender")
        if str(self.me) in device.get("dead", {}):
            raise Exit(device["dead"][str(self.me)]["status"], "Device is dead")
        if str(self.me) in device["borrowers"]:
            self.repeated("borrow", EALREADY)
        elif device["state"] != "available" or device["borrowers"] or device.get("word"):
            raise Exit(EBUSY, "Device is busy or not available")
        else:
            self.take(fdid, device)
        vdev = device["borrowers"][str(self.me)]["hardware"]
        say(f"Name: {vdev['class_name']} {vdev['name']}")
        say("Local users: 1")
        say(f"Local virtual device: {vdev['bdf']}")
        if vdev.get("driver"):
            say(f"Bound to driver: {vdev['driver']}")
        if vdev["kind"] == "nvme" and vdev.get("driver"):
            say(f"NVMe namespace: nvme{vdev['unit']}")

    def take(self, fdid: str, device: Device) -> None:
        count = int(self.state["vdevs"].get(str(self.me), 0))
        self.state["vdevs"][str(self.me)] = count + 1
        vdev = dict(device["hardware"])
        vdev["bdf"] = f"0000:{4 + count // 32:02x}:{count % 32:02x}.0"
        vdev["unit"] = 20 + count
        vdev["driver"] = vdev.get("driver") if self.config["vdev_driver"] == "own" else self.config["vdev_driver"]
        device["borrowers"][str(self.me)] = {"hardware": vdev, "from": self.now + self.settle("borrow"), "fdid": fdid}
        if not self.config["vdev_sysfs"]:
            return
        fakefs.add_device(self.config["sysfs"], self.config["dev"], {**vdev, "driver": None})
        if not vdev.get("driver"):
            return
        if not self.config["vdev_delay"]:
            fakefs.bind(self.config["sysfs"], self.config["dev"], vdev)
        elif os.fork() == 0:
            detach()
            time.sleep(self.config["vdev_delay"])
            fakefs.bind(self.config["sysfs"], self.config["dev"], vdev)
            os._exit(0)

    def give_back(self, args: List[str]) -> None:
        _fdid, device = self.find(one(args))
        held = device.get("dead", {}).pop(str(self.me), None) or device["borrowers"].pop(str(self.me), None)
        if held is None:
            raise Exit(EINVAL, "Device is not borrowed")
        vdev = held["hardware"]
        self.state["p2p"] = [pair for pair in self.state["p2p"] if pair[0] != self.me or one(args) not in pair]
        if self.config["vdev_sysfs"]:
            fakefs.remove_device(self.config["sysfs"], self.config["dev"], vdev)

    def get_vdev(self, args: List[str]) -> None:
        absent = self.config["get_vdev_absent"]
        _fdid, device = self.find(one(args))
        if device.get("dead", {}).get(str(self.me), {}).get("vdev_status"):
            raise Exit(device["dead"][str(self.me)]["vdev_status"], "Device is dead")
        mine = device["borrowers"].get(str(self.me))
        if mine is None or mine["from"] > self.now:
            raise Exit(absent["exit"], absent["text"])
        say(mine["hardware"]["bdf"])

    def p2p(self, args: List[str], enable: bool) -> None:
        if len(args) not in (2, 3):
            raise Exit(EINVAL, "usage: enable-p2p <source> <destination> [BAR]")
        ends = [self.find(arg)[0] for arg in args[:2]]
        for fdid in ends:
            if str(self.me) not in self.devices[fdid]["borrowers"]:
                raise Exit(ENODEV, f"{fdid} is not borrowed")
        pair = [self.me, *ends, integer(args, 2, -1)]
        there = pair in self.state["p2p"]
        if enable and there:
            self.repeated("enable-p2p", EEXIST)
        elif enable:
            self.state["p2p"].append(pair)
        elif there:
            self.state["p2p"].remove(pair)
        else:
            raise Exit(EINVAL, "not enabled")

    def enable_p2p(self, args: List[str]) -> None:
        self.p2p(args, True)

    def disable_p2p(self, args: List[str]) -> None:
        self.p2p(args, False)

    # - settings

    def parameter(self, name: str) -> Optional[str]:
        value: Optional[str] = self.state["settings"].get(str(self.me), {}).get(name)
        return value

    def set_parameter(self, args: List[str]) -> None:
        if len(args) != 2:
            raise Exit(EINVAL, "usage: config <CONFIG> <VALUE>")
        if args[0] not in self.config["parameters"]:
            raise Exit(EINVAL, f"unknown parameter {args[0]}")
        self.state["settings"].setdefault(str(self.me), {})[args[0]] = args[1]
        path = os.path.join(self.config["sysfs"], "module/dis_smartio/parameters", args[0])
        if os.path.exists(path):
            with open(path) as file:
                is_bool = file.read().strip() in ("Y", "N")
            fakefs.write(path, {"1": "Y", "0": "N"}.get(args[1], args[1]) + "\n" if is_bool else args[1] + "\n")


COMMANDS: Dict[str, Callable[[Tool, List[str]], None]] = {
    "connect": Tool.connect,
    "add": Tool.add,
    "remove": Tool.remove,
    "available": Tool.available,
    "unavailable": Tool.unavailable,
    "add-filter": Tool.add_filter,
    "available-filter": Tool.available_filter,
    "unavailable-filter": Tool.unavailable_filter,
    "list": Tool.list,
    "show": Tool.show,
    "lspci": Tool.lspci,
    "scan": Tool.scan,
    "borrow": Tool.borrow,
    "return": Tool.give_back,
    "get-vdev": Tool.get_vdev,
    "enable-p2p": Tool.enable_p2p,
    "disable-p2p": Tool.disable_p2p,
    "config": Tool.set_parameter,
}


# --- arguments --------------------------------------------------------------------------------------------------------


def one(args: List[str]) -> str:
    if len(args) != 1:
        raise Exit(EINVAL, "one argument expected")
    return args[0]


def integer(args: List[str], index: int, default: Optional[int] = None) -> int:
    if index >= len(args) and default is not None:
        return default
    try:
        return int(args[index])
    except (IndexError, ValueError):
        raise Exit(EINVAL, f"a number expected: {args}") from None


def matches_slot(bdf: str, text: str) -> bool:
    """lspci -s: ``[[[domain]:]bus:][slot][.func]``."""
    rest, _dot, function = text.partition(".")
    parts = rest.split(":")
    slot = parts[-1]
    bus = parts[-2] if len(parts) > 1 else ""
    domain = parts[-3] if len(parts) > 2 else ""
    wanted = (domain, bus, slot, function)
    actual = (bdf[:4], bdf[5:7], bdf[8:10], bdf[11])
    try:
        return all(want in ("", "*") or int(want, 16) == int(have, 16) for want, have in zip(wanted, actual))
    except ValueError:
        raise Exit(EINVAL, f"no address: {text}") from None


def matches_filter(hardware: Dict[str, Any], args: List[str]) -> bool:
    if not args or len(args) % 2:
        raise Exit(EINVAL, "a filter expected")
    for option, value in zip(args[::2], args[1::2]):
        if option == "-s" and not matches_slot(hardware["bdf"], value):
            return False
        if option == "-d":
            for want, have in zip(value.split(":"), (hardware["vendor"], hardware["device"], hardware["class"][:4])):
                if want not in ("", "*") and int(want, 16) != int(have, 16):
                    return False
    return True


def detach() -> None:
    os.setsid()
    for fd in (0, 1, 2):
        os.close(fd)


# --- running ----------------------------------------------------------------------------------------------------------


def smartio_tool(config: Dict[str, Any], args: List[str]) -> None:
    command, rest = (args[0], args[1:]) if args else ("", [])
    state = State(config["state"])
    rule = fire(config, state, command, rest)
    state.close()
    if rule and rule["do"] == "lie":
        return
    if rule and not rule.get("done"):
        fault(rule)
    if command not in COMMANDS:
        raise Exit(EINVAL, "usage: smartio_tool <command> [options...]")
    work(config, command, rest, rule)
    if rule and rule.get("done"):
        fault(rule)


def work(config: Dict[str, Any], command: str, args: List[str], rule: Optional[Dict[str, Any]]) -> None:
    state = State(config["state"])
    save = False
    try:
        tool = Tool(config, state)
        if rule and rule["do"] == "intrude":
            tool.put(rule["owner"], rule["hardware"], "available")
        COMMANDS[command](tool, args)
        save = True
    except Exit:
        save = True
        raise
    finally:
        state.close(save)


def dis_config(config: Dict[str, Any], args: List[str]) -> None:
    if args != ["-gn"]:
        raise Exit(1, "usage: dis_config -gn")
    if config["dis_config"] != "works":
        raise Exit(1, "Unable to open the driver")
    say(f"Card {config['adapter'] + 1} - NodeId:  {config['node_id']}")


def disinfo(config: Dict[str, Any], args: List[str]) -> None:
    """The table of hosts is the fabric's; ``disinfo`` (a quirk) is what it prints for a host, or an exit status."""
    if args[:2] != ["get-nodeid", "-hostname"] or len(args) != 3:
        raise Exit(1, "usage: disinfo get-nodeid -hostname <hostname>")
    answer = config["disinfo"].get(args[2], 2)
    if isinstance(answer, int):
        raise Exit(answer, f"unknown host {args[2]}")
    say(answer)


CONFIG: Dict[str, Any] = {}


def main(folder: str) -> int:
    with open(os.path.join(folder, "stub.json")) as file:
        CONFIG.update(json.load(file))
    name = os.path.basename(sys.argv[0])
    log_call(CONFIG, [name, *sys.argv[1:]])
    try:
        {"smartio_tool": smartio_tool, "dis_config": dis_config, "disinfo": disinfo}[name](CONFIG, sys.argv[1:])
    except Exit as end:
        sys.stdout.flush()
        if end.text:
            sys.stderr.write(end.text + "\n")
        return end.status
    return 0
