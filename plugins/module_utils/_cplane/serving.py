# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers as a module manages them: see what serves, plan what leads to what is wanted, do it and look again."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from .._plan import Action, Deadline, Item, Outcome, Plan, Report, Resource, SharingError
from .._smartio.errors import ToolMissing
from .client import socket_path
from .deciding import (
    BIND,
    CONFIGURE,
    GIVE_BACK,
    START,
    STATES,
    STOP,
    STOPPED,
    Decision,
    Means,
    Options,
    busy,
    check_kind,
    choose_kind,
    decide_start,
    decide_stop,
    record_of,
    same_access,
)
from .drivers import Drivers
from .errors import ConfigError, CplaneError, NotYet, ServerTimeout
from .have import Access, Have, describe, observe
from .managers import (
    HOMI,
    NATIVE,
    ProcessManager,
    Programs,
    Registry,
    SystemdManager,
    access_of,
    default_state_dir,
    group_id,
    refuse_obstacle,
    set_socket_access,
    start_places,
)
from .preflight import check_startable
from .process import end_process, identify, tail
from .program import ProgramPlace
from .units import unit_digest, unit_of
from .wanted import Labels, Wanted, check_id, check_seconds, wanted_from

__all__ = ["MANAGERS", "SERVERS", "STATES", "resource"]

SERVERS = ("auto", HOMI, NATIVE)
MANAGERS = ("auto", SystemdManager.name, ProcessManager.name)
_SETTLE = 1.0
"""Seconds that a server may take to notice that a connection ended, or to read its settings again."""


_WORDS = {
    START: "start control plane {}",
    STOP: "stop control plane {}",
    CONFIGURE: "configure control plane {}",
    BIND: "bind the controllers of control plane {} to their driver",
    GIVE_BACK: "give the controllers of control plane {} back to their ordinary driver",
}


@dataclass(frozen=True)
class Target:
    """One server of a run: what was observed and decided. ``wanted`` and ``means`` are None where it must not run, or
    what was asked for is wrong."""

    cplane_id: int
    have: Have
    decision: Decision
    wanted: Optional[Wanted] = None
    means: Optional[Means] = None

    @property
    def needs_program(self) -> bool:
        """Whether our server is to be started."""
        return START in self.decision.commands and self.means is not None and self.means.kind == NATIVE

    def item(self) -> Item:
        """As an element of a plan."""
        actions = tuple(
            Action(command, (self.cplane_id,), _WORDS[command].format(self.cplane_id))
            for command in self.decision.commands
        )
        return Item(f"control plane {self.cplane_id}", self._before(), self._after(), actions, self.decision.error)

    def _before(self) -> str:
        access = self.have.record.access if self.have.record else None
        return self.have.state + _access_words(access)

    def _after(self) -> str:
        commands = self.decision.commands
        if self.wanted is None or not {START, CONFIGURE} & set(commands):
            return "not serving" if STOP in commands else self._before()
        serving = "serving " + ", ".join(sorted(self.wanted.uris))
        return serving + _access_words(access_of(self.wanted))


def _access_words(access: Optional[Mapping[str, Any]]) -> str:
    if access is None:
        return ""
    users = ", ".join(map(str, access.get("allow_uids") or ())) or "all"
    return f" (mode {access.get('socket_mode')}, group {access.get('socket_group') or 'default'}, users {users})"


