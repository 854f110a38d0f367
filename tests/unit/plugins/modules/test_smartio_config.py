# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""smartio_config against the stub."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import bad, good
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node

MODULE = "smartio_config"
SETTINGS = {"autoborrow_transparent": 1, "verbose": 3}


def converges(node: Node, settings: Mapping[str, Any], *commands: str) -> None:
    """Check mode runs nothing and predicts; the apply runs these commands; the second apply runs nothing."""
    mark = node.mark()
    check = good(node, MODULE, check=True, settings=settings)
    assert node.changing(mark) == []
    apply = good(node, MODULE, settings=settings)
    assert sorted(node.changing(mark)) == sorted(commands)
    assert check.changed == apply.changed == bool(commands)
    assert check.get("diff") == apply.get("diff")
    mark = node.mark()
    assert not good(node, MODULE, settings=settings).changed
    assert node.changing(mark) == []


def test_settings_that_can_be_read_back(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    node = fabric.node(8, **two_quirks)
    path = node.parameter_file("autoborrow_transparent", "0")
    node.parameter_file("verbose", "3")
    converges(node, SETTINGS, "config autoborrow_transparent 1")
    path.write_text("0\n")
    converges(node, SETTINGS, "config autoborrow_transparent 1")


def test_settings_that_cannot_be_read_back(fabric: Fabric, two_quirks: Dict[str, Any]) -> None:
    node = fabric.node(8, **two_quirks)
    converges(node, SETTINGS, "config autoborrow_transparent 1", "config verbose 3")
    converges(node, {**SETTINGS, "verbose": 4}, "config verbose 4")
    node.reload_module()
    converges(node, SETTINGS, "config autoborrow_transparent 1", "config verbose 3")


@pytest.mark.parametrize(("shown", "wanted", "commands"), [("Y", 1, 0), ("N", 0, 0), ("N", 1, 1), ("Y", 0, 1)])
def test_the_kernel_shows_a_bool_as_a_letter(fabric: Fabric, shown: str, wanted: int, commands: int) -> None:
    node = fabric.node(8)
    node.parameter_file("autoborrow_transparent", shown)
    converges(
        node,
        {"autoborrow_transparent": wanted},
        *[f"config autoborrow_transparent {wanted}" for _one in range(commands)],
    )


def test_an_unknown_setting_leaves_the_others_done(fabric: Fabric) -> None:
    node = fabric.node(8)
    result = bad(node, MODULE, settings={"no_such_setting": 1, "verbose": 3})
    assert result.changed
    assert result.says("no_such_setting", "EINVAL")
    assert fabric.state["settings"] == {"8": {"verbose": "3"}}


def test_settings_are_needed(fabric: Fabric) -> None:
    node = fabric.node(8)
    assert bad(node, MODULE).says("settings")
    assert node.calls() == []


def test_without_a_tool(fabric: Fabric) -> None:
    node = fabric.node(8)
    node.tool.unlink()
    assert bad(node, MODULE, settings=SETTINGS).says(str(node.tool))
    check = good(node, MODULE, check=True, settings=SETTINGS)
    assert check.changed
    assert check["pending"] is True
