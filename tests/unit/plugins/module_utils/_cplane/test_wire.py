# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire format against its table and against recorded conversations."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import wire
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import WireError
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.wire import Message, Op
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLES = Path(__file__).parent / "samples"
RANGES = {"H": 2**16 - 1, "I": 2**32 - 1, "Q": 2**64 - 1}


def recorded() -> Iterator[Tuple[str, bytes]]:
    """Every recorded message: its direction and its bytes."""
    sample: Dict[str, Any] = json.loads((SAMPLES / "reference-server-vfio.json").read_text())
    for part in sample.values():
        for entry in part["log"] if isinstance(part, dict) and "log" in part else ():
            yield "request", bytes.fromhex(entry["request"])
            if entry["reply"]:
                yield "reply", bytes.fromhex(entry["reply"])


def test_the_fields_lie_where_the_table_says() -> None:
    """The whole table, written a second time."""
    table = {
        1: ("", "24Q record_offset,32Q heap_nbytes,40Q bar0_nbytes"),
        2: ("56H depth", "24Q sq_offset,32Q cq_offset,40Q prp_offset,48I qid,52H depth"),
        3: ("24I qid", ""),
        4: ("24:64s command", "88:16s completion"),
        5: ("24Q nbytes", "32Q offset"),
        6: ("32Q offset", ""),
        7: ("", "24I ndevs,28I nclients,32I nclients_ctrlr,36I nqueues,40I nsq_total,44I ncq_total,48:16s bdf"),
        8: ("24Q nbytes,40I page_size", "32Q desc_offset"),
        9: ("32Q desc_offset", ""),
        10: ("24Q desc_offset,32Q sq_offset,40Q cq_offset,52H depth", "48I qid,52H depth"),
        11: (
            "56Q desc_offset,64Q cq_offset,72H depth",
            "24Q sq_offset,32Q cq_offset,40Q prp_offset,48I qid,52H depth",
        ),
    }

    def words(fields: Tuple[wire.Field, ...]) -> str:
        return ",".join("{}{}{} {}".format(f.offset, ":" if len(f.code) > 1 else "", f.code, f.name) for f in fields)

    assert {op: (words(wire.REQUEST_FIELDS[op]), words(wire.REPLY_FIELDS[op])) for op in Op} == table


def test_recorded_messages_survive_a_round_trip() -> None:
    """What is decoded encodes to the same bytes, except where a client put garbage into unused places."""
    count = 0
    for kind, data in recorded():
        if b"\xff" * 80 in data:
            continue
        message = Message.decode_request(data) if kind == "request" else Message.decode_reply(data)
        again = message.encode_request() if kind == "request" else message.encode_reply()
        assert again == data
        count += 1
    assert count > 80


@given(st.data())
@settings(deadline=None)
def test_any_request_survives(data: st.DataObject) -> None:
    """For all operations and all values."""
    op = data.draw(st.sampled_from(list(Op)))
    values: Dict[str, wire.Value] = {}
    for field in wire.REQUEST_FIELDS[op]:
        values[field.name] = data.draw(
            st.integers(0, RANGES[field.code]) if field.code in RANGES else st.binary(min_size=64, max_size=64)
        )
    request = Message(op, data.draw(st.integers(0, 2**32 - 1)), values)
    raw = request.encode_request()
    assert len(raw) == 104
    assert struct.unpack_from("<II", raw) == (op, 4)
    back = Message.decode_request(raw)
    assert (back.op, back.index, back.values) == (op, request.index, values)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(Op.ALLOC_IOQPAIR, 0, {"depth": 65536}), "depth (u16 at offset 56) must be 0 to 65535, not 65536"),
        (Message(Op.FREE_IOQPAIR, 0, {"qid": -1}), "qid (u32 at offset 24)"),
        (Message(Op.FREE_IOQPAIR, 2**32, {"qid": 1}), "index (u32 at offset 16)"),
        (Message(Op.ALLOC_BUF, 0, {"nbytes": 2**64}), "nbytes (u64 at offset 24)"),
        (Message(Op.ADMIN_CMD, 0, {"command": bytes(65)}), "command (64 bytes at offset 24) takes at most 64 bytes"),
        (Message(Op.STATUS, 0, {"depth": 1}), "request STATUS: there is no field depth"),
        (Message(Op.STATUS, 0, status=2**31), "status (i32 at offset 8)"),
    ],
)
def test_an_error_names_the_field(message: Message, words: str) -> None:
    """A value that does not fit is refused by name, offset and type."""
    with pytest.raises(WireError) as caught:
        message.encode_request()
    assert words in caught.value.message


@pytest.mark.parametrize("size", [0, 1, 103, 105])
def test_another_length_is_refused(size: int) -> None:
    """A message has 104 bytes."""
    with pytest.raises(WireError, match="104 bytes"):
        Message.decode_reply(bytes(size))


def test_descriptors_pass_through_a_socket() -> None:
    """They arrive as others that mean the same file, and belong to the receiver."""
    left, right = socket.socketpair()
    with left, right:
        read, write = os.pipe()
        left.sendmsg([b"x"], wire.rights([read, write]))
        wire.close_all([read, write])
        data, ancillary, _flags, _address = right.recvmsg(1, wire.ANCILLARY_SIZE)
        fds = wire.take_fds(ancillary)
        assert (data, len(fds)) == (b"x", 2)
        os.write(fds[1], b"through")
        assert os.read(fds[0], 10) == b"through"
        wire.close_all(fds)


def test_too_many_descriptors_are_refused() -> None:
    """Three at most."""
    with pytest.raises(WireError, match="at most 3"):
        wire.rights([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("raw", "text"), [(b"0000:01:00.0\0\0\0\0", "0000:01:00.0"), (b"1234567890abcdef", "1234567890abcdef")]
)
def test_a_bdf_is_text_up_to_the_first_nul(raw: bytes, text: str) -> None:
    """With or without one."""
    assert wire.decode_bdf(raw) == text


def test_a_bdf_that_is_no_text_is_refused() -> None:
    """It goes into results that people read."""
    with pytest.raises(WireError, match="bdf"):
        wire.decode_bdf(b"\x1b[31m" + bytes(11))
