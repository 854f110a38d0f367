# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole sessions of a client that was written from the wire table and the NVMe specification alone."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any, Callable, List

import pytest

IDENTIFY = struct.Struct("<BBHI16xQQ5I")


def admin_command(opcode: int, nsid: int = 0, prp1: int = 0, cdw10: int = 0, cdw11: int = 0) -> bytes:
    """64 bytes."""
    data = bytearray(64)
    struct.pack_into("<BBHI", data, 0, opcode, 0, 0x1234, nsid)
    struct.pack_into("<Q", data, 24, prp1)
    struct.pack_into("<II", data, 40, cdw10, cdw11)
    return bytes(data)


def test_a_full_session(start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]) -> None:
    """Records, a buffer, Identify into it, a queue pair, Write and Read, 600 commands at depth 2."""
    server = start("emu:a?size=16M", "emu:b?lba=4096")
    with raw(server) as client:
        record, heap, bar0 = client.init(0)
        version, timeout, cap, cc, _unused, nbytes, descriptor, bdf = struct.unpack_from("<IIQIIQQ16s", heap, record)
        assert (version, nbytes) == (1, len(heap))
        assert len(heap) == 2 * 80 * 2**20
        assert timeout > 0
        assert cap == bar0[0] | bar0[1] << 32
        assert cc == bar0[5]
        assert cap & 0xFFFF == 1023
        assert bar0[2] == 0x00010400
        assert bar0[7] == 1
        assert bdf.split(b"\0")[0].decode() == client.status(0)["bdf"]
        assert struct.unpack_from("<IIQQ", heap, descriptor) == (1, 2, len(heap), 0)

        target = client.buffer(4096)
        heap[target : target + 4096] = b"\xaa" * 4096
        status, _unused, field = client.admin(admin_command(6, 0, target, 1))
        assert (status, field) == (0, 1)
        assert bytes(heap[target + 24 : target + 64]).startswith(b"iofabric emulated NVMe controller")
        status, _unused, field = client.admin(admin_command(6, 1, target, 0))
        assert (status, field) == (0, 1)
        blocks, _unused, _unused = struct.unpack_from("<QQQ", heap, target)
        flbas = heap[target + 26] & 15
        assert blocks << heap[target + 128 + 4 * flbas + 2] == 16 << 20

        queue = raw_queue(client, 0, heap, bar0, 2)
        assert queue.qid >= 2
        pattern = os.urandom(4096)
        heap[target : target + 4096] = pattern
        assert queue.do(1, prp1=target, lba=8, blocks=8) == 0
        heap[target : target + 4096] = bytes(4096)
        assert queue.do(2, prp1=target, lba=8, blocks=8) == 0
        assert heap[target : target + 4096] == pattern
        for number in range(600):
            assert queue.do(2, cid=number, prp1=target, lba=8, blocks=8) == 0
        assert queue.do(0) == 0
        assert client.status(0)["nqueues"] == 1
        assert client.ask(3, 0, qid=("I", 24, queue.qid))[0] == 0
        assert client.ask(3, 0, qid=("I", 24, queue.qid))[0] == -errno.ENOENT
        assert client.ask(6, offset=("Q", 32, target))[0] == 0
        assert client.ask(6, offset=("Q", 32, target))[0] == -errno.ENOENT


