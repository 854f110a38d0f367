# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do again what was granted to this host, in passes, until all of it is back or will not come.

Nothing is held between passes: no lock, no boot. What this host must never do by itself is taken from the modules: a
device in use is left alone, and another device never takes the place of the one that was granted.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Iterator, List, Mapping, Optional, Sequence, Set, Union

from .._cplane.units import unit_of
from .._notify import notify
from .._plan import SharingError
from .._smartio.errors import ToolError, ToolUnusable
from .._smartio.host import Host, Places, open_host, stamp_of
from .._smartio.kernel_log import related_lines
from .._smartio.tool import COMMAND_LIMIT
from . import progress, steps, store
from .cautious import CautiousTool, Memory
from .outcome import DONE, REFUSED, WAITING, Outcome, Recorded, done, key_of, name_of, refused, waiting
from .store import CplaneEntry, MountEntry, Sharing
from .units import Systemd, mount_unit

RUN_DIR = "/run/iofabric"
_HOLD = "hold"

_READY_AFTER = 20.0
"""Seconds after which the service counts as started, whatever the first pass is doing."""
_PATIENCE = 15.0
"""Seconds that drivers and whoever looks at new devices have at boot: so long, what they do refuses nothing."""
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.5, 30.0, 1.6


def hold_reason(run_dir: str) -> Optional[str]:
    """Why nothing is to be replayed: the text of the hold file, or that there is one; None without one."""
    path = os.path.join(run_dir, _HOLD)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(200).strip() or f"{path} exists"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be read: {(error.strerror or str(error)).lower()}"


def entries_of(sharing: Sharing) -> List[Recorded]:
    """All that a replay is about, in order. Control planes that claim nothing start by themselves."""
    cplanes = [one for one in sharing.cplanes if one.labels]
    before: List[Recorded] = [*sharing.sriov, *sharing.connections, *sharing.lent, *sharing.borrowed]
    return [*before, *sharing.pairs, *sharing.mounts, *cplanes]


class Journal:
    """What was said already is not said again."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said: Set[str] = set()

    def say(self, text: str) -> None:
        """Write a line, once."""
        if text not in self._said:
            self._said.add(text)
            self._write(text)


@dataclass(frozen=True)
class Setting:
    """Where a replay finds its things. ``again``: do what was done in this boot already, too."""

    file: str = store.PATH
    run_dir: str = RUN_DIR
    again: bool = False


class Readiness:
    """Tells the service manager that the service has started: after the first pass, and in any case after a while."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._timer = threading.Timer(_READY_AFTER, self.tell)
        self._timer.daemon = True
        self._timer.start()

    def tell(self) -> None:
        """It has started; said once."""
        if not self._told.is_set():
            self._told.set()
            notify("READY=1", wait=True)  # the program may end right after it

    def end(self) -> None:
        """There is nothing to wait for any more."""
        self._timer.cancel()
        self.tell()


