# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The emulated controller, and whatever clients may write to its queues, its doorbells, its BAR0 and the heap."""

from __future__ import annotations

import struct
from typing import Callable, Iterator, List, Tuple

from ...plugins.module_utils._cplane import nvme
from ...plugins.module_utils._cplane.config import EmulatedConfig
from ...plugins.module_utils._cplane.controller import BAR0_NBYTES, Controller, MemoryStore
from .target import Taker, Target

HEAP = 64 << 10
STORE = 64 << 10
DEPTH = 8
HOSTILE, GOOD = 2, 3
QUEUES = {HOSTILE: (0x1000, 0x2000), GOOD: (0x3000, 0x4000)}
"""Of each queue id, where its submission and completion queues lie."""
DATA = 0x8000
ROUNDS = 200
"""Calls of poll after which a controller has done all that is there to do."""


class Bench:
    """A controller, and what its clients can reach."""

    def __init__(self, taker: Taker) -> None:
        self.taker = taker
        lba, latency = (512, 4096)[taker.number() & 1], (0.0, 1e-9)[taker.number() & 1]
        self.heap = memoryview(bytearray(HEAP))
        self.bar0 = memoryview(bytearray(BAR0_NBYTES)).cast("I")
        self.store = MemoryStore(STORE)
        config = EmulatedConfig("fuzz", size=STORE, lba=lba, latency=latency, queues=4)
        self.controller = Controller(config, self.heap, self.bar0, self.store)
        self.tail = 0
        self.depth = DEPTH

    def make_queue(self, qid: int, depth: int) -> None:
        """As the server makes a queue pair."""
        size, (sq, cq) = depth - 1 << 16 | qid, QUEUES[qid]
        for command in (
            nvme.command(nvme.CREATE_CQ, prp1=cq, cdw10=size, cdw11=1),
            nvme.command(nvme.CREATE_SQ, prp1=sq, cdw10=size, cdw11=qid << 16 | 1),
        ):
            assert self.controller.admin(command, privileged=True) == (0, 0)

    def delete_queue(self, qid: int) -> None:
        """As the server takes one back."""
        for opcode in (nvme.DELETE_SQ, nvme.DELETE_CQ):
            assert self.controller.admin(nvme.command(opcode, cdw10=qid), privileged=True) == (0, 0)

    def command(self) -> bytes:
        """64 bytes: any, or a command whose fields are mostly possible."""
        taker = self.taker
        if taker.flag():
            return taker.raw(64).ljust(64, b"\0")
        addresses = (
            DATA,
            DATA + 4096,
            DATA + 8192,
            DATA + 4,
            taker.number(8),
            taker.number() << 12,
            HEAP - 8,
            HEAP - 4096,
        )
        return nvme.command(
            taker.number() % 16 if taker.flag() else taker.number(),
            (1, 1, 1, 0xFFFFFFFF, 0, 2)[taker.number() % 6],
            addresses[taker.number() % 8],
            addresses[taker.number() % 8],
            taker.number() if taker.flag() else taker.number(4),
            taker.number(taker.number() % 3),
            taker.number(taker.number() % 5),
            cid=taker.number(),
        )

    # -- what a client may do -------------------------------------------------------------------------------------

    def admin(self) -> None:
        """An admin command, through the server."""
        _dw0, status = self.controller.admin(self.command())
        assert 0 <= status < 1 << 15
        if self.controller.format_end is not None:
            assert self.controller.finish_format() == nvme.SUCCESS

    def submit(self) -> None:
        """A command for a queue, and its doorbell."""
        at = QUEUES[HOSTILE][0] + nvme.SQE * self.tail
        self.heap[at : at + nvme.SQE] = self.command()
        self.tail = (self.tail + 1) % self.depth
        self.bar0[nvme.doorbell(HOSTILE, completion=False)] = self.tail

    def scribble(self) -> None:
        """Anything anywhere in the heap, such as lists of pages."""
        at = (DATA, DATA + 4096 - 16, 0x1000, self.taker.number(2))[self.taker.number() % 4] % HEAP
        data = self.taker.chunk()[: HEAP - at]
        self.heap[at : at + len(data)] = data

    def chain(self) -> None:
        """A page of pointers to pages, its own among them."""
        places = [self.taker.number() << 12 for _place in range(1 + self.taker.number() % 4)]
        self.heap[DATA : DATA + 4096] = (struct.pack(f"<{len(places)}Q", *places) * 512)[:4096]

    def ring(self) -> None:
        """Any value in any register."""
        word = nvme.DOORBELLS + self.taker.number() % 16 if self.taker.flag() else self.taker.number(2) % len(self.bar0)
        self.bar0[word] = self.taker.number(1 + self.taker.number() % 4)

    def work(self) -> None:
        """Let the controller do what it will, and look at some of its completions."""
        for _round in range(1 + self.taker.number() % 4):
            self.controller.poll()
        self.bar0[nvme.doorbell(HOSTILE, completion=True)] = self.taker.number() % self.depth

    def anew(self) -> None:
        """Give the queue pair back, and take another."""
        self.delete_queue(HOSTILE)
        self.depth, self.tail = 2 + self.taker.number() % 62, 0
        self.make_queue(HOSTILE, self.depth)

    # -- what must hold afterwards --------------------------------------------------------------------------------

    def serve_a_good_client(self) -> None:
        """Another client's new queue works: one completion a command, in order, and what was written is read back."""
        self.delete_queue(HOSTILE)
        self.heap[0x3000:0x5000] = bytes(0x2000)
        self.make_queue(GOOD, 4)
        for cid, (opcode, pattern) in enumerate(((nvme.WRITE, 0xA5), (nvme.FLUSH, 0), (nvme.READ, 0))):
            self.heap[DATA : DATA + 4096] = bytes((pattern,)) * 4096
            at = QUEUES[GOOD][0] + nvme.SQE * cid
            self.heap[at : at + nvme.SQE] = nvme.command(opcode, 1, DATA, cdw10=1, cid=cid)
            self.bar0[nvme.doorbell(GOOD, completion=False)] = cid + 1
            done = self._completion(cid)
            assert (done.cid, done.sq_id, done.sq_head, done.status) == (cid, GOOD, cid + 1, nvme.SUCCESS)
            self.bar0[nvme.doorbell(GOOD, completion=True)] = cid + 1
        assert bytes(self.heap[DATA : DATA + 512]) == b"\xa5" * 512
        assert self.store.nbytes == STORE
        self.delete_queue(GOOD)
        assert not self.controller.busy

    def _completion(self, head: int) -> nvme.Completion:
        at = QUEUES[GOOD][1] + nvme.CQE * head
        for _round in range(ROUNDS):
            self.controller.poll()
            if self.heap[at + 14] & 1:
                return nvme.read_completion(bytes(self.heap[at : at + nvme.CQE]))
        raise AssertionError("there is no completion")


