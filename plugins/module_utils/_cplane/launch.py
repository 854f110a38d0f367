# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start of a server as a unit: finds out what is to be served, binds it, and becomes the server.

To bind a controller takes more than a server is left with: to see that nobody uses it, the open files of all processes.
So a process of its own does that before, without the confinement of the unit, and the server finds its controllers
bound.

What the module remembers of the server comes first, and after a boot, when that is gone, what is recorded for this
host. ``claim:LABEL`` is resolved here, at every start: virtual addresses move. The module holds the lock of its
folder while it waits for this, so none is taken here; what it reads afterwards is written before the server begins.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar

from .._notify import notify
from .._plan import Deadline, SharingError
from .._replay import store
from .._smartio.labels import labels_of
from .client import MAX_ID, connect, socket_path
from .deciding import Means, check_kind, choose_kind, record_of
from .drivers import Drivers
from .errors import AlreadyServed, ConfigError, CplaneError, NotServed, NotYet
from .have import Access, Have
from .managers import (
    HOMI,
    LABEL_PLACES,
    NATIVE,
    Programs,
    Record,
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
from .process import Process, end_process, homi_command, homi_usage, identify, is_alive, native_command, served_by
from .program import NAME, ProgramPlace, program_dir
from .units import unit_digest
from .wanted import CLAIM, NONE, Labels, Wanted, wanted_from, written_from

TRY_AGAIN = os.EX_TEMPFAIL
"""The exit status of a start that may succeed later; the unit tries again."""
NOTHING = os.EX_CONFIG
"""The exit status where nothing can be served, however often it is tried; the unit does not try again."""
_PATIENCE = 50.0
"""Seconds that a start waits for what the one before it missed, so that systemd need not start it so often."""
_PAUSE = 1.0
_POLL_FIRST, _POLL_MAX = 0.02, 0.2
_COMMAND_LIMIT = 30.0

Done = TypeVar("Done")


@dataclass(frozen=True)
class Order:
    """What is to be served. ``bare`` is all of it but what is claimed, ``element`` as in a call of the module.

    ``places`` are as Record has them. ``again`` tells that the last start of this boot missed something.
    """

    bare: Wanted
    element: Mapping[str, Any]
    places: Mapping[str, Any]
    again: bool


def bind(arguments: Optional[Sequence[str]] = None) -> int:
    """Bind the real controllers of an id to their driver; returns an exit status.

    Where nothing can be served, that is left to the server to say: only its exit status ends the unit for good.
    """
    options = _parser("bind", "Bind the controllers of a control plane.").parse_args(arguments)
    try:
        launch = Launch(options.cplane_id, options.config, options.state_dir)
        order = launch.order()
    except SharingError:
        return 0
    if order.bare.driver == NONE:
        return 0
    try:
        launch.wait(order, launch.bind, _PATIENCE if order.again else 0)
    except SharingError as error:
        return _failed(error.message, TRY_AGAIN)
    return 0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Become the server of an id; returns an exit status where that is not possible."""
    options = _parser("serve", "Serve what is recorded for a control plane, as its unit does.").parse_args(arguments)
    try:
        launch = Launch(options.cplane_id, options.config, options.state_dir)
        order = launch.order()
    except SharingError as error:
        return _failed(error.message, NOTHING)
    try:
        command = launch.wait(order, launch.prepare, _PATIENCE if order.again else 0)
        os.execv(command[0], command)  # noqa: S606 - the unit's main process is the server itself
    except SharingError as error:
        return _failed(error.message, TRY_AGAIN)
    except OSError as error:
        return _failed(f"cannot run {command[0]}: {error.strerror}", TRY_AGAIN)


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"iofabric-sharing {command}", description=description)
    parser.add_argument("cplane_id", type=_id, metavar="ID", help="the id of the control plane")
    parser.add_argument("--config", default=store.PATH, metavar="FILE", help="what is recorded (default %(default)s)")
    parser.add_argument("--state-dir", metavar="DIR", help="where servers are remembered")
    return parser


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_ID:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_ID}")
    return int(text)


def _failed(message: str, status: int) -> int:
    _log(message)
    _tell(f"STATUS={message}")
    return status


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _tell(state: str) -> None:
    failure = notify(state, wait=True)
    if failure:
        _log(failure)


class Launch:
    """One start. Raises SharingError where the recorded things cannot be read."""

    def __init__(self, cplane_id: int, config: str, state_dir: Optional[str]) -> None:
        self._id = cplane_id
        self._config = config
        self._sharing = store.read(config) or store.Sharing()
        entries = [entry for entry in self._sharing.cplanes if entry.cplane_id == cplane_id]
        self._entry = entries[0] if entries else None
        recorded = self._entry.state_dir if self._entry else None
        self._registry = Registry(state_dir or recorded or default_state_dir())

    # -- what is to be served -----------------------------------------------------------------------------------------

    def order(self) -> Order:
        """What is to be served. Raises SharingError where nobody said so, or not in words that can be understood."""
        self._registry.check()
        record = self._registry.load(self._id)
        if record is not None and (record.manager != SystemdManager.name or not record.written):
            record = None
        element = self._remembered(record) if record else self._recorded()
        element.update(cplane_id=self._id, manager=SystemdManager.name)
        places = {**self._recorded_places(), **(record.places if record else {})}
        plain = [text for text in written_from(element) if not text.startswith(CLAIM)]
        bare = wanted_from({**element, "controllers": plain}, lambda label: [])
        return Order(bare, element, places, record is not None and not record.uris)

    @staticmethod
    def _remembered(record: Record) -> Dict[str, Any]:
        """An element of what a module, or the start before this one, left in the registry."""
        return {
            "controllers": record.written,
            "server": record.kind,
            "backend": record.backend,
            "heap_size": record.heap_size,
            "driver": record.driver,
            **record.access,
        }

    def _recorded(self) -> Dict[str, Any]:
        """An element of what is recorded for this host."""
        if self._entry is None or not self._entry.controllers:
            raise ConfigError(
                f"nothing is recorded for control plane {self._id}, neither in {self._registry.folder} nor in "
                f"{self._config}; start it with the module xnvme_cplane, or with the role cplane_server"
            )
        names = ("controllers", "server", "backend", "heap_size", "socket_mode", "socket_group", "allow_uids", "driver")
        return {name: getattr(self._entry, name) for name in names}

    def _recorded_places(self) -> Dict[str, Any]:
        """Where things are, as far as it is recorded for this host."""
        entry = self._entry or store.CplaneEntry(self._id)
        program = entry.program or os.path.join(program_dir(), NAME)
        found: Dict[str, Any] = {"socket_dir": entry.socket_dir, "homi": entry.homi, "program": program}
        found["smartio_state_dir"] = self._sharing.places.state_dir
        for name in LABEL_PLACES:
            found.setdefault(name, getattr(self._sharing.places, name, None))
        return found

    # -- the server ---------------------------------------------------------------------------------------------------

    def wait(self, order: Order, step: Callable[[Order], Done], seconds: float) -> Done:
        """What a step returns once everything is there; raises SharingError for what is missing at the end."""
        deadline, said = Deadline(seconds), ""
        while True:
            try:
                done = step(order)
            except SharingError as error:
                if deadline.left() <= 0:
                    raise
                if error.message != said:
                    said = error.message
                    _log(f"waiting: {said}")
                    _tell(f"STATUS={said}")
                time.sleep(min(_PAUSE, deadline.left()))
            else:
                if said:
                    _tell("STATUS=")
                return done

    def bind(self, order: Order) -> None:
        """Give the controllers their driver; where that fails, modules can see that it was tried."""
        _refuse_taken(self._id, order.places["socket_dir"])
        try:
            wanted = wanted_from(order.element, self._labels(order))
            places = order.places
            Drivers(self._registry, places["sysfs"], places["proc"], _COMMAND_LIMIT).bind(wanted)
        except SharingError:
            self._registry.save(self._id, _attempt(order))
            raise

    def prepare(self, order: Order) -> List[str]:
        """The server's command line, and all that comes before it; where that fails, modules can see it was tried."""
        _refuse_taken(self._id, order.places["socket_dir"])
        programs = Programs(ProgramPlace(_program(order.places["program"]), None, None, None), order.places["homi"])
        try:
            wanted = wanted_from(order.element, self._labels(order))
            means = self._means(wanted, order.places, programs)
        except SharingError:
            self._registry.save(self._id, _attempt(order))
            raise
        self._registry.save(self._id, record_of(wanted, means))
        return self._command(wanted, means, programs)

    def _labels(self, order: Order) -> Labels:
        """The devices of a label; NotYet where not all of those that were granted to this host are here."""
        ask = labels_of({**order.places, "timeout": _COMMAND_LIMIT})

        def labels(label: str) -> List[str]:
            found = ask(label)
            granted = sum(device.label == label for device in self._sharing.borrowed)
            if found and len(found) < granted:
                raise NotYet(
                    f"controllers: only {len(found)} of {granted} devices of the label {label!a} are borrowed; "
                    "borrow the others, too"
                )
            return found

        return labels

    def _means(self, wanted: Wanted, places: Mapping[str, Any], programs: Programs) -> Means:
        """What the server is started with; raises where it could not be."""
        kind = choose_kind(wanted, Have(), programs)
        check_kind(wanted, kind)
        programs.check(kind)
        gid = group_id(wanted, SystemdManager.name)
        if kind == NATIVE:
            check_startable(wanted.controllers, wanted.heap_size)
        return Means(
            kind,
            SystemdManager.name,
            programs.digest(kind),
            Access(int(wanted.socket_mode, 8), -1 if gid is None else gid),
            unit_digest(self._id),
            start_places(wanted, kind, places),
        )

    def _command(self, wanted: Wanted, means: Means, programs: Programs) -> List[str]:
        socket_dir = str(means.places["socket_dir"])
        if means.kind == HOMI:
            usage = homi_usage(programs.find_homi() or programs.homi)
            _watch(wanted, socket_dir, means.access)
            return homi_command(usage, wanted.uris, self._id, wanted.backend, wanted.heap_size)
        settings = self._registry.path(f"{self._id}.settings.json")
        program = [sys.executable, programs.native.path]
        return native_command(program, wanted.controllers, self._id, socket_dir, wanted.heap_size, settings)


def _attempt(order: Order) -> Record:
    """What is remembered of a start that found something missing: all but what would have been served."""
    bare = order.bare
    return Record(
        kind=bare.server,
        manager=SystemdManager.name,
        controllers=[],
        uris=[],
        backend=bare.backend,
        heap_size=bare.heap_size,
        program="",
        access=access_of(bare),
        written=written_from(order.element),
        places=dict(order.places),
        driver=bare.driver,
    )


def _program(path: str) -> str:
    """The program to run. An update of the collection brings the next one only with the next start by a module: until
    then, the newest that is there."""
    folder, name = os.path.split(path)
    others = glob.glob(f"{glob.escape(folder)}/xnvme-cplaned-*.pyz") if name == NAME else []
    return path if os.path.isfile(path) or not others else max(others, key=os.path.getmtime)


def _refuse_taken(cplane_id: int, socket_dir: str) -> None:
    """Raise where somebody serves the id: the reference server would take the place away from them."""
    try:
        with connect(cplane_id, socket_dir, 1.0) as connection:
            pid = connection.peer().pid
    except NotServed:
        refuse_obstacle(socket_path(cplane_id, socket_dir))
        return
    raise AlreadyServed(f"control plane {cplane_id} is served already, by process {pid}; stop that server first")


# -- the reference server says nothing to the service manager ---------------------------------------------------------


def _watch(wanted: Wanted, socket_dir: str, access: Access) -> None:
    """Have another process wait until this one, by then the reference server, serves, and tell so in its place.

    It is nobody's child, since the reference server waits for none.
    """
    server = identify(os.getpid())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        if os.fork() == 0 and server is not None:
            _await_homi(server, wanted, socket_dir, access)
        status = 0
    except (OSError, SharingError) as error:
        _log(f"the server cannot be watched: {error}")
    finally:
        os._exit(status)


def _await_homi(server: Process, wanted: Wanted, socket_dir: str, access: Access) -> None:
    ready = served_by(wanted.cplane_id, wanted.uris, socket_dir)
    pause = _POLL_FIRST
    while not ready(server.pid):
        if not is_alive(server):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX)
    try:
        gid = None if access.gid == -1 else access.gid
        set_socket_access(socket_path(wanted.cplane_id, socket_dir), access.mode, gid)
    except CplaneError as error:
        _log(error.message)
        _tell(f"STATUS={error.message}")
        end_process(server, _COMMAND_LIMIT, kill=True)
        return
    _tell("READY=1")
