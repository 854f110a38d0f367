# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme_cplane with the native server: states, settings, clients, what lies in the way."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import Any, Iterator, List
from unittest import mock

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import client, managers
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import (
    EMU,
    Lab,
    alive,
    children,
    seen_by,
    wait_for,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import run

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")
NOBODY = 65534


@pytest.fixture
def real(tmp_path: Path, programs: Path) -> Iterator[Lab]:
    """The modules run as Ansible runs them."""
    made = Lab(tmp_path, programs, run)
    yield made
    made.close()


def mode_of(lab: Lab) -> str:
    return f"{stat.S_IMODE(lab.path().stat().st_mode):04o}"


# -- states -----------------------------------------------------------------------------------------------------------


def test_started_from_nothing_serves_and_says_so(lab: Lab) -> None:
    server = lab.cycle("start", controllers=[EMU])
    uri = server["controllers"][0]["uri"]
    assert server == {
        "cplane_id": 7,
        "alive": True,
        "pid": lab.served(),
        "owner": os.geteuid(),
        "version": 4,
        "protocol": "ok",
        "connections": 1,
        "clients": 0,
        "restart_pending": False,
        "controllers": [
            {
                "name": EMU,
                "uri": uri,
                "connections": 0,
                "nsq_used": 0,
                "ncq_used": 0,
                "nsq_total": 64,
                "ncq_total": 64,
                "initialized": True,
            }
        ],
        "error": None,
        "action": "start",
    }
    assert uri.startswith("ffff:")
    assert mode_of(lab) == "0660"


def test_stopped_ends_it_and_removes_the_socket(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    server = lab.cycle("stop", state="stopped")
    assert (server["alive"], server["pid"], server["controllers"]) == (False, None, [])
    assert not alive(pid)
    assert not lab.path().exists()


def test_stopped_where_nobody_serves_changes_nothing(lab: Lab) -> None:
    assert lab.cycle("none", state="stopped")["alive"] is False


def test_restarted_starts_and_then_restarts_each_time(lab: Lab) -> None:
    first = lab.cycle("start", again=False, state="restarted", controllers=[EMU])
    second = lab.cycle("stop, start", again=False, state="restarted", controllers=[EMU])
    assert first["pid"] != second["pid"]


def test_the_controllers_are_a_set(lab: Lab) -> None:
    lab.good(controllers=["emu:b", EMU])
    server = lab.cycle("none", controllers=[EMU, "emu:b", EMU])
    assert [one["name"] for one in server["controllers"]] == [EMU, "emu:b"]


def test_other_controllers_are_a_restart(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    server = lab.cycle("stop, start", controllers=[EMU, "emu:b"])
    assert [one["name"] for one in server["controllers"]] == [EMU, "emu:b"]


def test_a_life_as_ansible_runs_it(real: Lab) -> None:
    first = real.cycle("start", controllers=[EMU])
    with real.client():
        real.refused("1 client is connected", controllers=["emu:b"])
        real.refused("1 client is connected", state="stopped")
    second = real.cycle("stop, start", controllers=["emu:b", EMU])
    assert (alive(first["pid"]), alive(second["pid"])) == (False, True)
    (seen,) = real.info()["servers"]
    assert (seen["pid"], [one["name"] for one in seen["controllers"]]) == (second["pid"], [EMU, "emu:b"])
    real.cycle("stop", state="stopped")
    assert real.info()["servers"] == []


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [{"state": "stopped"}, {"state": "restarted", "controllers": [EMU]}, {"controllers": ["emu:b"]}],
    ids=["stopped", "restarted", "other controllers"],
)
def test_a_server_with_clients_is_refused_and_forced(lab: Lab, args: Any) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    with lab.client(), lab.client():
        result = lab.refused("2 clients are connected", "force", **args)
        assert result["errors"][0]["in_use"] == ["2 clients are connected"]
        assert (result["server"]["action"], result["server"]["clients"]) == ("none", 2)
        assert lab.served() == pid
        lab.good(force=True, **args)
    assert not alive(pid)


def test_a_server_is_drained(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    held = lab.client()
    check = lab.good(True, state="stopped", drain_timeout=20)
    assert (check.changed, check["pending"], check["server"]["action"]) == (True, True, "pending")
    assert check["server"]["clients"] == 1
    leaving = threading.Timer(0.7, held.close)
    leaving.start()
    result = lab.good(state="stopped", drain_timeout=20)
    leaving.join()
    assert (result["server"]["action"], alive(pid)) == ("stop", False)


def test_clients_that_stay_are_refused_after_the_time(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    with lab.client():
        result = lab.bad("1 client is connected", state="stopped", drain_timeout=1.2)
    assert (result.changed, result["server"]["action"], lab.served()) == (False, "none", pid)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_access_changes_under_a_running_server(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    with lab.client():
        server = lab.cycle("configure", controllers=[EMU], socket_mode="0600", socket_group=str(os.getegid()))
        assert (server["pid"], server["clients"], mode_of(lab)) == (pid, 1, "0600")
    lab.path().chmod(0o666)
    lab.cycle("configure", controllers=[EMU], socket_mode="600", socket_group=str(os.getegid()))
    assert mode_of(lab) == "0600"


def test_an_unknown_group_is_refused_and_pending_in_check_mode(lab: Lab) -> None:
    check = lab.good(True, controllers=[EMU], socket_group="no-such-group")
    assert (check["pending"], check["server"]["action"]) == (True, "pending")
    lab.bad("socket_group", "no-such-group", controllers=[EMU], socket_group="no-such-group")
    assert lab.served() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"socket_group": "no-such-group"},
        {"socket_group": str(2**32)},
        {"allow_uids": [2**32]},
        {"allow_uids": [-1]},
        {"socket_mode": "0999"},
    ],
)
@pytest.mark.parametrize("state", ["started", "restarted"])
def test_wrong_access_neither_stops_nor_changes_a_server(lab: Lab, wrong: Any, state: str) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    remembered = {path.name: path.read_bytes() for path in lab.state.iterdir()}
    for controllers in ([EMU], ["emu:b"]):
        result = lab.bad(*wrong, controllers=controllers, state=state, **wrong)
        assert (result.changed, lab.served(), mode_of(lab)) == (False, pid, "0660")
    assert {path.name: path.read_bytes() for path in lab.state.iterdir()} == remembered


def test_access_that_the_server_does_not_take_fails_each_time(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    settings = lab.state / "7.settings.json"
    with mock.patch.object(managers.Registry, "save", lambda *_: settings.write_text("not json")):
        result = lab.bad("take its new settings", "stay as they were", controllers=[EMU], socket_mode="0600")
    assert (result.changed, mode_of(lab), lab.served()) == (False, "0660", pid)
    lab.cycle("configure", controllers=[EMU], socket_mode="0600")


@ROOT_ONLY
def test_group_and_allow_list_are_seen_by_other_users(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    assert seen_by(NOBODY, lab) == "denied"
    lab.cycle("configure", controllers=[EMU], socket_group=str(NOBODY))
    assert lab.path().stat().st_gid == NOBODY
    assert seen_by(NOBODY, lab) == "answered"
    lab.cycle("configure", controllers=[EMU], socket_group=str(NOBODY), allow_uids=[NOBODY - 1])
    assert seen_by(NOBODY, lab) == "closed"
    lab.cycle("configure", controllers=[EMU], socket_group=str(NOBODY), allow_uids=[NOBODY, NOBODY - 1])
    assert seen_by(NOBODY, lab) == "answered"


def test_other_drift_waits_until_the_server_is_idle(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    with lab.client():
        server = lab.cycle("none", controllers=[EMU], heap_size="32M")
        assert (server["restart_pending"], server["pid"]) == (True, pid)
        both = lab.cycle("configure", controllers=[EMU], heap_size="32M", socket_mode="0600")
        assert (both["restart_pending"], mode_of(lab)) == (True, "0600")
    server = lab.cycle("stop, start", controllers=[EMU], heap_size="32M")
    assert (server["restart_pending"], server["pid"] != pid) == (False, True)


def test_force_restarts_for_other_drift(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    with lab.client():
        assert lab.good(controllers=[EMU], heap_size="32M", force=True)["server"]["action"] == "stop, start"


# -- a server that does not come up ------------------------------------------------------------------------------------


@pytest.fixture
def in_use(tmp_path: Path) -> Iterator[str]:
    """A controller whose file somebody else uses, which only its server's start shows."""
    with (tmp_path / "disk").open("wb") as disk:
        fcntl.flock(disk, fcntl.LOCK_EX)
        yield f"emu:a?path={tmp_path}/disk&size=1M"


def remembered(lab: Lab) -> List[str]:
    return [path.name for path in lab.state.iterdir() if path.suffix in (".pid", ".json", ".new")]


def test_a_server_that_dies_while_starting_says_why(lab: Lab, in_use: str) -> None:
    result = lab.bad("while starting", "in use", controllers=[in_use])
    assert "in use" in result["errors"][0]["output"]
    assert (result.changed, result["server"]["alive"], result["server"]["action"]) == (False, False, "none")
    assert remembered(lab) == []
    lab.cycle("start", controllers=[EMU])


def test_a_record_that_cannot_be_written_leaves_nothing(lab: Lab) -> None:
    lab.state.mkdir()
    (lab.state / "7.json.new").symlink_to("elsewhere")
    lab.bad("cannot write", "7.json", controllers=[EMU])
    assert (remembered(lab), lab.served()) == ([], None)
    lab.cycle("start", controllers=[EMU])


def test_a_restart_that_fails_says_what_it_changed(lab: Lab, in_use: str) -> None:
    lab.good(controllers=[EMU])
    result = lab.bad("while starting", controllers=[in_use])
    assert (result.changed, result["server"]["action"], result["server"]["alive"]) == (True, "stop", False)
    assert remembered(lab) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"controllers": ["emu:a?path=/nowhere/disk&size=1M"]}, "no folder /nowhere"),
        ({"controllers": ["emu:a?path=/dev/null"]}, "not a regular file"),
        ({"controllers": [EMU], "heap_size": "4K"}, "heap_size"),
        ({"controllers": [EMU, "emu:a?size=2M"]}, "named twice"),
    ],
)
@pytest.mark.parametrize("state", ["started", "restarted"])
def test_what_cannot_start_takes_no_server_away(lab: Lab, args: Any, words: str, state: str) -> None:
    lab.refused(words, state=state, **args)
    pid = lab.good(controllers=["emu:b?size=1M"])["server"]["pid"]
    lab.refused(words, state=state, **args)
    assert lab.served() == pid


def test_many_servers_are_one_task(lab: Lab, in_use: str) -> None:
    servers = [
        {"cplane_id": 1, "controllers": [EMU]},
        {"cplane_id": 2, "controllers": [in_use]},
        {"cplane_id": 3, "controllers": [81.0]},
        {"cplane_id": 4, "controllers": [EMU], "socket_mode": "0600"},
    ]
    result = lab.bad("2 of 4 servers failed", "quote it", "while starting", servers=servers)
    assert result.changed
    assert [one["action"] for one in result["servers"]] == ["start", "none", "none", "start"]
    assert [one["alive"] for one in result["servers"]] == [True, False, False, True]
    assert [one["element"] for one in result["errors"]] == ["control plane 2", "control plane 3"]
    assert "server" not in result
    assert (lab.served(1) is None, lab.served(4) is None) == (False, False)
    stopped = lab.good(state="stopped", servers=[{"cplane_id": number} for number in (4, 1)])
    assert [one["action"] for one in stopped["servers"]] == ["stop", "stop"]


# -- what is asked for wrongly ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"cplane_id": 0}, ["not shared"]),
        ({"cplane_id": 2**32}, ["4294967295"]),
        ({"controllers": [4860.0]}, ["quote it"]),
        ({"controllers": ["81:00"]}, ["81:00"]),
        ({"controllers": ["emu:a?size=banana"]}, ["size=banana"]),
        ({"controllers": []}, ["no controllers"]),
        ({"controllers": [EMU], "socket_mode": 432}, ["socket_mode", "quote it"]),
        ({"controllers": [EMU], "heap_size": "much"}, ["heap_size"]),
        ({"controllers": [EMU], "allow_uids": [-1]}, ["allow_uids"]),
        ({"controllers": [EMU], "allow_uids": [2**32]}, ["allow_uids"]),
        ({"controllers": [EMU], "socket_mode": "01660"}, ["socket_mode"]),
        ({"controllers": [EMU], "socket_mode": "0668"}, ["socket_mode"]),
        ({"controllers": [EMU], "socket_mode": "u=rw"}, ["socket_mode"]),
        ({"controllers": [EMU], "socket_group": str(2**32 - 1)}, ["socket_group"]),
        ({"controllers": [EMU], "socket_group": "9" * 6000}, ["socket_group"]),
        ({"controllers": [EMU], "socket_group": "a\0b"}, ["socket_group"]),
        ({"controllers": [EMU], "socket_group": "\u0665"}, ["socket_group"]),
        ({"controllers": [EMU], "socket_group": "-1"}, ["socket_group"]),
        ({"controllers": [EMU], "server": "homi"}, ["emulated"]),
        ({"controllers": [EMU], "backend": "upcie"}, ["backend"]),
        ({"controllers": [EMU, "0000:81:00.0"]}, ["0000:81:00.0"]),
        ({"controllers": ["ffff:fe:1f.7"], "server": "native"}, ["ffff:fe:1f.7: there is no such PCI device"]),
        ({"servers": [{"cplane_id": 7}, {"cplane_id": 7}]}, ["named twice"]),
        ({"controllers": [EMU], "timeout": "nan"}, ["timeout"]),
        ({"controllers": [EMU], "drain_timeout": "inf"}, ["drain_timeout"]),
    ],
)
def test_what_is_wrong_is_named(lab: Lab, args: Any, words: Any) -> None:
    lab.refused(*words, **args)
    assert list(lab.sockets.iterdir()) == []


