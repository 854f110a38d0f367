# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire format of the control plane, version 4: one message of 104 bytes both ways, and descriptors beside it.

A message has a header of 24 bytes (op, version, status, nfds, index, reserved) and a union of 80 bytes whose
fields depend on the operation and the direction; every field has an explicit offset here. Integers are little
endian, as the host byte order is on every machine that the format is used on. There is no framing: a message
is complete when 104 bytes have come. Descriptors ride with its first byte (SCM_RIGHTS, three at most).
"""

from __future__ import annotations

import array
import enum
import os
import socket
import struct
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from .errors import WireError

VERSION = 4
SIZE = 104
HEADER_SIZE = 24
MAX_FDS = 3

ANCILLARY_SIZE = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
"""Room for the descriptors of a message; the kernel closes those that find no room."""

Value = Union[int, bytes, str]


class Op(enum.IntEnum):
    """The operations of the format."""

    INIT_CONNECTION = 1
    ALLOC_IOQPAIR = 2
    FREE_IOQPAIR = 3
    ADMIN_CMD = 4
    ALLOC_BUF = 5
    FREE_BUF = 6
    STATUS = 7
    REGISTER_MEM = 8
    UNREGISTER_MEM = 9
    ALLOC_IOQPAIR_AT = 10
    ALLOC_IOQPAIR_CQ_AT = 11


class Field(NamedTuple):
    """A field of a message: its offset in bytes from the start of the message, and its type in struct's letters."""

    name: str
    offset: int
    code: str

    @property
    def kind(self) -> str:
        """The type in the words of the format."""
        return {"H": "u16", "I": "u32", "i": "i32", "Q": "u64"}.get(self.code, f"{self.code[:-1]} bytes")


HEADER = (
    Field("op", 0, "I"),
    Field("version", 4, "I"),
    Field("status", 8, "i"),
    Field("nfds", 12, "I"),
    Field("index", 16, "I"),
    Field("reserved", 20, "I"),
)

HEADER_NAMES = tuple(field.name for field in HEADER)

REQUEST_FIELDS: Dict[int, Tuple[Field, ...]] = {
    Op.INIT_CONNECTION: (),
    Op.ALLOC_IOQPAIR: (Field("depth", 56, "H"),),
    Op.FREE_IOQPAIR: (Field("qid", 24, "I"),),
    Op.ADMIN_CMD: (Field("command", 24, "64s"),),
    Op.ALLOC_BUF: (Field("nbytes", 24, "Q"),),
    Op.FREE_BUF: (Field("offset", 32, "Q"),),
    Op.STATUS: (),
    Op.REGISTER_MEM: (Field("nbytes", 24, "Q"), Field("page_size", 40, "I")),
    Op.UNREGISTER_MEM: (Field("desc_offset", 32, "Q"),),
    Op.ALLOC_IOQPAIR_AT: (
        Field("desc_offset", 24, "Q"),
        Field("sq_offset", 32, "Q"),
        Field("cq_offset", 40, "Q"),
        Field("depth", 52, "H"),
    ),
    Op.ALLOC_IOQPAIR_CQ_AT: (Field("desc_offset", 56, "Q"), Field("cq_offset", 64, "Q"), Field("depth", 72, "H")),
}

_QUEUE_PAIR = (
    Field("sq_offset", 24, "Q"),
    Field("cq_offset", 32, "Q"),
    Field("prp_offset", 40, "Q"),
    Field("qid", 48, "I"),
    Field("depth", 52, "H"),
)

