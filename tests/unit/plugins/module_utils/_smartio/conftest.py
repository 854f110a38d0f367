# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small real programs as the tool, and a way to be somebody without root's privileges."""

from __future__ import annotations

import contextlib
import os
import textwrap
from pathlib import Path
from typing import Callable, Iterator, List

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def sample() -> Callable[[str], str]:
    """Text of a sample file, its bytes as they are."""

    def read(name: str) -> str:
        return (SAMPLES / name).read_bytes().decode()

    return read


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Write an executable file and return its path."""

    def write(body: str, name: str = "smartio_tool", interpreter: str = "/bin/sh") -> str:
        path = tmp_path / "sbin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{interpreter}\n{textwrap.dedent(body)}")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def plain_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context without root's privileges, inside tmp_path: only relative paths can be relied on."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield
        finally:
            if root:
                os.seteuid(0)

    return context


class Recorder:
    """A tool that writes down every call and answers from a table."""

    def __init__(self, path: str, log: Path) -> None:
        self.path = path
        self._log = log

    def calls(self) -> List[List[str]]:
        """The arguments of every call, in order."""
        if not self._log.exists():
            return []
        lines = self._log.read_text().splitlines()
        return [line.split("\x1f")[:-1] for line in lines]


@pytest.fixture
def recorder(script: Callable[..., str], tmp_path: Path) -> Callable[..., Recorder]:
    """Make a recording tool: what it prints and how it exits is shell code after the recording."""

    def make(body: str = "", name: str = "smartio_tool") -> Recorder:
        log = tmp_path / f"{name}.calls"
        record = f"for word in \"$@\"; do printf '%s\\037' \"$word\"; done >> '{log}'; echo >> '{log}'\n"
        return Recorder(script(record + textwrap.dedent(body), name), log)

    return make
