# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server demands of a controller, whatever it is made of."""

from __future__ import annotations

import abc
import errno
import platform
import signal
import threading
from typing import Callable, Optional, Sequence

from . import nvme
from .errors import ConfigError


def check_machine(label: str) -> None:
    """Raise ConfigError where Python, which has no barriers, cannot keep the order of stores."""
    if platform.machine() != "x86_64":
        raise ConfigError(
            f"{label}: serving controllers needs x86-64, where stores keep their order; this is {platform.machine()}"
        )


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that takes no signal: those are the main thread's, which another one would not wake."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


class Backend(abc.ABC):
    """One controller that a server has opened.

    The methods that reach the controller are called by its worker thread alone, one after the other, and raise
    OSError: ETIMEDOUT when there was no answer in time (what was asked may still happen), EIO when the controller is
    gone, anything else when it refused. The attributes do not change and may be read at any time.
    """

    label: str
    """How the controller was configured, for messages."""
    uri: str
    """The BDF that clients know the controller by."""
    cap: int
    """The CAP register."""
    cc: int
    """The CC register."""
    timeout_ms: int
    """What the runtime record says of timeouts, in milliseconds."""
    nsq_total: int
    """I/O submission queues that the controller allocated; zero when it does not answer any more."""
    ncq_total: int
    """I/O completion queues likewise."""
    max_depth: int
    """The largest number of entries of a queue."""
    qids: Sequence[int]
    """The queue ids that clients may get, in the order in which they are given out."""
    bar0_fd: int
    """What clients map at offset 0 to reach BAR0; it stays the backend's."""
    bar0_nbytes: int
    alive_fd: int
    """Becomes readable when the controller died, -1 when that cannot be noticed."""
    check_every: Optional[float] = None
    """How often ``check`` is to be called while there is nothing else to do, in seconds."""

    @abc.abstractmethod
    def admin(self, command: bytes) -> bytes:
        """Execute a client's 64-byte admin command; returns the 16-byte completion, also of a failed one."""

    @abc.abstractmethod
    def own(self, command: bytes) -> bytes:
        """Execute an admin command of the server's own; returns the 16-byte completion, also of a failed one."""

    def create_queue_pair(self, qid: int, depth: int, sq_offset: int, cq_offset: int) -> None:
        """Create the completion queue, then the submission queue ``qid`` on it, at these offsets of the heap."""
        size = depth - 1 << 16 | qid
        self.demand(nvme.command(nvme.CREATE_CQ, prp1=cq_offset, cdw10=size, cdw11=1))
        try:
            self.demand(nvme.command(nvme.CREATE_SQ, prp1=sq_offset, cdw10=size, cdw11=qid << 16 | 1))
        except OSError as error:
            if error.errno not in (errno.ETIMEDOUT, errno.EIO):
                self.demand(nvme.command(nvme.DELETE_CQ, cdw10=qid))
            raise

    def delete_queue_pair(self, qid: int) -> None:
        """Delete both; afterwards the controller no longer touches their memory. What is not there is no error."""
        for opcode in (nvme.DELETE_SQ, nvme.DELETE_CQ):
            self.demand(nvme.command(opcode, cdw10=qid), allowed=nvme.INVALID_QUEUE_ID)

    def demand(self, command: bytes, allowed: int = nvme.SUCCESS) -> nvme.Completion:
        """Execute a command of the server's own; raises OSError (EINVAL) when it does not succeed."""
        completion = nvme.read_completion(self.own(command))
        # Bit 14 is advice, and not given by every controller.
        if completion.status & ~nvme.DNR not in (nvme.SUCCESS, allowed & ~nvme.DNR):
            raise OSError(errno.EINVAL, f"{self.label}: command {command[0]:#04x}: {completion.code}")
        return completion

    def check(self) -> None:  # noqa: B027 (most have nothing to look at)
        """See to it that ``alive_fd`` tells when the controller has died; called by its worker thread."""

    @abc.abstractmethod
    def restore_registers(self) -> None:
        """Undo what clients wrote over registers that others read, where these are only memory; called by the loop."""

    @abc.abstractmethod
    def mark_dead(self) -> str:
        """Take note that the controller died, as ``alive_fd`` said; returns how, in words."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Make a call that waits in the worker thread return at once; the controller is of no use afterwards."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let the controller go, after the worker has ended."""
