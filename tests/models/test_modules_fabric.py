# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All modules of a fabric, as processes against software nodes: whatever one task leaves, the next one meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.models.cluster import LENDERS, NODES, Cluster, Node
from ansible_collections.iofabric.sharing.tests.models.machines import Machine, drive
from ansible_collections.iofabric.sharing.tests.models.warm import Warm
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import Result
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

FLAGS = st.sampled_from([False, False, True])
NAMES = st.sampled_from(sorted(LENDERS))
LISTS = ("devices", "connections", "pairs", "settings")
BDFS = ("01:00.0", "0000:02:00.0", "02:00.1", "2:", "77:00.0")
WAYS = st.one_of(
    st.sampled_from(BDFS).map(lambda bdf: {"bdf": bdf}),
    st.sampled_from(["-d 8086:f1a5", "-s 02:", "-d ::0108", "-d dead:"]).map(lambda text: {"filter": text}),
    st.sampled_from(["S1", "S2", "S9"]).map(lambda serial: {"select": {"serial": serial}}),
)
ELEMENTS = st.builds(
    lambda way, state: {**way, "state": state} if state else way,
    WAYS,
    st.sampled_from([None, None, "present", "available", "unavailable", "absent"]),
)
CLAIMS = st.builds(
    lambda way, label: {**way, "label": label} if label else way,
    st.sampled_from(
        [{"select": {"node_id": 8}}, {"select": {"vendor_id": "8086"}, "count": 2}, {"select": {"serial": "S2"}}]
        + [{"select": {"node_id": 8}, "all": True}, {"select": {"node_id": 12, "bdf": "01:00.0"}}, {"fdid": "0x80200"}]
    ),
    st.sampled_from([None, None, "a", "b"]),
)
#: What goes wrong in a run: a fault of the node that the module runs on, or death after so many seconds.
TROUBLE = st.one_of(
    st.builds(lambda command, error: ("fault", f"fail={command}:{error}:1"),
              st.sampled_from(["list", "show", "add", "available", "borrow", "return", "get-vdev", "connect", "scan"]),
              st.sampled_from(["EIO", "EBUSY", "ENOMEM", "EINVAL"])),
    st.builds(lambda command, kind: ("fault", f"garble={command}:{kind}"),
              st.sampled_from(["list", "show", "borrow", "get-vdev"]), st.sampled_from(["binary", "truncated"])),
    st.sampled_from([("fault", "settle=0.3"), ("fault", "busy=all"), ("fault", "ask=add"), ("fault", "slow=0.05")]),
    st.sampled_from(["list", "add", "available", "borrow", "return", "show"]).map(lambda command: ("hang", command)),
    st.floats(0.01, 0.6).map(lambda seconds: ("kill", seconds)),
)  # fmt: skip
MAYBE_TROUBLE = st.one_of(st.none(), TROUBLE)
Trouble = Optional[Tuple[str, Any]]


