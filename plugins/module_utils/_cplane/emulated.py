# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emulated controllers as processes: one each, so that its polling takes nothing from the server.

The process is forked before the server has any thread, dies with it (PR_SET_PDEATHSIG), shares only the heap, BAR0
and a control socket, and ignores the signals that are meant for the server. With no I/O queue it blocks on that
socket. With one it spins for 200 us after the last command, and then naps for a twentieth of the time that it has been
idle, up to 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections import deque
from typing import Deque, Iterable, List, NoReturn, Optional, Tuple

from . import nvme
from .backend import Backend, check_machine
from .config import EmulatedConfig
from .controller import (
    BAR0_NBYTES,
    CAP,
    CC,
    MAX_DEPTH,
    REGISTERS,
    TIMEOUT_MS,
    Controller,
    FileStore,
    MemoryStore,
    Store,
)
from .errors import ConfigError
from .heap import Heap, sealed_memfd

SPIN = 200e-6
NAP_SHARE = 20
NAP_MAX = 20e-3
_LOOK_AT_SOCKET = 1e-3
"""How often a busy controller looks whether the server wants something, in seconds."""
_STOP_TIME = 0.5
"""How long a controller has to end by itself, in seconds."""

_START_TIME = 30.0
_READY = b"ready"
_REQUEST = struct.Struct("<II64s")
"""What the server sends: a sequence number, whether the command is its own, the command."""
_ANSWER = struct.Struct("<I4x16s")
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_TIMERSLACK = 1, 15, 29