# -- what lies in the way ---------------------------------------------------------------------------------------------


def test_a_stale_socket_is_no_obstacle(lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(lab.path()))
    lab.cycle("start", controllers=[EMU])


def test_a_file_and_a_link_are_refused_and_stay(lab: Lab) -> None:
    lab.path().write_text("precious")
    lab.refused("not a socket", controllers=[EMU])
    lab.cycle("none", state="stopped")
    assert lab.path().read_text() == "precious"
    lab.path().rename(lab.sockets / "elsewhere")
    lab.path().symlink_to(lab.sockets / "elsewhere")
    lab.refused("not a socket", controllers=[EMU])
    assert lab.good(state="stopped")["server"]["alive"] is False
    assert lab.path().is_symlink()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
@pytest.mark.parametrize("state", ["started", "restarted"])
def test_whatever_is_no_socket_is_refused_and_stays(lab: Lab, make: Any, state: str) -> None:
    make(lab.path())
    before = os.lstat(lab.path())
    lab.refused("not a socket", controllers=[EMU], state=state)
    assert lab.good(True, state="stopped")["server"] == lab.good(state="stopped")["server"]
    assert os.path.samestat(os.lstat(lab.path()), before)


def test_forced_stops_are_foreseen_in_full(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    with lab.client():
        check = lab.good(True, state="stopped", force=True)
        apply = lab.good(state="stopped", force=True)
    assert check["server"] == apply["server"]
    assert (check["server"]["alive"], check["server"]["clients"], check["server"]["controllers"]) == (False, 0, [])
    assert (check["server"]["protocol"], check["server"]["version"]) == (None, None)


@ROOT_ONLY
def test_the_dead_socket_of_somebody_else_is_refused_and_stays(lab: Lab) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(lab.path()))
    os.chown(lab.path(), NOBODY, NOBODY)
    lab.refused(f"user {NOBODY}", controllers=[EMU])
    assert lab.path().is_socket()


