# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme_cplane_info: what it says of servers that speak the wire table, and of what only looks like one."""

from __future__ import annotations

import socket
import zlib
from typing import Any

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import EMU, Lab, run_here

DRIVES = [f"0000:{bus:02x}:00.0" for bus in range(1, 21)]


def test_a_server_that_speaks_the_table_is_told_in_full(lab: Lab) -> None:
    pid = lab.foreign(*DRIVES, arguments=["--clients", "3"])
    result = lab.info()
    (server,) = result["servers"]
    assert {key: server[key] for key in ("cplane_id", "alive", "pid", "version", "protocol", "restart_pending")} == {
        "cplane_id": 7,
        "alive": True,
        "pid": pid,
        "version": 4,
        "protocol": "ok",
        "restart_pending": False,
    }
    assert (server["connections"], server["clients"], server["error"]) == (4, 3, None)
    assert [one["uri"] for one in server["controllers"]] == DRIVES
    assert server["controllers"][0] == {
        "name": DRIVES[0],
        "uri": DRIVES[0],
        "connections": 0,
        "nsq_used": 0,
        "ncq_used": 0,
        "nsq_total": 8,
        "ncq_total": 8,
        "initialized": True,
    }
    assert server["controllers"][1]["nsq_total"] == 0
    assert result["controllers"] == []


def test_many_controllers_are_all_told(lab: Lab) -> None:
    drives = [f"{domain:04x}:01:00.0" for domain in range(70)]
    lab.foreign(*drives)
    (server,) = lab.info(cplane_ids=[7])["servers"]
    assert [one["uri"] for one in server["controllers"]] == drives[:64]


def test_dead_and_hostile_files(lab: Lab) -> None:
    lab.foreign(DRIVES[0], cplane_id=1)
    lab.foreign(DRIVES[1], cplane_id=4294967295)
    lab.foreign(DRIVES[2], cplane_id=5, arguments=["--version", "9"])
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(lab.path(2)))
    lab.path(3).write_text("not a socket")
    lab.path(6).symlink_to(lab.path(1))
    lab.path(8).mkdir()
    for name in ("xnvme-homi-01.sock", "xnvme-homi-.sock", "xnvme-homi-9.sock.bak", "xnvme-homi-99999999999.sock"):
        (lab.sockets / name).touch()
    (lab.sockets / "xnvme-homi-\udcff.sock").touch()
    found = lab.info()["servers"]
    assert [(one["cplane_id"], one["alive"], one["protocol"]) for one in found] == [
        (1, True, "ok"),
        (2, False, None),
        (5, True, "mismatch"),
        (4294967295, True, "ok"),
    ]
    named = lab.info(cplane_ids=[6, 3, 8, 9, 1])["servers"]
    assert [one["alive"] for one in named] == [False, False, False, False, True]
    assert "symbolic link" in named[0]["error"]
    assert named[3]["error"] is None


def test_controllers_are_looked_for_everywhere(lab: Lab) -> None:
    lab.foreign(*DRIVES[:2], cplane_id=1)
    lab.foreign(DRIVES[2], cplane_id=2)
    lab.good(controllers=[EMU])
    result = lab.info(cplane_ids=[9], controllers=["03:00.0", "emu:a", "0000:99:00.0", DRIVES[1]])
    assert [one["cplane_id"] for one in result["servers"]] == [9]
    found = result["controllers"]
    assert [(one["cplane_id"], one["alive"]) for one in found] == [(2, True), (7, True), (None, False), (1, True)]
    assert (found[0]["uri"], found[0]["nsq_total"]) == (DRIVES[2], 8)
    assert (found[1]["name"], found[1]["uri"][:5]) == (EMU, "ffff:")
    assert found[2] == {"uri": "0000:99:00.0", "cplane_id": None, "alive": False}


def test_emulated_names_that_meet_at_one_address_are_told_apart(lab: Lab) -> None:
    assert zlib.crc32(b"n40") & 0xFFFF == zlib.crc32(b"n1300") & 0xFFFF
    lab.good(controllers=["emu:n40", "emu:n1300"])
    found = lab.info(controllers=["emu:n40", "emu:n1300"])["controllers"]
    assert [one["name"] for one in found] == ["emu:n40", "emu:n1300"]
    assert len({one["uri"] for one in found}) == 2


def test_servers_that_hang_cost_no_more_than_the_deadline(lab: Lab) -> None:
    for cplane_id in (1, 2, 3):
        lab.foreign(DRIVES[cplane_id], cplane_id=cplane_id, arguments=["--hang"])
    lab.foreign(DRIVES[0], cplane_id=4)
    result = lab.info(timeout=1.2, controllers=[DRIVES[0]])
    assert [(one["alive"], one["protocol"]) for one in result["servers"]] == [(True, "unknown")] * 3 + [(True, "ok")]
    assert all(one["error"] for one in result["servers"][:3])
    assert result["controllers"][0]["cplane_id"] == 4
    assert 0.9 < result.seconds < 3


def test_a_state_folder_that_others_can_write_is_not_believed(lab: Lab) -> None:
    lab.good(controllers=[EMU])
    lab.state.chmod(0o777)
    (server,) = lab.info()["servers"]
    assert server["controllers"][0]["name"] == server["controllers"][0]["uri"]
    lab.state.chmod(0o755)
    assert lab.info()["servers"][0]["controllers"][0]["name"] == EMU


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"cplane_ids": [0]}, "not shared"),
        ({"cplane_ids": [2**32]}, "4294967295"),
        ({"controllers": [4860.0]}, "quote it"),
        ({"controllers": ["emu:a?x=1"]}, "unknown option"),
        ({"timeout": "inf"}, "timeout"),
        ({"socket_dir": "/proc/1/mem"}, "cannot look for servers"),
    ],
)
def test_what_is_wrong_is_named(lab: Lab, args: Any, words: str) -> None:
    places = {name: lab.args[name] for name in ("socket_dir", "state_dir")}
    result = run_here("xnvme_cplane_info", {**places, **args}, env=lab.env)
    assert result.failed
    result.says(words)


def test_no_folder_holds_no_servers(lab: Lab) -> None:
    assert lab.info(socket_dir=str(lab.home / "none"))["servers"] == []
