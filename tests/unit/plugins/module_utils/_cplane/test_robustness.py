# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients, other programs and signals may do to a server: its books and its other clients stay as they are."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import emulated
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.config import EmulatedConfig
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.controller import (
    BAR0_NBYTES,
    Controller,
    MemoryStore,
)

REQUESTS = 104


def format_command() -> bytes:
    """Format NVM of namespace 1."""
    data = bytearray(64)
    struct.pack_into("<BBHI", data, 0, 0x80, 0, 7, 1)
    return bytes(data)


def status_times(client: Any, count: int = 200, index: int = 0) -> List[float]:
    """Seconds that each of some STATUS requests took."""
    times = []
    for _unused in range(count):
        begin = time.monotonic()
        assert client.status(index)["status"] == 0
        times.append(time.monotonic() - begin)
    return sorted(times)


def largest_buffer(client: Any) -> int:
    """How many MiB the heap still gives out in pieces of one."""
    offsets = []
    while True:
        status, data, _unused = client.ask(5, nbytes=("Q", 24, 1 << 20))
        if status:
            break
        offsets.append(struct.unpack_from("<Q", data, 32)[0])
    for offset in offsets:
        assert client.ask(6, offset=("Q", 32, offset))[0] == 0
    return len(offsets)


# -- clients that die ---------------------------------------------------------------------------------------------


def leave(client: Any) -> None:
    """Just end the connection."""
    client.sock.close()


def leave_in_the_middle(client: Any) -> None:
    """With half a message sent, and a descriptor."""
    null = os.open("/dev/null", os.O_RDONLY)
    client.sock.sendmsg([client.request(8, 0)[:50]], [(1, 1, struct.pack("i", null))])
    os.close(null)
    client.sock.close()


def leave_before_the_reply(client: Any) -> None:
    """While a queue pair is made."""
    client.sock.sendall(client.request(2, 0, depth=("H", 56, 16)))
    client.sock.close()


def leave_while_a_buffer_is_cleared(client: Any) -> None:
    """Which a thread does."""
    client.sock.sendall(client.request(5, nbytes=("Q", 24, 8 << 20)))
    client.sock.close()


def leave_with_requests_unread(client: Any) -> None:
    """Many of them."""
    client.sock.sendall((client.request(7) + client.request(1) + client.request(3, 0, qid=("I", 24, 2))) * 20)
    client.sock.close()


@pytest.mark.parametrize(
    "way",
    [
        leave,
        leave_in_the_middle,
        leave_before_the_reply,
        leave_while_a_buffer_is_cleared,
        leave_with_requests_unread,
    ],
)
def test_what_a_dead_client_held_is_released(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any], way: Callable[[Any], None]
) -> None:
    """Exactly that: descriptors, threads, processes, queues and memory are as they were, the other client's too."""
    server = start("emu:a", arguments=("--heap-size", str(40 << 20)))
    with raw(server) as other:
        other.init(0)
        other.pair(0, 16)
        other.buffer(4096)
        before, free = server.counts(), largest_buffer(other)
        for _unused in range(5):
            with raw(server) as client:
                client.init(0)
                for _unused in range(3):
                    client.pair(0, 64)
                client.buffer(5 << 20)
                client.buffer(100)
                way(client)
        wait_for(lambda: server.counts() == before)
        wait_for(lambda: largest_buffer(other) == free)
        found = other.status()
        assert (found["nclients"], found["nclients_ctrlr"], found["nqueues"]) == (0, 1, 1)


