# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server: one loop that reads every connection and keeps all books, and one thread a controller.

The loop never waits for a controller. What reaches one (queues, admin commands) is a job of that controller's
thread, one at a time for each connection, and a connection is not read while its job runs; the loop takes the result
and does the accounting. Nothing is therefore shared between threads but two queues. Everything is bounded: the
connections, what one may hold, what waits for a thread, and how long a peer may leave its replies unread.

A client that is gone holds nothing that its job does not need: a job that waits for its turn is taken back, so that a
thread has at most one job a connection and one deletion a queue before it. What a running job may still touch is
kept until it is done.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar, Union

from . import wire
from .backend import Backend, start_thread
from .client import DIRECTORY
from .config import Config, EmulatedConfig, PciConfig, parse_controllers, served_uris
from .emulated import EmulatedBackend
from .errors import ConfigError, CplaneError
from .heap import KIND_ARITHMETIC, PAGE, Descriptor, Heap, HeapFull, Record
from .listener import Access, Listener, peer_of
from .vfio_backend import DmaHeap, VfioBackend
from .wire import Message, Op

MAX_CONNECTIONS = 64
MAX_QUEUES = 64
"""I/O queue pairs that one connection may hold."""
HEAP_PER_CTRLR = 80 << 20
QUEUE_NBYTES = 64 << 10
"""What a submission or a completion queue takes of the heap, whatever its depth."""
PRP_NBYTES = 4 << 20
"""1024 pages for PRP lists, which clients use whatever the depth."""
PAIR_NBYTES = 2 * QUEUE_NBYTES + PRP_NBYTES
SEND_TIME = 5.0
"""How long a peer may leave its replies unread before it is let go, in seconds."""
IDLE_TIME = 5.0
"""How long a connection without a whole request may keep its place when a newcomer needs it, in seconds."""
_ZERO_INLINE = 256 << 10
"""Buffers above this size are cleared by a thread, so that the loop does not stand still."""
_FREE_AT_ONCE = 512
"""Buffers of a client that is gone which are freed before others have their turn."""
_PAUSE = 0.1
"""How long not to accept when the system has no descriptors left, in seconds."""

Result = Union[bytes, None, OSError]
_Thing = TypeVar("_Thing")
Log = Callable[[str], None]
MakeHeap = Callable[[Sequence[Config], int, Log], Heap]
Opener = Callable[[Config, str, Heap], Backend]


class Control:
    """Tells a server to stop, or to read its settings again; may be used from signal handlers and any thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._stop = False
        self._reload = False

    def stop(self) -> None:
        """Have serve return."""
        self._stop = True
        self._wake()

    def reload(self) -> None:
        """Have serve ask for the access settings again."""
        self._reload = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._write, b"\0")

    @property
    def stopping(self) -> bool:
        """Whether stop was called."""
        return self._stop

    def take_reload(self) -> bool:
        """Whether reload was called since the last time this was asked; also quiets the descriptor."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass
        wanted, self._reload = self._reload, False
        return wanted

    def fileno(self) -> int:
        """Return what becomes readable when something was called."""
        return self._read

    def close(self) -> None:
        """Close the pipe."""
        wire.close_all((self._read, self._write))


class _Pair(NamedTuple):
    """A queue pair that a client holds."""

    qid: int
    offset: int


