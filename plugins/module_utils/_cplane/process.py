# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers as detached processes: start one, find it again, stop it; ours and the reference tool.

What was started is remembered in a pid file with the start time of the process and the boot id, so that a number
which another process has got meanwhile is never taken for the server's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .client import DIRECTORY, ServerInfo, read_server
from .errors import AlreadyServed, ConfigError, CplaneError, ServerTimeout

_TAIL = 4096
"""How much of a server's output an error carries, in bytes."""
_POLL_FIRST, _POLL_MAX = 0.01, 0.2
_HELP_TIME = 10.0


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken: ``start_time`` is in clock ticks since the boot that ``boot_id`` names."""

    pid: int
    start_time: int
    boot_id: str
    command: Tuple[str, ...]


class DiedWhileStarting(CplaneError):
    """The server ended before it was ready; ``output`` is the end of what it wrote."""


def boot_id() -> str:
    """Return the id of this boot of the kernel."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _stat(pid: int) -> Optional[Tuple[str, int]]:
    """Return state and start time of a process (proc(5), fields 3 and 22), None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name may hold anything, so count from its closing parenthesis.
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[19])


def is_alive(process: Process) -> bool:
    """Whether exactly this process runs; one that ended and was not waited for does not."""
    found = _stat(process.pid)
    return (
        found is not None and found[0] not in "ZX" and found[1] == process.start_time and boot_id() == process.boot_id
    )


def inspect(pid_file: str) -> Optional[Process]:
    """Return the process that a pid file means, None when it does not run (any more) or the file says nothing."""
    try:
        with open(pid_file, encoding="utf-8") as file:
            found = json.load(file)
        process = Process(
            int(found["pid"]), int(found["start_time"]), str(found["boot_id"]), tuple(map(str, found["command"]))
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CplaneError(f"cannot read {pid_file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return process if process.pid > 0 and is_alive(process) else None


def _remember(pid_file: str, process: Process) -> None:
    # In one step, so that nobody reads half of it.
    temporary = f"{pid_file}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(process), file)
    os.replace(temporary, pid_file)


def start(
    command: Sequence[str],
    pid_file: str,
    log_file: str,
    ready: Callable[[int], bool],
    timeout: float,
    environment: Optional[Dict[str, str]] = None,
) -> Process:
    """Start ``command`` detached from this process, and return when ``ready(pid)`` is true.

    Its output goes to ``log_file``, which is begun anew. ``environment`` is added to that of this process. Raises
    AlreadyServed when the pid file means a process that runs, DiedWhileStarting when it ends before it is ready, and
    ServerTimeout when it is not ready in time; it has been stopped then. Both carry the end of its output.
    """
    running = inspect(pid_file)
    if running is not None:
        raise AlreadyServed(f"{pid_file}: process {running.pid} runs already")
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CplaneError(f"cannot write {log_file}: {error.strerror}") from None
    try:
        # A server outlives the module that starts it, which run_command does not know.
        child = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        raise CplaneError(f"cannot run {command[0]}: {error.strerror}") from None
    finally:
        os.close(log)
    # Not waited for yet, so its number is still its own.
    found = _stat(child.pid)
    process = Process(child.pid, found[1] if found else 0, boot_id(), tuple(command))
    try:
        _remember(pid_file, process)
    except OSError as error:
        _end(child)
        raise CplaneError(f"cannot write {pid_file}: {error.strerror}") from None
    try:
        _wait_ready(child, ready, timeout, command, log_file)
    except BaseException:
        _end(child)
        os.unlink(pid_file)
        raise
    return process


def _wait_ready(
    child: subprocess.Popen[bytes], ready: Callable[[int], bool], timeout: float, command: Sequence[str], log_file: str
) -> None:
    end, pause = time.monotonic() + timeout, _POLL_FIRST
    while not ready(child.pid):
        status = child.poll()
        if status is not None:
            raise _with_output(DiedWhileStarting, f"{command[0]} ended with {_ended(status)} while starting", log_file)
        if time.monotonic() > end:
            raise _with_output(ServerTimeout, f"{command[0]} is not ready after {timeout:g} seconds", log_file)
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX)


def _with_output(kind: Callable[..., CplaneError], message: str, log_file: str) -> CplaneError:
    output = tail(log_file)
    return kind(f"{message}: {output}" if output else f"{message}, without a word", output=output)


def _ended(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop a server that did not become ready."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def tail(log_file: str) -> str:
    """Return the end of what a server wrote, at most 4 KiB of whole lines; empty when there is nothing."""
    try:
        with open(log_file, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return (text.partition("\n")[2] if size > _TAIL else text).strip()


def identify(pid: int) -> Optional[Process]:
    """Take hold of a process that somebody else started, by its number now; None when there is none."""
    found = _stat(pid)
    return None if found is None else Process(pid, found[1], boot_id(), (f"process {pid}",))


def end_process(process: Process, timeout: float, kill: bool) -> None:
    """SIGTERM, then wait; when it has not ended after ``timeout`` seconds, SIGKILL (with ``kill``) or ServerTimeout."""
    _signal(process, signal.SIGTERM)
    if _gone(process, timeout):
        return
    if not kill:
        raise ServerTimeout(f"process {process.pid} ({process.command[0]}) runs on after {timeout:g} seconds")
    _signal(process, signal.SIGKILL)
    if not _gone(process, max(timeout, 5.0)):
        raise ServerTimeout(f"process {process.pid} ({process.command[0]}) cannot be killed")


def stop(pid_file: str, timeout: float, kill: bool = False) -> bool:
    """Stop what a pid file means: SIGTERM, then wait; returns whether there was anything to stop.

    When it has not ended after ``timeout`` seconds, ServerTimeout is raised, or with ``kill`` it gets SIGKILL. The pid
    file is removed once the process is gone.
    """
    process = inspect(pid_file)
    if process is not None:
        end_process(process, timeout, kill)
    try:
        os.unlink(pid_file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CplaneError(f"cannot remove {pid_file}: {error.strerror}") from None
    return process is not None


def send_signal(pid_file: str, number: int) -> bool:
    """Send a signal (SIGHUP for new settings) to what a pid file means; returns whether it runs."""
    process = inspect(pid_file)
    return process is not None and _signal(process, number)


def _signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; returns whether it was there."""
    try:
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            # Python 3.8: what is left is the moment between looking and sending.
            if is_alive(process):
                os.kill(process.pid, number)
                return True
            return False
        fd = os.pidfd_open(process.pid)
        try:
            # The descriptor holds on to the process that has the number now: the right one?
            if not is_alive(process):
                return False
            signal.pidfd_send_signal(fd, number)
            return True
        finally:
            os.close(fd)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise CplaneError(f"process {process.pid} ({process.command[0]}) belongs to another user") from None


