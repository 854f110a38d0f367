# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme-cplaned: the control plane's server as a program."""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import signal
import sys
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence

from .._notify import notify, reloading
from . import VERSION, example
from .client import DIRECTORY, MAX_ID, CtrlrInfo, ServerInfo, read_server
from .errors import ConfigError, CplaneError, NotServed, VersionMismatch
from .listener import Access
from .server import HEAP_PER_CTRLR, Control, log_to_stderr, serve

STARTED = "# xnvme-cplaned started, use Ctrl+C to stop"
_SETTINGS = ("socket_mode", "socket_group", "allow_uids", "allow_gids")


def read_settings(path: Optional[str], base: Access) -> Access:
    """Return ``base`` changed by the settings in a JSON file; raises ConfigError naming what is wrong.

    The file holds an object with any of ``socket_mode`` (text, octal), ``socket_group`` (a name, a number or null),
    ``allow_uids`` and ``allow_gids`` (lists of numbers).
    """
    if path is None:
        return base
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the settings {path}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold an object")
    unknown = sorted(set(found) - set(_SETTINGS))
    if unknown:
        raise ConfigError(f"{path}: unknown setting {unknown[0]} (there are {', '.join(_SETTINGS)})")
    group = found.get("socket_group", base.group)
    return Access(
        _mode(found["socket_mode"]) if "socket_mode" in found else base.mode,
        None if group is None else str(group),
        _numbers(path, "allow_uids", found, base.allow_uids),
        _numbers(path, "allow_gids", found, base.allow_gids),
    )


def _numbers(path: str, name: str, found: Dict[str, object], default: FrozenSet[int]) -> FrozenSet[int]:
    value = found.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not all(_is_id(number) for number in value):
        raise ConfigError(f"{path}: {name} must be a list of numbers")
    return frozenset(value)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _mode(text: object) -> int:
    try:
        mode = int(text, 8) if isinstance(text, str) else -1
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ConfigError(f"a socket's mode is octal text such as 0660, not {text!r}")
    return mode


def _tell(failure: str) -> None:
    """Log that the service manager could not be told something (see notify), which ends no server."""
    if failure:
        log_to_stderr(failure)


def _serve(options: argparse.Namespace) -> int:
    base = Access(options.socket_mode, options.socket_group, frozenset(options.allow_uid), frozenset(options.allow_gid))
    control = Control()

    def stop(_number: int, _frame: object) -> None:
        control.stop()

    def reload(_number: int, _frame: object) -> None:
        _tell(reloading())
        control.reload()

    def ready() -> None:
        sys.stdout.write(STARTED + "\n")
        sys.stdout.flush()
        _tell(notify("READY=1"))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, reload)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)) if hard >= 0 else soft, hard))
    # A thread that has the interpreter for 5 ms would be felt by every client.
    sys.setswitchinterval(0.0005)
    serve(
        options.controller,
        options.homi_id,
        control,
        ready,
        directory=options.directory,
        heap_size=options.heap_size,
        access=lambda: read_settings(options.settings, base),
        stopping=lambda: _tell(notify("STOPPING=1")),
        reloaded=lambda: _tell(notify("READY=1")),
    )
    return 0


def status_text(cplane_id: int, server: Optional[ServerInfo], running: bool = True) -> str:
    """Return what ``status`` prints: YAML in the layout of the reference tool.

    Without ``server``, ``running`` tells one that speaks another version from none.
    """
    if server is None:
        return f"homi_id: {cplane_id}\nserver_running: {_word(running)}\nready: false\ncontrollers: []\n"
    lines = [f"homi_id: {cplane_id}", "server_running: true", f"connections: {server.connections}", "controllers:"]
    for controller in server.controllers:
        lines += _controller_lines(controller)
    lines.append(f"ready: {_word(is_ready(server))}")
    return "\n".join(lines) + "\n"


def is_ready(server: ServerInfo) -> bool:
    """Whether the server answers for every controller that it lists."""
    return all(controller.initialized for controller in server.controllers)


