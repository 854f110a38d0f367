# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server over controllers that look real: registers, an IOMMU and DMA of their own, made from emulated ones."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import nvme, vfio_backend
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.config import EmulatedConfig
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.controller import Controller, MemoryStore
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import ConfigError, CplaneError
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.server import Control, serve
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.vfio_backend import DmaHeap, VfioBackend
from hypothesis import given
from hypothesis import strategies as st

BDFS = ("0000:81:00.0", "0000:82:00.0")
CAP, CC, CSTS, AQA, ASQ, ACQ, BELL = 0x00, 0x14, 0x1C, 0x24, 0x28, 0x30, 0x1000
GONE = 0xFFFFFFFF
HEAP = 16 << 20


class Region(NamedTuple):
    """As of vfio.Region."""

    size: int
    offset: int


class Iommu:
    """Takes the place of vfio.Container: what was mapped, and fake devices on it."""

    def __init__(self, bdfs: Sequence[str]) -> None:
        self.bdfs = list(bdfs)
        self.views: Dict[int, memoryview] = {}
        self.usable = [(0, 0xFEDFFFFF), (0xFEF00000, 2**39)]
        self.devices: Dict[str, Fake] = {}
        self.prepare: Callable[[Fake], None] = lambda _device: None
        self.closed = False

    def ranges(self) -> List[Tuple[int, int]]:
        """What may be mapped."""
        return self.usable

    def map(self, address: int, nbytes: int, iova: int) -> None:
        """Remember a part of this process's memory."""
        self.views[iova] = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")

    def device(self, bdf: str) -> Fake:
        """Open a fake."""
        device = self.devices[bdf] = Fake(bdf, self)
        self.prepare(device)
        return device

    def close(self) -> None:
        """Only once, and only after the devices."""
        assert not self.closed
        assert all(device.closed for device in self.devices.values())
        self.closed = True


