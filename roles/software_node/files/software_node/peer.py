# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP between nodes: one request a connection, answered within two seconds.

The node that is called sends a nonce; the caller answers with a nonce of its own, its request (JSON) and an HMAC of
both with the cluster's token; the reply carries an HMAC too. So the token never travels, and neither side believes
somebody who does not know it. A node without a token (on loopback only) uses an empty one.

Both sides name their incarnation, which is new at every start: a node that meets a later one of another node knows that
the earlier one is gone, with all that it lent and borrowed.

A borrow keeps its connection open, which carries the lease. Its end means that the two cannot reach each other, not
more: the lease goes on, and the borrower connects again. TCP's keepalive finds peers that went away without a word.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .config import Peer
from .errors import NodeError, NodeGone

TIMEOUT = 2.0
_LINE_LIMIT = 4 << 20
_CONNECTIONS = 256
_DROPPED = 10.0  # seconds that a dropped connection stays silent at the most

Reply = Dict[str, Any]
# Called with a node's ids and its incarnation.
Met = Callable[[Sequence[int], str], None]


@dataclass(frozen=True)
class Caller:
    """Who asks: all its node ids, and its incarnation."""

    nodes: List[int]
    incarnation: str


# Called with (caller, operation, arguments); the second value is the lease that the connection now carries.
Handler = Callable[[Caller, str, Dict[str, Any]], Tuple[Reply, str]]


def _mac(token: str, *parts: bytes) -> str:
    return hmac.new(token.encode(), b"\n".join(parts), "sha256").hexdigest()