def test_a_burst_through_a_deep_queue(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """Many entries for one doorbell, around the end of the queue, each answered once."""
    server = start("emu:a")
    with raw(server) as client:
        _unused, heap, bar0 = client.init(0)
        queue = raw_queue(client, 0, heap, bar0, 64)
        target = client.buffer(4096)
        for turn in range(5):
            for number in range(63):
                queue.submit(2, 100 * turn + number, prp1=target, lba=number, ring=False)
            queue.ring(queue.tail)
            assert [queue.reap() for _unused in range(63)] == [(100 * turn + number, 0) for number in range(63)]


def test_two_clients_share_a_controller(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """What one writes, the other reads; each has a queue of its own."""
    server = start("emu:a")
    with raw(server) as one, raw(server) as other:
        _unused, heap, bar0 = one.init(0)
        _unused, other_heap, other_bar = other.init(0)
        here, there = one.buffer(4096), other.buffer(4096)
        assert here != there
        heap[here : here + 4096] = b"shared!!" * 512
        first, second = raw_queue(one, 0, heap, bar0, 16), raw_queue(other, 0, other_heap, other_bar, 16)
        assert first.qid != second.qid
        assert first.do(1, prp1=here, blocks=8) == 0
        assert second.do(2, prp1=there, blocks=8) == 0
        assert other_heap[there : there + 4096] == b"shared!!" * 512
        found = one.status()
        assert (found["nclients"], found["nclients_ctrlr"], found["nqueues"]) == (1, 2, 2)


@pytest.mark.parametrize("depth", [0, 1, 1025, 65535])
def test_depths_that_cannot_be(start: Callable[..., Any], raw: Callable[..., Any], depth: int) -> None:
    """Zero, and what MQES or the lists do not hold."""
    server = start("emu:a")
    with raw(server) as client:
        client.init(0)
        assert client.ask(2, 0, depth=("H", 56, depth))[0] == -errno.EINVAL
        client.pair(0, 1024)
        client.pair(0, 2)


def test_errors(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Everything that the table names."""
    server = start("emu:a", "emu:b")
    null = os.open("/dev/null", os.O_RDONLY)
    with raw(server) as client:
        for op in (1, 2, 3, 4, 7):
            assert client.ask(op, 2)[0] == -errno.ERANGE
        for op in (2, 10, 11):
            assert client.ask(op, 0)[0] == -errno.ENOTCONN
        assert client.ask(5, nbytes=("Q", 24, 4096))[0] == -errno.ENOTCONN
        assert client.ask(8, nbytes=("Q", 24, 4096))[0] == -errno.EINVAL
        client.init(1)
        assert client.ask(2, 0, depth=("H", 56, 16))[0] == -errno.ENOTCONN
        assert client.ask(5, 99, nbytes=("Q", 24, 2**63))[0] == -errno.ENOMEM
        assert client.ask(5, nbytes=("Q", 24, 0))[0] == -errno.EINVAL
        for op in (9, 10, 11):
            assert client.ask(op, 1, depth=("H", 52, 16))[0] == -errno.ENOENT
        before = server.counts()
        for _unused in range(20):
            client.sock.sendmsg(
                [client.request(8, 1, nbytes=("Q", 24, 4096), page_size=("I", 40, 4096))],
                [(1, 1, struct.pack("3i", null, null, null))],
            )
            data, _unused = client.reply()
            assert struct.unpack_from("<i", data, 8)[0] == -errno.EOPNOTSUPP
        assert server.counts() == before
    os.close(null)


def test_memory_is_cleared_and_does_not_overlap(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Also the one that another client left."""
    server = start("emu:a", arguments=("--heap-size", str(16 << 20)))
    with raw(server) as client:
        _unused, heap, _unused = client.init(0)
        sizes = [1, 64, 4096, 4097, 300000, 1 << 20]
        offsets = [client.buffer(size) for size in sizes]
        ranges = sorted((offset, offset + size) for offset, size in zip(offsets, sizes))
        assert all(end <= begin for (_unused, end), (begin, _unused) in zip(ranges, ranges[1:]))
        assert all(offset % 4096 == 0 for offset in offsets)
        for begin, end in ranges:
            assert not any(heap[begin:end])
            heap[begin:end] = b"\xff" * (end - begin)
    with raw(server) as client:
        _unused, heap, _unused = client.init(0)
        for size in sizes:
            offset = client.buffer(size)
            assert not any(heap[offset : offset + size])


def test_queues_are_bounded_per_connection_and_controller(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """64 pairs a connection; a controller's ids run out before that when it has fewer."""
    server = start("emu:a?queues=64", "emu:b?queues=3", arguments=("--heap-size", str(160 << 20)))
    with raw(server) as client:
        client.init(0)
        client.init(1)
        assert sorted(client.pair(1, 2)[3] for _unused in range(3)) == [1, 2, 3]
        assert client.ask(2, 1, depth=("H", 56, 2))[0] == -errno.ENOSPC
        qids = [client.pair(0, 2)[3] for _unused in range(61)]
        assert len(set(qids)) == 61
        assert client.ask(2, 0, depth=("H", 56, 2))[0] == -errno.ENOSPC
        assert client.ask(3, 1, qid=("I", 24, 3))[0] == 0
        client.pair(0, 2)


def test_a_heap_that_is_full(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Is told, and what is given back can be had again."""
    server = start("emu:a", arguments=("--heap-size", str(10 << 20)))
    with raw(server) as client:
        client.init(0)
        pairs = [client.pair(0, 16) for _unused in range(2)]
        assert client.ask(2, 0, depth=("H", 56, 16))[0] == -errno.ENOMEM
        assert client.ask(5, nbytes=("Q", 24, 4 << 20))[0] == -errno.ENOMEM
        assert client.ask(3, 0, qid=("I", 24, pairs[0][3]))[0] == 0
        assert client.pair(0, 16)[:3] == pairs[0][:3]


def test_pipelined_requests_are_answered_in_order(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Whether a thread answers them or the loop does."""
    server = start("emu:a", "emu:b")
    with raw(server) as client:
        client.init(0)
        requests: List[bytes] = []
        for _unused in range(20):
            requests.append(client.request(7, 1))
            requests.append(client.request(4, 0, command=("64s", 24, admin_command(0x0A, cdw10=7))))
            requests.append(client.request(2, 0, depth=("H", 56, 8)))
            requests.append(client.request(5, nbytes=("Q", 24, 1 << 19)))
        client.sock.sendall(b"".join(requests))
        for request in requests:
            data, _unused = client.reply()
            assert data[:4] == request[:4]


def test_queue_commands_of_clients_are_refused(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """They would take what the server keeps the books of; wrong ones get the status that any controller gives."""
    server = start("emu:a")
    with raw(server) as client:
        _unused, heap, bar0 = client.init(0)
        queue = raw_queue(client, 0, heap, bar0, 16)
        memory = client.buffer(65536)
        denied, bad_id = 0x15 << 1 | 0x8001, 0x101 << 1 | 0x8001
        assert client.admin(admin_command(0, cdw10=queue.qid)) == (0, 0, denied)
        assert client.admin(admin_command(4, cdw10=queue.qid)) == (0, 0, 0x10C << 1 | 0x8001)
        assert client.admin(admin_command(4, cdw10=60)) == (0, 0, bad_id)
        assert client.admin(admin_command(5, prp1=memory, cdw10=15 << 16 | queue.qid, cdw11=1)) == (0, 0, bad_id)
        assert client.admin(admin_command(5, prp1=memory, cdw10=15 << 16 | 60, cdw11=1)) == (0, 0, denied)
        # It still works, and an event request does not hold the controller up.
        assert client.admin(admin_command(0x0C)) == (0, 0, 0x105 << 1 | 0x8001)
        assert queue.do(0) == 0
