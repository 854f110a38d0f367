# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An emulated NVMe controller: registers, admin commands, and I/O queues that work on real data.

It is a plain object on a heap, a BAR0 and a store; ``emulated`` runs it as a process of its own. Everything that a
client can write (queue entries, doorbells, PRPs) is checked, and answered with a status of the NVM Express Base
Specification 1.4, whose sections and figures are cited. There are one namespace (NSID 1), no interrupts, no
metadata, and a memory page of 4 KiB.

Registers and completions are stored as single 32-bit words of a memoryview, the last word of a completion (command id
and phase) last and alone. Python has no memory barriers: the order of these stores is kept by x86-64 only.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import time
from collections import deque
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import nvme
from .config import EmulatedConfig
from .nvme import PAGE

MAX_DEPTH = 1024
"""Entries of a queue: clients use 1024 pages for PRP lists, whatever the depth."""
MDTS = 9
"""Section 5.15.2.2: the largest transfer is 2 to the power of this, in pages (2 MiB)."""
BAR0_NBYTES = 16384
NSID = 1
ALL_NAMESPACES = 0xFFFFFFFF
TIMEOUT_MS = 10000
"""CAP.TO and the timeout_ms of the runtime record."""

CAP = (MAX_DEPTH - 1) | 1 << 16 | (TIMEOUT_MS // 500) << 24 | 1 << 37
"""Section 3.1.1: MQES, contiguous queues, the timeout, no gap between doorbells, the NVM command set."""
VS = 0x00010400
CC = nvme.CC_ENABLED
"""Section 3.1.5: enabled, entries of 64 and 16 bytes. The server owns it; what clients write there has no effect."""
REGISTERS = (
    (nvme.CAP, CAP & 0xFFFFFFFF),
    (nvme.CAP + 1, CAP >> 32),
    (nvme.VS, VS),
    (nvme.CC, CC),
    (nvme.CSTS, nvme.CSTS_RDY),
)
"""What clients read of a controller that works: numbers of 32-bit words of BAR0, and their values."""

_LBA_SHIFTS = (9, 12)
_ERROR_ENTRIES = 64
_BURST = 64
"""Commands taken from a queue before the next one has its turn."""
_U64 = struct.Struct("<Q")
_EFFECTS_SUPPORTED, _EFFECTS_CONTENT = 1, 1 << 1

Segments = List[Tuple[int, int]]
"""Where a transfer lies in the heap: address and length of each contiguous piece."""


class MemoryStore:
    """The data of a namespace in anonymous memory, taken from the system as it is written."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        no_reserve = 0x4000  # MAP_NORESERVE, which Python does not name
        self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
        self._view = memoryview(self._map)

    def read(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` from ``offset`` on."""
        target[:] = self._view[offset : offset + len(target)]

    def write(self, offset: int, source: memoryview) -> None:
        """Store ``source`` from ``offset`` on."""
        self._view[offset : offset + len(source)] = source

    def zero(self, offset: int, nbytes: int) -> None:
        """Clear a range; whole pages go back to the system."""
        end = offset + nbytes
        first, last = -(-offset // PAGE) * PAGE, end // PAGE * PAGE
        if first >= last:
            self._view[offset:end] = bytes(nbytes)
            return
        self._view[offset:first] = bytes(first - offset)
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._view[last:end] = bytes(end - last)

    def flush(self) -> None:
        """Nothing lasts longer than the process."""


class FileStore:
    """The data of a namespace in a file; never mapped, so that shortening the file gives errors and no signal."""

    _CHUNK = bytes(1 << 20)

    def __init__(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = fd

    def read(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` from ``offset`` on; raises OSError."""
        if os.preadv(self._fd, [target], offset) != len(target):
            raise OSError("the file ended")

    def write(self, offset: int, source: memoryview) -> None:
        """Store ``source`` from ``offset`` on; raises OSError."""
        if os.pwritev(self._fd, [source], offset) != len(source):
            raise OSError("the write was cut short")

    def zero(self, offset: int, nbytes: int) -> None:
        """Clear a range; raises OSError."""
        if nbytes == self.nbytes:
            os.ftruncate(self._fd, 0)
            os.ftruncate(self._fd, nbytes)
            return
        end = offset + nbytes
        while offset < end:
            offset += os.pwrite(self._fd, self._CHUNK[: end - offset], offset)

    def flush(self) -> None:
        """Have the data on its medium; raises OSError."""
        os.fdatasync(self._fd)


Store = Union[MemoryStore, FileStore]


class _CompletionQueue:
    """Section 4.1: ``head`` is what the doorbell said last, ``word`` the number of its first 32-bit word."""

    __slots__ = ("doorbell", "head", "phase", "qid", "size", "tail", "users", "waiting", "word")

    def __init__(self, qid: int, base: int, size: int) -> None:
        self.qid = qid
        self.word = base // 4
        self.size = size
        self.head = self.tail = 0
        self.phase = 1 << 16
        self.users = 0
        self.waiting = 0  # completions that wait for their time; each has a place reserved
        self.doorbell = nvme.doorbell(qid, completion=True)


class _SubmissionQueue:
    """Section 4.1: ``head`` is what was consumed; the tail is only ever read from the doorbell."""

    __slots__ = ("base", "complained", "cq", "doorbell", "head", "qid", "size")

    def __init__(self, qid: int, base: int, size: int, cq: _CompletionQueue) -> None:
        self.qid = qid
        self.base = base
        self.size = size
        self.cq = cq
        self.head = 0
        self.complained = False
        self.doorbell = nvme.doorbell(qid, completion=False)


class _Command(NamedTuple):
    """An admin command, taken apart."""

    opcode: int
    flags: int
    cid: int
    nsid: int
    mptr: int
    prp1: int
    prp2: int
    cdw10: int
    cdw11: int
    cdw12: int
    cdw13: int
    cdw14: int
    cdw15: int


class Failure(Exception):
    """A command ends with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Controller:
    """The state of one emulated controller.

    ``heap`` is the memory that addresses mean, ``bar0`` is BAR0 as 32-bit words. ``admin`` executes a command;
    ``poll`` looks at every doorbell once and works through what was submitted.
    """

    def __init__(self, config: EmulatedConfig, heap: memoryview, bar0: memoryview, store: Store) -> None:
        self.config = config
        self._heap = heap
        self._words = heap.cast("I")
        self._size = len(heap)
        self._bar0 = bar0
        self._store = store
        self._shift = 9 if config.lba == 512 else 12
        self._sqs: Dict[int, _SubmissionQueue] = {}
        self._cqs: Dict[int, _CompletionQueue] = {}
        self._active: Tuple[_SubmissionQueue, ...] = ()
        self._features: Dict[int, int] = {1: 0, 2: 0, 4: 0x0157, 5: 0, 6: 1, 8: 0, 10: 0, 11: 0}
        self._errors: Deque[bytes] = deque(maxlen=_ERROR_ENTRIES)
        self._error_count = 0
        self._counts = [0, 0, 0, 0]  # bytes read and written, read and write commands
        self._latency = config.latency
        self._late: Deque[Tuple[float, _SubmissionQueue, int, int, int]] = deque()
        self._format_end: Optional[float] = None
        self._format_shift = 0
        self._admin_commands: Dict[int, Callable[[_Command], int]] = {
            nvme.IDENTIFY: self._identify,
            nvme.GET_FEATURES: self._get_features,
            nvme.SET_FEATURES: self._set_features,
            nvme.GET_LOG_PAGE: self._get_log_page,
            nvme.ABORT: self._abort,
            nvme.ASYNC_EVENT: self._async_event,
            nvme.FORMAT: self._format,
        }
        self._queue_commands: Dict[int, Callable[[_Command], Callable[[], None]]] = {
            nvme.CREATE_CQ: self._create_cq,
            nvme.CREATE_SQ: self._create_sq,
            nvme.DELETE_SQ: self._delete_sq,
            nvme.DELETE_CQ: self._delete_cq,
        }
        for word, value in REGISTERS:
            bar0[word] = value

    @property
    def busy(self) -> bool:
        """Whether I/O queues exist, so that doorbells must be looked at."""
        return bool(self._active)

    @property
    def format_end(self) -> Optional[float]:
        """When the Format that runs will be done (monotonic clock), None when none runs."""
        return self._format_end

    @property
    def next_due(self) -> Optional[float]:
        """When the next delayed completion is to be posted (monotonic clock)."""
        return self._late[0][0] if self._late else None

    # -- admin commands -------------------------------------------------------------------------------------------

    def admin(self, raw: bytes, privileged: bool = False) -> Tuple[int, int]:
        """Execute a 64-byte admin command; returns DW0 and the status of its completion.

        Queues are the server's affair: such a command of a client is checked like any other, and if nothing else
        is wrong with it, it ends with Operation Denied. After a Format, ``format_end`` says when it is done:
        ``finish_format`` must be called then, and only then is the command complete.
        """
        command = _Command(*nvme.COMMAND.unpack(raw))
        dw0, status = 0, nvme.SUCCESS
        try:
            if command.flags:
                raise Failure(nvme.INVALID_FIELD)  # no fused commands, no SGLs (figure 104)
            if command.opcode in self._queue_commands:
                act = self._queue_commands[command.opcode](command)
                if not privileged:
                    raise Failure(nvme.OPERATION_DENIED)
                act()
            elif command.opcode in self._admin_commands:
                dw0 = self._admin_commands[command.opcode](command)
            else:
                raise Failure(nvme.INVALID_OPCODE)
        except Failure as failure:
            status = failure.status
            self._note_error(0, command.cid, status, 0, command.nsid)
        return dw0, status

    def _note_error(self, sqid: int, cid: int, status: int, lba: int, nsid: int) -> None:
        """Add an entry to the error log (figure 193)."""
        self._error_count += 1
        entry = struct.pack("<QHHHHQI", self._error_count, sqid, cid, status << 1, 0xFFFF, lba, nsid)
        self._errors.appendleft(entry + bytes(64 - len(entry)))

    def _identify(self, command: _Command) -> int:
        """Section 5.15."""
        cns = command.cdw10 & 0xFF
        if cns == 0x00:
            self._check_namespace(command.nsid, broadcast=True)
            data = self._namespace()
        elif cns == 0x01:
            data = self._controller()
        elif cns == 0x02:
            data = self._namespace_list(command.nsid)
        elif cns == 0x03:
            self._check_namespace(command.nsid, broadcast=False)
            data = self._namespace_descriptors()
        elif cns in (0x05, 0x06) and command.cdw11 >> 24 == 0:
            if cns == 0x05:
                self._check_namespace(command.nsid, broadcast=False)
            data = b""  # what is specific to the NVM command set (base specification 2.0): nothing is supported
        else:
            raise Failure(nvme.INVALID_FIELD)
        self._to_host(command, data + bytes(PAGE - len(data)))
        return 0

    def _check_namespace(self, nsid: int, broadcast: bool) -> None:
        if nsid != NSID and not (broadcast and nsid == ALL_NAMESPACES):
            raise Failure(nvme.INVALID_NAMESPACE)

    def _namespace_list(self, nsid: int) -> bytes:
        """Section 5.15.2.3: the active namespaces above NSID."""
        if nsid >= 0xFFFFFFFE:
            raise Failure(nvme.INVALID_NAMESPACE)
        return struct.pack("<I", NSID) if nsid < NSID else b""

    def _namespace(self) -> bytes:
        """Figure 245."""
        data = bytearray(PAGE)
        blocks = self._store.nbytes >> self._shift
        struct.pack_into("<QQQ", data, 0, blocks, blocks, blocks)
        data[25] = len(_LBA_SHIFTS) - 1
        data[26] = _LBA_SHIFTS.index(self._shift)
        data[33] = 1  # deallocated blocks read as zeros
        struct.pack_into("<Q", data, 48, self._store.nbytes)
        data[104:120] = self._unique()
        for number, shift in enumerate(_LBA_SHIFTS):
            struct.pack_into("<I", data, 128 + 4 * number, shift << 16)
        return bytes(data)

    def _namespace_descriptors(self) -> bytes:
        """Figure 247: the NGUID and the command set."""
        return bytes((2, 16, 0, 0)) + self._unique() + bytes((4, 1, 0, 0, 0))

    def _unique(self) -> bytes:
        return hashlib.sha256(self.config.name.encode("ascii")).digest()[:16]

    def _controller(self) -> bytes:
        """Figure 251."""
        data = bytearray(PAGE)
        name = self.config.name
        serial = name if len(name) <= 20 else name[:11] + "-" + self._unique().hex()[:8]
        data[4:24] = serial.encode("ascii").ljust(20)
        data[24:64] = b"iofabric emulated NVMe controller".ljust(40)
        data[64:72] = b"1.0".ljust(8)
        data[77] = MDTS
        struct.pack_into("<HI", data, 78, 1, VS)
        data[111] = 1  # an I/O controller
        struct.pack_into("<H", data, 256, 1 << 1)  # OACS: Format
        data[260] = 1 | 1 << 1  # one firmware slot, read only
        data[261] = 1 << 1 | 1 << 2  # LPA: effects, and offsets into log pages
        data[262] = _ERROR_ENTRIES - 1
        struct.pack_into("<HH", data, 266, 0x0157, 0x0175)
        struct.pack_into("<Q", data, 280, self._store.nbytes)
        data[512], data[513] = 0x66, 0x44
        struct.pack_into("<HIH", data, 514, MAX_DEPTH, 1, 1 << 3)  # one namespace; ONCS: Write Zeroes
        data[525] = 1  # a volatile write cache
        data[768:1024] = f"nqn.2026-01.org.iofabric:emulated:{name}".encode("ascii").ljust(256, b"\0")
        struct.pack_into("<H", data, 2048, 2500)
        return bytes(data)

    def _get_features(self, command: _Command) -> int:
        """Section 5.14; nothing is saved, and the defaults are what a controller starts with."""
        feature, select = command.cdw10 & 0xFF, command.cdw10 >> 8 & 7
        if feature == nvme.FEATURE_NUMBER_OF_QUEUES:
            return 0 if select == 3 else (self.config.queues - 1) * 0x10001
        if select > 3 or feature not in (*self._features, 9):
            raise Failure(nvme.INVALID_FIELD)
        if select == 3:
            return 1 << 2  # changeable
        return command.cdw11 & 0xFFFF if feature == 9 else self._features[feature]

    def _set_features(self, command: _Command) -> int:
        """Section 5.21."""
        feature = command.cdw10 & 0xFF
        if command.cdw10 >> 31:
            raise Failure(nvme.FEATURE_NOT_SAVEABLE)
        if feature == nvme.FEATURE_NUMBER_OF_QUEUES:
            # Section 5.21.1.7: only before the first queue is made, and the server has done it.
            raise Failure(nvme.COMMAND_SEQUENCE_ERROR)
        if feature not in (*self._features, 9) or (feature == 2 and command.cdw11 & 0x1F):
            raise Failure(nvme.INVALID_FIELD)
        if feature != 9:
            self._features[feature] = command.cdw11
        return 0

    def _get_log_page(self, command: _Command) -> int:
        """Section 5.14 (figures 190 to 199)."""
        pages: Dict[int, Callable[[], bytes]] = {
            1: self._error_log,
            2: self._smart_log,
            3: self._firmware_log,
            5: self._effects_log,
        }
        page = command.cdw10 & 0xFF
        if page not in pages:
            raise Failure(nvme.INVALID_LOG_PAGE)
        data = pages[page]()
        offset = command.cdw12 | command.cdw13 << 32
        if offset & 3 or offset > len(data):
            raise Failure(nvme.INVALID_FIELD)
        nbytes = ((command.cdw10 >> 16 | (command.cdw11 & 0xFFFF) << 16) + 1) * 4
        if nbytes > PAGE << MDTS:
            raise Failure(nvme.INVALID_FIELD)
        data = data[offset : offset + nbytes]
        self._to_host(command, data + bytes(nbytes - len(data)))
        return 0

    def _error_log(self) -> bytes:
        return b"".join(self._errors).ljust(64 * _ERROR_ENTRIES, b"\0")

    def _smart_log(self) -> bytes:
        """Figure 194."""
        data = bytearray(512)
        struct.pack_into("<H", data, 1, 300)  # kelvin
        data[3], data[4] = 100, 10
        read, written, reads, writes = self._counts
        # Data units are thousands of 512 bytes, rounded up.
        values = (-(-read // 512000), -(-written // 512000), reads, writes)
        for place, value in zip((32, 48, 64, 80), values):
            _U64.pack_into(data, place, value)
        _U64.pack_into(data, 176, self._error_count)
        return bytes(data)

    def _firmware_log(self) -> bytes:
        """Figure 196."""
        return bytes((1,)) + bytes(7) + b"1.0".ljust(8) + bytes(496)

    def _effects_log(self) -> bytes:
        """Figure 198."""
        effects = [0] * 1024
        for opcode in (*self._admin_commands, *self._queue_commands):
            effects[opcode] = _EFFECTS_SUPPORTED
        effects[nvme.FORMAT] |= _EFFECTS_CONTENT
        for opcode in (nvme.FLUSH, nvme.READ):
            effects[256 + opcode] = _EFFECTS_SUPPORTED
        for opcode in (nvme.WRITE, nvme.WRITE_ZEROES):
            effects[256 + opcode] = _EFFECTS_SUPPORTED | _EFFECTS_CONTENT
        return struct.pack("<1024I", *effects)

    def _abort(self, _command: _Command) -> int:
        """Section 5.1: bit 0 of DW0 says that nothing was aborted."""
        return 1

    def _async_event(self, _command: _Command) -> int:
        """Section 5.2: the place of an outstanding request is the server's; a client's would block its controller."""
        raise Failure(nvme.ASYNC_EVENT_LIMIT)

    def _format(self, command: _Command) -> int:
        """Section 5.23: to one of the two block sizes, without metadata or protection."""
        self._check_namespace(command.nsid, broadcast=True)
        number, options, erase = command.cdw10 & 0xF, command.cdw10 >> 4 & 0x1F, command.cdw10 >> 9 & 7
        if number >= len(_LBA_SHIFTS) or options & 0x0E:
            raise Failure(nvme.INVALID_FORMAT)
        if erase > 2:
            raise Failure(nvme.INVALID_FIELD)
        self._format_shift = _LBA_SHIFTS[number]
        self._format_end = time.monotonic() + self.config.format_time
        return 0

    def finish_format(self) -> int:
        """Erase everything; returns the status of the Format command."""
        self._format_end = None
        try:
            self._store.zero(0, self._store.nbytes)
        except OSError:
            return nvme.INTERNAL_ERROR
        self._shift = self._format_shift
        return nvme.SUCCESS

    # -- queues ---------------------------------------------------------------------------------------------------
    # Each method checks everything, in the order of the fields, and returns what is left to be done.

    def _create_cq(self, command: _Command) -> Callable[[], None]:
        """Section 5.3."""
        qid, size = self._new_queue(command, self._cqs)
        if command.cdw11 >> 16:
            raise Failure(nvme.INVALID_INTERRUPT_VECTOR)
        self._check_queue_memory(command, size * nvme.CQE)

        def act() -> None:
            queue = _CompletionQueue(qid, command.prp1, size)
            self._bar0[queue.doorbell] = 0
            self._cqs[qid] = queue

        return act

    def _create_sq(self, command: _Command) -> Callable[[], None]:
        """Section 5.4."""
        qid, size = self._new_queue(command, self._sqs)
        cqid = command.cdw11 >> 16
        if not 1 <= cqid <= self.config.queues:
            raise Failure(nvme.INVALID_QUEUE_ID)
        if cqid not in self._cqs:
            raise Failure(nvme.COMPLETION_QUEUE_INVALID)
        self._check_queue_memory(command, size * nvme.SQE)

        def act() -> None:
            cq = self._cqs[cqid]
            cq.users += 1
            queue = _SubmissionQueue(qid, command.prp1, size, cq)
            self._bar0[queue.doorbell] = 0
            self._sqs[qid] = queue
            self._active = tuple(self._sqs.values())

        return act

    def _new_queue(
        self, command: _Command, taken: Union[Dict[int, _CompletionQueue], Dict[int, _SubmissionQueue]]
    ) -> Tuple[int, int]:
        qid, size = command.cdw10 & 0xFFFF, (command.cdw10 >> 16) + 1
        if not 1 <= qid <= self.config.queues or qid in taken:
            raise Failure(nvme.INVALID_QUEUE_ID)
        if not 2 <= size <= MAX_DEPTH:
            raise Failure(nvme.INVALID_QUEUE_SIZE)
        return qid, size

    def _check_queue_memory(self, command: _Command, nbytes: int) -> None:
        if not command.cdw11 & 1:
            raise Failure(nvme.INVALID_FIELD)  # CAP.CQR: contiguous only
        if command.prp1 % PAGE:
            raise Failure(nvme.PRP_OFFSET_INVALID)
        if command.prp1 + nbytes > self._size:
            raise Failure(nvme.INVALID_FIELD)

    def _delete_sq(self, command: _Command) -> Callable[[], None]:
        """Section 5.6; what was submitted and not completed is dropped."""
        qid = command.cdw10 & 0xFFFF
        if qid not in self._sqs:
            raise Failure(nvme.INVALID_QUEUE_ID)

        def act() -> None:
            queue = self._sqs.pop(qid)
            queue.cq.users -= 1
            queue.cq.waiting -= sum(entry[1] is queue for entry in self._late)
            self._active = tuple(self._sqs.values())
            self._late = deque(entry for entry in self._late if entry[1] is not queue)

        return act

    def _delete_cq(self, command: _Command) -> Callable[[], None]:
        """Section 5.5."""
        qid = command.cdw10 & 0xFFFF
        if qid not in self._cqs:
            raise Failure(nvme.INVALID_QUEUE_ID)
        if self._cqs[qid].users:
            raise Failure(nvme.INVALID_QUEUE_DELETION)

        def act() -> None:
            del self._cqs[qid]

        return act

    # -- data -----------------------------------------------------------------------------------------------------

    def _to_host(self, command: _Command, data: bytes) -> None:
        at = 0
        for address, length in self._segments(command.prp1, command.prp2, len(data)):
            self._heap[address : address + length] = data[at : at + length]
            at += length

    def _segments(self, prp1: int, prp2: int, nbytes: int) -> Segments:
        """Resolve PRP1 and PRP2 (section 4.3 and figure 105) to pieces of the heap, neighbours joined.

        Raises Failure: PRP Offset Invalid for an address that is not aligned as its place demands, Data Transfer
        Error for one outside of the heap.
        """
        if prp1 & 3:
            raise Failure(nvme.PRP_OFFSET_INVALID)
        first = min(nbytes, PAGE - prp1 % PAGE)
        self._check_inside(prp1, first)
        pieces = [(prp1, first)]
        left = nbytes - first
        if 0 < left <= PAGE:
            self._add_page(pieces, prp2, left)
        elif left:
            self._walk_list(pieces, prp2, left)
        return pieces

    def _walk_list(self, pieces: Segments, entry: int, left: int) -> None:
        """Section 4.3: the last entry of a page of the list points to the next page when more than one is left."""
        if entry & 7:
            raise Failure(nvme.PRP_OFFSET_INVALID)
        while True:
            self._check_inside(entry, 8)
            (address,) = _U64.unpack_from(self._heap, entry)
            entry += 8
            if entry % PAGE == 0 and left > PAGE:
                if address % PAGE:
                    raise Failure(nvme.PRP_OFFSET_INVALID)
                entry = address
                continue
            self._add_page(pieces, address, min(left, PAGE))
            left -= PAGE
            if left <= 0:
                return

    def _add_page(self, pieces: Segments, address: int, length: int) -> None:
        if address % PAGE:
            raise Failure(nvme.PRP_OFFSET_INVALID)
        self._check_inside(address, length)
        last, size = pieces[-1]
        if last + size == address:
            pieces[-1] = (last, size + length)
        else:
            pieces.append((address, length))

    def _check_inside(self, address: int, length: int) -> None:
        # The first page of a heap is never given out, so an address there is one that was forgotten.
        if not PAGE <= address <= self._size - length:
            raise Failure(nvme.DATA_TRANSFER_ERROR)

    # -- I/O ------------------------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Work through what the submission queues hold, a burst of each; returns how much was done."""
        done = self._post_late() if self._late else 0
        bar0 = self._bar0
        for queue in self._active:
            # The doorbell is compared with what was consumed: it may come back to the value it had last time.
            if bar0[queue.doorbell] != queue.head:
                done += self._serve(queue)
        return done

    def _serve(self, queue: _SubmissionQueue) -> int:
        tail = self._bar0[queue.doorbell]
        if tail >= queue.size:
            # Section 5.2.1, Invalid Doorbell Write Value: nothing is consumed until a valid one comes.
            if not queue.complained:
                queue.complained = True
                self._note_error(queue.qid, 0xFFFF, nvme.INVALID_FIELD, 0, 0)
            return 0
        queue.complained = False
        cq, heap, unpack = queue.cq, self._heap, nvme.COMMAND.unpack_from
        head, size, count = queue.head, queue.size, 0
        while head != tail and count < _BURST and self._has_room(cq):
            opcode, flags, cid, nsid, _mptr, prp1, prp2, low, high, cdw12, _13, _14, _15 = unpack(
                heap, queue.base + head * 64
            )
            head = head + 1 if head + 1 < size else 0
            queue.head = head
            count += 1
            status = self._execute(opcode, flags, nsid, prp1, prp2, low | high << 32, cdw12)
            if status:
                self._note_error(queue.qid, cid, status, low | high << 32, nsid)
            if self._latency:
                cq.waiting += 1
                self._late.append((time.monotonic() + self._latency, queue, head, cid, status))
            else:
                self._post(queue, head, cid, status)
        return count

    def _has_room(self, cq: _CompletionQueue) -> bool:
        """Section 4.1: a queue is full when one more entry would make head and tail meet."""
        size = cq.size
        if (cq.head - cq.tail - 1) % size > cq.waiting:
            return True
        head = self._bar0[cq.doorbell]
        if head < size:
            cq.head = head
        return bool((cq.head - cq.tail - 1) % size > cq.waiting)

    def _post(self, queue: _SubmissionQueue, head: int, cid: int, status: int) -> None:
        """Write a completion (section 4.6), its last word last."""
        cq, words = queue.cq, self._words
        tail = cq.tail
        at = cq.word + tail * 4
        words[at] = 0
        words[at + 1] = 0
        words[at + 2] = queue.qid << 16 | head
        words[at + 3] = status << 17 | cq.phase | cid
        tail += 1
        if tail == cq.size:
            tail = 0
            cq.phase ^= 1 << 16
        cq.tail = tail

    def _post_late(self) -> int:
        """Post the completions whose time has come."""
        now, count = time.monotonic(), 0
        while self._late and self._late[0][0] <= now:
            _due, queue, head, cid, status = self._late.popleft()
            queue.cq.waiting -= 1
            self._post(queue, head, cid, status)
            count += 1
        return count

    def _execute(self, opcode: int, flags: int, nsid: int, prp1: int, prp2: int, lba: int, cdw12: int) -> int:
        """Execute an I/O command (section 6); returns its status."""
        if self._format_end is not None:
            return nvme.FORMAT_IN_PROGRESS
        if flags:
            return nvme.INVALID_FIELD
        if opcode > nvme.READ and opcode != nvme.WRITE_ZEROES:
            return nvme.INVALID_OPCODE
        if nsid != NSID and not (opcode == nvme.FLUSH and nsid == ALL_NAMESPACES):
            return nvme.INVALID_NAMESPACE
        try:
            if opcode == nvme.FLUSH:
                self._store.flush()
                return nvme.SUCCESS
            return self._access(opcode, prp1, prp2, lba, cdw12)
        except Failure as failure:
            return failure.status
        except OSError:
            return nvme.UNRECOVERED_READ_ERROR if opcode == nvme.READ else nvme.WRITE_FAULT

    def _access(self, opcode: int, prp1: int, prp2: int, lba: int, cdw12: int) -> int:
        nbytes = (cdw12 & 0xFFFF) + 1 << self._shift
        offset = lba << self._shift
        if offset + nbytes > self._store.nbytes:
            return nvme.LBA_OUT_OF_RANGE
        if opcode == nvme.WRITE_ZEROES:
            self._store.zero(offset, nbytes)
        else:
            self._transfer(opcode, offset, nbytes, prp1, prp2)
        if opcode != nvme.READ and (cdw12 & 1 << 30 or not self._features[6] & 1):
            self._store.flush()  # forced unit access, or the write cache is off
        return nvme.SUCCESS

    def _transfer(self, opcode: int, offset: int, nbytes: int, prp1: int, prp2: int) -> None:
        counts, heap = self._counts, self._heap
        if nbytes > PAGE << MDTS:
            raise Failure(nvme.INVALID_FIELD)
        pieces: Sequence[Tuple[int, int]]
        if nbytes + (prp1 & 0xFFF) <= PAGE and not prp1 & 3 and PAGE <= prp1 <= self._size - nbytes:
            pieces = ((prp1, nbytes),)
        else:
            pieces = self._segments(prp1, prp2, nbytes)
        move = self._store.read if opcode == nvme.READ else self._store.write
        for address, length in pieces:
            move(offset, heap[address : address + length])
            offset += length
        kind = 0 if opcode == nvme.READ else 1
        counts[kind] += nbytes
        counts[kind + 2] += 1
