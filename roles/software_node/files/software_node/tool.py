# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools' side: hands a command line to the daemon, prints what comes back, exits with its status.

Started anew at every call, so it imports next to nothing. The wrapper scripts name the node's folder.

What goes over the socket, both ways: frames of one letter, four bytes of length (big endian) and the payload.

=======  =======================================================================================
``A``    to the daemon: the program and its arguments, separated by NUL bytes
``O E``  text for standard output, for standard error
``Q``    a question: it is printed, and a line of standard input goes back as ``L`` (empty: none)
``H``    hang until the daemon lets go; payload ``child``: with a child that holds the output
``X``    the exit status, as text; the end
=======  =======================================================================================
"""

from __future__ import annotations

import os
from _socket import AF_UNIX, SOCK_STREAM, socket
from typing import List, Tuple

SOCKET_NAME = "node.sock"


def _send(link: socket, letter: bytes, payload: bytes) -> None:
    data = letter + len(payload).to_bytes(4, "big") + payload
    try:
        while data:
            data = data[link.send(data) :]
    except BrokenPipeError:  # not that of standard output
        raise ConnectionResetError(104, "the node's daemon ended") from None


def _exactly(link: socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        block = link.recv(min(count - len(data), 1 << 20))
        if not block:
            raise OSError(5, "the node's daemon ended")
        data += block
    return data


def _receive(link: socket) -> Tuple[bytes, bytes]:
    head = _exactly(link, 5)
    return head[:1], _exactly(link, int.from_bytes(head[1:], "big"))


def _print(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _line() -> bytes:
    """One line of standard input; empty at its end (or when it is closed)."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            letter = os.read(0, 1)
            if not letter:
                return b""
            line += letter
    except OSError:
        return b""
    return line


def _hang(link: socket, payload: bytes) -> None:
    """Ignores SIGTERM and waits for the daemon to close the connection, so that nothing outlives the node."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if payload == b"child" and os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while link.recv(4096):
        pass
    os._exit(5)


def connect(folder: str) -> socket:
    """A connection to the daemon of a node; OSError when there is none.

    By way of the open folder, since the path of a socket must not have more than 107 bytes.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = socket(AF_UNIX, SOCK_STREAM)
        link.connect(f"/proc/self/fd/{place}/{SOCKET_NAME}")
    finally:
        os.close(place)
    return link


def talk(link: socket, program: str, args: List[str]) -> int:
    """One command from its arguments to its exit status."""
    _send(link, b"A", b"\0".join(os.fsencode(word) for word in [program] + args))
    while True:
        letter, payload = _receive(link)
        if letter in (b"O", b"E"):
            _print(1 if letter == b"O" else 2, payload)
        elif letter == b"Q":
            _print(1, payload)
            _send(link, b"L", _line())
        elif letter == b"H":
            _hang(link, payload)
        else:
            return int(payload)


def _not_loaded(folder: str, program: str, error: OSError) -> int:
    _print(2, f"{program}: the SmartIO driver is not loaded (no node answers in {folder}: {error})\n".encode())
    return 6  # ENXIO


def main(folder: str, program: str, args: List[str]) -> int:
    """What the wrapper scripts call."""
    try:
        link = connect(folder)
    except OSError as error:
        return _not_loaded(folder, program, error)
    try:
        return talk(link, program, args)
    except ConnectionResetError as error:  # a daemon that is ending has not read the command
        return _not_loaded(folder, program, error)
    except BrokenPipeError:
        return 32
    except OSError as error:
        _print(2, f"{program}: {error}\n".encode())
        return error.errno or 5
    except KeyboardInterrupt:
        return 130