class Fake:
    """A controller behind vfio-pci: what is written to its registers is carried out while bus mastering is on.

    Two emulated controllers do the work: one knows the heap, the other the pages that the server keeps to itself.
    """

    def __init__(self, bdf: str, iommu: Iommu) -> None:
        self.bdf, self.iommu = bdf, iommu
        self.fd = os.memfd_create(bdf)
        os.ftruncate(self.fd, 16384)
        self.bar0 = Region(16384, 0)
        self.events: Dict[int, int] = {}
        self.log: List[str] = []
        self.master = self.closed = self.pulled = self.released = False
        self.slow = 0
        self.deaf: Set[int] = set()
        self.stuck = False
        self.ready_in = -1
        self.tail = self.head = self.posted = 0
        self.lock = threading.Lock()
        bar0 = self.words = memoryview(mmap.mmap(self.fd, self.bar0.size)).cast("I")
        heap, private = (view for _iova, view in sorted(iommu.views.items()))
        config = EmulatedConfig(bdf.replace(":", "-"), size=16 << 20, queues=64)
        self.store = MemoryStore(16 << 20)
        self.inner = Controller(config, heap, bar0, self.store)
        self.private = Controller(config, private, memoryview(bytearray(16384)).cast("I"), self.store)
        self.set(CC, 0)
        self.set(CSTS, 0)

    # -- what the server calls

    def signal(self, irq: int, event: int) -> None:
        """As of vfio.Device."""
        self.events[irq] = event

    def read(self, offset: int) -> int:
        """As of vfio.Device; each look at CSTS brings a slow controller nearer to what it was told."""
        if self.released:
            raise OSError(errno.EIO, "let go")
        if self.pulled:
            return GONE
        if offset == CSTS and self.ready_in >= 0:
            self.ready_in -= 1
            if self.ready_in < 0 and not self.stuck:
                self.set(CSTS, self.get(CSTS) & ~1 | self.get(CC) & 1)
        return self.get(offset)

    def write(self, offset: int, value: int) -> None:
        """As of vfio.Device."""
        if self.pulled or self.released:
            return
        with self.lock:
            before = self.get(offset)
            self.set(offset, value)
            if offset == CC:
                self.control(before, value)
            elif offset == BELL:
                self.ring(value)

    def set_bus_master(self, on: bool) -> None:
        """As of vfio.Device."""
        self.master = on
        self.log.append("master on" if on else "master off")

    def release(self) -> None:
        """As of vfio.Device."""
        self.released = True
        self.log.append("released")

    def close(self) -> None:
        """As of vfio.Device."""
        assert not self.closed
        self.closed = True
        os.close(self.fd)
        self.log.append("closed")

    # -- what the controller does

    def get(self, offset: int) -> int:
        """Load a register."""
        return self.words[offset // 4]

    def set(self, offset: int, value: int) -> None:
        """Store a register."""
        self.words[offset // 4] = value

    def control(self, before: int, after: int) -> None:
        """CC was written."""
        if after & 1 and not before & 1:
            assert self.get(CSTS) & 1 == 0, "EN is set while RDY"
            assert self.master, "bus mastering comes before EN"
            assert self.get(AQA) == 63 << 16 | 63
            assert self.get(ASQ) % 4096 == self.get(ACQ) % 4096 == 0
            assert after == 0x00460001
            self.tail = self.head = self.posted = 0
            self.log.append("enable")
        if before & 1 and not after & 1:
            self.inner._sqs.clear()
            self.inner._cqs.clear()
            self.inner._active = ()
            self.log.append("disable")
        if after & ~before & 1 << 14:
            self.log.append("shutdown")
            self.set(CSTS, self.get(CSTS) | 2 << 2)
        if before & 1 != after & 1:
            self.ready_in = self.slow

    def at(self, address: int, nbytes: int) -> memoryview:
        """Memory as the controller sees it."""
        for iova, view in self.iommu.views.items():
            if iova <= address <= iova + len(view) - nbytes:
                return view[address - iova : address - iova + nbytes]
        raise AssertionError(f"DMA to {address:#x}")

    def address(self, register: int) -> int:
        """A 64-bit register."""
        return self.get(register) | self.get(register + 4) << 32

    def ring(self, tail: int) -> None:
        """The admin queue's doorbell."""
        while self.tail != tail:
            command = bytes(self.at(self.address(ASQ) + 64 * self.tail, 64))
            self.tail = (self.tail + 1) % 64
            self.log.append(f"command {command[0]:02x}")
            if command[0] not in self.deaf:
                self.complete(command[2:4], *self.execute(command))

    def execute(self, command: bytes) -> Tuple[int, int]:
        """Carry out an admin command; returns DW0 and status."""
        if command[0] == nvme.SET_FEATURES and command[40] == 7:
            return 63 << 16 | 63, 0
        end = len(self.iommu.views[0])
        prp1 = struct.unpack_from("<Q", command, 24)[0]
        if prp1 >= end and command[0] & 3:
            return self.private.admin(command[:24] + struct.pack("<Q", prp1 - end) + command[32:], True)
        return self.inner.admin(command, True)

    def complete(self, cid: bytes, dw0: int, status: int) -> None:
        """Post a completion."""
        assert self.master
        phase = 1 - self.posted // 64 % 2
        entry = struct.pack("<IIHH2sH", dw0, 0, self.tail, 0, cid, status << 1 | phase)
        self.at(self.address(ACQ) + 16 * (self.posted % 64), 16)[:] = entry
        self.posted += 1

    def poll(self) -> None:
        """Look after the I/O queues: clients ring in the file that they mapped."""
        with self.lock:
            if self.master and not self.pulled and self.get(CSTS) & 1:
                self.inner.poll()


def descriptors() -> int:
    """How many are open, but for the maps of fakes."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += not os.readlink(f"/proc/self/fd/{name}").startswith(f"/memfd:{BDFS[0][:4]}")
    return count


class Opened:
    """A backend on a fake, as a server has it."""

    def __init__(self, prepare: Callable[[Fake], None] = lambda _device: None) -> None:
        self.said: List[str] = []
        self.heap = DmaHeap(HEAP, BDFS[:1], self.said.append)
        self.iommu: Iommu = self.heap.container  # type: ignore[assignment]
        self.iommu.prepare = prepare
        try:
            self.backend = VfioBackend(BDFS[0], BDFS[0], self.heap, self.iommu.device(BDFS[0]))  # type: ignore[arg-type]
        except BaseException:
            self.heap.close()
            raise
        self.device = self.iommu.devices[BDFS[0]]

    def close(self) -> List[str]:
        """End both; returns what the device saw of it."""
        before = len(self.device.log)
        self.backend.interrupt()
        self.backend.close()
        self.heap.close()
        assert self.iommu.closed
        return self.device.log[before:]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> List[Iommu]:
    """Fake devices and an IOMMU instead of the host's; a host without huge pages."""
    made: List[Iommu] = []

    def container(bdfs: Sequence[str], _places: object) -> Iommu:
        made.append(Iommu(bdfs))
        return made[-1]

    monkeypatch.setattr(vfio_backend, "Container", container)
    return made


@pytest.fixture
def opened() -> Iterator[Opened]:
    """A backend, closed at the end."""
    found = Opened()
    yield found
    if not found.device.closed:
        found.close()


# -- start and end ------------------------------------------------------------------------------------------------


def test_a_controller_is_brought_up_and_handed_back(opened: Opened) -> None:
    """In the order of the specification, with its identity, its queues and its limits known in between."""
    backend, device = opened.backend, opened.device
    assert device.log == ["master on", "enable", "command 06", "command 09"]
    assert (backend.nsq_total, backend.ncq_total, backend.max_depth) == (64, 64, 1024)
    assert backend.qids == (*range(2, 65), 1)
    assert (backend.cap, backend.cc, backend.timeout_ms) == (device.address(CAP), 0x00460001, 10000)
    assert "iofabric emulated NVMe controller, serial 0000-81-00.0, 64 queue pairs" in opened.said[-1]
    assert "experimental" in opened.said[-1]
    backend.create_queue_pair(2, 16, 0x1000, 0x2000)
    backend.create_queue_pair(9, 16, 0x3000, 0x4000)
    assert opened.close() == [*("command 00", "command 04") * 2, "shutdown", "disable", "master off", "closed"]


def test_a_controller_that_is_left_enabled_is_reset_first() -> None:
    """As one that a killed server left; while it is becoming ready, EN stays."""

    def left(device: Fake) -> None:
        device.set(CC, 0x00460001)
        device.ready_in = 3

    found = Opened(left)
    assert found.device.log[:3] == ["disable", "master on", "enable"]
    found.close()


def test_one_that_failed_before_is_reset_at_once() -> None:
    """CSTS.CFS: it will not become ready."""

    def failed(device: Fake) -> None:
        device.set(CC, 0x00460001)
        device.set(CSTS, 2)
        real = device.control

        def control(before: int, after: int) -> None:
            device.set(CSTS, device.get(CSTS) & ~2)
            real(before, after)

        device.control = control  # type: ignore[method-assign]

    begin = time.monotonic()
    found = Opened(failed)
    assert time.monotonic() - begin < 5
    assert found.device.log[0] == "disable"
    found.close()


@pytest.mark.parametrize("slow", [1, 20])
def test_slow_controllers(slow: int) -> None:
    """It takes as many looks as it takes."""

    def prepare(device: Fake) -> None:
        device.slow = slow

    found = Opened(prepare)
    assert found.backend.nsq_total == 64
    assert found.close()[-4:] == ["shutdown", "disable", "master off", "closed"]


def never(device: Fake) -> None:
    """Never ready, and impatient (CAP.TO of half a second)."""
    device.stuck = True
    device.set(CAP, device.get(CAP) & 0x00FFFFFF | 1 << 24)


def fatal(device: Fake) -> None:
    """Enabling it ends in CSTS.CFS."""
    real = device.control
    device.stuck = True

    def control(before: int, after: int) -> None:
        real(before, after)
        if after & 1:
            device.set(CSTS, 2)

    device.control = control  # type: ignore[method-assign]


def pulled(device: Fake) -> None:
    """Not there any more."""
    device.pulled = True


def not_mapped(device: Fake) -> None:
    """Not there any more, behind another kind of bridge."""
    device.read = lambda _offset: 0  # type: ignore[method-assign]


def big_pages(device: Fake) -> None:
    """CAP.MPSMIN of 64 KiB."""
    device.set(CAP + 4, device.get(CAP + 4) | 4 << 16)


def no_commands(device: Fake) -> None:
    """CAP.CSS without the NVM command set."""
    device.set(CAP + 4, device.get(CAP + 4) & ~(1 << 5))


def no_doorbells(device: Fake) -> None:
    """A BAR that ends before them."""
    device.bar0 = Region(0x1000, 0)


def large_entries(device: Fake) -> None:
    """SQES asks for 128 bytes."""
    real = device.private._controller
    device.private._controller = lambda: real()[:512] + b"\x77" + real()[513:]  # type: ignore[method-assign]


def no_queues(device: Fake) -> None:
    """Set Features fails."""
    real = device.execute
    device.execute = lambda command: (0, 0x4002) if command[0] == 9 else real(command)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (never, "did not become ready in 0.5 s (CSTS 0x0)"),
        (fatal, "(CSTS 0x2)"),
        (pulled, "its registers read as 0xffffffff"),
        (not_mapped, "its registers read as 0x0"),
        (big_pages, "CAP.MPSMIN"),
        (no_commands, "CAP.CSS"),
        (no_doorbells, "no doorbells"),
        (large_entries, "queue entries of more than 64 and 16 bytes"),
        (no_queues, "command 0x09: SCT 0h SC 02h"),
    ],
)
def test_controllers_that_cannot_be_served(
    prepare: Callable[[Fake], None], words: str, fakes: List[Iommu], capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names it; the device is cut off and closed."""
    before = descriptors()
    with pytest.raises(CplaneError) as caught:
        Opened(prepare)
    assert words in caught.value.message
    assert caught.value.message.startswith(BDFS[0])
    device = fakes[0].devices[BDFS[0]]
    assert device.closed
    assert not device.master
    assert fakes[0].closed
    assert descriptors() == before


def test_one_that_does_not_shut_down(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its time, and is disabled nevertheless."""
    monkeypatch.setattr(opened.backend, "_shutdown_time", 0.05)
    real = opened.device.control

    def control(before: int, after: int) -> None:
        real(before, after)
        opened.device.set(CSTS, opened.device.get(CSTS) & ~0xC)

    opened.device.control = control  # type: ignore[method-assign]
    assert opened.close()[-3:] == ["disable", "master off", "closed"]
    assert "did not shut down in 0.05 s" in opened.said[-1]


# -- memory -------------------------------------------------------------------------------------------------------


def test_memory_is_where_the_controller_expects_it(opened: Opened) -> None:
    """Offsets are IO addresses; what the server keeps to itself is in no client's map."""
    heap = opened.heap
    assert sorted(opened.iommu.views) == [0, heap.nbytes]
    assert heap.nbytes == os.fstat(heap.fd).st_size == HEAP
    assert opened.device.address(ASQ) >= heap.nbytes
    heap.write(0x5000, b"here")
    assert opened.device.at(0x5000, 4) == b"here"
    heap.zero(0x5000, 1)
    assert opened.device.at(0x5000, 4) == bytes(4), "clearing must not replace the pages"
    assert "huge pages" in opened.said[0]


def test_zeroing_ends_where_it_should(opened: Opened) -> None:
    """Across the steps in which it is done."""
    heap = opened.heap
    heap.view[4096 : 4 << 20] = b"\xff" * ((4 << 20) - 4096)
    heap.zero(8192, (2 << 20) + 5)
    end = 8192 + (2 << 20) + 4096
    assert heap.view[8191] == heap.view[end] == 0xFF
    assert not any(heap.view[8192:end])


@pytest.mark.parametrize(
    ("usable", "words"),
    [
        ([(0, HEAP - 1)], "give a smaller heap_size"),
        ([(0, HEAP + 2 * 4096)], "give a smaller heap_size"),
        ([(4096, 2**39)], "IO address 0"),
    ],
)
def test_heaps_that_do_not_fit(
    usable: List[Tuple[int, int]], words: str, monkeypatch: pytest.MonkeyPatch, fakes: List[Iommu]
) -> None:
    """What the IOMMU keeps to itself is told before memory is taken."""
    monkeypatch.setattr(Iommu, "ranges", lambda _self: usable)
    with pytest.raises(ConfigError, match=words):
        DmaHeap(HEAP, BDFS[:1], print)
    assert fakes[0].closed


# -- commands -----------------------------------------------------------------------------------------------------


def test_commands_keep_their_ids_around_the_end_of_the_queue(opened: Opened) -> None:
    """More than the queue has entries, with the phase that changes."""
    for number in range(200):
        command = nvme.command(nvme.GET_FEATURES, cdw10=7, cid=60000 + number)
        completion = nvme.read_completion(opened.backend.admin(command))
        assert (completion.cid, completion.dw0, completion.status) == (60000 + number, 63 << 16 | 63, 0)


def test_errors_of_the_controller_are_handed_on(opened: Opened) -> None:
    """As a completion, not as a failure."""
    completion = nvme.read_completion(opened.backend.admin(nvme.command(0x7F, cid=5)))
    assert (completion.cid, completion.status) == (5, nvme.INVALID_OPCODE)


def test_queue_pairs_are_created_once_and_deleted(opened: Opened) -> None:
    """Deleting what is not there is no error; creating what is there is one, and leaves nothing half done."""
    backend = opened.backend
    backend.create_queue_pair(5, 64, 0x10000, 0x20000)
    with pytest.raises(OSError, match="SCT 1h SC 01h"):
        backend.create_queue_pair(5, 64, 0x10000, 0x20000)
    backend.delete_queue_pair(5)
    backend.delete_queue_pair(5)
    assert not opened.device.inner._sqs
    assert not opened.device.inner._cqs
    backend.create_queue_pair(5, 64, 0x10000, 0x20000)


def test_a_command_that_is_aborted(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It timed out; the controller works on."""
    monkeypatch.setattr(vfio_backend, "COMMAND_TIME", 0.05)
    device = opened.device
    device.deaf = {nvme.IDENTIFY}
    real = device.execute

    def execute(command: bytes) -> Tuple[int, int]:
        if command[0] == nvme.ABORT:
            device.complete(command[42:44], 0, nvme.ABORT_REQUESTED)
            return 0, 0
        return real(command)

    device.execute = execute  # type: ignore[method-assign]
    with pytest.raises(OSError) as caught:
        opened.backend.admin(nvme.command(nvme.IDENTIFY, prp1=0x5000, cdw10=1))
    assert caught.value.errno == errno.ETIMEDOUT
    assert nvme.read_completion(opened.backend.admin(nvme.command(nvme.GET_FEATURES, cdw10=7))).status == 0
    assert opened.backend.nsq_total == 64


def test_a_command_that_is_done_late(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was to be aborted: that counts."""
    monkeypatch.setattr(vfio_backend, "COMMAND_TIME", 0.05)
    device = opened.device
    device.deaf = {nvme.GET_FEATURES}
    real = device.execute

    def execute(command: bytes) -> Tuple[int, int]:
        if command[0] == nvme.ABORT:
            device.complete(command[42:44], 77, 0)
            return 1, 0
        return real(command)

    device.execute = execute  # type: ignore[method-assign]
    completion = nvme.read_completion(opened.backend.admin(nvme.command(nvme.GET_FEATURES, cdw10=7, cid=3)))
    assert (completion.cid, completion.dw0) == (3, 77)


def test_a_controller_that_does_not_answer_is_ended(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it was told may be done later, when the memory is somebody else's."""
    monkeypatch.setattr(vfio_backend, "COMMAND_TIME", 0.05)
    monkeypatch.setattr(vfio_backend, "ABORT_TIME", 0.05)
    opened.device.deaf = {nvme.IDENTIFY, nvme.ABORT}
    with pytest.raises(OSError) as caught:
        opened.backend.admin(nvme.command(nvme.IDENTIFY, prp1=0x5000, cdw10=1))
    assert caught.value.errno == errno.EIO
    assert opened.device.log[-4:] == ["command 06", "command 08", "disable", "master off"]
    assert "neither did command 0x06 in 0.05 s, nor aborted it" in opened.backend.mark_dead()
    with pytest.raises(OSError) as caught:
        opened.backend.delete_queue_pair(2)
    assert caught.value.errno == errno.EIO


def test_an_interrupted_command(opened: Opened) -> None:
    """At the end of a server, nothing is waited for, and no more commands are given."""
    opened.device.deaf = {nvme.FORMAT}
    failed: List[Optional[int]] = []

    def work() -> None:
        try:
            opened.backend.admin(nvme.command(nvme.FORMAT, 1))
        except OSError as error:
            failed.append(error.errno)

    opened.backend.create_queue_pair(2, 16, 0x10000, 0x20000)
    thread = threading.Thread(target=work)
    thread.start()
    while "command 80" not in opened.device.log:
        time.sleep(0.001)
    opened.backend.interrupt()
    thread.join(10)
    assert failed == [errno.EIO]
    assert opened.close() == ["shutdown", "disable", "master off", "closed"]


# -- what clients may not -----------------------------------------------------------------------------------------

DENIED, BAD_ID = nvme.OPERATION_DENIED, nvme.INVALID_QUEUE_ID


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (nvme.command(nvme.IDENTIFY, prp1=0x5000, cdw10=1), None),
        (nvme.command(nvme.FORMAT, 1), None),
        (nvme.command(nvme.GET_FEATURES, cdw10=7), None),
        (nvme.command(nvme.SET_FEATURES, cdw10=2), None),
        (nvme.command(0xC1), None),
        (nvme.command(nvme.ABORT, cdw10=5 << 16 | 2), None),
        (nvme.command(nvme.ABORT, cdw10=5 << 16), (1, 0)),
        (b"\x06\x40" + bytes(62), (0, nvme.INVALID_FIELD)),
        (nvme.command(nvme.ASYNC_EVENT), (0, nvme.ASYNC_EVENT_LIMIT)),
        (nvme.command(nvme.SET_FEATURES, cdw10=7), (0, nvme.COMMAND_SEQUENCE_ERROR)),
        (nvme.command(nvme.SET_FEATURES, cdw10=0x8000000D), (0, DENIED)),
        (nvme.command(nvme.SET_FEATURES, cdw10=0x0F), (0, DENIED)),
        (nvme.command(nvme.DOORBELL_BUFFER), (0, DENIED)),
        (nvme.command(nvme.VIRTUALIZATION), (0, DENIED)),
        (nvme.command(nvme.DELETE_SQ, cdw10=2), (0, DENIED)),
        (nvme.command(nvme.DELETE_CQ, cdw10=2), (0, nvme.INVALID_QUEUE_DELETION)),
        (nvme.command(nvme.DELETE_SQ, cdw10=3), (0, BAD_ID)),
        (nvme.command(nvme.DELETE_CQ, cdw10=0), (0, BAD_ID)),
        (nvme.command(nvme.CREATE_CQ, cdw10=15 << 16 | 3), (0, DENIED)),
        (nvme.command(nvme.CREATE_CQ, cdw10=15 << 16 | 2), (0, BAD_ID)),
        (nvme.command(nvme.CREATE_CQ, cdw10=15 << 16 | 65), (0, BAD_ID)),
        (nvme.command(nvme.CREATE_CQ, cdw10=1024 << 16 | 3), (0, nvme.INVALID_QUEUE_SIZE)),
        (nvme.command(nvme.CREATE_SQ, cdw10=15 << 16 | 3, cdw11=2 << 16), (0, DENIED)),
        (nvme.command(nvme.CREATE_SQ, cdw10=15 << 16 | 3, cdw11=3 << 16), (0, nvme.COMPLETION_QUEUE_INVALID)),
        (nvme.command(nvme.CREATE_SQ, cdw10=15 << 16 | 3, cdw11=99 << 16), (0, BAD_ID)),
    ],
)
def test_what_is_answered_for_the_controller(command: bytes, expected: Optional[Tuple[int, int]]) -> None:
    """Queue pair 2 exists, of 64."""
    assert vfio_backend.verdict(command, [2], 64, 1024) == expected


@given(st.binary(min_size=40, max_size=40), st.integers(0, 12), st.integers(0, 3))
def test_no_command_reaches_the_queues_of_others(tail: bytes, opcode: int, flags: int) -> None:
    """Whatever else is in it."""
    command = bytes((opcode, flags)) + bytes(22) + tail
    found = vfio_backend.verdict(command, [2, 3], 64, 1024)
    if opcode in (0, 1, 4, 5, 12) or flags:
        assert found is not None
        assert found[1] != 0


def test_refusals_look_like_completions(opened: Opened) -> None:
    """With the id of the command, and the phase of a first pass."""
    answer = opened.backend.admin(nvme.command(nvme.ASYNC_EVENT, cid=0x1234))
    assert struct.unpack("<IIHHHH", answer) == (0, 0, 0, 0, 0x1234, nvme.ASYNC_EVENT_LIMIT << 1 | 1)
    assert "command 0c" not in opened.device.log


@pytest.mark.parametrize(
    ("nbytes", "stride", "pairs"),
    [(0x4000, 0, 1024), (0x2000, 0, 511), (0x2000, 4, 31), (0x1010, 0, 1), (0x1000, 0, -1)],
)
def test_how_many_pairs_have_doorbells(nbytes: int, stride: int, pairs: int) -> None:
    """The last one lies inside."""
    assert vfio_backend.pair_limit(nbytes, stride) == pairs
    if pairs > 0:
        assert 4 * nvme.doorbell(pairs, True, stride) + 4 <= nbytes
    if 0 < pairs < 1024:
        assert 4 * nvme.doorbell(pairs + 1, True, stride) + 4 > nbytes


# -- death --------------------------------------------------------------------------------------------------------


def set_fatal(device: Fake) -> None:
    """CSTS.CFS."""
    device.set(CSTS, device.get(CSTS) | 2)


def reset_by_client(device: Fake) -> None:
    """A client cleared CC.EN."""
    device.write(CC, 0)


def unreachable(device: Fake) -> None:
    """Its memory space was switched off."""

    def read(offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    device.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (pulled, "it was pulled (registers read as 0xffffffff)"),
        (not_mapped, "it was pulled (registers read as 0x0)"),
        (set_fatal, "CSTS.CFS"),
        (reset_by_client, "reset or disabled by somebody else"),
        (unreachable, "cannot be reached"),
    ],
)
def test_deaths_that_are_seen_by_looking(
    opened: Opened, kill: Callable[[Fake], None], words: str, wait_for: Callable[..., Any]
) -> None:
    """The loop is told, and what is asked of it ends with EIO."""
    opened.backend.check()
    assert not opened.backend._alarm.poll(0)
    kill(opened.device)
    opened.backend.check()
    assert opened.backend._alarm.poll(0)
    assert words in opened.backend.mark_dead()
    assert not opened.device.master
    assert opened.backend.nsq_total == 0
    wait_for(lambda: opened.device.released)
    with pytest.raises(OSError) as caught:
        opened.backend.admin(nvme.command(nvme.IDENTIFY, prp1=0x5000, cdw10=1))
    assert caught.value.errno == errno.EIO
    assert opened.close() == ["closed"]