class Serving:
    """One run over several servers of one node; ``elements`` are those of a module call, each complete."""

    def __init__(
        self,
        elements: Sequence[Mapping[str, Any]],
        labels: Labels,
        options: Options,
        programs: Programs,
        places: Mapping[str, Any],
        state_dir: str,
        timeout: float,
    ) -> None:
        self._elements = elements
        self._labels = labels
        self._options = options
        self._programs = programs
        self._places = places
        self._socket_dir = places["socket_dir"]
        self._registry = Registry(state_dir)
        self._drivers = Drivers(self._registry, places["sysfs"], places["proc"], timeout)
        self._timeout = timeout
        self._free: Set[int] = set()  # ids whose server alone had its controllers when it was stopped

    def run(self, check: bool) -> Report:
        """Observe, plan and, unless ``check``, apply and look again."""
        if check:
            self._registry.check()
            return self._predict([self._plan(element, True) for element in self._elements])
        with self._registry.locked(self._timeout):
            targets = [self._plan(element, False) for element in self._elements]
            if self._programs.native.missing and any(target.needs_program for target in targets):
                return Report({"need_program": self._programs.native.path})
            return self._apply(targets)

    # -- plan -----------------------------------------------------------------------------------------------------

    def _plan(self, element: Mapping[str, Any], check: bool) -> Target:
        cplane_id = element["cplane_id"]
        have = observe(cplane_id, self._socket_dir, self._registry)
        if self._options.state == STOPPED:
            return Target(cplane_id, have, self._decide_stop(cplane_id, have))
        try:
            return self._plan_start(wanted_from(element, self._labels), have)
        except (NotYet, ToolMissing) as error:
            return Target(cplane_id, have, Decision(pending=True) if check else Decision(error=error))
        except SharingError as error:
            return Target(cplane_id, have, Decision(error=error))

    def _decide_stop(self, cplane_id: int, have: Have) -> Decision:
        """A server that must not run, and the controllers that were bound for it."""
        decision = decide_stop(cplane_id, have, self._options)
        if decision.error is not None or not self._drivers.taken(cplane_id):
            return decision
        server = have.process.pid if have.process else have.pid
        # Clients that are to leave, or to lose their server, still have what they were handed.
        if server is None or not (self._options.force or decision.pending):
            try:
                self._drivers.check_given_back(cplane_id, server)
            except SharingError as error:
                return Decision(error=error)
        return replace(decision, commands=(*decision.commands, GIVE_BACK))

    def _plan_start(self, wanted: Wanted, have: Have) -> Target:
        means = self._means(wanted, have)
        decision = decide_start(wanted, have, self._options, means)
        if START in decision.commands:
            self._programs.check(means.kind)
            unbound = self._drivers.unbound(wanted)
            if means.kind == NATIVE:
                server = have.process.pid if have.process else have.pid
                check_startable(wanted.controllers, wanted.heap_size, server, unbound)
            if means.manager == ProcessManager.name and not have.alive:
                refuse_obstacle(socket_path(wanted.cplane_id, self._socket_dir))
            stop = [command for command in decision.commands if command != START]
            bind = [BIND] if unbound else []
            # Last: somebody may still have what is served no more, which must not keep the others from being served.
            last = [GIVE_BACK] if self._drivers.taken(wanted.cplane_id, wanted.real) else []
            decision = replace(decision, commands=(*stop, *bind, START, *last))
        return Target(wanted.cplane_id, have, decision, wanted, means)

    def _means(self, wanted: Wanted, have: Have) -> Means:
        kind = choose_kind(wanted, have, self._programs)
        check_kind(wanted, kind)
        manager = self._manager_name(wanted, have)
        gid = group_id(wanted, manager)
        access = Access(int(wanted.socket_mode, 8), -1 if gid is None else gid)
        unit = unit_digest(wanted.cplane_id) if manager == SystemdManager.name else ""
        places = start_places(wanted, kind, self._places)
        return Means(kind, manager, self._programs.digest(kind), access, unit, places)

    def _manager_name(self, wanted: Wanted, have: Have) -> str:
        if wanted.manager != "auto":
            return wanted.manager
        if have.record is not None:
            return have.record.manager
        # The unit looks in the system's folder.
        usable = os.geteuid() == 0 and self._registry.folder == default_state_dir() and SystemdManager.usable()
        return SystemdManager.name if usable else ProcessManager.name

    # -- answer ---------------------------------------------------------------------------------------------------

    def _predict(self, targets: Sequence[Target]) -> Report:
        report, rows = Report({}), []
        for target, outcome in zip(targets, Plan(tuple(target.item() for target in targets)).predict()):
            row = _predicted(target)
            row["action"] = "pending" if target.decision.pending else outcome.action
            rows.append(row)
            report.changed = report.changed or bool(outcome.done) or target.decision.pending
            _add(report, outcome, outcome.item.after)
        if any(target.decision.pending for target in targets):
            report.results["pending"] = True
        return _with_rows(report, rows)

    def _apply(self, targets: Sequence[Target]) -> Report:
        report, rows = Report({}), []
        by_id = {target.cplane_id: target for target in targets}
        plan = Plan(tuple(target.item() for target in targets))
        for target, outcome in zip(targets, plan.apply(lambda action: self._perform(action, by_id))):
            touched = outcome.done or (outcome.item.actions and outcome.error)
            after = observe(target.cplane_id, self._socket_dir, self._registry) if touched else target.have
            row = describe(target.cplane_id, after)
            row["restart_pending"] = target.decision.restart_pending
            row["action"] = outcome.action
            rows.append(row)
            report.changed = report.changed or bool(outcome.done)
            _add(report, outcome, outcome.item.after if outcome.error is None else after.state)
        return _with_rows(report, rows)

    # -- do -------------------------------------------------------------------------------------------------------

    def _perform(self, action: Action, targets: Mapping[int, Target]) -> None:
        target = targets[int(str(action.args[0]))]
        if action.command == STOP:
            self._stop(target.cplane_id, target.have)
        elif action.command == GIVE_BACK:
            self._give_back(target)
        elif action.command == BIND and target.wanted is not None:
            self._drivers.bind(target.wanted)
        elif target.wanted is not None and target.means is not None:
            perform = self._start if action.command == START else self._configure
            perform(target.wanted, target.have, target.means)

    def _give_back(self, target: Target) -> None:
        try:
            keep = target.wanted.real if target.wanted else ()
            self._drivers.give_back(target.cplane_id, keep, target.cplane_id in self._free)
        except SharingError as error:
            words = f"what was bound for control plane {target.cplane_id} was not given back: {error.message}"
            raise SharingError(words, **error.details) from None

    def _manager(self, name: str) -> ProcessManager | SystemdManager:
        if name == SystemdManager.name:
            return SystemdManager(self._registry, self._programs)
        return ProcessManager(self._registry, self._programs, self._socket_dir)

    def _start(self, wanted: Wanted, _have: Have, means: Means) -> None:
        cplane_id, manager = wanted.cplane_id, self._manager(means.manager)
        try:
            self._registry.save(cplane_id, record_of(wanted, means))
            manager.start(wanted, means.kind, self._timeout)
            self._await(cplane_id, "serve the wanted controllers", self._timeout, _serves(wanted))
            if means.kind == HOMI:
                self._set_access(cplane_id, means)
        except SharingError:
            # What does not serve as it should is not left half alive, and not remembered.
            with contextlib.suppress(SharingError):
                manager.stop(cplane_id, self._timeout, True)
            with contextlib.suppress(SharingError):
                if manager.process(cplane_id) is None:
                    self._registry.forget(cplane_id)
                    self._drivers.give_back(cplane_id)
            raise

    def _stop(self, cplane_id: int, have: Have) -> None:
        self._drain(cplane_id)
        server = have.process.pid if have.process else have.pid
        if server is not None and self._drivers.is_sole_holder(cplane_id, server):
            self._free.add(cplane_id)
        if have.waiting is not None:
            self._manager(SystemdManager.name).stop(cplane_id, self._timeout, self._options.force)
        elif have.process is not None:
            manager = have.record.manager if have.record else ProcessManager.name
            self._manager(manager).stop(cplane_id, self._timeout, self._options.force)
        if have.pid is not None and (have.process is None or have.process.pid != have.pid):
            self._stop_foreign(cplane_id, have.pid)
        self._registry.forget(cplane_id)
        self._check_gone(cplane_id)

    def _check_gone(self, cplane_id: int) -> None:
        """A supervisor may have started the server again, or another one taken the place."""
        have = Have()
        for _last in Deadline(_SETTLE).pauses():
            have = observe(cplane_id, self._socket_dir, self._registry)
            if not have.alive and have.process is None:
                return
        pid = have.pid or (have.process.pid if have.process else None)
        raise CplaneError(
            f"control plane {cplane_id}: the server was stopped, but process {pid or 'unknown'} answers at its socket "
            "now; stop what starts it again"
        )

    def _drain(self, cplane_id: int) -> None:
        """Wait for clients to leave, and look a last time before the server is taken away from them."""
        if self._options.force:
            return
        clients: Optional[int] = None
        for _last in Deadline(max(self._options.drain_timeout, _SETTLE)).pauses():
            clients = observe(cplane_id, self._socket_dir, self._registry).clients
            if clients == 0:
                return
        raise busy(cplane_id, clients)

    def _stop_foreign(self, cplane_id: int, pid: int) -> None:
        """A server that somebody else started: what it holds open says which process it is."""
        process = identify(pid)
        now = observe(cplane_id, self._socket_dir, self._registry)
        if process is None or now.pid != pid or not now.proven:
            raise CplaneError(
                f"control plane {cplane_id}: process {pid} no longer has its socket; nothing was ended, run again"
            )
        end_process(process, self._timeout, self._options.force)

    def _configure(self, wanted: Wanted, have: Have, means: Means) -> None:
        if have.record is None:
            return
        self._registry.save(wanted.cplane_id, replace(have.record, access=access_of(wanted), driver=wanted.driver))
        if have.record.kind == HOMI:
            self._set_access(wanted.cplane_id, means)
            return
        try:
            self._manager(have.record.manager).reload(wanted.cplane_id)
            self._await(wanted.cplane_id, "take its new settings", _SETTLE * 5, _has_access(means.access))
        except SharingError:
            # What was not taken is remembered as it was, so that the next run tries again.
            self._registry.save(wanted.cplane_id, have.record)
            raise

    def _set_access(self, cplane_id: int, means: Means) -> None:
        gid = None if means.access.gid == -1 else means.access.gid
        set_socket_access(socket_path(cplane_id, self._socket_dir), means.access.mode, gid)

    def _await(self, cplane_id: int, words: str, seconds: float, done: Callable[[Have], bool]) -> None:
        have = Have()
        for _last in Deadline(seconds).pauses():
            have = observe(cplane_id, self._socket_dir, self._registry)
            if done(have):
                return
        output = tail(self._registry.path(f"{cplane_id}.log"))
        raise ServerTimeout(
            f"control plane {cplane_id}: the server did not {words} within {seconds:g} seconds, it is {have.state}; "
            + (f"see its output: {output}" if output else f"see 'journalctl -u {unit_of(cplane_id)}'"),
            output=output,
        )


