# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a unit starts its server: what it takes for its order, what it says to the service manager, when it gives up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence
from unittest import mock

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import launch, process
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import (
    EMU,
    Lab,
    alive,
    children,
    wait_for,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import COLLECTIONS_PATH, good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, nvme

DRIVE, DRIVE2 = "0000:81:00.0", "0000:82:00.0"
URI = "ffff:be:08.3"
SERVE = f"import sys; from {launch.__name__} import main; sys.exit(main(sys.argv[1:]))"
TRY_AGAIN, NOTHING = 75, 78
PATIENCE = 90.0
"""Seconds for what takes one: others may want the machine, too."""


class Manager:
    """A service manager that only listens: it reads what a unit says, and answers barriers."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.said: queue.Queue[str] = queue.Queue()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.path)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            data, rights, _flags, _address = self._sock.recvmsg(4096, socket.CMSG_SPACE(4))
            for _level, _kind, fd in rights:
                os.close(int.from_bytes(fd, sys.byteorder))
            if data == b"end":
                return
            if data != b"BARRIER=1":
                self.said.put(data.decode())

    def hears(self, words: str) -> None:
        """The next thing that is said."""
        said = self.said.get(timeout=PATIENCE)
        assert words in said, f"{words!r} expected, not {said!r}"

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"end", self.path)
        self._thread.join(PATIENCE)
        self._sock.close()


class Unit:
    """What systemd has of a unit: the manager, and processes that it starts."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.lab, self.config = lab, folder / "sharing.json"
        self.manager = Manager(folder / "notify")
        self.errors = folder / "journal"
        self._started: List[subprocess.Popen[bytes]] = []

    def record(self, *controllers: str, borrowed: Any = (), places: Any = None, **more: Any) -> None:
        """Record a control plane for this host."""
        entry = {"cplane_id": 7, "controllers": controllers, "homi": str(self.lab.homi), "program": self.lab.program}
        entry.update(socket_dir=str(self.lab.sockets), state_dir=str(self.lab.state), **more)
        data: Dict[str, Any] = {"format": 1, "cplanes": [entry], "borrower": {"devices": list(borrowed)}}
        self.config.write_text(json.dumps({**data, "places": places or {}}))

    @property
    def environment(self) -> Dict[str, str]:
        return {**self.lab.env, "NOTIFY_SOCKET": self.manager.path}

    def start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", SERVE, "7", "--config", str(self.config)]
        env = {**os.environ, **self.environment, "PYTHONPATH": str(COLLECTIONS_PATH)}
        with self.errors.open("ab") as errors:
            started = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self._started.append(started)
        return started

    def fails(self, status: int, *words: str, cplane_id: str = "7", arguments: Sequence[str] = ()) -> None:
        """A start that does not become a server; systemd and the journal are told why."""
        journal = io.StringIO()
        with mock.patch.dict(os.environ, self.environment), contextlib.redirect_stderr(journal):
            assert launch.main([cplane_id, "--config", str(self.config), *arguments]) == status
        said = self.manager.said.get(timeout=PATIENCE)
        assert said == f"STATUS={journal.getvalue()[:-1]}"
        for word in words:
            assert word in said

    def remembered(self) -> Any:
        path = self.lab.state / "7.json"
        return json.loads(path.read_text()) if path.exists() else None

    def stop(self, started: subprocess.Popen[bytes]) -> None:
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE) == 0, self.errors.read_text()

    def close(self) -> None:
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.wait()
        self.manager.close()


@pytest.fixture
def unit(tmp_path: Path, programs: Path) -> Iterator[Unit]:
    lab = Lab(tmp_path, programs)
    lab.state.mkdir(mode=0o755)
    made = Unit(tmp_path, lab)
    yield made
    made.close()
    lab.close()


