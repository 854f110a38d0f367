# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong between a client and a server of the control plane, as types."""

from __future__ import annotations

import errno
import os

from .._plan import SharingError


class CplaneError(SharingError):
    """A failure of the control plane; ``errno`` is the number that the C API would return, made positive."""

    errno = errno.EIO

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message, errno=self.errno, **details)


class NotServed(CplaneError):
    """Nobody serves this id, or no server holds this controller."""

    errno = errno.ENOENT


class AlreadyServed(CplaneError):
    """Somebody answers at the socket that a server was to take."""

    errno = errno.EADDRINUSE


class UnsafePath(CplaneError):
    """What lies at a path is not what belongs there, or is somebody else's; it was left as it is."""

    errno = errno.EPERM


class WireError(CplaneError):
    """Bytes that are not a message of the wire format, or values that do not fit in one; names the field."""

    errno = errno.EBADMSG


class VersionMismatch(CplaneError):
    """The other side speaks another version of the wire format."""

    errno = errno.EPROTO


class ServerTimeout(CplaneError):
    """No whole reply came before the deadline."""

    errno = errno.ETIMEDOUT


class ServerClosed(CplaneError):
    """The server ended the connection: it is full, it refuses this user, it stops, or it died."""

    errno = errno.ECONNRESET


class RequestFailed(CplaneError):
    """The server answered with a status other than zero; any such status is a failure, whatever its sign."""

    def __init__(self, message: str, status: int) -> None:
        self.errno = abs(status)
        super().__init__(message, status=status)
        self.status = status


class ConfigError(CplaneError):
    """A configuration that cannot be served; names the part that is wrong."""

    errno = errno.EINVAL


class DeviceBusy(CplaneError):
    """A device that another process has open; names who."""

    errno = errno.EBUSY


class NotYet(CplaneError):
    """Something that an earlier task may bring (a borrowed device, a program, a group) is not there."""

    errno = errno.ENOENT


def errno_name(number: int) -> str:
    """Return ``EINVAL (Invalid argument)`` for 22 or -22, ``errno 999 (unknown)`` for what is none."""
    number = abs(number)
    name = errno.errorcode.get(number)
    # strerror takes no number that is too large for an int, such as the smallest status made positive.
    return f"{name} ({os.strerror(number)})" if name else f"errno {number} (unknown)"
