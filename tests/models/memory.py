# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs resources of the collection on a node of the fabric in memory: tool, sysfs and ledger are the model's."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.iofabric.sharing.plugins.module_utils._pci import usage
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice, Sysfs
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Deadline, Report, SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import ledger as ledgers
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.command import Finished
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import Host, NodeResource
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.ledger import Ledger, LedgerStore, Stamp
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.tool import SmartioTool
from ansible_collections.iofabric.sharing.tests.models.fabric import CHANGING, Node

Make = Callable[[Mapping[str, Any]], NodeResource]


class ModelTool(SmartioTool):
    """The tools of a node in memory."""

    def __init__(self, node: Node) -> None:
        super().__init__("/opt/DIS/sbin/smartio_tool", lambda _subjects: [])
        self._node = node

    def _run(self, *args: str) -> Finished:
        return Finished(*self._node.execute("smartio_tool", args), "")

    def _ask(self, program: str, *args: str) -> str:
        finished = Finished(*self._node.execute(program, args), "")
        if finished.status:
            raise self._failure(finished, [program, *args])
        return finished.stdout


class ModelSysfs(Sysfs):
    """What sysfs shows of a node in memory."""

    def __init__(self, node: Node) -> None:
        super().__init__("/nowhere")
        self._node = node

    def devices(self) -> Mapping[str, PciDevice]:
        own = {
            one.bdf: PciDevice(one.bdf, one.vendor, one.device, class_code=one.class_code, driver=self.driver(one.bdf))
            for one in self._node.hardware.values()
        }
        return {**own, **{one.bdf: PciDevice(one.bdf) for one in self._node.vdevs.values()}}

    def _virtual(self, bdf: str) -> Any:
        return next((one for one in self._node.vdevs.values() if one.bdf == bdf), None)

    def driver(self, bdf: str) -> Optional[str]:
        found = self._node.hardware.get(bdf)
        if found is not None:
            return found.driver if found.bound else None
        virtual = self._virtual(bdf)
        return virtual.driver if virtual else None

    def inode(self, bdf: str) -> Optional[int]:
        virtual = self._virtual(bdf)
        return virtual.inode if virtual else None

    def serial(self, bdf: str) -> Optional[str]:
        found = self._node.hardware.get(bdf)
        # A drive's serial number leaves sysfs with its driver; others have it in their configuration space.
        return found.serial if found is not None and (found.bound or found.driver != "nvme") else None

    def model(self, bdf: str) -> Optional[str]:
        return None

    def device_nodes(self, bdf: str) -> List[str]:
        return []

    def parameter(self, name: str) -> Optional[str]:
        return self._node.parameters.get(name) if self._node.shows_parameters else None

    def usage(self, bdfs: Iterable[str]) -> Dict[str, usage.Usage]:
        """Takes the place of the search for what uses a device."""
        found = {bdf: self._node.hardware.get(bdf) or self._virtual(bdf) for bdf in bdfs}
        return {bdf: usage.Usage(one.used, one.never) for bdf, one in found.items() if one is not None}


class ModelStore(LedgerStore):
    """The ledger's text, kept by the node; read and written as the file is."""

    def __init__(self, node: Node) -> None:
        stamp = Stamp(f"boot {node.stamp}", (node.stamp, 1))
        super().__init__("/nowhere", stamp)
        self._node, self._now = node, stamp

    def load(self) -> Ledger:
        try:
            return ledgers._from_json(json.loads(self._node.ledger or "null"), self._now)
        except (ValueError, TypeError, KeyError, AttributeError):
            return Ledger()

    def save(self, ledger: Ledger) -> None:
        self._node.ledger = json.dumps(ledgers._to_json(ledger, self._now), sort_keys=True)

    @contextlib.contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        yield


class ModelDeadline(Deadline):
    """Time that passes only where somebody waits."""

    def __init__(self, seconds: float) -> None:
        self._now = 0.0
        super().__init__(seconds, lambda: self._now)

    def pauses(self, first: float = 0.05, most: float = 2.0, sleep: Any = None) -> Iterator[bool]:
        return super().pauses(first, most, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self._now += seconds


@dataclass
class Answer:
    """What a run answered, and which changing commands it ran."""

    report: Report
    commands: List[Tuple[str, ...]]

    @property
    def failed(self) -> bool:
        return bool(self.report.errors)

    def rows(self, name: str) -> List[Dict[str, Any]]:
        found: Any = self.report.results[name]
        return list(found)


def run(node: Node, make: Make, params: Mapping[str, Any], check: bool = False, timeout: float = 4) -> Answer:
    """One run. A failure before there is a report is one with a single error; Killed goes on upwards."""
    mark = len(node.log)
    host = Host(
        tool=ModelTool(node),
        sysfs=ModelSysfs(node),
        proc="/nowhere",
        dev="/nowhere",
        store=ModelStore(node),
        deadline=ModelDeadline(timeout),
    )
    try:
        report = make(params).run(host, check)
    except SharingError as error:
        report = Report({}, errors=[("", error)])
    return Answer(report, [args for args in node.log[mark:] if args[0] in CHANGING])


def twin(node: Node) -> Node:
    """The node in a copy of its whole fabric."""
    return copy.deepcopy(node)
