# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes with something recorded, and replays of it whose pauses are moments of the test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._replay import drift, replay, store
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.replay import Replay, Setting, hold_reason
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import (
    DEFAULT_PLACES,
    BorrowedEntry,
    LentEntry,
    Sharing,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.units import Systemd
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node

Moment = Callable[[], Any]


class NoMoreMoments(Exception):
    """A replay still waits when the test has nothing more to happen."""


class Site:
    """One node: what is recorded for it, its replay, and a service manager that only writes down what it is asked."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.node = node
        self.file = folder / "etc" / "sharing.json"
        self.run_dir = folder / "run"
        self.lines: List[str] = []
        self.pauses: List[float] = []
        self.now = 0.0
        self.asked = folder / "asked"
        (folder / "booted").mkdir(parents=True)
        self.asked.touch()
        self.disabled = folder / "disabled"
        self.disabled.touch()
        program = folder / "systemctl"
        program.write_text(
            f"#!/bin/sh\nfor unit; do :; done\ncase $1 in\n"
            f'is-enabled) grep -qx "$unit" {self.disabled} && echo disabled || echo enabled;;\n'
            f'*) echo "$1 $unit" >>{self.asked};;\nesac\n'
        )
        program.chmod(0o755)
        self.systemd = Systemd(str(program), str(folder / "booted"))

    @property
    def progress(self) -> Dict[str, Any]:
        data: Dict[str, Any] = json.loads((self.run_dir / "replayed.json").read_text())
        return data

    def record(self, **parts: Any) -> Sharing:
        """Write the file."""
        places = dataclasses.replace(DEFAULT_PLACES, **self.node.args)
        sharing = Sharing(places=places, **{name: tuple(entries) for name, entries in parts.items()})
        store.write(str(self.file), sharing)
        return sharing

    def hold(self, reason: str = "") -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "hold").write_text(reason)

    def replay(self, *moments: Moment, again: bool = False) -> int:
        """Run a replay; each of its pauses is the next of the moments. Its lines are those of this replay."""
        left = list(moments)
        self.lines = []
        self.pauses = []

        def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.now += seconds
            if not left:
                raise NoMoreMoments("\n".join(self.lines))
            left.pop(0)()

        setting = Setting(str(self.file), str(self.run_dir), again)
        one = Replay(setting, self.systemd, self.lines.append, sleep, lambda: self.now)
        status = one.run()
        assert not left, f"it ended before {len(left)} moments: {self.lines}"
        return status

    def waits(self, *moments: Moment) -> None:
        """A replay that is still waiting after these moments."""
        with pytest.raises(NoMoreMoments):
            self.replay(*moments)

    def check(self) -> List[str]:
        sharing = store.read(str(self.file)) or Sharing()
        return drift.check(sharing, self.systemd, str(self.run_dir), hold_reason(str(self.run_dir)) or "")

    def status(self) -> List[str]:
        sharing = store.read(str(self.file)) or Sharing()
        return drift.describe(sharing, self.systemd, str(self.run_dir), hold_reason(str(self.run_dir)) or "")

    def units(self) -> List[str]:
        """What the service manager was asked to do."""
        return self.asked.read_text().splitlines()

    def says(self, *words: str) -> bool:
        """Whether one line holds all the words."""
        found = any(all(word in line for word in words) for line in self.lines)
        assert found, f"{words} not in {self.lines}"
        return True


def lent(device: Dict[str, Any], **more: Any) -> LentEntry:
    """A device of the stub as it is recorded on its lender."""
    ids = {"serial": device["serial"], "vendor_id": device["vendor"], "device_id": device["device"]}
    return LentEntry(**{"bdf": device["bdf"], **ids, **more})


def borrowed(owner: int, device: Dict[str, Any], **more: Any) -> BorrowedEntry:
    """A device of the stub as it is recorded on a borrower."""
    ids = {"serial": device["serial"], "vendor_id": device["vendor"], "device_id": device["device"]}
    place = {"fdid": "fff", "node_id": owner, "bdf": device["bdf"], "uuid": device["uuid"]}
    return BorrowedEntry(**{"label": "scratch", **place, **ids, **more})


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """An empty fabric of stub nodes."""
    made = Fabric(tmp_path / "fabric")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come in time is waited for by passes, not within them."""
    monkeypatch.setattr(replay.steps, "LIMIT", 2.0)


def times(moment: Moment, count: int) -> Sequence[Moment]:
    """The same moment several times."""
    return [moment] * count


def nothing() -> None:
    """A moment in which nothing happens."""
