# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin of the tests on hosts: writes what every task answered on every host to a file, as JSON.

The file, named by the environment variable HOST_RECORD, is a list of ``[TASK, HOST, STATUS, RESULT]`` in the order of
the answers. STATUS is ok, changed, failed, skipped or unreachable. It is there only after a run that came to its recap.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: host_record
type: aggregate
short_description: Write what every task answered to a file
description:
  - For tests, which must not depend on what a run prints.
"""


class CallbackModule(CallbackBase):
    """The plugin."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "host_record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[str, str, str, Any]] = []

    def _keep(self, result: Any, status: str) -> None:
        self._rows.append((result.task.get_name(), result.host.name, status, result.result))

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep what succeeded."""
        self._keep(result, "changed" if result.result.get("changed") else "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep what failed."""
        self._keep(result, "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep who could not be reached."""
        self._keep(result, "unreachable")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Keep what was left out."""
        self._keep(result, "skipped")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the file at the end of the run."""
        path = os.environ["HOST_RECORD"]
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(self._rows, file, indent=1, default=str)
        os.rename(path + ".new", path)