class _Client:
    """A connection, and all that it holds."""

    __slots__ = (
        "buffers",
        "deadline",
        "deleting",
        "devices",
        "events",
        "fd",
        "gone",
        "job",
        "out",
        "out_fds",
        "pairs",
        "received",
        "since",
        "sock",
        "taken",
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.received = b""
        self.since = time.monotonic()  # when it connected, or the first byte of its last message came
        self.taken = -1  # the descriptor that came with the request
        self.out = b""  # what is left of a reply that did not fit
        self.out_fds: Sequence[int] = ()  # the server's own, to be passed with its first byte
        self.deadline = 0.0
        self.events = int(select.EPOLLIN)
        self.job: Optional[_Job] = None  # what a thread has to do for it
        self.deleting = 0  # queue pairs that are no longer in pairs, but still on their controller
        self.gone = False
        self.devices: Set[int] = set()
        self.pairs: Dict[Tuple[int, int], _Pair] = {}
        self.buffers: Dict[int, int] = {}

    @property
    def expendable(self) -> bool:
        """Whether it does nothing and holds nothing, or does not finish its message."""
        if self.job is not None or self.out:
            return False
        return bool(self.received) or not (self.devices or self.pairs or self.buffers)

    def drop_descriptor(self) -> None:
        """Close the descriptor of the current request."""
        if self.taken >= 0:
            os.close(self.taken)
            self.taken = -1


class _Job:
    """Work for a thread, and what the loop does with its result."""

    __slots__ = ("done", "touches_buffers", "work", "worker")

    def __init__(
        self,
        worker: _Worker,
        work: Callable[[], Optional[bytes]],
        done: Callable[[Result], None],
        touches_buffers: bool = True,
    ) -> None:
        self.worker = worker
        self.work = work
        self.done = done
        self.touches_buffers = touches_buffers  # whether buffers of its client may be written to while it runs


class _Worker:
    """A thread that runs jobs one after the other and hands results to the loop.

    While there is none, it calls ``idle`` every ``every`` seconds.
    """

    def __init__(
        self,
        name: str,
        finish: Callable[[Callable[[Result], None], Result], None],
        every: Optional[float] = None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._jobs: Deque[Optional[_Job]] = deque()
        self._changed = threading.Condition()
        self._finish = finish
        self._every, self._idle = every, idle
        self._thread = start_thread(self._run, name)

    def submit(self, job: Optional[_Job]) -> None:
        """Have a job run after all that were submitted before."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def take_back(self, job: _Job) -> bool:
        """Forget a job that has not started; returns False when it has, and will be reported as usual."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def end(self) -> None:
        """Have the thread end, once the job that it runs is done."""
        self.submit(None)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            result: Result
            try:
                result = job.work()
            except OSError as error:
                result = error
            except Exception as error:  # noqa: BLE001 (a bug must not silence the controller for all others)
                sys.excepthook(type(error), error, error.__traceback__)
                result = OSError(errno.EIO, str(error))
            self._finish(job.done, result)

    def _next(self) -> Optional[_Job]:
        while True:
            with self._changed:
                if self._jobs or self._changed.wait_for(lambda: self._jobs, self._every):
                    return self._jobs.popleft()
            self._idle()


class _Served:
    """A controller and the accounts that the loop keeps of it."""

    def __init__(self, backend: Backend, record_offset: int, record: bytes, worker: _Worker) -> None:
        self.backend = backend
        self.record_offset = record_offset
        self.record = record
        self.worker = worker
        self.free_qids = list(reversed(backend.qids))
        self.order = {qid: place for place, qid in enumerate(backend.qids)}
        self.nclients = 0
        self.nqueues = 0
        self.bdf = backend.uri.encode("ascii")

    def take_qid(self) -> int:
        """Return the first free queue id."""
        return self.free_qids.pop()

    def give_qid(self, qid: int) -> None:
        """Take a queue id back."""
        self.free_qids.append(qid)
        self.free_qids.sort(key=self.order.__getitem__, reverse=True)


class _Failed(Exception):
    """A request ends with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def log_to_stderr(text: str) -> None:
    """Write a line for the journal."""
    with contextlib.suppress(OSError):  # nobody may be there to read it
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def make_heap(configs: Sequence[Config], nbytes: int, log: Log) -> Heap:
    """Return memory that the controllers can reach."""
    bdfs = [config.bdf for config in configs if isinstance(config, PciConfig)]
    return DmaHeap(nbytes, bdfs, log) if bdfs else Heap(nbytes)


def open_controller(config: Config, uri: str, heap: Heap) -> Backend:
    """Open a controller, real or emulated; ``heap`` is what make_heap returned."""
    if isinstance(config, EmulatedConfig):
        return EmulatedBackend(config, uri, heap)
    if not isinstance(heap, DmaHeap):
        raise ConfigError(f"{config.label}: a real controller cannot reach this memory")
    return VfioBackend(config.label, uri, heap, heap.container.device(config.bdf))


def serve(
    controllers: Sequence[str],
    cplane_id: int,
    stop: Control,
    ready: Optional[Callable[[], None]] = None,
    directory: str = DIRECTORY,
    heap_size: int = HEAP_PER_CTRLR,
    access: Callable[[], Access] = Access,
    make_heap: MakeHeap = make_heap,
    opener: Opener = open_controller,
    stopping: Optional[Callable[[], None]] = None,
    reloaded: Optional[Callable[[], None]] = None,
    log: Log = log_to_stderr,
) -> None:
    """Serve clients of ``controllers`` (see config) under ``cplane_id`` until ``stop.stop()`` is called.

    Blocks. ``ready`` is called once the socket is bound and clients can connect. ``heap_size`` is in bytes for each
    controller; ``access`` is asked at the start and after each ``stop.reload()``, which ``reloaded`` is the end of,
    whether or not the new settings were taken; ``stopping`` is called when the end begins. ``make_heap`` and
    ``opener`` are what another kind of controller replaces. Returns when the last thing it was serving has been let go.
    Emulated controllers are forked from the calling process, which should have no threads.
    Raises ConfigError, AlreadyServed, UnsafePath or CplaneError when it cannot start; nothing is left behind then.
    """
    server = _Server(cplane_id, stop, access, log, reloaded)
    try:
        server.open(parse_controllers(controllers), heap_size, make_heap, opener)
        server.listen(directory)
        if ready is not None:
            ready()
        server.run()
        if stopping is not None:
            stopping()
    finally:
        server.close()


class _Server:
    """Everything between the start and the end of serve."""

    def __init__(
        self,
        cplane_id: int,
        control: Control,
        access: Callable[[], Access],
        log: Callable[[str], None],
        reloaded: Optional[Callable[[], None]],
    ) -> None:
        self._id = cplane_id
        self._reloaded = reloaded
        self._control = control
        self._ask_access = access
        self._access = access()
        self._log = log
        self._epoll = select.epoll()
        self._handlers: Dict[int, Callable[[int], None]] = {}
        self._backends: List[Backend] = []
        self._served: List[_Served] = []
        self._heap: Optional[Heap] = None
        self._descriptor, self._desc_offset = b"", 0
        self._listener: Optional[Listener] = None
        self._memory: Optional[_Worker] = None
        self._clients: Dict[int, _Client] = {}
        self._stalled: Set[_Client] = set()
        self._garbage: Deque[_Client] = deque()
        self._accept_again = 0.0
        self._finished: Deque[Tuple[Callable[[Result], None], Result]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._operations: Dict[int, Callable[[_Client, Message], Optional[Message]]] = {
            Op.INIT_CONNECTION: self._init,
            Op.ALLOC_IOQPAIR: self._alloc_ioqpair,
            Op.FREE_IOQPAIR: self._free_ioqpair,
            Op.ADMIN_CMD: self._admin,
            Op.ALLOC_BUF: self._alloc_buf,
            Op.FREE_BUF: self._free_buf,
            Op.STATUS: self._status,
            Op.REGISTER_MEM: self._register_mem,
            Op.UNREGISTER_MEM: self._unknown_registration,
            Op.ALLOC_IOQPAIR_AT: self._alloc_at,
            Op.ALLOC_IOQPAIR_CQ_AT: self._alloc_at,
        }

    @property
    def heap(self) -> Heap:
        """The shared memory, once it is there."""
        return _there(self._heap)

    # -- start and end --------------------------------------------------------------------------------------------

    def open(self, configs: Sequence[Config], heap_size: int, make_heap: MakeHeap, opener: Opener) -> None:
        """Open every controller, write what clients read of it, and start its thread."""
        if heap_size < PAIR_NBYTES + 16 * PAGE:
            raise ConfigError(f"a heap of {heap_size} bytes is too small for a queue pair ({PAIR_NBYTES} bytes)")
        try:
            self._heap = make_heap(configs, heap_size * len(configs), self._log)
            self._open_backends(configs, opener, self._heap)
        except OSError as error:
            raise CplaneError(
                f"cannot get what {len(configs)} controllers of {heap_size} bytes of heap need: {error.strerror}"
            ) from None
        self._descriptor = Descriptor(KIND_ARITHMETIC, self._heap.nbytes).pack()
        self._desc_offset = self._place(self._descriptor)
        self._memory = _Worker("memory", self._finish)
        for backend in self._backends:
            record = Record(
                backend.timeout_ms, backend.cap, backend.cc, self._heap.nbytes, self._desc_offset, backend.uri
            ).pack()
            worker = _Worker(backend.label, self._finish, backend.check_every, backend.check)
            self._served.append(_Served(backend, self._place(record), record, worker))

    def _open_backends(self, configs: Sequence[Config], opener: Opener, heap: Heap) -> None:
        """All of them before the first thread, since emulated controllers fork, and those before a real one is open."""
        uris = served_uris(configs)
        order = sorted(range(len(configs)), key=lambda place: isinstance(configs[place], PciConfig))
        for place in order:
            self._backends.append(opener(configs[place], uris[place], heap))
        self._backends.sort(key=lambda backend: uris.index(backend.uri))

    def _place(self, data: bytes) -> int:
        offset = self.heap.allocate(len(data))
        self.heap.write(offset, data)
        return offset

    def listen(self, directory: str) -> None:
        """Take the place of the socket and watch everything."""
        self._listener = Listener(self._id, directory, self._access)
        self._epoll.register(self._listener.sock.fileno(), select.EPOLLIN)
        self._watch(self._control.fileno(), self._controlled)
        self._watch(self._wake_read, self._woken)
        for served in self._served:
            if served.backend.alive_fd >= 0:
                self._watch(served.backend.alive_fd, self._died)

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def run(self) -> None:
        """Serve until told to stop."""
        handlers, clients, listener = self._handlers, self._clients, _there(self._listener).sock.fileno()
        while not self._control.stopping:
            timed = bool(self._stalled or self._accept_again)
            arrived = False
            for fd, events in self._epoll.poll(0 if self._garbage else _PAUSE if timed else None):
                client = clients.get(fd)
                if client is not None:
                    self._client_event(client, events)
                elif fd == listener:
                    arrived = True
                elif fd in handlers:
                    handlers[fd](fd)
            # Last, so that no event of a connection that ended meanwhile meets a new one with its number.
            if arrived:
                self._accept(listener)
            if timed:
                self._look_at_clock()
            if self._garbage:
                self._free_buffers(self._garbage.popleft())

    def close(self) -> None:
        """Let everything go: the place first, then the clients, then the controllers."""
        if self._listener is not None:
            try:
                self._listener.close()
            except (CplaneError, OSError) as error:
                self._log(f"the socket was not removed: {error}")
        for client in list(self._clients.values()):
            client.sock.close()
            client.drop_descriptor()
        workers = [served.worker for served in self._served]
        if self._memory is not None:
            workers.append(self._memory)
        for worker in workers:
            worker.end()
        for backend in self._backends:
            backend.interrupt()
        for worker in workers:
            worker.join()
        for backend in self._backends:
            backend.close()
        if self._heap is not None:
            self._heap.close()
        self._epoll.close()
        wire.close_all((self._wake_read, self._wake_write))

    # -- events ---------------------------------------------------------------------------------------------------

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for client in [client for client in self._stalled if client.deadline <= now]:
            self._drop(client)
        if self._accept_again and self._accept_again <= now and self._listener is not None:
            self._accept_again = 0.0
            self._epoll.modify(self._listener.sock.fileno(), select.EPOLLIN)

    def _accept(self, fd: int) -> None:
        """Take one connection: others have their turn in between."""
        try:
            sock, _address = _there(self._listener).sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                self._accept_again = time.monotonic() + _PAUSE
                self._epoll.modify(fd, 0)
            return
        _pid, uid, gid = peer_of(sock)
        if not self._access.allows(uid, gid) or not self._has_place():
            sock.close()
            return
        sock.setblocking(False)
        client = _Client(sock)
        self._clients[client.fd] = client
        self._epoll.register(client.fd, select.EPOLLIN)

    def _has_place(self) -> bool:
        """Whether one more connection fits, if need be in the place of one that is of no use to anybody."""
        if len(self._clients) < MAX_CONNECTIONS:
            return True
        latest = time.monotonic() - IDLE_TIME
        found = min(
            (client for client in self._clients.values() if client.expendable and client.since <= latest),
            key=lambda client: client.since,
            default=None,
        )
        if found is not None:
            self._drop(found)
        return found is not None

    def _controlled(self, _fd: int) -> None:
        if not self._control.take_reload() or self._listener is None:
            return
        self._reload(self._listener)
        if self._reloaded is not None:
            self._reloaded()

    def _reload(self, listener: Listener) -> None:
        try:
            access = self._ask_access()
            listener.apply(access)
        except CplaneError as error:
            self._log(f"the settings stay as they were: {error.message}")
            return
        self._access = access
        self._log("the settings were read again")

    def _finish(self, done: Callable[[Result], None], result: Result) -> None:
        """Hand a result to the loop; called by the threads."""
        self._finished.append((done, result))
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_write, b"\0")

    def _woken(self, fd: int) -> None:
        os.read(fd, 4096)
        while self._finished:
            done, result = self._finished.popleft()
            done(result)

    def _died(self, fd: int) -> None:
        """A controller died: its clients get errors, the others do not notice."""
        self._unwatch(fd)
        for served in self._served:
            if served.backend.alive_fd == fd:
                self._log(f"{served.backend.label} ({served.backend.uri}) is gone: {served.backend.mark_dead()}")

    # -- connections ----------------------------------------------------------------------------------------------

    def _client_event(self, client: _Client, events: int) -> None:
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._drop(client)
        elif events & select.EPOLLOUT:
            self._send_rest(client)
        elif events & select.EPOLLIN:
            self._read(client)

    def _read(self, client: _Client) -> None:
        """Read at most the rest of one message, so that a descriptor belongs to the message that it came with."""
        try:
            data, ancillary, _flags, _address = client.sock.recvmsg(
                wire.SIZE - len(client.received), wire.ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if ancillary:
            self._keep_one(client, wire.take_fds(ancillary))
        if not data:
            self._drop(client)
            return
        if client.received:
            data = client.received + data
        else:
            client.since = time.monotonic()
        if len(data) < wire.SIZE:
            client.received = data
            return
        client.received = b""
        self._handle(client, Message.decode_request(data))

    def _keep_one(self, client: _Client, fds: List[int]) -> None:
        """No operation takes more than one descriptor; the others are closed at once."""
        if fds and client.taken < 0:
            client.taken = fds.pop(0)
        wire.close_all(fds)

    def _handle(self, client: _Client, request: Message) -> None:
        """Answer a request, or give it to a thread."""
        reply: Optional[Message]
        try:
            if request.version != wire.VERSION:
                self._reply(client, Message(request.op, request.index, status=-errno.EPROTO))
                if not client.gone:
                    self._drop(client)
                return
            operation = self._operations.get(request.op)
            if operation is None:
                raise _Failed(errno.ENOSYS)
            reply = operation(client, request)
        except _Failed as failure:
            reply = Message(request.op, request.index, status=-failure.number)
        client.drop_descriptor()
        if reply is not None:
            self._reply(client, reply)

    def _reply(self, client: _Client, reply: Message, fds: Sequence[int] = ()) -> None:
        reply.nfds = len(fds)
        data = reply.encode_reply()
        try:
            sent = _send(client.sock, data, fds)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        if sent < wire.SIZE:
            client.out = data[sent:]
            client.out_fds = () if sent else fds
            client.deadline = time.monotonic() + SEND_TIME
            self._stalled.add(client)
            self._watch_for(client, select.EPOLLOUT)
        else:
            self._watch_for(client, select.EPOLLIN)

    def _send_rest(self, client: _Client) -> None:
        try:
            sent = _send(client.sock, client.out, client.out_fds)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.out = client.out[sent:]
        client.out_fds = ()
        if not client.out:
            self._stalled.discard(client)
            self._watch_for(client, select.EPOLLIN)

    def _watch_for(self, client: _Client, events: int) -> None:
        """Say which events of a connection matter; that its peer is gone always does."""
        if client.events != events:
            client.events = events
            self._epoll.modify(client.fd, events)

    def _drop(self, client: _Client) -> None:
        """End a connection; its place is free at once, what it held as soon as its job does not need it."""
        client.gone = True
        del self._clients[client.fd]
        self._stalled.discard(client)
        self._epoll.unregister(client.fd)
        client.sock.close()
        client.drop_descriptor()
        for index in client.devices:
            self._served[index].nclients -= 1
        for index, _qid in client.pairs:
            self._served[index].nqueues -= 1
        job = client.job
        if job is not None and job.worker.take_back(job):
            job.done(OSError(errno.ECANCELED, "the client is gone"))
        else:
            self._release(client)

    def _release(self, client: _Client) -> None:
        """Delete the queues of a client that is gone, then free its buffers: a controller may still write to them."""
        while client.pairs:
            (index, _qid), pair = client.pairs.popitem()
            self._delete(client, self._served[index], pair)
        self._settle(client)

    def _settle(self, client: _Client) -> None:
        """Free the buffers of a client that is gone once no controller can reach them for it any more."""
        in_use = client.deleting or (client.job is not None and client.job.touches_buffers)
        if client.gone and client.buffers and not in_use:
            self._free_buffers(client)

    def _free_buffers(self, client: _Client) -> None:
        """Free some buffers of a client that is gone; the rest later, so that nobody waits for thousands of them."""
        for _count in range(min(_FREE_AT_ONCE, len(client.buffers))):
            self.heap.free(*client.buffers.popitem())
        if client.buffers:
            self._garbage.append(client)

    def _delete(self, client: _Client, served: _Served, pair: _Pair) -> None:
        """Delete a queue pair that its client may no longer use; while the controller does not answer, try again."""

        def done(result: Result) -> None:
            if isinstance(result, OSError) and result.errno == errno.ETIMEDOUT:
                served.worker.submit(job)
                return
            self._free_pair(served, pair, result)
            client.deleting -= 1
            self._settle(client)

        client.deleting += 1
        job = _Job(served.worker, lambda: served.backend.delete_queue_pair(pair.qid), done)
        served.worker.submit(job)

    def _free_pair(self, served: _Served, pair: _Pair, result: Result = None) -> None:
        """Give back the memory and the id of a pair that the controller let go of, or took with it (EIO)."""
        if isinstance(result, OSError) and result.errno not in (errno.EIO, errno.ECANCELED):
            self._log(f"queue pair {pair.qid} was not deleted, its memory stays reserved: {result}")
            return
        self.heap.free(pair.offset, PAIR_NBYTES)
        served.give_qid(pair.qid)

    def _start(
        self,
        client: _Client,
        worker: _Worker,
        work: Callable[[], Optional[bytes]],
        done: Callable[[Result], Message],
        touches_buffers: bool = True,
    ) -> None:
        """Give a request to a thread; until its reply is sent, the connection is not read."""

        def finished(result: Result) -> None:
            client.job = None
            reply = done(result)
            if client.gone:
                self._release(client)
            else:
                self._reply(client, reply)

        client.job = _Job(worker, work, finished, touches_buffers)
        self._watch_for(client, 0)
        worker.submit(client.job)

    # -- operations -----------------------------------------------------------------------------------------------
    # Replies to what a controller's thread does carry index 0, as those of the reference server.

    def _controller(self, request: Message) -> _Served:
        if request.index >= len(self._served):
            raise _Failed(errno.ERANGE)
        return self._served[request.index]

    def _initialized(self, client: _Client, request: Message) -> _Served:
        served = self._controller(request)
        if request.index not in client.devices:
            raise _Failed(errno.ENOTCONN)
        return served

    def _init(self, client: _Client, request: Message) -> Optional[Message]:
        served = self._controller(request)
        if not served.backend.nsq_total:
            raise _Failed(errno.EIO)
        if request.index not in client.devices:
            client.devices.add(request.index)
            served.nclients += 1
        backend = served.backend
        # What an earlier client may have overwritten must not mislead this one.
        backend.restore_registers()
        self.heap.restore(served.record_offset, served.record)
        self.heap.restore(self._desc_offset, self._descriptor)
        reply = Message(
            Op.INIT_CONNECTION,
            request.index,
            {
                "record_offset": served.record_offset,
                "heap_nbytes": self.heap.nbytes,
                "bar0_nbytes": backend.bar0_nbytes,
            },
        )
        self._reply(client, reply, (self.heap.fd, backend.bar0_fd))
        return None

    def _status(self, client: _Client, request: Message) -> Message:
        """Everything is told of a dead controller, too, but as a failure: no client takes it for one that works."""
        served = self._controller(request)
        return Message(
            Op.STATUS,
            request.index,
            {
                "ndevs": len(self._served),
                "nclients": len(self._clients) - 1,
                "nclients_ctrlr": served.nclients,
                "nqueues": served.nqueues,
                "nsq_total": served.backend.nsq_total,
                "ncq_total": served.backend.ncq_total,
                "bdf": served.bdf,
            },
            status=0 if served.backend.nsq_total else -errno.EIO,
        )

    def _alloc_ioqpair(self, client: _Client, request: Message) -> None:
        served = self._initialized(client, request)
        index, depth = request.index, request.number("depth")
        # A queue of one entry is always full (NVM Express Base Specification 1.4, section 4.1.3).
        if not 2 <= depth <= served.backend.max_depth:
            raise _Failed(errno.EINVAL)
        if len(client.pairs) >= MAX_QUEUES or not served.free_qids:
            raise _Failed(errno.ENOSPC)
        offset = self._allocate(PAIR_NBYTES)
        pair = _Pair(served.take_qid(), offset)
        cq_offset = offset + QUEUE_NBYTES

        def work() -> None:
            self.heap.zero(offset, PAIR_NBYTES)
            served.backend.create_queue_pair(pair.qid, depth, offset, cq_offset)

        def done(result: Result) -> Message:
            if isinstance(result, OSError):
                self._pair_failed(client, served, pair, result)
                return _failure(Op.ALLOC_IOQPAIR, result)
            client.pairs[(index, pair.qid)] = pair
            if not client.gone:
                served.nqueues += 1
            return Message(
                Op.ALLOC_IOQPAIR,
                0,
                {
                    "sq_offset": offset,
                    "cq_offset": cq_offset,
                    "prp_offset": cq_offset + QUEUE_NBYTES,
                    "qid": pair.qid,
                    "depth": depth,
                },
            )

        self._start(client, served.worker, work, done)

    def _pair_failed(self, client: _Client, served: _Served, pair: _Pair, error: OSError) -> None:
        if error.errno == errno.ETIMEDOUT:
            # The controller may still create it, and use its memory: only a delete that worked ends that.
            self._delete(client, served, pair)
        else:
            self._free_pair(served, pair)

    def _free_ioqpair(self, client: _Client, request: Message) -> None:
        served = self._controller(request)
        pair = client.pairs.pop((request.index, request.number("qid")), None)
        if pair is None:
            # As from the reference server, whose threads answer this.
            request.index = 0
            raise _Failed(errno.ENOENT)
        served.nqueues -= 1

        def done(result: Result) -> Message:
            if isinstance(result, OSError) and result.errno in (errno.ETIMEDOUT, errno.ECANCELED):
                self._delete(client, served, pair)
            else:
                self._free_pair(served, pair, result)
            if isinstance(result, OSError) and result.errno == errno.ETIMEDOUT:
                return _failure(Op.FREE_IOQPAIR, result)
            return Message(Op.FREE_IOQPAIR)

        self._start(client, served.worker, lambda: served.backend.delete_queue_pair(pair.qid), done)

    def _admin(self, client: _Client, request: Message) -> None:
        served = self._controller(request)
        command = request.data("command")
        # Bits 1:0 of an opcode say whether data is transferred (NVM Express Base Specification 1.4, figure 139);
        # MPTR, PRP1 and PRP2 say where to.
        transfers = bool(command[0] & 3) and any(command[16:40])

        def done(result: Result) -> Message:
            if isinstance(result, bytes):
                return Message(Op.ADMIN_CMD, 0, {"completion": result})
            return _failure(Op.ADMIN_CMD, result)

        self._start(client, served.worker, lambda: served.backend.admin(command), done, transfers)

    def _allocate(self, nbytes: int) -> int:
        try:
            return self.heap.allocate(nbytes)
        except HeapFull:
            raise _Failed(errno.ENOMEM) from None

    def _alloc_buf(self, client: _Client, request: Message) -> Optional[Message]:
        nbytes = request.number("nbytes")
        if not client.devices:
            raise _Failed(errno.ENOTCONN)
        if not nbytes:
            raise _Failed(errno.EINVAL)
        offset = self._allocate(nbytes)
        client.buffers[offset] = nbytes
        reply = Message(Op.ALLOC_BUF, request.index, {"offset": offset})
        if nbytes <= _ZERO_INLINE:
            self.heap.zero(offset, nbytes)
            return reply
        self._start(client, _there(self._memory), lambda: self.heap.zero(offset, nbytes), lambda _result: reply)
        return None

    def _free_buf(self, client: _Client, request: Message) -> Message:
        offset = request.number("offset")
        nbytes = client.buffers.pop(offset, None)
        if nbytes is None:
            raise _Failed(errno.ENOENT)
        self.heap.free(offset, nbytes)
        return Message(Op.FREE_BUF, request.index)

    def _register_mem(self, client: _Client, request: Message) -> None:
        """Memory of clients cannot be mapped: type1 has no way to take a dma-buf, nor has an emulated controller."""
        self._controller(request)
        request.index = 0
        raise _Failed(errno.EINVAL if client.taken < 0 or not request.number("nbytes") else errno.EOPNOTSUPP)

    def _unknown_registration(self, _client: _Client, request: Message) -> None:
        self._controller(request)
        request.index = 0
        raise _Failed(errno.ENOENT)

    def _alloc_at(self, client: _Client, request: Message) -> None:
        self._initialized(client, request)
        self._unknown_registration(client, request)


def _there(thing: Optional[_Thing]) -> _Thing:
    """Return what every server has once it is open."""
    if thing is None:
        raise RuntimeError("the server is not open")
    return thing


def _send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
    """Send what fits, with descriptors beside the first byte; raises BlockingIOError when nothing does."""
    if fds:
        return sock.sendmsg([data], wire.rights(fds), socket.MSG_NOSIGNAL)
    return sock.send(data, socket.MSG_NOSIGNAL)


def _failure(op: Op, result: Result) -> Message:
    number = result.errno if isinstance(result, OSError) and result.errno else errno.EIO
    return Message(op, 0, status=-number)