class Modules(Machine):
    """A cluster whose nodes are made what tasks say, with trouble in between."""

    cluster: Cluster
    warm: Warm

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        self.cluster.reset()
        for name in LENDERS:
            node = self.cluster.nodes[name]
            for args in (("connect", "4"), ("add", "01:00.0"), ("add", "02:00.0")):
                if data.draw(st.booleans(), label=f"{name} {args}"):
                    node.ask(*args)
            for bdf in data.draw(st.sets(st.sampled_from(["01:00.0", "02:00.0"])), label=f"{name} lends"):
                node.ask("add", bdf)
                node.ask("available", "--force", bdf)
        self.held: Dict[str, Tuple[str, str]] = {}

    def _node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    # - what others do

    @rule(bdf=st.sampled_from(["0000:01:00.0", "0000:02:00.0"]), where=st.sampled_from([None, "/srv", "/"]))
    def mount(self, bdf: str, where: Optional[str]) -> None:
        node = self._node("lender")
        node.mount(bdf, where)
        self.held.pop("lender", None)
        if where and node.driver(bdf):
            self.held["lender"] = (bdf, where)

    @rule(where=st.sampled_from([None, "/srv", "/"]))
    def mount_borrowed(self, where: Optional[str]) -> None:
        node = self._node("borrower")
        self.held.pop("borrower", None)
        for fdid, vdev in sorted(node.vdevs().items())[:1]:
            node.mount(vdev, where)
            if where and (node.proc / "self/mountinfo").read_text():
                self.held["borrower"] = (fdid, where)

    @rule(name=st.sampled_from(sorted(NODES)))
    def lose_ledger(self, name: str) -> None:
        (self._node(name).state_dir / "ledger.json").unlink(missing_ok=True)

    @rule(command=st.sampled_from(["borrow", "return"]), fdid=st.sampled_from(["80100", "80200", "c0100"]))
    def by_hand(self, command: str, fdid: str) -> None:
        if self.held.get("borrower", ("", ""))[0] != fdid:
            self._node("borrower").ask(command, fdid)

    # - runs

    @rule(
        name=NAMES,
        elements=st.lists(ELEMENTS, min_size=1, max_size=3),
        options=st.fixed_dictionaries(
            {"force": FLAGS, "borrowers_checked": FLAGS, "purge": FLAGS, "allow_empty": FLAGS},
            optional={"on_in_use": st.just("skip"), "state": st.sampled_from(["present", "unavailable", "absent"])},
        ),
        trouble=MAYBE_TROUBLE,
    )
    def device(self, name: str, elements: List[Any], options: Mapping[str, Any], trouble: Trouble) -> None:
        self._cycle(name, "smartio_device", {"devices": elements, **options}, trouble)

    @rule(claims=st.lists(CLAIMS, min_size=1, max_size=3), force=FLAGS, trouble=MAYBE_TROUBLE)
    def borrow(self, claims: List[Any], force: bool, trouble: Trouble) -> None:
        self._cycle("borrower", "smartio_borrow", {"devices": claims, "force": force, "timeout": 1.5}, trouble)

    @rule(claims=st.lists(CLAIMS, min_size=1, max_size=2), force=FLAGS, trouble=MAYBE_TROUBLE)
    def give_back(self, claims: List[Any], force: bool, trouble: Trouble) -> None:
        args = {"devices": claims, "force": force, "state": "returned"}
        self._cycle("borrower", "smartio_borrow", args, trouble)

    @rule(name=NAMES, peers=st.lists(st.sampled_from([4, 8, 12, 99]), min_size=1, max_size=3), trouble=MAYBE_TROUBLE)
    def connect(self, name: str, peers: List[int], trouble: Trouble) -> None:
        self._cycle(name, "smartio_connect", {"node_ids": peers, "timeout": 3}, trouble, told=99 not in peers)

    @rule(
        ends=st.permutations(["80100", "80200", "c0100"]),
        number=st.sampled_from([None, 0]),
        state=st.sampled_from(["enabled", "disabled"]),
        trouble=MAYBE_TROUBLE,
    )
    def pair(self, ends: List[str], number: Optional[int], state: str, trouble: Trouble) -> None:
        pairs = [{"source": ends[0], "destination": ends[1], "bar": number}]
        # Whether the lenders are connected with each other, only they know.
        self._cycle("borrower", "smartio_p2p", {"pairs": pairs * 2, "state": state}, trouble, told=False)

    @rule(value=st.sampled_from([0, 1, "yes", "N"]), bad=FLAGS, trouble=MAYBE_TROUBLE)
    def config(self, value: Any, bad: bool, trouble: Trouble) -> None:
        settings = {"autoborrow_transparent": value, **({"nonsense": 1} if bad else {})}
        self._cycle("borrower", "smartio_config", {"settings": settings}, trouble, told=not bad)

    @rule(autoborrow=st.sampled_from([None, False]), trouble=MAYBE_TROUBLE)
    def scan(self, autoborrow: Optional[bool], trouble: Trouble) -> None:
        self._cycle("borrower", "smartio_scan", {"node_id": 72, "autoborrow": autoborrow}, trouble, is_exact=False)

    @rule(name=NAMES, absent=FLAGS, kill=st.one_of(st.none(), st.floats(0.005, 0.2)))
    def persist(self, name: str, absent: bool, kill: Optional[float]) -> None:
        """What a look at the node's devices tells, recorded."""
        node = self._node(name)
        lent = [{"bdf": bdf, "state": word, "action": "none"} for bdf, (_fdid, word) in node.own().items()]
        path = node.folder.parent / f"{name}.json"
        args = {
            **node.args,
            "path": str(path),
            "program_dir": str(node.folder.parent / "lib"),
            "lent": lent,
            "connections": [{"node_id": 4, "action": "none"}],
            "state": "absent" if absent else "present",
        }
        (node.folder.parent / "lib").mkdir(exist_ok=True)
        (node.folder.parent / "lib/iofabric-sharing.pyz").touch()
        before = path.read_bytes() if path.exists() else None
        check = self._run("smartio_persist", args, check=True)
        assert (path.read_bytes() if path.exists() else None) == before
        if kill is not None:
            self.warm.run("smartio_persist", args, kill_after=kill)
            assert path.read_bytes() if path.exists() else not before, "a file was left that is none"
        done = self._run("smartio_persist", args)
        assert not check.failed and not done.failed, done.text
        assert check["sharing"] == done["sharing"]
        assert kill is not None or check.changed == done.changed
        assert not self._run("smartio_persist", args).changed
        assert not path.exists() or json.loads(path.read_bytes()) == done["sharing"]

    # - what must hold

    def _run(self, module: str, args: Mapping[str, Any], check: bool = False) -> Result:
        result = self.warm.run(module, args, check)
        assert result is not None
        return result

    def _cycle(
        self,
        name: str,
        module: str,
        args: Mapping[str, Any],
        trouble: Trouble,
        is_exact: bool = True,
        told: bool = True,
    ) -> None:
        """Check mode, perhaps a run that comes to grief, a run, and another one.

        ``told``: whether the node's state alone decides; otherwise the tool may have a say.
        """
        with self.chapter(f"{module} on {name}: {dict(args)}, trouble: {trouble}"):
            self._run_cycle(self._node(name), module, args, trouble, is_exact, told)

    def _run_cycle(
        self, node: Node, module: str, args: Mapping[str, Any], trouble: Trouble, is_exact: bool, told: bool
    ) -> None:
        merged = {**node.args, **args}
        force = bool(args.get("force"))
        mark, ledger, shown = node.mark(), node.ledger(), self._shown(node)
        check = self._run(module, merged, check=True)
        assert node.changing(mark) == [], "check mode ran a changing command"
        assert (node.ledger(), self._shown(node)) == (ledger, shown), "check mode changed something"
        if trouble is not None:
            self._get_into(trouble, node, module, merged)
        self._is_safe(node, shown, force)
        done = self._run(module, merged)
        self._is_safe(node, shown, force)
        expected_well = not check.failed and not check.get("pending")
        if expected_well and told:
            assert not done.failed, f"{module} {args}: {done.text}"
        if expected_well and trouble is None and is_exact and (told or not done.failed):
            _agree(check, done)
        mark, ledger = node.mark(), node.ledger()
        again = self._run(module, merged)
        assert not again.changed, f"{module} {args}: a second run: {again.text}"
        assert again.failed == done.failed, again.text
        ran = [command for command in node.changing(mark) if not command.startswith("scan ")]
        if not done.failed:
            assert ran == [], f"a second run ran {ran}"
        self._is_safe(node, shown, force)

    def _get_into(self, trouble: Tuple[str, Any], node: Node, module: str, args: Mapping[str, Any]) -> None:
        kind, what = trouble
        if kind == "kill":
            self.warm.run(module, args, kill_after=what)
        elif kind == "hang":
            node.fault(f"hang={what}")
            self.warm.run(module, args, kill_after=0.3)
        else:
            node.fault(what)
            self._run(module, args)
        node.fault("clear")

    def _shown(self, node: Node) -> Any:
        drivers = {path.name: node.driver(path.name) for path in (node.sysfs / "bus/pci/devices").iterdir()}
        return node.pool(), node.vdevs(), drivers

    def _is_safe(self, node: Node, before: Any, force: bool) -> None:
        """What is mounted is where it was; with force that holds for the system's disk only."""
        held = self.held.get(node.name)
        if held is None or (force and held[1] != "/"):
            return
        place, where = held
        if node.name == "borrower":
            assert node.vdevs().get(place) == before[1].get(place), f"{place} is mounted at {where} and was returned"
        else:
            assert node.driver(place) == before[2][place], f"{place} is mounted at {where} and was taken"