@ROOT_ONLY
def test_a_state_folder_of_somebody_else_is_refused(lab: Lab) -> None:
    lab.state.mkdir()
    os.chown(lab.state, NOBODY, NOBODY)
    lab.refused("belongs to another user", controllers=[EMU])
    lab.refused("belongs to another user", state="stopped")


def test_a_state_folder_that_others_can_write_is_refused(lab: Lab) -> None:
    lab.state.mkdir()
    lab.state.chmod(0o777)
    lab.refused("state_dir", controllers=[EMU])


# -- death ------------------------------------------------------------------------------------------------------------


def test_a_server_that_was_killed_is_started_again(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    processes = children(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, [pid, *processes])))
    assert lab.path().exists()
    assert lab.info(cplane_ids=[7])["servers"][0]["alive"] is False
    server = lab.cycle("start", controllers=[EMU])
    assert server["pid"] != pid


def test_a_server_whose_controller_died_is_restarted_when_idle(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU, "emu:b"])["server"]["pid"]
    os.kill(children(pid)[0], signal.SIGKILL)
    wait_for(lambda: 0 in [one["nsq_total"] for one in lab.info()["servers"][0]["controllers"]])
    with lab.client():
        server = lab.cycle("none", controllers=[EMU, "emu:b"])
        assert (server["restart_pending"], server["pid"]) == (True, pid)
        assert lab.info()["servers"][0]["restart_pending"] is True
    server = lab.cycle("stop, start", controllers=[EMU, "emu:b"])
    assert lab.info()["servers"][0]["restart_pending"] is False
    assert [one["nsq_total"] for one in server["controllers"]] == [64, 64]


