# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The allocator of the shared memory, and the structures that clients read in it."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Dict, Iterator

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import WireError
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.heap import (
    Descriptor,
    Heap,
    HeapFull,
    Record,
    read_descriptor,
    read_record,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture
def heap() -> Iterator[Heap]:
    """One MiB."""
    made = Heap(1 << 20)
    yield made
    made.close()


def test_descriptors_of_a_heap_are_closed() -> None:
    """Nothing stays open."""
    before = sorted(os.listdir("/proc/self/fd"))
    Heap(1 << 20).close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_memory_is_sealed(heap: Heap) -> None:
    """Size and seals are for good."""
    seals = fcntl.fcntl(heap.fd, fcntl.F_GET_SEALS)
    assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    with pytest.raises(PermissionError):
        os.ftruncate(heap.fd, 0)


@given(st.lists(st.integers(-5, 300000), max_size=60))
@settings(deadline=None)
def test_what_is_given_out_never_overlaps(steps: list[int]) -> None:
    """A positive number allocates, another one frees one of those that are held."""
    heap = Heap(1 << 20)
    try:
        held: Dict[int, int] = {}
        for step in steps:
            if step > 0:
                try:
                    offset = heap.allocate(step)
                except HeapFull:
                    continue
                assert offset >= 4096
                assert offset % 4096 == 0
                assert offset + step <= heap.nbytes
                assert all(offset + step <= other or other + size <= offset for other, size in held.items())
                held[offset] = step
            elif held:
                offset = sorted(held)[step % len(held)]
                heap.free(offset, held.pop(offset))
            pages = sum(-(-size // 4096) for size in held.values())
            assert heap.free_bytes == heap.nbytes - 4096 - pages * 4096
        for offset, size in held.items():
            heap.free(offset, size)
        assert heap.allocate(heap.nbytes - 4096) == 4096
    finally:
        heap.close()


def test_a_heap_in_pieces(heap: Heap) -> None:
    """Enough pages that do not lie together are not enough."""
    offsets = [heap.allocate(4096) for _unused in range(255)]
    with pytest.raises(HeapFull):
        heap.allocate(1)
    for offset in offsets[::2]:
        heap.free(offset, 4096)
    with pytest.raises(HeapFull):
        heap.allocate(4097)
    assert heap.allocate(4096) == offsets[0]


def test_zero_clears_whole_pages(heap: Heap) -> None:
    """And nothing beside them."""
    heap.view[:] = b"\xff" * len(heap.view)
    heap.zero(8192, 4097)
    assert not any(heap.view[8192:16384])
    assert heap.view[8191] == heap.view[16384] == 0xFF


def test_the_record_lies_where_the_table_says(heap: Heap) -> None:
    """56 bytes, read back alike."""
    record = Record(10000, 0x20140103FF, 0x460001, 1 << 20, 8192, "ffff:be:08.3")
    data = record.pack()
    assert len(data) == 56
    assert struct.unpack("<IIQIIQQ16s", data) == (
        1,
        10000,
        0x20140103FF,
        0x460001,
        0,
        1 << 20,
        8192,
        b"ffff:be:08.3\0\0\0\0",
    )
    heap.write(4096, data)
    assert read_record(heap.view, 4096) == record


@pytest.mark.parametrize(
    "descriptor",
    [Descriptor(2, 1 << 20), Descriptor(2, 1 << 20, 4096), Descriptor(1, 4 << 20, 0, 21, (1 << 30, 6 << 21))],
)
def test_descriptors_are_read_back(heap: Heap, descriptor: Descriptor) -> None:
    """Both kinds."""
    heap.write(4096, descriptor.pack())
    assert read_descriptor(heap.view, 4096) == descriptor


def test_addresses() -> None:
    """Arithmetic adds the base, a table has a place for each granule."""
    assert Descriptor(2, 1 << 20, 1 << 32).address(5) == (1 << 32) + 5
    table = Descriptor(1, 4 << 20, 0, 21, (1 << 30, 6 << 21))
    assert table.address(7) == (1 << 30) + 7
    assert table.address((2 << 20) + 7) == (6 << 21) + 7
    for bad in (-1, 4 << 20):
        with pytest.raises(WireError, match="outside"):
            table.address(bad)
    for wide in (Descriptor(2, 1 << 20, (1 << 64) - 5), Descriptor(1, 8192, 0, 12, ((1 << 64) - 5,))):
        assert wide.address(4) == (1 << 64) - 1
        with pytest.raises(WireError, match="more than 64 bits"):
            wide.address(5)
    with pytest.raises(WireError, match="no page 1"):
        Descriptor(1, 4 << 20, 0, 21, (0,)).address(2 << 20)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<II", 2, 2), "version"),
        (struct.pack("<II", 1, 3), "kind"),
        (struct.pack("<IIQQII", 1, 1, 0, 0, 1, 64), "gran_shift"),
        (struct.pack("<IIQQII", 1, 1, 0, 0, 0xFFFFFFFF, 21), "phys"),
    ],
)
def test_descriptors_that_make_no_sense(heap: Heap, data: bytes, words: str) -> None:
    """The field is named; nothing outside of the heap is read."""
    heap.write(4096, data)
    with pytest.raises(WireError, match=words):
        read_descriptor(heap.view, 4096)


def test_records_that_make_no_sense(heap: Heap) -> None:
    """An offset outside, another version."""
    for offset in (-1, (1 << 20) - 55, 1 << 63):
        with pytest.raises(WireError, match="record_offset"):
            read_record(heap.view, offset)
    with pytest.raises(WireError, match="version"):
        read_record(heap.view, 4096)
