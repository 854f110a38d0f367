# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the control plane: asks servers about themselves, and speaks every operation of the wire format.

Every call has a deadline. Descriptors that come unasked, or with a reply that is cut or wrong, are closed. A
connection on which a reply was missed is of no further use and closes itself. Asking (STATUS, ADMIN_CMD) does not
make a client of a controller; only INIT_CONNECTION does.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from .._plan import Deadline
from . import wire
from .errors import (
    CplaneError,
    NotServed,
    RequestFailed,
    ServerClosed,
    ServerTimeout,
    UnsafePath,
    VersionMismatch,
    WireError,
    errno_name,
)
from .wire import Message, Op, Value

DIRECTORY = "/tmp"  # noqa: S108 (where the reference server has its sockets)
MAX_CTRLRS = 64
"""XNVME_CPLANE_MAX_CTRLRS: how many controllers get_info lists."""
MAX_ID = 0xFFFFFFFF
TIMEOUT = 5.0
"""Seconds that a call may take when the caller does not say."""

_SOCKET_NAME = re.compile(r"xnvme-homi-(0|[1-9][0-9]{0,9})\.sock", re.ASCII)
_PEERCRED = struct.Struct("3i")


class Peer(NamedTuple):
    """Who listens on a socket (SO_PEERCRED: the credentials at the time of listen)."""

    pid: int
    uid: int
    gid: int


class Attachment(NamedTuple):
    """What a client is handed with a controller; both descriptors belong to the caller."""

    record_offset: int
    heap_nbytes: int
    bar0_nbytes: int
    heap_fd: int
    bar0_fd: int

    def close(self) -> None:
        """Close both descriptors."""
        wire.close_all((self.heap_fd, self.bar0_fd))


class QueuePair(NamedTuple):
    """An I/O queue pair of a client: byte offsets in the heap, its id on the controller, its entries."""

    sq_offset: int
    cq_offset: int
    prp_offset: int
    qid: int
    depth: int


class Status(NamedTuple):
    """The reply to STATUS: ``nclients`` leaves out the asker, ``bdf`` is text."""

    ndevs: int
    nclients: int
    nclients_ctrlr: int
    nqueues: int
    nsq_total: int
    ncq_total: int
    bdf: str


class Info(NamedTuple):
    """What a server says about itself: ``connections`` includes the asker, at most MAX_CTRLRS are listed."""

    connections: int
    nctrlrs: int
    nctrlrs_held: int
    ctrlrs: Tuple[str, ...]


class CtrlrInfo(NamedTuple):
    """What a server says about one controller; totals are zero when the controller did not answer."""

    uri: str
    connections: int
    nsq_used: int
    ncq_used: int
    nsq_total: int
    ncq_total: int
    initialized: bool


class ServerInfo(NamedTuple):
    """Everything that one connection learns about a server."""

    cplane_id: int
    peer: Peer
    connections: int
    nctrlrs_held: int
    controllers: Tuple[CtrlrInfo, ...]


def socket_path(cplane_id: int, directory: str = DIRECTORY) -> str:
    """Return where the server of ``cplane_id`` listens."""
    if not 0 <= cplane_id <= MAX_ID:
        raise WireError(f"a control plane's id is 0 to {MAX_ID}, not {cplane_id}")
    return os.path.join(directory, f"xnvme-homi-{cplane_id}.sock")


