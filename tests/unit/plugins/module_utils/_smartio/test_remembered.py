# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is planned from the ledger: connections, peer-to-peer pairs, parameters of the kernel module."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Plan, SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import connections, p2p
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio import settings as parameters
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.connections import Connection, plan_connections
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import Host, Places, open_host
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.ledger import PairState, pair_key
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.p2p import Pair, plan_pairs
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.settings import plan_settings, same_value
from hypothesis import given
from hypothesis import strategies as st

Recorders = Callable[..., Any]


def commands(plan: Plan) -> List[Tuple[str, Tuple[object, ...]]]:
    return [(action.command, action.args) for item in plan.items for action in item.actions]


def check_plan(plan: Plan) -> None:
    """What holds for every plan: no command, no difference; and nothing fails before it was tried."""
    for item in plan.items:
        assert item.actions or item.before == item.after
        assert item.error is None
        assert all(action.words.isprintable() for action in item.actions)


NODES = st.builds(Connection, st.integers(0, 20), st.integers(0, 1))


def test_connections() -> None:
    plan = plan_connections([Connection(8, 0), Connection(12, 1), Connection(8, 0)], [(8, 0), (12, 0)], False)
    assert commands(plan) == [("connect", (Connection(12, 1),))]
    assert [(item.name, item.before, item.after) for item in plan.items] == [
        ("node 8 (adapter 0)", "connected", "connected"),
        ("node 12 (adapter 1)", "not known to be connected", "connected"),
    ]


def test_reconnect() -> None:
    assert commands(plan_connections([Connection(8, 0)], [(8, 0)], True)) == [("connect", (Connection(8, 0),))]


@given(st.lists(NODES, max_size=6), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), max_size=6))
def test_connecting_twice_does_nothing(wanted: List[Connection], known: List[Tuple[int, int]]) -> None:
    plan = plan_connections(wanted, known, False)
    check_plan(plan)
    again = plan_connections(wanted, [*known, *((one.node_id, one.adapter) for one in wanted)], False)
    assert commands(again) == []
    assert [item.name for item in again.items] == list(dict.fromkeys(map(str, wanted)))


HERE = "0000:04:00.0@7"


@pytest.mark.parametrize(
    ("known", "vdevs", "enable", "disable"),
    [
        (None, (HERE, HERE), True, True),
        (True, (HERE, HERE), False, True),
        (False, (HERE, HERE), True, False),
        # Borrowed anew since: what was set is gone, or not; nobody knows.
        (True, ("0000:04:00.0@8", HERE), True, True),
        (False, ("0000:04:00.0@8", HERE), True, True),
        (True, ("0000:05:00.0@7", HERE), True, True),
        # Not borrowed here.
        (None, ("", ""), True, False),
        (True, ("", ""), True, False),
        (None, ("", HERE), True, False),
        (True, (HERE, ""), True, False),
    ],
)
@pytest.mark.parametrize("number", [None, 0, 5])
def test_pairs(
    known: Optional[bool], vdevs: Tuple[str, str], enable: bool, disable: bool, number: Optional[int]
) -> None:
    pair = Pair("80000", "80002", number)
    states = {} if known is None else {pair.key: PairState(known, (HERE, HERE))}
    now = dict(zip(("80000", "80002"), vdevs))
    for wanted, acts, command in ((True, enable, "enable-p2p"), (False, disable, "disable-p2p")):
        plan = plan_pairs([pair], wanted, states, now)
        check_plan(plan)
        assert commands(plan) == ([(command, (pair,))] if acts else [])


def test_what_cannot_be_asked_is_not_disabled_already() -> None:
    pair, now = Pair("1", "2"), {"1": "", "2": HERE}
    assert commands(plan_pairs([pair], False, {}, now)) == []
    assert commands(plan_pairs([pair], False, {}, now, {"1"})) == [("disable-p2p", (pair,))]


def test_pairs_with_another_bar_are_others() -> None:
    states = {pair_key("1", "2", 0): PairState(True, (HERE, HERE))}
    now = {"1": HERE, "2": HERE}
    assert commands(plan_pairs([Pair("1", "2", 0)], True, states, now)) == []
    for other in (Pair("1", "2"), Pair("1", "2", 1), Pair("2", "1", 0)):
        assert commands(plan_pairs([other], True, states, now)) == [("enable-p2p", (other,))]


@given(
    st.lists(st.builds(Pair, st.sampled_from("12"), st.sampled_from("12"), st.sampled_from([None, 0])), max_size=4),
    st.booleans(),
    st.fixed_dictionaries({"1": st.sampled_from(["", HERE]), "2": st.sampled_from(["", HERE])}),
    st.dictionaries(
        st.sampled_from(["1 2 -", "2 1 0"]),
        st.builds(PairState, st.booleans(), st.tuples(st.sampled_from(["", HERE]), st.sampled_from(["", HERE]))),
    ),
)
def test_setting_pairs_twice_does_nothing(
    pairs: List[Pair], enable: bool, vdevs: Dict[str, str], known: Dict[str, PairState]
) -> None:
    check_plan(plan_pairs(pairs, enable, known, vdevs))
    after = {**known, **{pair.key: PairState(enable, (vdevs[pair.source], vdevs[pair.destination])) for pair in pairs}}
    borrowed = [pair for pair in pairs if vdevs[pair.source] and vdevs[pair.destination]]
    assert commands(plan_pairs(borrowed, enable, after, vdevs)) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Y", "1", True),
        ("N", "0", True),
        ("N", "false", True),
        ("on", "yes", True),
        ("Y", "0", False),
        ("1", "1", True),
        ("10", "1", False),
        ("text", "text", True),
        ("text", "Text", False),
        ("", "0", False),
        (None, "0", False),
        (None, "", False),
    ],
)
def test_same_value(one: Optional[str], other: str, same: bool) -> None:
    assert same_value(one, other) is same