@pytest.fixture
def borrower(unit: Unit, fabric: Fabric) -> Node:
    """A node that may borrow two drives, as the unit's host."""
    fabric.node(4, [nvme(DRIVE, 0), nvme(DRIVE2, 1)])
    node = fabric.node(8)
    fabric.connect(4, 8)
    fabric.lend(4, DRIVE, DRIVE2)
    unit.lab.args.update({name: node.args[name] for name in ("tool", "sysfs", "proc", "dev")})
    unit.lab.args["smartio_state_dir"] = node.args["state_dir"]
    unit.record("claim:scratch", places={name: value for name, value in node.args.items() if name != "timeout"})
    return node


def served(unit: Unit) -> List[str]:
    (server,) = unit.lab.info(cplane_ids=[7])["servers"]
    return [one["uri"] for one in server["controllers"]]


# -- ours -------------------------------------------------------------------------------------------------------------


def test_the_unit_becomes_the_server_that_is_recorded(unit: Unit) -> None:
    unit.record(EMU, socket_mode="0600", allow_uids=[0, 4711], heap_size="16M")
    started = unit.start()
    unit.manager.hears("READY=1")
    assert (unit.lab.served(), served(unit)) == (started.pid, [URI])
    assert stat.S_IMODE(unit.lab.path().stat().st_mode) == 0o600
    record = unit.remembered()
    assert (record["kind"], record["manager"], record["written"], record["uris"]) == ("native", "systemd", [EMU], [URI])
    assert record["heap_size"] == 16 << 20
    assert json.loads((unit.lab.state / "7.settings.json").read_text()) == record["access"]
    started.send_signal(signal.SIGHUP)
    unit.manager.hears("RELOADING=1\nMONOTONIC_USEC=")
    unit.manager.hears("READY=1")
    unit.stop(started)
    unit.manager.hears("STOPPING=1")


def test_what_the_module_remembers_comes_first(unit: Unit) -> None:
    unit.record("emu:b")
    started = unit.start()
    unit.manager.hears("READY=1")
    unit.stop(started)
    unit.manager.hears("STOPPING=1")
    unit.record("emu:c")
    started = unit.start()
    unit.manager.hears("READY=1")
    assert unit.remembered()["written"] == ["emu:b"]
    unit.stop(started)
    unit.manager.hears("STOPPING=1")
    (unit.lab.state / "7.json").unlink()
    unit.start()
    unit.manager.hears("READY=1")
    assert unit.remembered()["written"] == ["emu:c"]


def test_a_process_that_serves_the_id_is_left_alone(unit: Unit) -> None:
    pid = unit.lab.good(controllers=[EMU])["server"]["pid"]
    before = unit.remembered()
    unit.record("emu:b")
    unit.fails(TRY_AGAIN, f"is served already, by process {pid}")
    assert (unit.remembered(), unit.lab.served()) == (before, pid)
    assert not unit.lab.good(controllers=[EMU]).changed
    unit.lab.good(state="stopped")
    unit.start()
    unit.manager.hears("READY=1")
    assert unit.remembered()["written"] == ["emu:b"]


def test_a_server_that_was_killed_leaves_no_obstacle(unit: Unit) -> None:
    unit.record(EMU)
    started = unit.start()
    unit.manager.hears("READY=1")
    started.kill()
    started.wait()
    assert unit.lab.path().is_socket()
    started = unit.start()
    unit.manager.hears("READY=1")
    assert unit.lab.served() == started.pid


def test_a_server_that_cannot_start_says_why(unit: Unit) -> None:
    unit.record(EMU, heap_size="1M")
    unit.fails(TRY_AGAIN, "heap_size")
    unit.record(f"emu:a?path={unit.lab.home}/nowhere/disk&size=1M")
    (unit.lab.state / "7.json").unlink()
    unit.fails(TRY_AGAIN, "there is no folder")
    unit.record(EMU, socket_group="no-such-group")
    (unit.lab.state / "7.json").unlink()
    unit.fails(TRY_AGAIN, "no-such-group")
    unit.record(EMU, program="/nowhere.pyz")
    (unit.lab.state / "7.json").unlink()
    unit.fails(TRY_AGAIN, "/nowhere.pyz")