def _keep_alive(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3)):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def cut_link(link: socket.socket) -> None:
    """Ends a connection under whoever reads from it; that one closes it."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def close_link(link: socket.socket) -> None:
    """Ends and closes a connection, also under a thread that reads from it."""
    cut_link(link)
    link.close()


class _Lines:
    """Lines over a connection, all of them within one deadline. OSError, or ValueError for what is no protocol."""

    def __init__(self, link: socket.socket, deadline: float) -> None:
        self._link = link
        self._deadline = deadline
        self._data = b""

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("no answer in time")
        return left

    def send(self, *lines: bytes) -> None:
        self._link.settimeout(self._left())
        self._link.sendall(b"".join(line + b"\n" for line in lines))

    def receive(self) -> bytes:
        while b"\n" not in self._data:
            self._link.settimeout(self._left())
            block = self._link.recv(65536)
            if not block:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
            self._data += block
            if len(self._data) > _LINE_LIMIT:
                raise ValueError("a line without end")
        line, _newline, self._data = self._data.partition(b"\n")
        return line


class PeerClient:
    """Asks other nodes."""

    def __init__(
        self, own: Caller, token: str, peers: Sequence[Peer], link_down: Callable[[int], Optional[str]], met: Met
    ) -> None:
        """``own`` is what other nodes are told; ``met`` is called with what they tell, whatever they answer."""
        self._own = own
        self._met = met
        self._token = token
        self._peers = {peer.node_id: peer for peer in peers}
        self._link_down = link_down

    def knows(self, node_id: int) -> bool:
        """Whether a node is in the table of peers."""
        return node_id in self._peers

    def ids_of(self, node_id: int) -> Set[int]:
        """All ids of the node that has this one: it has one for each adapter."""
        one = self._peers.get(node_id)
        return {peer.node_id for peer in self._peers.values() if one and (peer.host, peer.port) == (one.host, one.port)}

    def nodes(self) -> List[int]:
        """One id for each node in the table."""
        return sorted({min(self.ids_of(node_id)) for node_id in self._peers})

    def call(self, node_id: int, operation: str, args: Dict[str, Any]) -> Reply:
        """One request; NodeError EIO when the node does not answer (NodeGone when it does not run), or with the errno
        that it answered.
        """
        reply, link = self.open(node_id, operation, args)
        link.close()
        return reply

    def open(self, node_id: int, operation: str, args: Dict[str, Any]) -> Tuple[Reply, socket.socket]:
        """As ``call``, but hands over the open connection too."""
        peer = self._peers.get(node_id)
        if peer is None:
            raise NodeError(errno.EIO, f"node {node_id} is not in the table of peers")
        downs = [self._link_down(one) for one in self.ids_of(node_id)]
        if any(downs):
            time.sleep(TIMEOUT if "drop" in downs else 0)
            raise NodeError(errno.EIO, f"node {node_id}: the link is down")
        deadline = time.monotonic() + TIMEOUT
        try:
            link = socket.create_connection((peer.host, peer.port), timeout=TIMEOUT)
        except OSError as error:
            kind = NodeGone if isinstance(error, ConnectionRefusedError) else NodeError
            raise kind(errno.EIO, f"node {node_id} at {peer.host}:{peer.port}: {error}") from None
        try:
            reply = self._exchange(link, deadline, operation, args)
            self._met(sorted(self.ids_of(node_id)), str(reply["incarnation"]))
            if reply["errno"]:
                raise NodeError(int(reply["errno"]), str(reply["reason"]))
            return dict(reply["result"]), link
        except (OSError, ValueError, KeyError, TypeError) as error:
            link.close()
            raise NodeError(errno.EIO, f"node {node_id} at {peer.host}:{peer.port}: {error}") from None
        except NodeError:
            link.close()
            raise

    def _exchange(self, link: socket.socket, deadline: float, operation: str, args: Dict[str, Any]) -> Reply:
        _keep_alive(link)
        lines = _Lines(link, deadline)
        theirs, mine = lines.receive(), os.urandom(16).hex().encode()
        own = self._own
        request = {"from": own.nodes, "incarnation": own.incarnation, "operation": operation, "args": args}
        body = json.dumps(request).encode()
        lines.send(mine, body, _mac(self._token, b"request", theirs, mine, body).encode())
        answer, mac = lines.receive(), lines.receive()
        if not hmac.compare_digest(mac, _mac(self._token, b"reply", theirs, mine, answer).encode()):
            raise ValueError("it does not know this cluster's token")
        link.settimeout(None)
        return dict(json.loads(answer))


class PeerServer:
    """Answers other nodes, one thread a connection."""

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        incarnation: str,
        handler: Handler,
        ended: Callable[[str], None],
        link_down: Callable[[int], Optional[str]],
    ) -> None:
        """``ended(lease)`` is called when a connection that carried a lease is gone."""
        self._listener = listener
        self._token = token
        self._incarnation = incarnation
        self._handler = handler
        self._ended = ended
        self._link_down = link_down
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._lock = threading.Lock()
        self._links: Dict[socket.socket, Set[int]] = {}
        self._leases: Dict[socket.socket, str] = {}

    def serve(self) -> None:
        """Accepts until the listener is closed."""
        while True:
            try:
                link, _address = self._listener.accept()
            except OSError:
                return
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._serve_one, args=(link,), daemon=True).start()
            else:
                link.close()

    def stop(self) -> None:
        """Ends the listener and every connection."""
        close_link(self._listener)
        self.cut(None)

    def cut(self, node_id: Optional[int]) -> None:
        """Ends the connections from one node, or all."""
        with self._lock:
            links = [link for link, nodes in self._links.items() if node_id is None or node_id in nodes]
        for link in links:
            cut_link(link)

    def cut_lease(self, lease: str) -> None:
        """Ends the connections that carry a lease."""
        with self._lock:
            links = [link for link, carried in self._leases.items() if carried == lease]
        for link in links:
            cut_link(link)

    def _serve_one(self, link: socket.socket) -> None:
        lease = ""
        try:
            lease = self._request(link)
            while lease and link.recv(4096):
                pass
        except (OSError, ValueError, KeyError, TypeError):
            pass  # whoever called is gone, or was none of ours
        finally:
            if lease:
                self._ended(lease)
            with self._lock:
                self._links.pop(link, None)
                self._leases.pop(link, None)
            link.close()
            self._slots.release()

    def _request(self, link: socket.socket) -> str:
        """Reads and answers the request; the lease that the connection now carries, or an empty string."""
        _keep_alive(link)
        lines = _Lines(link, time.monotonic() + TIMEOUT)
        mine = os.urandom(16).hex().encode()
        lines.send(mine)
        theirs, body, mac = lines.receive(), lines.receive(), lines.receive()
        if not hmac.compare_digest(mac, _mac(self._token, b"request", mine, theirs, body).encode()):
            return ""
        request = json.loads(body)
        caller = Caller([int(node) for node in request["from"]], str(request["incarnation"]))
        with self._lock:
            self._links[link] = set(caller.nodes)
        if self._refused(link, caller.nodes):
            return ""
        answer, lease = self._answer(caller, str(request["operation"]), dict(request["args"]))
        if lease:
            with self._lock:
                self._leases[link] = lease
        try:
            # The handler may have waited for a lock: the answer has a deadline of its own.
            reply = _Lines(link, time.monotonic() + TIMEOUT)
            reply.send(answer, _mac(self._token, b"reply", mine, theirs, answer).encode())
            link.settimeout(None)
        except OSError:
            if lease:
                self._ended(lease)
            raise
        return lease

    def _refused(self, link: socket.socket, nodes: List[int]) -> bool:
        downs = [down for down in (self._link_down(node) for node in nodes) if down]
        if "drop" in downs:
            link.settimeout(_DROPPED)
            link.recv(1)
        return bool(downs)

    def _answer(self, caller: Caller, operation: str, args: Dict[str, Any]) -> Tuple[bytes, str]:
        lease = ""
        reply: Reply = {"incarnation": self._incarnation, "errno": 0}
        try:
            reply["result"], lease = self._handler(caller, operation, args)
        except NodeError as error:
            reply.update({"errno": error.number, "reason": error.reason})
        return json.dumps(reply).encode(), lease
