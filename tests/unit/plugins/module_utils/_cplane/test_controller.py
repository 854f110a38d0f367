# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The emulated controller as an object: what the NVM Express Base Specification 1.4 says of each command."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import config, nvme
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.controller import (
    Controller,
    FileStore,
    MemoryStore,
    Store,
)
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = 16 << 20
DATA = 1 << 20
"""Where the tests have their buffers."""


class Bench:
    """A controller on plain memory, with one queue pair."""

    def __init__(self, text: str = "emu:test?size=4M", store: Optional[Store] = None, depth: int = 32) -> None:
        self.config = config.parse_controller(text)
        assert isinstance(self.config, config.EmulatedConfig)
        self.memory = bytearray(SIZE)
        self.heap = memoryview(self.memory)
        self.words = self.heap.cast("I")
        self.bar0 = memoryview(bytearray(16384)).cast("I")
        self.store = store or MemoryStore(self.config.size or 0)
        self.controller = Controller(self.config, self.heap, self.bar0, self.store)
        self.depth, self.tail, self.head, self.phase = depth, 0, 0, 1
        self.sq, self.cq = 0x10000, 0x20000
        size = depth - 1 << 16 | 2
        assert self.own(nvme.CREATE_CQ, prp1=self.cq, cdw10=size, cdw11=1) == 0
        assert self.own(nvme.CREATE_SQ, prp1=self.sq, cdw10=size, cdw11=2 << 16 | 1) == 0

    def own(self, opcode: int, **fields: int) -> int:
        """A command of the server's; its status."""
        return self.controller.admin(nvme.command(opcode, **fields), privileged=True)[1]

    def admin(self, opcode: int, **fields: int) -> Tuple[int, int]:
        """A command of a client's: DW0 and status."""
        return self.controller.admin(nvme.command(opcode, **fields))

    def read_admin(self, opcode: int, **fields: int) -> bytes:
        """A command that returns a page."""
        self.heap[DATA : DATA + 4096] = b"\xee" * 4096
        assert self.admin(opcode, prp1=DATA, **fields) == (0, 0)
        return bytes(self.heap[DATA : DATA + 4096])

    def submit(self, command: bytes) -> None:
        """Put a command into the queue, and ring."""
        self.heap[self.sq + 64 * self.tail : self.sq + 64 * self.tail + 64] = command
        self.tail = (self.tail + 1) % self.depth
        self.bar0[nvme.doorbell(2, False)] = self.tail

    def completion(self) -> Optional[nvme.Completion]:
        """The next completion, if there is one."""
        at = self.cq + 16 * self.head
        raw = bytes(self.heap[at : at + 16])
        if raw[14] & 1 != self.phase:
            return None
        self.head += 1
        if self.head == self.depth:
            self.head, self.phase = 0, self.phase ^ 1
        self.bar0[nvme.doorbell(2, True)] = self.head
        return nvme.read_completion(raw)

    def io(
        self,
        opcode: int,
        nsid: int = 1,
        prp1: int = DATA,
        prp2: int = 0,
        lba: int = 0,
        blocks: int = 1,
        control: int = 0,
    ) -> int:
        """Execute one command; its status."""
        self.submit(nvme.command(opcode, nsid, prp1, prp2, lba & 0xFFFFFFFF, lba >> 32, blocks - 1 | control))
        assert self.controller.poll() == 1
        found = self.completion()
        assert found is not None
        assert (found.sq_id, found.sq_head) == (2, self.tail)
        return found.status


@pytest.fixture
def bench() -> Bench:
    """4 MiB in memory, blocks of 512 bytes, 64 queues."""
    return Bench()


# -- registers and Identify ---------------------------------------------------------------------------------------


