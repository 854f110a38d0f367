# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An example of a client: become a client of a served controller, write a pattern, read it back, say what was seen.

Run it as ``python3 xnvme-cplaned-VERSION.pyz example --homi-id 7 --blocks 64``; where that file lies on a node is what
the module xnvme_cplane returns as ``program``. It writes to the first blocks of namespace 1 of the
controller (``--start`` says from where on): what is there is lost. Every step is one that any client takes:

1. connect to the socket of the id, and ask for the controllers (STATUS);
2. INIT_CONNECTION: map the heap and BAR0, read the runtime record and the address descriptor;
3. ALLOC_BUF: a buffer in the heap, which the controller can reach;
4. ADMIN_CMD: Identify Namespace into it, for the size of a block;
5. ALLOC_IOQPAIR: a queue pair, used through doorbells without the server;
6. Write and Read, and compare.

The server releases all of it when the connection ends.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from typing import Dict, Optional

from . import nvme
from .client import Connection, connect
from .errors import ConfigError, CplaneError
from .qpair import Attached, Queue

NSID = 1


def find_controller(connection: Connection, uri: Optional[str]) -> int:
    """Return the index of the controller ``uri``, or of the first one; raises ConfigError when it is not there."""
    if uri is None:
        return 0
    first, _number = connection.try_status(0)
    for index in range(first.ndevs if first else 0):
        found, _number = connection.try_status(index)
        if found is not None and found.bdf == uri:
            return index
    raise ConfigError(f"{connection.path} does not serve {uri}")


def block_size(attached: Attached, buffer: int) -> int:
    """Return the size of a logical block in bytes (NVM Express Base Specification 1.4, figure 245)."""
    address = attached.descriptor.address(buffer)
    check(attached.admin(nvme.command(nvme.IDENTIFY, NSID, address)), "Identify")
    form = attached.heap[buffer + 26] & 0xF
    return 1 << attached.heap[buffer + 128 + 4 * form + 2]


def check(completion: nvme.Completion, what: str) -> None:
    """Raise when a command failed."""
    if completion.status:
        raise CplaneError(f"{what} failed: {completion.code}")


def run(connection: Connection, uri: Optional[str], start: int, blocks: int, timeout: float) -> Dict[str, object]:
    """Write ``blocks`` blocks from ``start`` on and read them back; returns what was seen."""
    with Attached(connection, find_controller(connection, uri)) as attached:
        probe = connection.alloc_buf(nvme.PAGE)
        size = block_size(attached, probe)
        nbytes = blocks * size
        buffer = connection.alloc_buf(nbytes)
        queue = attached.queue_pair(16)
        pattern = hashlib.sha256(os.urandom(16)).digest() * (nbytes // 32)
        attached.heap[buffer : buffer + nbytes] = pattern
        begin = time.monotonic()
        _do(queue, nvme.WRITE, start, blocks, buffer, nbytes, timeout)
        attached.heap[buffer : buffer + nbytes] = bytes(nbytes)
        _do(queue, nvme.READ, start, blocks, buffer, nbytes, timeout)
        seconds = time.monotonic() - begin
        same = attached.heap[buffer : buffer + nbytes] == pattern
        queue.close()
        connection.free_buf(buffer)
        connection.free_buf(probe)
        return {
            "uri": attached.record.bdf,
            "qid": queue.pair.qid,
            "block_size": size,
            "bytes": nbytes,
            "microseconds": round(seconds * 1e6),
            "sha256": hashlib.sha256(pattern).hexdigest(),
            "verified": same,
        }


def _do(queue: Queue, opcode: int, lba: int, blocks: int, buffer: int, nbytes: int, timeout: float) -> None:
    queue.transfer(opcode, NSID, lba, blocks, buffer, nbytes)
    check(queue.wait(timeout), "Write" if opcode == nvme.WRITE else "Read")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line, all but the options that tell which server."""
    parser.add_argument("--uri", help="the controller (default: the first one)")
    parser.add_argument("--start", type=int, default=0, metavar="LBA", help="the first block (default 0)")
    parser.add_argument("--blocks", type=int, default=8, help="how many blocks, 1 to 256 (default 8)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="for each step (default 10)")


def main(options: argparse.Namespace) -> int:
    """Run the program; returns 0 when what was read is what was written."""
    if not 1 <= options.blocks <= 256 or options.start < 0:
        raise ConfigError("--blocks must be 1 to 256, --start not negative")
    with connect(options.homi_id, options.directory, options.timeout) as connection:
        seen = run(connection, options.uri, options.start, options.blocks, options.timeout)
    for name, value in seen.items():
        sys.stdout.write(f"{name}: {str(value).lower() if isinstance(value, bool) else value}\n")
    return 0 if seen["verified"] else 1
