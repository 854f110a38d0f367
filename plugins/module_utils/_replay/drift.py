# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is recorded, and whether it is there: by the plans that a replay would carry out, without carrying them out."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Dict, List

from .._cplane.units import unit_of
from .._pci.proc import read_storage
from .._plan import SharingError
from .._smartio.host import ledger_store, open_host, stamp_of
from . import progress, steps
from .outcome import DONE, Outcome, Recorded, done, name_of, waiting
from .replay import entries_of
from .store import Sharing
from .units import SERVICE, Systemd


def survey(sharing: Sharing, systemd: Systemd) -> Dict[Recorded, Outcome]:
    """Of every entry, in order, whether it is there (``done``) or why not; changes nothing."""
    outcomes: Dict[Recorded, Outcome] = {}
    if sharing.has_smartio:
        entries = entries_of(sharing)
        try:
            host = open_host(replace(sharing.places, timeout=steps.LIMIT))
            for some in steps.smartio_steps(host, sharing, entries, is_patient=False, check=True):
                outcomes.update(some)
        except SharingError as error:
            fabric = [entry for entry in entries if entry not in sharing.mounts and entry not in sharing.cplanes]
            outcomes.update(steps.all_wait(fabric, error))
    outcomes.update(_mounts(sharing))
    outcomes.update(_cplanes(sharing, systemd))
    return outcomes


def _mounts(sharing: Sharing) -> Dict[Recorded, Outcome]:
    if not sharing.mounts:
        return {}
    points = {os.path.normpath(mount.point) for mount in read_storage("/proc").mounts}
    return {
        mount: done("mounted") if os.path.normpath(mount.path) in points else waiting("not mounted")
        for mount in sharing.mounts
    }


def _cplanes(sharing: Sharing, systemd: Systemd) -> Dict[Recorded, Outcome]:
    """Servers that systemd keeps; what else may run them is not known here."""
    outcomes: Dict[Recorded, Outcome] = {}
    for cplane in sharing.cplanes if systemd.is_running else ():
        unit = unit_of(cplane.cplane_id)
        try:
            if systemd.is_enabled(unit):
                outcomes[cplane] = done("it runs") if systemd.is_active(unit) else waiting(f"{unit} does not run")
        except SharingError as error:
            outcomes[cplane] = waiting(error.message)
    return outcomes


def is_loaded_again(sharing: Sharing, run_dir: str) -> bool:
    """Whether the kernel module was loaded again since the last replay of this boot, or since anything was done."""
    now = stamp_of(sharing.places)
    if now is None or not sharing.has_smartio:
        return False
    replayed = progress.load(run_dir).stamp
    if replayed is not None and replayed.boot_id == now.boot_id:
        return replayed != now
    # No replay in this boot: what was done here was done by modules, which remember for which load.
    written = ledger_store(sharing.places).written_for()
    return written is not None and written.boot_id == now.boot_id and written != now


def check(sharing: Sharing, systemd: Systemd, run_dir: str, hold: str) -> List[str]:
    """A line for every entry that is not there; starts the replay where the kernel module was loaded again.

    ``hold`` is why nothing is to be replayed, empty where it is.
    """
    if not hold and is_loaded_again(sharing, run_dir) and systemd.is_running:
        systemd.restart(SERVICE)
        return [f"the SmartIO kernel module was loaded again since the last replay: {SERVICE} is being started"]
    held = f", held: {hold}" if hold else ""
    missing = {entry: one for entry, one in survey(sharing, systemd).items() if one.state != DONE}
    return list(dict.fromkeys(_line(entry, outcome) + held for entry, outcome in missing.items()))


def describe(sharing: Sharing, systemd: Systemd, run_dir: str, hold: str) -> List[str]:
    """Everything that is recorded and how it is, for people."""
    lines = [f"on hold: {hold}"] if hold else []
    known = progress.load(run_dir)
    if known.stamp is not None and known.stamp == stamp_of(sharing.places):
        counts = f"{len(known.done)} entries done, {len(known.refused)} refused"
        lines.append(f"the last replay is of this load of the kernel module: {counts}")
    outcomes = survey(sharing, systemd)
    width = max((len(name_of(entry)) for entry in outcomes), default=0)
    for entry, outcome in outcomes.items():
        mark = "ok     " if outcome.state == DONE else "MISSING"
        lines.append(f"{mark}  {name_of(entry):{width}}  {outcome.words}")
    return lines or ["nothing is recorded"]


def _line(entry: Recorded, outcome: Outcome) -> str:
    return outcome.words if outcome.is_shared else f"{name_of(entry)}: {outcome.words}"
