# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switching faults: what is understood, what is refused."""

from __future__ import annotations

import pytest
from software_node.errors import ConfigError
from software_node.faults import Faults


def test_faults_from_a_configuration() -> None:
    faults = Faults([("slow", "0.5"), ("busy", "0x80002"), ("fail", "list:EIO"), ("hang", "show:child")])
    assert faults.seconds("slow") == 0.5
    assert faults.busy(0x80002)
    assert not faults.busy(0x80000)
    assert faults.fail("list") == 5
    assert faults.fail("show") == 0
    assert faults.variant("hang", "show") == "child"
    assert faults.variant("garble", "show") is None
    assert faults.describe() == "slow=0.5\nbusy=80002\nfail=list:5\nhang=show:child\n"


def test_a_failure_that_is_limited() -> None:
    faults = Faults([("fail", "borrow:EBUSY:2")])
    assert [faults.fail("borrow") for _time in range(3)] == [16, 16, 0]


def test_all_stands_for_every_command_and_device() -> None:
    faults = Faults([("fail", "all:EIO"), ("busy", "all"), ("garble", "all:truncated")])
    assert faults.fail("anything") == 5
    assert faults.busy(1)
    assert faults.variant("garble", "list") == "truncated"


def test_switching_off() -> None:
    faults = Faults([("slow", "1"), ("busy", "all"), ("ask", "borrow"), ("link_down", "4:drop")])
    assert faults.links_down() == [4]
    faults.set("busy", "")
    assert not faults.busy(1)
    assert faults.variant("ask", "borrow") == ""
    faults.clear()
    assert faults.describe() == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slow", "fast"),
        ("slow", "-1"),
        ("settle", "nan"),
        ("busy", "xyz"),
        ("fail", "list"),
        ("fail", "list:EWHATEVER"),
        ("fail", "list:EIO:0"),
        ("hang", "list:forever"),
        ("garble", "list:pink"),
        ("link_down", "lender1"),
        ("broken", "1"),
    ],
)
def test_what_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Faults([(name, value)])
