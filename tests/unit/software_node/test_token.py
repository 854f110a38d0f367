# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes with a token: who does not know it is not answered, and it never travels."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any, Callable, List, Optional

import pytest
from software_node.config import Peer
from software_node.errors import NodeError, NodeGone
from software_node.peer import Caller, PeerClient, PeerServer

TOKEN = "a-token-of-this-cluster"  # noqa: S105 - not a secret, a test's


@pytest.fixture
def server() -> Any:
    listener = socket.create_server(("127.0.0.1", 0))
    handled: List[Any] = []

    def handle(caller: Caller, operation: str, args: Any) -> Any:
        handled.append((caller, operation, args))
        return {"echo": args}, ""

    result = PeerServer(listener, TOKEN, "late", handle, handled.append, lambda _node: None)
    thread = threading.Thread(target=result.serve)
    thread.start()
    yield listener.getsockname()[1], handled
    result.stop()
    thread.join(5)
    assert not thread.is_alive()


def client(port: int, token: str, met: Optional[List[Any]] = None) -> PeerClient:
    def meet(*who: Any) -> None:
        if met is not None:
            met.append(who)

    return PeerClient(Caller([4], "first"), token, [Peer(8, "127.0.0.1", port)], lambda _node: None, meet)


def test_who_knows_the_token_is_answered(server: Any) -> None:
    port, handled = server
    met: List[Any] = []
    assert client(port, TOKEN, met).call(8, "list", {"a": 1}) == {"echo": {"a": 1}}
    assert handled == [(Caller([4], "first"), "list", {"a": 1})]
    assert met == [([8], "late")]


@pytest.mark.parametrize("token", ["", "another"])
def test_who_does_not_is_not(server: Any, token: str) -> None:
    port, handled = server
    met: List[Any] = []
    with pytest.raises(NodeError) as caught:
        client(port, token, met).call(8, "list", {})
    assert caught.value.number == 5
    assert handled == met == []


def test_the_token_does_not_travel_and_a_recording_cannot_be_played_again(server: Any) -> None:
    port, handled = server
    recorded: List[bytes] = []
    relay = socket.create_server(("127.0.0.1", 0))

    def forward() -> None:
        inner, _address = relay.accept()
        with inner, socket.create_connection(("127.0.0.1", port)) as outer:
            inner.sendall(outer.recv(4096))
            recorded.append(inner.recv(65536))
            outer.sendall(recorded[0])
            recorded.append(outer.recv(65536))
            inner.sendall(recorded[1])

    thread = threading.Thread(target=forward)
    thread.start()
    client(relay.getsockname()[1], TOKEN).call(8, "list", {})
    thread.join(5)
    relay.close()
    assert TOKEN.encode() not in b"".join(recorded)
    assert json.loads(recorded[0].splitlines()[1])["operation"] == "list"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as again:
        again.recv(4096)
        again.sendall(recorded[0])
        assert again.recv(4096) == b""
    assert len(handled) == 1


def test_a_peer_that_says_nothing_is_an_error_in_two_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NodeError) as caught:
        client(silent.getsockname()[1], TOKEN).call(8, "list", {})
    assert caught.value.number == 5
    assert not isinstance(caught.value, NodeGone)


def test_a_peer_that_does_not_run_is_told_from_one_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NodeGone) as caught:
        client(port, TOKEN).call(8, "list", {})
    assert caught.value.number == 5


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096 + b"\n\n\n", b"a\n{}\nb\n"])
def test_strangers_are_sent_away(server: Any, noise: bytes) -> None:
    port, handled = server
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.recv(4096)
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(4096) == b""
    assert handled == []


def test_nodes_with_a_token_work_together(new_cluster: Callable[..., Any]) -> None:
    cluster = new_cluster([{"name": "one", "node_id": 8}, {"name": "two", "node_id": 4}], token=TOKEN)
    cluster["one"].ok("connect", "4")
    assert (cluster["one"].folder / "node.json").stat().st_mode & 0o077 == 0
    assert TOKEN not in (cluster["one"].folder / "log").read_text()
