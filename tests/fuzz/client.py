# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client whose server is hostile: any replies, whole or in pieces, with any descriptors, and any shared memory."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Callable, Dict, Iterator, List, Tuple
from unittest import mock

from ...plugins.module_utils._cplane import client, nvme, qpair, wire
from ...plugins.module_utils._cplane.client import Connection
from ...plugins.module_utils._cplane.errors import CplaneError
from ...plugins.module_utils._cplane.heap import KIND_ARITHMETIC, KIND_TABLE, Descriptor, Record
from ...plugins.module_utils._cplane.wire import Message, Op
from .target import Taker, Target

HEAP, BAR0 = 1 << 16, 1 << 14
_COUNTS = (0, 0, 0, 1, 2, 2, 2, 3)


class Server:
    """Says everything before it is asked anything, and keeps one end of the connection open or not."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self.ours, self._theirs = socket.socketpair()
        self._files: List[int] = []
        self._open = taker.number() == 255
        self.timeout = 0.002 if self._open else 5.0

    def speak(self) -> None:
        """Replies by turns: whole ones that fit an operation, and bytes as they come."""
        taker = self._taker
        for _reply in range(taker.number() % 12):
            data = self._reply() if taker.flag() else taker.chunk()
            cut = taker.number() % 256
            self._send(data[:cut], _COUNTS[taker.number() % 8])
            self._send(data[cut:], taker.number() % 4 if taker.number() > 240 else 0)
        if not self._open:
            self._theirs.shutdown(socket.SHUT_WR)

    def _reply(self) -> bytes:
        taker = self._taker
        values: Dict[str, wire.Value] = {}
        op = taker.number() % 12
        for field in wire.REPLY_FIELDS.get(op, ()):
            if field.code.endswith("s"):
                values[field.name] = taker.chunk()[: int(field.code[:-1])]
            else:
                values[field.name] = self._number(struct.calcsize(field.code))
        status = [0, 0, 0, -5, -71, 1 << 31, 1, -22][taker.number() % 8]
        message = Message(op, taker.number(), values, nfds=taker.number() % 4)
        data = message.encode_reply()
        version = 4 if taker.number() < 250 else taker.number()
        return data[:4] + struct.pack("<I", version) + struct.pack("<I", status & 0xFFFFFFFF) + data[12:]

    def _number(self, size: int) -> int:
        """Mostly what could be meant: a small number, or a whole page of the heap."""
        kind = self._taker.number() % 4
        value = HEAP if kind == 3 else self._taker.number(size if kind == 2 else 1)
        return (value << 12 if kind == 0 else value) & (1 << 8 * size) - 1

    def _send(self, data: bytes, count: int) -> None:
        if not data:
            return
        files = [self._file() for _file in range(count)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{count}i", *files))] if files else []
        with contextlib.suppress(BlockingIOError):
            self._theirs.sendmsg([data], rights, socket.MSG_DONTWAIT)
        wire.close_all(files)

    def _file(self) -> int:
        """A descriptor: memory that holds records, memory of any other size, or what cannot be mapped."""
        taker = self._taker
        kind = taker.number() % 8
        if kind == 6:
            return os.open("/dev/null", os.O_RDONLY)
        if kind == 7:
            ours, theirs = os.pipe()
            os.close(theirs)
            return ours
        memory = os.memfd_create("fuzz")
        os.truncate(memory, HEAP if kind < 4 else taker.number(2))
        if kind < 4:
            os.pwrite(memory, self._record(), 4096)
            os.pwrite(memory, self._descriptor(), 8192)
            os.pwrite(memory, taker.chunk(), taker.number(2))
        return memory

    def _record(self) -> bytes:
        taker = self._taker
        cap = nvme.CSTS_RDY << 37 if taker.flag() else taker.number(8)
        return Record(10000, cap, nvme.CC_ENABLED, HEAP, 8192, "0000:81:00.0").pack()

    def _descriptor(self) -> bytes:
        taker = self._taker
        kind = KIND_ARITHMETIC if taker.flag() else KIND_TABLE
        base = taker.number(8) if taker.flag() else 0
        phys = tuple(taker.number(8) for _page in range(taker.number() % 4))
        return Descriptor(kind, taker.number(5) if taker.flag() else HEAP, base, 12, phys).pack()

    def close(self) -> None:
        """End what is left of it."""
        self.ours.close()
        self._theirs.close()


def run(data: bytes) -> None:
    """All that a client may ask; what comes of it is an answer or a CplaneError, and nothing stays open."""
    before = len(os.listdir("/proc/self/fd"))
    taker = Taker(data)
    ask = taker.pick(ASKED)
    server = Server(taker)
    server.speak()
    with mock.patch.object(client, "_connect", lambda _path, _timeout: server.ours):
        try:
            ask(taker, server.timeout)
        except CplaneError as error:
            assert error.message.isprintable()
        finally:
            server.close()
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"


def ask_about(_taker: Taker, timeout: float) -> None:
    """What xnvme_cplane_info asks."""
    found = client.read_server(7, timeout=timeout)
    assert 1 <= len(found.controllers) <= client.MAX_CTRLRS
    assert all(one.uri.isascii() and one.uri.isprintable() for one in found.controllers)


def ask_one(taker: Taker, timeout: float) -> None:
    """One operation after the other on one connection."""
    with Connection("fuzz", timeout) as connection:
        while taker.more:
            taker.pick(OPERATIONS)(connection)


def init(connection: Connection) -> None:
    """Both descriptors are the caller's to close."""
    attachment = connection.init(0)
    assert attachment.heap_fd >= 0
    attachment.close()


