# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver that real controllers have while they are served, and the kernel's own one that they get back.

Only what was bound for a server is given back after it: a controller that had the driver already is somebody else's.
What is in use is neither bound nor given back, whatever is forced: a client that keeps a controller open would keep the
kernel waiting for it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, cast

from .._pci import usage
from .._pci.driver import DEFAULT, Binding, Want
from .._pci.sysfs import Sysfs
from .._plan import Deadline, Report, SharingError
from .errors import ConfigError
from .holders import is_sole_holder, vfio_holders
from .managers import Registry, Taken
from .vfio import DRIVER, NVME_CLASS
from .wanted import NONE, Wanted


@dataclass(frozen=True)
class Drivers:
    """The drivers of a node's controllers: ``sysfs`` and ``proc`` are folders, ``timeout`` is in seconds a call."""

    registry: Registry
    sysfs: str
    proc: str
    timeout: float

    def unbound(self, wanted: Wanted) -> List[str]:
        """The controllers that are still to be bound for a server; raises where one of them must not be."""
        if wanted.driver == NONE or not wanted.real:
            return []
        for bdf in wanted.real:
            self._check_controller(bdf)
        report = self._run(wanted.real, wanted.driver, check=True)
        _raise_first(report)
        return _moved(report)

    def bind(self, wanted: Wanted) -> None:
        """Give all real controllers of a server its driver; where one cannot have it, none has been given it."""
        bdfs = self.unbound(wanted)
        if not bdfs:
            return
        before = self.registry.bound(wanted.cplane_id)
        # First remembered, then done: what is interrupted can be given back.
        inodes = {bdf: self._inode(bdf) for bdf in bdfs}
        coming = {bdf: Taken(inode, wanted.driver) for bdf, inode in inodes.items() if inode is not None}
        self.registry.save_bound(wanted.cplane_id, {**before, **coming})
        report = self._run(wanted.real, wanted.driver, check=False)
        if not report.errors:
            return
        with contextlib.suppress(SharingError):
            self.give_back(wanted.cplane_id, [bdf for bdf in before if bdf not in coming])
        _raise_first(report)

    def taken(self, cplane_id: int, keep: Sequence[str] = ()) -> List[str]:
        """The controllers that were bound for a server and still are, all but those to ``keep``."""
        return [
            bdf
            for bdf, taken in sorted(self.registry.bound(cplane_id).items())
            if bdf not in keep and self._inode(bdf) == taken.inode and self._driver(bdf) == taken.driver
        ]

    def check_given_back(self, cplane_id: int, server: Optional[int]) -> None:
        """Raise where the controllers of a server could not be given back.

        ``server`` is the process that has them by right and is about to end, None where there is none.
        """
        bdfs = self.taken(cplane_id)
        if server is None:
            _raise_first(self._run(bdfs, DEFAULT, check=True))
            return
        for bdf in bdfs:
            group = Sysfs(self.sysfs).device(bdf).iommu_group
            holders = vfio_holders(f"/dev/vfio/{group}", bdf, self.proc, server)
            if holders:
                raise usage.in_use(bdf, [f"open by {holder}" for holder in holders], forceable=False)

    def is_sole_holder(self, cplane_id: int, server: int) -> bool:
        """Whether it is certain that nobody but its server has what was bound for it."""
        bound = self.registry.bound(cplane_id)
        return all(
            bound[bdf].driver == DRIVER and is_sole_holder(server, bdf, self.proc) for bdf in self.taken(cplane_id)
        )

    def give_back(self, cplane_id: int, keep: Sequence[str] = (), is_free: bool = False) -> None:
        """Let the kernel choose a driver for what was bound for a server, all but those to ``keep``.

        ``is_free`` says that its server was the only one who had it. Then a client of another server, of which the
        kernel does not tell what it has, is no reason against it.
        """
        bdfs = self.taken(cplane_id, keep)
        report = self._run(bdfs, DEFAULT, check=False, force=is_free) if bdfs else Report({})
        left = [*keep, *self.taken(cplane_id, keep)]
        found = self.registry.bound(cplane_id)
        self.registry.save_bound(cplane_id, {bdf: taken for bdf, taken in found.items() if bdf in left})
        _raise_first(report)

    def _check_controller(self, bdf: str) -> None:
        """Nothing but an NVMe controller is ever given another driver here."""
        if self._inode(bdf) is None:
            raise ConfigError(f"{bdf}: there is no such PCI device on this host")
        found = Sysfs(self.sysfs).device(bdf).class_code
        if found != NVME_CLASS:
            raise ConfigError(f"{bdf} is no NVMe controller (its class is {found or 'unknown'})")

    def _inode(self, bdf: str) -> Optional[int]:
        return Sysfs(self.sysfs).inode(bdf)

    def _driver(self, bdf: str) -> Optional[str]:
        return Sysfs(self.sysfs).driver(bdf)

    def _run(self, bdfs: Sequence[str], driver: str, check: bool, force: bool = False) -> Report:
        want = Want(tuple(bdfs), driver, force=force, has_options=False)
        return Binding(Sysfs(self.sysfs), self.proc, Deadline(self.timeout)).run(want, (), check)


def _moved(report: Report) -> List[str]:
    rows = cast(List[Dict[str, str]], report.results["devices"])
    return [row["bdf"] for row in rows if row["action"] != "none"]


def _raise_first(report: Report) -> None:
    """All of a report's failures as one."""
    if report.errors:
        messages = [error.message for _name, error in report.errors]
        raise SharingError("; ".join(messages), **report.errors[0][1].details)
