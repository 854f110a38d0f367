# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory that a server shares with its clients: an allocator, and the two structures that clients read in it.

Clients map the whole heap and can overwrite each other's part of it: they are one trust domain. Nothing that the
server relies on is therefore read back from it; where things lie is kept in memory of its own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Callable, NamedTuple, Tuple, Union

from .errors import WireError

PAGE = 4096
RECORD_VERSION = 1
DESCRIPTOR_VERSION = 1
KIND_TABLE = 1
KIND_ARITHMETIC = 2

_RECORD = struct.Struct("<IIQIIQQ16s")
_DESCRIPTOR = struct.Struct("<IIQQII")
_ZERO_STEP = 4 << 20
_MAX_ADDRESS = (1 << 64) - 1
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Buffer = Union[memoryview, mmap.mmap, bytes, bytearray]


class HeapFull(Exception):
    """No run of free pages is long enough."""


class Record(NamedTuple):
    """The runtime record (56 bytes): what a client must know of a controller; ``timeout_ms`` in milliseconds."""

    timeout_ms: int
    cap: int
    cc: int
    heap_nbytes: int
    desc_offset: int
    bdf: str

    def pack(self) -> bytes:
        """Return its 56 bytes."""
        return _RECORD.pack(
            RECORD_VERSION,
            self.timeout_ms,
            self.cap,
            self.cc,
            0,
            self.heap_nbytes,
            self.desc_offset,
            self.bdf.encode("ascii"),
        )


class Descriptor(NamedTuple):
    """The address descriptor: how an offset in the heap becomes an address for the controller."""

    kind: int
    nbytes: int
    base_addr: int = 0
    gran_shift: int = 12
    phys: Tuple[int, ...] = ()

    def pack(self) -> bytes:
        """Return its 32 bytes and the table behind them."""
        head = _DESCRIPTOR.pack(
            DESCRIPTOR_VERSION, self.kind, self.nbytes, self.base_addr, len(self.phys), self.gran_shift
        )
        return head + struct.pack(f"<{len(self.phys)}Q", *self.phys)

    def address(self, offset: int) -> int:
        """Return the controller's address of the byte at ``offset`` of the heap; raises WireError where it has none."""
        if not 0 <= offset < self.nbytes:
            raise WireError(f"offset {offset} is outside of the heap of {self.nbytes} bytes")
        page = offset >> self.gran_shift
        if self.kind == KIND_ARITHMETIC:
            address = self.base_addr + offset
        elif page < len(self.phys):
            address = self.phys[page] + (offset & ((1 << self.gran_shift) - 1))
        else:
            raise WireError(f"the address descriptor has no page {page}")
        if address > _MAX_ADDRESS:
            raise WireError(f"the address descriptor puts offset {offset} at {address:#x}, which has more than 64 bits")
        return address


def read_record(heap: Buffer, offset: int) -> Record:
    """Read the runtime record at ``offset``; raises WireError naming what is wrong with it."""
    _inside("record_offset", heap, offset, _RECORD.size)
    version, timeout_ms, cap, cc, _reserved, nbytes, desc_offset, bdf = _RECORD.unpack_from(heap, offset)
    if version != RECORD_VERSION:
        raise WireError(f"runtime record: version (u32 at offset 0) is {version}, not {RECORD_VERSION}")
    text = bdf.split(b"\0", 1)[0].decode("ascii", "replace")
    return Record(timeout_ms, cap, cc, nbytes, desc_offset, text)