@pytest.mark.parametrize(("irq", "words"), [(4, "wanted back"), (3, "uncorrectable error")])
def test_deaths_that_the_kernel_tells(opened: Opened, irq: int, words: str, wait_for: Callable[..., Any]) -> None:
    """By the events that were given to it."""
    os.write(opened.device.events[irq], (1).to_bytes(8, "little"))
    assert opened.backend._alarm.poll(0)
    assert words in opened.backend.mark_dead()
    wait_for(lambda: opened.device.released)
    assert opened.device.log[-3:] == ["disable", "master off", "released"]


def test_the_kernel_may_take_its_time(opened: Opened, wait_for: Callable[..., Any]) -> None:
    """To let go of a device can take more than a minute, which the loop does not wait for."""
    go, asked = threading.Event(), threading.Event()

    def release() -> None:
        asked.set()
        go.wait(30)

    opened.device.release = release  # type: ignore[method-assign]
    opened.device.pulled = True
    opened.backend.check()
    opened.backend.mark_dead()
    assert asked.wait(10)
    go.set()


# -- a server -----------------------------------------------------------------------------------------------------


class Served:
    """A server in a thread, over two fakes whose I/O queues another thread looks after."""

    def __init__(self, directory: Path, made: List[Iommu]) -> None:
        self.path = str(directory / "xnvme-homi-7.sock")
        self.said: List[str] = []
        self.control = Control()
        self.failed: List[BaseException] = []
        ready = threading.Event()
        self.threads = [
            threading.Thread(target=self._serve, args=(directory, ready)),
            threading.Thread(target=self._poll),
        ]
        self.ended = False
        self.threads[0].start()
        assert ready.wait(30), (self.failed, self.said)
        self.iommu = made[0]
        self.threads[1].start()

    def _serve(self, directory: Path, ready: threading.Event) -> None:
        try:
            serve(list(BDFS), 7, self.control, ready.set, directory=str(directory), log=self.said.append)
        except BaseException as error:  # noqa: BLE001 (told by the test)
            self.failed.append(error)
        self.ended = True

    def _poll(self) -> None:
        while not self.ended:
            for device in self.iommu.devices.values():
                device.poll()
            time.sleep(0.0005)

    def stop(self) -> None:
        """End both threads."""
        self.control.stop()
        for thread in self.threads:
            thread.join(30)
        self.control.close()
        assert not self.failed