@pytest.mark.parametrize(
    ("value", "before", "acts"),
    [("1", "Y", False), ("0", "Y", True), ("0", None, True), ("512", "512", False), ("512", "256", True)],
)
def test_settings(value: str, before: Optional[str], acts: bool) -> None:
    plan = plan_settings({"name": value}, {"name": before})
    check_plan(plan)
    assert commands(plan) == ([("config", ("name", value))] if acts else [])


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(["0", "1", "Y", "x"])))
def test_configuring_twice_does_nothing(wanted: Mapping[str, str]) -> None:
    check_plan(plan_settings(wanted, dict.fromkeys(wanted)))
    assert commands(plan_settings(wanted, wanted)) == []


@pytest.fixture
def node(recorder: Recorders, tmp_path: Path) -> Callable[..., Tuple[Any, Host]]:
    """A node whose tool records its calls; answers are shell code."""
    (tmp_path / "sys/module/dis_smartio/parameters").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)

    def make(body: str = "", timeout: float = 0) -> Tuple[Any, Host]:
        recording = recorder(body)
        sysfs, proc, dev, state = (str(tmp_path / name) for name in ("sys", "proc", "dev", "state"))
        return recording, open_host(Places(recording.path, sysfs, proc, dev, state, timeout))

    return make


def test_connect(node: Callable[..., Tuple[Any, Host]]) -> None:
    recording, host = node('[ "$2" != 12 ] || exit 5')
    wanted = [Connection(8, 0), Connection(12, 0), Connection(16, 1)]
    predicted = connections.connect(host, wanted, False, check=True)
    assert recording.calls() == []
    assert [row["action"] for row in predicted.results["connections"]] == ["connect"] * 3  # type: ignore[attr-defined]
    report = connections.connect(host, wanted, False, check=False)
    assert recording.calls() == [["connect", "8", "0"], ["connect", "12", "0"], ["connect", "16", "1"]]
    assert report.changed
    ((name, error),) = report.errors
    assert name == "node 12 (adapter 0)"
    assert error.message.startswith(
        "this node cannot connect to node 12 (adapter 0): 'smartio_tool connect 12 0' failed: EIO"
    )
    again = connections.connect(host, wanted, False, check=True)
    assert [row["action"] for row in again.results["connections"]] == ["none", "connect", "none"]  # type: ignore[attr-defined]


def test_configure(node: Callable[..., Tuple[Any, Host]], tmp_path: Path) -> None:
    parameter = tmp_path / "sys/module/dis_smartio/parameters/autoborrow_transparent"
    parameter.write_text("Y\n")
    recording, host = node(f"[ \"$2\" != autoborrow_transparent ] || echo N > '{parameter}'")
    wanted = {"autoborrow_transparent": "0", "unseen": "3"}
    report = parameters.configure(host, wanted, check=False)
    assert (report.changed, report.errors) == (True, [])
    assert recording.calls() == [["config", "autoborrow_transparent", "0"], ["config", "unseen", "3"]]
    assert not parameters.configure(host, wanted, check=False).changed
    assert len(recording.calls()) == 2


def test_configure_that_had_no_effect(node: Callable[..., Tuple[Any, Host]], tmp_path: Path) -> None:
    (tmp_path / "sys/module/dis_smartio/parameters/name").write_text("Y\n")
    _recording, host = node()
    report = parameters.configure(host, {"name": "0"}, check=False)
    assert "succeeded, but sysfs still shows 'Y'" in report.errors[0][1].message


def test_one_name_that_cannot_be_leaves_the_other_settings_done(node: Callable[..., Tuple[Any, Host]]) -> None:
    """A list is one task: one failing element leaves the others done."""
    recording, host = node()
    report = parameters.configure(host, {"no name": "1", "good": "2"}, check=False)
    assert [name for name, _error in report.errors] == ["no name"]
    assert recording.calls() == [["config", "good", "2"]]


def test_set_pairs(node: Callable[..., Tuple[Any, Host]], tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices/0000:04:05.0").mkdir()
    recording, host = node('[ "$1" != get-vdev ] || echo 0000:04:05.0')
    pair = Pair("80000", "80002", 2)
    assert p2p.set_pairs(host, [pair, pair], True, check=False).changed
    changing = [call for call in recording.calls() if call[0] != "get-vdev"]
    assert changing == [["enable-p2p", "80000", "80002", "2"]]
    assert not p2p.set_pairs(host, [pair], True, check=False).changed
    assert p2p.set_pairs(host, [pair], False, check=True).changed


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_timeouts_that_are_none(node: Callable[..., Tuple[Any, Host]], timeout: float) -> None:
    with pytest.raises(SharingError, match="timeout"):
        node(timeout=timeout)