DEEDS: Tuple[Callable[[Bench], None], ...] = (
    Bench.admin,
    Bench.submit,
    Bench.submit,
    Bench.work,
    Bench.scribble,
    Bench.ring,
    Bench.chain,
    Bench.anew,
)


def run(data: bytes) -> None:
    """Deeds by turns, until there are none left."""
    bench = Bench(Taker(data))
    bench.make_queue(HOSTILE, DEPTH)
    while bench.taker.more:
        bench.taker.pick(DEEDS)(bench)
    bench.serve_a_good_client()


def seeds() -> Iterator[bytes]:
    """Commands that succeed, lists of pages, and deeds of every kind."""

    def raw(*commands: bytes) -> List[bytes]:
        return [b"\1\1" + command + b"\3\1\0" for command in commands]

    yield b"\0\0" + b"".join(
        raw(
            nvme.command(nvme.WRITE, 1, DATA, cdw10=3, cid=1),
            nvme.command(nvme.READ, 1, DATA, DATA + 4096, cdw10=3, cdw12=15, cid=2),
            nvme.command(nvme.WRITE_ZEROES, 1, cdw10=3, cdw12=7, cid=3),
            nvme.command(nvme.FLUSH, 1, cid=4),
        )
    )
    pages = struct.pack("<4Q", *(DATA + 4096 * page for page in range(1, 5)))
    yield (
        b"\1\1" + b"\4" + b"\0" + bytes((len(pages),)) + pages + raw(nvme.command(nvme.READ, 1, DATA, DATA, cdw12=2))[0]
    )
    for opcode in (nvme.IDENTIFY, nvme.GET_LOG_PAGE, nvme.GET_FEATURES, nvme.SET_FEATURES, nvme.FORMAT, nvme.ABORT):
        for low in (0, 1, 2, 3, 5, 7, 1 << 16 | 2):
            yield b"\0\0\0\1" + nvme.command(opcode, 1, DATA, cdw10=low)
    yield b"\0\1" + b"\2\0\0\1\0\0\0\0\0\0\1\7" * 6 + b"\3\3\1" + b"\7\0" + b"\5\1\4\0\3" + b"\6\1\x08\x08"


CONTROLLER = Target(run, seeds, longest=1024)