OPERATIONS: Tuple[Callable[[Connection], object], ...] = (
    init,
    lambda connection: connection.alloc_ioqpair(0, 16),
    lambda connection: connection.free_ioqpair(0, 2),
    lambda connection: connection.admin(0, bytes(64)),
    lambda connection: connection.alloc_buf(4096),
    lambda connection: connection.free_buf(4096),
    lambda connection: connection.status(0),
    lambda connection: connection.register_mem(0, 0, 4096, 4096),
    lambda connection: connection.unregister_mem(0, 4096),
    lambda connection: connection.alloc_ioqpair_at(0, 4096, 8192, 12288, 16),
    lambda connection: connection.alloc_ioqpair_cq_at(0, 4096, 8192, 16),
)


def attach(taker: Taker, timeout: float) -> None:
    """Map what is handed over, and use a queue pair in it."""
    with Connection("fuzz", timeout) as connection, qpair.Attached(connection, 0) as attached:
        attached.admin(nvme.command(nvme.IDENTIFY))
        queue = attached.queue_pair(16)
        for _command in range(1 + taker.number() % 40):
            queue.transfer(nvme.READ, 1, taker.number(), 1, taker.number() << 12, 1 + taker.number(2), 1)
            queue.poll()
        with contextlib.suppress(CplaneError):
            queue.wait(0.0)
        queue.close()


ASKED: Tuple[Callable[[Taker, float], None], ...] = (ask_about, ask_one, attach, attach)


def _plain(op: Op, *values: int, fds: int = 0) -> bytes:
    """A whole reply: flag, operation, its fields, status, index, nfds, version, then cut and descriptors."""
    fields = b"".join(b"\2" + value.to_bytes(size, "little") for value, size in zip(values, _sizes(op)))
    return bytes((1, op)) + fields + bytes((0, 0, fds, 0)) + bytes((255, [0, 3, 4, 7][fds]))


def _sizes(op: Op) -> List[int]:
    return [struct.calcsize(field.code) for field in wire.REPLY_FIELDS[op]]


def seeds() -> Iterator[bytes]:
    """A server that works, as far as each of the callers goes."""
    memory = b"\0" + b"\1" + b"\1\0\0\0" + b"\0\0\0"
    handed = _plain(Op.INIT_CONNECTION, 4096, HEAP, BAR0, fds=2) + memory * 2 + b"\0"
    admin = bytes((1, Op.ADMIN_CMD)) + b"\0" + bytes(4) + bytes((255, 0)) + b"\0"
    pair = _plain(Op.ALLOC_IOQPAIR, 0x3000, 0x4000, 0x5000, 2, 16) + b"\0"
    yield b"\2\0" + b"\3" + handed + admin + pair + bytes((9,)) + b"\1\1\0\1" * 10
    status = bytes((1, Op.STATUS)) + b"\1\1" * 6 + b"\x0c0000:81:00.0" + bytes(4) + b"\xff\0\0"
    yield b"\0\0\4" + status * 4
    for place, op in enumerate(Op):
        yield (
            b"\1\0\2" + (bytes((1, op)) + b"\1\1" * len(_sizes(op)) + bytes(4) + b"\xff\0\0") + b"\0" + bytes((place,))
        )


CLIENT = Target(run, seeds, longest=1024)
