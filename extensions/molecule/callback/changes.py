# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin of the scenarios: appends what a run changed to a file, for the comparison of check mode with a run.

The file is ``/run/iofabric-hosts/changes-SCENARIO.json``, which ends with the lab: a list of
``{"playbook": "converge.yml", "check": true, "changed": ["HOST: TASK", ...]}``, one entry a run that came to its
recap.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: changes
type: aggregate
short_description: Write down which tasks changed something
description:
  - For the scenarios, which compare what check mode predicted with what a run did.
"""


class CallbackModule(CallbackBase):
    """The plugin."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "changes"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._playbook = ""
        self._changed: set[str] = set()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Remember which playbook runs."""
        self._playbook = os.path.basename(playbook._file_name)

    def _keep(self, result: Any) -> None:
        if result.result.get("changed"):
            self._changed.add(f"{result.host.name}: {result.task.get_name()}")

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep a task that changed something."""
        self._keep(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep a task that changed something before it failed."""
        self._keep(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Append to the file at the end of the run."""
        path = Path(f"/run/iofabric-hosts/changes-{os.environ['MOLECULE_SCENARIO_NAME']}.json")
        runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        check = bool(context.CLIARGS["check"])
        runs.append({"playbook": self._playbook, "check": check, "changed": sorted(self._changed)})
        path.write_text(json.dumps(runs, indent=1), encoding="utf-8")