class EmulatedBackend(Backend):
    """The server's side of an emulated controller. Creating one forks; do that before any thread is started."""

    def __init__(self, config: EmulatedConfig, uri: str, heap: Heap) -> None:
        check_machine(config.label)
        self.label, self.uri = config.label, uri
        self.cap, self.cc, self.timeout_ms = CAP, CC, TIMEOUT_MS
        self.nsq_total = self.ncq_total = config.queues
        self.max_depth = MAX_DEPTH
        # Number 1 comes last: clients of a real controller never see it.
        self.qids = (*range(2, config.queues + 1), 1)
        self._timeout = config.timeout
        self._sequence = 0
        self._dead = False
        store_fd, nbytes = _open_file(config) if config.path else (-1, config.size or 0)
        self.bar0_nbytes = BAR0_NBYTES
        self.bar0_fd = sealed_memfd("xnvme-cplane-bar0", BAR0_NBYTES)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.alive_fd, lifeline = os.pipe()
        self.pid = _fork(config, nbytes, (theirs.fileno(), lifeline, heap.fd, self.bar0_fd, store_fd), heap.nbytes)
        theirs.close()
        os.close(lifeline)
        if store_fd >= 0:
            os.close(store_fd)
        self._await_start()

    def _await_start(self) -> None:
        self._control.settimeout(_START_TIME)
        try:
            word = self._control.recv(1024)
        except OSError:
            word = b"its process did not start"
        if word != _READY:
            self.close()
            raise ConfigError(f"{self.label}: {word.decode('utf-8', 'replace') or 'its process died'}")

    def admin(self, command: bytes) -> bytes:
        """Execute a client's command."""
        return self._call(command, own=False)

    def own(self, command: bytes) -> bytes:
        """Execute a command of the server's own."""
        return self._call(command, own=True)

    def restore_registers(self) -> None:
        """Single 32-bit stores of what is there anyway, so that a client which reads meanwhile sees no other value."""
        self._store(REGISTERS)

    def mark_dead(self) -> str:
        """Reap the process, and say in CSTS what clients that poll must know (section 3.1.6, CFS)."""
        self._dead = True
        self.nsq_total = self.ncq_total = 0
        self._store([(nvme.CSTS, nvme.CSTS_RDY | nvme.CSTS_CFS)])
        _pid, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return f"process {self.pid} was killed by signal {os.WTERMSIG(status)}"
        return f"process {self.pid} exited with status {os.WEXITSTATUS(status)}"

    def _store(self, registers: Iterable[Tuple[int, int]]) -> None:
        with mmap.mmap(self.bar0_fd, self.bar0_nbytes) as bar0, memoryview(bar0) as view, view.cast("I") as words:
            for word, value in registers:
                words[word] = value

    def interrupt(self) -> None:
        """The process ends when its control socket does."""
        with contextlib.suppress(OSError):  # it may be dead already
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process: it has half a second to do it by itself."""
        self._control.close()
        if not self._dead:
            self._reap()
        os.close(self.alive_fd)
        os.close(self.bar0_fd)

    def _reap(self) -> None:
        # The pipe closes when the process is gone, so there is no need to ask again and again.
        watch = select.poll()
        watch.register(self.alive_fd, select.POLLIN)
        if not watch.poll(_STOP_TIME * 1000):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _call(self, command: bytes, own: bool) -> bytes:
        if self._dead:
            raise OSError(errno.EIO, f"{self.label} is gone")
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        end = time.monotonic() + self._timeout
        try:
            self._control.settimeout(self._timeout)
            self._control.send(_REQUEST.pack(self._sequence, own, command))
            while True:
                sequence, completion = _ANSWER.unpack(self._control.recv(_ANSWER.size))
                if sequence == self._sequence:
                    return bytes(completion)
                # The answer to a command that was given up earlier.
                self._control.settimeout(max(0.001, end - time.monotonic()))
        except socket.timeout:
            raise OSError(errno.ETIMEDOUT, f"{self.label} does not answer") from None
        except (OSError, struct.error):
            raise OSError(errno.EIO, f"{self.label} is gone") from None


def _open_file(config: EmulatedConfig) -> Tuple[int, int]:
    """Open or create the file of a namespace and lock it; returns its descriptor and size."""
    path, size = str(config.path), config.size
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_CREAT if size else 0)
    fd = -1
    try:
        fd = os.open(path, flags, 0o600)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{config.label}: path={path} is not a regular file")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not found.st_size and size:
            os.ftruncate(fd, size)
        elif not found.st_size or found.st_size % nvme.PAGE or found.st_size != (size or found.st_size):
            raise ConfigError(
                f"{config.label}: path={path} has {found.st_size} bytes,"
                f" not {size or 'a multiple of 4096'}; give its size, or move it away"
            )
        return fd, size or found.st_size
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(f"{config.label}: path={path} is in use by another controller") from None
    except ConfigError:
        os.close(fd)
        raise
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise ConfigError(f"{config.label}: path={path}: {error.strerror}") from None


def _fork(config: EmulatedConfig, nbytes: int, fds: Tuple[int, ...], heap_nbytes: int) -> int:
    """Start the process; ``fds`` are its control socket, lifeline, heap, BAR0 and file (or -1)."""
    parent = os.getpid()
    # No signal may reach handlers of the server in the child, before it has its own.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    gc.freeze()
    try:
        pid = os.fork()
        if pid == 0:
            _child(parent, config, nbytes, fds, heap_nbytes)
        return pid
    finally:
        gc.unfreeze()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(parent: int, config: EmulatedConfig, nbytes: int, fds: Tuple[int, ...], heap_nbytes: int) -> NoReturn:
    """Never returns into the code of the server."""
    try:
        _isolate(parent, config.name, fds)
        control, _lifeline, heap_fd, bar0_fd, store_fd = fds
        try:
            heap = memoryview(mmap.mmap(heap_fd, heap_nbytes))
            bar0 = memoryview(mmap.mmap(bar0_fd, BAR0_NBYTES)).cast("I")
            store: Store = FileStore(store_fd, nbytes) if store_fd >= 0 else MemoryStore(nbytes)
        except OSError as error:
            os.write(control, f"cannot map its {nbytes} bytes: {error.strerror}".encode())
            os._exit(1)
        os.close(heap_fd)
        os.close(bar0_fd)
        # A low number, whatever the server had open: select takes none above 1023.
        sock = socket.socket(fileno=os.dup(control))
        os.close(control)
        sock.send(_READY)
        _Process(Controller(config, heap, bar0, store), sock).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server closed while an answer was on its way
    except BaseException as error:  # noqa: BLE001 (nothing may return into the code of the server)
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    os._exit(0)


def _isolate(parent: int, name: str, fds: Tuple[int, ...]) -> None:
    """Die with the server, keep only what is needed, and leave its signals to it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    libc.prctl(_PR_SET_NAME, b"emu:" + name.encode("ascii")[:11], 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    gc.disable()  # there are no cycles to collect, only pauses to make
    for fd in _open_fds():
        if fd > 2 and fd not in fds:
            try:
                os.close(fd)
            except OSError:
                continue  # the one that listed the others


def _open_fds() -> List[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


class _Process:
    """The loop of a controller's process."""

    def __init__(self, controller: Controller, sock: socket.socket) -> None:
        self._controller = controller
        self._sock = sock
        self._waiting: Deque[bytes] = deque()
        self._formatting: Optional[Tuple[int, int]] = None

    def run(self) -> None:
        """Serve until the server closes the control socket."""
        controller, clock = self._controller, time.monotonic
        last, next_look = clock(), 0.0
        while True:
            busy = controller.busy
            if busy and controller.poll():
                last = clock()
            now = clock()
            pause = self._pause(now - last, now) if busy else None
            if pause == 0.0 and now < next_look:
                continue
            next_look = now + _LOOK_AT_SOCKET
            if not self._look(self._limit(pause, now)):
                return
            if not busy:
                last = clock()

    def _pause(self, idle: float, now: float) -> float:
        """How long to nap with queues that have been idle for so long."""
        if idle < SPIN:
            return 0.0
        nap = min(idle / NAP_SHARE, NAP_MAX)
        due = self._controller.next_due
        return nap if due is None else max(0.0, min(nap, due - now))

    def _limit(self, pause: Optional[float], now: float) -> Optional[float]:
        end = self._controller.format_end
        if end is None:
            return pause
        return max(0.0, end - now) if pause is None else max(0.0, min(pause, end - now))

    def _look(self, pause: Optional[float]) -> bool:
        """Wait at most so long for the server, and do what it wants; returns False when it is gone."""
        if select.select([self._sock], [], [], pause)[0]:
            request = self._sock.recv(_REQUEST.size)
            if not request:
                return False
            self._waiting.append(request)
        end = self._controller.format_end
        if end is not None and end <= time.monotonic() and self._formatting:
            self._answer(*self._formatting, 0, self._controller.finish_format())
            self._formatting = None
        while self._waiting and self._formatting is None:
            self._execute(*_REQUEST.unpack(self._waiting.popleft()))
        return True

    def _execute(self, sequence: int, own: int, command: bytes) -> None:
        cid = command[2] | command[3] << 8
        dw0, status = self._controller.admin(command, bool(own))
        if self._controller.format_end is not None:
            self._formatting = (sequence, cid)
        else:
            self._answer(sequence, cid, dw0, status)

    def _answer(self, sequence: int, cid: int, dw0: int, status: int) -> None:
        # The phase bit is set, as in the first pass of a real admin queue.
        completion = nvme.COMPLETION.pack(dw0, 0, 0, 0, cid, status << 1 | 1)
        self._sock.send(_ANSWER.pack(sequence, completion))
