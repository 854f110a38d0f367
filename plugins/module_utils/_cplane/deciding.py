# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What leads from what is there to what is wanted of one server; pure.

A server with clients is never stopped or restarted without force. What can change under a running server (mode, group,
allow list) does; other controllers take a restart; every other difference waits until the server is idle. A server
that somebody else started is left as it is, unless it is to be stopped. One with a socket of another user than root or
that of this run is nothing to rely on, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Optional, Tuple

from .._plan import SharingError
from .errors import ConfigError, CplaneError, NotYet
from .have import Access, Have
from .managers import HOMI, NATIVE, Programs, Record, access_of
from .vfio import DRIVER
from .wanted import NONE, Wanted

STARTED, STOPPED, RESTARTED = "started", "stopped", "restarted"
STATES = (STARTED, STOPPED, RESTARTED)
START, STOP, CONFIGURE = "start", "stop", "configure"
BIND, GIVE_BACK = "bind", "give_back"


@dataclass(frozen=True)
class Options:
    """How far a run may go; see the module's documentation."""

    state: str = STARTED
    force: bool = False
    drain_timeout: float = 0.0


@dataclass(frozen=True)
class Means:
    """What a server would be started with now: which one, by which manager, the build of ours, the socket's access."""

    kind: str
    manager: str
    program: str
    access: Access
    """The group is -1 where only the unit knows it."""
    unit: str = ""
    """The digest of the unit's files; empty for a process."""
    places: Mapping[str, Any] = field(default_factory=dict)
    """The programs and folders that a start depends on."""


def record_of(wanted: Wanted, means: Means) -> Record:
    """What is remembered of a server."""
    return Record(
        kind=means.kind,
        manager=means.manager,
        controllers=list(wanted.controllers),
        uris=list(wanted.uris),
        backend=wanted.backend,
        heap_size=wanted.heap_size,
        program=means.program,
        access=access_of(wanted),
        written=list(wanted.written),
        unit=means.unit,
        places=dict(means.places),
        driver=wanted.driver,
    )


@dataclass(frozen=True)
class Decision:
    """What is to be done for one server: commands in order, or a refusal. ``pending``: check mode cannot tell."""

    commands: Tuple[str, ...] = ()
    error: Optional[SharingError] = None
    restart_pending: bool = False
    pending: bool = False


def choose_kind(wanted: Wanted, have: Have, programs: Programs) -> str:
    """Which server is meant: what is named, else what runs, else the reference tool, else ours for emulated only.

    Ours is experimental over real controllers, so there it is never chosen unless it is named or was.
    """
    if wanted.server == HOMI and wanted.emulated:
        raise ConfigError("server: homi cannot serve emulated controllers; use server: native, or auto")
    if wanted.server != "auto":
        return wanted.server
    if have.ours and have.record is not None and have.record.kind == NATIVE:
        return NATIVE
    if not wanted.emulated:
        return _homi(have, programs)
    real = [name for name in wanted.controllers if not name.startswith("emu:")]
    if real:
        raise ConfigError(
            f"server: auto chooses none for emulated controllers beside real ones ({real[0]}); give each kind a "
            "cplane_id, or use server: native"
        )
    return NATIVE


def _homi(have: Have, programs: Programs) -> str:
    if have.server is None and programs.find_homi() is None:
        raise NotYet(
            f"no reference tool ({programs.homi}) is installed to serve real controllers; install xNVMe, "
            "or name its path in 'homi'"
        )
    return HOMI


def check_kind(wanted: Wanted, kind: str) -> None:
    """Raise ConfigError for an option that this server has not got."""
    if kind == HOMI and wanted.allow_uids:
        raise ConfigError("allow_uids: the reference server checks no credentials; use socket_mode and socket_group")
    if kind == NATIVE and wanted.real and wanted.driver not in (NONE, DRIVER):
        raise ConfigError(f"driver: the native server needs {DRIVER}, not {wanted.driver}; or use server: homi")
    if kind == NATIVE and wanted.backend is not None:
        raise ConfigError("backend: the native server has none to choose; leave it out, or use server: homi")


def decide_stop(cplane_id: int, have: Have, options: Options) -> Decision:
    """For a server that must not run."""
    if not have.alive and have.process is None:
        return Decision() if have.waiting is None else Decision((STOP,))
    return _guarded((STOP,), cplane_id, have, options)


