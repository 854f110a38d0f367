# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would keep a node from lending or borrowing, found before anything is changed. Changes nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, List, Mapping, Optional

from .._pci.address import printable
from .._pci.sysfs import Sysfs
from .._plan import Report, Resource, SharingError
from .errors import ToolMissing, ToolUnusable
from .host import ARGUMENTS, Host, Places, open_host

LENDER, BORROWER = "lender", "borrower"
MODULE, TOOL, ADAPTER, POOL, NODE_ID, IOMMU, CPU = "module", "tool", "adapter", "pool", "node_id", "iommu", "cpu"
PROBLEMS = (MODULE, TOOL, ADAPTER, POOL, NODE_ID, IOMMU, CPU)
"""The names of all problems."""

# The Xeons of Intel's family 6 up to Cooper Lake, by model: the vendor says that later ones cannot lend yet.
_OLDER_XEONS = frozenset(
    (14, 15, 22, 23, 26, 29, 30, 31, 37, 42, 44, 45, 46, 47, 58, 60, 61, 62, 63, 69, 70, 71, 78, 79, 85, 86, 87, 94)
    + (133, 142, 158, 165, 166)
)


@dataclass(frozen=True)
class Cpu:
    """The first processor as /proc/cpuinfo has it; numbers are 0 where it does not tell."""

    name: str
    vendor: str = ""
    family: int = 0
    model: int = 0

    def __str__(self) -> str:
        return f"{self.name} (family {self.family}, model {self.model})" if self.model else self.name

    @property
    def can_lend(self) -> bool:
        """Whether the vendor's list of platforms does not rule it out: it names Xeons from Ice Lake on."""
        if self.vendor != "GenuineIntel" or "xeon" not in self.name.lower():
            return True
        # Family 15 is the NetBurst of the years before, 18 and 19 came after.
        return self.family in (0, 15) or (self.family == 6 and self.model in _OLDER_XEONS)


def read_cpu(proc: str) -> Optional[Cpu]:
    """The node's CPU; None where /proc does not name it (as on ARM)."""
    try:
        with open(os.path.join(proc, "cpuinfo"), encoding="utf-8", errors="replace") as file:
            first = file.read(65536).split("\n\n")[0]
    except OSError:
        return None
    lines = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): printable(value.strip()) for key, _colon, value in lines}
    if not fields.get("model name"):
        return None
    numbers = (_number(fields.get(key, "")) for key in ("cpu family", "model"))
    return Cpu(fields["model name"], fields.get("vendor_id", ""), *numbers)


def _number(text: str) -> int:
    """A number as the kernel prints it, 0 for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


@dataclass(frozen=True)
class Facts:
    """What was found. ``failures`` holds a sentence for each of TOOL, ADAPTER and POOL that could not be asked."""

    tool: Optional[str] = None
    module: Optional[str] = None
    version: Optional[str] = None
    node_ids: Mapping[int, int] = field(default_factory=dict)
    iommu: Optional[bool] = None
    cpu: Optional[Cpu] = None
    failures: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> Dict[str, object]:
        """The facts as plain data."""
        return {
            "tool": self.tool,
            "module": self.module,
            "version": self.version,
            "node_ids": {str(adapter): node_id for adapter, node_id in sorted(self.node_ids.items())},
            "iommu": self.iommu,
            "cpu": str(self.cpu) if self.cpu else None,
            "kernel": os.uname().release,
        }


def observe(places: Places, check: bool) -> Optional[Facts]:
    """Look at the node; None in check mode where the tool is not installed yet."""
    failures: Dict[str, str] = {}
    host: Optional[Host] = None
    try:
        host = open_host(places)
    except ToolMissing as error:
        if check:
            return None
        failures[TOOL] = error.message
    except ToolUnusable as error:
        failures[TOOL] = error.message
    node_ids = _ask(host, failures) if host else {}
    sysfs = Sysfs(places.sysfs)
    module = sysfs.module()
    return Facts(
        tool=host.tool.path if host else None,
        module=module[0] if module else None,
        version=module[1] if module else None,
        node_ids=node_ids,
        iommu=sysfs.has_iommu(),
        cpu=read_cpu(places.proc),
        failures=failures,
    )


def _ask(host: Host, failures: Dict[str, str]) -> Dict[int, int]:
    node_ids: Dict[int, int] = {}
    try:
        node_ids = host.tool.ask_node_ids()
        if not node_ids:
            failures[ADAPTER] = "'dis_config -gn' lists no adapter"
    except SharingError as error:
        failures[ADAPTER] = error.message
    try:
        host.tool.list()
    except ToolUnusable as error:
        failures[TOOL] = error.message
    except SharingError as error:
        failures[POOL] = error.message
    return node_ids


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, in a sentence that says what to do; ``fatal``: nothing could work with it."""

    name: str
    fatal: bool
    msg: str