@pytest.mark.parametrize(
    "text", ["", "12", "{", "[]", "[" * 100000, '{"pid": -1}', '{"pid": 1, "start_time": 0}', '{"pid": Infinity}']
)
def test_garbage_in_the_pid_file_means_nobody(lab: Lab, text: str) -> None:
    lab.state.mkdir()
    (lab.state / "7.pid").write_text(text)
    (lab.state / "7.json").write_text(text)
    assert lab.good(state="stopped")["server"]["action"] == "none"


def test_a_recycled_number_is_never_ended(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    written = json.loads((lab.state / "7.pid").read_text())
    lab.good(state="stopped")
    stranger = lab.foreign("0000:01:00.0", cplane_id=8)
    (lab.state / "7.pid").write_text(json.dumps({**written, "pid": stranger}))
    assert lab.good(state="stopped", force=True)["server"]["action"] == "none"
    assert alive(stranger)


def test_a_server_that_lost_its_socket_is_ended_only_without_clients(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    with lab.client():
        lab.path().unlink()
        lab.refused("1 client is connected", controllers=[EMU])
        lab.refused("1 client is connected", state="stopped")
        assert alive(pid)
    wait_for(lambda: lab.good(True, state="stopped", drain_timeout=0.1)["server"]["action"] == "stop")
    server = lab.cycle("stop, start", controllers=[EMU])
    assert (server["pid"] != pid, alive(pid)) == (True, False)


# -- servers that somebody else started --------------------------------------------------------------------------------


def test_a_foreign_server_that_serves_what_is_wanted_is_left_as_it_is(lab: Lab) -> None:
    pid = lab.native(EMU)
    server = lab.cycle("none", controllers=["emu:a"], heap_size="32M", socket_mode="0600")
    assert (server["pid"], server["restart_pending"], mode_of(lab)) == (pid, False, "0660")


def test_a_foreign_server_with_other_controllers_is_refused(lab: Lab) -> None:
    pid = lab.native("emu:other")
    lab.refused(f"process {pid}", "did not start", controllers=[EMU])
    assert lab.served() == pid
    lab.good(controllers=[EMU], force=True)
    wait_for(lambda: lab.ended(pid))


def test_a_foreign_server_is_stopped_only_without_clients(lab: Lab) -> None:
    pid = lab.foreign("0000:01:00.0")
    with lab.client():
        lab.refused("1 client is connected", state="stopped")
        assert lab.served() == pid
    server = lab.cycle("stop", state="stopped")
    assert (server["alive"], lab.ended(pid)) == (False, True)


def test_a_foreign_server_that_does_not_end_is_killed_by_force_only(lab: Lab) -> None:
    pid = lab.foreign("0000:01:00.0", arguments=["--ignore-term"])
    lab.bad(f"process {pid}", "runs on", state="stopped", timeout=0.3)
    assert lab.served() == pid
    lab.good(state="stopped", timeout=0.3, force=True)
    assert wait_for(lambda: lab.ended(pid))


@pytest.mark.parametrize(
    ("arguments", "protocol", "words"),
    [
        (["--version", "5"], "mismatch", "version"),
        (["--hang"], "unknown", "reply"),
        (["--full"], "unknown", "nothing was done"),
    ],
    ids=["another version", "hangs", "full"],
)
def test_a_server_that_cannot_be_understood_is_refused(lab: Lab, arguments: Any, protocol: str, words: str) -> None:
    pid = lab.foreign("0000:01:00.0", arguments=arguments)
    result = lab.bad("cannot be understood", words, check=protocol == "unknown", controllers=[EMU])
    server = result["server"]
    assert (server["alive"], server["protocol"]) == (True, protocol)
    assert server["version"] in ((5, None) if protocol == "mismatch" else (None,))
    assert (server["connections"], server["clients"], server["controllers"]) == (None, None, [])
    assert server["pid"] == pid
    assert alive(pid)
    (told,) = lab.info(timeout=1)["servers"]
    assert (told["alive"], told["protocol"], bool(told["error"])) == (True, protocol, True)


def test_a_server_of_another_version_is_ended_by_force(lab: Lab) -> None:
    pid = lab.foreign("0000:01:00.0", arguments=["--version", "3"])
    lab.refused("cannot be understood", state="stopped")
    server = lab.cycle("stop, start", again=False, controllers=[EMU], force=True)
    assert (server["protocol"], lab.ended(pid)) == ("ok", True)


def test_the_wire_server_is_found_by_our_client(lab: Lab) -> None:
    lab.foreign("0000:01:00.0", "0000:02:00.0")
    seen = client.read_server(7, str(lab.sockets))
    assert [one.uri for one in seen.controllers] == ["0000:01:00.0", "0000:02:00.0"]


def test_a_number_that_another_server_got_is_never_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.foreign("0000:01:00.0")
    stranger = lab.foreign("0000:02:00.0", cplane_id=8)
    peer = client.Connection.peer
    monkeypatch.setattr(
        client.Connection, "peer", lambda self: peer(self)._replace(pid=stranger) if "-7." in self.path else peer(self)
    )
    lab.refused(f"process {stranger}", "cannot be seen", state="stopped")
    lab.refused(f"process {stranger}", "cannot be seen", state="stopped", force=True)
    assert alive(stranger)
    assert lab.served() is not None


@pytest.mark.parametrize("option", ["--orphan", "--supervise"])
def test_a_server_whose_listener_is_a_childs_too_is_not_ended(lab: Lab, option: str) -> None:
    pid = lab.foreign("0000:01:00.0", arguments=[option])
    if option == "--orphan":
        wait_for(lambda: lab.ended(pid))
    lab.refused(f"process {pid}", "cannot be seen", state="stopped", force=True)
    assert lab.served() == pid
    assert lab.ended(pid) == (option == "--orphan")


def test_a_server_that_is_started_again_behind_our_back_is_told(lab: Lab) -> None:
    pid = lab.foreign("0000:01:00.0", arguments=["--respawn"])
    result = lab.bad("was stopped, but process", "starts it again", state="stopped")
    assert (result.changed, result["server"]["alive"], lab.ended(pid)) == (False, True, True)
    assert result["server"]["pid"] != pid


@ROOT_ONLY
@pytest.mark.parametrize("args", [{}, {"state": "restarted"}, {"force": True}], ids=["started", "restarted", "force"])
def test_a_socket_of_another_user_is_nothing_to_rely_on(lab: Lab, args: Any) -> None:
    pid = lab.native(EMU)
    os.chown(lab.path(), NOBODY, -1)
    result = lab.refused(f"belongs to user {NOBODY}", "nothing was done", controllers=[EMU], **args)
    assert (result["server"]["alive"], result["server"]["owner"], lab.served()) == (True, NOBODY, pid)
    (told,) = lab.info()["servers"]
    assert (told["alive"], told["owner"]) == (True, NOBODY)


@ROOT_ONLY
def test_our_own_server_is_known_whoever_has_its_socket(lab: Lab) -> None:
    pid = lab.good(controllers=[EMU])["server"]["pid"]
    os.chown(lab.path(), NOBODY, -1)
    server = lab.cycle("none", controllers=[EMU])
    assert (server["pid"], server["owner"]) == (pid, NOBODY)