def test_registers(bench: Bench) -> None:
    """CAP, VS, CC and CSTS of a controller that is ready."""
    cap = bench.bar0[0] | bench.bar0[1] << 32
    assert cap & 0xFFFF == 1023
    assert cap >> 16 & 1 == 1
    assert cap >> 24 & 0xFF == 20
    assert cap >> 32 & 0xF == 0
    assert cap >> 37 & 0xFF == 1
    assert bench.bar0[2] == 0x10400
    assert bench.bar0[5] == 0x460001
    assert bench.bar0[7] == 1


def test_identify_controller(bench: Bench) -> None:
    """The fields that drivers look at."""
    data = bench.read_admin(nvme.IDENTIFY, cdw10=1)
    assert data[4:24] == b"test".ljust(20)
    assert data[24:64].rstrip() == b"iofabric emulated NVMe controller"
    assert data[77] == 9
    assert struct.unpack_from("<I", data, 80)[0] == 0x10400
    assert data[111] == 1
    assert struct.unpack_from("<H", data, 256)[0] == 2
    assert data[512:514] == b"\x66\x44"
    assert struct.unpack_from("<I", data, 516)[0] == 1
    assert struct.unpack_from("<H", data, 520)[0] == 8
    assert data[768:].startswith(b"nqn.2026-01.org.iofabric:emulated:test\0")


@pytest.mark.parametrize(("text", "shift", "number"), [("emu:a?size=4M", 9, 0), ("emu:a?size=4M&lba=4096", 12, 1)])
def test_identify_namespace(text: str, shift: int, number: int) -> None:
    """Size and format."""
    data = Bench(text).read_admin(nvme.IDENTIFY, nsid=1, cdw10=0)
    assert struct.unpack_from("<QQQ", data) == ((4 << 20) >> shift,) * 3
    assert (data[25], data[26] & 15) == (1, number)
    assert [data[130 + 4 * place] for place in range(2)] == [9, 12]


def test_other_structures_of_identify(bench: Bench) -> None:
    """The active namespaces, and what identifies one."""
    assert bench.read_admin(nvme.IDENTIFY, nsid=0, cdw10=2) == struct.pack("<I", 1).ljust(4096, b"\0")
    assert bench.read_admin(nvme.IDENTIFY, nsid=1, cdw10=2) == bytes(4096)
    data = bench.read_admin(nvme.IDENTIFY, nsid=1, cdw10=3)
    assert data[:2] == b"\x02\x10"
    assert any(data[4:20])
    assert data[20:26] == b"\x04\x01\0\0\0\0"
    assert bench.read_admin(nvme.IDENTIFY, nsid=0xFFFFFFFF, cdw10=0)[25] == 1
    assert bench.read_admin(nvme.IDENTIFY, nsid=1, cdw10=5) == bytes(4096)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"cdw10": 0, "nsid": 0}, nvme.INVALID_NAMESPACE),
        ({"cdw10": 0, "nsid": 2}, nvme.INVALID_NAMESPACE),
        ({"cdw10": 3, "nsid": 0xFFFFFFFF}, nvme.INVALID_NAMESPACE),
        ({"cdw10": 2, "nsid": 0xFFFFFFFE}, nvme.INVALID_NAMESPACE),
        ({"cdw10": 0x99}, nvme.INVALID_FIELD),
        ({"cdw10": 6, "cdw11": 2 << 24}, nvme.INVALID_FIELD),
        ({"cdw10": 1, "prp1": 0}, nvme.DATA_TRANSFER_ERROR),
        ({"cdw10": 1, "prp1": SIZE}, nvme.DATA_TRANSFER_ERROR),
        ({"cdw10": 1, "prp1": DATA + 2}, nvme.PRP_OFFSET_INVALID),
        ({"cdw10": 1, "prp1": DATA + 64, "prp2": DATA + 64}, nvme.PRP_OFFSET_INVALID),
    ],
)
def test_identify_that_fails(bench: Bench, fields: Dict[str, int], status: int) -> None:
    """Each with its own status."""
    assert bench.admin(nvme.IDENTIFY, **{"prp1": DATA, **fields}) == (0, status)