@pytest.fixture
def served(tmp_path: Path, fakes: List[Iommu]) -> Iterator[Served]:
    """A server over two controllers."""
    before = descriptors()
    server = Served(tmp_path, fakes)
    yield server
    server.stop()
    assert fakes[0].closed
    assert descriptors() == before


def test_a_session_with_two_controllers(
    served: Served, raw: Callable[..., Any], raw_queue: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Records, Identify, queues, data, and what is released when the client goes."""
    with raw(served) as client:
        assert [client.status(index)["bdf"] for index in (0, 1)] == list(BDFS)
        for index, bdf in enumerate(BDFS):
            record, heap, bar0 = client.init(index)
            found = struct.unpack_from("<IIQIIQQ16s", heap, record)
            assert found[7].split(b"\0")[0].decode() == bdf
            assert found[3] == 0x00460001
            assert struct.unpack_from("<IIQQ", heap, found[6]) == (1, 2, len(heap), 0)
            target = client.buffer(8192)
            assert client.admin(nvme.command(nvme.IDENTIFY, prp1=target, cdw10=1)) == (0, 0, 1)
            assert bytes(heap[target + 24 : target + 64]).startswith(b"iofabric emulated")
            queue = raw_queue(client, index, heap, bar0, 8)
            assert queue.qid == 2
            pattern = os.urandom(4096)
            heap[target : target + 4096] = pattern
            assert queue.do(1, prp1=target, lba=8, blocks=8) == 0
            for number in range(20):
                assert queue.do(2, cid=number, prp1=target + 4096, lba=8, blocks=8) == 0
            assert heap[target + 4096 : target + 8192] == pattern
    with raw(served) as client:
        wait_for(lambda: not any(client.status(index)["nqueues"] for index in (0, 1)))
        wait_for(lambda: not any(device.inner._sqs for device in served.iommu.devices.values()))


def test_a_controller_that_dies_harms_nobody_else(
    served: Served, raw: Callable[..., Any], raw_queue: Callable[..., Any], wait_for: Callable[..., Any]
) -> None:
    """Nobody has to ask: the server looks. Its clients get errors, and the kernel gets it back."""
    with raw(served) as client:
        queue = raw_queue(client, 1, *client.init(1)[1:], 8)
        client.init(0)
        victim = client.pair(0, 8)
        served.iommu.devices[BDFS[0]].pulled = True
        wait_for(lambda: client.status(0)["nsq_total"] == 0)
        assert client.admin(nvme.command(nvme.GET_FEATURES, cdw10=7))[0] == -errno.EIO
        assert client.ask(1, 0)[0] == -errno.EIO
        assert client.ask(2, 0, depth=("H", 56, 16))[0] == -errno.EIO
        assert client.ask(3, 0, qid=("I", 24, victim[3]))[0] == 0
        wait_for(lambda: served.iommu.devices[BDFS[0]].released)
        assert queue.do(0) == 0
        assert client.status(1)["status"] == 0
    assert any(f"{BDFS[0]} ({BDFS[0]}) is gone: it was pulled" in line for line in served.said)
