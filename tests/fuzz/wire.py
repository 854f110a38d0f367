# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire format of the control plane, and the structures in the shared memory, in any bytes."""

from __future__ import annotations

import json
import socket
from typing import Any, Callable, Dict, Iterator, Tuple, Union

from ...plugins.module_utils._cplane import heap, wire
from ...plugins.module_utils._cplane.errors import WireError
from ...plugins.module_utils._cplane.wire import Message
from .target import ROOT, Taker, Target

SAMPLE = ROOT / "tests/unit/plugins/module_utils/_cplane/samples/reference-server-vfio.json"
MEMORY = 1 << 16


def recorded() -> Iterator[Tuple[bytes, bytes]]:
    """Every request that the reference server answered, and its reply."""

    def walk(node: Any) -> Iterator[Tuple[bytes, bytes]]:
        if isinstance(node, dict) and node.get("request") and node.get("reply"):
            yield bytes.fromhex(node["request"]), bytes.fromhex(node["reply"])
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from walk(child)

    yield from walk(json.loads(SAMPLE.read_text()))


def run(data: bytes) -> None:
    """The first byte says what the others are."""
    taker = Taker(data)
    taker.pick([check_messages, check_values, check_descriptors, check_memory])(taker)


def check_messages(taker: Taker) -> None:
    """A message that was read is written as the same, apart from bytes that no field has; a length is right or not."""
    data = taker.rest()
    ways: Tuple[Tuple[Callable[[bytes], Message], Callable[[Message], bytes]], ...] = (
        (Message.decode_request, Message.encode_request),
        (Message.decode_reply, Message.encode_reply),
    )
    for decode, encode in ways:
        try:
            message = decode(data)
        except WireError:
            assert len(data) != wire.SIZE
            continue
        written = encode(message)
        assert len(data) == len(written) == wire.SIZE
        assert written[: wire.HEADER_SIZE] == data[: wire.HEADER_SIZE]
        assert all(new in (old, 0) for new, old in zip(written, data))
        assert encode(decode(written)) == written
        assert repr(message)
    if len(data) == wire.SIZE:
        try:
            assert wire.decode_bdf(data[48:64]).isprintable()
        except WireError as error:
            assert error.message.isprintable()


def check_values(taker: Taker) -> None:
    """A value that does not fit is an error that names its field; all others arrive."""
    message = Message(taker.number(), taker.number(4))
    fields = wire.REQUEST_FIELDS.get(message.op, ())
    values: Dict[str, Union[int, bytes, str]] = {}
    for field in fields:
        values[field.name] = taker.chunk() if taker.number() % 4 == 0 else taker.number(taker.number() % 10) - 1
    if taker.number() == 255:
        values["nonsense"] = 1
    message.values, message.status = values, taker.number(5) - (1 << 31)
    message.nfds, message.version, message.reserved = taker.number(5), taker.number(4), taker.number(4)
    try:
        data = message.encode_request()
    except WireError as error:
        assert error.message.isprintable()
        return
    found = Message.decode_request(data)
    for name in wire.HEADER_NAMES:
        assert getattr(found, name) == getattr(message, name)
    for name, value in values.items():
        assert _plain(found.values[name]) == _plain(value)


def _plain(value: wire.Value) -> wire.Value:
    """Without what fills up a field."""
    return value.rstrip(b"\0") if isinstance(value, bytes) else value


def check_descriptors(taker: Taker) -> None:
    """Numbers of descriptors in what recvmsg may hand over; the kernel cuts it anywhere."""
    data = taker.rest()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    assert len(wire.take_fds([(*rights, data), (*rights, b""), (socket.SOL_SOCKET, 2, data)])) == len(data) // 4


def check_memory(taker: Taker) -> None:
    """Records that anybody may have written over: read, or refused with a WireError; an address has 64 bits."""
    offsets = taker.number(taker.number() % 9), taker.number(taker.number() % 9)
    memory = bytearray(MEMORY)
    for _piece in range(2):
        at = taker.number(2)
        piece = taker.chunk()[: MEMORY - at]
        memory[at : at + len(piece)] = piece
    try:
        record = heap.read_record(memory, offsets[0])
        if record.bdf.isascii():
            assert heap.read_record(record.pack(), 0) == record
    except WireError as error:
        assert error.message.isprintable()
    try:
        descriptor = heap.read_descriptor(memory, offsets[1])
    except WireError as error:
        assert error.message.isprintable()
        return
    assert heap.read_descriptor(descriptor.pack(), 0) == descriptor
    for offset in (0, 4096, offsets[0], offsets[1], descriptor.nbytes - 1):
        try:
            assert 0 <= descriptor.address(offset) < 1 << 64
        except WireError as error:
            assert error.message.isprintable()


def seeds() -> Iterator[bytes]:
    """What was recorded of the reference server, and the structures as a server writes them."""
    for request, reply in recorded():
        yield b"\0" + request
        yield b"\0" + reply
    for op in wire.REQUEST_FIELDS:
        yield bytes((1, op)) + bytes(60)
    yield b"\2" + bytes(range(14))
    record = heap.Record(10000, 1 << 37, 0x460001, MEMORY, 4096, "0000:81:00.0").pack()
    table = heap.Descriptor(heap.KIND_TABLE, 8192, 0, 12, (1 << 20, 1 << 30)).pack()
    plain = heap.Descriptor(heap.KIND_ARITHMETIC, 1 << 20, 1 << 63).pack()
    for descriptor in (table, plain):
        at = b"\2\0\2" + b"\2\0\4"
        yield b"\3" + at + b"\0\2" + bytes((len(record),)) + record + b"\0\4" + bytes((len(descriptor),)) + descriptor


WIRE = Target(run, seeds, longest=512, words=[b"\4\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"0000:81:00.0\0"])
