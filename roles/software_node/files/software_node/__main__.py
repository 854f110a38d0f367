# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: ``python3 -m software_node daemon|cluster|fault ...``."""

from __future__ import annotations

import argparse
import sys
from typing import List, Optional

from . import faults
from .errors import ClusterError, ConfigError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="software_node", description="A SmartIO node without an adapter.")
    commands = parser.add_subparsers(dest="command", required=True)
    daemon = commands.add_parser("daemon", help="run one node in the foreground")
    daemon.add_argument("--config", required=True, help="the node's JSON file (README.md describes it)")
    daemon.add_argument("--dir", required=True, help="the node's folder: sysfs, dev, proc, node.sock, log, sbin")
    daemon.add_argument("--prefix", default="", help="put the tools in PREFIX/sbin instead of DIR/sbin")
    daemon.add_argument("--lifeline", type=int, help="end when this descriptor (a pipe) reaches its end")
    fault = commands.add_parser(
        "fault",
        help="switch faults of a running node on and off",
        epilog=faults.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fault.add_argument("--dir", required=True, help="the node's folder")
    fault.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="none: print the faults that are on")
    _add_cluster(commands.add_parser("cluster", help="run the nodes of one file as local processes"))
    return parser


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    texts = {
        "up": "start all nodes and wait until they answer",
        "run": "bring the cluster up, run a command, bring it down whatever happens",
        "down": "end the nodes",
        "kill": "end some nodes as a power cut would",
        "start": "start nodes again that were ended",
        "status": "tell which nodes run; exit status 1 unless all do",
    }
    for name, text in texts.items():
        action = actions.add_parser(name, help=text)
        if name in ("up", "run"):
            action.add_argument("file", metavar="FILE", help="the cluster's JSON file (README.md describes it)")
        action.add_argument("--dir", required=True, help="the cluster's folder: one folder a node")
        if name in ("up", "run", "start"):
            action.add_argument("--wait", type=float, default=10.0, help="seconds until all must answer (10)")
        if name in ("down", "kill", "start"):
            action.add_argument("nodes", nargs="*" if name == "down" else "+", metavar="NODE")
        if name == "run":
            action.usage = "%(prog)s FILE --dir DIR [--wait WAIT] -- COMMAND..."


def _cluster(arguments: argparse.Namespace) -> int:
    from . import cluster

    group = cluster.Cluster(arguments.dir)
    if arguments.action == "up":
        print(f"up: {', '.join(group.up(arguments.file, arguments.wait))}")
    elif arguments.action == "run":
        return _cluster_run(arguments)
    elif arguments.action == "down":
        for name in group.down(arguments.nodes or None):
            print(f"{name}: had to be killed", file=sys.stderr)
    elif arguments.action == "kill":
        group.kill(arguments.nodes)
    elif arguments.action == "start":
        group.start(arguments.nodes, arguments.wait)
    else:
        text, good = cluster.status(arguments.dir)
        print(text, end="")
        return 0 if good else 1
    return 0


def _cluster_run(arguments: argparse.Namespace) -> int:
    from . import cluster

    if not arguments.words:
        raise ClusterError("cluster run: a command is missing (cluster run FILE --dir DIR -- COMMAND...)")
    return cluster.run(arguments.dir, arguments.file, arguments.words, arguments.wait)


def _daemon(arguments: argparse.Namespace) -> int:
    from .config import load_json, read_config
    from .daemon import Daemon
    from .real_sysfs import complete

    config = read_config(load_json(arguments.config), complete)
    Daemon(config, arguments.config, arguments.dir, arguments.prefix).run(arguments.lifeline)
    return 0


def _fault(arguments: argparse.Namespace) -> int:
    from .tool import main as tool

    status = tool(arguments.dir, "fault", arguments.settings)
    # A node that was told to be gone is.
    return 0 if status and "killed" in arguments.settings else status


def main(argv: Optional[List[str]] = None) -> int:
    """Runs one command line; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    arguments = _parser().parse_args(words[:split])
    arguments.words = words[split + 1 :]
    actions = {"daemon": _daemon, "fault": _fault, "cluster": _cluster}
    try:
        return actions[arguments.command](arguments)
    except (ConfigError, ClusterError, OSError) as error:
        print(f"software_node: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