def _agree(check: Result, done: Result) -> None:
    assert check.changed == done.changed, f"check {check.text}\nrun {done.text}"
    for name in LISTS:
        if name in done:
            assert len(check[name]) == len(done[name]), f"check {check.text}\nrun {done.text}"
            for foreseen, row in zip(check[name], done[name]):
                for key in ("action", "state", "bdf", "fdid", "label", "value", "node_id"):
                    told = foreseen.get(key) is not None or key in ("action", "state")
                    assert not told or foreseen.get(key) == row.get(key), f"{key}: check {foreseen}\nrun {row}"


def _drive(request: pytest.FixtureRequest, warm: Warm, folder: Path, **options: Any) -> None:
    cluster = Cluster(folder, **options)
    machine = type("Modules", (Modules,), {"cluster": cluster, "warm": warm})
    try:
        drive(machine, request, "module", steps=4)
    finally:
        cluster.close()


@pytest.mark.xdist_group("lenient")
def test_lenient(request: pytest.FixtureRequest, warm: Warm, tmp_path: Path) -> None:
    _drive(request, warm, tmp_path)


@pytest.mark.xdist_group("strict")
def test_strict(request: pytest.FixtureRequest, warm: Warm, tmp_path: Path) -> None:
    _drive(request, warm, tmp_path, strict=True, generation="id-prefix", borrowed_word="in use")
