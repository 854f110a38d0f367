# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the service manager how a service is doing (sd_notify)."""

from __future__ import annotations

import array
import os
import select
import socket
import time

_BARRIER_TIME = 5.0
"""Seconds to wait for the manager to have read what was sent."""


def notify(state: str, wait: bool = False) -> str:
    """Send assignments such as ``READY=1``, one a line; returns why that failed, empty where it did not.

    Without a service manager nothing is done. With ``wait`` the manager has read them when this returns: what a
    process sends just before it ends may otherwise be lost, since nobody can tell any more whose it was.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            sock.sendall(state.encode())
            if wait:
                _wait_until_read(sock)
        except OSError as error:
            return f"the service manager cannot be told {state.split('=', 1)[0]}: {error.strerror}"
    return ""


def reloading() -> str:
    """Say, as notify does, that the settings are being read again; READY=1 says when that is over."""
    return notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def _wait_until_read(sock: socket.socket) -> None:
    """The manager closes the descriptor that comes with BARRIER=1 once it has read all that was sent before."""
    ours, theirs = os.pipe()
    try:
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))]
            sock.sendmsg([b"BARRIER=1"], rights)
        finally:
            os.close(theirs)
        poll = select.poll()
        poll.register(ours, 0)
        poll.poll(_BARRIER_TIME * 1000)
    finally:
        os.close(ours)
