# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xnvme_cplane with units: a stand-in for systemctl that runs the server as the unit would."""

from __future__ import annotations

import fcntl
import json
import shlex
import sys
from pathlib import Path
from typing import Iterator, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import serving
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import EMU, Lab, alive

SYSTEMCTL = """\
import json, os, signal, subprocess, sys, time

folder = os.environ["UNITS"]
verb, unit = [word for word in sys.argv[1:] if not word.startswith("-")][:2]
pid_file = os.path.join(folder, "pid")
with open(os.path.join(folder, "calls"), "a") as log:
    log.write(verb + "\\n")
if verb in os.environ.get("FAILS", "").split():
    sys.exit("Job for it failed")
pid = int(open(pid_file).read()) if os.path.exists(pid_file) else 0
if verb == "start":
    record = json.load(open(os.path.join(os.environ["STATE"], "7.json")))
    settings = os.path.join(os.environ["STATE"], "7.settings.json")
    words = [sys.executable, os.environ["PROGRAM"], "serve", *record["controllers"], "--homi-id", "7"]
    words += ["--directory", os.environ["SOCKETS"], "--settings", settings]
    with open(os.path.join(folder, "journal"), "w") as journal:
        server = subprocess.Popen(words, stdout=journal, stderr=journal, stdin=subprocess.DEVNULL, close_fds=True)
    open(pid_file, "w").write(str(server.pid))
elif verb == "show":
    print("MainPID=" + str(pid))
    print(os.environ.get("SHOWN", "ActiveState=active" if pid else "ActiveState=inactive"))
elif verb == "reload":
    os.kill(pid, signal.SIGHUP)
elif verb == "stop" and pid:
    os.kill(pid, signal.SIGTERM)
    while os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)
    os.unlink(pid_file)
"""


class Units(Lab):
    """A node whose servers are units."""

    def __init__(self, folder: Path, programs: Path) -> None:
        super().__init__(folder, programs)
        self.units = folder / "units"
        self.units.mkdir()
        (self.units / "systemctl.py").write_text(SYSTEMCTL)
        program = self.units / "systemctl"
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(self.units / "systemctl.py")])} "$@"\n')
        program.chmod(0o755)
        self.args["manager"] = "systemd"
        self.env.update(
            PATH=f"{self.units}:/usr/bin:/bin",
            UNITS=str(self.units),
            STATE=str(self.state),
            SOCKETS=str(self.sockets),
            PROGRAM=self.program,
        )

    def calls(self) -> List[str]:
        """What changed something."""
        return [verb for verb in (self.units / "calls").read_text().split() if verb != "show"]


@pytest.fixture
def lab(tmp_path: Path, programs: Path) -> Iterator[Units]:
    made = Units(tmp_path, programs)
    yield made
    made.env.pop("FAILS", None)
    made.run(state="stopped", force=True)
    made.close()


def test_a_unit_lives_through_all_states(lab: Units) -> None:
    first = lab.cycle("start", controllers=[EMU])
    assert (first["alive"], first["controllers"][0]["name"]) == (True, EMU)
    assert json.loads((lab.state / "7.json").read_text())["manager"] == "systemd"
    assert not (lab.state / "7.pid").exists()
    with lab.client():
        lab.refused("1 client is connected", controllers=["emu:b"])
        lab.cycle("configure", controllers=[EMU], socket_mode="0600")
    second = lab.cycle("stop, start", controllers=["emu:b"], socket_mode="0600")
    assert (alive(first["pid"]), second["pid"] != first["pid"]) == (False, True)
    lab.cycle("stop", state="stopped")
    assert lab.calls() == ["start", "reload", "stop", "start", "stop"]


def test_another_manager_waits_for_an_idle_server(lab: Units) -> None:
    lab.good(controllers=[EMU])
    with lab.client():
        assert lab.cycle("none", controllers=[EMU], manager="process")["restart_pending"] is True
    lab.cycle("stop, start", controllers=[EMU], manager="process")
    assert lab.calls() == ["start", "stop"]
    assert lab.cycle("none", controllers=[EMU], manager="auto")["alive"] is True


