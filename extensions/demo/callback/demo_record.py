# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin of the demo: writes the recap and some results of a run to a file, as JSON.

The file, named by the environment variable DEMO_RECORD: ``{"recap": {HOST: {"ok": 3, "changed": 1, ...}},
"results": {MODULE: {HOST: RESULT}}}``. It is there only after a run that came to its recap.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: demo_record
type: aggregate
short_description: Write the recap and the results of some modules to a file
description:
  - For the runner of the demo, which must not depend on what a run prints.
"""

RECORDED = (
    "ansible.builtin.async_status",
    "iofabric.sharing.smartio_borrow",
    "iofabric.sharing.smartio_device",
    "iofabric.sharing.smartio_info",
    "iofabric.sharing.xnvme_cplane_info",
)


class CallbackModule(CallbackBase):
    """The plugin."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "demo_record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, dict[str, Any]] = {name: {} for name in RECORDED}

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep what a module answered."""
        if result.task.resolved_action in self._results:
            self._results[result.task.resolved_action][result.host.name] = result.result

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the file at the end of the run."""
        recap = {host: stats.summarize(host) for host in sorted(stats.processed)}
        path = os.environ["DEMO_RECORD"]
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"recap": recap, "results": self._results}, file, indent=1)
        os.rename(path + ".new", path)
