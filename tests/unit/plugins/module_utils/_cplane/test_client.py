# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The client against servers that replay, lie, stall and die."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import client, wire
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
    CplaneError,
    NotServed,
    RequestFailed,
    ServerClosed,
    ServerTimeout,
    UnsafePath,
    VersionMismatch,
    WireError,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.wire import Message, Op

SAMPLE: Dict[str, Any] = json.loads((Path(__file__).parent / "samples" / "reference-server-vfio.json").read_text())
Script = Callable[[socket.socket], None]


def open_fds() -> List[str]:
    """The descriptors of this process."""
    return sorted(os.listdir("/proc/self/fd"))


class FakeServer:
    """Accepts at the place of an id and hands every connection to a script, one after the other."""

    def __init__(self, directory: Path, cplane_id: int, script: Script) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(client.socket_path(cplane_id, str(directory)))
        self._listener.listen(8)
        self._script = script
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _unused = self._listener.accept()
            except OSError:
                return
            with peer:
                self._script(peer)

    def close(self) -> None:
        """Stop accepting, and wait for the script that runs."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Start fake servers in tmp_path."""
    servers: List[FakeServer] = []

    def start(script: Script, cplane_id: int = 7) -> None:
        servers.append(FakeServer(tmp_path, cplane_id, script))

    yield start
    for server in servers:
        server.close()


def read_request(sock: socket.socket) -> Optional[Message]:
    """The next request, None at the end of the connection."""
    data = b""
    while len(data) < wire.SIZE:
        piece = sock.recv(wire.SIZE - len(data))
        if not piece:
            return None
        data += piece
    return Message.decode_request(data)


def replier(make: Callable[[Message], bytes], fds: int = 0) -> Script:
    """A script that answers each request with what make returns, and that many descriptors."""

    def script(sock: socket.socket) -> None:
        request = read_request(sock)
        while request is not None:
            reply = make(request)
            handed = [os.open("/dev/null", os.O_RDONLY) for _unused in range(fds)]
            sock.sendmsg([reply], wire.rights(handed))
            wire.close_all(handed)
            if len(reply) < wire.SIZE:
                return
            request = read_request(sock)

    return script


def ok_status(request: Message, ndevs: int = 2, status: int = 0) -> bytes:
    """A plain reply to STATUS."""
    bdf = f"0000:0{request.index + 1}:00.0".encode()
    values: Dict[str, wire.Value] = {
        "ndevs": ndevs,
        "nclients": 3,
        "nclients_ctrlr": 1,
        "nqueues": 2,
        "nsq_total": 64,
        "ncq_total": 32,
        "bdf": bdf,
    }
    return Message(request.op, request.index, values, status=status).encode_reply()


def replaying(log: List[Dict[str, Any]]) -> Script:
    """A script that answers like the reference server did, byte for byte, and checks that it was asked the same."""

    def script(sock: socket.socket) -> None:
        for entry in log:
            request = read_request(sock)
            assert request is not None
            handed = [os.open("/dev/null", os.O_RDONLY) for _unused in range(entry["fds"])]
            sock.sendmsg([bytes.fromhex(entry["reply"])], wire.rights(handed))
            wire.close_all(handed)

    return script


def play(connection: client.Connection, request: Message) -> object:
    """Make the method call that sends this request."""
    values = request.values
    index = request.index
    op = request.op
    if op == Op.INIT_CONNECTION:
        attachment = connection.init(index)
        attachment.close()
        return attachment
    if op == Op.FREE_BUF:
        return connection.free_buf(request.number("offset"))
    if op == Op.ALLOC_BUF:
        return connection.alloc_buf(request.number("nbytes"))
    if op == Op.ADMIN_CMD:
        return connection.admin(index, request.data("command"))
    calls: Dict[int, Callable[..., object]] = {
        Op.ALLOC_IOQPAIR: connection.alloc_ioqpair,
        Op.FREE_IOQPAIR: connection.free_ioqpair,
        Op.STATUS: connection.status,
        Op.UNREGISTER_MEM: connection.unregister_mem,
        Op.ALLOC_IOQPAIR_AT: connection.alloc_ioqpair_at,
        Op.ALLOC_IOQPAIR_CQ_AT: connection.alloc_ioqpair_cq_at,
    }
    return calls[op](index, **values)


