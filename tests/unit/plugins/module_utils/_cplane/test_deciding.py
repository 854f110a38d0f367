# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What leads from what is there to what is wanted; every rule, and what must hold for all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import client, errors, process, wanted
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.deciding import (
    Decision,
    Means,
    Options,
    check_kind,
    choose_kind,
    decide_start,
    decide_stop,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
    ServerTimeout,
    UnsafePath,
    VersionMismatch,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.have import Access, Have, describe
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.managers import Programs, Record, access_of
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.program import ProgramPlace
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from hypothesis import given
from hypothesis import strategies as st

URI = "ffff:00:01.0"
WANTED = wanted.Wanted(7, ("emu:a",), (URI,), True)
MEANS = Means("native", "process", "digest", Access(0o660, 0))
RECORD = Record("native", "process", ["emu:a"], [URI], None, None, "digest", access_of(WANTED))
PROCESS = process.Process(100, 1, "boot", ("server",))
PROBLEMS = (VersionMismatch("another version"), ServerTimeout("it hangs"), UnsafePath("a link"))


def serving(*uris: str, clients: int = 0, pid: int = 100, total: int = 64) -> client.ServerInfo:
    ctrlrs = tuple(client.CtrlrInfo(uri, 0, 0, 0, total, total, True) for uri in uris)
    return client.ServerInfo(7, client.Peer(pid, 0, 0), clients + 1, len(uris), ctrlrs)


def ours(clients: int = 0, uris: Tuple[str, ...] = (URI,), record: Optional[Record] = RECORD, **more: Any) -> Have:
    return Have(serving(*uris, clients=clients, **more), None, 100, PROCESS, record, Access(0o660, 0), 0, True)


def foreign(clients: int = 0, uris: Tuple[str, ...] = (URI,), proven: bool = True) -> Have:
    return Have(serving(*uris, clients=clients, pid=200), None, 200, None, None, Access(0o755, 0), 0, proven)


haves = st.one_of(
    st.just(Have()),
    st.builds(ours, st.integers(0, 3), st.sampled_from([(URI,), ("0000:81:00.0",)])),
    st.builds(foreign, st.integers(0, 3), st.sampled_from([(URI,), ("0000:81:00.0",)]), st.booleans()),
    st.builds(lambda problem, pid: Have(None, problem, pid), st.sampled_from(PROBLEMS), st.sampled_from([None, 200])),
    st.builds(lambda left: Have(None, None, None, PROCESS, RECORD, None, left, True), st.sampled_from([None, 0, 2])),
    st.builds(lambda have: replace(have, process=PROCESS), st.builds(foreign, st.integers(0, 2))),
)
means = st.builds(
    Means, st.just("native"), st.just("process"), st.sampled_from(["digest", "newer"]), st.just(Access(0o600, 0))
)


@given(haves, means, st.sampled_from(["started", "stopped", "restarted"]))
def test_nothing_that_is_in_use_or_unknown_is_taken_away(have: Have, now: Means, state: str) -> None:
    options = Options(state)
    decision = decide_stop(7, have, options) if state == "stopped" else decide_start(WANTED, have, options, now)
    if have.clients != 0 or (have.alive and not have.proven):
        assert "stop" not in decision.commands
    if have.alive:
        assert decision.commands != ("start",)
    if decision.error is not None:
        assert (decision.commands, decision.pending) == ((), False)


@given(haves, means)
def test_a_server_of_somebody_else_is_never_touched_by_started(have: Have, now: Means) -> None:
    decision = decide_start(WANTED, have, Options(), now)
    if have.alive and have.record is None:
        assert decision.commands == ()
        assert (decision.error is None) == (have.uris == (URI,))


@given(haves, means, st.booleans())
def test_a_socket_of_another_user_is_refused_by_started_only(have: Have, now: Means, force: bool) -> None:
    theirs = replace(have, owner=os.geteuid() + 1)
    decision = decide_start(WANTED, theirs, Options(force=force), now)
    if have.alive and not have.ours:
        assert decision.commands == ()
        assert decision.error is not None
        assert f"user {os.geteuid() + 1}" in decision.error.message
    else:
        assert repr(decision) == repr(decide_start(WANTED, have, Options(force=force), now))
    stopped = Options("stopped", force)
    assert repr(decide_stop(7, theirs, stopped)) == repr(decide_stop(7, have, stopped))


@given(haves, means)
def test_with_force_only_an_unknown_process_is_refused(have: Have, now: Means) -> None:
    decision = decide_stop(7, have, Options("stopped", force=True))
    assert (decision.error is not None) == (have.alive and not have.proven)
    assert (decision.commands == ("stop",)) == ((have.alive or have.process is not None) and decision.error is None)


def test_what_is_right_needs_nothing() -> None:
    assert decide_start(WANTED, ours(), Options(), MEANS) == Decision()
    assert decide_stop(7, Have(), Options("stopped")) == Decision()
    assert decide_stop(7, Have(None, PROBLEMS[2]), Options("stopped")) == Decision()


@pytest.mark.parametrize(
    ("other", "now"),
    [
        (WANTED, replace(MEANS, program="newer")),
        (WANTED, replace(MEANS, manager="systemd")),
        (WANTED, replace(MEANS, kind="homi")),
        (replace(WANTED, heap_size=4096), MEANS),
        (replace(WANTED, backend="upcie"), MEANS),
        (replace(WANTED, controllers=("emu:a?size=1M",)), MEANS),
    ],
)
def test_every_other_difference_waits_for_an_idle_server(other: wanted.Wanted, now: Means) -> None:
    assert decide_start(other, ours(), Options(), now) == Decision(("stop", "start"))
    assert decide_start(other, ours(1), Options(), now) == Decision(restart_pending=True)
    assert decide_start(other, ours(1), Options(force=True), now) == Decision(("stop", "start"))


def test_access_is_what_was_told_and_what_the_socket_shows() -> None:
    assert decide_start(replace(WANTED, allow_uids=(5,)), ours(2), Options(), MEANS) == Decision(("configure",))
    now = replace(MEANS, access=Access(0o660, 5))
    assert decide_start(WANTED, ours(2), Options(), now) == Decision(("configure",))
    assert decide_start(WANTED, ours(2), Options(), replace(MEANS, access=Access(0o660, -1))) == Decision()


def test_a_dead_controller_is_a_difference_for_our_server_only() -> None:
    assert decide_start(WANTED, ours(total=0), Options(), MEANS) == Decision(("stop", "start"))
    record = replace(RECORD, kind="homi", program="")
    now = replace(MEANS, kind="homi", program="")
    assert decide_start(WANTED, ours(total=0, record=record), Options(), now) == Decision()


def test_waiting_is_pending() -> None:
    options = Options("stopped", drain_timeout=5)
    assert decide_stop(7, ours(1), options) == Decision(("stop",), pending=True)
    assert decide_stop(7, ours(0), options) == Decision(("stop",))


@pytest.mark.parametrize(("clients", "words"), [(1, "1 client is connected"), (3, "3 clients are connected")])
def test_a_refusal_counts(clients: int, words: str) -> None:
    error = decide_stop(7, ours(clients), Options("stopped")).error
    assert error is not None
    assert words in error.message
    assert error.details["in_use"] == [words]


def test_clients_that_cannot_be_counted_are_a_reason() -> None:
    have = Have(None, None, None, PROCESS, RECORD, None, None, True)
    error = decide_stop(7, have, Options("stopped")).error
    assert error is not None
    assert "cannot be counted" in error.message


def test_two_processes_of_one_id_are_named() -> None:
    error = decide_stop(7, replace(foreign(), process=PROCESS), Options("stopped")).error
    assert error is not None
    assert "process 200" in error.message
    assert "process 100" in error.message


# -- which server -----------------------------------------------------------------------------------------------------


def programs(tmp_path: Path, installed: bool) -> Programs:
    homi = tmp_path / "homi"
    if installed:
        homi.touch()
        homi.chmod(0o755)
    return Programs(ProgramPlace(None, None, None, None), str(homi))


REAL = wanted.Wanted(7, ("0000:81:00.0",), ("0000:81:00.0",))


def test_auto(tmp_path: Path) -> None:
    assert choose_kind(WANTED, Have(), programs(tmp_path, False)) == "native"
    with pytest.raises(errors.NotYet, match="homi"):
        choose_kind(REAL, Have(), programs(tmp_path, False))
    assert choose_kind(REAL, foreign(), programs(tmp_path, False)) == "homi"
    assert choose_kind(REAL, Have(), programs(tmp_path, True)) == "homi"


def test_the_native_server_over_real_controllers_must_be_named(tmp_path: Path) -> None:
    """Once it runs, it is kept."""
    assert choose_kind(replace(REAL, server="native"), Have(), programs(tmp_path, True)) == "native"
    mixed = replace(WANTED, controllers=("0000:81:00.0", "emu:a"), server="native")
    assert choose_kind(mixed, Have(), programs(tmp_path, True)) == "native"
    running = Have(pid=PROCESS.pid, process=PROCESS, record=RECORD)
    assert choose_kind(REAL, running, programs(tmp_path, True)) == "native"
    assert choose_kind(REAL, replace(running, pid=PROCESS.pid + 1), programs(tmp_path, True)) == "homi"
    assert choose_kind(REAL, replace(running, record=replace(RECORD, kind="homi")), programs(tmp_path, True)) == "homi"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (replace(WANTED, server="homi"), "emulated"),
        (replace(WANTED, controllers=("0000:81:00.0", "emu:a")), "0000:81:00.0"),
    ],
)
def test_what_no_server_can_serve_is_refused(one: wanted.Wanted, words: str, tmp_path: Path) -> None:
    with pytest.raises(SharingError, match=words):
        choose_kind(one, Have(), programs(tmp_path, True))


def test_options_that_a_server_has_not_got_are_refused() -> None:
    with pytest.raises(SharingError, match="allow_uids"):
        check_kind(replace(REAL, allow_uids=(1,)), "homi")
    with pytest.raises(SharingError, match="backend"):
        check_kind(replace(WANTED, backend="upcie"), "native")


def test_what_is_told_of_a_server() -> None:
    assert describe(7, Have(None, VersionMismatch("another version", version=5)))["version"] == 5
    assert describe(7, Have(None, VersionMismatch("another version")))["version"] is None
    assert describe(7, Have(None, ServerTimeout("it hangs", version=5)))["version"] is None
    assert describe(7, Have())["version"] is None
    assert describe(7, ours())["version"] == 4
    pending = [
        describe(7, have)["restart_pending"]
        for have in (ours(1, total=0), ours(1, uris=("ffff:00:02.0",)), ours(1), ours(total=0), foreign(1), Have())
    ]
    assert pending == [True, True, False, False, False, False]