def test_identify_across_two_pages(bench: Bench) -> None:
    """PRP1 may begin within a page."""
    assert bench.admin(nvme.IDENTIFY, prp1=DATA + 4096 - 32, prp2=DATA + 8192, cdw10=1) == (0, 0)
    assert bytes(bench.heap[DATA + 8192 - 4104 : DATA + 8192 - 4096]) == b"iofabric"
    assert bytes(bench.heap[DATA + 8192 : DATA + 8201]) == b" emulated"


# -- features, logs and the rest ----------------------------------------------------------------------------------


def test_number_of_queues(bench: Bench) -> None:
    """Less one, both kinds; too late to change, as it is after the first queue was made."""
    assert bench.admin(nvme.GET_FEATURES, cdw10=7) == (0x3F003F, 0)
    assert Bench("emu:a?queues=3").admin(nvme.GET_FEATURES, cdw10=7) == (0x20002, 0)
    assert bench.admin(nvme.SET_FEATURES, cdw10=7, cdw11=0x10001) == (0, nvme.COMMAND_SEQUENCE_ERROR)


def test_features_are_kept(bench: Bench) -> None:
    """What was set is got, capabilities say so."""
    assert bench.admin(nvme.GET_FEATURES, cdw10=4) == (0x157, 0)
    assert bench.admin(nvme.SET_FEATURES, cdw10=4, cdw11=0x160) == (0, 0)
    assert bench.admin(nvme.GET_FEATURES, cdw10=4) == (0x160, 0)
    assert bench.admin(nvme.GET_FEATURES, cdw10=4 | 3 << 8) == (4, 0)
    assert bench.admin(nvme.GET_FEATURES, cdw10=9, cdw11=5) == (5, 0)
    for failing, status in (
        ({"cdw10": 4 | 1 << 31}, nvme.FEATURE_NOT_SAVEABLE),
        ({"cdw10": 0x77}, nvme.INVALID_FIELD),
        ({"cdw10": 2, "cdw11": 1}, nvme.INVALID_FIELD),
    ):
        assert bench.admin(nvme.SET_FEATURES, **failing) == (0, status)
    for number in (0x77, 4 | 4 << 8):
        assert bench.admin(nvme.GET_FEATURES, cdw10=number) == (0, nvme.INVALID_FIELD)


def test_log_pages(bench: Bench) -> None:
    """Errors newest first, SMART counts, the firmware slot, the effects."""
    assert bench.admin(0x7F, cid=0x55)[1] == nvme.INVALID_OPCODE
    assert bench.io(nvme.READ, lba=1 << 40) == nvme.LBA_OUT_OF_RANGE
    data = bench.read_admin(nvme.GET_LOG_PAGE, cdw10=1 | 1023 << 16)
    assert struct.unpack_from("<QHHHHQI", data) == (2, 2, 0, nvme.LBA_OUT_OF_RANGE << 1, 0xFFFF, 1 << 40, 1)
    assert struct.unpack_from("<QHHH", data, 64) == (1, 0, 0x55, nvme.INVALID_OPCODE << 1)
    for _unused in range(3):
        assert bench.io(nvme.READ, blocks=8) == 0
    assert bench.io(nvme.WRITE) == 0
    data = bench.read_admin(nvme.GET_LOG_PAGE, cdw10=2 | 127 << 16)
    assert [struct.unpack_from("<Q", data, place)[0] for place in (32, 48, 64, 80, 176)] == [1, 1, 3, 1, 2]
    assert data[512:] == b"\xee" * 3584, "more than was asked for came"
    assert bench.read_admin(nvme.GET_LOG_PAGE, cdw10=3 | 127 << 16)[:16] == b"\x01" + bytes(7) + b"1.0     "
    effects = struct.unpack("<1024I", bench.read_admin(nvme.GET_LOG_PAGE, cdw10=5 | 1023 << 16))
    assert effects[nvme.IDENTIFY] == 1
    assert effects[256 + nvme.WRITE] == 3
    assert effects[0x7F] == 0
    tail = bench.read_admin(nvme.GET_LOG_PAGE, cdw10=3 | 1 << 16, cdw12=8)
    assert tail[:8] == b"1.0     "


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"cdw10": 0x66}, nvme.INVALID_LOG_PAGE),
        ({"cdw10": 2, "cdw12": 2}, nvme.INVALID_FIELD),
        ({"cdw10": 2, "cdw12": 516}, nvme.INVALID_FIELD),
        ({"cdw10": 2, "cdw13": 1}, nvme.INVALID_FIELD),
        ({"cdw10": 2 | 0xFFFF << 16, "cdw11": 0xFFFF}, nvme.INVALID_FIELD),
    ],
)
def test_log_pages_that_fail(bench: Bench, fields: Dict[str, int], status: int) -> None:
    """Each with its own status."""
    assert bench.admin(nvme.GET_LOG_PAGE, prp1=DATA, **fields) == (0, status)


