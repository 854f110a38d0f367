# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong with the SmartIO tools, as typed errors that carry what was run and what it said.

Exit statuses are errno values; EIO, EBUSY, ENODEV and ENOMEM have the meaning that smartio_tool's manual page gives
them (section "Exit code"), all others that of errno(3).
"""

from __future__ import annotations

import errno
from typing import List, Optional, Sequence

from .._plan import SharingError

# The thing was so already: nobody knows what the tool answers then, these are the codes that can only mean it.
DONE_ALREADY = frozenset((errno.EEXIST, errno.EALREADY, errno.EISCONN))

# Who answers with one of these may do better later: busy, a node out of reach, a device that is not in the pool yet.
TRY_LATER = frozenset((errno.EBUSY, errno.EIO, errno.ENODEV, errno.EAGAIN))

_MEANINGS = {
    errno.EIO: "cannot reach the other node",
    errno.EBUSY: "the device is busy or not available",
    errno.ENODEV: "no such device",
    errno.ENOMEM: "no buffer, BAR or DMA window could be had",
    errno.EPERM: "not permitted",
    errno.EACCES: "permission denied",
    errno.EINVAL: "invalid argument",
    errno.ECANCELED: "cancelled",
}

_HINTS = {
    errno.EIO: "check that the other node is up, that the link between the two is up (dis_diag), then run again",
    errno.EBUSY: "see who holds the device and that its lender made it available, then run again",
    errno.ENODEV: "run 'smartio_tool list' to see what is in the pool",
    errno.ENOMEM: "ask for a smaller DMA window, or make room for BARs in the adapter's configuration",
    errno.EPERM: "run as root (become: true)",
    errno.EACCES: "run as root (become: true)",
}


class ToolError(SharingError):
    """A command that ran and failed, or could not be run to its end.

    ``errno`` is the exit status, or None where the command did not end by itself with one.
    """

    def __init__(
        self, message: str, command: Sequence[str], status: Optional[int], output: str, hint: str = "", **more: object
    ) -> None:
        super().__init__(message, command=list(command), rc=status, output=output, hint=hint, **more)
        self.errno = status if status is not None and status > 0 else None


class ToolMissing(SharingError):
    """The tool is not installed where it was looked for."""


class ToolUnusable(SharingError):
    """The tool is there and cannot be run."""


class ToolUnreadable(SharingError):
    """The tool succeeded, but what it printed cannot be understood."""


class LedgerError(SharingError):
    """The state folder cannot be used, or is locked by somebody else."""


def errno_name(status: int) -> str:
    """``EIO`` for 5; ``exit status 77`` for what errno(3) does not know."""
    return errno.errorcode.get(status, f"exit status {status}")


def status_words(status: int) -> str:
    """``EIO (5), cannot reach the other node``."""
    name = errno_name(status)
    meaning = _MEANINGS.get(status)
    numbered = name if name.startswith("exit") else f"{name} ({status})"
    return f"{numbered}, {meaning}" if meaning else numbered


def exited(
    command: Sequence[str], status: int, output: str, kernel_log: List[str], where: str, ends: str = ""
) -> ToolError:
    """The error for a command that ended with a non-zero exit status.

    ``ends`` says for EIO which node cannot reach which, where the command is about a node or a fabric device.
    """
    hint = _HINTS.get(status, "the command's output and the kernel log may hold the reason")
    words = f"{errno_name(status)} ({status}), {ends}" if ends else status_words(status)
    message = f"'{spell(command)}' failed{where}: {words}; {hint}"
    return ToolError(message, command, status, output, hint, errno_name=errno_name(status), kernel_log=kernel_log)


def spell(command: Sequence[str]) -> str:
    """A command line as a person types it: the program without its folder, everything printable."""
    words = [command[0].rsplit("/", 1)[-1], *command[1:]]
    return " ".join(word if word.isprintable() else ascii(word) for word in words)
