# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster of nodes as processes of this machine, described by one JSON file.

The file: ``{"defaults": {...}, "nodes": [{...}, ...]}``; each node is a node.json without host, port and peers.
Every node gets a folder of its name below the cluster's. Ports are chosen by the system.

``cluster.json`` in the cluster's folder remembers each process with its start time, so that a recycled process id is
never taken for a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .config import load_json, read_config
from .errors import ClusterError
from .real_sysfs import complete
from .tool import connect, talk

RECORD = "cluster.json"
_END_SECONDS = 3.0  # seconds that a node has to end before it is killed
_POLL = 0.01


@dataclass(frozen=True)
class Running:
    """A node's process: its id, its start time (clock ticks after boot, from /proc/PID/stat) and the node's folder."""

    name: str
    pid: int
    started: int
    folder: str


def _stat(pid: int) -> Tuple[str, int]:
    """(state, start time) of a process; OSError when there is none."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        # The name in brackets may hold anything; what follows its last bracket is split by spaces.
        fields = stream.read().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def is_alive(node: Running) -> bool:
    """Whether the process of a node runs: the same process, not another one with its id."""
    try:
        state, started = _stat(node.pid)
        with open(f"/proc/{node.pid}/cmdline", "rb") as stream:
            words = stream.read().split(b"\0")
    except OSError:
        return False
    if state in "ZX" or started != node.started:
        return False
    return b"software_node" in words and os.fsencode(node.folder) in words


class Cluster:
    """The nodes below one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)

    # The record

    def running(self) -> List[Running]:
        """The nodes that the record names, alive or not."""
        path = os.path.join(self.folder, RECORD)
        try:
            with open(path, encoding="utf-8") as stream:
                return [Running(**data) for data in json.load(stream)]
        except FileNotFoundError:
            return []
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise ClusterError(f"{path}: cannot be read: {error}") from None

    def _record(self, nodes: Sequence[Running]) -> None:
        path = os.path.join(self.folder, RECORD)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump([vars(node) for node in nodes], stream, indent=1)
        os.rename(path + ".new", path)

    # Up and down

    def up(self, path: str, wait: float, lifeline: Optional[int] = None) -> List[str]:
        """Starts the nodes of a cluster file and waits until they answer; ClusterError, and then none is left."""
        if any(is_alive(node) for node in self.running()):
            raise ClusterError(f"{self.folder}: this cluster is up already")
        configs = _node_configs(path)
        os.makedirs(self.folder, exist_ok=True)
        names = [str(config["name"]) for config in configs]
        for config in configs:
            self._write_config(config)
        self._record([])
        try:
            self.start(names, wait, lifeline)
        except BaseException:
            self.down()
            raise
        return names

    def start(self, names: Sequence[str], wait: float, lifeline: Optional[int] = None) -> None:
        """Starts nodes of this cluster that do not run, with the configuration and ports they have."""
        nodes = {node.name: node for node in self.running()}
        children: Dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            if name in nodes and is_alive(nodes[name]):
                raise ClusterError(f"{name}: runs already")
            children[name] = self._spawn(name, lifeline)
            nodes[name] = Running(name, children[name].pid, _stat(children[name].pid)[1], self.node_folder(name))
            self._record(list(nodes.values()))
        deadline = time.monotonic() + wait
        for name, child in children.items():
            self._wait_ready(name, child, deadline)

    def down(self, names: Optional[Sequence[str]] = None) -> List[str]:
        """Ends the nodes that this cluster started (or some of them); the names of those that had to be killed."""
        nodes = [node for node in self.running() if names is None or node.name in names]
        for node in nodes:
            _signal(node, signal.SIGTERM)
        stubborn = _wait_ended(nodes)
        for node in stubborn:
            _signal(node, signal.SIGKILL)
        left = _wait_ended(stubborn)
        if left:
            raise ClusterError(f"{left[0].name}: process {left[0].pid} cannot be ended")
        self._forget(nodes)
        return [node.name for node in stubborn]

    def kill(self, names: Sequence[str]) -> None:
        """Ends nodes as a power cut would."""
        nodes = [node for node in self.running() if node.name in names]
        for node in nodes:
            _signal(node, signal.SIGKILL)
        left = _wait_ended(nodes)
        if left:
            raise ClusterError(f"{left[0].name}: process {left[0].pid} cannot be ended")

    def node_folder(self, name: str) -> str:
        """The folder of a node."""
        return os.path.join(self.folder, name)

    def names(self) -> List[str]:
        """The nodes that have a folder here."""
        entries = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        return [name for name in entries if os.path.exists(os.path.join(self.folder, name, "node.json"))]

    def _forget(self, nodes: Sequence[Running]) -> None:
        if os.path.isdir(self.folder):
            gone = {node.pid for node in nodes}
            self._record([node for node in self.running() if node.pid not in gone])

    def _write_config(self, config: Dict[str, Any]) -> None:
        folder = self.node_folder(str(config["name"]))
        if os.path.lexists(folder) and not os.path.exists(os.path.join(folder, "node.json")) and os.listdir(folder):
            raise ClusterError(f"{folder}: exists and is no node's folder")
        os.makedirs(folder, exist_ok=True)
        # It may hold a token.
        descriptor = os.open(os.path.join(folder, "node.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(config, stream, indent=1)

    def _spawn(self, name: str, lifeline: Optional[int]) -> subprocess.Popen[bytes]:
        folder = self.node_folder(name)
        config = os.path.join(folder, "node.json")
        if not os.path.exists(config):
            raise ClusterError(f"{name}: there is no such node in {self.folder}")
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        # Without site-packages: only the standard library is needed, and every start is sooner.
        command = [sys.executable, "-S", "-E", "-m", "software_node", "daemon", "--config", config, "--dir", folder]
        command += ["--lifeline", str(lifeline)] if lifeline is not None else []
        with open(os.path.join(folder, "output"), "wb") as output:
            return subprocess.Popen(
                command,
                cwd=package,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[lifeline] if lifeline is not None else [],
            )

    def _wait_ready(self, name: str, child: subprocess.Popen[bytes], deadline: float) -> None:
        while not answers(self.node_folder(name)):
            if child.poll() is not None:
                with open(os.path.join(self.node_folder(name), "output"), encoding="utf-8", errors="replace") as stream:
                    said = stream.read().strip().splitlines()
                raise ClusterError(f"{name}: ended with {child.returncode}: {said[-1] if said else 'no message'}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{name}: does not answer in time")
            time.sleep(_POLL)


def answers(folder: str) -> bool:
    """Whether the daemon of a node answers."""
    try:
        link = connect(folder)
        try:
            return talk(link, "ping", []) == 0
        finally:
            link.close()
    except OSError:
        return False


def _signal(node: Running, number: int) -> None:
    if is_alive(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, number)


def _wait_ended(nodes: Sequence[Running]) -> List[Running]:
    """Waits for processes to end; those that did not."""
    deadline = time.monotonic() + _END_SECONDS
    left = list(nodes)
    while True:
        for node in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(node.pid, os.WNOHANG)  # ours when this process started it
        left = [node for node in left if is_alive(node)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL)


def _node_configs(path: str) -> List[Dict[str, Any]]:
    """The node.json of every node of a cluster file: defaults, ports and peers filled in, and checked."""
    data = load_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list) or not data["nodes"]:
        raise ClusterError(f'{path}: needs a list "nodes"')
    if set(data) - {"nodes", "defaults"}:
        raise ClusterError(f"{path}: unknown key {sorted(set(data) - {'nodes', 'defaults'})[0]!r}")
    configs: List[Dict[str, Any]] = [{**data.get("defaults", {}), **node} for node in data["nodes"]]
    for config in configs:
        for key in ("host", "port", "peers"):
            if key in config:
                raise ClusterError(f"{path}: node {config.get('name')}: {key} is chosen by the cluster")
    _check_unique(path, configs)
    for config, port in zip(configs, _free_ports(len(configs))):
        config.update(host="127.0.0.1", port=port)
    for config in configs:
        config["peers"] = _peers(config, configs)
        read_config(config, complete)
    return configs


def _ids(config: Dict[str, Any]) -> List[Any]:
    value = config.get("node_id")
    return value if isinstance(value, list) else [value]


def _peers(own: Dict[str, Any], configs: Sequence[Dict[str, Any]]) -> Dict[str, Dict[str, str]]:
    return {
        str(node_id): {"address": f"127.0.0.1:{config['port']}", "name": str(config.get("name", ""))}
        for config in configs
        if config is not own
        for node_id in _ids(config)
    }


def _check_unique(path: str, configs: Sequence[Dict[str, Any]]) -> None:
    ids = [node_id for config in configs for node_id in _ids(config)]
    names = [config.get("name") for config in configs]
    for values, what in ((ids, "node id"), (names, "name")):
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ClusterError(f"{path}: {what} {twice[0]} is there twice")


def _free_ports(count: int) -> List[int]:
    """Ports that the system gives out, all different since all are held until the last is known."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _number in range(count)]
    try:
        for one in held:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


class _Interrupted(Exception):
    """A signal told the runner to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, _frame: Any) -> None:
    raise _Interrupted(number)


