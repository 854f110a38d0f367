# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the native server's program lies, and that nothing of somebody else is run or replaced."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import NotYet
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.program import NAME, ProgramPlace, program_dir
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError

DATA = b"the program"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return str(path)


def test_the_folder_is_the_systems_or_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert program_dir() == "/var/lib/iofabric"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert program_dir() == "/home/somebody/.local/share/iofabric"


def test_it_is_asked_for_brought_and_then_left(tmp_path: Path, source: str) -> None:
    folder = str(tmp_path / "a" / "b")
    asked = ProgramPlace(None, folder, DIGEST, None)
    assert (asked.missing, asked.digest, asked.path) == (True, DIGEST, f"{folder}/{NAME}")
    brought = ProgramPlace(None, folder, DIGEST, source)
    assert not brought.missing
    path = Path(brought.install())
    assert (path.read_bytes(), path.stat().st_mode & 0o755) == (DATA, 0o755)
    inode = path.stat().st_ino
    brought.install()
    assert (path.stat().st_ino, asked.missing) == (inode, False)
    path.write_bytes(b"another build")
    assert asked.missing
    brought.install()
    assert path.read_bytes() == DATA
    assert os.listdir(folder) == [NAME]


def test_a_given_program_is_run_as_it_is(tmp_path: Path, source: str) -> None:
    place = ProgramPlace(source, None, "another digest", None)
    assert (place.missing, place.digest, place.install()) == (False, DIGEST, source)
    with pytest.raises(NotYet, match="nowhere"):
        ProgramPlace("/nowhere", None, None, None).check()


def test_without_ansible_it_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SharingError, match="through Ansible"):
        ProgramPlace(None, str(tmp_path), None, None).check()


def test_what_others_can_change_is_refused(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    place = ProgramPlace(None, str(folder), DIGEST, source)
    path = Path(place.install())
    path.chmod(0o777)
    with pytest.raises(SharingError, match="program_dir"):
        place.install()
    path.chmod(0o755)
    folder.chmod(0o777)
    with pytest.raises(SharingError, match="program_dir"):
        place.install()
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(SharingError, match="another user"):
            place.install()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "programs"
    (folder / NAME).mkdir(parents=True)
    with pytest.raises(SharingError, match="make room"):
        ProgramPlace(None, str(folder), DIGEST, source).install()
    (tmp_path / "file").touch()
    with pytest.raises(SharingError, match="cannot put"):
        ProgramPlace(None, str(tmp_path / "file" / "x"), DIGEST, source).install()