def test_a_unit_whose_server_does_not_serve_is_told(lab: Units, tmp_path: Path) -> None:
    with (tmp_path / "disk").open("wb") as disk:
        fcntl.flock(disk, fcntl.LOCK_EX)
        result = lab.bad("did not serve", controllers=[f"emu:a?path={tmp_path}/disk&size=1M"], timeout=0.5)
    assert (result.changed, result["server"]["alive"]) == (False, False)
    assert "journalctl -u xnvme-cplane@7.service" in result["msg"]
    assert lab.calls() == ["start", "stop"]


def test_a_unit_that_neither_starts_nor_stops_is_not_remembered(lab: Units) -> None:
    lab.env["FAILS"] = "start stop"
    lab.bad("'systemctl start xnvme-cplane@7.service' failed", controllers=[EMU])
    assert [path.name for path in lab.state.iterdir()] == ["lock"]


def test_a_server_that_is_not_the_units_is_not_what_was_started(lab: Units) -> None:
    lab.env["FAILS"] = "show"
    lab.bad("did not serve the wanted controllers", controllers=[EMU], timeout=1.5)
    assert lab.served() is None
    assert [path.name for path in lab.state.iterdir()] == ["lock"]


@pytest.fixture
def waiting(lab: Units) -> Units:
    """The unit tries to start a server since the host came up, and the devices are not there."""
    lab.state.mkdir()
    record = {"kind": "auto", "manager": "systemd", "controllers": [], "uris": [], "backend": None, "heap_size": None}
    record["access"] = {"socket_mode": "0660", "socket_group": None, "allow_uids": []}
    record.update(program="", written=["claim:scratch"])
    (lab.state / "7.json").write_text(json.dumps(record))
    lab.env["SHOWN"] = "ActiveState=activating\nStatusText=nothing is borrowed under the label 'scratch'"
    return lab


def test_a_unit_that_waits_is_told_and_stopped(waiting: Units) -> None:
    (found,) = waiting.info(cplane_ids=[7])["servers"]
    assert (found["alive"], found["error"]) == (False, "nothing is borrowed under the label 'scratch'")
    check = waiting.good(True, state="stopped")
    assert (check.changed, check["server"]["action"]) == (True, "stop")
    stopped = waiting.good(state="stopped")
    assert stopped["diff"] == check["diff"]
    assert (stopped["server"]["action"], waiting.calls()) == ("stop", ["stop"])
    assert [path.name for path in waiting.state.iterdir()] == ["lock"]
    del waiting.env["SHOWN"]
    assert not waiting.good(state="stopped").changed


@pytest.mark.parametrize("manager", ["auto", "process"])
def test_a_unit_that_waits_is_no_obstacle(waiting: Units, manager: str) -> None:
    check = waiting.good(True, controllers=[EMU], manager=manager)
    assert check["server"]["action"] == "stop, start"
    waiting.env["SHOWN"] = "ActiveState=activating"
    started = waiting.good(controllers=[EMU], manager=manager)
    assert (started["server"]["action"], started["server"]["alive"]) == ("stop, start", True)
    assert waiting.calls() == (["stop", "start"] if manager == "auto" else ["stop"])
    del waiting.env["SHOWN"]
    assert not waiting.good(controllers=[EMU], manager=manager).changed


def test_another_unit_waits_for_an_idle_server(lab: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    started = lab.good(controllers=[EMU])["server"]
    monkeypatch.setattr(serving, "unit_digest", lambda cplane_id: f"another one for {cplane_id}")
    with lab.client():
        pending = lab.cycle("none", controllers=[EMU])
        assert (pending["restart_pending"], pending["pid"]) == (True, started["pid"])
    lab.cycle("stop, start", controllers=[EMU])


def test_a_claim_is_remembered_as_it_was_written(lab: Units) -> None:
    lab.good(controllers=[EMU], socket_group="0")
    record = json.loads((lab.state / "7.json").read_text())
    assert (record["written"], record["controllers"], record["uris"]) == ([EMU], [EMU], ["ffff:be:08.3"])
    assert record["places"] == {"program": lab.program, "socket_dir": str(lab.sockets)}