def test_other_admin_commands(bench: Bench) -> None:
    """Abort aborts nothing, events are the server's, the rest is unknown; SGLs are not supported."""
    assert bench.admin(nvme.ABORT, cdw10=2) == (1, 0)
    assert bench.admin(nvme.ASYNC_EVENT) == (0, nvme.ASYNC_EVENT_LIMIT)
    for opcode in (nvme.KEEP_ALIVE, 0x0D, 0x10, 0x7C, 0x81, 0xC0, 0xFF):
        assert bench.admin(opcode) == (0, nvme.INVALID_OPCODE)
    command = bytearray(nvme.command(nvme.IDENTIFY, prp1=DATA, cdw10=1))
    command[1] = 0x40
    assert bench.controller.admin(bytes(command)) == (0, nvme.INVALID_FIELD)


@given(st.binary(min_size=64, max_size=64))
@settings(max_examples=100, deadline=None)
def test_any_admin_command_has_a_status(raw: bytes) -> None:
    """Whatever a client sends."""
    bench = Bench()
    dw0, status = bench.controller.admin(raw)
    assert 0 <= dw0 < 2**32
    assert 0 <= status < 2**15


# -- Format -------------------------------------------------------------------------------------------------------


def test_format_changes_the_block_size_and_erases(bench: Bench) -> None:
    """Only when it is finished."""
    bench.heap[DATA : DATA + 512] = b"\x11" * 512
    assert bench.io(nvme.WRITE) == 0
    assert bench.admin(nvme.FORMAT, nsid=1, cdw10=1) == (0, 0)
    assert bench.controller.format_end is not None
    assert bench.io(nvme.READ) == nvme.FORMAT_IN_PROGRESS
    assert bench.controller.finish_format() == 0
    assert bench.controller.format_end is None
    assert bench.read_admin(nvme.IDENTIFY, nsid=1)[26] == 1
    bench.heap[DATA : DATA + 4096] = b"\x11" * 4096
    assert bench.io(nvme.READ) == 0
    assert not any(bench.heap[DATA : DATA + 4096])


@pytest.mark.parametrize(
    ("nsid", "cdw10", "status"),
    [
        (0, 0, nvme.INVALID_NAMESPACE),
        (2, 0, nvme.INVALID_NAMESPACE),
        (1, 2, nvme.INVALID_FORMAT),
        (1, 1 << 5, nvme.INVALID_FORMAT),
        (1, 3 << 9, nvme.INVALID_FIELD),
        (0xFFFFFFFF, 0, 0),
        (1, 1 << 9, 0),
    ],
)
def test_format_that_fails(bench: Bench, nsid: int, cdw10: int, status: int) -> None:
    """Each with its own status."""
    assert bench.admin(nvme.FORMAT, nsid=nsid, cdw10=cdw10) == (0, status)


def test_format_takes_its_time() -> None:
    """As configured."""
    bench = Bench("emu:a?size=4M&format_time=3")
    begin = time.monotonic()
    assert bench.admin(nvme.FORMAT, nsid=1) == (0, 0)
    end = bench.controller.format_end
    assert end is not None
    assert 2.9 < end - begin < 3.5