def _controller_lines(controller: CtrlrInfo) -> List[str]:
    values = [("readable", _word(controller.initialized)), ("initialized", _word(controller.initialized))]
    for name in ("connections", "nsq_used", "ncq_used"):
        values.append((name, str(getattr(controller, name))))
    # Totals that the controller did not answer are left out.
    for name in ("nsq_total", "ncq_total"):
        if getattr(controller, name):
            values.append((name, str(getattr(controller, name))))
    uri = controller.uri.replace("'", "''")
    return [f"  - uri: '{uri}'"] + [f"    {name}: {value}" for name, value in values]


def _word(value: bool) -> str:
    return "true" if value else "false"


def _status(options: argparse.Namespace) -> int:
    server: Optional[ServerInfo] = None
    number = 0
    try:
        server = read_server(options.homi_id, options.directory, options.timeout)
    except NotServed:
        number = errno.ENODEV
    except VersionMismatch as error:
        number = error.errno
    sys.stdout.write(status_text(options.homi_id, server, running=number != errno.ENODEV))
    if server is None:
        sys.stdout.write(f"# ERR: 'status': {{errno: -{number}, msg: '{os.strerror(number)}'}}\n")
        return 1
    return 0 if is_ready(server) else 1


def _octal(text: str) -> int:
    try:
        return _mode(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


def parser() -> argparse.ArgumentParser:
    """Return the program's command line."""
    top = argparse.ArgumentParser(
        prog="xnvme-cplaned", description="Share NVMe controllers with other processes (xNVMe control plane)."
    )
    top.add_argument("--version", action="version", version=f"xnvme-cplaned {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "serve",
        help="serve controllers until SIGINT or SIGTERM",
        description="Serve controllers until SIGINT or SIGTERM. SIGHUP has the file of --settings read again.",
    )
    run.add_argument(
        "controller",
        nargs="+",
        help="emu:NAME[?size=64M&path=FILE&lba=512&queues=64&latency=0&format_time=0&timeout=30s], or the BDF of a "
        "controller that is bound to vfio-pci (experimental)",
    )
    run.add_argument(
        "--heap-size",
        type=_number(1, 2**48),
        default=HEAP_PER_CTRLR,
        metavar="BYTES",
        help="memory to share, for each controller (default %(default)s)",
    )
    run.add_argument("--socket-mode", type=_octal, default=Access.mode, metavar="OCTAL", help="default 0660")
    run.add_argument("--socket-group", metavar="GROUP", help="default: the group of this process")
    run.add_argument(
        "--allow-uid",
        type=_number(0, 2**32 - 1),
        action="append",
        default=[],
        metavar="UID",
        help="serve this user (repeat for more); without any --allow, whoever may open the socket is served",
    )
    run.add_argument(
        "--allow-gid",
        type=_number(0, 2**32 - 1),
        action="append",
        default=[],
        metavar="GID",
        help="serve users of this primary group (repeat for more)",
    )
    run.add_argument(
        "--settings", metavar="FILE", help=f"JSON that overrides {', '.join(_SETTINGS)}; SIGHUP has it read again"
    )
    run.set_defaults(run=_serve)

    status = commands.add_parser(
        "status",
        help="say what a server serves",
        description="Print YAML about a server; exit 0 when it is ready, else 1.",
    )
    status.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="default %(default)s")
    status.set_defaults(run=_status)

    client = commands.add_parser(
        "example",
        help="write to a served controller and read it back, as an example of a client",
        description="Write a pattern to the first blocks of a served controller, whose data is lost, and read it back. "
        "Exit 0 when what was read is what was written.",
    )
    example.add_arguments(client)
    client.set_defaults(run=example.main)

    for command in (run, status, client):
        command.add_argument(
            "--homi-id", type=_number(0, MAX_ID), required=True, metavar="ID", help="the id of the control plane"
        )
        command.add_argument("--directory", default=DIRECTORY, help="where sockets are (default %(default)s)")
    return top


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the program; returns its exit status."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except CplaneError as error:
        log_to_stderr(f"xnvme-cplaned: {error.message}")
        if options.command == "serve":
            _tell(notify(f"STATUS={error.message}", wait=True))
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