REPLY_FIELDS: Dict[int, Tuple[Field, ...]] = {
    Op.INIT_CONNECTION: (
        Field("record_offset", 24, "Q"),
        Field("heap_nbytes", 32, "Q"),
        Field("bar0_nbytes", 40, "Q"),
    ),
    Op.ALLOC_IOQPAIR: _QUEUE_PAIR,
    Op.FREE_IOQPAIR: (),
    Op.ADMIN_CMD: (Field("completion", 88, "16s"),),
    Op.ALLOC_BUF: (Field("offset", 32, "Q"),),
    Op.FREE_BUF: (),
    Op.STATUS: (
        Field("ndevs", 24, "I"),
        Field("nclients", 28, "I"),
        Field("nclients_ctrlr", 32, "I"),
        Field("nqueues", 36, "I"),
        Field("nsq_total", 40, "I"),
        Field("ncq_total", 44, "I"),
        Field("bdf", 48, "16s"),
    ),
    Op.REGISTER_MEM: (Field("desc_offset", 32, "Q"),),
    Op.UNREGISTER_MEM: (),
    Op.ALLOC_IOQPAIR_AT: (Field("qid", 48, "I"), Field("depth", 52, "H")),
    Op.ALLOC_IOQPAIR_CQ_AT: _QUEUE_PAIR,
}

_RANGES = {"H": (0, 0xFFFF), "I": (0, 0xFFFFFFFF), "i": (-0x80000000, 0x7FFFFFFF), "Q": (0, 0xFFFFFFFFFFFFFFFF)}


class _Layout:
    """All fields of one kind of message, compiled to a single struct."""

    def __init__(self, label: str, fields: Sequence[Field]) -> None:
        self.label = label
        self.fields = tuple(fields)
        self.names = tuple(field.name for field in fields)
        self.zeros: List[Value] = [b"" if field.code.endswith("s") else 0 for field in fields]
        self.pairs = tuple(zip(self.names, self.zeros))
        self._sizes = [(field.name, int(field.code[:-1])) for field in fields if field.code.endswith("s")]
        self._names = frozenset(self.names)
        everything = HEADER + self.fields
        form, position = "<", 0
        for field in everything:
            form += f"{field.offset - position}x" if field.offset > position else ""
            form += field.code
            position = field.offset + struct.calcsize("<" + field.code)
        self.struct = struct.Struct(form + (f"{SIZE - position}x" if position < SIZE else ""))

    def accepts(self, values: Dict[str, Value]) -> bool:
        """Whether all values have a field, and the bytes fit (struct would cut them off without a word)."""
        for name, size in self._sizes:
            value = values.get(name, b"")
            if not isinstance(value, bytes) or len(value) > size:
                return False
        return self._names.issuperset(values)

    def check(self, header: Dict[str, Value], values: Dict[str, Value]) -> None:
        """Raise WireError that names the first field whose value does not fit."""
        unknown = sorted(set(values) - set(self.names))
        if unknown:
            raise WireError(f"{self.label}: there is no field {unknown[0]}")
        for field in HEADER:
            self._check_field(field, header[field.name])
        for field in self.fields:
            self._check_field(field, values.get(field.name, b"" if field.code.endswith("s") else 0))

    def _check_field(self, field: Field, value: Value) -> None:
        where = f"{self.label}: {field.name} ({field.kind} at offset {field.offset})"
        if field.code.endswith("s"):
            size = int(field.code[:-1])
            if not isinstance(value, bytes) or len(value) > size:
                raise WireError(f"{where} takes at most {size} bytes, not {value!r}")
            return
        low, high = _RANGES[field.code]
        if not isinstance(value, int) or not low <= value <= high:
            raise WireError(f"{where} must be {low} to {high}, not {value!r}")


def _name(op: int) -> str:
    return Op(op).name if op in REQUEST_FIELDS else f"operation {op}"


_REQUESTS = {int(op): _Layout("request " + _name(op), fields) for op, fields in REQUEST_FIELDS.items()}
_REPLIES = {int(op): _Layout("reply to " + _name(op), fields) for op, fields in REPLY_FIELDS.items()}
_BARE = _Layout("message of an unknown operation", ())
_EMPTY: Dict[str, Value] = {}