# -- queues -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "fields", "status"),
    [
        (nvme.CREATE_CQ, {"cdw10": 15 << 16}, nvme.INVALID_QUEUE_ID),
        (nvme.CREATE_CQ, {"cdw10": 15 << 16 | 2}, nvme.INVALID_QUEUE_ID),
        (nvme.CREATE_CQ, {"cdw10": 15 << 16 | 65}, nvme.INVALID_QUEUE_ID),
        (nvme.CREATE_CQ, {"cdw10": 3}, nvme.INVALID_QUEUE_SIZE),
        (nvme.CREATE_CQ, {"cdw10": 1024 << 16 | 3}, nvme.INVALID_QUEUE_SIZE),
        (nvme.CREATE_CQ, {"cdw10": 15 << 16 | 3, "cdw11": 0}, nvme.INVALID_FIELD),
        (nvme.CREATE_CQ, {"cdw10": 15 << 16 | 3, "cdw11": 1 << 16 | 1}, nvme.INVALID_INTERRUPT_VECTOR),
        (nvme.CREATE_CQ, {"cdw10": 15 << 16 | 3, "prp1": DATA + 64}, nvme.PRP_OFFSET_INVALID),
        (nvme.CREATE_CQ, {"cdw10": 1023 << 16 | 3, "prp1": SIZE - 4096}, nvme.INVALID_FIELD),
        (nvme.CREATE_SQ, {"cdw10": 15 << 16 | 2, "cdw11": 2 << 16 | 1}, nvme.INVALID_QUEUE_ID),
        (nvme.CREATE_SQ, {"cdw10": 15 << 16 | 3, "cdw11": 1}, nvme.INVALID_QUEUE_ID),
        (nvme.CREATE_SQ, {"cdw10": 15 << 16 | 3, "cdw11": 9 << 16 | 1}, nvme.COMPLETION_QUEUE_INVALID),
        (nvme.CREATE_SQ, {"cdw10": 3, "cdw11": 2 << 16 | 1}, nvme.INVALID_QUEUE_SIZE),
        (nvme.CREATE_SQ, {"cdw10": 15 << 16 | 3, "cdw11": 2 << 16}, nvme.INVALID_FIELD),
        (nvme.DELETE_SQ, {"cdw10": 0}, nvme.INVALID_QUEUE_ID),
        (nvme.DELETE_SQ, {"cdw10": 9}, nvme.INVALID_QUEUE_ID),
        (nvme.DELETE_CQ, {"cdw10": 0}, nvme.INVALID_QUEUE_ID),
        (nvme.DELETE_CQ, {"cdw10": 2}, nvme.INVALID_QUEUE_DELETION),
    ],
)
def test_queue_commands_that_fail(bench: Bench, opcode: int, fields: Dict[str, int], status: int) -> None:
    """The same for the server and for clients."""
    wanted = {"prp1": DATA, "cdw11": 1, **fields}
    assert bench.own(opcode, **wanted) == status
    assert bench.admin(opcode, **wanted) == (0, status)
    assert bench.io(nvme.FLUSH) == 0


def test_two_submission_queues_share_a_completion_queue(bench: Bench) -> None:
    """And it cannot be deleted before both."""
    assert bench.own(nvme.CREATE_SQ, prp1=0x30000, cdw10=7 << 16 | 5, cdw11=2 << 16 | 1) == 0
    bench.heap[0x30000:0x30040] = nvme.command(nvme.FLUSH, 1, cid=99)
    bench.bar0[nvme.doorbell(5, False)] = 1
    assert bench.controller.poll() == 1
    found = bench.completion()
    assert found is not None
    assert (found.sq_id, found.cid, found.status) == (5, 99, 0)
    assert bench.own(nvme.DELETE_SQ, cdw10=2) == 0
    assert bench.own(nvme.DELETE_CQ, cdw10=2) == nvme.INVALID_QUEUE_DELETION
    assert bench.own(nvme.DELETE_SQ, cdw10=5) == 0
    assert bench.own(nvme.DELETE_CQ, cdw10=2) == 0
    assert not bench.controller.busy


