# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of a node: its folder, its sockets, its threads, its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from typing import List, Optional, Tuple

from .commands import PROGRAMS, Session
from .config import NodeConfig
from .errors import ConfigError, NodeError, UsageError
from .faults import Faults
from .node import Node
from .peer import PeerServer, close_link, cut_link
from .tool import SOCKET_NAME
from .wrappers import write_wrappers

MARKER = ".software-node"
_TREES = ("sysfs", "dev", "proc")
_LOG_LIMIT = 4 << 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BIND_SECONDS = 5.0
_CONTROL_SECONDS = 0.05
_PROC = {
    "self/mountinfo": "",
    "self/mounts": "",
    "mounts": "",
    "modules": "dis_smartio 16384 0 - Live 0x0000000000000000 (O)\n",
    "swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
    "net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    "net/ipv6_route": "",
}


class Folder:
    """The node's folder, held by a lock for as long as the daemon lives."""

    def __init__(self, path: str) -> None:
        """ConfigError when the folder is somebody else's, or a daemon runs in it."""
        self.path = os.path.abspath(path)
        os.makedirs(self.path, exist_ok=True)
        marker = os.path.join(self.path, MARKER)
        foreign = [name for name in _TREES if os.path.lexists(os.path.join(self.path, name))]
        if foreign and not os.path.exists(marker):
            raise ConfigError(f"{self.path}: holds {foreign[0]!r} but is not a node's folder; choose another")
        self._lock = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path}: a daemon runs here already") from None

    def clear(self) -> None:
        """Removes what a daemon made, except the tools and the log."""
        for name in _TREES:
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, SOCKET_NAME))

    def create_module(self, parameters: dict[str, int]) -> None:
        """module/dis_smartio: a new directory (other inode, later ctime) at every start, complete from the outset."""
        place = os.path.join(self.path, "sysfs/module")
        path, spare = os.path.join(place, "dis_smartio"), os.path.join(place, "new")
        os.mkdir(spare)
        if str(os.stat(spare).st_ino) == self._last_inode():
            # File systems give a freed inode away again: hold this one while another is taken.
            os.mkdir(path)
            os.rmdir(spare)
        else:
            os.rename(spare, path)
        os.mkdir(os.path.join(path, "parameters"))
        for name, text in (("version", "software\n"), ("refcnt", "0\n"), ("initstate", "live\n")):
            _write(os.path.join(path, name), text)
        for name, value in parameters.items():
            _write(os.path.join(path, "parameters", name), f"{value}\n")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.stat(path).st_ino).encode(), 0)

    def create_proc(self, boot_id: str) -> None:
        """The few files of /proc that tell what is in use: empty tables."""
        files = dict(_PROC)
        files["sys/kernel/random/boot_id"] = (boot_id or str(uuid.uuid4())) + "\n"
        for name, text in files.items():
            path = os.path.join(self.path, "proc", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write(path, text)

    def _last_inode(self) -> str:
        return os.pread(self._lock, 32, 0).decode("ascii", "replace")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


class Log:
    """The node's log, and dev/kmsg in the form of the kernel's."""

    def __init__(self, folder: str) -> None:
        os.makedirs(os.path.join(folder, "dev"), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(os.path.join(folder, "log"), flags, 0o644)
        self._kmsg = os.open(os.path.join(folder, "dev/kmsg"), flags, 0o644)
        self._lock = threading.Lock()
        self._sequence = 0

    def kmsg(self, text: str) -> None:
        """One line of the kernel log."""
        text = text.replace("\n", " ")
        with self._lock:
            self._sequence += 1
            micros = time.monotonic_ns() // 1000
            self._append(self._kmsg, f"6,{self._sequence},{micros},-;dis_smartio: {text}\n")
        self.note(f"dis_smartio: {text}")

    def note(self, text: str) -> None:
        """One line of the log only."""
        with self._lock:
            self._append(self._log, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")

    def _append(self, descriptor: int, line: str) -> None:
        if os.fstat(descriptor).st_size > _LOG_LIMIT:
            os.ftruncate(descriptor, 0)
        os.write(descriptor, line.encode("utf-8", "replace"))


class _Gone(Exception):
    """The tool at the other end ended."""


class SocketSession(Session):
    """A command's session with a tool (tool.py has the protocol)."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.garble: Optional[str] = None
        self._kept: List[str] = []

    def send(self, letter: bytes, payload: bytes) -> None:
        try:
            self.link.sendall(letter + len(payload).to_bytes(4, "big") + payload)
        except OSError:
            raise _Gone from None

    def receive(self) -> Tuple[bytes, bytes]:
        head = self._exactly(5)
        return head[:1], self._exactly(int.from_bytes(head[1:], "big"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                block = self.link.recv(count - len(data))
            except OSError:
                block = b""
            if not block:
                raise _Gone
            data += block
        return data

    def write(self, text: str) -> None:
        if self.garble:
            self._kept.append(text)
        else:
            self.send(b"O", text.encode("utf-8", "surrogateescape"))

    def complain(self, text: str) -> None:
        self.send(b"E", text.encode("utf-8", "surrogateescape"))

    def ask(self, question: str) -> bool:
        self.send(b"Q", question.encode())
        _letter, line = self.receive()
        return line.strip().lower() in (b"y", b"yes")

    def hang(self, variant: str) -> None:
        """Keeps the tool waiting until it is killed, or the node lets go by cutting the connection."""
        self.send(b"H", b"child" if variant == "child" else b"")
        with contextlib.suppress(OSError):
            self.link.recv(1)
        raise _Gone

    def finish(self, status: int) -> None:
        if self.garble:
            self.send(b"O", _garbled(self.garble, "".join(self._kept).encode()))
        self.send(b"X", str(status).encode())


def _garbled(kind: str, text: bytes) -> bytes:
    if kind == "truncated":
        return text[: len(text) * 2 // 3].rstrip(b"\n")
    if kind == "megabytes":
        return b"80000: Non-Volatile memory controller: [\xff\xfe" + b"x" * 70 + b"\n" + text + b"[junk] " * (1 << 20)
    noise = random.Random(len(text))  # noqa: S311 - the same junk every time, not a secret
    return bytes(noise.getrandbits(8) for _count in range(2048)) + text[1:] + b"\x00\xff\xc3("


class Daemon:
    """One node, running."""

    def __init__(self, config: NodeConfig, config_path: str, folder: str, prefix: str) -> None:
        """Takes the folder and the port, makes the trees and the tools; ConfigError when that is not possible."""
        faults = Faults(config.faults)
        self._folder = Folder(folder)
        listener = _listen(config.host, config.port)
        # From here on an end cleans up: the signals wait until run() takes them.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._folder.clear()
        self._log = Log(self._folder.path)
        self.node = Node(config, self._folder.path, os.path.abspath(config_path), faults, self._log.kmsg)
        self.node.tree.create()
        self._folder.create_module(self.node.parameters)
        self._folder.create_proc(config.boot_id)
        self.node.place_devices()
        write_wrappers(os.path.join(prefix or self._folder.path, "sbin"), self._folder.path)
        node = self.node
        self._peers = PeerServer(
            listener, config.token, node.own.incarnation, node.handle, node.lease_broken, node.link_down
        )
        node.cut_lease = self._peers.cut_lease
        self._tools = _listen_unix(self._folder.path)
        self._lock = threading.Lock()
        self._hanging: List[socket.socket] = []
        self._sessions: List[socket.socket] = []
        self.address = listener.getsockname()[:2]

    def run(self, lifeline: Optional[int]) -> None:
        """Serves until SIGTERM or SIGINT, or until the other end of the lifeline's pipe is closed."""
        threading.Thread(target=self._peers.serve, daemon=True).start()
        threading.Thread(target=self._serve_tools, daemon=True).start()
        threading.Thread(target=self._watch_controls, daemon=True).start()
        if lifeline is not None:
            threading.Thread(target=_watch_lifeline, args=(lifeline,), daemon=True).start()
        self._log.note(f"{self.node.config.name} listens on {self.address[0]}:{self.address[1]}")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.sigwait(_SIGNALS)
        self._stop()

    def _watch_controls(self) -> None:
        """Looks at the control files: plain files cannot tell that they were written to."""
        while not self.node.stopping.wait(_CONTROL_SECONDS):
            try:
                self.node.obey_controls()
            except (OSError, ValueError, KeyError) as error:
                self._log.kmsg(f"sysfs: {error!r}")

    def _stop(self) -> None:
        self._log.note("ends")
        self._peers.stop()
        close_link(self._tools)
        self.node.stop()
        with self._lock:
            for link in self._sessions:
                close_link(link)
        # With the lock held and without unlocking: no thread may write into the trees any more.
        self.node.lock.acquire()
        self._folder.clear()
        sys.stdout.flush()
        os._exit(0)

    # The tools

    def _serve_tools(self) -> None:
        while True:
            try:
                link, _address = self._tools.accept()
            except OSError:
                return
            with self._lock:
                self._sessions.append(link)
            threading.Thread(target=self._serve_tool, args=(link,), daemon=True).start()

    def _serve_tool(self, link: socket.socket) -> None:
        session = SocketSession(link)
        try:
            _letter, payload = session.receive()
            words = [os.fsdecode(word) for word in payload.split(b"\0")]
            session.finish(self._run_program(words[0], words[1:], session))
        except _Gone:
            pass  # the tool was killed; what it asked for is done or not, as with the real one
        finally:
            with self._lock:
                self._sessions.remove(link)
                self._hanging = [one for one in self._hanging if one is not link]
            link.close()

    def _run_program(self, program: str, args: List[str], session: SocketSession) -> int:
        status = 0
        command = args[0] if program == "smartio_tool" and args else program
        try:
            if program == "fault":
                self._set_faults(args, session)
            elif program != "ping":
                self._faulty(program, command, args, session)
        except UsageError as error:
            session.complain(f"{program}: {error.reason}\n")
            status = error.number
        except NodeError as error:
            session.complain(f"{program}: {command}: {error.text}\n")
            self._log.kmsg(error.reason)
            status = error.number
        except Exception as error:  # noqa: BLE001 - a defect of this program must not take the node down
            session.complain(f"{program}: internal error: {error!r}\n")
            self._log.kmsg(f"internal error: {error!r}")
            status = errno.EIO
        if program != "ping":
            self._log.note(f"{program} {' '.join(args)} -> {status}")
        return status

    def _faulty(self, program: str, command: str, args: List[str], session: SocketSession) -> None:
        """Runs a command with the faults that are on for it."""
        faults = self.node.faults
        self.node.stopping.wait(faults.seconds("slow"))
        hang = faults.variant("hang", command)
        if hang:
            with self._lock:
                self._hanging.append(session.link)
            session.hang(hang)
        failure = faults.fail(command)
        if failure:
            raise NodeError(failure, f"{command}: failed (fault)")
        session.garble = faults.variant("garble", command)
        PROGRAMS[program](self.node, args, session)

    def _let_go(self) -> None:
        """Ends the tools that hang."""
        with self._lock:
            for link in self._hanging:
                cut_link(link)

    def _set_faults(self, args: List[str], session: SocketSession) -> None:
        for arg in args:
            name, _equals, value = arg.partition("=")
            if name == "killed":
                os._exit(137)
            if name == "clear":
                self.node.faults.clear()
                self._let_go()
                continue
            try:
                self.node.faults.set(name, value)
            except ConfigError as error:
                raise UsageError(str(error)) from None
        for node_id in self.node.faults.links_down():
            self._peers.cut(node_id)
            self.node.cut(node_id)
        session.write(self.node.faults.describe())


def _watch_lifeline(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; a port in use is waited for a little, since it may be a node's that just ended."""
    deadline = time.monotonic() + _BIND_SECONDS
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ConfigError(f"node: cannot listen on {host}:{port}: {error.strerror}") from None
        time.sleep(0.05)


def _listen_unix(folder: str) -> socket.socket:
    """The socket for the tools, by way of the open folder: the path of a socket must not be long."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{place}/{SOCKET_NAME}")
    finally:
        os.umask(old)
        os.close(place)
    listener.listen(128)
    return listener
