# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of the control plane written from the table of the wire format alone, with the ways to misbehave.

As a program: ``wire_server.py PATH BDF... [--version 4] [--hang] [--full] [--clients N] [--ignore-term]``. It prints
``ready`` once it listens. It answers STATUS (operation 7) and INIT_CONNECTION (1, without descriptors), removes
whatever lies at PATH first and leaves its socket at the end, as the reference server's worst builds do.

With ``--orphan`` a child serves after this process ended, with ``--supervise`` beside it, with ``--respawn`` a child
takes the place when this process is ended; such children end with their standard input.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import struct
import sys
from typing import Any, Dict, List, Optional, Sequence, Set

SIZE = 104


class WireServer:
    """One server; ``run`` never returns."""

    def __init__(
        self, path: str, bdfs: Sequence[str], version: int = 4, hang: bool = False, full: bool = False, clients: int = 0
    ) -> None:
        self.bdfs, self.version, self.hang, self.full, self.clients = bdfs, version, hang, full, clients
        if os.path.lexists(path):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.pending: Dict[socket.socket, bytes] = {}
        self.given: Dict[socket.socket, Set[int]] = {}

    def run(self) -> None:
        while True:
            for key, _events in self.selector.select():
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is sys.stdin:
                    os._exit(0)
                else:
                    self._read(key.fileobj)

    def _accept(self) -> None:
        link, _address = self.listener.accept()
        if self.full:
            link.close()
            return
        self.pending[link], self.given[link] = b"", set()
        self.selector.register(link, selectors.EVENT_READ)

    def _read(self, link: Any) -> None:
        try:
            data = link.recv(SIZE - len(self.pending[link]))
        except ConnectionError:
            data = b""
        if not data:
            self.selector.unregister(link)
            del self.pending[link], self.given[link]
            link.close()
            return
        self.pending[link] += data
        if len(self.pending[link]) == SIZE and not self.hang:
            request, self.pending[link] = self.pending[link], b""
            link.sendall(self._reply(link, request))

    def _reply(self, link: socket.socket, request: bytes) -> bytes:
        op, version = struct.unpack_from("<II", request)
        (index,) = struct.unpack_from("<I", request, 16)
        reply = bytearray(SIZE)
        if version != self.version:
            struct.pack_into("<IIi", reply, 0, op, self.version, -71)
        elif op not in (1, 7):
            struct.pack_into("<IIi", reply, 0, op, self.version, -38)
        elif index >= len(self.bdfs):
            struct.pack_into("<IIi", reply, 0, op, self.version, -34)
        elif op == 1:
            self.given[link].add(index)
            struct.pack_into("<IIi", reply, 0, op, self.version, 0)
        else:
            self._status(reply, index)
        return bytes(reply)

    def _status(self, reply: bytearray, index: int) -> None:
        here = sum(index in given for given in self.given.values())
        others = len(self.pending) - 1 + self.clients
        # Queue totals are asked of the first controller only.
        totals = (8, 8) if index == 0 else (0, 0)
        struct.pack_into("<IIiIII", reply, 0, 7, self.version, 0, 0, index, 0)
        struct.pack_into("<6I16s", reply, 24, len(self.bdfs), others, here, 0, *totals, self.bdfs[index].encode())


def main(arguments: Optional[List[str]] = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("bdf", nargs="+")
    parser.add_argument("--version", type=int, default=4)
    parser.add_argument("--clients", type=int, default=0)
    for flag in ("--hang", "--full", "--ignore-term", "--orphan", "--supervise", "--respawn"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else lambda *_unused: sys.exit(0))
    made = (options.path, options.bdf, options.version, options.hang, options.full, options.clients)
    if options.respawn:
        ended, held = os.pipe()
        if not os.fork():
            os.close(held)
            os.read(ended, 1)
            serve_until_told(WireServer(*made))
    server = WireServer(*made)
    print("ready", flush=True)
    if options.orphan or options.supervise:
        if not os.fork():
            serve_until_told(server)
        if options.orphan:
            return
        signal.pause()
    server.run()


def serve_until_told(server: WireServer) -> None:
    """As a child that nobody waits for: until the tests close its standard input."""
    server.selector.register(sys.stdin, selectors.EVENT_READ)
    server.run()


if __name__ == "__main__":
    main()
