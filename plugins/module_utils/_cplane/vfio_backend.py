# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real NVMe controllers for a server: the memory that they and the clients share, and their admin queues.

Experimental. Facts are from the NVM Express Base Specification 1.4, whose sections and figures are cited.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import select
import threading
import time
from typing import Callable, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import nvme
from .backend import Backend, check_machine, start_thread
from .config import MAX_QUEUES
from .errors import ConfigError, CplaneError
from .heap import PAGE, Heap, sealed_memfd
from .vfio import ERROR_IRQ, HOST, REQUEST_IRQ, Container, Device, Places, eventfd, reach

MAX_DEPTH = 1024
"""Entries of a queue: clients use 1024 pages for PRP lists, whatever the depth."""
ADMIN_DEPTH = 64
"""Entries of the admin queues: a page of commands."""
PRIVATE_PAGES = 3
"""What the server keeps to itself of each controller: admin submission and completion queue, one page of data."""
COMMAND_TIME, LONG_TIME = 60.0, 3600.0
"""How long an admin command may take, and one that writes a whole drive, in seconds."""
ABORT_TIME = 5.0
"""How long a controller has to abort one."""
STOP_TIME = 5.0
"""How long a controller has to delete what is left of the queues, and then to let itself be disabled, at the end."""
SHUTDOWN_TIME = 5.0
"""How long it has at least to write back what it caches."""
CHECK_EVERY = 1.0
"""How often an idle controller is looked at, in seconds."""

_HUGE = 2 << 20
_MFD_HUGE_2MB = 21 << 26
_ZEROS = bytes(1 << 20)
_NAP_SHARE, _NAP_MIN, _NAP_MAX = 20, 20e-6, 5e-3
_LOOK_EVERY = 1e-3
_GONE = 0xFFFFFFFF
"""What reads of nothing give on PCI Express; zero, on some bridges and in QEMU."""
_NVM_COMMAND_SET = 1 << 37
_READY_INDEPENDENT = 1 << 59

_LONG = frozenset({nvme.FORMAT, nvme.SANITIZE, nvme.NAMESPACE_MANAGEMENT, nvme.FIRMWARE_COMMIT, nvme.FIRMWARE_DOWNLOAD})
_DENIED = frozenset({nvme.VIRTUALIZATION, nvme.DOORBELL_BUFFER})
"""They would change under all clients how queues work."""
_DENIED_FEATURES = frozenset({nvme.FEATURE_HOST_MEMORY, nvme.FEATURE_KEEP_ALIVE})
"""They would outlive the client: memory of the heap for the controller's own use, and a timer that ends it."""

Log = Callable[[str], None]


# -- memory -------------------------------------------------------------------------------------------------------


class DmaHeap(Heap):
    """A heap that real controllers reach: the IO address of a byte is its offset.

    It stays in place as long as it is there: in huge pages where enough are free, else in pages of 4 KiB, which take
    their time at the start. Behind it, where no client has it in its map, are the pages that the server itself shares
    with the controllers. Raises CplaneError and its kinds, with nothing left open.
    """

    def __init__(self, nbytes: int, bdfs: Sequence[str], log: Log, places: Places = HOST) -> None:
        for bdf in bdfs:
            check_machine(bdf)
        private = PRIVATE_PAGES * PAGE * len(bdfs)
        nbytes = (nbytes + _HUGE - 1) // _HUGE * _HUGE
        self.log = log
        self._taken = 0
        with contextlib.ExitStack() as opened:
            self.container = Container(bdfs, places)
            opened.callback(self.container.close)
            check_reach(reach(self.container.ranges()), nbytes + private)
            super().__init__(nbytes, self._memory)
            opened.callback(super().close)
            self._private = mmap.mmap(-1, private)
            opened.callback(self._private.close)
            self.container.map(_address(self._map), nbytes, 0)
            self.container.map(_address(self._private), private, nbytes)
            opened.pop_all()

    def _memory(self, name: str, nbytes: int) -> int:
        try:
            fd = sealed_memfd(name, nbytes, os.MFD_HUGETLB | _MFD_HUGE_2MB)
            try:
                # They are set aside here, and stay so as long as the file is there.
                mmap.mmap(fd, nbytes).close()
            except OSError:
                os.close(fd)
                raise
            return fd
        except OSError:
            self.log(
                f"fewer than {nbytes // _HUGE} huge pages of 2 MiB are free; the heap is in pages of 4 KiB instead,"
                " which takes longer to start"
            )
        return sealed_memfd(name, nbytes)

    def take_private(self) -> Tuple[memoryview, int]:
        """Return a controller's part of the server's own pages, and its IO address."""
        start, self._taken = self._taken, self._taken + PRIVATE_PAGES * PAGE
        return memoryview(self._private)[start : self._taken], self.nbytes + start

    def zero(self, offset: int, nbytes: int) -> None:
        """Clear whole pages by writing: the controllers know them by where they are."""
        end = offset + (nbytes + PAGE - 1) // PAGE * PAGE
        for start in range(offset, end, len(_ZEROS)):
            stop = min(start + len(_ZEROS), end)
            self.view[start:stop] = _ZEROS[: stop - start]

    def close(self) -> None:
        """Let go of the address space, then of the memory."""
        self.container.close()
        self._private.close()
        super().close()