@pytest.mark.parametrize("part", ["stateless", "queues_and_buffers", "released"])
def test_recorded_conversations(tmp_path: Path, serve: Callable[..., None], part: str) -> None:
    """Every recorded reply is read: its values come back, its status is raised."""
    log = [
        entry
        for entry in SAMPLE[part]["log"]
        if int.from_bytes(bytes.fromhex(entry["request"])[:4], "little") in set(Op) - {Op.REGISTER_MEM}
    ]
    before = open_fds()
    serve(replaying(log))
    seen = 0
    with client.connect(7, str(tmp_path)) as connection:
        for entry in log:
            request = Message.decode_request(bytes.fromhex(entry["request"]))
            reply = Message.decode_reply(bytes.fromhex(entry["reply"]))
            if reply.status:
                with pytest.raises(RequestFailed) as caught:
                    play(connection, request)
                assert caught.value.status == reply.status, entry["what"]
            else:
                result = play(connection, request)
                if isinstance(result, client.Status):
                    assert result.bdf == f"0000:0{request.index + 1}:00.0"
                    assert list(result[:-1]) == [reply.number(name) for name in client.Status._fields[:-1]]
                elif isinstance(result, client.QueuePair):
                    assert list(result) == [reply.number(name) for name in client.QueuePair._fields]
                elif isinstance(result, client.Attachment):
                    assert result.heap_nbytes == 167772160
                elif isinstance(result, bytes):
                    assert result == reply.data("completion")
                elif isinstance(result, int):
                    assert result == reply.number("offset")
            seen += 1
    assert seen == len(log) > 0
    for _unused in range(100):
        if len(open_fds()) <= len(before) + 1:  # the listener
            break
        time.sleep(0.01)
    assert len(open_fds()) <= len(before) + 1


def test_register_mem_passes_its_descriptor(tmp_path: Path, serve: Callable[..., None]) -> None:
    """The only operation that sends one."""
    got: List[int] = []

    def script(sock: socket.socket) -> None:
        data, ancillary, _flags, _address = sock.recvmsg(wire.SIZE, wire.ANCILLARY_SIZE)
        fds = wire.take_fds(ancillary)
        got.extend((len(data), len(fds)))
        wire.close_all(fds)
        sock.sendall(Message(Op.REGISTER_MEM, 0, {"desc_offset": 4096}).encode_reply())

    serve(script)
    with client.connect(7, str(tmp_path)) as connection, open(os.devnull) as handed:
        assert connection.register_mem(0, handed.fileno(), 8192, 4096) == 4096
    assert got == [104, 1]


def test_another_version(tmp_path: Path, serve: Callable[..., None]) -> None:
    """The recorded refusal of a version is told apart from other failures."""
    serve(replier(lambda _request: bytes.fromhex(SAMPLE["version"]["log"][0]["reply"])))
    with client.connect(7, str(tmp_path)) as connection, pytest.raises(VersionMismatch):
        connection.status(0)


@pytest.mark.parametrize("length", [24, 96, 104])
def test_a_server_of_another_version(tmp_path: Path, serve: Callable[..., None], length: int) -> None:
    """Also when its messages have another size."""
    serve(replier(lambda request: Message(request.op, 0, version=3).encode_reply()[:length]))
    with client.connect(7, str(tmp_path)) as connection, pytest.raises(VersionMismatch, match="version 3"):
        connection.status(0)


@pytest.mark.parametrize("status", [11, 1, -11, -107, 9999, (1 << 31) - 1, -(1 << 31)])
def test_any_status_is_a_failure(tmp_path: Path, serve: Callable[..., None], status: int) -> None:
    """A timeout of the reference comes with the wrong sign."""
    serve(replier(lambda request: Message(request.op, 0, status=status).encode_reply()))
    with client.connect(7, str(tmp_path)) as connection:
        with pytest.raises(RequestFailed) as caught:
            connection.admin(0, bytes(64))
        assert (caught.value.status, caught.value.errno) == (status, abs(status))
        with pytest.raises(RequestFailed):
            connection.status(0)