def test_a_new_queue_starts_with_its_doorbells_at_zero(bench: Bench) -> None:
    """Whatever a client left there."""
    bench.bar0[nvme.doorbell(3, False)] = bench.bar0[nvme.doorbell(3, True)] = 7
    size = 15 << 16 | 3
    assert bench.own(nvme.CREATE_CQ, prp1=0x40000, cdw10=size, cdw11=1) == 0
    assert bench.own(nvme.CREATE_SQ, prp1=0x50000, cdw10=size, cdw11=3 << 16 | 1) == 0
    assert bench.controller.poll() == 0


def test_depth_two_never_hangs() -> None:
    """The doorbell returns to the value that it had; what counts is what was consumed."""
    bench = Bench(depth=2)
    for number in range(50):
        bench.submit(nvme.command(nvme.FLUSH, 1, cid=number))
        assert bench.controller.poll() == 1
        found = bench.completion()
        assert found is not None
        assert found.cid == number


def test_a_full_completion_queue_is_not_overwritten() -> None:
    """A smaller completion queue than the submission queue: what does not fit waits."""
    bench = Bench()
    assert bench.own(nvme.CREATE_CQ, prp1=0x40000, cdw10=3 << 16 | 3, cdw11=1) == 0
    assert bench.own(nvme.CREATE_SQ, prp1=0x50000, cdw10=15 << 16 | 3, cdw11=3 << 16 | 1) == 0
    for number in range(10):
        bench.heap[0x50000 + 64 * number : 0x50040 + 64 * number] = nvme.command(nvme.FLUSH, 1, cid=number)
    bench.bar0[nvme.doorbell(3, False)] = 10
    assert bench.controller.poll() == 3
    assert bench.controller.poll() == 0
    seen: List[int] = []
    for number in range(10):
        seen.append(struct.unpack_from("<H", bench.heap, 0x40000 + 16 * (number % 4) + 12)[0])
        bench.bar0[nvme.doorbell(3, True)] = (number + 1) % 4
        assert bench.controller.poll() == (1 if number < 7 else 0)
    assert seen == list(range(10))


def test_latency_delays_completions() -> None:
    """And keeps their order; those of a deleted queue are dropped."""
    bench = Bench("emu:a?size=4M&latency=20ms")
    begin = time.monotonic()
    for number in range(3):
        bench.submit(nvme.command(nvme.FLUSH, 1, cid=number))
    assert bench.controller.poll() == 3
    assert bench.completion() is None
    due = bench.controller.next_due
    assert due is not None
    assert due > begin
    found: List[int] = []
    while len(found) < 3:
        bench.controller.poll()
        completion = bench.completion()
        found += [completion.cid] if completion else []
    assert found == [0, 1, 2]
    assert time.monotonic() - begin >= 0.02
    bench.submit(nvme.command(nvme.FLUSH, 1))
    bench.controller.poll()
    assert bench.own(nvme.DELETE_SQ, cdw10=2) == 0
    assert bench.controller.next_due is None


# -- data ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """On both kinds of store."""
    if request.param == "memory":
        yield Bench()
        return
    fd = os.open(tmp_path / "disk", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 4 << 20)
    yield Bench(store=FileStore(fd, 4 << 20))
    os.close(fd)


def list_of(bench: Bench, pages: List[int], at: int) -> None:
    """Write a PRP list."""
    struct.pack_into(f"<{len(pages)}Q", bench.heap, at, *pages)