def run(folder: str, path: str, command: Sequence[str], wait: float) -> int:
    """Brings a cluster up, runs a command and brings the cluster down, whatever happens; the command's exit status.

    The nodes hold the reading end of a pipe whose other end only this process has: they end with it, also by SIGKILL.
    """
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    reading, writing = os.pipe()
    cluster = Cluster(folder)
    try:
        try:
            cluster.up(path, wait, reading)
            return _run_command(command)
        except _Interrupted as error:
            return 128 + error.number
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            cluster.down()
    finally:
        os.close(reading)
        os.close(writing)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_command(command: Sequence[str]) -> int:
    # A signal that came between the start and the "try" would leave the command running: it waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        child = subprocess.Popen(list(command), preexec_fn=_unblock)  # noqa: PLW1509 - this process has no threads
    except OSError as error:
        _unblock()
        raise ClusterError(f"{command[0]}: {error.strerror}") from None
    try:
        _unblock()
        status = child.wait()
    except _Interrupted as error:
        _end_child(child, error.number)
        raise
    return status if status >= 0 else 128 - status


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _end_child(child: subprocess.Popen[bytes], number: int) -> None:
    """Passes a signal on to the command; kills it when it does not end."""
    for number_now in (number, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number_now)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_SECONDS)


def status(folder: str) -> tuple[str, bool]:
    """A line a node, and whether all of them run."""
    cluster = Cluster(folder)
    nodes = {node.name: node for node in cluster.running()}
    lines, good = [], True
    for name in cluster.names():
        node = nodes.get(name)
        up = node is not None and is_alive(node) and answers(cluster.node_folder(name))
        good = good and up
        lines.append(f"{name}: {f'up, process {node.pid}' if up and node else 'down'}\n")
    return "".join(lines), good and bool(lines)