def judge(facts: Facts, side: str, node_id: Optional[int], ignore: Collection[str] = ()) -> List[Problem]:
    """What is wrong with a node on that side whose node id should be ``node_id`` (None: any); pure.

    The names in ``ignore`` are fatal for nobody.
    """
    found = {TOOL: facts.failures.get(TOOL), MODULE: None if facts.module else _NOT_LOADED}
    for name, advice in ((ADAPTER, _NO_ADAPTER), (POOL, _NO_POOL)):
        found[name] = f"{facts.failures[name]}; {advice}" if name in facts.failures else None
    found[NODE_ID] = _other_node(facts, node_id)
    found[IOMMU] = _NO_IOMMU if facts.iommu is False else None
    # A software node lends nothing of the machine that it runs on, and its sysfs says nothing of the machine.
    judged = side == LENDER and facts.iommu is not None and facts.cpu is not None and not facts.cpu.can_lend
    found[CPU] = _NO_LENDER % facts.cpu if judged else None
    return [Problem(name, name != IOMMU and name not in ignore, msg) for name, msg in found.items() if msg]


_NOT_LOADED = (
    "the kernel module dis_smartio is not loaded: start the vendor's services ('dis_services start'); where that "
    "fails, see /var/log/dis_*.log and the kernel log, and build the modules anew after a kernel update"
)
_NO_ADAPTER = (
    "see that the adapter is seated and configured, and that its services run ('dis_services start', dis_diag)"
)
_NO_POOL = "see that the adapter's link is up (dis_diag) and that its services run ('dis_services start')"
_NO_IOMMU = (
    "no IOMMU is active, so a device of another node can write all of this node's memory: enable VT-d or AMD-Vi in the "
    "firmware's settings, and intel_iommu=on on the kernel's command line"
)
_NO_LENDER = (
    "this node's CPU, %s, is a Xeon of the Ice Lake generation or newer, which cannot lend devices yet: lend from "
    "another platform, or ask the adapter's vendor and then let the problem 'cpu' be ignored"
)


def _other_node(facts: Facts, node_id: Optional[int]) -> Optional[str]:
    if node_id is None or not facts.node_ids or node_id in facts.node_ids.values():
        return None
    named = ", ".join(f"{own} (adapter {adapter})" for adapter, own in sorted(facts.node_ids.items()))
    return (
        f"this node's id is {named} as 'dis_config -gn' says, not {node_id} as the inventory says: correct "
        "smartio_node_id there, or the adapter's configuration here"
    )


def resource(params: Mapping[str, Any]) -> Resource:
    """The resource of smartio_preflight for a module's parameters."""
    places = Places(**{name: params[name] for name in ARGUMENTS})
    side, node_id = params["side"], params["node_id"]

    def run(check: bool) -> Report:
        facts = observe(places, check)
        if facts is None:
            return Report({"facts": Facts(cpu=read_cpu(places.proc)).described(), "problems": [], "pending": True})
        problems = judge(facts, side, node_id, params["ignore"])
        report = Report({"facts": facts.described(), "problems": [dict(vars(problem)) for problem in problems]})
        report.warnings = [problem.msg for problem in problems if not problem.fatal]
        return report

    return Resource("problems", run)