def discover(directory: str = DIRECTORY) -> List[int]:
    """Return the ids for which ``directory`` has a socket, in order; whether anybody answers is not asked.

    Whatever is not a socket itself (a symbolic link, a file, a folder) or is not named exactly as a server would
    name it is passed over. A directory that does not exist has no sockets.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _SOCKET_NAME.fullmatch(entry.name)
                if match and int(match.group(1)) <= MAX_ID and _is_socket(entry):
                    found.append(int(match.group(1)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CplaneError(f"cannot look for servers in {directory}: {error.strerror}") from None
    return sorted(found)


def _is_socket(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False  # it went away while we looked


class Connection:
    """A connection to a server, with one method an operation; a context manager.

    Every method raises ServerTimeout, ServerClosed, VersionMismatch, WireError or RequestFailed. ``timeout`` is in
    seconds and holds for each call; ADMIN_CMD takes its own, since a Format may run for long.
    """

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path = path
        self.timeout = timeout
        self._sock = _connect(path, timeout)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the server then releases what this client held."""
        self._sock.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 once closed."""
        return self._sock.fileno()

    def peer(self) -> Peer:
        """Return who serves here."""
        raw = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        return Peer(*_PEERCRED.unpack(raw))

    # -- the operations -------------------------------------------------------------------------------------------

    def init(self, index: int) -> Attachment:
        """Become a client of controller ``index``; the heap is one for all controllers of a server."""
        reply, fds = self._ask(Message(Op.INIT_CONNECTION, index), nfds=2)
        return Attachment(
            reply.number("record_offset"), reply.number("heap_nbytes"), reply.number("bar0_nbytes"), fds[0], fds[1]
        )

    def alloc_ioqpair(self, index: int, depth: int) -> QueuePair:
        """Have a queue pair of ``depth`` entries made on controller ``index``."""
        return _queue_pair(self._ask(Message(Op.ALLOC_IOQPAIR, index, {"depth": depth}))[0])

    def free_ioqpair(self, index: int, qid: int) -> None:
        """Give a queue pair back."""
        self._ask(Message(Op.FREE_IOQPAIR, index, {"qid": qid}))

    def admin(self, index: int, command: bytes, timeout: Optional[float] = None) -> bytes:
        """Have a 64-byte admin command executed; returns the raw 16-byte completion, errors of NVMe included."""
        if len(command) != 64:
            raise WireError(f"request ADMIN_CMD: command (64 bytes at offset 24) has {len(command)} bytes")
        return self._ask(Message(Op.ADMIN_CMD, index, {"command": command}), timeout=timeout)[0].data("completion")

    def alloc_buf(self, nbytes: int) -> int:
        """Return the heap offset of a new zeroed buffer of at least ``nbytes``."""
        return self._ask(Message(Op.ALLOC_BUF, 0, {"nbytes": nbytes}))[0].number("offset")

    def free_buf(self, offset: int) -> None:
        """Give a buffer back."""
        self._ask(Message(Op.FREE_BUF, 0, {"offset": offset}))

    def status(self, index: int) -> Status:
        """Ask about the server and its controller ``index``."""
        return _read_status(self._ask(Message(Op.STATUS, index))[0])

    def try_status(self, index: int) -> Tuple[Optional[Status], int]:
        """Ask like status, but return (Status, 0), or (Status or None, the reply's status) for a failure.

        The server of this project fails with -EIO for a controller that died, and tells the rest nevertheless.
        """
        reply, fds = self._talk(Message(Op.STATUS, index))
        wire.close_all(fds)
        if reply.status and not _plain(reply.data("bdf")):
            return None, reply.status
        return _read_status(reply), reply.status

    def register_mem(self, index: int, fd: int, nbytes: int, page_size: int) -> int:
        """Register a dma-buf of the caller; returns the heap offset of its address descriptor."""
        request = Message(Op.REGISTER_MEM, index, {"nbytes": nbytes, "page_size": page_size})
        return self._ask(request, send_fds=(fd,))[0].number("desc_offset")

    def unregister_mem(self, index: int, desc_offset: int) -> None:
        """Undo register_mem."""
        self._ask(Message(Op.UNREGISTER_MEM, index, {"desc_offset": desc_offset}))

    def alloc_ioqpair_at(
        self, index: int, desc_offset: int, sq_offset: int, cq_offset: int, depth: int
    ) -> Tuple[int, int]:
        """Have a queue pair made in registered memory; returns its qid and depth."""
        values: Dict[str, Value] = {
            "desc_offset": desc_offset,
            "sq_offset": sq_offset,
            "cq_offset": cq_offset,
            "depth": depth,
        }
        reply = self._ask(Message(Op.ALLOC_IOQPAIR_AT, index, values))[0]
        return reply.number("qid"), reply.number("depth")

    def alloc_ioqpair_cq_at(self, index: int, desc_offset: int, cq_offset: int, depth: int) -> QueuePair:
        """Have a queue pair made whose completion queue alone is in registered memory."""
        values: Dict[str, Value] = {"desc_offset": desc_offset, "cq_offset": cq_offset, "depth": depth}
        return _queue_pair(self._ask(Message(Op.ALLOC_IOQPAIR_CQ_AT, index, values))[0])

    # -- one request, one reply -----------------------------------------------------------------------------------

    def _ask(
        self, request: Message, nfds: int = 0, send_fds: Sequence[int] = (), timeout: Optional[float] = None
    ) -> Tuple[Message, List[int]]:
        """Send a request and return its reply with exactly ``nfds`` descriptors."""
        reply, fds = self._talk(request, send_fds, timeout)
        what = self._name(request.op)
        if reply.status or len(fds) != nfds:
            wire.close_all(fds)
            if reply.status:
                raise RequestFailed(f"{what} failed: {errno_name(reply.status)}", reply.status)
            raise WireError(f"{what}: {len(fds)} descriptors came, not {nfds}")
        return reply, fds

    def _name(self, op: int) -> str:
        return f"{_op_name(op)} at {self.path}"

    def _talk(
        self, request: Message, send_fds: Sequence[int] = (), timeout: Optional[float] = None
    ) -> Tuple[Message, List[int]]:
        """Send a request and return its reply, whatever its status, and the descriptors that came with it."""
        data = request.encode_request()
        what = self._name(request.op)
        fds: List[int] = []
        try:
            reply = self._exchange(data, send_fds, fds, what, Deadline(self.timeout if timeout is None else timeout))
            if reply.op != request.op:
                raise WireError(f"{what}: the reply is to operation {reply.op}")
        except BaseException:
            # The stream is out of step from here on.
            wire.close_all(fds)
            self.close()
            raise
        return reply, fds

    def _exchange(self, data: bytes, send_fds: Sequence[int], fds: List[int], what: str, deadline: Deadline) -> Message:
        try:
            self._send(data, send_fds, deadline)
            raw = self._receive(fds, deadline)
        except socket.timeout:
            raise ServerTimeout(f"{what}: no reply within the time allowed") from None
        except OSError as error:
            if error.errno == errno.EBADF:
                raise ServerClosed(f"{what}: this connection is closed") from None
            raise ServerClosed(f"{what}: {error.strerror}") from None
        version = int.from_bytes(raw[4:8], "little") if len(raw) >= wire.HEADER_SIZE else wire.VERSION
        if version != wire.VERSION:
            raise VersionMismatch(
                f"{what}: the server speaks version {version} of the wire format, this client {wire.VERSION}",
                version=version,
            )
        if len(raw) < wire.SIZE:
            raise ServerClosed(
                f"{what}: the server closed the connection after {len(raw)} bytes of the reply"
                " (it is full, refuses this user, or stops)"
            )
        reply = Message.decode_reply(raw)
        if reply.status == -errno.EPROTO:
            raise VersionMismatch(f"{what}: the server refuses version {wire.VERSION} of the wire format")
        return reply

    def _send(self, data: bytes, fds: Sequence[int], deadline: Deadline) -> None:
        self._arm(deadline)
        sent = self._sock.sendmsg([data], wire.rights(fds), socket.MSG_NOSIGNAL)
        while sent < len(data):
            self._arm(deadline)
            sent += self._sock.send(data[sent:], socket.MSG_NOSIGNAL)

    def _receive(self, fds: List[int], deadline: Deadline) -> bytes:
        """Return 104 bytes, or fewer when the server closed; adds what came with them to ``fds``."""
        raw = b""
        while len(raw) < wire.SIZE:
            self._arm(deadline)
            data, ancillary, _flags, _address = self._sock.recvmsg(
                wire.SIZE - len(raw), wire.ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC
            )
            fds.extend(wire.take_fds(ancillary))
            if not data:
                break
            raw += data
        return raw

    def _arm(self, deadline: Deadline) -> None:
        left = deadline.left()
        if not left:
            raise socket.timeout
        self._sock.settimeout(left)


def _op_name(op: int) -> str:
    return Op(op).name


def _plain(bdf: bytes) -> bool:
    """Whether a ``bdf`` field holds text, which that of a failed STATUS need not."""
    try:
        return bool(wire.decode_bdf(bdf))
    except WireError:
        return False


def _read_status(reply: Message) -> Status:
    return Status(
        reply.number("ndevs"),
        reply.number("nclients"),
        reply.number("nclients_ctrlr"),
        reply.number("nqueues"),
        reply.number("nsq_total"),
        reply.number("ncq_total"),
        wire.decode_bdf(reply.data("bdf")),
    )


def _queue_pair(reply: Message) -> QueuePair:
    return QueuePair(*(reply.number(name) for name in QueuePair._fields))


def _connect(path: str, timeout: float) -> socket.socket:
    """Connect, or raise NotServed (nothing there, or nobody answers), UnsafePath, ServerTimeout or CplaneError."""
    _check_path(path)
    deadline = Deadline(timeout)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    number = sock.connect_ex(path)
    while number == errno.EAGAIN and deadline.left():
        time.sleep(0.005)  # a unix socket whose backlog is full says so at once instead of waiting
        number = sock.connect_ex(path)
    if number:
        sock.close()
        raise _connect_error(path, number)
    return sock


def _check_path(path: str) -> None:
    """Refuse what only pretends to be a socket: the directory is open to everybody."""
    if len(os.fsencode(path)) > 107:
        raise UnsafePath(f"{path}: too long for the path of a socket (107 bytes at most)")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        raise NotServed(f"nobody serves {path}: it does not exist") from None
    except OSError as error:
        raise CplaneError(f"cannot look at {path}: {error.strerror}") from None
    if stat.S_ISLNK(mode):
        raise UnsafePath(f"{path} is a symbolic link; a server's socket never is, so it was not followed")


def _connect_error(path: str, number: int) -> CplaneError:
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        return NotServed(f"nobody serves {path}")
    if number == errno.EAGAIN:
        return ServerTimeout(f"{path}: the server accepts no connection within the time allowed")
    return CplaneError(f"cannot connect to {path}: {errno_name(number)}")


def connect(cplane_id: int, directory: str = DIRECTORY, timeout: float = TIMEOUT) -> Connection:
    """Connect to the server of ``cplane_id``; raises NotServed when there is none."""
    return Connection(socket_path(cplane_id, directory), timeout)


def server_alive(cplane_id: int, directory: str = DIRECTORY, timeout: float = TIMEOUT) -> bool:
    """Whether a process serves ``cplane_id``: somebody accepts on its socket.

    No socket and a socket without a process both mean nobody; anything else raises.
    """
    try:
        connect(cplane_id, directory, timeout).close()
    except NotServed:
        return False
    return True


def read_server(cplane_id: int, directory: str = DIRECTORY, timeout: float = TIMEOUT) -> ServerInfo:
    """Ask the server of ``cplane_id`` about itself and its controllers, all within ``timeout`` seconds.

    Raises NotServed, or any error of Connection. A controller for which the server answers with an error is listed
    as not initialized, with what the answer tells of it: perhaps nothing, then all is zero and its uri empty.
    """
    deadline = Deadline(timeout)
    with connect(cplane_id, directory, timeout) as connection:
        connection.timeout = deadline.left()
        first, number = connection.try_status(0)
        if first is None:
            raise RequestFailed(f"STATUS at {connection.path} failed: {errno_name(number)}", number)
        controllers = [_ctrlr_info(first, number)]
        for index in range(1, min(first.ndevs, MAX_CTRLRS)):
            connection.timeout = deadline.left()
            controllers.append(_ctrlr_info(*connection.try_status(index)))
        return ServerInfo(cplane_id, connection.peer(), first.nclients + 1, first.ndevs, tuple(controllers))


def _ctrlr_info(status: Optional[Status], number: int) -> CtrlrInfo:
    if status is None:
        return CtrlrInfo("", 0, 0, 0, 0, 0, False)
    return CtrlrInfo(
        status.bdf,
        status.nclients_ctrlr,
        status.nqueues,
        status.nqueues,
        status.nsq_total,
        status.ncq_total,
        not number,
    )


def get_info(cplane_id: int, directory: str = DIRECTORY, timeout: float = TIMEOUT) -> Info:
    """Ask the server of ``cplane_id`` what it holds; raises NotServed (ENOENT) when nobody serves it."""
    server = read_server(cplane_id, directory, timeout)
    uris = tuple(controller.uri for controller in server.controllers)
    return Info(server.connections, len(uris), server.nctrlrs_held, uris)


def get_ctrlr_info(uri: str, directory: str = DIRECTORY, timeout: float = TIMEOUT) -> CtrlrInfo:
    """Ask the servers in turn until one holds the controller ``uri`` (as servers list it, usually a BDF).

    Raises NotServed (ENOENT) when none does. A server that cannot be asked is passed over; each has an equal share
    of the time that is left, so that one which hangs does not hide the others.
    """
    for _cplane_id, server in ask_all(directory, timeout):
        for controller in server.controllers if isinstance(server, ServerInfo) else ():
            if controller.uri == uri:
                return controller
    raise NotServed(f"no server in {directory} holds the controller {uri}")


def ask_all(
    directory: str = DIRECTORY, timeout: float = TIMEOUT
) -> Iterator[Tuple[int, Union[ServerInfo, CplaneError]]]:
    """Yield (cplane_id, ServerInfo or CplaneError) for every socket in ``directory``, all within ``timeout``."""
    deadline = Deadline(timeout)
    ids = discover(directory)
    for position, cplane_id in enumerate(ids):
        try:
            yield cplane_id, read_server(cplane_id, directory, deadline.left() / (len(ids) - position))
        except CplaneError as error:
            yield cplane_id, error