def read_descriptor(heap: Buffer, offset: int) -> Descriptor:
    """Read the address descriptor at ``offset``; raises WireError naming what is wrong with it."""
    _inside("desc_offset", heap, offset, _DESCRIPTOR.size)
    version, kind, nbytes, base, nphys, shift = _DESCRIPTOR.unpack_from(heap, offset)
    if version != DESCRIPTOR_VERSION:
        raise WireError(f"address descriptor: version (u32 at offset 0) is {version}, not {DESCRIPTOR_VERSION}")
    if kind not in (KIND_TABLE, KIND_ARITHMETIC):
        raise WireError(f"address descriptor: kind (u32 at offset 4) is {kind}, neither 1 nor 2")
    phys: Tuple[int, ...] = ()
    if kind == KIND_TABLE:
        if shift > 40:
            raise WireError(f"address descriptor: gran_shift (u32 at offset 28) is {shift}")
        _inside("phys", heap, offset + _DESCRIPTOR.size, nphys * 8)
        phys = struct.unpack_from(f"<{nphys}Q", heap, offset + _DESCRIPTOR.size)
    return Descriptor(kind, nbytes, base, shift, phys)


def _inside(what: str, heap: Buffer, offset: int, size: int) -> None:
    if not 0 <= offset <= len(heap) - size:
        raise WireError(f"{what} {offset} lies outside of the heap of {len(heap)} bytes")


def sealed_memfd(name: str, nbytes: int, flags: int = 0) -> int:
    """Return a memory file of ``nbytes`` whose size nobody can change: to truncate it would kill whoever maps it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


class Heap:
    """The shared memory of a server, given out in pages of 4 KiB that are zeroed first.

    Only one thread may allocate and free; ``zero`` may run in any. Offset 0 is never given out. ``memory`` makes the
    memory file; it is given a name and a number of bytes.
    """

    def __init__(self, nbytes: int, memory: Callable[[str, int], int] = sealed_memfd) -> None:
        self.nbytes = (nbytes + PAGE - 1) // PAGE * PAGE
        self.fd = memory("xnvme-cplane-heap", self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self.view = memoryview(self._map)
        # One byte a page, not zero when taken: bytes.find looks for a run of free pages at the speed of memory.
        self._pages = bytearray(self.nbytes // PAGE)
        self._pages[0] = 1
        self._free = len(self._pages) - 1
        self._lowest = 1

    @property
    def free_bytes(self) -> int:
        """How much is not given out."""
        return self._free * PAGE

    def allocate(self, nbytes: int) -> int:
        """Return the offset of ``nbytes`` (rounded up to pages), not yet zeroed; raises HeapFull."""
        count = (nbytes + PAGE - 1) // PAGE
        if count > self._free:
            raise HeapFull
        page = self._pages.find(bytes(count), self._lowest)
        if page < 0:
            raise HeapFull
        self._pages[page : page + count] = b"\1" * count
        self._free -= count
        if page == self._lowest:
            self._lowest = page + count
        return page * PAGE

    def free(self, offset: int, nbytes: int) -> None:
        """Take back what allocate gave for the same size."""
        page, count = offset // PAGE, (nbytes + PAGE - 1) // PAGE
        self._pages[page : page + count] = bytes(count)
        self._free += count
        self._lowest = min(self._lowest, page)

    def zero(self, offset: int, nbytes: int) -> None:
        """Clear whole pages, by giving them back to the system: a queue pair costs what is used of it.

        Memory that a real controller's DMA goes to must stay in place; the heap for those does this in another way.
        """
        end = offset + (nbytes + PAGE - 1) // PAGE * PAGE
        for start in range(offset, end, _ZERO_STEP):
            # In steps, so that other threads run in between.
            self._map.madvise(mmap.MADV_REMOVE, start, min(_ZERO_STEP, end - start))

    def write(self, offset: int, data: bytes) -> None:
        """Put data in place, such as a record."""
        self.view[offset : offset + len(data)] = data

    def restore(self, offset: int, data: bytes) -> None:
        """Put the same data in place again, in single 32-bit stores: whoever reads meanwhile sees no other value.

        Both must be multiples of four, as they are for records and descriptors.
        """
        with self.view.cast("I") as words:
            for word, (value,) in enumerate(struct.iter_unpack("<I", data), offset // 4):
                words[word] = value

    def close(self) -> None:
        """Let go of the memory; clients keep what they have mapped."""
        self.view.release()
        self._map.close()
        os.close(self.fd)
