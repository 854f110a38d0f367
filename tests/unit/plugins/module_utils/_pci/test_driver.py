# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import bounded
from ansible_collections.iofabric.sharing.plugins.module_utils._pci import driver as driver_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.driver import (
    DEFAULT,
    INCLUDE,
    REFUSE,
    Bound,
    Choice,
    Have,
    Want,
    plan,
    resource,
    steps,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.usage import Usage
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Report, SharingError
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._pci.conftest import FakeProc, FakeSysfs
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._pci.kernel import Kernel
from hypothesis import given, settings
from hypothesis import strategies as st

A, B, C, PORT = "0000:81:00.0", "0000:82:00.0", "0000:82:00.1", "0000:80:01.0"


class Lab:
    """A node with two drives, the second in a group with another one and with the port above."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeSysfs(root / "sys")
        self.proc = FakeProc(root / "proc")
        self.kernel = Kernel(self.fake)
        self.kernel.modules = {"nvme": ("nvme",), "vfio-pci": ("vfio-pci",)}
        self.stuck = False

        def write(path: str, text: str, seconds: float) -> bounded.Ended:
            bdf = text.strip()
            if path.endswith("/unbind") and bdf in self.kernel.hangs:
                raise bounded.GivenUp(4711, self.stuck)
            return bounded.Ended(self.kernel.write(path, text), "")

        def run(command: Sequence[str], seconds: float) -> bounded.Ended:
            return bounded.Ended(*self.kernel.modprobe(*command[1:]))

        monkeypatch.setattr(driver_module.bounded, "write", write)
        monkeypatch.setattr(driver_module.bounded, "run", run)
        monkeypatch.setattr(driver_module, "_find_program", lambda name: f"/sbin/{name}")
        monkeypatch.setattr(driver_module, "_SETTLE", 0.0)

    def fill(self) -> Lab:
        self.kernel.load("nvme", "nvme")
        self.kernel.add(A, driver="nvme", group="7")
        self.kernel.add(PORT, driver="pcieport", group="8", **{"class": "0x060400"})
        self.kernel.add(B, driver="nvme", group="8")
        self.kernel.add(C, driver="nvme", group="8")
        return self

    def run(self, devices: List[Any], driver: str, check: bool = False, **more: Any) -> Report:
        arguments = {"group": REFUSE, "force": False, "timeout": 60.0, **more}
        places = {"sysfs": str(self.fake.root), "proc": self.proc.path}
        return resource({"devices": devices, "driver": driver, **arguments, **places}).run(check)

    def drivers(self, *bdfs: str) -> List[Optional[str]]:
        return [self.kernel.driver(bdf) for bdf in bdfs]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch).fill()


def rows(report: Report, *names: str) -> List[Tuple[Any, ...]]:
    devices: Any = report.results["devices"]
    return [tuple(row[name] for name in names) for row in devices]


def message(report: Report) -> str:
    assert len(report.errors) == 1, report.errors
    return report.errors[0][1].message


def test_to_a_driver_and_back(lab: Lab) -> None:
    there = lab.run(["81:00.0"], "vfio-pci")
    assert rows(there, "bdf", "before", "after", "iommu_group", "in_use", "action") == [
        (A, "nvme", "vfio-pci", "7", [], "modprobe, unbind, override, probe")
    ]
    assert there.changed and there.errors == []
    assert (there.before, there.after) == ([f"{A}: nvme"], [f"{A}: vfio-pci, override vfio-pci"])
    assert lab.kernel.override(A) == "vfio-pci"
    lab.kernel.written.clear()
    again = lab.run([A], "vfio-pci")
    assert not again.changed and lab.kernel.written == []
    assert rows(again, "before", "after", "action") == [("vfio-pci", "vfio-pci", "none")]
    back = lab.run([A], DEFAULT)
    assert rows(back, "before", "after", "action") == [("vfio-pci", "nvme", "unbind, override, probe")]
    assert back.after == [f"{A}: default driver"]
    assert lab.kernel.override(A) == ""
    lab.kernel.written.clear()
    assert not lab.run([A], DEFAULT).changed and lab.kernel.written == []


def test_writes_in_order(lab: Lab) -> None:
    lab.run([A], "vfio-pci")
    device = f"bus/pci/devices/{A}"
    assert lab.kernel.written == [
        (f"{device}/driver/unbind", A),
        (f"{device}/driver_override", "vfio-pci"),
        ("bus/pci/drivers_probe", A),
    ]


def test_several_by_a_filter_and_an_address(lab: Lab) -> None:
    report = lab.run(["-d ::0108", A], "vfio-pci")
    assert rows(report, "bdf", "after", "action") == [
        (A, "vfio-pci", "modprobe, unbind, override, probe"),
        (B, "vfio-pci", "unbind, override, probe"),
        (C, "vfio-pci", "unbind, override, probe"),
    ]


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ("-d 1234:", "matches no PCI device"),
        ("0000:99:00.0", "no PCI device 0000:99:00.0"),
        (4860.0, "quote it"),
        ("-x", "is not understood"),
        ("82:", "names 2 PCI devices"),
    ],
)
def test_one_element_that_means_nothing_leaves_the_others_done(lab: Lab, element: Any, words: str) -> None:
    report = lab.run([element, A], "vfio-pci")
    assert words in message(report)
    assert report.changed and lab.drivers(A) == ["vfio-pci"]


def test_what_makes_no_sense_is_refused(lab: Lab) -> None:
    with pytest.raises(SharingError, match="devices is empty"):
        lab.run([], "vfio-pci")
    for name in ("", "../nvme", "vfio pci", "-n", "nvme\n"):
        with pytest.raises(SharingError, match="no driver's name"):
            lab.run([A], name)
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SharingError, match="number of seconds"):
            lab.run([A], "vfio-pci", timeout=timeout)


def test_one_of_a_group_is_refused_and_the_others_are_named(lab: Lab) -> None:
    report = lab.run([B], "vfio-pci")
    assert message(report) == (
        f"{B} shares its IOMMU group 8 with {C} (nvme), and VFIO takes whole groups: name all of them, or give "
        "group: include"
    )
    assert report.errors[0][1].details == {"group": [C]}
    assert not report.changed and lab.kernel.written == []


def test_a_group_is_taken_along_without_its_bridges(lab: Lab) -> None:
    report = lab.run([B], "vfio-pci", group=INCLUDE)
    assert rows(report, "bdf", "after") == [(B, "vfio-pci"), (C, "vfio-pci")]
    assert lab.drivers(PORT, A) == ["pcieport", "nvme"]
    assert not lab.run([B], "vfio-pci", group=INCLUDE).changed
    assert rows(lab.run([C], DEFAULT, group=INCLUDE), "bdf", "after") == [(C, "nvme"), (B, "nvme")]


def test_all_of_a_group_may_be_named(lab: Lab) -> None:
    report = lab.run([C, B], "vfio-pci")
    assert rows(report, "bdf", "after") == [(C, "vfio-pci"), (B, "vfio-pci")]
    assert rows(lab.run([B], DEFAULT), "bdf", "after") == [(B, "nvme")]
    assert lab.drivers(C) == ["vfio-pci"]


@pytest.mark.parametrize("other", ["", "pci-stub", "vfio-pci", "mlx5_vfio_pci"])
def test_others_that_do_no_harm_to_vfio_may_stay(lab: Lab, other: str) -> None:
    lab.kernel.add("0000:83:00.0", driver=other, group="9")
    lab.kernel.add("0000:83:00.1", driver="nvme", group="9")
    assert lab.run(["83:00.1"], "vfio-pci").errors == []


def test_a_group_matters_to_vfio_only(lab: Lab) -> None:
    lab.kernel.modules["uio_pci_generic"] = ("uio_pci_generic",)
    assert rows(lab.run([B], "uio_pci_generic"), "bdf", "after") == [(B, "uio_pci_generic")]


def test_no_group_no_vfio(lab: Lab) -> None:
    lab.kernel.add("0000:84:00.0", driver="nvme")
    assert "is in no IOMMU group" in message(lab.run(["84:00.0"], "vfio-pci"))
    lab.fake.write("module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
    assert lab.run(["84:00.0"], "vfio-pci").errors == []


def mounted(lab: Lab, bdf: str, point: str) -> None:
    folder = f"bus/pci/devices/{bdf}/block/{bdf[5:7]}{bdf[-1]}"
    lab.fake.disk(folder, f"8:{bdf[6]}{bdf[-1]}")
    lab.proc.mount(f"8:{bdf[6]}{bdf[-1]}", point)


def test_what_is_in_use_is_refused_and_forced(lab: Lab) -> None:
    mounted(lab, A, "/srv")
    report = lab.run([A], "vfio-pci")
    assert message(report) == f"{A} is in use: mounted at /srv (810); free it first, or give force: true"
    assert rows(report, "in_use", "action", "after") == [(["mounted at /srv (810)"], "none", "nvme")]
    assert not report.changed and lab.kernel.written == []
    assert rows(lab.run([A], "vfio-pci", force=True), "after") == [("vfio-pci",)]


@pytest.mark.parametrize("force", [False, True])
def test_never(lab: Lab, force: bool) -> None:
    mounted(lab, A, "/")
    assert message(lab.run([A, B, C], "vfio-pci", force=force)) == (
        f"{A} must not be touched: holds / (810); refused even with force"
    )
    assert lab.drivers(A, B, C) == ["nvme", "vfio-pci", "vfio-pci"]
    assert "is a PCI bridge" in message(lab.run([PORT], "vfio-pci", force=force, group=INCLUDE))


def test_one_in_use_holds_its_group(lab: Lab) -> None:
    mounted(lab, C, "/srv")
    report = lab.run([B, A], "vfio-pci", group=INCLUDE)
    assert message(report) == (
        f"{B} moves together with others of its IOMMU group: {C} is in use: mounted at /srv (821); free it first, or "
        "give force: true"
    )
    assert lab.drivers(A, B, C) == ["vfio-pci", "nvme", "nvme"]


def test_in_use_is_not_asked_for_where_nothing_moves(lab: Lab) -> None:
    mounted(lab, A, "/srv")
    report = lab.run([A], "nvme")
    assert rows(report, "in_use", "action") == [([], "none")] and report.errors == []


def test_a_module_that_is_not_there(lab: Lab) -> None:
    for check in (True, False):
        assert message(lab.run([A], "nvmf", check=check)) == (
            "the kernel module nvmf cannot be loaded (modprobe: FATAL: Module nvmf not found in directory "
            "/lib/modules/6.1): correct the driver's name, or install the package that has it"
        )
    assert lab.drivers(A) == ["nvme"]


def test_no_modprobe(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_find_program", lambda name: None)
    assert message(lab.run([A], "vfio-pci")) == (
        "the driver vfio-pci is not loaded, and modprobe, which could load it, is not installed: install kmod"
    )
    lab.kernel.load("vfio-pci", "vfio-pci")
    assert lab.run([A], "vfio-pci").errors == []
    assert rows(lab.run([A], DEFAULT), "after") == [("nvme",)]


def test_busyboxs_modprobe_cannot_say_what_the_kernel_would_choose(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.run([A], "vfio-pci")
    usage = (1, "modprobe: invalid option -- 'R'\nUsage: modprobe [-alrqvsDb] MODULE")
    monkeypatch.setattr(lab.kernel, "modprobe", lambda *arguments: usage)
    assert rows(lab.run([A], DEFAULT), "after", "action") == [("nvme", "unbind, override, probe")]


def test_a_module_without_such_a_driver(lab: Lab) -> None:
    lab.kernel.modules["nvmet"] = ()
    text = message(lab.run([A], "nvmet"))
    assert f"{A}: the kernel module nvmet brings no PCI driver of that name" in text
    assert text.endswith(f"{A} was put back as it was (nvme)")
    assert lab.drivers(A) == ["nvme"]


def test_what_fails_is_put_back(lab: Lab) -> None:
    lab.kernel.fails.add((A, "vfio-pci"))
    report = lab.run([A, B, C], "vfio-pci")
    assert message(report) == f"{A}: vfio-pci did not take it; see dmesg; {A} was put back as it was (nvme)"
    assert rows(report, "before", "after", "action") == [
        ("nvme", "nvme", "modprobe, unbind, override"),
        ("nvme", "vfio-pci", "unbind, override, probe"),
        ("nvme", "vfio-pci", "unbind, override, probe"),
    ]
    assert report.after[0] == f"{A}: nvme" and lab.kernel.override(A) == ""


def test_a_group_that_fails_is_put_back_as_a_whole(lab: Lab) -> None:
    lab.kernel.fails.add((C, "vfio-pci"))
    text = message(lab.run([B], "vfio-pci", group=INCLUDE))
    assert text.endswith(f"{C} was put back as it was (nvme); {B} was put back as it was (nvme)")
    assert lab.drivers(B, C) == ["nvme", "nvme"]
    assert [lab.kernel.override(bdf) for bdf in (B, C)] == ["", ""]


def test_what_cannot_be_put_back_is_said(lab: Lab) -> None:
    lab.kernel.fails.update({(A, "vfio-pci"), (A, "nvme")})
    text = message(lab.run([A], "vfio-pci"))
    assert f"{A} could not be put back as it was (nvme): {A}: nvme did not take it" in text


def test_an_override_that_was_there_is_put_back(lab: Lab) -> None:
    lab.run([A], "vfio-pci")
    lab.kernel.fails.add((A, "nvme"))
    text = message(lab.run([A], DEFAULT))
    assert text == (f"{A}: no driver took it; see dmesg; {A} was put back as it was (vfio-pci, override vfio-pci)")
    assert (lab.drivers(A), lab.kernel.override(A)) == (["vfio-pci"], "vfio-pci")


@pytest.mark.parametrize("stuck", [True, False])
def test_an_unbind_that_hangs_is_given_up_by_name(lab: Lab, stuck: bool) -> None:
    lab.kernel.hangs.add(B)
    lab.stuck = stuck
    report = lab.run([A, B], "vfio-pci", group=INCLUDE)
    text = message(report)
    assert text.startswith(f"{B}: could not unbind nvme from {B} within 30.0 seconds; process 4711 waits for it and ")
    assert (f"{B} is left as it is" in text) == stuck
    assert lab.drivers(A, B, C) == ["vfio-pci", "nvme", "nvme"]


def test_no_time_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    report = lab.run([A], "vfio-pci", timeout=1e-9)
    assert "no time is left to load vfio-pci; give a longer timeout" in message(report)
    assert lab.drivers(A) == ["nvme"]


def test_the_default_of_a_device_without_a_driver(lab: Lab) -> None:
    lab.kernel.add("0000:85:00.0", override="")
    report = lab.run(["85:00.0"], DEFAULT)
    assert not report.changed and rows(report, "after", "action") == [(None, "none")]
    lab.kernel.takes["nvme"].add("0000:85:00.0")
    assert rows(lab.run(["85:00.0"], DEFAULT), "after", "action") == [("nvme", "probe")]


def test_the_default_driver_is_loaded(lab: Lab) -> None:
    bdf = "0000:85:00.0"
    lab.kernel.add(bdf, override="vfio-pci")
    lab.kernel.takes["xe"] = {bdf}
    lab.kernel.modules["xe"] = ("xe",)
    report = lab.run([bdf], DEFAULT)
    assert rows(report, "after", "action") == [("xe", "modprobe, override, probe")]


def test_a_device_without_driver_override(lab: Lab) -> None:
    lab.fake.device("0000:86:00.0", **{"class": "0x010802"})
    assert "has no driver_override" in message(lab.run(["86:00.0"], "nvme"))


VFIO = "vfio-pci"


@pytest.mark.parametrize(
    ("device", "driver", "expected"),
    [
        (Bound(A, "nvme"), "nvme", ()),
        (Bound(A, "nvme", override=VFIO), "nvme", ()),
        (Bound(A, "nvme"), VFIO, ("unbind", "override", "probe")),
        (Bound(A, "nvme", override=VFIO), VFIO, ("unbind", "probe")),
        (Bound(A), VFIO, ("override", "probe")),
        (Bound(A, override=VFIO), VFIO, ("probe",)),
        (Bound(A, "nvme"), DEFAULT, ()),
        (Bound(A, VFIO), DEFAULT, ()),
        (Bound(A, "nvme", override=VFIO), DEFAULT, ("override",)),
        (Bound(A, VFIO, override=VFIO), DEFAULT, ("unbind", "override")),
        (Bound(A, VFIO, override=VFIO, choice=None), DEFAULT, ("unbind", "override", "probe")),
        (Bound(A, VFIO, override=VFIO, choice=Choice(modules=("nvme",))), DEFAULT, ("unbind", "override", "probe")),
        (Bound(A, "nvme", override="nvme", choice=Choice(frozenset({"nvme"}))), DEFAULT, ("override",)),
        (Bound(A), DEFAULT, ()),
        (Bound(A, choice=None), DEFAULT, ("probe",)),
        (Bound(A, override=VFIO), DEFAULT, ("override",)),
        (Bound(A, override=VFIO, choice=Choice(frozenset({"nvme"}))), DEFAULT, ("override", "probe")),
    ],
)
def test_steps(device: Bound, driver: str, expected: Tuple[str, ...]) -> None:
    assert steps(device, driver) == expected


NAMES = ("0000:01:00.0", "0000:02:00.0", "0000:02:00.1", "0000:03:00.0")
DRIVERS = st.sampled_from(["nvme", "vfio-pci", "uio_pci_generic"])


@st.composite
def nodes(draw: st.DrawFn) -> Dict[str, Bound]:
    made = {}
    for bdf in NAMES:
        driver = draw(st.none() | DRIVERS)
        made[bdf] = Bound(
            bdf,
            driver,
            draw(st.sampled_from(["", "vfio-pci", "nvme"])),
            draw(st.sampled_from(["1", "2"])),
            draw(st.booleans()),
            draw(st.none() | st.builds(Choice, st.frozensets(DRIVERS, max_size=2), st.sampled_from([(), ("nvme",)]))),
            draw(st.sampled_from([Usage(), Usage(("open by fio (pid 1)",)), Usage(never=("holds / (nvme0n1)",))])),
        )
    return made


@given(
    nodes(),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    DRIVERS | st.just(DEFAULT),
    st.sampled_from([REFUSE, INCLUDE]),
    st.booleans(),
)
def test_every_plan_keeps_the_rules(
    devices: Dict[str, Bound], bdfs: List[str], driver: str, group: str, force: bool
) -> None:
    want = Want(tuple(bdfs), driver, group, force)
    moved = [str(action.args[0]) for item in plan(want, Have(devices)).items for action in item.actions]
    for bdf in set(moved):
        device = devices[bdf]
        assert steps(device, driver)
        assert not device.used.never and (force or not device.used.reasons)
        assert bdf in bdfs or (group == INCLUDE and not device.bridge)
        if want.vfio:
            others = [other for other in devices.values() if other.group == device.group and not other.bridge]
            assert all(other.bdf in moved or other.driver in (None, "vfio-pci") for other in others)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["nvme", ""]), min_size=3, max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(["nvme", "vfio-pci", DEFAULT]),
            st.sets(st.sampled_from([A, B, C]), min_size=1),
            st.sampled_from([REFUSE, INCLUDE]),
            st.sets(st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["nvme", "vfio-pci"])), max_size=1),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_run_on_a_kernel(start: List[str], runs: List[Any]) -> None:
    """Check mode tells what a run does; what fails is as it was; what was done is done again without a change."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        lab = Lab(Path(folder), monkeypatch)
        lab.kernel.load("nvme", "nvme")
        lab.kernel.takes["nvme"] = {A, B, C}
        for bdf, driver, number in zip((A, B, C), start, "788"):
            lab.kernel.add(bdf, driver=driver, group=number)
        for driver, devices, group, fails in runs:
            lab.kernel.fails = fails
            before = {bdf: (lab.kernel.driver(bdf), lab.kernel.override(bdf)) for bdf in (A, B, C)}
            lab.kernel.written.clear()
            foreseen = lab.run(sorted(devices), driver, check=True, group=group)
            assert lab.kernel.written == []
            done = lab.run(sorted(devices), driver, group=group)
            after = {bdf: (lab.kernel.driver(bdf), lab.kernel.override(bdf)) for bdf in (A, B, C)}
            if not done.errors:
                assert (foreseen.changed, foreseen.after) == (done.changed, done.after)
                assert rows(foreseen, "bdf", "before", "action") == rows(done, "bdf", "before", "action")
                assert all(after[bdf][0] == driver or driver == DEFAULT for bdf in devices)
                assert not lab.run(sorted(devices), driver, group=group).changed
            for row in done.results["devices"]:  # type: ignore[attr-defined]
                assert row["after"] == after[row["bdf"]][0]
            untouched = {A, B, C} - {row["bdf"] for row in done.results["devices"]}  # type: ignore[attr-defined]
            assert all(after[bdf] == before[bdf] for bdf in untouched)
            if done.errors and "could not be put back" not in str(done.errors):
                failed = {name for name, _error in done.errors}
                assert all(after[bdf] == before[bdf] for bdf in failed)
