# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Callable

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.kernel_log import related_lines
from hypothesis import given, settings
from hypothesis import strategies as st

LOG = """6,1,100,-;Linux version 6.1.0
3,2,200,-;dis_smartio: cannot reach node 8
 SUBSYSTEM=pci
 DEVICE=+pci:0000:81:00.0
4,3,300,-;nvme 0000:81:00.0: removed
4,4,400,-;e1000e 0000:00:1f.6: up
3,5,500,-;SmartIO: no BAR
4,6,600,-;ntb link up
4,7,700,-;mntbatten is no ntb-like word
"""


def _kmsg(dev: Path, text: str) -> str:
    (dev / "kmsg").write_text(text)
    return str(dev)


def test_related_lines(tmp_path: Path) -> None:
    assert related_lines(_kmsg(tmp_path, LOG), []) == [
        "dis_smartio: cannot reach node 8",
        "SmartIO: no BAR",
        "ntb link up",
        "mntbatten is no ntb-like word",
    ]


def test_lines_that_name_a_subject(tmp_path: Path) -> None:
    assert "nvme 0000:81:00.0: removed" in related_lines(_kmsg(tmp_path, LOG), ["0000:81:00.0", "8", ""])
    assert "e1000e 0000:00:1f.6: up" not in related_lines(str(tmp_path), ["0000:81:00.0", "8", ""])


def test_the_last_five(tmp_path: Path) -> None:
    text = "".join(f"4,{number},0,-;smartio {number}\n" for number in range(5000))
    assert related_lines(_kmsg(tmp_path, text), []) == [f"smartio {number}" for number in range(4995, 5000)]


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(b"3,1,1,-;smartio \x1b[31m\xff\n")
    (line,) = related_lines(str(tmp_path), [])
    assert line.isprintable()
    assert "smartio" in line


def test_missing(tmp_path: Path) -> None:
    assert related_lines(str(tmp_path), ["0000:81:00.0"]) == []
    assert related_lines(str(tmp_path / "none"), []) == []


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "kmsg").mkdir()
    assert related_lines(str(tmp_path), []) == []


def test_fifo_that_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    assert related_lines(str(tmp_path), []) == []


def test_fifo_with_a_writer_that_is_silent(tmp_path: Path) -> None:
    """As the real log at its end: reading would wait for the next record."""
    os.mkfifo(tmp_path / "kmsg")
    fd = os.open(tmp_path / "kmsg", os.O_RDWR)
    os.write(fd, b"3,1,1,-;smartio: lost\n")
    try:
        assert related_lines(str(tmp_path), []) == ["smartio: lost"]
    finally:
        os.close(fd)


def test_no_permission(tmp_path: Path, plain_user: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    _kmsg(tmp_path, LOG)
    (tmp_path / "kmsg").chmod(0)
    with plain_user():
        with pytest.raises(PermissionError):
            os.close(os.open("kmsg", os.O_RDONLY))
        assert related_lines("", []) == []


@given(st.binary(max_size=300), st.lists(st.text(max_size=12), max_size=3))
@settings(max_examples=60)
def test_any_log(tmp_path_factory: pytest.TempPathFactory, data: bytes, subjects: list[str]) -> None:
    dev = tmp_path_factory.getbasetemp() / "any-log"
    dev.mkdir(exist_ok=True)
    (dev / "kmsg").write_bytes(data)
    lines = related_lines(str(dev), subjects)
    assert len(lines) <= 5
    assert all(line.isprintable() for line in lines)