def test_a_reply_to_another_operation(tmp_path: Path, serve: Callable[..., None]) -> None:
    """The stream is out of step: the connection is of no more use."""
    serve(replier(lambda request: Message(Op.FREE_BUF, 0).encode_reply()))
    with client.connect(7, str(tmp_path)) as connection:
        with pytest.raises(WireError, match="reply is to operation 6"):
            connection.status(0)
        assert connection.fileno() == -1


def test_the_echoed_index_is_not_matched(tmp_path: Path, serve: Callable[..., None]) -> None:
    """Replies of a controller's thread carry 0."""
    values: Dict[str, wire.Value] = {"sq_offset": 1, "cq_offset": 2, "prp_offset": 3, "qid": 2, "depth": 16}
    serve(replier(lambda request: Message(request.op, 0, values).encode_reply()))
    with client.connect(7, str(tmp_path)) as connection:
        assert connection.alloc_ioqpair(1, 16) == client.QueuePair(1, 2, 3, 2, 16)


def test_closed_after_accept(tmp_path: Path, serve: Callable[..., None]) -> None:
    """What the 65th client sees."""
    serve(lambda sock: None)
    with pytest.raises(ServerClosed):
        client.get_info(7, str(tmp_path))


@pytest.mark.parametrize("length", [1, 103])
def test_a_reply_that_is_cut(tmp_path: Path, serve: Callable[..., None], length: int) -> None:
    """Its descriptors are closed, and the connection is."""
    serve(replier(lambda request: bytes(Message(request.op).encode_reply()[:length]), fds=2))
    with client.connect(7, str(tmp_path)) as connection:
        before = open_fds()
        with pytest.raises(ServerClosed):
            connection.init(0)
        assert connection.fileno() == -1
        assert len(open_fds()) < len(before)
        with pytest.raises(ServerClosed):
            connection.status(0)


@pytest.mark.parametrize(("fds", "status"), [(0, 0), (1, 0), (3, 0), (2, -5)])
def test_descriptors_that_are_too_many_or_too_few(
    tmp_path: Path, serve: Callable[..., None], fds: int, status: int
) -> None:
    """None of them stays open."""
    before = null_fds()
    serve(replier(lambda request: Message(request.op, 0, status=status).encode_reply(), fds=fds))
    with client.connect(7, str(tmp_path)) as connection:
        for _unused in range(3):
            with pytest.raises((WireError, RequestFailed)):
                connection.init(0)
        # The fake server, which is a thread of this process, closes its own a moment after it answered.
        deadline = time.monotonic() + 5
        while null_fds() > before and time.monotonic() < deadline:
            time.sleep(0.001)
        assert null_fds() == before


def null_fds() -> int:
    """How many descriptors of this process are /dev/null."""
    links = ["/proc/self/fd/" + fd for fd in open_fds()]
    return [os.readlink(link) for link in links if os.path.islink(link)].count("/dev/null")


def test_a_server_that_never_answers(tmp_path: Path, serve: Callable[..., None]) -> None:
    """The deadline holds for the whole call, also when bytes trickle in."""

    def trickle(sock: socket.socket) -> None:
        sock.settimeout(5)
        try:
            for byte in Message(Op.STATUS).encode_reply():
                sock.send(bytes([byte]))
                time.sleep(0.01)
        except OSError:
            pass

    serve(trickle)
    begin = time.monotonic()
    with pytest.raises(ServerTimeout):
        client.get_info(7, str(tmp_path), timeout=0.3)
    assert 0.25 < time.monotonic() - begin < 1.0


def test_a_full_backlog_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    """And is no sign that nobody serves."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        path = client.socket_path(7, str(tmp_path))
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        begin = time.monotonic()
        with pytest.raises(ServerTimeout):
            client.server_alive(7, str(tmp_path), timeout=0.2)
        assert 0.15 < time.monotonic() - begin < 1.0


def test_get_info_and_get_ctrlr_info(tmp_path: Path, serve: Callable[..., None]) -> None:
    """The API's words: the asker is counted, a pair counts as one of each."""
    serve(replier(ok_status))
    serve(replier(lambda request: Message(request.op, 0, status=-errno.EIO).encode_reply()), 3)
    info = client.get_info(7, str(tmp_path))
    assert info == client.Info(4, 2, 2, ("0000:01:00.0", "0000:02:00.0"))
    found = client.get_ctrlr_info("0000:02:00.0", str(tmp_path))
    assert found == client.CtrlrInfo("0000:02:00.0", 1, 2, 2, 64, 32, True)
    with pytest.raises(NotServed) as caught:
        client.get_ctrlr_info("0000:09:00.0", str(tmp_path))
    assert caught.value.errno == errno.ENOENT


