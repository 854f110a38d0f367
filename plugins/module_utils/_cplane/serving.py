# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers as a module manages them: see what serves, plan what leads to what is wanted, do it and look again.

A server with clients is never stopped or restarted without force. What can change under a running server (mode, group,
allow list) does; other controllers take a restart; every other difference waits until the server is idle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from .._plan import Action, Deadline, Item, Outcome, Plan, Report, Resource, SharingError
from .client import CtrlrInfo, ServerInfo, read_server
from .errors import ConfigError, CplaneError, NotServed, VersionMismatch
from .managers import (
    HOMI,
    NATIVE,
    ProcessManager,
    Programs,
    Record,
    Registry,
    SystemdManager,
    access_of,
    default_state_dir,
    set_socket_access,
)
from .process import Process, end_process, identify, inspect
from .program import ProgramPlace
from .wanted import Labels, Wanted, wanted_from
from .wire import VERSION

STARTED, STOPPED, RESTARTED = "started", "stopped", "restarted"
STATES = (STARTED, STOPPED, RESTARTED)
SERVERS = ("auto", HOMI, NATIVE)
MANAGERS = ("auto", "systemd", "process")
_ASK = 5.0
"""Seconds for one look at a server."""


@dataclass(frozen=True)
class Have:
    """What is known of one id now.

    ``server`` is None where nobody answers; ``problem`` says why a server that is there could not be understood
    (VersionMismatch: it speaks another one). ``process`` is what our pid file means, ``record`` what it was started
    with.
    """

    server: Optional[ServerInfo] = None
    problem: Optional[CplaneError] = None
    process: Optional[Process] = None
    record: Optional[Record] = None

    @property
    def alive(self) -> bool:
        """Whether somebody has the socket."""
        return self.server is not None or self.problem is not None

    @property
    def clients(self) -> int:
        """Connected clients, without the one that asked."""
        return self.server.connections - 1 if self.server else 0

    @property
    def uris(self) -> Tuple[str, ...]:
        """The controllers that are served."""
        return tuple(sorted(controller.uri for controller in self.server.controllers)) if self.server else ()

    @property
    def state(self) -> str:
        """In words, for the diff."""
        if self.problem is not None:
            return "not understood" if not isinstance(self.problem, VersionMismatch) else "of another wire version"
        return "serving " + ", ".join(self.uris) if self.server else "not serving"


def observe(cplane_id: int, socket_dir: str, registry: Registry, timeout: float = _ASK) -> Have:
    """Look at one id, for at most ``timeout`` seconds. What is wrong with a server is part of the answer."""
    process = inspect(registry.path(f"{cplane_id}.pid"))
    record = registry.load(cplane_id)
    try:
        return Have(read_server(cplane_id, socket_dir, timeout), None, process, record)
    except NotServed:
        return Have(None, None, process, record)
    except CplaneError as error:
        return Have(None, error, process, record)


@dataclass(frozen=True)
class Options:
    """How far a run may go; see the module's documentation."""

    state: str = STARTED
    force: bool = False
    drain_timeout: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What is to be done for one server: commands in order, or a refusal; ``pending`` names what must come first."""

    commands: Tuple[str, ...] = ()
    error: Optional[SharingError] = None
    restart_pending: bool = False
    pending: bool = False


def choose_kind(wanted: Wanted, have: Have, programs: Programs) -> str:
    """Which server is meant: what is named, else what runs, else the reference tool, else ours for emulated only."""
    if wanted.server == HOMI and wanted.emulated:
        raise ConfigError("server: homi cannot serve emulated controllers; use server: native, or auto")
    if wanted.server != "auto":
        return wanted.server
    if have.record is not None and have.alive and not wanted.emulated:
        return have.record.kind
    if wanted.emulated:
        return NATIVE
    if programs.find_homi() is not None:
        return HOMI
    raise ConfigError(
        "no reference tool (homi) is installed to serve real controllers; install xNVMe, or name server: native"
    )


def decide(wanted: Wanted, have: Have, options: Options, kind: str, program: str) -> Decision:
    """What leads from what is there to what is wanted; pure. ``program`` is the digest of our server's zipapp."""
    if have.problem is not None and not options.force:
        return Decision(error=_not_understood(wanted, have))
    if options.state == STOPPED:
        return _guarded(("stop",), wanted, have, options) if have.alive or have.process else Decision()
    if not wanted.uris:
        return Decision(error=_no_controllers(wanted)) if not wanted.unresolved else Decision(pending=True)
    if not have.alive:
        return Decision(("stop", "start") if have.process else ("start",))
    if options.state == RESTARTED or have.problem is not None or tuple(sorted(wanted.uris)) != have.uris:
        return _guarded(("stop", "start"), wanted, have, options)
    return _drift(wanted, have, options, kind, program)


