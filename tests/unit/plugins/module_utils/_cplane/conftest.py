# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server as a process, and a client that knows nothing but the wire table."""

from __future__ import annotations

import array
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

PACKAGE = "ansible_collections.iofabric.sharing.plugins.module_utils._cplane"
ROOT = Path(__file__).parents[5]


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> Any:
    """Ask until the answer is true; fails with the last answer."""
    end = time.monotonic() + seconds
    answer = condition()
    while not answer and time.monotonic() < end:
        time.sleep(0.005)
        answer = condition()
    assert answer, "this did not come true in time"
    return answer


class ServerProcess:
    """xnvme-cplaned, started for a test."""

    def __init__(self, directory: Path, controllers: List[str], cplane_id: int, arguments: List[str]) -> None:
        self.directory = directory
        self.cplane_id = cplane_id
        self.path = str(directory / f"xnvme-homi-{cplane_id}.sock")
        command = [sys.executable, "-m", PACKAGE + ".cplaned", "serve", *controllers]
        command += ["--homi-id", str(cplane_id), "--directory", str(directory), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".build" / "collections")}
        with open(directory / "server.err", "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        self.pid = self.process.pid

    def ready(self) -> None:
        """Wait for the line that says so."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert b"started" in line, self.errors()

    def errors(self) -> str:
        """What the server wrote to stderr."""
        return (self.directory / "server.err").read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(10)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def children(self) -> List[int]:
        """Its controllers' processes, in order."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return sorted(int(word) for word in text.split())

    def counts(self) -> Tuple[int, int, int]:
        """Descriptors, threads and children."""
        fds = len(os.listdir(f"/proc/{self.pid}/fd"))
        return fds, len(os.listdir(f"/proc/{self.pid}/task")), len(self.children())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start servers; those that still run at the end must stop cleanly."""
    started: List[ServerProcess] = []

    def run(*controllers: str, cplane_id: int = 7, arguments: Tuple[str, ...] = (), wait: bool = True) -> ServerProcess:
        server = ServerProcess(tmp_path, list(controllers), cplane_id, list(arguments))
        started.append(server)
        if wait:
            server.ready()
        return server

    yield run
    statuses = [(server.process.poll() is None, server.stop()) for server in started]
    assert all(status == 0 for running, status in statuses if running), statuses


class Raw:
    """A client written from the table of the wire format alone; shares no code with the package."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(path)
        self.maps: List[Any] = []

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and unmap what was mapped."""
        self.sock.close()
        while self.maps:
            item = self.maps.pop()
            item.release() if isinstance(item, memoryview) else item.close()

    @staticmethod
    def request(op: int, index: int = 0, version: int = 4, **fields: Tuple[str, int, object]) -> bytes:
        """Return 104 bytes; fields are (code, offset, value)."""
        data = bytearray(104)
        struct.pack_into("<IIiIII", data, 0, op, version, 0, 0, index, 0)
        for code, offset, value in fields.values():
            struct.pack_into("<" + code, data, offset, value)
        return bytes(data)

    def reply(self) -> Tuple[bytes, List[int]]:
        """Return a whole reply (short when the server closed) and its descriptors."""
        data, fds = b"", array.array("i")
        while len(data) < 104:
            try:
                piece, ancillary, _flags, _address = self.sock.recvmsg(104 - len(data), socket.CMSG_SPACE(12))
            except ConnectionResetError:
                break
            for _level, _kind, raw in ancillary:
                fds.frombytes(raw)
            if not piece:
                break
            data += piece
        return data, list(fds)

    def ask(self, op: int, index: int = 0, **fields: Tuple[str, int, object]) -> Tuple[int, bytes, List[int]]:
        """Return status, the whole reply, and descriptors."""
        self.sock.sendall(self.request(op, index, **fields))
        data, fds = self.reply()
        assert len(data) == 104, f"the server closed after {len(data)} bytes"
        assert struct.unpack_from("<II", data) == (op, 4)
        status, nfds = struct.unpack_from("<iI", data, 8)
        assert nfds == len(fds)
        return status, data, fds

    def status(self, index: int = 0) -> Dict[str, Any]:
        """STATUS, by name."""
        status, data, _unused = self.ask(7, index)
        names = ("ndevs", "nclients", "nclients_ctrlr", "nqueues", "nsq_total", "ncq_total")
        values: Dict[str, Any] = dict(zip(names, struct.unpack_from("<6I", data, 24)))
        return {**values, "status": status, "bdf": data[48:64].split(b"\0")[0].decode()}

    def init(self, index: int = 0) -> Tuple[int, memoryview, memoryview]:
        """INIT_CONNECTION: the record's offset, the heap as bytes, BAR0 as 32-bit words."""
        status, data, fds = self.ask(1, index)
        assert (status, len(fds)) == (0, 2), status
        record, heap_nbytes, bar0_nbytes = struct.unpack_from("<QQQ", data, 24)
        heap_map, bar_map = mmap.mmap(fds[0], heap_nbytes), mmap.mmap(fds[1], bar0_nbytes)
        for fd in fds:
            os.close(fd)
        heap, bytes_of_bar = memoryview(heap_map), memoryview(bar_map)
        bar0 = bytes_of_bar.cast("I")
        self.maps += [heap_map, bar_map, heap, bytes_of_bar, bar0]
        return record, heap, bar0

    def buffer(self, nbytes: int) -> int:
        """ALLOC_BUF."""
        status, data, _unused = self.ask(5, nbytes=("Q", 24, nbytes))
        assert status == 0
        return int(struct.unpack_from("<Q", data, 32)[0])

    def pair(self, index: int, depth: int) -> Tuple[int, int, int, int]:
        """ALLOC_IOQPAIR: sq_offset, cq_offset, prp_offset, qid."""
        status, data, _unused = self.ask(2, index, depth=("H", 56, depth))
        assert status == 0
        sq, cq, prp, qid, got = struct.unpack_from("<QQQIH", data, 24)
        assert got == depth
        return sq, cq, prp, qid

    def admin(self, command: bytes, index: int = 0) -> Tuple[int, int, int]:
        """ADMIN_CMD: the status of the reply, DW0, and the status field of the completion with its phase."""
        status, data, _unused = self.ask(4, index, command=("64s", 24, command))
        dw0, _unused, _unused, _unused, _unused, field = struct.unpack_from("<IIHHHH", data, 88)
        return status, dw0, field


class RawQueue:
    """An I/O queue pair used by hand, by the NVMe specification alone."""

    def __init__(self, raw: Raw, index: int, heap: memoryview, bar0: memoryview, depth: int) -> None:
        self.sq, self.cq, self.prp, self.qid = raw.pair(index, depth)
        self.heap, self.bar0, self.depth = heap, bar0, depth
        self.words = heap.cast("I")
        raw.maps.append(self.words)
        self.tail = self.head = 0
        self.phase = 1

    def submit(
        self,
        opcode: int,
        cid: int,
        nsid: int = 1,
        prp1: int = 0,
        prp2: int = 0,
        lba: int = 0,
        blocks: int = 1,
        flags: int = 0,
        ring: bool = True,
    ) -> None:
        """Write an entry and ring the doorbell."""
        entry = struct.pack("<BBHIQQQQQII", opcode, flags, cid, nsid, 0, 0, prp1, prp2, lba, blocks - 1, 0)
        entry += bytes(64 - len(entry))
        self.heap[self.sq + self.tail * 64 : self.sq + self.tail * 64 + 64] = entry
        self.tail = (self.tail + 1) % self.depth
        if ring:
            self.ring(self.tail)

    def ring(self, value: int) -> None:
        """Write the submission queue's doorbell."""
        self.bar0[0x400 + 2 * self.qid] = value

    def reap(self, seconds: float = 10.0) -> Optional[Tuple[int, int]]:
        """Return (command id, status without phase) of the next completion, None when none comes."""
        end = time.monotonic() + seconds
        at = self.cq // 4 + self.head * 4
        last = self.words[at + 3]
        while last >> 16 & 1 != self.phase:
            if time.monotonic() > end:
                return None
            last = self.words[at + 3]
        assert self.words[at + 2] >> 16 == self.qid
        self.head += 1
        if self.head == self.depth:
            self.head = 0
            self.phase ^= 1
        self.bar0[0x400 + 2 * self.qid + 1] = self.head
        return last & 0xFFFF, last >> 17

    def do(self, opcode: int, cid: int = 1, **fields: int) -> int:
        """Submit one command and return its status."""
        self.submit(opcode, cid, **fields)
        answer = self.reap()
        assert answer is not None, "no completion"
        assert answer[0] == cid
        return answer[1]


@pytest.fixture
def raw() -> Callable[[ServerProcess], Raw]:
    """Connect to a server. That alone does not mean that it has accepted: ask it something before counting."""
    return lambda server: Raw(server.path)


@pytest.fixture
def raw_queue() -> Callable[..., RawQueue]:
    """Make a queue pair."""
    return RawQueue


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., Any]:
    """Ask until the answer is true."""
    return wait_for