@pytest.mark.parametrize("pages", [1, 2, 3, 17, 512])
def test_transfers_of_many_pages(stored: Bench, pages: int) -> None:
    """Through PRP1, PRP2 and lists, scattered backwards over the heap."""
    content = os.urandom(4096) * (pages - 1) + os.urandom(4096)
    places = [DATA + 4096 * 2 * (pages - 1 - number) for number in range(pages)]
    for number, place in enumerate(places):
        stored.heap[place : place + 4096] = content[4096 * number : 4096 * number + 4096]
    prp2 = places[1] if pages == 2 else 0xF0000
    list_of(stored, places[1:], 0xF0000)
    assert stored.io(nvme.WRITE, prp1=places[0], prp2=prp2, lba=3, blocks=8 * pages) == 0
    for place in places:
        stored.heap[place : place + 4096] = bytes(4096)
    assert stored.io(nvme.READ, prp1=places[0], prp2=prp2, lba=3, blocks=8 * pages) == 0
    assert b"".join(bytes(stored.heap[place : place + 4096]) for place in places) == content


def test_a_list_that_continues_on_another_page(stored: Bench) -> None:
    """Its last entry in a page leads on when more than one page is left, and is data otherwise."""
    content = os.urandom(4096 * 4)
    for number in range(4):
        stored.heap[DATA + 8192 * number : DATA + 8192 * number + 4096] = content[4096 * number : 4096 * number + 4096]
    places = [DATA + 8192 * number for number in range(4)]
    list_of(stored, [places[1], 0xE0000], 0xF0FF0)
    list_of(stored, places[2:], 0xE0000)
    assert stored.io(nvme.WRITE, prp1=places[0], prp2=0xF0FF0, blocks=32) == 0
    list_of(stored, [places[1], places[2]], 0xF0FF0)
    for place in places:
        stored.heap[place : place + 4096] = bytes(4096)
    assert stored.io(nvme.READ, prp1=places[0], prp2=0xF0FF0, blocks=24) == 0
    assert b"".join(bytes(stored.heap[place : place + 4096]) for place in places[:3]) == content[: 3 * 4096]


def test_offsets_within_a_page(stored: Bench) -> None:
    """PRP1 may begin anywhere on a double word."""
    stored.heap[DATA + 100 : DATA + 100 + 8192] = os.urandom(8192)
    content = bytes(stored.heap[DATA + 100 : DATA + 100 + 8192])
    list_of(stored, [DATA + 4096, DATA + 8192], 0xF0000)
    assert stored.io(nvme.WRITE, prp1=DATA + 100, prp2=0xF0000, blocks=16) == 0
    stored.heap[DATA : DATA + 16384] = bytes(16384)
    assert stored.io(nvme.READ, prp1=DATA + 100, prp2=0xF0000, blocks=16) == 0
    assert bytes(stored.heap[DATA + 100 : DATA + 100 + 8192]) == content
    assert not any(stored.heap[DATA : DATA + 100])


def test_write_zeroes(stored: Bench) -> None:
    """Exactly the blocks that are named."""
    stored.heap[DATA : DATA + 65536] = b"\x33" * 65536
    list_of(stored, [DATA + 4096 * number for number in range(1, 16)], 0xF0000)
    for lba, blocks in ((1, 1), (3, 20), (7, 100)):
        assert stored.io(nvme.WRITE, prp2=0xF0000, blocks=128) == 0
        assert stored.io(nvme.WRITE_ZEROES, lba=lba, blocks=blocks) == 0
        assert stored.io(nvme.READ, prp2=0xF0000, blocks=128) == 0
        expected = bytearray(b"\x33" * 65536)
        expected[lba * 512 : (lba + blocks) * 512] = bytes(blocks * 512)
        assert stored.heap[DATA : DATA + 65536] == expected
        stored.heap[DATA : DATA + 65536] = b"\x33" * 65536


def test_format_of_a_store(stored: Bench) -> None:
    """Leaves zeros and the size."""
    stored.heap[DATA : DATA + 4096] = b"\x44" * 4096
    assert stored.io(nvme.WRITE, lba=8184, blocks=8) == 0
    assert stored.admin(nvme.FORMAT, nsid=1) == (0, 0)
    assert stored.controller.finish_format() == 0
    assert stored.io(nvme.READ, lba=8184, blocks=8) == 0
    assert not any(stored.heap[DATA : DATA + 4096])


