# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of a run answered, one JSON object a line, for the test that started the run."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: results
type: notification
short_description: Write results to a file
description: Appends every task's result to the file that GUEST_RESULTS names.
author: The iofabric.sharing contributors (@iofabric)
version_added: 0.1.0
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Writes results as they come."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "results"

    def _write(self, result: Any, status: str) -> None:
        task = result.task
        entry = {"task": task.name, "action": task.action, "status": status, "result": result.result}
        with open(os.environ["GUEST_RESULTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task was done."""
        self._write(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._write(result, "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A task was skipped."""
        self._write(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """The guest did not answer."""
        self._write(result, "unreachable")