def test_a_client_with_thousands_of_buffers(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """All are freed, and nobody waits for it."""
    server = start("emu:a", arguments=("--heap-size", str(40 << 20)))
    with raw(server) as other:
        other.init(0)
        free = largest_buffer(other)
        with raw(server) as client:
            client.init(0)
            request = client.request(5, nbytes=("Q", 24, 1))
            for _unused in range(60):
                client.sock.sendall(request * 100)
                for _unused in range(100):
                    assert client.reply()[0][8:12] == bytes(4)
        assert status_times(other, 100)[90] < 0.02
        wait_for(lambda: largest_buffer(other) == free)


# -- clients that misbehave ---------------------------------------------------------------------------------------


def test_a_client_that_stops_reading(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Is let go after a while, and delays nobody meanwhile."""
    server = start("emu:a")
    with raw(server) as other:
        other.status()
        before = server.counts()
        with raw(server) as deaf:
            deaf.init(0)
            deaf.sock.settimeout(0.5)
            with pytest.raises(socket.timeout):
                while True:
                    deaf.sock.sendall(deaf.request(7) * 100)
            assert status_times(other)[180] < 0.05
            wait_for(lambda: server.counts() == before, 8)
            assert other.status()["nclients"] == 0


def test_a_client_that_reads_no_descriptors(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Replies with descriptors pile up only as far as a socket holds."""
    server = start("emu:a")
    with raw(server) as other:
        other.status()
        before = server.counts()
        with raw(server) as deaf:
            deaf.sock.settimeout(0.2)
            with pytest.raises((socket.timeout, ConnectionError)):
                while True:
                    deaf.sock.sendall(deaf.request(1) * 10)
            assert status_times(other)[180] < 0.05
        wait_for(lambda: server.counts() == before)


def test_a_client_that_reads_descriptors_late(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Gets every reply with its own, while the server reads no further requests of it."""
    server = start("emu:a")
    with raw(server) as other, raw(server) as late:
        late.sock.settimeout(0.3)
        sent = 0
        with contextlib.suppress(socket.timeout):
            while True:
                late.sock.sendall(late.request(1))
                sent += 1
        assert status_times(other)[180] < 0.05
        late.sock.settimeout(20)
        for _unused in range(sent):
            data, fds = late.reply()
            for fd in fds:
                os.close(fd)
            assert (len(data), data[:4], len(fds)) == (104, b"\x01\0\0\0", 2)
        assert other.status()["nclients"] == 1


def test_garbage(start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]) -> None:
    """Random bytes end in errors or in a closed connection, never in a leak."""
    server = start("emu:a")
    with raw(server) as other:
        other.status()
        before = server.counts()
        for seed in range(40):
            with raw(server) as client:
                noise = bytearray(os.urandom(104))
                if seed % 2:
                    struct.pack_into("<II", noise, 0, seed % 14, 4)
                client.sock.sendall(noise)
                reply, fds = client.reply()
                for fd in fds:
                    os.close(fd)
                assert len(reply) == 104
        wait_for(lambda: server.counts() == before)
        assert other.status()["nclients"] == 0


def test_many_descriptors_with_single_bytes(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """A server that kept them all would run out of its own."""
    server = start("emu:a")
    with raw(server) as other, raw(server) as client:
        client.status()
        before = server.counts()
        null = os.open("/dev/null", os.O_RDONLY)
        for _unused in range(60):
            client.sock.sendmsg([b"\x08"], [(1, 1, struct.pack("3i", null, null, null))])
        wait_for(lambda: server.counts()[0] <= before[0] + 1)
        client.close()
        os.close(null)
        wait_for(lambda: server.counts()[0] == before[0] - 1)
        assert other.status()["nclients"] == 0


def test_what_is_handed_out_cannot_be_truncated(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """A shorter heap would kill the server with a signal."""
    server = start("emu:a")
    with raw(server) as client:
        _unused, _unused, fds = client.ask(1)
        for fd in fds:
            for size in (0, 1 << 40):
                with pytest.raises(OSError, match="Operation not permitted"):
                    os.ftruncate(fd, size)
            os.close(fd)
        assert client.status()["status"] == 0
    assert server.process.poll() is None


def test_a_flood_delays_others_little(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Each connection has its turn."""
    server = start("emu:a")
    with raw(server) as other, raw(server) as flood:
        pid = os.fork()
        if pid == 0:
            try:
                flood.sock.settimeout(None)
                while True:
                    flood.sock.sendall(flood.request(7) * 50)
                    flood.sock.recv(104 * 50)
            finally:
                os._exit(0)
        try:
            flood.sock.close()
            times = status_times(other, 300)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert times[270] < 0.02


def test_the_65th_connection(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Is accepted and closed; its place is free again when somebody leaves."""
    server = start("emu:a")
    clients = [raw(server) for _unused in range(64)]
    assert clients[63].status()["nclients"] == 63
    with raw(server) as late:
        assert late.reply() == (b"", [])
    clients.pop().close()
    with raw(server) as late:
        assert late.status()["status"] == 0
    for client in clients:
        client.close()


def test_connections_of_no_use_give_way(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Half messages and silence keep nobody out for longer than five seconds; who holds something stays."""
    server = start("emu:a")
    client = raw(server)
    client.init(0)
    useless = [raw(server) for _unused in range(63)]
    for connection in useless[:60]:
        connection.sock.sendall(connection.request(7)[:60])
    assert useless[62].status()["nclients"] == 63

    def newcomer() -> Any:
        late = raw(server)
        with contextlib.suppress(BrokenPipeError):
            late.sock.sendall(late.request(7))
            if len(late.reply()[0]) == 104:
                return late
        late.close()
        return None

    begin = time.monotonic()
    newcomers = [wait_for(newcomer) for _unused in range(63)]
    assert time.monotonic() - begin > 4
    assert client.status()["nclients_ctrlr"] == 1
    for connection in (client, *useless, *newcomers):
        connection.close()


def test_doorbells_and_entries_that_make_no_sense(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """Are a status, or are not acted on; the controller lives on."""
    server = start("emu:a?size=1M")
    with raw(server) as client, raw(server) as other:
        _unused, heap, bar0 = client.init(0)
        _unused, other_heap, other_bar = other.init(0)
        children = server.children()
        queue = raw_queue(client, 0, heap, bar0, 16)
        target = client.buffer(3 << 20)
        nbytes = len(heap)
        assert queue.do(0x7F) == 0x4001
        assert queue.do(2, nsid=2, prp1=target) == 0x400B
        assert queue.do(2, nsid=0xFFFFFFFF, prp1=target) == 0x400B
        assert queue.do(2, prp1=target, lba=2048) == 0x4080
        assert queue.do(2, prp1=target, lba=2**64 - 1) == 0x4080
        assert queue.do(2, prp1=target, lba=2047, blocks=2) == 0x4080
        assert queue.do(2, prp1=target + 1) == 0x4013
        assert queue.do(2, prp1=target + 3584, blocks=2, prp2=target + 8) == 0x4013
        assert queue.do(2, prp1=target, blocks=64, prp2=target + 4) == 0x4013
        assert queue.do(2, prp1=nbytes - 4) == 0x4004
        assert queue.do(2, prp1=2**64 - 4096) == 0x4004
        assert queue.do(2, prp1=target, blocks=16, prp2=nbytes) == 0x4004
        assert queue.do(2, prp1=target, blocks=64, prp2=nbytes) == 0x4004
        assert queue.do(2, prp1=target, flags=0x40) == 0x4002
        # A list whose entries lead outside, and one that leads back into itself.
        struct.pack_into("<QQ", heap, target, 0, 2**63)
        assert queue.do(2, prp1=target + 4096, blocks=24, prp2=target) == 0x4004
        for bad in (16, 0xFFFF, 0xFFFFFFFF):
            queue.ring(bad)
        assert raw_queue(other, 0, other_heap, other_bar, 4).do(0) == 0
        queue.submit(0, 77)
        assert queue.reap() == (77, 0)
        # The head of the completion queue out of range: nothing is lost but time.
        bar0[0x400 + 2 * queue.qid + 1] = 0xFFFFFFFF
        assert queue.do(0) == 0
        assert server.children() == children


def test_clients_cannot_fool_the_server_through_the_heap(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """All of the heap and BAR0 is overwritten; what the server keeps is elsewhere."""
    server = start("emu:a", arguments=("--heap-size", str(10 << 20)))
    with raw(server) as client, raw(server) as other:
        record, heap, bar0 = client.init(0)
        (descriptor,) = struct.unpack_from("<Q", heap, record + 32)
        told = bytes(heap[record : record + 56]), bytes(heap[descriptor : descriptor + 32])
        registers = [bar0[word] for word in (0, 1, 2, 5, 7)]
        client.pair(0, 16)
        heap[:] = b"\xff" * len(heap)
        for word in range(len(bar0)):
            bar0[word] = 0xFFFFFFFF
        again, seen, bar0 = other.init(0)
        assert again == record
        assert (bytes(seen[record : record + 56]), bytes(seen[descriptor : descriptor + 32])) == told
        assert [bar0[word] for word in (0, 1, 2, 5, 7)] == registers
        queue = raw_queue(other, 0, *other.init(0)[1:], 16)
        assert queue.do(0) == 0


# -- long commands and dead controllers ---------------------------------------------------------------------------


def test_a_long_format_holds_only_its_own_controller(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any]
) -> None:
    """Others answer as ever, and STATUS of the same one does; its I/O says that a Format is in progress."""
    server = start("emu:a?format_time=1.5", "emu:b")
    with raw(server) as client, raw(server) as other:
        _unused, heap, bar0 = other.init(0)
        queue = raw_queue(other, 0, heap, bar0, 16)
        other.init(1)
        begin = time.monotonic()
        client.sock.sendall(client.request(4, 0, command=("64s", 24, format_command())))
        assert status_times(other, 100)[90] < 0.02
        assert status_times(other, 100, 1)[90] < 0.02
        pair = raw_queue(other, 1, *other.init(1)[1:], 16)
        assert pair.do(0) == 0
        assert queue.do(0) == 0x84
        assert time.monotonic() - begin < 1.4, "this machine is too slow for the test to mean anything"
        data, _unused = client.reply()
        assert time.monotonic() - begin >= 1.4
        assert struct.unpack_from("<i", data, 8)[0] == 0
        assert struct.unpack_from("<H", data, 102)[0] == 1
        assert queue.do(0) == 0


def test_a_command_that_takes_too_long(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """-ETIMEDOUT, and the controller is well again when it is done."""
    server = start("emu:a?format_time=0.6&timeout=400ms")
    with raw(server) as client:
        assert client.admin(format_command())[0] == -errno.ETIMEDOUT
        client.init(0)
        client.pair(0, 16)


def test_a_client_that_dies_during_a_format(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Its queues are deleted afterwards; commands that only waited for their turn are not executed."""
    server = start("emu:a?format_time=0.5")
    with raw(server) as other:
        other.status()
        before = server.counts()
        clients = [raw(server) for _unused in range(8)]
        for client in clients:
            client.init(0)
            client.pair(0, 16)
        for client in clients:
            client.sock.sendall(client.request(4, 0, command=("64s", 24, format_command())))
        other.status()
        begin = time.monotonic()
        for client in clients:
            client.close()
        wait_for(lambda: other.status()["nclients"] == 0)
        wait_for(lambda: server.counts() == before)
        other.init(0)
        for _unused in range(18):
            wait_for(lambda: other.ask(2, 0, depth=("H", 56, 16))[0] == 0)
        assert time.monotonic() - begin < 2.5


def identify_command(target: int) -> bytes:
    """Identify Controller into the heap at this offset."""
    data = bytearray(64)
    struct.pack_into("<BBHIQQQQQI", data, 0, 6, 0, 9, 0, 0, 0, target, 0, 1, 0)
    return bytes(data)


@contextlib.contextmanager
def formatting(raw: Callable[..., Any], server: Any) -> Iterator[Any]:
    """Controller 0 formats for as long as this lasts; its connection is given."""
    with raw(server) as busy:
        busy.sock.sendall(busy.request(4, 0, command=("64s", 24, format_command())))
        with raw(server) as other:
            other.status()
        yield busy


def test_dead_clients_that_wait_for_a_format_keep_no_place(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """However many of them there were."""
    server = start("emu:a?format_time=60", "emu:b")
    with formatting(raw, server), raw(server) as other:
        other.status()
        before = server.counts()
        for _unused in range(200):
            with raw(server) as client:
                client.sock.sendall(client.request(4, 0, command=("64s", 24, identify_command(4096))))
                other.status()  # so that the server has read it
        clients = [raw(server) for _unused in range(62)]
        assert [client.status(1)["status"] for client in clients] == [0] * 62
        for client in clients:
            client.close()
        wait_for(lambda: server.counts() == before)


def admin_without_data(client: Any) -> None:
    """Which waits for its turn."""
    client.sock.sendall(client.request(4, 0, command=("64s", 24, format_command())))


def admin_with_data(client: Any) -> None:
    """To a buffer of its own, and which waits for its turn."""
    client.sock.sendall(client.request(4, 0, command=("64s", 24, identify_command(client.buffer(4096)))))


def queue_pair(client: Any) -> None:
    """On the controller that is busy."""
    client.init(0)
    client.sock.sendall(client.request(2, 0, depth=("H", 56, 16)))


@pytest.mark.parametrize("waits_for", [admin_without_data, admin_with_data, queue_pair])
def test_a_dead_client_that_waits_for_a_format_frees_the_rest(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any], waits_for: Callable[[Any], None]
) -> None:
    """Its queues on the other controller, and then its buffers, while the Format still runs."""
    server = start("emu:a?format_time=60", "emu:b?queues=3", arguments=("--heap-size", str(20 << 20)))
    with raw(server) as other:
        other.init(1)
        free = largest_buffer(other)
        with formatting(raw, server), raw(server) as client:
            client.init(1)
            client.buffer(8 << 20)
            for _unused in range(3):
                client.pair(1, 16)
            waits_for(client)
            assert other.ask(2, 1, depth=("H", 56, 16))[0] == -errno.ENOSPC
            client.close()
            wait_for(lambda: largest_buffer(other) == free)
            for _unused in range(3):
                other.pair(1, 16)


def test_a_client_that_dies_during_its_own_format_frees_the_rest(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """A Format transfers no data, whatever its entry says."""
    server = start("emu:a?format_time=60", "emu:b?queues=3", arguments=("--heap-size", str(20 << 20)))
    with raw(server) as other:
        other.init(1)
        free = largest_buffer(other)
        with raw(server) as client:
            client.init(1)
            client.buffer(8 << 20)
            client.pair(1, 16)
            command = bytearray(format_command())
            struct.pack_into("<Q", command, 24, 8192)
            client.sock.sendall(client.request(4, 0, command=("64s", 24, bytes(command))))
            other.status()
            client.close()
            wait_for(lambda: largest_buffer(other) == free)
            for _unused in range(3):
                other.pair(1, 16)


def test_memory_that_a_busy_controller_may_reach_is_kept(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Buffers of a client with a queue there, also one whose deletion was taken back; all is freed afterwards."""
    server = start("emu:a?format_time=1", "emu:b", arguments=("--heap-size", str(20 << 20)))
    with raw(server) as other:
        other.init(1)
        free = largest_buffer(other)
        with raw(server) as client:
            client.init(0)
            client.buffer(8 << 20)
            qid = client.pair(0, 16)[3]
            with formatting(raw, server) as busy:
                client.sock.sendall(client.request(3, 0, qid=("I", 24, qid)))
                other.status()
                client.close()
                wait_for(lambda: other.status()["nclients"] == 1)
                assert largest_buffer(other) < free - 8
                assert other.status()["nqueues"] == 0
                busy.reply()
        wait_for(lambda: largest_buffer(other) == free)


def asks_a_controller(server: Any) -> bool:
    """Whether a thread of a server waits for an answer, in poll(2): number 7 on x86-64 (proc(5), /proc/PID/syscall).

    The loop waits in epoll_wait(2), threads without a job and those that want the interpreter in futex(2).
    """
    calls = [path.read_text() for path in Path(f"/proc/{server.pid}/task").glob("*/syscall")]
    return any(call.startswith("7 ") for call in calls)


def test_a_buffer_that_a_running_command_may_fill_is_kept(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Until the controller answered, or did not in time."""
    server = start("emu:a?timeout=10s", "emu:b", arguments=("--heap-size", str(20 << 20)))
    victim = server.children()[0]
    with raw(server) as other:
        other.init(1)
        free = largest_buffer(other)
        with raw(server) as client:
            client.init(1)
            target = client.buffer(8 << 20)
            os.kill(victim, signal.SIGSTOP)
            try:
                client.sock.sendall(client.request(4, 0, command=("64s", 24, identify_command(target))))
                # A command that no thread has begun would be taken back.
                wait_for(lambda: asks_a_controller(server))
                client.close()
                wait_for(lambda: other.status()["nclients"] == 0)
                assert largest_buffer(other) < free - 4
            finally:
                os.kill(victim, signal.SIGCONT)
        wait_for(lambda: largest_buffer(other) == free)


def test_a_controller_that_is_killed(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Its clients get errors, the others notice nothing, and the server says so."""
    server = start("emu:a", "emu:b")
    with raw(server) as client:
        _unused, heap, bar0 = client.init(0)
        victim = raw_queue(client, 0, heap, bar0, 16)
        queue = raw_queue(client, 1, *client.init(1)[1:], 16)
        os.kill(server.children()[0], signal.SIGKILL)
        wait_for(lambda: client.status(0)["nsq_total"] == 0)
        assert bar0[7] == 3, "CSTS.CFS tells clients that poll"
        assert client.admin(bytes([0x0A]) + bytes(63))[0] == -errno.EIO
        assert client.ask(2, 0, depth=("H", 56, 16))[0] == -errno.EIO
        assert client.ask(1, 0)[0] == -errno.EIO
        assert client.ask(3, 0, qid=("I", 24, victim.qid))[0] == 0
        found = client.status(0)
        assert (found["status"], found["nqueues"], found["ndevs"]) == (-errno.EIO, 0, 2)
        assert client.status(1)["nsq_total"] == 64
        assert queue.do(0) == 0
    assert "emu:a" in server.errors()
    assert "killed by signal 9" in server.errors()
    assert len(server.children()) == 1


def test_a_controller_killed_while_it_works(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """The request that waits for it is answered."""
    server = start("emu:a?format_time=60")
    with raw(server) as client:
        client.sock.sendall(client.request(4, 0, command=("64s", 24, format_command())))
        with raw(server) as other:
            other.status()
        os.kill(server.children()[0], signal.SIGKILL)
        data, _unused = client.reply()
        assert struct.unpack_from("<i", data, 8)[0] == -errno.EIO


def test_a_controller_that_hangs(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Times out; what its clients held is kept until it answers again, and released then."""
    server = start("emu:a?timeout=200ms", "emu:b", arguments=("--heap-size", str(10 << 20)))
    victim = server.children()[0]
    with raw(server) as other:
        other.init(1)
        free = largest_buffer(other)
        with raw(server) as client:
            client.init(0)
            qid = client.pair(0, 16)[3]
            client.pair(0, 16)
            os.kill(victim, signal.SIGSTOP)
            try:
                assert client.admin(bytes([0x0A]) + bytes(63))[0] == -errno.ETIMEDOUT
                assert client.ask(3, 0, qid=("I", 24, qid))[0] == -errno.ETIMEDOUT
                assert client.ask(2, 0, depth=("H", 56, 16))[0] == -errno.ETIMEDOUT
                assert status_times(other, 50)[45] < 0.02
                client.close()
                assert raw_queue(other, 1, *other.init(1)[1:], 16).do(0) == 0
                assert largest_buffer(other) < free - 8
            finally:
                os.kill(victim, signal.SIGCONT)
        assert other.ask(3, 1, qid=("I", 24, 2))[0] == 0
        wait_for(lambda: largest_buffer(other) == free)
        wait_for(lambda: other.ask(1, 0)[0] == 0)
        other.pair(0, 16)


def test_a_server_without_free_descriptors(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Serves those that it has, does not spin, and accepts again when there are some."""
    server = start("emu:a")
    with raw(server) as client:
        client.status()
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.counts()[0], hard))
        with raw(server) as waiting:
            waiting.sock.sendall(waiting.request(7))
            used = cpu_ticks(server)
            end = time.monotonic() + 0.7
            while time.monotonic() < end:
                assert client.status()["nclients"] == 0
                time.sleep(0.05)
            assert cpu_ticks(server) - used < os.sysconf("SC_CLK_TCK") // 4
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
            assert len(waiting.reply()[0]) == 104


# -- idle ---------------------------------------------------------------------------------------------------------


def tasks(server: Any) -> List[Path]:
    """Every thread of the server and of its controllers."""
    return [task for pid in (server.pid, *server.children()) for task in Path(f"/proc/{pid}/task").iterdir()]


def switches(server: Any) -> List[Tuple[str, List[str]]]:
    """The context switches of every thread."""
    found = []
    for task in tasks(server):
        lines = (task / "status").read_text().splitlines()
        found.append((task.name, [line for line in lines if "ctxt_switches" in line]))
    return sorted(found)


def wakings(server: Any) -> int:
    """How often its threads have stopped waiting."""
    lines = [line for _name, lines in switches(server) for line in lines]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def cpu_ticks(server: Any) -> int:
    """Clock ticks that the server and its controllers have used."""
    total = 0
    for task in tasks(server):
        fields = (task / "stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total


def test_idle_servers_sleep(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """With no queue nothing wakes over ten seconds; two with held queues cost less than 2 % of a core together."""
    still = start("emu:a", "emu:b", cplane_id=7)
    held = start("emu:c", "emu:d", cplane_id=8)
    with raw(still) as one, raw(held) as two:
        one.init(0)
        queues = [raw_queue(two, index, *two.init(index)[1:], 16) for index in (0, 0, 1)]
        assert [queue.do(0) for queue in queues] == [0, 0, 0]

        def settled() -> bool:
            before = switches(still)
            time.sleep(0.3)
            return switches(still) == before

        wait_for(settled)
        quiet, used, woken, begin = switches(still), cpu_ticks(held), wakings(held), time.monotonic()
        time.sleep(10.2)
        assert switches(still) == quiet
        seconds = time.monotonic() - begin
        assert (cpu_ticks(held) - used) / os.sysconf("SC_CLK_TCK") / seconds < 0.02
        # A nap of 20 ms each; more only as they began to be idle.
        assert (wakings(held) - woken) / seconds < 2 * 50 * 1.2
        assert [queue.do(0) for queue in queues] == [0, 0, 0]


@pytest.mark.parametrize(
    ("idle", "nap"), [(0.0001, 0.0), (0.002, 0.0001), (0.1, 0.005), (0.3, 0.015), (0.5, 0.02), (3600.0, 0.02)]
)
def test_a_nap_is_a_twentieth_of_the_idle_time(idle: float, nap: float) -> None:
    """So much later is the first command after a pause seen, at the most; never more than 20 ms."""
    config = EmulatedConfig("a", size=4096)
    words = memoryview(bytearray(BAR0_NBYTES)).cast("I")
    controller = Controller(config, memoryview(bytearray(8192)), words, MemoryStore(4096))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert emulated._Process(controller, ours)._pause(idle, 1.0) == pytest.approx(nap)


# -- the place of the socket --------------------------------------------------------------------------------------


def test_a_second_start_does_not_disturb_the_first(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """Whoever accepts there is left alone; the second says why it ends."""
    first = start("emu:a")
    with raw(first) as client:
        second = start("emu:a", wait=False)
        assert second.process.wait(10) == 1
        assert "id 7 is served already" in second.errors()
        assert "Traceback" not in second.errors()
        assert client.status()["status"] == 0
        with raw(first) as another:
            assert another.status()["ndevs"] == 1
    assert sorted(name for name in os.listdir(first.directory) if "homi" in name) == ["xnvme-homi-7.sock"]


def test_another_program_that_listens_is_left_alone(start: Callable[..., Any], tmp_path: Path) -> None:
    """Such as the reference server; also when its backlog is full."""
    path = str(tmp_path / "xnvme-homi-7.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen(0)
        client.connect(path)
        inode = os.stat(path).st_ino
        server = start("emu:a", wait=False)
        assert server.process.wait(10) == 1
        assert "served already" in server.errors()
        assert os.stat(path).st_ino == inode


def test_a_stale_socket_is_no_obstacle(start: Callable[..., Any], raw: Callable[..., Any], tmp_path: Path) -> None:
    """Also one that a killed server of ours left."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "xnvme-homi-7.sock"))
    first = start("emu:a")
    children = first.children()
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    server = start("emu:a")
    with raw(server) as client:
        assert client.status()["status"] == 0
    assert not any(os.path.exists(f"/proc/{pid}/exe") and _alive(pid) for pid in children)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def make_file(path: Path) -> None:
    """A regular file."""
    path.write_text("somebody's")


def make_link(path: Path) -> None:
    """A link to a socket that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path.with_name("elsewhere")))
    path.symlink_to("elsewhere")


def make_folder(path: Path) -> None:
    """A directory."""
    path.mkdir()


def make_foreign(path: Path) -> None:
    """A dead socket of another user."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "make",
    [
        make_file,
        make_link,
        make_folder,
        pytest.param(
            make_foreign, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
        ),
    ],
)
def test_what_is_not_ours_is_refused(start: Callable[..., Any], tmp_path: Path, make: Callable[[Path], None]) -> None:
    """And stays."""
    path = tmp_path / "xnvme-homi-7.sock"
    make(path)
    before = os.lstat(path)
    server = start("emu:a", wait=False)
    assert server.process.wait(10) == 1
    assert "left as it is" in server.errors()
    assert "Traceback" not in server.errors()
    assert os.lstat(path).st_ino == before.st_ino
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_lock_that_is_not_ours_is_refused(start: Callable[..., Any], tmp_path: Path) -> None:
    """It is a name that others may take, too."""
    (tmp_path / ".xnvme-homi-7.lock").symlink_to("victim")
    server = start("emu:a", wait=False)
    assert server.process.wait(10) == 1
    assert "cannot lock" in server.errors()
    assert not (tmp_path / "victim").exists()


def test_only_our_own_socket_is_removed(start: Callable[..., Any], tmp_path: Path) -> None:
    """One that took our place is somebody else's."""
    server = start("emu:a")
    path = tmp_path / "xnvme-homi-7.sock"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    assert server.stop() == 0
    assert path.exists()


def test_many_starts_at_once(start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any]) -> None:
    """Exactly one of them serves."""
    servers = [start("emu:a", wait=False) for _unused in range(5)]
    wait_for(lambda: sum(server.process.poll() is None for server in servers) == 1, 20)
    winner = next(server for server in servers if server.process.poll() is None)
    winner.ready()
    with raw(winner) as client:
        assert client.status()["ndevs"] == 1
    assert all(server.process.returncode == 1 for server in servers if server is not winner)


# -- signals and settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly(
    start: Callable[..., Any], raw: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    """Within about a second, with clients connected and a Format running."""
    server = start("emu:a?format_time=60", "emu:b")
    children = server.children()
    with raw(server) as client, raw(server) as other:
        other.init(1)
        other.pair(1, 16)
        client.sock.sendall(client.request(4, 0, command=("64s", 24, format_command())))
        other.status()
        begin = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - begin < 1.5
        assert other.reply() == (b"", [])
    assert not any(_alive(pid) for pid in children)
    assert sorted(os.listdir(tmp_path)) == ["server.err"]
    assert server.errors() == ""


def test_signals_to_the_whole_group(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """A terminal and a service manager send them to the controllers, too, which leave them to the server."""
    server = start("emu:a")
    for pid in server.children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    with raw(server) as client:
        assert client.status()["nsq_total"] == 64
        client.init(0)
        client.pair(0, 16)


def test_controllers_die_with_a_server_that_is_killed(start: Callable[..., Any], wait_for: Callable[..., Any]) -> None:
    """The kernel sees to it."""
    server = start("emu:a", "emu:b")
    children = server.children()
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_for(lambda: not any(_alive(pid) for pid in children))


def test_settings_apply_live(
    start: Callable[..., Any], raw: Callable[..., Any], wait_for: Callable[..., Any], tmp_path: Path
) -> None:
    """SIGHUP has them read again; a file that is wrong changes nothing, and says so."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"socket_mode": "0600"}))
    server = start("emu:a", arguments=("--settings", str(settings)))
    assert os.stat(server.path).st_mode & 0o777 == 0o600
    with raw(server) as client:
        group = str(os.getegid())
        settings.write_text(json.dumps({"socket_mode": "0666", "socket_group": group, "allow_uids": [4242]}))
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: os.stat(server.path).st_mode & 0o777 == 0o666)
        wait_for(lambda: "read again" in server.errors())
        for wrong in (
            "{",
            "[]",
            '{"mode": 1}',
            '{"socket_mode": 432}',
            '{"allow_uids": ["root"]}',
            '{"socket_group": "no such group"}',
            '{"socket_group": "\u00b2"}',
            '{"socket_group": "\\u0000"}',
            '{"socket_group": 4294967295}',
            '{"socket_group": 99999999999}',
            "[" * 100000,
        ):
            said = server.errors().count("stay as they were")
            settings.write_text(wrong)
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda said=said: server.errors().count("stay as they were") == said + 1)
        assert os.stat(server.path).st_mode & 0o777 == 0o666
        assert client.status()["status"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_only_users_of_the_list_are_served(start: Callable[..., Any], raw: Callable[..., Any], tmp_path: Path) -> None:
    """By the credentials that the kernel vouches for."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    server = start("emu:a", arguments=("--socket-mode", "0666", "--allow-uid", "4242", "--allow-gid", "777"))
    assert _as_user(4242, 1, server.path) == 104
    assert _as_user(4243, 777, server.path) == 104
    assert _as_user(4243, 1, server.path) == 0
    with raw(server) as client:
        assert client.status()["nclients"] == 0


def _as_user(uid: int, gid: int, path: str) -> int:
    """How many bytes a STATUS of this user is answered with."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(path)
                try:
                    sock.sendall(struct.pack("<II", 7, 4) + bytes(96))
                    answer = len(sock.recv(104))
                except ConnectionError:
                    answer = 0
            os._exit(answer)
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_socket_is_not_open_to_everybody(start: Callable[..., Any]) -> None:
    """0660 whatever the umask."""
    before = os.umask(0)
    try:
        server = start("emu:a")
    finally:
        os.umask(before)
    assert os.stat(server.path).st_mode & 0o777 == 0o660


def test_the_service_manager_is_told(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY when clients can connect, RELOADING and READY again around new settings, STOPPING at the end."""
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = start("emu:a", arguments=("--settings", str(settings)))
        assert manager.recv(100) == b"READY=1"
        for text in ('{"socket_mode": "0600"}', '{"socket_mode": "0999"}', "{"):
            settings.write_text(text)
            before = time.monotonic_ns() // 1000
            server.process.send_signal(signal.SIGHUP)
            began = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=([0-9]+)", manager.recv(100))
            assert began and before <= int(began.group(1)) <= time.monotonic_ns() // 1000
            assert manager.recv(100) == b"READY=1"
            assert os.stat(server.path).st_mode & 0o777 == 0o600
        server.stop()
        assert manager.recv(100) == b"STOPPING=1"


def test_the_service_manager_is_told_why_a_start_failed(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the process ends: the descriptor of the barrier comes last."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = start("ffff:fe:1f.7", wait=False)
        assert b"STATUS=ffff:fe:1f.7: there is no such PCI device on this host" in manager.recv(1000)
        data, rights, _flags, _address = manager.recvmsg(100, socket.CMSG_SPACE(4))
        assert (data, len(rights)) == (b"BARRIER=1", 1)
        assert server.process.poll() is None
        os.close(int.from_bytes(rights[0][2], sys.byteorder))
        assert server.process.wait(10) == 1


def test_data_in_a_file_lasts(
    start: Callable[..., Any], raw: Callable[..., Any], raw_queue: Callable[..., Any], tmp_path: Path
) -> None:
    """What was written before a stop is read after the next start; two servers cannot have one file."""
    path = tmp_path / "disk"
    config = f"emu:a?size=1M&path={path}"
    server = start(config)
    with raw(server) as client:
        _unused, heap, bar0 = client.init(0)
        queue, target = raw_queue(client, 0, heap, bar0, 16), client.buffer(4096)
        heap[target : target + 512] = b"lasting!" * 64
        assert queue.do(1, prp1=target, lba=5) == 0
        second = start(config, cplane_id=8, wait=False)
        assert second.process.wait(10) == 1
        assert "in use" in second.errors()
    server.stop()
    assert path.read_bytes()[2560:3072] == b"lasting!" * 64
    server = start(f"emu:other?path={path}")
    with raw(server) as client:
        _unused, heap, bar0 = client.init(0)
        queue, target = raw_queue(client, 0, heap, bar0, 16), client.buffer(4096)
        assert queue.do(2, prp1=target, lba=5) == 0
        assert heap[target : target + 512] == b"lasting!" * 64
        os.truncate(path, 1024)
        assert queue.do(2, prp1=target, lba=5) == 0x281
        assert queue.do(2, prp1=target, lba=0) == 0
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    missing = start(f"emu:a?path={tmp_path}/none", cplane_id=9, wait=False)
    assert missing.process.wait(10) == 1
    assert "No such file" in missing.errors()
