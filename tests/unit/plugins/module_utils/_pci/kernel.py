# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A kernel that acts on what is written to a sysfs of files, as far as drivers are concerned."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple


class Kernel:
    """Binds and unbinds. ``modules`` are those that could be loaded, each with its drivers.

    ``takes`` says for each driver which devices it is for by their ids; by driver_override it takes any, but for those
    that it ``fails`` on. ``hangs`` holds devices whose driver never lets go.
    """

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.root: Path = fake.root
        self.takes: Dict[str, Set[str]] = {}
        self.modules: Dict[str, Tuple[str, ...]] = {}
        self.fails: Set[Tuple[str, str]] = set()
        self.hangs: Set[str] = set()
        self.written: List[Tuple[str, str]] = []

    def add(self, bdf: str, driver: str = "", group: str = "", override: str = "(null)", **attributes: str) -> None:
        """A device, bound to a driver that is for it."""
        folder = self.fake.device(bdf, driver=driver, **{"class": "0x010802", **attributes})
        self.fake.write(f"{folder}/driver_override", override)
        self.fake.write(f"{folder}/modalias", f"pci:{bdf}")
        if driver:
            self.load("", driver)
            self.takes.setdefault(driver, set()).add(bdf)
            self._bind(bdf, driver)
        if group:
            self.fake.link(f"{folder}/iommu_group", f"kernel/iommu_groups/{group}")
            self.fake.link(f"kernel/iommu_groups/{group}/devices/{bdf}", folder)

    def load(self, module: str, *drivers: str) -> None:
        """Load a module, which brings drivers."""
        for driver in drivers:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        if module:
            folder = self.root / "module" / module.replace("-", "_") / "drivers"
            for driver in drivers:
                (folder / f"pci:{driver}").mkdir(parents=True, exist_ok=True)

    def driver(self, bdf: str) -> Optional[str]:
        link = self.root / "bus/pci/devices" / bdf / "driver"
        return os.path.basename(os.readlink(link)) if link.is_symlink() else None

    def override(self, bdf: str) -> str:
        text = (self.root / "bus/pci/devices" / bdf / "driver_override").read_text().strip()
        return "" if text == "(null)" else text

    # What the kernel does

    def write(self, path: str, text: str) -> int:
        """A write by somebody; 0 or an errno."""
        where = os.path.relpath(path, self.root)
        self.written.append((where, text.strip()))
        if where == "bus/pci/drivers_probe":
            return self._probe(text)
        bdf, _slash, name = where[len("bus/pci/devices/") :].partition("/")
        if name == "driver_override":
            (self.root / where).write_text(text.strip() + "\n" if text.strip() else "(null)\n")
            return 0
        assert name == "driver/unbind", where
        if self.driver(bdf) is None:
            return errno.ENODEV
        self._unbind(bdf)
        return 0

    def _probe(self, bdf: str) -> int:
        wanted = self.override(bdf)
        loaded = sorted(os.listdir(self.root / "bus/pci/drivers"))
        fitting = [wanted] if wanted else [name for name in loaded if bdf in self.takes.get(name, ())]
        for name in fitting:
            if self.driver(bdf) is None and name in loaded and (bdf, name) not in self.fails:
                self._bind(bdf, name)
        return 0

    def _bind(self, bdf: str, driver: str) -> None:
        folder = os.path.relpath(os.path.realpath(self.root / "bus/pci/devices" / bdf), self.root)
        if not (self.root / folder / "driver").is_symlink():
            self.fake.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")

    def _unbind(self, bdf: str) -> None:
        (self.root / "bus/pci/devices" / bdf / "driver").unlink()

    # What modprobe does

    def modprobe(self, *arguments: str) -> Tuple[int, str]:
        """Status and output of modprobe."""
        options, name = set(arguments[:-1]), arguments[-1]
        if "-R" in options:
            bdf = name.partition(":")[2]
            found = [module for module, drivers in self.modules.items() if self._for(bdf, drivers)]
            return (
                (0, "\n".join(found)) if found else (1, f"modprobe: FATAL: Module {name} not found in directory /lib")
            )
        if name not in self.modules:
            return 1, f"modprobe: FATAL: Module {name} not found in directory /lib/modules/6.1"
        if "-D" not in options:
            self.load(name, *self.modules[name])
        return 0, ""

    def _for(self, bdf: str, drivers: Tuple[str, ...]) -> bool:
        return any(bdf in self.takes.get(driver, ()) for driver in drivers)