def _drift(wanted: Wanted, have: Have, options: Options, kind: str, program: str) -> Decision:
    """A server that serves what is wanted: what else differs from what it was started with.

    Nothing is known of a server that was started by somebody else; it is left as it is.
    """
    record = have.record
    if record is None:
        return Decision()
    now = (kind, wanted.backend, wanted.heap_size, list(wanted.controllers), program if kind == NATIVE else "")
    then = (record.kind, record.backend, record.heap_size, record.controllers, record.program)
    configure = ("configure",) if record.access != access_of(wanted) else ()
    if now == then:
        return Decision(configure)
    if have.clients:
        return Decision(configure, restart_pending=True)
    return Decision(("stop", "start"))


def _guarded(commands: Tuple[str, ...], wanted: Wanted, have: Have, options: Options) -> Decision:
    """Commands that take the server away: refused while clients are connected."""
    if not have.clients or options.force:
        return Decision(commands)
    if options.drain_timeout > 0:
        return Decision(commands, pending=True)
    return Decision(error=_busy(wanted.cplane_id, have))


def _busy(cplane_id: int, have: Have) -> SharingError:
    noun = "1 client is" if have.clients == 1 else f"{have.clients} clients are"
    return CplaneError(
        f"control plane {cplane_id}: {noun} connected; end them first, give drain_timeout, or force: true",
        in_use=[f"{noun} connected"],
    )


def _not_understood(wanted: Wanted, have: Have) -> SharingError:
    reason = have.problem.message if have.problem else ""
    return CplaneError(
        f"control plane {wanted.cplane_id}: somebody has its socket but cannot be understood ({reason}); "
        "nothing was done: stop that server by hand, choose another cplane_id, or give force: true"
    )


def _no_controllers(wanted: Wanted) -> SharingError:
    return ConfigError(
        f"control plane {wanted.cplane_id}: no controllers are named; give a BDF, emu:NAME or claim:LABEL"
    )


