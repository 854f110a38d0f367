# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server whose clients are hostile: whole and cut messages, descriptors in odd places, connections that just end.

One server, a thread of this process, takes all inputs, each from connections of its own. After each, a good client is
served as ever, and all that the hostile ones held is free again. The controllers are the emulated ones, run by the
server's own threads rather than in processes, so that what they execute counts as coverage.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ...plugins.module_utils._cplane import client, nvme, server, wire
from ...plugins.module_utils._cplane.backend import Backend
from ...plugins.module_utils._cplane.config import Config, EmulatedConfig
from ...plugins.module_utils._cplane.controller import (
    BAR0_NBYTES,
    CAP,
    CC,
    MAX_DEPTH,
    TIMEOUT_MS,
    Controller,
    MemoryStore,
)
from ...plugins.module_utils._cplane.heap import Heap
from .target import Taker, Target
from .wire import recorded

CPLANE_ID = 7
PATIENCE = 10.0
"""Seconds in which a server must have done what it always does at once."""
ANSWER = 0.0003
"""Seconds in which a server answers that nothing else keeps busy; it may, which costs no more than time."""
MOST_DEEDS = 10
QUEUES = 4
HEAP_SIZE = 12 << 20
"""Room for two queue pairs of each of two controllers and a little more: clients run out of it."""


class Direct(Backend):
    """An emulated controller in this process. Some commands fail as those of a controller that is gone, or slow."""

    def __init__(self, config: EmulatedConfig, uri: str, heap: Heap) -> None:
        self.label, self.uri = config.label, uri
        self.cap, self.cc, self.timeout_ms = CAP, CC, TIMEOUT_MS
        self.nsq_total = self.ncq_total = QUEUES
        self.max_depth, self.qids = MAX_DEPTH, (2, 3, 4, 1)
        self.bar0_fd, self.bar0_nbytes = os.memfd_create("bar0"), BAR0_NBYTES
        os.truncate(self.bar0_fd, BAR0_NBYTES)
        self.alive_fd = -1
        self._words = memoryview(bytearray(BAR0_NBYTES)).cast("I")
        emulated = EmulatedConfig(config.name, size=1 << 16, queues=QUEUES)
        # A map of its own, as one in a process has: the server's must not be in use when it is closed.
        memory = memoryview(mmap.mmap(heap.fd, heap.nbytes))
        self._controller = Controller(emulated, memory, self._words, MemoryStore(1 << 16))
        self.failures: List[int] = []

    def admin(self, command: bytes) -> bytes:
        """A client's command."""
        return self._execute(command, privileged=False)

    def own(self, command: bytes) -> bytes:
        """The server's."""
        return self._execute(command, privileged=True)

    def _execute(self, command: bytes, privileged: bool) -> bytes:
        if self.failures:
            number = self.failures.pop()
            if number:
                raise OSError(number, "so it was to be")
        dw0, status = self._controller.admin(command, privileged)
        if self._controller.format_end is not None:
            status = self._controller.finish_format()
        self._controller.poll()
        return nvme.COMPLETION.pack(dw0, 0, 0, 0, command[2] | command[3] << 8, status << 1 | 1)

    def restore_registers(self) -> None:
        """Nobody else writes to them."""

    def mark_dead(self) -> str:
        """Never, as nothing tells of it."""
        return ""

    def interrupt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Let go of BAR0."""
        os.close(self.bar0_fd)


class Lab:
    """The one server, and what to look at of it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="f")
        self.path = client.socket_path(CPLANE_ID, self._folder.name)
        self.backends: List[Direct] = []
        self.logged: List[str] = []
        self._heaps: List[Heap] = []
        self.broken: List[BaseException] = []
        self._control = server.Control()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # client and server take turns all the time
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE), self.broken
        self._free = self._heaps[0].free_bytes

    def _serve(self, ready: threading.Event) -> None:
        try:
            server.serve(
                ["emu:a", "emu:b"],
                CPLANE_ID,
                self._control,
                ready=ready.set,
                directory=self._folder.name,
                heap_size=HEAP_SIZE,
                make_heap=self._make_heap,
                opener=self._open,
                log=self.logged.append,
            )
        except BaseException as error:  # noqa: BLE001 - told to whoever looks at the server next
            self.broken.append(error)

    def _make_heap(self, _configs: Sequence[Config], nbytes: int, _log: server.Log) -> Heap:
        self._heaps.append(Heap(nbytes))
        return self._heaps[-1]

    def _open(self, config: Config, uri: str, heap: Heap) -> Backend:
        assert isinstance(config, EmulatedConfig)
        self.backends.append(Direct(config, uri, heap))
        return self.backends[-1]

    def scribble(self, offset: int, data: bytes) -> None:
        """Write to the shared memory, as every client may; what is written there again at the next input."""
        heap = self._heaps[0]
        offset %= heap.nbytes
        heap.view[offset : offset + len(data)] = data[: heap.nbytes - offset]

    def connect(self) -> socket.socket:
        """A connection as any client has it."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(self.path)
        return sock

    def check(self) -> None:
        """A good client is served, alone, and nothing is held for those that are gone."""
        for backend in self.backends:
            backend.failures.clear()
        end = time.monotonic() + PATIENCE
        with client.Connection(self.path, PATIENCE) as good:
            while True:
                found = [good.status(index) for index in range(2)]
                if all(one[:4] == (2, 0, 0, 0) for one in found) and self._heaps[0].free_bytes == self._free:
                    break
                assert time.monotonic() < end, (found, self._heaps[0].free_bytes, self._free, self.logged[-5:])
            assert [one.bdf for one in found] == [backend.uri for backend in self.backends]
            assert all(one.nsq_total == QUEUES for one in found)
        assert not self.broken and self._thread.is_alive(), self.broken

    def check_io(self) -> None:
        """A good client's queue pair and buffer are made and given back."""
        with client.Connection(self.path, PATIENCE) as good:
            good.init(1).close()
            pair = good.alloc_ioqpair(1, 16)
            buffer = good.alloc_buf(4096)
            assert bytes(self._heaps[0].view[buffer : buffer + 4096]) == bytes(4096)
            assert nvme.read_completion(good.admin(1, nvme.command(nvme.IDENTIFY, prp1=buffer, cdw10=1))).status == 0
            good.free_buf(buffer)
            good.free_ioqpair(1, pair.qid)

    def wait_until_idle(self) -> None:
        """Have the server end a connection: those that ended earlier are closed by then."""
        with self.connect() as last:
            last.shutdown(socket.SHUT_WR)
            assert last.recv(1) == b""

    def close(self) -> None:
        """Stop serving."""
        self._control.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert not self.broken, self.broken
        sys.setswitchinterval(self._interval)
        self._control.close()
        self._folder.cleanup()


