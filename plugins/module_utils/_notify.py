# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the service manager how a service is doing (sd_notify)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> str:
    """Send assignments such as ``READY=1``, one a line; returns why that failed, empty where it did not.

    Without a service manager nothing is done.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
            sock.sendall(state.encode())
        except OSError as error:
            return f"the service manager cannot be told {state.split('=', 1)[0]}: {error.strerror}"
    return ""