class Serving:
    """One run over several servers of one node."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        options: Options,
        programs: Programs,
        socket_dir: str,
        state_dir: str,
        timeout: float,
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._programs = programs
        self._socket_dir = socket_dir
        self._registry = Registry(state_dir)
        self._timeout = timeout
        self._deadline = Deadline(timeout)

    def run(self, check: bool) -> Report:
        """Observe, plan and, unless ``check``, apply and look again."""
        if check:
            return self._run(True)
        with self._registry.locked():
            return self._run(False)

    def _run(self, check: bool) -> Report:
        report, rows = Report({}), []
        for wanted in self._wanted:
            have = observe(wanted.cplane_id, self._socket_dir, self._registry)
            decision, kind = self._decide(wanted, have)
            item = self._item(wanted, have, decision)
            plan = Plan((item,))
            outcome = (plan.predict() if check else plan.apply(self._performer(wanted, have, kind)))[0]
            rows.append(self._row(wanted, have, decision, outcome, check, report))
        report.results["servers"] = rows
        if len(rows) == 1:
            report.results["server"] = rows[0]
        return report

    def _decide(self, wanted: Wanted, have: Have) -> Tuple[Decision, str]:
        try:
            kind = NATIVE
            if self._options.state != STOPPED and wanted.uris:
                kind = choose_kind(wanted, have, self._programs)
                self._check(wanted, kind)
            return decide(wanted, have, self._options, kind, self._programs.native_digest or ""), kind
        except SharingError as error:
            return Decision(error=error), NATIVE

    def _check(self, wanted: Wanted, kind: str) -> None:
        if kind == HOMI and wanted.allow_uids:
            raise ConfigError(
                "allow_uids: the reference server checks no credentials; use socket_mode and socket_group"
            )
        if kind == NATIVE and not all(one.startswith("emu:") for one in wanted.controllers):
            raise ConfigError("server: native serves emulated controllers only so far; use server: homi for real ones")

    def _item(self, wanted: Wanted, have: Have, decision: Decision) -> Item:
        name = f"control plane {wanted.cplane_id}"
        actions = tuple(
            Action(command, (wanted.cplane_id,), f"{command} control plane {wanted.cplane_id}")
            for command in decision.commands
        )
        after = have.state
        if "start" in decision.commands:
            after = "serving " + ", ".join(sorted(wanted.uris))
        elif "stop" in decision.commands:
            after = "not serving"
        return Item(name, have.state, after, actions, decision.error)

    def _performer(self, wanted: Wanted, have: Have, kind: str) -> Callable[[Action], None]:
        def perform(action: Action) -> None:
            if action.command == "stop":
                self._stop(wanted, have)
            elif action.command == "start":
                self._start(wanted, kind)
            else:
                self._configure(wanted, have)

        return perform

    def _start(self, wanted: Wanted, kind: str) -> None:
        if kind == NATIVE and self._programs.native is None:
            raise ConfigError("xnvme-cplaned is not on the node; run the module through Ansible, or give 'program'")
        self._manager(wanted.manager).start(wanted, kind, self._deadline.left())

    def _manager(self, name: str) -> ProcessManager | SystemdManager:
        use_systemd = name == "systemd" or (name == "auto" and os.geteuid() == 0 and SystemdManager.usable())
        if use_systemd:
            return SystemdManager(self._registry, self._programs)
        return ProcessManager(self._registry, self._programs, self._socket_dir)

    def _stop(self, wanted: Wanted, have: Have) -> None:
        self._drain(wanted, have)
        cplane_id, force = wanted.cplane_id, self._options.force
        manager = self._manager(have.record.manager if have.record else "process")
        if not manager.stop(cplane_id, self._deadline.left(), force):
            self._stop_foreign(cplane_id, have)
        self._registry.forget(cplane_id)

    def _drain(self, wanted: Wanted, have: Have) -> None:
        """Wait for clients to leave, and look a last time before the server is taken away from them."""
        if self._options.force or have.server is None:
            return
        now = have
        for _last in Deadline(self._options.drain_timeout).pauses():
            now = observe(wanted.cplane_id, self._socket_dir, self._registry)
            if not now.clients:
                return
        raise _busy(wanted.cplane_id, now)

    def _stop_foreign(self, cplane_id: int, have: Have) -> None:
        """A server that somebody else started: its socket says which process it is."""
        if have.server is None:
            return
        process = identify(have.server.peer.pid)
        now = observe(cplane_id, self._socket_dir, self._registry)
        if process is None or now.server is None or now.server.peer.pid != process.pid:
            return
        end_process(process, self._deadline.left(), self._options.force)

    def _configure(self, wanted: Wanted, have: Have) -> None:
        if have.record is None:
            return
        self._registry.save(wanted.cplane_id, replace(have.record, access=access_of(wanted)))
        if have.record.kind == HOMI:
            set_socket_access(wanted, self._socket_dir)
        else:
            self._manager(have.record.manager).reload(wanted.cplane_id)

    def _row(
        self, wanted: Wanted, have: Have, decision: Decision, outcome: Outcome, check: bool, report: Report
    ) -> Dict[str, object]:
        """One server's entry of the answer; adds to the report what it changed, and why it failed."""
        after = have if check or not outcome.done else observe(wanted.cplane_id, self._socket_dir, self._registry)
        predicted = check and bool(outcome.done)
        row = describe(wanted.cplane_id, after)
        if predicted:
            started = "start" in decision.commands
            row.update({"alive": started or "stop" not in decision.commands, "pid": None, "connections": None})
            row["controllers"] = None if started else row["controllers"]
        row["restart_pending"] = decision.restart_pending
        row["action"] = "pending" if decision.pending and (check or not outcome.done) else outcome.action
        if decision.pending and check:
            report.results["pending"] = True
        if decision.pending and not decision.commands and not check and outcome.error is None:
            outcome.error = _nothing_borrowed(wanted)
        report.changed = report.changed or bool(outcome.done) or (check and decision.pending)
        report.before.append(f"{outcome.item.name}: {outcome.item.before}")
        report.after.append(f"{outcome.item.name}: {outcome.item.after if check else after.state}")
        if outcome.error is not None:
            report.errors.append((outcome.item.name, outcome.error))
        return row