def _serves(wanted: Wanted) -> Callable[[Have], bool]:
    return lambda have: have.ours and have.uris == tuple(sorted(wanted.uris))


def _has_access(access: Access) -> Callable[[Have], bool]:
    return lambda have: have.access is not None and same_access(have.access, access)


def _predicted(target: Target) -> Dict[str, Any]:
    """A server as check mode foresees it; what only a server knows is null."""
    row = describe(target.cplane_id, target.have)
    row["restart_pending"] = target.decision.restart_pending
    commands = target.decision.commands
    if target.decision.pending or not {START, STOP} & set(commands):
        return row
    row.update(alive=START in commands, pid=None, owner=None, version=None, protocol=None, error=None)
    row.update(connections=0, clients=0, controllers=[])
    if target.wanted is not None and START in commands:
        asked = dict.fromkeys(("connections", "nsq_used", "ncq_used", "nsq_total", "ncq_total", "initialized"))
        pairs = zip(target.wanted.controllers, target.wanted.uris)
        row.update(connections=None, controllers=[{"name": name, "uri": uri, **asked} for name, uri in pairs])
    return row


def _add(report: Report, outcome: Outcome, after: str) -> None:
    report.before.append(f"{outcome.item.name}: {outcome.item.before}")
    report.after.append(f"{outcome.item.name}: {after}")
    if outcome.error is not None:
        report.errors.append((outcome.item.name, outcome.error))


def _with_rows(report: Report, rows: List[Dict[str, Any]]) -> Report:
    report.results["servers"] = rows
    if len(rows) == 1:
        report.results["server"] = rows[0]
    return report


def resource(params: Mapping[str, Any], labels: Labels) -> Resource:
    """The resource of xnvme_cplane for a module's parameters."""
    elements = [params] if params["servers"] is None else [{**params, **_given(one)} for one in params["servers"]]
    ids = [check_id(element["cplane_id"]) for element in elements]
    if len(set(ids)) != len(ids):
        raise ConfigError("servers: a cplane_id is named twice; give each server its own")
    options = Options(params["state"], params["force"], check_seconds(params["drain_timeout"], "drain_timeout"))
    place = ProgramPlace(params["program"], params["program_dir"], params["_program_digest"], params["_program_source"])
    serving = Serving(
        elements,
        labels,
        options,
        Programs(place, params["homi"]),
        {**params, "program": place.path},
        params["state_dir"] or default_state_dir(),
        check_seconds(params["timeout"], "timeout"),
    )

    def run(check: bool) -> Report:
        report = serving.run(check)
        report.results["program"] = place.path
        return report

    return Resource("servers", run)


def _given(element: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in element.items() if value is not None}
