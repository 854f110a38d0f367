# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One SmartIO node as the modules see it: its tool, its sysfs, its ledger."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from .._pci.sysfs import Sysfs
from .._plan import Deadline, Report, Resource, SharingError
from .errors import LedgerError, ToolMissing
from .kernel_log import related_lines
from .ledger import Ledger, LedgerStore, Stamp
from .tool import SmartioTool, find_tool

ARGUMENTS: Dict[str, Any] = {
    "tool": {"type": "str", "default": "smartio_tool"},
    "sysfs": {"type": "path", "default": "/sys"},
    "proc": {"type": "path", "default": "/proc"},
    "dev": {"type": "path", "default": "/dev"},
    "state_dir": {"type": "path", "default": "/run/smartio"},
    "timeout": {"type": "float", "default": 60},
}
"""The arguments that all SmartIO modules have, see Places."""


@dataclass(frozen=True)
class Places:
    """Where a node keeps its things: program, folders, and the seconds that a run may wait."""

    tool: str
    sysfs: str
    proc: str
    dev: str
    state_dir: str
    timeout: float


@dataclass
class Host:
    """A node. ``proc`` and ``dev`` are folders; ``deadline`` bounds all waiting of this run."""

    tool: SmartioTool
    sysfs: Sysfs
    proc: str
    dev: str
    store: LedgerStore
    deadline: Deadline
    warnings: List[str] = field(default_factory=list)

    @contextlib.contextmanager
    def ledger(self, check: bool) -> Iterator[Ledger]:
        """The ledger, under the lock unless nothing is going to be changed."""
        if check:
            yield self.store.load()
            return
        with self.store.locked(self.deadline):
            yield self.store.load()

    def remember(self, ledger: Ledger) -> None:
        """Write the ledger after a command succeeded. Failing to is a warning: the command's effect is there."""
        try:
            self.store.save(ledger)
        except LedgerError as error:
            self.warnings.append(f"what was done is not remembered: {error.message}")


@dataclass(frozen=True)
class NodeResource:
    """What a SmartIO module manages on a node.

    ``pending`` answers for check mode where the tool is not installed yet, as an earlier task of the same play may
    be the one that installs it.
    """

    what: str
    run: Callable[[Host, bool], Report]
    pending: Callable[[Places], Report]


def on_node(make: Callable[[Mapping[str, Any]], NodeResource]) -> Callable[[Mapping[str, Any]], Resource]:
    """Bind a resource of a node to the node that a module's parameters (see ARGUMENTS) name."""

    def bound(params: Mapping[str, Any]) -> Resource:
        resource = make(params)
        places = Places(**{name: params[name] for name in ARGUMENTS})
        return Resource(resource.what, lambda check: _run(resource, places, check))

    return bound


def _run(resource: NodeResource, places: Places, check: bool) -> Report:
    try:
        host = open_host(places)
    except ToolMissing:
        if check:
            return resource.pending(places)
        raise
    report = resource.run(host, check)
    report.warnings[:0] = host.warnings
    return report


def open_host(places: Places) -> Host:
    """The node at ``places``. Raises ToolMissing or ToolUnusable; nothing is run."""
    if not places.timeout >= 0 or places.timeout == float("inf"):
        raise SharingError(f"timeout: {places.timeout!r} is not a number of seconds from 0 on")
    for name in ("tool", "sysfs", "proc", "dev", "state_dir"):
        value = str(getattr(places, name))
        if not value or not value.isprintable():
            raise SharingError(f"{name}: {value!a} is not a path; correct it")
    sysfs = Sysfs(places.sysfs)

    def kernel_log(subjects: List[str]) -> List[str]:
        return related_lines(places.dev, subjects)

    return Host(
        tool=SmartioTool(find_tool(places.tool), kernel_log),
        sysfs=sysfs,
        proc=places.proc,
        dev=places.dev,
        store=ledger_store(places),
        deadline=Deadline(places.timeout),
    )


def ledger_store(places: Places) -> LedgerStore:
    """The ledger and the lock of the node at ``places``, whether a tool is there or not."""
    return LedgerStore(places.state_dir, stamp_of(places))


def stamp_of(places: Places) -> Optional[Stamp]:
    """Which boot this is and which load of the kernel module; None where either cannot be told."""
    boot_id, module = _boot_id(places.proc), Sysfs(places.sysfs).module_stamp()
    return Stamp(boot_id, module) if boot_id and module else None


def _boot_id(proc: str) -> str:
    # A software node's /proc is a small one; the boot is the machine's in any case.
    for root in (proc, "/proc"):
        with contextlib.suppress(OSError), open(
            os.path.join(root, "sys/kernel/random/boot_id"), encoding="ascii", errors="replace"
        ) as file:
            return file.read().strip()
    return ""