def test_nothing_to_serve_is_not_tried_again(unit: Unit) -> None:
    state = ("--state-dir", str(unit.lab.state))
    unit.config.write_text('{"format": 1}')
    unit.fails(NOTHING, "nothing is recorded for control plane 7", str(unit.config), arguments=state)
    unit.config.unlink()
    unit.fails(NOTHING, "nothing is recorded for control plane 7", str(unit.lab.state), arguments=state)
    for text, words in (("{", "not JSON"), ('{"format": 2}', "format")):
        unit.config.write_text(text)
        unit.fails(NOTHING, words)
    for wrong in ("81:00:0", "emu:a?size=1", "emu:"):
        unit.record(wrong)
        unit.fails(NOTHING, wrong)
    unit.record(EMU, socket_mode="9")
    unit.fails(NOTHING, "socket_mode")
    assert unit.remembered() is None
    unit.lab.state.chmod(0o777)
    unit.record(EMU)
    unit.fails(NOTHING, "written by others")


@pytest.mark.parametrize("text", ["0", "-1", "x", "4294967296", "\u0667"])
def test_ids_are_numbers(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch.main([text])
    assert "is not a number from 1 to" in capsys.readouterr().err or text == "-1"


def test_an_older_program_serves_until_the_new_one_is_there(tmp_path: Path) -> None:
    here = tmp_path / launch.NAME
    assert launch._program(str(here)) == str(here)
    for age, version in enumerate(("9.0.0", "0.0.1", "0.0.2")):
        older = tmp_path / f"xnvme-cplaned-{version}.pyz"
        older.touch()
        os.utime(older, (1000 - age, 1000 - age))
    assert launch._program(str(here)) == str(tmp_path / "xnvme-cplaned-9.0.0.pyz")
    assert launch._program(str(tmp_path / "my.pyz")) == str(tmp_path / "my.pyz")
    here.touch()
    assert launch._program(str(here)) == str(here)


# -- the reference server ---------------------------------------------------------------------------------------------


def test_the_reference_server_is_told_ready_by_a_helper_that_ends(unit: Unit) -> None:
    unit.record(DRIVE, "82:00.0", socket_mode="0640", backend="upcie")
    started = unit.start()
    unit.manager.hears("READY=1")
    assert (unit.lab.served(), served(unit)) == (started.pid, [DRIVE, DRIVE2])
    assert unit.lab.commands()[-1][-2:] == ["--be", "upcie"]
    assert stat.S_IMODE(unit.lab.path().stat().st_mode) == 0o640
    assert children(started.pid) == []
    assert unit.remembered()["kind"] == "homi"
    unit.stop(started)


def test_the_helper_does_not_outlive_a_server_that_dies_while_starting(unit: Unit, tmp_path: Path) -> None:
    helpers = tmp_path / "helpers"
    unit.lab.homi.write_text(
        f'#!/bin/sh\n[ "$2" = --help ] && echo "--homi-id" && exit\n[ "$1" = --help ] && echo serve && exit\n'
        f"echo $$ > {helpers}; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 3\n"
    )
    unit.record(DRIVE)
    started = unit.start()
    wait_for(lambda: helpers.exists() and helpers.read_text().strip(), PATIENCE)
    token = f"NOTIFY_SOCKET={unit.manager.path}".encode()

    def others() -> List[int]:
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and token in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return [pid for pid in found if pid != started.pid and alive(pid) and b"sleep" not in command(pid)]

    def command(pid: int) -> bytes:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    assert len(wait_for(others, PATIENCE)) == 1
    (tmp_path / "go").touch()
    assert started.wait(PATIENCE) == 3
    wait_for(lambda: not others(), PATIENCE)
    assert unit.manager.said.empty()


def test_a_server_that_lists_other_controllers_is_not_ready(unit: Unit, tmp_path: Path) -> None:
    """Nor is one whose socket is another process's."""
    unit.record(DRIVE)
    real = unit.lab.homi.read_text().splitlines()[1]
    unit.lab.homi.write_text(f'#!/bin/sh\n[ "$2" = {DRIVE} ] && set -- "$1" {DRIVE2} "$3" "$4"\n{real}\n')
    started = unit.start()
    wait_for(unit.lab.served, PATIENCE)
    assert served(unit) == [DRIVE2]
    with pytest.raises(queue.Empty):
        unit.manager.said.get(timeout=1)
    unit.stop(started)


def test_without_the_reference_tool_it_is_asked_for(unit: Unit) -> None:
    unit.record(DRIVE, homi="no-such-homi")
    unit.fails(TRY_AGAIN, "no-such-homi")


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_is_resolved_at_every_start(unit: Unit, borrower: Node) -> None:
    unit.fails(TRY_AGAIN, "nothing is borrowed under the label 'scratch'")
    attempt = unit.remembered()
    assert (attempt["written"], attempt["uris"], attempt["manager"]) == (["claim:scratch"], [], "systemd")
    good(borrower, "smartio_borrow", select={"node_id": 4}, label="scratch")
    started = unit.start()
    unit.manager.hears("READY=1")
    first = served(unit)
    record = unit.remembered()
    assert (record["written"], record["controllers"], record["uris"]) == (["claim:scratch"], first, first)
    unit.stop(started)
    good(borrower, "smartio_borrow", select={"node_id": 4}, label="scratch", state="returned")
    good(borrower, "smartio_borrow", select={"node_id": 4}, label="scratch")
    unit.start()
    unit.manager.hears("READY=1")
    assert served(unit) == unit.remembered()["uris"] != first


def test_the_next_start_waits_for_what_the_last_one_missed(unit: Unit, borrower: Node) -> None:
    unit.fails(TRY_AGAIN, "scratch")
    started = unit.start()
    unit.manager.hears("STATUS=controllers: nothing is borrowed under the label 'scratch'")
    assert started.poll() is None
    good(borrower, "smartio_borrow", select={"node_id": 4}, label="scratch")
    unit.manager.hears("STATUS=")
    unit.manager.hears("READY=1")
    assert unit.lab.served() == started.pid
    assert "waiting: controllers: nothing is borrowed under the label 'scratch'" in unit.errors.read_text()


def test_a_start_that_waits_can_be_stopped(unit: Unit, borrower: Node) -> None:
    unit.fails(TRY_AGAIN, "scratch")
    started = unit.start()
    unit.manager.hears("STATUS=")
    started.send_signal(signal.SIGTERM)
    assert started.wait(PATIENCE) == -signal.SIGTERM


def test_a_claim_of_which_a_part_is_back_waits_for_the_rest(unit: Unit, borrower: Node) -> None:
    places = json.loads(unit.config.read_text())["places"]
    devices = [{"fdid": "1", "label": "scratch"}, {"fdid": "2", "label": "scratch"}, {"fdid": "3", "label": "other"}]
    unit.record("claim:scratch", borrowed=devices, places=places)
    good(borrower, "smartio_borrow", select={"node_id": 4, "bdf": DRIVE}, label="scratch")
    unit.fails(TRY_AGAIN, "only 1 of 2 devices of the label 'scratch'")
    good(borrower, "smartio_borrow", select={"node_id": 4}, count=2, label="scratch")
    unit.start()
    unit.manager.hears("READY=1")
    assert len(served(unit)) == 2


def test_the_module_sees_what_the_unit_started(unit: Unit, borrower: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if systemd had been asked: nothing is to be done for what the unit started after a boot."""
    good(borrower, "smartio_borrow", select={"node_id": 4}, label="scratch")
    started = unit.start()
    unit.manager.hears("READY=1")
    shown = unit.lab.home / "systemctl"
    shown.write_text(f"#!/bin/sh\necho MainPID={started.pid}\necho ActiveState=active\n")
    shown.chmod(0o755)
    unit.lab.env["PATH"] = f"{unit.lab.home}:/usr/bin:/bin"
    again = unit.lab.good(controllers=["claim:scratch"], manager="systemd")
    assert (again.changed, again["server"]["pid"], again["server"]["restart_pending"]) == (False, started.pid, False)
    assert process.is_alive(process.identify(started.pid) or pytest.fail("it ended"))
