# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded conversations, replayed against our server with emulated controllers: those of others with the reference
server, and a session of our own client with our server over real controllers.

Compared are op, version, status, nfds, the echoed index and the counts; offsets, sizes, queue ids, the BDF and the
queue head of a completion are checked for validity only.
"""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

import pytest

SAMPLES = Path(__file__).parent / "samples"
SAMPLE: Dict[str, Any] = json.loads((SAMPLES / "reference-server-vfio.json").read_text())
BDF = re.compile(rb"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\0*")


class Replay:
    """Sends recorded requests and compares; what is ours (a queue id, an offset) takes the place of what was theirs."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.offsets: Dict[int, int] = {}
        self.qids: Dict[int, int] = {}
        self.seen: Set[int] = set()

    def entry(self, entry: Dict[str, Any]) -> None:
        """One request and its reply."""
        self.raw.sock.sendall(self.translate(bytearray.fromhex(entry["request"])))
        data, fds = self.raw.reply()
        for fd in fds:
            os.close(fd)
        self.compare(bytes.fromhex(entry["reply"]), data, entry["what"])
        assert len(fds) == entry["fds"], entry["what"]

    def translate(self, request: bytearray) -> bytes:
        """Put our numbers in the places of theirs."""
        op = struct.unpack_from("<I", request)[0]
        if op == 3:
            qid = struct.unpack_from("<I", request, 24)[0]
            struct.pack_into("<I", request, 24, self.qids.get(qid, qid))
        if op == 4:
            prp1 = struct.unpack_from("<Q", request, 48)[0]
            struct.pack_into("<Q", request, 48, self.offsets.get(prp1, prp1))
        if op == 6:
            offset = struct.unpack_from("<Q", request, 32)[0]
            struct.pack_into("<Q", request, 32, self.offsets.get(offset, offset))
        return bytes(request)

    def compare(self, theirs: bytes, ours: bytes, what: str) -> None:
        """By the rules above."""
        assert len(ours) == 104, what
        # op, version, status, nfds, index, reserved
        assert struct.unpack_from("<IIiIII", ours) == struct.unpack_from("<IIiIII", theirs), what
        op, _unused, status = struct.unpack_from("<IIi", ours)
        self.seen.add(op)
        if status:
            assert not any(ours[24:]), what
            return
        checks: Dict[int, Callable[[bytes, bytes], None]] = {
            1: self.init,
            2: self.pair,
            4: self.admin,
            5: self.buffer,
            7: self.status,
        }
        if op in checks:
            checks[op](theirs, ours)

    def init(self, _theirs: bytes, ours: bytes) -> None:
        """Offsets and sizes must be possible."""
        record, heap, bar0 = struct.unpack_from("<QQQ", ours, 24)
        assert 0 < record <= heap - 56
        assert record % 8 == 0
        assert bar0 >= 0x1000 + 8 * 65

    def pair(self, theirs: bytes, ours: bytes) -> None:
        """The depth is compared, the rest must be aligned and apart."""
        sq, cq, prp, qid, depth = struct.unpack_from("<QQQIH", ours, 24)
        assert all(offset and offset % 4096 == 0 for offset in (sq, cq, prp))
        assert depth == struct.unpack_from("<H", theirs, 52)[0]
        assert qid >= 2
        self.qids[struct.unpack_from("<I", theirs, 48)[0]] = qid

    def admin(self, theirs: bytes, ours: bytes) -> None:
        """The completion except for its queue head."""
        assert ours[88:96] == theirs[88:96]
        assert ours[98:104] == theirs[98:104]

    def buffer(self, theirs: bytes, ours: bytes) -> None:
        """An offset that is aligned."""
        offset = struct.unpack_from("<Q", ours, 32)[0]
        assert offset
        assert offset % 4096 == 0
        self.offsets[struct.unpack_from("<Q", theirs, 32)[0]] = offset

    def status(self, theirs: bytes, ours: bytes) -> None:
        """All counts."""
        assert ours[24:48] == theirs[24:48]
        assert BDF.fullmatch(ours[48:64])


def test_every_conversation(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """In the order of the recording, with the connections that were open then."""
    server = start("emu:a", "emu:b?queues=64")
    seen: Set[int] = set()
    with raw(server) as first:
        for entry in SAMPLE["stateless"]["log"]:
            replay = Replay(first)
            replay.entry(entry)
            seen |= replay.seen
    with raw(server) as second:
        log: List[Dict[str, Any]] = SAMPLE["version"]["log"]
        Replay(second).entry(log[0])
        assert second.reply() == (b"", [])
    with raw(server) as third:
        replay = Replay(third)
        for entry in SAMPLE["queues_and_buffers"]["log"]:
            replay.entry(entry)
        seen |= replay.seen
    with raw(server) as fourth:
        Replay(fourth).entry(SAMPLE["released"]["log"][0])
        with raw(server) as fifth:
            fifth.sock.sendall(bytes.fromhex(SAMPLE["pipelined"]["request"]))
            for expected in SAMPLE["pipelined"]["replies"]:
                Replay(fifth).compare(bytes.fromhex(expected), fifth.reply()[0], "pipelined")
    assert seen >= set(range(12))


def test_a_session_over_real_controllers(start: Callable[..., Any], raw: Callable[..., Any]) -> None:
    """The emulated server gives the same answers, but for offsets, sizes and addresses."""
    session: List[Dict[str, Any]] = json.loads((SAMPLES / "native-server-vfio.json").read_text())["log"]
    with raw(start("emu:a", "emu:b")) as client:
        replay = Replay(client)
        for number, entry in enumerate(session):
            replay.entry({"what": f"request {number}", **entry})
    assert replay.seen == {1, 2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("size", [1, 13, 103])
def test_in_pieces(start: Callable[..., Any], raw: Callable[..., Any], size: int) -> None:
    """Requests that come in pieces of any size are put together."""
    server = start("emu:a")
    with raw(server) as client:
        request = client.request(7)
        for at in range(0, 104, size):
            client.sock.sendall(request[at : at + size])
        data, _unused = client.reply()
        assert struct.unpack_from("<IIi", data) == (7, 4, 0)