class Replay:
    """One run of the service."""

    def __init__(
        self,
        setting: Setting,
        systemd: Systemd,
        write: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setting = setting
        self._systemd = systemd
        self._journal = Journal(write)
        self._sleep = sleep
        self._clock = clock
        self._started = clock()
        self._memory = Memory()
        self._is_introduced = False
        self._progress = progress.Progress() if setting.again else progress.load(setting.run_dir)

    def run(self) -> int:
        """Pass after pass; returns the exit status. StoreError where what is recorded cannot be read."""
        readiness = Readiness()
        try:
            return self._passes(readiness)
        finally:
            readiness.end()

    def _passes(self, readiness: Readiness) -> int:
        pause = _FIRST_PAUSE
        while True:
            reason = hold_reason(self._setting.run_dir)
            if reason is not None:
                self._journal.say(f"on hold, nothing is replayed: {reason}")
                notify("STATUS=on hold", wait=True)
                return 0
            sharing = store.read(self._setting.file) or Sharing()
            before = len(self._progress.done)
            waiting_for = self._pass(sharing)
            if not waiting_for:
                return self._end(sharing)
            notify(f"STATUS={_status(waiting_for, sharing)}")
            readiness.tell()
            pause = _FIRST_PAUSE if len(self._progress.done) > before else min(pause * _GROWTH, _LONGEST_PAUSE)
            self._sleep(pause)

    def _end(self, sharing: Sharing) -> int:
        entries = entries_of(sharing)
        failed = [entry for entry in entries if key_of(entry) in self._progress.refused]
        if not entries:
            text = f"nothing is recorded in {self._setting.file}"
        else:
            text = f"{len(entries) - len(failed)} of {len(entries)} entries are back"
        if failed:
            text += "; refused: " + ", ".join(map(name_of, failed[:5])) + (", ..." if len(failed) > 5 else "")
        self._journal.say(text)
        notify(f"STATUS={text}", wait=True)
        return 1 if failed else 0

    def _pass(self, sharing: Sharing) -> List[Recorded]:
        """One pass; what is still waited for."""
        self._memory.next_pass()
        entries = entries_of(sharing)
        self._sync(sharing.places)
        todo = [entry for entry in entries if not self._is_settled(entry)]
        for outcomes in self._steps(sharing, todo):
            self._settle(outcomes)
        return [entry for entry in todo if not self._is_settled(entry)]

    def _sync(self, places: Places) -> None:
        """Forget how far it was where that was another boot or load of the kernel module."""
        stamp = stamp_of(places)
        if self._progress.stamp == stamp:
            return
        if self._progress.stamp is not None and stamp is not None:
            self._journal.say("the host was started, or the SmartIO kernel module loaded, since the last replay")
        self._progress = progress.Progress(stamp)

    def _is_settled(self, entry: Recorded) -> bool:
        key = key_of(entry)
        return key in self._progress.done or key in self._progress.refused

    def _is_done(self, entry: Recorded) -> bool:
        return key_of(entry) in self._progress.done

    def _settle(self, outcomes: Mapping[Recorded, Outcome]) -> None:
        """Say what became of the entries, and remember it."""
        for entry, outcome in outcomes.items():
            said = {DONE: "", WAITING: "not yet, ", REFUSED: "refused, "}[outcome.state] + outcome.words
            self._journal.say(outcome.words if outcome.is_shared else f"{name_of(entry)}: {said}")
            if outcome.state == DONE:
                self._progress.done.add(key_of(entry))
            elif outcome.state == REFUSED:
                self._progress.refused[key_of(entry)] = outcome.words
        progress.save(self._setting.run_dir, self._progress)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _steps(self, sharing: Sharing, todo: Sequence[Recorded]) -> Iterator[Mapping[Recorded, Outcome]]:
        """The outcomes of one kind of entries after the other."""
        smartio = [entry for entry in todo if not isinstance(entry, (MountEntry, CplaneEntry))]
        if smartio:
            yield from self._smartio_steps(sharing, smartio)
        units: List[Union[MountEntry, CplaneEntry]] = [
            *steps.of_kind(todo, MountEntry),
            *steps.of_kind(todo, CplaneEntry),
        ]
        for unit in units:
            yield {unit: self._start(unit, sharing)}

    def _smartio_steps(self, sharing: Sharing, todo: Sequence[Recorded]) -> Iterator[Mapping[Recorded, Outcome]]:
        try:
            host = self._open(sharing.places)
            if self._progress.stamp is None:
                host.tool.list()  # a tool that answers has its module, wherever that is
        except SharingError as error:
            yield steps.all_wait(todo, error)
            return
        if not self._is_introduced:
            self._introduce(host, sharing, todo)
        is_patient = self._clock() - self._started < _PATIENCE
        yield from steps.smartio_steps(host, sharing, todo, is_patient, check=False)

    def _introduce(self, host: Host, sharing: Sharing, todo: Sequence[Recorded]) -> None:
        """The first line of the journal."""
        self._is_introduced = True
        ids = ", ".join(map(str, sorted(set(host.tool.node_ids().values())))) or "of an unknown id"
        total = len(entries_of(sharing))
        self._journal.say(f"node {ids}: {len(todo)} of {total} entries of {self._setting.file} are to be done again")

    def _open(self, places: Places) -> Host:
        host = open_host(replace(places, timeout=steps.LIMIT))

        def kernel_log(subjects: List[str]) -> List[str]:
            return related_lines(host.dev, subjects)

        host.tool = CautiousTool(host.tool.path, kernel_log, self._memory, COMMAND_LIMIT)
        return host

    def _start(self, entry: Union[MountEntry, CplaneEntry], sharing: Sharing) -> Outcome:
        """Start a unit whose devices are all back."""
        labels = entry.labels if isinstance(entry, CplaneEntry) else [entry.label]
        missing = self._unfit(labels, sharing)
        if missing is not None:
            return missing
        unit = unit_of(entry.cplane_id) if isinstance(entry, CplaneEntry) else mount_unit(entry.path)
        if not self._systemd.is_running:
            return done(f"its devices are back; without systemd, {unit} is not started")
        try:
            if isinstance(entry, CplaneEntry) and not self._systemd.is_enabled(unit):
                return done(f"its devices are back; {unit} is not enabled, and not started")
            self._systemd.start(unit)
        except (ToolError, ToolUnusable) as error:
            return waiting(error.message)
        except SharingError as error:
            return refused(error.message)
        return done(f"its devices are back, {unit} is being started")

    def _unfit(self, labels: Sequence[str], sharing: Sharing) -> Optional[Outcome]:
        """Why what needs these labels cannot start now; None where it can."""
        for label in labels:
            entries = [entry for entry in sharing.borrowed if entry.label == label]
            if not entries:
                return refused(f"nothing is recorded as borrowed under the label {label}")
            for entry in entries:
                if key_of(entry) in self._progress.refused:
                    return refused(f"the {name_of(entry)} was refused")
                if not self._is_done(entry):
                    return waiting(f"the {name_of(entry)} is not back")
        return None


def _status(waiting_for: Sequence[Recorded], sharing: Sharing) -> str:
    named = ", ".join(map(name_of, waiting_for[:3])) + (", ..." if len(waiting_for) > 3 else "")
    return f"waiting for {len(waiting_for)} of {len(entries_of(sharing))} entries: {named}"