def _address(memory: mmap.mmap) -> int:
    """Where a map begins in this process. Nothing that holds on to it is left."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def check_reach(reachable: int, nbytes: int) -> None:
    """Raise ConfigError when ``nbytes`` of memory from IO address 0 on do not fit."""
    if nbytes <= reachable:
        return
    if not reachable:
        raise ConfigError("the IOMMU of these controllers keeps IO address 0 to itself, where the heap must begin")
    raise ConfigError(
        f"the controllers' heap needs {nbytes} bytes, and the IOMMU leaves {reachable} of them before the first"
        " addresses that it keeps to itself; give a smaller heap_size"
    )


# -- the admin queue ----------------------------------------------------------------------------------------------


class AdminQueue:
    """Admin submission and completion queue (section 4.1), polled. ``memory`` is the server's own, at ``iova``."""

    def __init__(self, device: Device, memory: memoryview, iova: int, stride: int) -> None:
        self.sq, self.cq = iova, iova + PAGE
        self._device = device
        self._memory = memory
        self._words = memory.cast("I")
        self._bells = (4 * nvme.doorbell(0, False, stride), 4 * nvme.doorbell(0, True, stride))
        self._tail = self._head = self._cid = 0
        self._phase = 1 << 16
        self.pending: Set[int] = set()
        """Ids of commands that were not completed."""

    def submit(self, command: bytes) -> int:
        """Hand a 64-byte command over; returns the id that took the place of its own."""
        self._cid = self._cid + 1 & 0xFFFF
        at = self._tail * nvme.SQE
        self._memory[at : at + nvme.SQE] = command[:2] + self._cid.to_bytes(2, "little") + command[4:]
        self._tail = (self._tail + 1) % ADMIN_DEPTH
        self.pending.add(self._cid)
        self._device.write(self._bells[0], self._tail)
        return self._cid

    def take(self) -> Optional[bytes]:
        """Return the next completion, 16 bytes as they are; None when there is none yet."""
        at = PAGE + self._head * nvme.CQE
        if self._words[at // 4 + 3] & 1 << 16 != self._phase:
            return None
        completion = bytes(self._memory[at : at + nvme.CQE])
        self._head += 1
        if self._head == ADMIN_DEPTH:
            self._head, self._phase = 0, self._phase ^ 1 << 16
        self._device.write(self._bells[1], self._head)
        self.pending.discard(nvme.read_completion(completion).cid)
        return completion

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory.release()


class _Identity(NamedTuple):
    """What Identify Controller (figure 251) says of interest; ``shutdown`` is in seconds."""

    serial: str
    model: str
    shutdown: float


def read_identity(data: bytes) -> _Identity:
    """Read it; raises ValueError for a controller whose queues have other entries than ours."""
    if data[512] & 0xF > 6 or data[513] & 0xF > 4:
        raise ValueError("it wants queue entries of more than 64 and 16 bytes")
    serial, model = (data[start:end].decode("ascii", "replace").strip(" \0") for start, end in ((4, 24), (24, 64)))
    return _Identity(serial, model, max(SHUTDOWN_TIME, int.from_bytes(data[88:92], "little") * 1e-6))


def pair_limit(bar0_nbytes: int, stride: int) -> int:
    """Return how many I/O queue pairs have their doorbells inside of BAR0."""
    return min(MAX_QUEUES, (bar0_nbytes // 4 - nvme.DOORBELLS) // (2 << stride) - 1)


# -- the controller -----------------------------------------------------------------------------------------------


class VfioBackend(Backend):
    """A controller behind vfio-pci, brought up by the specification and given back as a kernel driver wants it.

    A controller that does not do a command in time is told to abort it. One that does not even do that, that reports a
    fatal status, that was reset behind our back, or that is pulled or wanted back, is dead: it is disabled and cut off
    from memory, and everything that is asked of it ends with EIO.
    """

    check_every = CHECK_EVERY

    def __init__(self, label: str, uri: str, heap: DmaHeap, device: Device) -> None:
        self.label, self.uri = label, uri
        self.nsq_total = self.ncq_total = 0
        self._log = heap.log
        self._device = device
        self._cause = ""
        self._ended = False
        self._interrupted = threading.Event()
        self._shutdown_time = SHUTDOWN_TIME
        self._pairs: List[int] = []
        self._releasing: Optional[threading.Thread] = None
        self.bar0_fd, self.bar0_nbytes = device.fd, device.bar0.size
        self._memory, self._iova = heap.take_private()
        self._queue: Optional[AdminQueue] = None
        self._alarm = select.epoll()
        self.alive_fd = self._alarm.fileno()
        self._wanted, self._broken, self._own_alarm = eventfd(), eventfd(), eventfd()
        try:
            self._start()
        except OSError as error:
            self.close()
            raise CplaneError(f"{label} does not work: {self._cause or error.strerror}") from None
        except CplaneError:
            self.close()
            raise

    # -- start and end --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        device = self._device
        for event, irq in ((self._wanted, REQUEST_IRQ), (self._broken, ERROR_IRQ)):
            device.signal(irq, event)
            self._alarm.register(event, select.EPOLLIN)
        self._alarm.register(self._own_alarm, select.EPOLLIN)
        version = self._read(nvme.VS)
        if version in (0, _GONE):
            raise CplaneError(f"{self.label} does not answer: its registers read as {version:#x}")
        self.cap = self._read(nvme.CAP) | self._read(nvme.CAP + 1) << 32
        self._check_capabilities()
        self.cc = nvme.CC_ENABLED
        self.timeout_ms = int(self._ready_time() * 1000)
        self.max_depth = min((self.cap & 0xFFFF) + 1, MAX_DEPTH)
        limit = self._ready_time()
        if self._read(nvme.CC) & nvme.CC_EN:
            # Section 3.1.5: EN is not cleared while a controller is still becoming ready.
            self._await_ready(True, limit)
        self._disable(limit)
        self._enable(limit)
        self._get_to_know()

    def _check_capabilities(self) -> None:
        """Section 3.1.1: pages of 4 KiB, the NVM command set, and a BAR that clients can map from its start."""
        if self.cap >> 48 & 0xF:
            raise ConfigError(f"{self.label} has no memory pages of 4 KiB (CAP.MPSMIN)")
        if not self.cap & _NVM_COMMAND_SET:
            raise ConfigError(f"{self.label} does not have the NVM command set (CAP.CSS)")
        if self._device.bar0.offset or pair_limit(self.bar0_nbytes, nvme.stride(self.cap)) < 1:
            raise ConfigError(f"{self.label}: BAR0 of {self.bar0_nbytes} bytes has no doorbells that could be mapped")

    def _ready_time(self) -> float:
        """CAP.TO, and where a controller has it CRTO.CRWMT (base specification 2.0), in seconds."""
        units = self.cap >> 24 & 0xFF
        if self.cap & _READY_INDEPENDENT:
            units = max(units, self._read(nvme.CRTO) & 0xFFFF)
        return max(units, 1) * 0.5

    def _disable(self, limit: float) -> None:
        """Section 7.6.2."""
        self._write(nvme.CC, self._read(nvme.CC) & ~nvme.CC_EN)
        if not self._await_ready(False, limit):
            raise CplaneError(f"{self.label} does not let itself be disabled in {limit:g} s (CSTS.RDY)")

    def _enable(self, limit: float) -> None:
        """Section 7.6.1. Interrupts are masked: the admin queue is polled, and clients' queues are made without."""
        self._memory[: 2 * PAGE] = bytes(2 * PAGE)
        queue = self._queue = AdminQueue(self._device, self._memory[: 2 * PAGE], self._iova, nvme.stride(self.cap))
        self._device.set_bus_master(True)
        self._write(nvme.INTMS, 0xFFFFFFFF)
        self._write(nvme.AQA, ADMIN_DEPTH - 1 << 16 | ADMIN_DEPTH - 1)
        for register, address in ((nvme.ASQ, queue.sq), (nvme.ACQ, queue.cq)):
            self._write(register, address & 0xFFFFFFFF)
            self._write(register + 1, address >> 32)
        self._write(nvme.CC, self.cc)
        if not self._await_ready(True, limit):
            status = self._read(nvme.CSTS)
            raise CplaneError(f"{self.label} did not become ready in {limit:g} s (CSTS {status:#x})")

    def _get_to_know(self) -> None:
        """Identify Controller, then Number of Queues (section 5.21.1.7)."""
        self.demand(nvme.command(nvme.IDENTIFY, prp1=self._iova + 2 * PAGE, cdw10=1))
        try:
            identity = read_identity(bytes(self._memory[2 * PAGE :]))
        except ValueError as error:
            raise ConfigError(f"{self.label} cannot be served: {error}") from None
        self._shutdown_time = identity.shutdown
        wish = pair_limit(self.bar0_nbytes, nvme.stride(self.cap)) - 1
        feature = nvme.command(nvme.SET_FEATURES, cdw10=nvme.FEATURE_NUMBER_OF_QUEUES, cdw11=wish << 16 | wish)
        granted = self.demand(feature).dw0
        self.nsq_total, self.ncq_total = (granted & 0xFFFF) + 1, (granted >> 16) + 1
        pairs = min(self.nsq_total, self.ncq_total, wish + 1)
        # Number 1 comes last, as for emulated controllers.
        self.qids = (*range(2, pairs + 1), 1)
        self._log(
            f"{self.label}: {identity.model}, serial {identity.serial}, {pairs} queue pairs"
            " (to serve real controllers from here is experimental)"
        )

    def _await_ready(self, ready: bool, limit: float) -> bool:
        """Wait for CSTS.RDY; returns False when it did not come in time, or cannot come (CSTS.CFS)."""
        end = time.monotonic() + limit
        while True:
            late = time.monotonic() > end
            status = self._read(nvme.CSTS)
            if bool(status & nvme.CSTS_RDY) == ready:
                return not status & nvme.CSTS_CFS or not ready
            if late or (ready and status & nvme.CSTS_CFS):
                return False
            time.sleep(_LOOK_EVERY)

    def interrupt(self) -> None:
        """Have a command that is waited for end with EIO; it may still be done until ``close``."""
        self._interrupted.set()

    def close(self) -> None:
        """Delete the queues, shut the controller down, disable it, take its DMA, and let go of it."""
        if not self._ended:
            try:
                self._hand_back()
            except (OSError, CplaneError) as error:
                self._log(f"{self.label} was not handed back as it should be: {error}")
            self._cut_off()
        if self._queue is not None:
            self._queue.close()
        self._memory.release()
        self._close_device()
        self._alarm.close()
        for event in (self._wanted, self._broken, self._own_alarm):
            os.close(event)

    def _close_device(self) -> None:
        """Not while a thread may still put something else in the place of its descriptor; the process ends anyway."""
        if self._releasing is not None:
            self._releasing.join(STOP_TIME)
            if self._releasing.is_alive():
                return
        self._device.close()

    def _hand_back(self) -> None:
        """Sections 7.6.2 (in the normal way) and 3.1.6, SHST."""
        if self._queue is None or not self._read(nvme.CSTS) & nvme.CSTS_RDY:
            return
        self._interrupted.clear()
        self._delete_all()
        self._write(nvme.CC, self._read(nvme.CC) & ~nvme.CC_SHN | nvme.CC_SHN_NORMAL)
        end = time.monotonic() + self._shutdown_time
        while self._read(nvme.CSTS) & nvme.CSTS_SHST != nvme.CSTS_SHST_DONE:
            if time.monotonic() > end:
                self._log(f"{self.label} did not shut down in {self._shutdown_time:g} s (CSTS.SHST)")
                break
            time.sleep(_LOOK_EVERY)
        self._disable(STOP_TIME)

    def _delete_all(self) -> None:
        """Delete the queues that clients left; a reset does that, too, so nothing is insisted on."""
        end = time.monotonic() + STOP_TIME
        while self._pairs and self._queue is not None and not self._queue.pending:
            qid = self._pairs.pop()
            for opcode in (nvme.DELETE_SQ, nvme.DELETE_CQ):
                self._wait(self._queue, self._queue.submit(nvme.command(opcode, cdw10=qid)), end - time.monotonic())

    # -- commands -------------------------------------------------------------------------------------------------

    def admin(self, command: bytes) -> bytes:
        """Execute a client's command, with those answered here that are the server's affair."""
        refused = verdict(command, self._pairs, len(self.qids), self.max_depth)
        if refused is not None:
            dw0, status = refused
            cid = int.from_bytes(command[2:4], "little")
            return nvme.COMPLETION.pack(dw0, 0, 0, 0, cid, status << 1 | 1)
        return self._execute(command, LONG_TIME if command[0] in _LONG else COMMAND_TIME)

    def own(self, command: bytes) -> bytes:
        """Execute a command of the server's own."""
        return self._execute(command, COMMAND_TIME)

    def create_queue_pair(self, qid: int, depth: int, sq_offset: int, cq_offset: int) -> None:
        """Create both, and remember them: even one that failed half way may be there."""
        self._pairs.append(qid)
        super().create_queue_pair(qid, depth, sq_offset, cq_offset)

    def delete_queue_pair(self, qid: int) -> None:
        """Delete both, and forget them."""
        super().delete_queue_pair(qid)
        if qid in self._pairs:
            self._pairs.remove(qid)

    def _execute(self, command: bytes, timeout: float) -> bytes:
        queue = self._queue
        if self._ended or queue is None:
            raise OSError(errno.EIO, f"{self.label} is gone")
        cid = queue.submit(command)
        completion = self._wait(queue, cid, timeout)
        if completion is None:
            completion = self._abort(queue, cid, command[0], timeout)
        return completion[:12] + command[2:4] + completion[14:]

    def _abort(self, queue: AdminQueue, cid: int, opcode: int, timeout: float) -> bytes:
        """Section 5.1. What the command touches must be left alone afterwards, so there is no third way."""
        queue.submit(nvme.command(nvme.ABORT, cdw10=cid << 16))
        completion = self._wait(queue, cid, ABORT_TIME)
        if completion is None:
            self._fail(f"it neither did command {opcode:#04x} in {timeout:g} s, nor aborted it")
            raise OSError(errno.EIO, f"{self.label} does not answer")
        if nvme.read_completion(completion).status & ~nvme.DNR == nvme.ABORT_REQUESTED:
            raise OSError(errno.ETIMEDOUT, f"{self.label} did not do command {opcode:#04x} in time")
        return completion

    def _wait(self, queue: AdminQueue, cid: int, timeout: float) -> Optional[bytes]:
        """Return the completion of a command, None when there is none in time; raises OSError (EIO)."""
        begin = now = time.monotonic()
        while True:
            completion = queue.take()
            if completion is None:
                if now - begin > timeout:
                    return None
                self.check()
                if self._ended or self._interrupted.wait(min(max((now - begin) / _NAP_SHARE, _NAP_MIN), _NAP_MAX)):
                    raise OSError(errno.EIO, f"{self.label} is gone")
                now = time.monotonic()
            elif nvme.read_completion(completion).cid == cid:
                return completion

    # -- life and death -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look whether the controller still works."""
        if self._ended:
            return
        try:
            status = self._read(nvme.CSTS)
            if status & nvme.CSTS_RDY and not status & nvme.CSTS_CFS:
                return
            version = self._read(nvme.VS)
        except OSError as error:
            self._fail(f"its registers cannot be reached ({error.strerror})")
            return
        if version in (0, _GONE):
            self._fail(f"it was pulled (registers read as {version:#x})")
        elif status & nvme.CSTS_CFS:
            self._fail("it reports a fatal status (CSTS.CFS)")
        else:
            self._fail("it was reset or disabled by somebody else (CSTS.RDY)")

    def _fail(self, cause: str) -> None:
        """Called by the worker: end the controller, then tell the loop."""
        self._cause = self._cause or cause
        self._ended = True
        self._cut_off()
        os.write(self._own_alarm, (1).to_bytes(8, "little"))

    def mark_dead(self) -> str:
        """Cut the controller off, and give it back to the kernel, which may be waiting for it."""
        found = {fd for fd, _events in self._alarm.poll(0)}
        self._ended = True
        self.nsq_total = self.ncq_total = 0
        self._cut_off()
        # Not here: a kernel that resets a device which was pulled waits for it, for more than a minute.
        self._releasing = start_thread(self._device.release, f"{self.label} let go")
        if self._cause:
            return self._cause
        if self._wanted in found:
            return "it is wanted back, or was pulled; clients that still have it open keep it from going"
        return "it reported an uncorrectable error"

    def _cut_off(self) -> None:
        """Disable the controller and take its DMA, so that it touches no memory any more; it may be gone, too."""
        with contextlib.suppress(OSError):
            self._write(nvme.CC, self._read(nvme.CC) & ~nvme.CC_EN)
        with contextlib.suppress(OSError):
            self._device.set_bus_master(False)

    def restore_registers(self) -> None:
        """They are the controller's own."""

    def _read(self, register: int) -> int:
        return self._device.read(4 * register)

    def _write(self, register: int, value: int) -> None:
        self._device.write(4 * register, value)


# -- what clients may not -----------------------------------------------------------------------------------------


def verdict(command: bytes, pairs: Sequence[int], total: int, max_depth: int) -> Optional[Tuple[int, int]]:
    """Return DW0 and status of a client's command that is answered by the server; None for one that is executed.

    ``pairs`` are the queue pairs that exist, ``total`` is how many there may be. The rules are those of emulated
    controllers.
    """
    opcode, flags, _cid, _nsid, _mptr, _prp1, _prp2, cdw10, cdw11 = nvme.COMMAND.unpack(command)[:9]
    if flags:
        return 0, nvme.INVALID_FIELD  # no fused commands, no SGLs (figure 104)
    if opcode in (nvme.CREATE_SQ, nvme.CREATE_CQ, nvme.DELETE_SQ, nvme.DELETE_CQ):
        return 0, _queue_verdict(opcode, cdw10, cdw11, pairs, total, max_depth)
    if opcode == nvme.ASYNC_EVENT:
        return 0, nvme.ASYNC_EVENT_LIMIT  # it would stay for ever
    if opcode == nvme.ABORT and not cdw10 & 0xFFFF:
        return 1, nvme.SUCCESS  # nothing of this client is under way on the admin queue
    if opcode in _DENIED:
        return 0, nvme.OPERATION_DENIED
    if opcode == nvme.SET_FEATURES:
        return _feature_verdict(cdw10 & 0xFF)
    return None


def _feature_verdict(feature: int) -> Optional[Tuple[int, int]]:
    if feature == nvme.FEATURE_NUMBER_OF_QUEUES:
        return 0, nvme.COMMAND_SEQUENCE_ERROR
    return (0, nvme.OPERATION_DENIED) if feature in _DENIED_FEATURES else None


def _queue_verdict(opcode: int, cdw10: int, cdw11: int, pairs: Sequence[int], total: int, max_depth: int) -> int:
    """Sections 5.3 to 5.6: what is wrong in itself gets the status that says so, and what is right is denied."""
    qid, size = cdw10 & 0xFFFF, (cdw10 >> 16) + 1
    if opcode in (nvme.DELETE_SQ, nvme.DELETE_CQ):
        if qid not in pairs:
            return nvme.INVALID_QUEUE_ID
        return nvme.OPERATION_DENIED if opcode == nvme.DELETE_SQ else nvme.INVALID_QUEUE_DELETION
    if not 1 <= qid <= total or qid in pairs:
        return nvme.INVALID_QUEUE_ID
    if not 2 <= size <= max_depth:
        return nvme.INVALID_QUEUE_SIZE
    cqid = cdw11 >> 16
    if opcode == nvme.CREATE_SQ and cqid not in pairs:
        return nvme.COMPLETION_QUEUE_INVALID if 1 <= cqid <= total else nvme.INVALID_QUEUE_ID
    return nvme.OPERATION_DENIED
