# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run one command of a tool that is not trusted to end, to be brief, or to leave the terminal alone."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from .errors import ToolError, ToolUnusable, spell

# More than any pool prints; the rest of a longer output is read and thrown away.
KEPT_BYTES = 1 << 20
# How long a child that was killed may take to be gone (one in an uninterruptible system call does not go), and how
# long its output is read after it ended, since a grandchild may hold the pipes open.
_GRACE = 2.0
# What the last line ends with when somebody is to answer: a question mark, a choice of yes and no, a known prompt.
_QUESTION = re.compile(
    r"(?:\?|\by(?:es)?\s*/\s*no?\b|\b(?:password|passphrase|confirm|continue|proceed)\b[^\n:]*:)[\s\])>:?]*\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finished:
    """A command that ended by itself: exit status (negative: the signal that ended it) and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, errors first, as much as a person wants to see."""
        return _said(self.stdout, self.stderr)

    @property
    def asked(self) -> bool:
        """Whether the last thing on one of the streams was a question."""
        return _asks(self.stdout, self.stderr)


def _said(stdout: str, stderr: str) -> str:
    return "\n".join(part.strip()[-2000:] for part in (stderr, stdout) if part.strip())


def _asks(*streams: str) -> bool:
    return any(_QUESTION.search(stream[-200:]) for stream in streams)


class _Output:
    """What a child prints, kept up to KEPT_BYTES a stream."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._selector = selectors.DefaultSelector()
        self._kept: Dict[int, bytearray] = {}
        self._files: List[int] = []
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream.fileno(), selectors.EVENT_READ)
                self._kept[stream.fileno()] = bytearray()
                self._files.append(stream.fileno())

    @property
    def open(self) -> bool:
        return bool(self._selector.get_map())

    def read(self, seconds: float) -> None:
        """Read what is there, waiting up to ``seconds`` for it."""
        for key, _events in self._selector.select(seconds):
            data = _read(key.fd)
            if data == b"":
                self._selector.unregister(key.fd)
            elif data is not None:
                kept = self._kept[key.fd]
                kept += data[: KEPT_BYTES - len(kept)]

    def texts(self) -> List[str]:
        """Standard output and standard error; bytes that are not UTF-8 become U+FFFD."""
        return [self._kept[fd].decode("utf-8", "replace") for fd in self._files]

    def close(self) -> None:
        self._selector.close()


def _read(fd: int) -> Optional[bytes]:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def run(command: Sequence[str], limit: float) -> Finished:
    """Run ``command`` without terminal and standard input, in the C locale, for at most ``limit`` seconds.

    Raises ToolUnusable where it cannot be started, ToolError where it did not end in time; then it has been killed
    together with its process group, and is not waited for any longer if even that does not end it.
    """
    child = _start(command)
    output = _Output(child)
    try:
        ended = _wait(child, output, limit)
        if not ended:
            _kill(child)
        _drain(output)
        stdout, stderr = output.texts()
    finally:
        _end(child)
        output.close()
    if not ended:
        raise _too_slow(command, limit, stdout, stderr)
    return Finished(child.returncode, stdout, stderr)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        # A session of its own takes the terminal away: a tool that asks can only read the end of file.
        # AnsibleModule.run_command has no limit of time, and this code also runs without Ansible.
        return subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
            start_new_session=True,
        )
    except ValueError as error:
        raise ToolUnusable(
            f"'{spell(command)}' cannot be run: an argument holds what no command line can; correct it",
            command=[ascii(word) for word in command],
        ) from error
    except OSError as error:
        raise ToolUnusable(
            f"'{command[0]}' cannot be run: {(error.strerror or str(error)).lower()}; correct it, or give its path",
            command=list(command),
        ) from error


def _wait(child: subprocess.Popen[bytes], output: _Output, limit: float) -> bool:
    end = time.monotonic() + limit
    pause = 0.001
    while child.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return False
        if output.open:
            # Both streams at their end while the child lives is rare; an open pipe wakes us when the child is gone.
            output.read(min(left, 0.05))
        else:
            time.sleep(min(left, pause))
            pause = min(pause * 2, 0.05)
    return True


def _drain(output: _Output) -> None:
    """Read what a child left in the pipes; a grandchild that keeps them open is not waited for."""
    end = time.monotonic() + _GRACE
    while output.open and time.monotonic() < end:
        before = time.monotonic()
        output.read(0.1)
        if output.open and time.monotonic() - before >= 0.1:
            return


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its process group; one that cannot be killed is not waited for any longer."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    end = time.monotonic() + _GRACE
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        _kill(child)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _too_slow(command: Sequence[str], limit: float, stdout: str, stderr: str) -> ToolError:
    said = _said(stdout, stderr)
    hint = (
        "it may have asked a question that nobody can answer here"
        if _asks(stdout, stderr)
        else "see whether it hangs when run by hand"
    )
    return ToolError(
        f"'{spell(command)}' did not end within {limit:g} seconds and was killed; {hint}", command, None, said, hint
    )