def test_more_controllers_than_can_be_listed(tmp_path: Path, serve: Callable[..., None]) -> None:
    """held may exceed the list."""
    serve(replier(lambda request: ok_status(request, ndevs=0xFFFFFFFF)[:48] + b"0000:01:00.0" + bytes(44)))
    info = client.get_info(7, str(tmp_path))
    assert (info.nctrlrs, len(info.ctrlrs), info.nctrlrs_held) == (64, 64, 0xFFFFFFFF)


def test_one_that_hangs_does_not_hide_the_others(tmp_path: Path, serve: Callable[..., None]) -> None:
    """Each has its share of the time."""

    def silent(sock: socket.socket) -> None:
        while sock.recv(200):
            pass

    serve(silent, 1)
    serve(replier(ok_status), 2)
    begin = time.monotonic()
    assert client.get_ctrlr_info("0000:01:00.0", str(tmp_path), timeout=1.0).nsq_total == 64
    assert time.monotonic() - begin < 1.0


def test_nobody_serves(tmp_path: Path) -> None:
    """No socket, and one whose process is gone, are the same answer."""
    directory = str(tmp_path)
    assert client.server_alive(7, directory) is False
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(client.socket_path(7, directory))
    assert client.server_alive(7, directory) is False
    with pytest.raises(NotServed) as caught:
        client.get_info(7, directory)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(NotServed):
        client.get_ctrlr_info("0000:01:00.0", directory)


def test_alive(tmp_path: Path, serve: Callable[..., None]) -> None:
    """A socket that accepts has a process behind it."""
    serve(lambda sock: None)
    assert client.server_alive(7, str(tmp_path)) is True
    with client.connect(7, str(tmp_path)) as connection:
        assert connection.peer().pid == os.getpid()


def test_hostile_files_in_the_directory(tmp_path: Path, serve: Callable[..., None]) -> None:
    """Only sockets with exactly a server's name count; a link is not followed."""
    serve(replier(ok_status), 12)
    target = client.socket_path(12, str(tmp_path))
    (tmp_path / "xnvme-homi-1.sock").write_text("a file")
    (tmp_path / "xnvme-homi-2.sock").mkdir()
    (tmp_path / "xnvme-homi-3.sock").symlink_to(target)
    (tmp_path / "xnvme-homi-4.sock").symlink_to("nowhere")
    os.mkfifo(tmp_path / "xnvme-homi-5.sock")
    for name in ("0007", "-99999999999", "99999999999", "4294967296", "1 ", "\u0661", "", "12.sock\n", "1e3"):
        os.link(target, tmp_path / f"xnvme-homi-{name}.sock")
    os.link(target, tmp_path / "xnvme-homi-4294967295.sock")
    assert client.discover(str(tmp_path)) == [12, 4294967295]
    assert client.server_alive(1, str(tmp_path)) is False
    with pytest.raises(UnsafePath):
        client.server_alive(3, str(tmp_path))
    assert [cplane_id for cplane_id, _unused in client.ask_all(str(tmp_path))] == [12, 4294967295]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """Has no servers; one that cannot be read is an error."""
    assert client.discover(str(tmp_path / "none")) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(CplaneError, match="file"):
        client.discover(str(tmp_path / "file"))


@pytest.mark.parametrize("cplane_id", [-1, 2**32])
def test_ids_have_a_range(cplane_id: int) -> None:
    """They are u32."""
    with pytest.raises(WireError):
        client.socket_path(cplane_id)


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    """Is said, instead of what connect says."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(UnsafePath, match="too long"):
        client.server_alive(7, str(deep))
