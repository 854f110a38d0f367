# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``smartio_tool``, ``dis_config``: one method a command, text in and dataclasses out.

Facts: smartio_tool's manual page. Nothing here decides anything: a non-zero exit status is a typed error.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence

from . import output
from .command import Finished, run
from .errors import DONE_ALREADY, ToolError, ToolMissing, ToolUnusable, exited, spell
from .model import Borrowed, FabricDevice, PoolList, node_hint

# Each command's own limit in seconds, whatever the deadline of the whole run.
COMMAND_LIMIT = 30.0
# The vendor's installer does not put the tools on PATH.
_VENDOR_FOLDER = "/opt/DIS/sbin"
# How many fdids follow a command's name.
_FDIDS = {"show": 1, "lspci": 1, "get-vdev": 1, "borrow": 1, "return": 1, "enable-p2p": 2, "disable-p2p": 2}


def find_tool(path: str) -> str:
    """The program to run for ``path``: as given when it has a folder, else on PATH, else where the vendor installs.

    Raises ToolMissing that says where it was looked for, or ToolUnusable that says what is wrong with the file.
    """
    if "/" in path:
        return _executable(path)
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), _VENDOR_FOLDER]
    for folder in folders:
        candidate = os.path.join(folder or ".", path)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise ToolMissing(
        f"{path} is not on PATH nor in {_VENDOR_FOLDER}: install the SmartIO software, or give its path with 'tool'",
        searched=folders,
    )


def _executable(path: str) -> str:
    if not os.path.exists(path):
        raise ToolMissing(f"{path} does not exist: install the SmartIO software, or correct 'tool'")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise ToolUnusable(f"{path} is not an executable file: correct 'tool', or its mode (chmod +x)")
    return path