def _gone(process: Process, timeout: float) -> bool:
    end, pause = time.monotonic() + timeout, _POLL_FIRST
    while is_alive(process):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX)
    return True


def served_by(cplane_id: int, uris: Sequence[str], directory: str = DIRECTORY) -> Callable[[int], bool]:
    """Return a test for start: the socket of the id is answered by this process, with exactly these controllers."""

    def ready(pid: int) -> bool:
        try:
            server: ServerInfo = read_server(cplane_id, directory, timeout=1.0)
        except CplaneError:
            return False
        return server.peer.pid == pid and sorted(controller.uri for controller in server.controllers) == sorted(uris)

    return ready


def native_command(
    program: Sequence[str],
    controllers: Sequence[str],
    cplane_id: int,
    directory: str = DIRECTORY,
    heap_size: Optional[int] = None,
    settings: Optional[str] = None,
) -> List[str]:
    """Return the command line of our server; ``program`` is how xnvme-cplaned is run (interpreter and zipapp)."""
    command = [*program, "serve", *controllers, "--homi-id", str(cplane_id), "--directory", directory]
    if heap_size is not None:
        command += ["--heap-size", str(heap_size)]
    if settings is not None:
        command += ["--settings", settings]
    return command


@dataclass(frozen=True)
class HomiUsage:
    """How this build of the reference tool wants to be called."""

    tool: str
    verb: str
    id_option: str


def homi_usage(tool: str) -> HomiUsage:
    """Ask the reference tool how it is called: its builds differ in the verb and in the option of the id."""
    text = _help([tool, "--help"])
    for verb in ("serve", "start"):
        # A word of the help may also be part of a description.
        said = _help([tool, verb, "--help"]) if re.search(rf"\b{verb}\b", text) else ""
        for option in ("--homi-id", "--homi_id", "--shm_id"):
            if option in said:
                return HomiUsage(tool, verb, option)
    raise ConfigError(
        f"{tool} --help names neither serve nor start with --homi-id or --shm_id; is it the xNVMe tool?",
        output=text[-_TAIL:],
    )


def _help(command: Sequence[str]) -> str:
    """Return what a command prints, whatever its exit status: some builds call asking for help a failure."""
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HELP_TIME,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerTimeout(f"{' '.join(command)} does not end") from None
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]}: {error.strerror}") from None
    return done.stdout.decode("utf-8", "replace")


def homi_command(
    usage: HomiUsage,
    uris: Sequence[str],
    cplane_id: int,
    backend: Optional[str] = None,
    heap_size: Optional[int] = None,
) -> List[str]:
    """Return the command line of the reference tool for these controllers (their BDFs)."""
    command = [usage.tool, usage.verb, *uris, usage.id_option, str(cplane_id)]
    if backend is not None:
        command += ["--be", backend]
    if heap_size is not None:
        command += ["--host_heap_size", str(heap_size)]
    return command