def decide_start(wanted: Wanted, have: Have, options: Options, means: Means) -> Decision:
    """For a server that must run."""
    if not wanted.uris:
        raise ConfigError(
            f"control plane {wanted.cplane_id}: no controllers are named; give a BDF, emu:NAME or claim:LABEL"
        )
    if not have.alive and have.process is None:
        return Decision((START,) if have.waiting is None else (STOP, START))
    if have.foreign:
        return Decision(error=_not_trusted(wanted.cplane_id, have))
    again = (STOP, START)
    if options.state == RESTARTED or have.server is None:
        return _guarded(again, wanted.cplane_id, have, options)
    if tuple(sorted(wanted.uris)) != have.uris:
        if have.record is None and not options.force:
            return Decision(error=_foreign(wanted.cplane_id, have))
        return _guarded(again, wanted.cplane_id, have, options)
    return _drift(wanted, have, options, means)


def _drift(wanted: Wanted, have: Have, options: Options, means: Means) -> Decision:
    """A server that lists what is wanted: what else differs from what it was started with.

    Nothing is known of a server that was started by somebody else; it is left as it is.
    """
    record = have.record
    if record is None:
        return Decision()
    now = record_of(wanted, means)
    then = replace(record, access=now.access, driver=now.driver)
    if now == then and not have.dead:
        return Decision((CONFIGURE,) if _settings_differ(wanted, have, means) else ())
    if have.clients and not options.force:
        return Decision((CONFIGURE,) if _settings_differ(wanted, have, means) else (), restart_pending=True)
    return Decision((STOP, START))


def _settings_differ(wanted: Wanted, have: Have, means: Means) -> bool:
    """Whether the socket, what the server was last told of it, or what its next start is to do, is not as wanted."""
    record = have.record
    if record is not None and (record.access != access_of(wanted) or record.driver != wanted.driver):
        return True
    return have.access is not None and not same_access(have.access, means.access)


def same_access(found: Access, wanted: Access) -> bool:
    """Whether a socket has the mode and group that are wanted."""
    return found.mode == wanted.mode and wanted.gid in (-1, found.gid)


def _guarded(commands: Tuple[str, ...], cplane_id: int, have: Have, options: Options) -> Decision:
    """Commands that take the server away: refused while clients are connected, or when that cannot be known."""
    if have.alive and have.server is None and not options.force:
        return Decision(error=_not_understood(cplane_id, have))
    if have.alive and not have.proven:
        return Decision(error=_not_proven(cplane_id, have))
    if have.alive and have.process is not None and have.record is None and not options.force:
        return Decision(error=_stranded(cplane_id, have))
    if have.clients == 0 or options.force:
        return Decision(commands)
    if options.drain_timeout > 0:
        return Decision(commands, pending=True)
    return Decision(error=busy(cplane_id, have.clients))


def busy(cplane_id: int, clients: Optional[int]) -> SharingError:
    """The refusal of a server that has clients; None where they cannot be counted."""
    words = "its clients cannot be counted"
    if clients is not None:
        words = "1 client is connected" if clients == 1 else f"{clients} clients are connected"
    return CplaneError(
        f"control plane {cplane_id}: {words}; end them first, give drain_timeout, or force: true", in_use=[words]
    )


def _not_understood(cplane_id: int, have: Have) -> SharingError:
    reason = have.problem.message if have.problem else ""
    return CplaneError(
        f"control plane {cplane_id}: somebody has its socket but cannot be understood ({reason}); "
        "nothing was done: stop that server by hand, choose another cplane_id, or give force: true"
    )


def _not_proven(cplane_id: int, have: Have) -> SharingError:
    return CplaneError(
        f"control plane {cplane_id}: process {have.pid or 'unknown'} was not started by this module, and it cannot be "
        "seen that it alone is the server; end the server by hand (by its supervisor or unit, if it has one), "
        "or run as root"
    )


def _foreign(cplane_id: int, have: Have) -> SharingError:
    return CplaneError(
        f"control plane {cplane_id}: process {have.pid}, which this module did not start, serves "
        f"{', '.join(have.uris)} under this id; choose another cplane_id, stop that server first, or give force: true"
    )


def _not_trusted(cplane_id: int, have: Have) -> SharingError:
    return CplaneError(
        f"control plane {cplane_id}: its socket belongs to user {have.owner}, who is neither root nor the user of this "
        "run; nothing was done: have them stop their server, or choose another cplane_id"
    )


def _stranded(cplane_id: int, have: Have) -> SharingError:
    mine = have.process.pid if have.process else None
    return CplaneError(
        f"control plane {cplane_id}: process {have.pid} took the socket from process {mine}, which this module started "
        "and which still runs; end one of them by hand, or give force: true to end both"
    )
