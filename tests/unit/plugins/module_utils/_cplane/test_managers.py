# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where servers are remembered, and how they are started as units; what a process holds of a folder's sockets."""

from __future__ import annotations

import grp
import json
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import managers, units
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.deciding import Means, record_of
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
    ConfigError,
    CplaneError,
    NotYet,
    UnsafePath,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.have import Access
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.holders import Held, held_by, listens_alone
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.program import ProgramPlace
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.wanted import Wanted

WANTED = Wanted(7, ("emu:a",), ("ffff:00:01.0",), True)
PROGRAMS = managers.Programs(ProgramPlace(sys.executable, None, None, None), "/nowhere/homi")


def test_the_folder_is_the_systems_or_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert managers.default_state_dir() == "/run/iofabric/cplane"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert managers.default_state_dir() == f"{tmp_path}/iofabric/cplane"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert managers.default_state_dir() == f"{tmp_path}/.local/state/iofabric/cplane"


def test_a_record_survives_and_garbage_does_not(tmp_path: Path) -> None:
    registry = managers.Registry(str(tmp_path))
    record = record_of(WANTED, Means("native", "process", "digest", Access(0o660, 0), "", {"socket_dir": "/s"}))
    registry.save(7, record)
    assert registry.load(7) == record
    assert json.loads((tmp_path / "7.settings.json").read_text()) == record.access
    for text in ("", "[]", "{}", "{", json.dumps({**vars(record), "x": 1})):
        (tmp_path / "7.json").write_text(text)
        assert registry.load(7) is None
    for name in ("controllers", "uris", "written", "access", "places"):
        (tmp_path / "7.json").write_text(json.dumps({**vars(record), name: None}))
        assert registry.load(7) is None
    registry.forget(7)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CplaneError, match="state_dir"), managers.Registry(str(tmp_path / "file" / "x")).locked(1):
        pytest.fail("locked a folder below a file")


def test_one_run_at_a_time_has_the_folder(tmp_path: Path) -> None:
    registry = managers.Registry(str(tmp_path / "state"))
    with registry.locked(0), pytest.raises(CplaneError, match="another run"), registry.locked(0.1):
        pytest.fail("locked twice")
    with registry.locked(0):
        assert (tmp_path / "state" / "lock").exists()


def test_what_lies_in_the_way_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "place"
    managers.refuse_obstacle(str(path))
    path.mkdir()
    with pytest.raises(UnsafePath, match="not a socket"):
        managers.refuse_obstacle(str(path))
    assert path.is_dir()


def test_groups(tmp_path: Path) -> None:
    assert managers.group_id(WANTED, "process") == os.getegid()
    assert managers.group_id(WANTED, "systemd") is None
    assert managers.group_id(replace(WANTED, socket_group="65534"), "systemd") == 65534
    own = grp.getgrgid(os.getegid()).gr_name
    assert managers.group_id(replace(WANTED, socket_group=own), "process") == os.getegid()
    with pytest.raises(NotYet, match="no-such-group"):
        managers.group_id(replace(WANTED, socket_group="no-such-group"), "process")


def test_a_user_gives_a_socket_to_groups_of_their_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(os, "getegid", lambda: 4711)
    monkeypatch.setattr(os, "getgroups", lambda: [4712])
    assert managers.group_id(replace(WANTED, socket_group="4712"), "process") == 4712
    with pytest.raises(ConfigError, match="4713"):
        managers.group_id(replace(WANTED, socket_group="4713"), "process")


def test_access_is_given_to_sockets_only(tmp_path: Path) -> None:
    path = tmp_path / "place"
    path.touch(0o600)
    with pytest.raises(CplaneError, match="no longer a socket"):
        managers.set_socket_access(str(path), 0o666, None)
    assert path.stat().st_mode & 0o777 == 0o600


# -- systemd ----------------------------------------------------------------------------------------------------------


SYSTEMCTL = """\
import json, os, sys
with open(os.environ["CALLS"], "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
words = [word for word in sys.argv[1:] if not word.startswith("-")]
if words[0] == "show":
    print(os.environ["SHOWN"])
if words[0] in os.environ.get("FAILS", "").split():
    print("Job for it failed", file=sys.stderr)
    sys.exit(1)
"""


