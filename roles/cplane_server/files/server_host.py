# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at what a host has for servers of the control plane, and reserves hugepages.

Runs on the node. Standard input is a JSON object:

- ``action``: look or reserve
- ``hugepages``: the folder of sysfs that tells of them
- ``size``, ``count``: reserve so many, of that size in KiB

and for look

- ``sysfs``, ``bdfs``: the controllers to look for
- ``homi``: the reference tool
- ``units``, ``state_dir``: where units are, and what the module remembers
- ``manager``: who is to run servers: systemd, process, or auto

Standard output is a JSON object, for look with

- ``systemd``: whether it runs here
- ``manager``: who runs servers
- ``iommu``: whether an IOMMU is in use
- ``hugepages``: for each size in KiB ``total``, ``used`` and ``writable``; ``default`` is the usual size
- ``available``: memory that can still be had, in KiB
- ``drivers``: for each controller that is here its driver, or null
- ``homi``: where the reference tool is, or null
- ``instances``: ids of which there is an instance, by their names; with processes, of which there is one

for reserve with ``total``, as many as there are then.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any, Callable, Dict, List, Optional

_NAME = re.compile(r"hugepages-([0-9]+)kB\Z")
_INSTANCE = re.compile(r"xnvme-cplane@([1-9][0-9]*)\.service\Z")
_OWN_SETTINGS = re.compile(r"xnvme-cplane@([1-9][0-9]*)\.service\.d\Z")
_SETTINGS = "iofabric.conf"
_STARTED, _BOUND = re.compile(r"[1-9][0-9]*\.json\Z"), re.compile(r"[1-9][0-9]*\.bound\.json\Z")
_SYSTEMD = "/run/systemd/system"
_COMPACT = "/proc/sys/vm/compact_memory"


def read(path: str) -> str:
    """A small file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def names(folder: str) -> List[str]:
    """What a folder holds; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def number(text: str) -> int:
    """The number that a text begins with, else 0."""
    digits = re.match(r"[0-9]+", text)
    return int(digits.group()) if digits else 0


def memory(name: str) -> int:
    """A line of /proc/meminfo, in KiB."""
    found = re.search(rf"^{name}: *([0-9]+) kB$", read("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def pages(folder: str) -> Dict[str, Any]:
    """The hugepages of one size: those that were reserved for good, and those that are in use or promised."""

    def value(name: str) -> int:
        return number(read(os.path.join(folder, name)))

    total, surplus = value("nr_hugepages"), value("surplus_hugepages")
    return {
        "total": total - surplus,
        "used": total - value("free_hugepages") + value("resv_hugepages"),
        "writable": os.access(os.path.join(folder, "nr_hugepages"), os.W_OK, effective_ids=True),
    }


def hugepages(top: str) -> Dict[str, Dict[str, Any]]:
    """The hugepages of every size, by the size in KiB."""
    found = {match.group(1): match.group() for match in map(_NAME.match, names(top)) if match}
    return {size: pages(os.path.join(top, name)) for size, name in found.items()}


def driver(sysfs: str, bdf: str) -> Optional[str]:
    """The driver that a device is bound to."""
    link = os.path.join(sysfs, "bus/pci/devices", bdf, "driver")
    return os.path.basename(os.path.realpath(link)) if os.path.islink(link) else None


def instances(units: str, state_dir: str, manager: str) -> List[int]:
    """The ids of servers that have settings of their own, start at boot, were started by the manager, or whose
    controllers were not given back."""
    enabled = map(_INSTANCE.match, names(os.path.join(units, "multi-user.target.wants")))
    settled = map(_OWN_SETTINGS.match, names(units))
    ids = {int(match.group(1)) for match in enabled if match}
    ids |= {
        int(match.group(1))
        for match in settled
        if match and os.path.exists(os.path.join(units, match.group(), _SETTINGS))
    }
    for name in names(state_dir):
        remembered = _STARTED.match(name) and f'"manager": "{manager}"' in read(os.path.join(state_dir, name))
        if remembered or _BOUND.match(name):
            ids.add(number(name))
    return sorted(ids)


def look(data: Dict[str, Any]) -> Dict[str, Any]:
    """What is here."""
    devices = set(names(os.path.join(data["sysfs"], "bus/pci/devices")))
    systemd = os.path.isdir(_SYSTEMD)
    manager = data["manager"] if data["manager"] != "auto" else "systemd" if systemd else "process"
    return {
        "systemd": systemd,
        "manager": manager,
        "iommu": bool(names("/sys/kernel/iommu_groups")),
        "hugepages": hugepages(data["hugepages"]),
        "default": memory("Hugepagesize") or 2048,
        "available": memory("MemAvailable"),
        "drivers": {bdf: driver(data["sysfs"], bdf) for bdf in data["bdfs"] if bdf in devices},
        "homi": shutil.which(data["homi"]),
        "instances": instances(data["units"], data["state_dir"], manager),
    }


def reserve(data: Dict[str, Any]) -> Dict[str, Any]:
    """Reserves as many hugepages as asked for, or as many as there can be."""
    folder = os.path.join(data["hugepages"], f"hugepages-{data['size']}kB")
    for attempt in (1, 2):
        write(os.path.join(folder, "nr_hugepages"), str(data["count"]))
        total = int(pages(folder)["total"])
        if total == data["count"]:
            break
        if attempt == 1 and os.path.exists(_COMPACT):
            write(_COMPACT, "1")
    return {"total": total}


def write(path: str, text: str) -> None:
    """Writes to a file of the kernel, as far as it takes that."""
    try:
        with open(path, "w", encoding="ascii") as stream:
            stream.write(text)
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}\n")


def main() -> None:
    """Does what standard input asks for."""
    data = json.load(sys.stdin)
    actions: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {"look": look, "reserve": reserve}
    json.dump(actions[data["action"]](data), sys.stdout)


if __name__ == "__main__":
    main()