class SmartioTool:
    """The commands of one node.

    ``path`` is the program (see find_tool); ``kernel_log`` returns the kernel log's last lines about a subject and is
    asked only when a command failed. ``unanswered`` holds the devices of which the last ``get-vdev`` could not tell
    whether they are borrowed here, since their owner was out of reach: fdid -> the error.
    """

    def __init__(self, path: str, kernel_log: Callable[[List[str]], List[str]], limit: float = COMMAND_LIMIT) -> None:
        self.path = path
        self.unanswered: Dict[str, ToolError] = {}
        self._kernel_log = kernel_log
        self._limit = limit
        self._owners: Dict[str, int] = {}
        self._own: Dict[int, int] = {}

    def connect(self, node_id: int, adapter: int) -> None:
        """Let a node see and borrow this node's devices; EIO when it cannot be reached."""
        self._change("connect", str(node_id), str(adapter))

    def add(self, bdf: str) -> None:
        """Put a local device in the pool, unavailable; the device itself is not touched."""
        self._change("add", bdf)

    def remove(self, bdf: str) -> None:
        """Take a local device out of the pool."""
        self._change("remove", bdf)

    def available(self, bdf: str, bound: bool) -> None:
        """Unbind the local driver and open the device for borrowing.

        ``bound`` says that a driver is known to be bound, and that nothing uses the device: then the tool would ask,
        so it is told not to. A driver that was bound meanwhile makes the tool ask, and the command fail.
        """
        self._change("available", *(["--force", bdf] if bound else [bdf]))

    def unavailable(self, bdf: str) -> None:
        """Close an available device for borrowing and bind its local driver again."""
        self._change("unavailable", bdf)

    def list(self) -> PoolList:
        """All devices that this node sees in the pool."""
        return output.parse_list(self._read("list"))

    def show(self, fdid: str) -> FabricDevice:
        """What is known of one device."""
        device = output.parse_show(fdid, self._read("show", fdid))
        if device.node_id is not None:
            self._owners[fdid] = device.node_id
        return device

    def lspci(self, fdid: str) -> str:
        """lspci's text for a fabric device."""
        return self._read("lspci", fdid).strip()

    def scan(self, node_id: int, adapter: int) -> None:
        """Enumerate the transparent devices behind an adapter under ``node_id``.

        A scan can be repeated, so here EEXIST does not say that it is done, but that a node has this id.
        """
        self._change("scan", str(node_id), str(adapter), done=frozenset())

    def borrow(self, fdid: str, dma_window: Optional[str]) -> Borrowed:
        """Inject a fabric device as a local one. The window's unit is the tool's own (not documented)."""
        finished = self._change("borrow", fdid, *([dma_window] if dma_window else []))
        return replace(output.parse_borrow(finished.stdout), already=finished.status != 0)

    def give_back(self, fdid: str) -> None:
        """Undo a borrow (the command ``return``)."""
        self._change("return", fdid)

    def enable_p2p(self, source: str, destination: str, bar_number: Optional[int]) -> None:
        """Let ``source`` reach a BAR of ``destination`` directly."""
        self._change("enable-p2p", source, destination, *([] if bar_number is None else [str(bar_number)]))

    def disable_p2p(self, source: str, destination: str, bar_number: Optional[int]) -> None:
        """Undo enable_p2p. EINVAL for two devices that are borrowed here means that there is nothing to undo."""
        numbered = [] if bar_number is None else [str(bar_number)]
        self._change("disable-p2p", source, destination, *numbered, done=DONE_ALREADY | {errno.EINVAL})

    def get_vdev(self, fdid: str) -> Optional[str]:
        """The local (virtual) BDF of a device that is borrowed here; None where it is not.

        What the command answers for a device that is not borrowed is not documented: anything but 0 with a BDF means
        "not here", and EIO that it may be all the same (see ``unanswered``).
        """
        finished = self._run("get-vdev", fdid)
        self.unanswered.pop(fdid, None)
        if finished.status == errno.EIO:
            self.unanswered[fdid] = self._failure(finished, [self.path, "get-vdev", fdid])
        return output.find_bdf(finished.stdout) if finished.status == 0 else None

    def config(self, name: str, value: str) -> None:
        """Set a parameter of the kernel module."""
        self._change("config", name, value)

    def node_ids(self) -> Dict[int, int]:
        """This node's id by adapter, from ``dis_config -gn`` beside the tool; empty where that cannot tell."""
        try:
            self._own = self._own or self.ask_node_ids()
        except (ToolMissing, ToolUnusable, ToolError):
            return {}
        return dict(self._own)

    def ask_node_ids(self) -> Dict[int, int]:
        """As node_ids, but raises ToolMissing, ToolUnusable or ToolError that says why it cannot be told."""
        return output.parse_node_ids(self._ask("dis_config", "-gn"))

    def node_id_of(self, hostname: str) -> int:
        """The node id of a host of the cluster, from ``disinfo`` beside the tool.

        Raises ToolMissing, ToolUnusable, ToolError or ToolUnreadable where that cannot tell.
        """
        return output.parse_node_id(hostname, self._ask("disinfo", "get-nodeid", "-hostname", hostname))

    def _ask(self, program: str, *args: str) -> str:
        """What another program of the vendor's prints, which is beside the tool."""
        beside = os.path.join(os.path.dirname(self.path), program)
        if not os.path.exists(beside):
            raise ToolMissing(f"there is no {program} beside {self.path}")
        finished = run([beside, *args], self._limit)
        if finished.status != 0:
            raise self._failure(finished, [beside, *args])
        return finished.stdout

    def _run(self, *args: str) -> Finished:
        return run([self.path, *args], self._limit)

    def _read(self, *args: str) -> str:
        """A command that changes nothing; its standard output."""
        finished = self._run(*args)
        if finished.status != 0:
            raise self._failure(finished, [self.path, *args])
        return finished.stdout

    def _change(self, *args: str, done: FrozenSet[int] = DONE_ALREADY) -> Finished:
        """A command that changes something. "It is so already" (EEXIST and its like, see ``done``) is success."""
        finished = self._run(*args)
        if finished.status == 0 or finished.status in done:
            return finished
        raise self._failure(finished, [self.path, *args])

    def _failure(self, finished: Finished, command: List[str]) -> ToolError:
        if finished.status < 0:
            return ToolError(
                f"'{spell(command)}' was ended by signal {-finished.status}; run it by hand to see why",
                command,
                finished.status,
                finished.output,
            )
        where = " (it asked a question, which nobody can answer here)" if finished.asked else ""
        about_tool = command[0] == self.path
        ends = self._ends(command[1:]) if finished.status == errno.EIO and about_tool else ""
        return exited(command, finished.status, finished.output, self._kernel_log(command[2:]), where, ends)

    def _ends(self, args: Sequence[str]) -> str:
        """Which node cannot reach which; empty for a command that names neither a node nor a fabric device."""
        if args[0] in ("connect", "scan"):
            return f"{self._here(int(args[2]))} cannot reach node {args[1]}"
        owners = dict.fromkeys(self._owner(fdid) for fdid in args[1 : 1 + _FDIDS.get(args[0], 0)])
        return f"{self._here(None)} cannot reach {' or '.join(owners)}" if owners else ""

    def _owner(self, fdid: str) -> str:
        """The node that owns a device, as ``show`` told it; else what the id suggests, and that it does no more."""
        hint = node_hint(fdid)
        if fdid in self._owners:
            return f"node {self._owners[fdid]}"
        return f"node {hint} (to go by the id {fdid})" if hint else f"the node that owns {fdid}"

    def _here(self, adapter: Optional[int]) -> str:
        ids = self.node_ids()
        if adapter is not None:
            ids = {one: node_id for one, node_id in ids.items() if one == adapter}
        if len(ids) == 1:
            return f"node {next(iter(ids.values()))}"
        return f"this node (ids {', '.join(str(ids[one]) for one in sorted(ids))})" if ids else "this node"