def test_flush_and_forced_writes(tmp_path: Path) -> None:
    """Reach the medium: Flush, FUA, and every write once the cache is switched off."""
    flushed: List[int] = []

    class Counting(MemoryStore):
        def flush(self) -> None:
            flushed.append(1)

    bench = Bench(store=Counting(4 << 20))
    assert bench.io(nvme.WRITE) == 0
    assert flushed == []
    assert bench.io(nvme.FLUSH, nsid=0xFFFFFFFF) == 0
    assert bench.io(nvme.WRITE, control=1 << 30) == 0
    assert len(flushed) == 2
    assert bench.admin(nvme.SET_FEATURES, cdw10=6, cdw11=0) == (0, 0)
    assert bench.io(nvme.WRITE) == 0
    assert len(flushed) == 3


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda bench: bench.io(nvme.READ, blocks=4097), nvme.INVALID_FIELD),
        (lambda bench: bench.io(nvme.READ, lba=8192), nvme.LBA_OUT_OF_RANGE),
        (lambda bench: bench.io(nvme.WRITE_ZEROES, lba=8191, blocks=2), nvme.LBA_OUT_OF_RANGE),
        (lambda bench: bench.io(5), nvme.INVALID_OPCODE),
        (lambda bench: bench.io(0xFF), nvme.INVALID_OPCODE),
        (lambda bench: bench.io(nvme.FLUSH, nsid=0), nvme.INVALID_NAMESPACE),
        (lambda bench: bench.io(nvme.WRITE, nsid=0xFFFFFFFF), nvme.INVALID_NAMESPACE),
        (lambda bench: bench.io(nvme.READ, prp1=0), nvme.DATA_TRANSFER_ERROR),
        (lambda bench: bench.io(nvme.READ, prp1=SIZE - 256), nvme.DATA_TRANSFER_ERROR),
    ],
)
def test_io_that_fails(bench: Bench, call: Callable[[Bench], int], status: int) -> None:
    """Each with its own status."""
    assert call(bench) == status


def test_doorbells_out_of_range_are_noted_once(bench: Bench) -> None:
    """And nothing is consumed."""
    bench.bar0[nvme.doorbell(2, False)] = 32
    assert [bench.controller.poll() for _unused in range(3)] == [0, 0, 0]
    data = bench.read_admin(nvme.GET_LOG_PAGE, cdw10=1 | 1023 << 16)
    assert struct.unpack_from("<QH", data) == (1, 2)
    assert struct.unpack_from("<Q", data, 64) == (0,)
    bench.bar0[nvme.doorbell(2, False)] = 0
    assert bench.io(nvme.FLUSH) == 0


@given(st.binary(min_size=64, max_size=64))
@settings(max_examples=100, deadline=None)
def test_any_io_command_is_completed(raw: bytes) -> None:
    """Whatever lies in the queue."""
    bench = Bench()
    bench.submit(raw)
    assert bench.controller.poll() == 1
    found = bench.completion()
    assert found is not None
    assert found.cid == raw[2] | raw[3] << 8


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    """Gives errors of the medium, no signal."""
    fd = os.open(tmp_path / "disk", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 4 << 20)
    bench = Bench(store=FileStore(fd, 4 << 20))
    os.ftruncate(fd, 1000)
    assert bench.io(nvme.READ, lba=100) == nvme.UNRECOVERED_READ_ERROR
    os.close(fd)
    assert bench.io(nvme.WRITE) == nvme.WRITE_FAULT
    assert bench.io(nvme.FLUSH) == nvme.WRITE_FAULT
    assert bench.admin(nvme.FORMAT, nsid=1) == (0, 0)
    assert bench.controller.finish_format() == nvme.INTERNAL_ERROR
