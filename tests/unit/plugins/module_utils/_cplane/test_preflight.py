# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before a server is started: the same as the server itself refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional
from unittest import mock

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import preflight, server
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.config import EmulatedConfig
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.emulated import _open_file
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import ConfigError
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.heap import PAGE


def test_the_least_heap_is_the_servers() -> None:
    assert server.PAIR_NBYTES + 16 * PAGE == preflight.MIN_HEAP
    preflight.check_startable(["emu:a"], preflight.MIN_HEAP)
    for wrong in (preflight.MIN_HEAP - 1, preflight.MAX_HEAP + 1):
        with pytest.raises(ConfigError, match="heap_size"):
            preflight.check_startable(["emu:a"], wrong)


@pytest.mark.parametrize(
    ("name", "size", "right"),
    [
        ("new", 8192, True),
        ("new", None, False),
        ("none/new", 8192, False),
        ("file/new", 8192, False),
        ("file", 8192, True),
        ("file", None, True),
        ("file", 4096, False),
        ("empty", 4096, True),
        ("empty", None, False),
        ("odd", None, False),
        ("folder", 4096, False),
        ("fifo", 4096, False),
        ("link", 8192, True),
        ("dangling", 8192, False),
    ],
)
def test_a_file_is_judged_as_the_server_does(tmp_path: Path, name: str, size: Optional[int], right: bool) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    (tmp_path / "odd").write_bytes(bytes(100))
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("none/file")
    before = sorted(tmp_path.iterdir())
    path = str(tmp_path / name)
    text = f"emu:a?path={path}" + (f"&size={size}" if size else "")
    if right:
        preflight.check_startable([text], None)
        assert sorted(tmp_path.iterdir()) == before
        os.close(_open_file(EmulatedConfig("a", size, path))[0])
        return
    with pytest.raises(ConfigError, match="path="):
        preflight.check_startable([text], None)
    with pytest.raises(ConfigError, match="path="):
        _open_file(EmulatedConfig("a", size, path))


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(bytes(4096))
    with pytest.raises(ConfigError, match="another controller"):
        preflight.check_startable([f"emu:a?path={tmp_path}/file", f"emu:b?path={tmp_path}/link"], None)


@pytest.mark.parametrize(("flags", "words"), [(0, "by this user"), (os.ST_RDONLY, "ReadWritePaths=")])
def test_a_read_only_place_is_told_from_one_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, words: str
) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    monkeypatch.setattr(os, "access", lambda *_unused, **_options: False)
    monkeypatch.setattr(os, "statvfs", lambda _path: mock.Mock(f_flag=flags))
    for text in (f"emu:a?path={tmp_path}/file", f"emu:a?path={tmp_path}/new&size=4096"):
        with pytest.raises(ConfigError, match=words):
            preflight.check_startable([text], None)


def test_real_controllers_are_looked_at() -> None:
    """Before a server that serves something else is taken away for them."""
    with pytest.raises(ConfigError, match=r"ffff:fe:1f\.7: there is no such PCI device"):
        preflight.check_startable(["emu:a", "ffff:fe:1f.7"], None)