class Systemctl:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "calls"
        (folder / "systemctl.py").write_text(SYSTEMCTL)
        program = folder / "systemctl"
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(folder / "systemctl.py")])} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("CALLS", str(self.log))
        monkeypatch.setenv("SHOWN", "MainPID=0\nActiveState=inactive\nStatusText=")

    def calls(self) -> List[List[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    return Systemctl(tmp_path, monkeypatch)


def test_a_unit_is_started_reloaded_and_stopped(systemctl: Systemctl, tmp_path: Path) -> None:
    manager = managers.SystemdManager(managers.Registry(str(tmp_path)), PROGRAMS)
    manager.start(WANTED, "native", 5)
    manager.reload(7)
    manager.stop(7, 5, kill=True)
    unit = "xnvme-cplane@7.service"
    assert systemctl.calls() == [["--no-pager", verb, unit] for verb in ("start", "reload", "stop")]


def test_a_unit_that_does_not_stop_is_killed_only_by_force(
    systemctl: Systemctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.SystemdManager(managers.Registry(str(tmp_path)), PROGRAMS)
    monkeypatch.setenv("FAILS", "stop")
    with pytest.raises(CplaneError, match=r"journalctl -u xnvme-cplane@7\.service"):
        manager.stop(7, 5, kill=False)
    assert [call[1] for call in systemctl.calls()] == ["stop"]
    with pytest.raises(CplaneError, match="Job for it failed"):
        manager.stop(7, 5, kill=True)
    assert [call[1] for call in systemctl.calls()[1:]] == ["stop", "kill", "stop"]


def test_the_units_process_is_its_main_one(systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert managers.SystemdManager.process(7) is None
    monkeypatch.setenv("SHOWN", f"MainPID={os.getpid()}\nActiveState=active")
    found = managers.SystemdManager.process(7)
    assert found is not None
    assert found.pid == os.getpid()


def test_what_a_unit_says_of_itself_is_read(systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert managers.SystemdManager.state(7) == units.UnitState()
    monkeypatch.setenv("SHOWN", "StatusText=waiting: a = b\nActiveState=activating\nMainPID=0")
    assert managers.SystemdManager.state(7) == units.UnitState(None, True, "waiting: a = b")
    for text in ("", "MainPID=\nActiveState=failed", "MainPID=x"):
        monkeypatch.setenv("SHOWN", text)
        assert managers.SystemdManager.state(7) == units.UnitState()


def test_a_unit_that_does_not_start_says_why(
    systemctl: Systemctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.SystemdManager(managers.Registry(str(tmp_path)), PROGRAMS)
    monkeypatch.setenv("FAILS", "start")
    with pytest.raises(CplaneError, match=r"\A'systemctl start xnvme-cplane@7\.service' failed: Job for it failed"):
        manager.start(WANTED, "homi", 5)
    monkeypatch.setenv("SHOWN", "StatusText=nothing is borrowed under the label 'x'")
    with pytest.raises(CplaneError, match=r"\Acontrol plane 7: nothing is borrowed .*'x'; see 'journ"):
        manager.start(WANTED, "homi", 5)


def test_another_unit_file_or_drop_in_is_another_unit(tmp_path: Path) -> None:
    etc, run, lib = (tmp_path / name for name in ("etc", "run", "lib"))
    folders = [str(etc), str(run), str(lib)]
    assert units.unit_digest(7, folders) == ""
    (run / "xnvme-cplane@7.service.d").mkdir(parents=True)
    (run / "xnvme-cplane@7.service.d" / "x.conf").write_text("[Service]\nLimitMEMLOCK=0\n")
    assert units.unit_digest(7, folders) == ""
    seen = {""}

    def is_new(cplane_id: int = 7) -> bool:
        digest = units.unit_digest(cplane_id, folders)
        assert digest == units.unit_digest(cplane_id, folders)
        new = digest not in seen
        seen.add(digest)
        return new

    lib.mkdir()
    (lib / "xnvme-cplane@.service").write_text("# managed\n[Service]\nExecStart=/bin/true\n")
    assert is_new()
    assert is_new(8)
    (lib / "xnvme-cplane@.service").write_text("; by somebody\n\n[Service]\n  ExecStart=/bin/true")
    assert not is_new()
    etc.mkdir()
    (etc / "xnvme-cplane@.service").write_text("[Service]\nExecStart=/bin/false\n")
    assert is_new()
    (etc / "xnvme-cplane@.service.d").mkdir()
    (etc / "xnvme-cplane@.service.d" / "a.conf").write_text("[Service]\nNice=5\n")
    assert is_new()
    assert is_new(8)
    (etc / "xnvme-cplane@7.service.d").mkdir()
    (etc / "xnvme-cplane@7.service.d" / "x.conf").write_text("[Service]\nLimitMEMLOCK=infinity\n")
    assert is_new()
    assert not is_new(8)
    (etc / "xnvme-cplane@7.service").write_text("[Service]\nExecStart=/bin/cat\n")
    assert is_new()
    assert not is_new(8)


def test_without_systemctl_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CplaneError, match="manager: process"):
        managers.SystemdManager(managers.Registry(str(tmp_path)), PROGRAMS).reload(7)


# -- what a process holds ---------------------------------------------------------------------------------------------


def test_listeners_and_accepted_connections_are_counted(tmp_path: Path) -> None:
    place = str(tmp_path / "private name")
    assert held_by(os.getpid(), str(tmp_path)) == Held(False, 0)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as peer:
        listener.bind(place)
        listener.listen(4)
        os.rename(place, str(tmp_path / "public"))
        assert held_by(os.getpid(), str(tmp_path)) == Held(True, 0)
        peer.connect(str(tmp_path / "public"))
        accepted: Any = listener.accept()[0]
        with accepted:
            assert held_by(os.getpid(), str(tmp_path)) == Held(True, 1)
            assert held_by(os.getpid(), str(tmp_path.parent)) == Held(False, 0)
        assert held_by(os.getpid(), str(tmp_path)) == Held(True, 0)


def test_a_process_that_is_not_there_holds_nothing_that_can_be_seen(tmp_path: Path) -> None:
    assert held_by(2**30, str(tmp_path)) is None


NAMES = r"place|\.7\.[0-9]+"


def test_who_listens_alone_is_told_by_the_name_of_the_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "other"))
        listener.listen(4)
        assert not listens_alone(os.getpid(), str(tmp_path), NAMES)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / ".7.12"))
        assert not listens_alone(os.getpid(), str(tmp_path), NAMES)
        listener.listen(4)
        assert listens_alone(os.getpid(), str(tmp_path), NAMES)
        assert not listens_alone(os.getppid(), str(tmp_path), NAMES)
        assert not listens_alone(1, str(tmp_path), NAMES)
        assert not listens_alone(2**30, str(tmp_path), NAMES)


def test_who_shares_a_listener_does_not_listen_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "place"))
        listener.listen(4)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        assert not listens_alone(os.getpid(), str(tmp_path), NAMES)
        assert not listens_alone(child.pid, str(tmp_path), NAMES)
        child.communicate(b"\n")
        assert listens_alone(os.getpid(), str(tmp_path), NAMES)
