# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many sequences ran: asked for on the command line, counted by every machine, told and checked at the end."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import usage
from ansible_collections.iofabric.sharing.tests.models.machines import KINDS
from ansible_collections.iofabric.sharing.tests.models.warm import Warm
from ansible_collections.iofabric.sharing.tests.unit import conftest as unit

_PROPERTY = "sequences"

tmp_path = unit.tmp_path


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("models")
    for kind in KINDS:
        group.addoption(f"--{kind}-sequences", type=int, default=0, help=f"how many sequences of {kind} to run in all")


@pytest.fixture(autouse=True)
def _usage_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory there is no /proc to look at: the model of sysfs knows what uses a device."""
    real = usage.observe

    def observe(bdfs: Any, sysfs: Any, proc: str, **more: Any) -> Dict[str, usage.Usage]:
        in_memory = hasattr(sysfs, "usage")
        found: Dict[str, usage.Usage] = sysfs.usage(bdfs) if in_memory else real(bdfs, sysfs, proc, **more)
        return found

    monkeypatch.setattr(usage, "observe", observe)


@pytest.fixture
def warm() -> Iterator[Warm]:
    """Runs modules as processes."""
    made = Warm()
    yield made
    made.close()


def _counts(config: pytest.Config) -> Dict[str, Dict[str, int]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    found: Dict[str, Dict[str, int]] = {kind: {} for kind in KINDS}
    reports: List[Any] = [
        one for name in ("passed", "failed") for one in (reporter.stats.get(name, ()) if reporter else ())
    ]
    for report in reports:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                kind, machine, number = value
                found[kind][machine] = number
    return found


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fewer sequences than were asked for are a failure, whatever the tests say."""
    config = session.config
    if hasattr(config, "workerinput") or exitstatus:
        return
    for kind, counted in _counts(config).items():
        if sum(counted.values()) < config.getoption(f"--{kind}-sequences"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for kind, counted in _counts(config).items():
        asked = config.getoption(f"--{kind}-sequences")
        each = ", ".join(f"{machine} {number}" for machine, number in sorted(counted.items()))
        enough = "" if sum(counted.values()) >= asked else f", FEWER than the {asked} that were asked for"
        terminalreporter.write_line(f"{kind} sequences: {sum(counted.values())} ({each or 'none'}){enough}")
