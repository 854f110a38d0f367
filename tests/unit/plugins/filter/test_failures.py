# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter failures."""

from __future__ import annotations

from ansible_collections.iofabric.sharing.plugins.filter.failures import FilterModule, failures

LOST = {"element": "node 12 (adapter 0)", "msg": "node 4 cannot connect to node 12 (adapter 0): EIO"}
BUSY = {"element": "0000:81:00.0", "msg": "eth0 is up"}


def test_every_element_in_order() -> None:
    """An element that its sentence does not name is named."""
    results = [
        {},
        {"changed": False, "skipped": True, "skip_reason": "Conditional result was False"},
        {"changed": True, "msg": "2 of 3 failed: ...", "errors": [LOST, BUSY]},
        {"msg": "Unsupported parameters"},
        {"changed": True, "errors": []},
    ]
    assert failures(results) == [LOST["msg"], "0000:81:00.0: eth0 is up", "Unsupported parameters"]


def test_what_does_not_count() -> None:
    assert failures([{"msg": "...", "errors": [LOST, BUSY]}], [LOST]) == ["0000:81:00.0: eth0 is up"]


def test_name() -> None:
    assert FilterModule().filters() == {"failures": failures}