class Message:
    """A request or a reply.

    ``values`` holds the fields of the union by name (integers, or bytes for ``command`` and ``completion``; the
    ``bdf`` of a STATUS reply is text). Fields that are not given are zero.
    """

    __slots__ = ("index", "nfds", "op", "reserved", "status", "values", "version")

    def __init__(
        self,
        op: int,
        index: int = 0,
        values: Optional[Dict[str, Value]] = None,
        status: int = 0,
        nfds: int = 0,
        version: int = VERSION,
        reserved: int = 0,
    ) -> None:
        self.op = op
        self.index = index
        self.values = _EMPTY if values is None else values
        self.status = status
        self.nfds = nfds
        self.version = version
        self.reserved = reserved

    def __repr__(self) -> str:
        return (
            f"Message({_name(self.op)}, index={self.index}, status={self.status},"
            f" nfds={self.nfds}, version={self.version}, {self.values})"
        )

    def number(self, name: str) -> int:
        """Return the integer field ``name``."""
        value = self.values.get(name, 0)
        if not isinstance(value, int):
            raise WireError(f"{_name(self.op)}: {name} is not a number")
        return value

    def data(self, name: str) -> bytes:
        """Return the bytes field ``name``."""
        value = self.values.get(name, b"")
        if not isinstance(value, bytes):
            raise WireError(f"{_name(self.op)}: {name} is not bytes")
        return value

    def encode_request(self) -> bytes:
        """Return the 104 bytes of a request; raises WireError naming the field that does not fit."""
        return self._encode(_REQUESTS.get(self.op, _BARE))

    def encode_reply(self) -> bytes:
        """Return the 104 bytes of a reply; raises WireError naming the field that does not fit."""
        return self._encode(_REPLIES.get(self.op, _BARE))

    def _encode(self, layout: _Layout) -> bytes:
        values = self.values
        try:
            union = layout.zeros if not values else [values.get(name, zero) for name, zero in layout.pairs]
            if values and not layout.accepts(values):
                raise WireError(layout.label)
            return layout.struct.pack(self.op, self.version, self.status, self.nfds, self.index, self.reserved, *union)
        except (WireError, struct.error):
            # Only now is it worth the time to find out which field it was.
            header: Dict[str, Value] = {name: getattr(self, name) for name in HEADER_NAMES}
            layout.check(header, values)
            raise

    @classmethod
    def decode_request(cls, data: Union[bytes, bytearray]) -> Message:
        """Read a request of 104 bytes; raises WireError when it has another length."""
        return cls._decode(_REQUESTS, data, "request")

    @classmethod
    def decode_reply(cls, data: Union[bytes, bytearray]) -> Message:
        """Read a reply of 104 bytes; raises WireError when it has another length."""
        return cls._decode(_REPLIES, data, "reply")

    @classmethod
    def _decode(cls, layouts: Dict[int, _Layout], data: Union[bytes, bytearray], what: str) -> Message:
        if len(data) != SIZE:
            raise WireError(f"a {what} has {SIZE} bytes, not {len(data)}")
        layout = layouts.get(int.from_bytes(data[:4], "little"), _BARE)
        op, version, status, nfds, index, reserved, *union = layout.struct.unpack(data)
        values = dict(zip(layout.names, union)) if union else None
        return cls(op, index, values, status, nfds, version, reserved)


def decode_bdf(value: bytes) -> str:
    """Return the text of a ``bdf`` field (up to the first NUL); raises WireError when it is not plain text."""
    text = value.split(b"\0", 1)[0]
    if not all(0x20 < byte < 0x7F for byte in text):
        raise WireError(f"reply to STATUS: bdf (16 bytes at offset 48) is not text: {value!r}")
    return text.decode("ascii")


def close_all(fds: Iterable[int]) -> None:
    """Close every descriptor given."""
    for fd in fds:
        os.close(fd)


def take_fds(ancillary: Iterable[Tuple[int, int, bytes]]) -> List[int]:
    """Return the descriptors in what recvmsg handed over; they belong to the caller from here on."""
    fds: List[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            fds.extend(numbers)
    return fds


def rights(fds: Sequence[int]) -> List[Tuple[int, int, array.array[int]]]:
    """Return the ancillary data for sendmsg that passes these descriptors."""
    if not fds:
        return []
    if len(fds) > MAX_FDS:
        raise WireError(f"a message carries at most {MAX_FDS} descriptors, not {len(fds)}")
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