class Hostile:
    """One or two connections of a client that does as the input says."""

    def __init__(self, lab: Lab, taker: Taker) -> None:
        self._lab = lab
        self.taker = taker
        self._socks: List[Optional[socket.socket]] = [None, None]
        self._offsets: List[int] = [0]
        self._qids: List[int] = [2]

    def _sock(self) -> socket.socket:
        place = self.taker.number() & 1
        found = self._socks[place]
        if found is None:
            found = self._socks[place] = self._lab.connect()
        return found

    def _send(self, data: bytes, files: int = 0) -> None:
        """The server may have ended the connection, or not read for so long that there is no room."""
        if not data:
            return
        descriptors = [os.open("/dev/null", os.O_RDONLY) for _file in range(files)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{files}i", *descriptors))] if files else []
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._sock().sendmsg([data], rights, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        wire.close_all(descriptors)

    def _request(self) -> bytes:
        taker = self.taker
        op = taker.number() % 13
        values: Dict[str, wire.Value] = {}
        for field in wire.REQUEST_FIELDS.get(op, ()):
            values[field.name] = self._command() if field.code == "64s" else self._number(field)
        return wire.Message(op, taker.number() % 3, values, nfds=taker.number() % 3).encode_request()

    def _number(self, field: wire.Field) -> int:
        taker = self.taker
        known = {"qid": self._qids, "offset": self._offsets, "depth": [2, 16, 1024]}
        if field.name in known and taker.flag():
            return taker.pick(known[field.name])
        size = struct.calcsize(field.code)
        return taker.number(1 + taker.number() % size) if size > 2 else taker.number(size)

    def _command(self) -> bytes:
        taker = self.taker
        if taker.flag():
            return taker.raw(64)
        return nvme.command(
            taker.number() % 16, 1, taker.pick(self._offsets), cdw10=taker.number(3), cid=taker.number()
        )

    # -- deeds ----------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """A whole request, with or without a descriptor, and its answer."""
        data = self._request()
        self._send(data, [0, 0, 0, 1][self.taker.number() & 3])
        self._hear(ANSWER)

    def hear(self) -> None:
        """Read what is there by now."""
        self._hear(0.0)

    def _hear(self, seconds: float) -> None:
        """Read what is there, and learn from it."""
        open_now = [sock for sock in self._socks if sock is not None]
        for sock in select.select(open_now, [], [], seconds)[0]:
            try:
                data, rights, _flags, _address = sock.recvmsg(wire.SIZE, wire.ANCILLARY_SIZE)
            except ConnectionError:
                continue
            wire.close_all(wire.take_fds(rights))
            if len(data) == wire.SIZE:
                self._learn(wire.Message.decode_reply(data))

    def _learn(self, reply: wire.Message) -> None:
        if reply.status:
            return
        if reply.op == wire.Op.ALLOC_BUF:
            self._offsets.append(reply.number("offset"))
        elif reply.op == wire.Op.ALLOC_IOQPAIR:
            self._qids.append(reply.number("qid"))

    def hurry(self) -> None:
        """Several requests at once, no answer of which is read."""
        self._send(b"".join(self._request() for _request in range(1 + self.taker.number() % 4)))

    def babble(self) -> None:
        """Bytes, with descriptors at their first one."""
        self._send(self.taker.chunk(), self.taker.number() % 6)

    def tear(self) -> None:
        """A request in two pieces, each with descriptors."""
        data = self._request()
        cut = self.taker.number() % wire.SIZE
        self._send(data[:cut], self.taker.number() % 5)
        self._send(data[cut:], self.taker.number() % 5)

    def leave(self) -> None:
        """End a connection, or one direction of it."""
        place, half = self.taker.number() & 1, self.taker.number() & 1
        sock = self._socks[place]
        if sock is None:
            return
        if half:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        else:
            sock.close()
            self._socks[place] = None

    def fail(self) -> None:
        """The controller fails at one of the next commands; after a timeout it can still be talked to."""
        number = (errno.EIO, errno.ETIMEDOUT)[self.taker.number() & 1]
        failures = self._lab.backends[self.taker.number() & 1].failures
        failures[:] = [number] + [0] * (self.taker.number() % 4)

    def scribble(self) -> None:
        """Write over the shared memory."""
        self._lab.scribble(self.taker.number(3), self.taker.chunk())

    def end(self) -> None:
        """Leave."""
        for sock in self._socks:
            if sock is not None:
                sock.close()


DEEDS: Tuple[Callable[[Hostile], None], ...] = (
    Hostile.ask,
    Hostile.ask,
    Hostile.ask,
    Hostile.hurry,
    Hostile.babble,
    Hostile.tear,
    Hostile.leave,
    Hostile.scribble,
    Hostile.hear,
    Hostile.fail,
)
_LABS: List[Lab] = []


def lab() -> Lab:
    """The server, started at its first use."""
    if not _LABS:
        _LABS.append(Lab())
    return _LABS[0]


def run(data: bytes) -> None:
    """Deeds by turns; then the server is looked at."""
    hostile = Hostile(lab(), Taker(data))
    try:
        for _deed in range(MOST_DEEDS):
            if hostile.taker.more:
                hostile.taker.pick(DEEDS)(hostile)
    finally:
        hostile.end()
    lab().check()


def settle() -> None:
    """Everything that a good client may want still works; then nothing is left of it."""
    lab().check_io()
    lab().check()
    lab().wait_until_idle()


def close() -> None:
    """Stop the server, if there is one."""
    if _LABS:
        _LABS.pop().close()


def seeds() -> Iterator[bytes]:
    """What was recorded of clients of the reference server, and a client that takes and gives back everything."""
    requests = [request for request, _reply in recorded()]
    for place in range(0, len(requests), 2):
        yield b"".join(
            b"\4" + bytes((len(request),)) + request + b"\0\0" + b"\x08" for request in requests[place : place + 2]
        )

    def ask(op: int, *values: bytes) -> bytes:
        return bytes((0, op)) + b"".join(values) + b"\0\0" + b"\0" + b"\0"

    everything = [ask(1), ask(2, b"\1\1"), ask(5, b"\0\1\0\x10"), ask(4, b"\0\6\1\1\0\0\1"), ask(7), ask(3, b"\1\1")]
    yield b"".join([*everything, ask(6, b"\1\1")])
    yield b"".join(everything[:3]) + b"\6\0\0"
    yield b"".join(everything[:2]) + b"\x09\1\0\0" + everything[-1] + everything[4]
    yield b"\5\1\0\0\x20\2\3\0\0" + b"\x08"


SERVER = Target(run, seeds, longest=384, settle=settle, close=close)
