# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""I/O from a client: the memory that a server hands over, mapped, and queue pairs in it.

Registers and the words of the queues are read and written as single 32-bit words of a memoryview. Python has no memory
barriers, so this is for x86-64 only.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from typing import List, Optional, Tuple

from . import nvme
from .client import Attachment, Connection, QueuePair
from .errors import ConfigError, CplaneError, ServerTimeout, WireError
from .heap import read_descriptor, read_record
from .nvme import Completion

PRP_PAGES = 1024
_ENTRIES_A_PAGE = nvme.PAGE // 8


class Attached:
    """A controller that this process is a client of: heap and BAR0 mapped, and what the records in the heap say.

    A context manager; leaving it unmaps both. The connection stays open, since closing it ends everything.
    """

    def __init__(self, connection: Connection, index: int) -> None:
        if platform.machine() != "x86_64":
            raise ConfigError(f"I/O from Python needs x86-64, where stores keep their order, not {platform.machine()}")
        self.connection = connection
        self.index = index
        attachment = connection.init(index)
        try:
            self._heap_map, self._bar0_map = _map(attachment, connection.path)
        finally:
            attachment.close()
        self.heap = memoryview(self._heap_map)
        self.words = self.heap.cast("I")
        self._bar0_bytes = memoryview(self._bar0_map)
        self.bar0 = self._bar0_bytes.cast("I")
        try:
            self.record = read_record(self.heap, attachment.record_offset)
            self.descriptor = read_descriptor(self.heap, self.record.desc_offset)
        except WireError:
            self.close()
            raise

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap: a map of a BAR that is left would keep the device."""
        # Views first, or the maps cannot be closed.
        for view in (self.words, self.heap, self.bar0, self._bar0_bytes):
            view.release()
        self._heap_map.close()
        self._bar0_map.close()

    def admin(self, command: bytes, timeout: Optional[float] = None) -> Completion:
        """Have an admin command executed; raises what Connection.admin raises, but not for an error of NVMe."""
        return nvme.read_completion(self.connection.admin(self.index, command, timeout))

    def queue_pair(self, depth: int) -> Queue:
        """Take an I/O queue pair of ``depth`` entries, of which all but one can be under way."""
        return Queue(self, self.connection.alloc_ioqpair(self.index, depth))


def _map(attachment: Attachment, path: str) -> Tuple[mmap.mmap, mmap.mmap]:
    """Map heap and BAR0; raises WireError where the reply and what was handed over do not fit, else CplaneError."""
    for name, offset, nbytes in (
        ("heap_nbytes", 32, attachment.heap_nbytes),
        ("bar0_nbytes", 40, attachment.bar0_nbytes),
    ):
        if not nbytes or nbytes % 4:
            raise WireError(f"reply to INIT_CONNECTION: {name} (u64 at offset {offset}) is {nbytes}, not whole words")
    try:
        if os.fstat(attachment.heap_fd).st_size < attachment.heap_nbytes:
            raise WireError("reply to INIT_CONNECTION: heap_nbytes (u64 at offset 32) is more than was handed over")
        heap = mmap.mmap(attachment.heap_fd, attachment.heap_nbytes)
        try:
            return heap, mmap.mmap(attachment.bar0_fd, attachment.bar0_nbytes)
        except BaseException:
            heap.close()
            raise
    except (OSError, ValueError, OverflowError) as error:
        raise CplaneError(f"cannot map what {path} handed over: {error}") from None


class Queue:
    """An I/O queue pair of a client; raises WireError where a pair that a server names is not in what it handed over.

    Commands are numbered by the caller (0 to 65535)."""

    def __init__(self, attached: Attached, pair: QueuePair) -> None:
        self.pair = pair
        self._attached = attached
        self._bar0 = attached.bar0
        self._words = attached.words
        stride = nvme.stride(attached.record.cap)
        self._sq_doorbell = nvme.doorbell(pair.qid, completion=False, stride=stride)
        self._cq_doorbell = nvme.doorbell(pair.qid, completion=True, stride=stride)
        self._tail = self._head = 0
        self._phase = 1 << 16
        self._check()

    def _check(self) -> None:
        """Nothing that the server says may lead out of the memory that it handed over."""
        depth = self.pair.depth
        if depth < 2:
            raise WireError(f"reply to ALLOC_IOQPAIR: depth (u16 at offset 52) is {depth}")
        if self._cq_doorbell >= len(self._bar0):
            raise WireError(
                f"reply to ALLOC_IOQPAIR: qid (u32 at offset 48) is {self.pair.qid}, beyond the end of BAR0"
            )
        room = ((nvme.SQE, depth), (nvme.CQE, depth), (nvme.PAGE, min(depth, PRP_PAGES)))
        for place, (name, (size, count)) in enumerate(zip(("sq_offset", "cq_offset", "prp_offset"), room)):
            offset = getattr(self.pair, name)
            if offset % size or offset + size * count > len(self._attached.heap):
                raise WireError(
                    f"reply to ALLOC_IOQPAIR: {name} (u64 at offset {24 + 8 * place}) is {offset}: {count} entries of "
                    f"{size} bytes do not lie there, in the heap of {len(self._attached.heap)} bytes"
                )

    def close(self) -> None:
        """Give the queue pair back."""
        self._attached.connection.free_ioqpair(self._attached.index, self.pair.qid)

    def submit(self, command: bytes) -> None:
        """Put one 64-byte command into the queue and ring; the caller sees to it that there is room."""
        at = self.pair.sq_offset + self._tail * nvme.SQE
        self._attached.heap[at : at + nvme.SQE] = command
        self._tail = (self._tail + 1) % self.pair.depth
        self._bar0[self._sq_doorbell] = self._tail

    def poll(self) -> Optional[Completion]:
        """Return the next completion, None when there is none yet."""
        at = self.pair.cq_offset // 4 + self._head * 4
        if self._words[at + 3] & 1 << 16 != self._phase:
            return None
        start = self.pair.cq_offset + self._head * nvme.CQE
        completion = nvme.read_completion(bytes(self._attached.heap[start : start + nvme.CQE]))
        self._head += 1
        if self._head == self.pair.depth:
            self._head = 0
            self._phase ^= 1 << 16
        self._bar0[self._cq_doorbell] = self._head
        return completion

    def wait(self, timeout: float) -> Completion:
        """Return the next completion; raises ServerTimeout, or CplaneError when the controller has failed."""
        end = time.monotonic() + timeout
        completion = self.poll()
        while completion is None:
            if time.monotonic() > end:
                raise ServerTimeout(f"no completion on queue {self.pair.qid} of {self._attached.record.bdf} in time")
            status = self._bar0[nvme.CSTS]
            if status & nvme.CSTS_CFS or not status & nvme.CSTS_RDY:
                # One that was pulled reads as all ones, one that the server took back is not ready.
                raise CplaneError(f"the controller {self._attached.record.bdf} has failed (CSTS {status:#x})")
            completion = self.poll()
        return completion

    def transfer(self, opcode: int, nsid: int, lba: int, blocks: int, offset: int, nbytes: int, cid: int = 0) -> None:
        """Submit a Read or Write of ``blocks`` (1 to 65536) between ``lba`` and the buffer at ``offset`` of the heap.

        ``offset`` is a multiple of 4096. A transfer of more than two pages uses the page of PRP entries of this
        command's place in the queue, so it takes at most 513 pages.
        """
        pages = self._pages(offset, nbytes)
        prp2 = 0
        if len(pages) == 2:
            prp2 = pages[1]
        elif len(pages) > 2:
            prp2 = self._list(pages[1:])
        self.submit(nvme.command(opcode, nsid, pages[0], prp2, lba & 0xFFFFFFFF, lba >> 32, blocks - 1, cid=cid))

    def _pages(self, offset: int, nbytes: int) -> List[int]:
        if offset % nvme.PAGE or not 1 <= nbytes <= (_ENTRIES_A_PAGE + 1) * nvme.PAGE:
            raise WireError(f"cannot transfer {nbytes} bytes at {offset}: not aligned, or not 1 byte to 513 pages")
        return [self._attached.descriptor.address(at) for at in range(offset, offset + nbytes, nvme.PAGE)]

    def _list(self, addresses: List[int]) -> int:
        place = self.pair.prp_offset + self._tail % PRP_PAGES * nvme.PAGE
        data = b"".join(address.to_bytes(8, "little") for address in addresses)
        self._attached.heap[place : place + len(data)] = data
        return self._attached.descriptor.address(place)