def _nothing_borrowed(wanted: Wanted) -> SharingError:
    labels = ", ".join(wanted.unresolved)
    return ConfigError(
        f"control plane {wanted.cplane_id}: nothing is borrowed under the label {labels}; borrow it first"
    )


def describe(cplane_id: int, have: Have) -> Dict[str, Any]:
    """A server as the modules return it."""
    server = have.server
    mismatch = isinstance(have.problem, VersionMismatch)
    return {
        "cplane_id": cplane_id,
        "alive": have.alive,
        "pid": server.peer.pid if server else (have.process.pid if have.process else None),
        "version": VERSION if server else None,
        "protocol": "ok" if server else ("mismatch" if mismatch else ("unknown" if have.problem else None)),
        "connections": server.connections if server else 0,
        "clients": have.clients,
        "restart_pending": False,
        "controllers": [describe_controller(have, controller) for controller in server.controllers] if server else [],
        "error": have.problem.message if have.problem else None,
    }


def describe_controller(have: Have, controller: CtrlrInfo) -> Dict[str, Any]:
    """A controller as the modules return it; ``name`` is how it was configured, its URI where that is not known."""
    return {"name": _names(have.record).get(controller.uri, controller.uri), **controller._asdict()}


def _names(record: Optional[Record]) -> Mapping[str, str]:
    return {} if record is None else dict(zip(record.uris, record.controllers))


def resource(params: Mapping[str, Any], labels: Labels) -> Resource:
    """The resource of xnvme_cplane for a module's parameters."""
    elements = [params] if params["servers"] is None else [{**params, **_given(one)} for one in params["servers"]]
    wanted = [wanted_from(element, labels) for element in elements]
    ids = [one.cplane_id for one in wanted]
    if len(set(ids)) != len(ids):
        raise ConfigError("servers: a cplane_id is named twice")
    options = Options(params["state"], params["force"], params["drain_timeout"])
    place = ProgramPlace(params["program"], params["_program_digest"], params["_program_source"])
    state_dir = params["state_dir"] or default_state_dir()
    uses_native = options.state != STOPPED and any(one.emulated or one.server == NATIVE for one in wanted)

    def run(check: bool) -> Report:
        if uses_native and place.missing and not check:
            return Report({"need_program": place.path})
        programs = Programs(place.install(check) if uses_native else place.path, place.digest, params["homi"])
        return Serving(wanted, options, programs, params["socket_dir"], state_dir, params["timeout"]).run(check)

    return Resource("servers", run)


def _given(element: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in element.items() if value is not None}
