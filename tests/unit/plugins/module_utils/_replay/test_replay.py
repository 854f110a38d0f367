# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The replay against the stub of the tools, whose quirks differ from the software node's."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import threading
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._replay import replay, store
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import (
    CplaneEntry,
    End,
    MountEntry,
    PairEntry,
    StoreError,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.connections import Connection
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._replay.conftest import (
    Site,
    borrowed,
    lent,
    nothing,
    times,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import VARIANTS, Fabric, gpu, nvme

A, B, C = "0000:81:00.0", "0000:82:00.0", "0000:03:00.0"
DRIVE, OTHER, GPU = nvme(A, 0), nvme(B, 1), gpu(C, 2)
Pair = Tuple[Site, Site]


@pytest.fixture(params=list(VARIANTS))
def quirks(request: pytest.FixtureRequest) -> Dict[str, Any]:
    """The test runs once with every set of quirks."""
    return dict(VARIANTS[request.param])


def make(fabric: Fabric, folder: Path, **quirks: Any) -> Pair:
    """A lender (node 4) and a borrower (node 8)."""
    lender = Site(folder / "lender", fabric.node(4, [DRIVE, OTHER, GPU], **quirks))
    return lender, Site(folder / "borrower", fabric.node(8, **quirks))


@pytest.fixture
def sites(fabric: Fabric, tmp_path: Path) -> Pair:
    lender, borrower = make(fabric, tmp_path)
    lender.record(
        connections=[Connection(8, 0)], lent=[lent(DRIVE), lent(OTHER), lent(GPU, serial=None, state="unavailable")]
    )
    borrower.record(borrowed=[borrowed(4, DRIVE), borrowed(4, OTHER)])
    return lender, borrower


# -- all comes back ---------------------------------------------------------------------------------------------------


def test_a_lender_after_its_reboot(fabric: Fabric, tmp_path: Path, quirks: Dict[str, Any]) -> None:
    lender, _borrower = make(fabric, tmp_path, **quirks)
    lender.record(connections=[Connection(8, 0)], lent=[lent(DRIVE), lent(GPU, serial=None, state="unavailable")])
    for _boot in range(2):
        assert lender.replay() == 0
        assert lender.node.connections() == [[8, 0]]
        assert lender.node.pool() == {A: "available", C: "unavailable"}
        assert lender.says("node 4", "3 of 3 entries")
        assert lender.says("connection to node 8 (adapter 0)", "connected")
        assert lender.says(f"lent device {A}", "available")
        assert lender.says("3 of 3 entries are back")
        mark = lender.node.mark()
        assert lender.replay() == 0
        assert lender.lines == ["3 of 3 entries are back"]
        assert lender.node.commands(mark) == []
        assert lender.replay(again=True) == 0
        assert lender.node.changing(mark) == []
        lender.node.reboot()


def test_a_borrower_gets_its_own_devices_and_no_other(fabric: Fabric, tmp_path: Path, quirks: Dict[str, Any]) -> None:
    lender, borrower = make(fabric, tmp_path, **quirks)
    entries = [borrowed(4, OTHER, dma_window="512"), borrowed(4, GPU, label="cuda"), borrowed(4, DRIVE, label=None)]
    entries = [dataclasses.replace(entry, fdid=str(place)) for place, entry in enumerate(entries)]
    ends = [End(4, B), End(4, C)]
    borrower.record(borrowed=entries, pairs=[PairEntry(ends[0], ends[1], 2)])
    fabric.connect(4, 8)
    # The lender is late, and makes its devices available one by one.
    moments = [lambda: fabric.lend(4, C), lambda: fabric.lend(4, B), lambda: fabric.lend(4, A)]
    assert borrower.replay(nothing, *moments) == 0
    fdids = {bdf: lender.node.fdid(bdf) for bdf in (A, B, C)}
    assert borrower.node.borrowed() == sorted(fdids.values())
    assert f"borrow {fdids[B]} 512" in borrower.node.commands()
    assert f"enable-p2p {fdids[B]} {fdids[C]} 2" in borrower.node.commands()
    for bdf in (A, B, C):
        assert borrower.says(f"borrowed device {bdf} of node 4", "not yet, it is not in the pool yet")
        assert borrower.says(f"borrowed device {bdf} of node 4", ": borrowed, as 0000:")
    assert len(borrower.lines) == len(set(borrower.lines))
    mark = borrower.node.mark()
    assert borrower.replay(again=True) == 0
    assert borrower.node.changing(mark) == []


def test_another_device_of_the_label_is_not_taken(sites: Pair, fabric: Fabric) -> None:
    """Same lender, same model, available: it was not granted."""
    _lender, borrower = sites
    borrower.record(borrowed=[borrowed(4, DRIVE)])
    fabric.connect(4, 8)
    (other,) = fabric.lend(4, B)
    borrower.waits(nothing, nothing)
    assert borrower.node.borrowed() == []
    assert borrower.node.changing() == []
    assert fabric.borrowers(other) == []


def test_pauses_grow_and_start_anew_with_every_device(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    borrower.waits(*times(nothing, 11), lambda: fabric.lend(4, A), nothing)
    assert borrower.pauses[:2] == [0.8, 0.8 * 1.6]
    assert borrower.pauses[11] == 30.0
    assert borrower.pauses[12] == 0.5
    assert borrower.node.borrowed() == [fabric.nodes[4].fdid(A)]


def test_no_lock_is_held_between_passes(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fabric.lend(4, A)

    def take_the_lock() -> None:
        with open(borrower.node.state_dir / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    borrower.waits(take_the_lock, take_the_lock)


def test_a_lock_that_somebody_holds_is_waited_for(sites: Pair) -> None:
    lender, _borrower = sites
    lender.node.state_dir.mkdir()
    lock = os.open(lender.node.state_dir / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert lender.replay(lambda: os.close(lock)) == 0
    assert lender.says("not yet", "locked by another run")
    assert lender.node.pool()[A] == "available"


# -- what is not there ------------------------------------------------------------------------------------------------


def test_an_unreachable_borrower_delays_nothing_else(sites: Pair, fabric: Fabric) -> None:
    lender, _borrower = sites
    fabric.link_down(8)
    assert lender.replay(nothing, nothing, lambda: fabric.link_down(8, False)) == 0
    assert lender.says("connection to node 8", "not yet, node 4 cannot connect to node 8", "EIO")
    order = [line.split(":")[0] for line in lender.lines]
    assert order.index("lent device 0000") < len(order) - 2
    assert [line for line in lender.lines if "EIO" in line] == [line for line in lender.lines if "not yet" in line]
    assert len([line for line in lender.lines if "EIO" in line]) == 1
    assert lender.node.connections() == [[8, 0]]


def test_a_busy_device_is_waited_for(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fdids = fabric.lend(4, A, B)
    borrower.node.rule("borrow", "exit", exit=16, arg=fdids[0], times=2)
    assert borrower.replay(nothing, nothing) == 0
    assert borrower.says(f"{A} of node 4", "not yet", "EBUSY")
    assert borrower.node.borrowed() == sorted(fdids)
    # The other one was there from the first pass on, and was not given back meanwhile.
    assert "return" not in " ".join(borrower.node.changing())


def test_what_no_waiting_cures_is_refused_for_good(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fdids = fabric.lend(4, A, B)
    borrower.node.rule("borrow", "exit", exit=12, arg=fdids[0])
    assert borrower.replay() == 1
    assert borrower.says(f"{A} of node 4", "refused", "ENOMEM")
    assert borrower.says("1 of 2 entries are back; refused: borrowed device")
    mark = borrower.node.mark()
    assert borrower.replay() == 1
    assert borrower.node.commands(mark) == []
    borrower.node.no_rules()
    assert borrower.replay(again=True) == 0
    assert borrower.node.borrowed() == sorted(fdids)


def test_a_tool_that_comes_late(sites: Pair) -> None:
    lender, _borrower = sites
    away = lender.node.tool.with_name("away")
    lender.node.tool.rename(away)
    lender.node.unload_module()

    def install() -> None:
        away.rename(lender.node.tool)

    lender.node.rule("*", "exit", exit=6)  # what a tool without its module may answer
    assert lender.replay(nothing, install, nothing, lender.node.no_rules, again=False) == 0
    assert lender.says("4 entries: not yet", "does not exist")
    assert lender.says("4 entries: not yet", "ENXIO")
    assert lender.node.pool()[A] == "available"


def test_a_module_that_cannot_be_seen_is_no_obstacle(sites: Pair) -> None:
    """A tool that answers has its module; nothing is remembered, since nobody could tell for which load."""
    lender, _borrower = sites
    lender.node.unload_module()
    assert lender.replay() == 0
    assert lender.node.pool() == {A: "available", B: "available", C: "unavailable"}
    assert not (lender.run_dir / "replayed.json").exists()


def test_a_tool_that_hangs_costs_its_limit(sites: Pair, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fdids = fabric.lend(4, A, B)
    monkeypatch.setattr(replay, "COMMAND_LIMIT", 0.5)
    borrower.node.rule("show", "hang", arg=fdids[0], times=1)
    assert borrower.replay(nothing, nothing) == 0
    assert borrower.says("did not end within 0.5 seconds")
    assert borrower.node.borrowed() == sorted(fdids)


def test_ready_in_time_whatever_the_first_pass_does(
    sites: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender, _borrower = sites
    monkeypatch.setattr(replay, "COMMAND_LIMIT", 2.0)
    monkeypatch.setattr(replay, "_READY_AFTER", 0.1)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    lender.node.rule("list", "hang", times=1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        told = []

        def listen() -> None:
            told.extend(manager.recv(4096).decode().split("=")[0] for _message in range(3))

        thread = threading.Thread(target=listen)
        thread.start()
        assert lender.replay(nothing) == 0
        thread.join(20)
    assert told == ["READY", "BARRIER", "STATUS"]


# -- what is not the same ---------------------------------------------------------------------------------------------


def test_a_drive_that_was_swapped_is_left_alone(sites: Pair, fabric: Fabric) -> None:
    lender, borrower = sites
    lender.record(lent=[lent(DRIVE, serial="another"), lent(OTHER)])
    assert lender.replay() == 1
    assert lender.says(f"lent device {A}", "refused, another device is at its address", DRIVE["serial"])
    assert lender.node.pool() == {B: "available"}
    fabric.connect(4, 8)
    fabric.lend(4, A)
    borrower.record(borrowed=[borrowed(4, DRIVE, serial="another"), borrowed(4, OTHER)])
    assert borrower.replay() == 1
    assert borrower.says(f"borrowed device {A} of node 4", "refused, another device is at its address")
    assert borrower.node.borrowed() == [lender.node.fdid(B)]


def test_a_drive_in_another_slot_is_found(sites: Pair) -> None:
    lender, _borrower = sites
    lender.record(lent=[lent(DRIVE, bdf="0000:99:00.0")])
    assert lender.replay() == 0
    assert lender.says("lent device 0000:99:00.0", f"at its new address {A}")
    assert lender.node.pool() == {A: "available"}


def test_a_device_in_use_is_refused_once_the_boot_has_settled(sites: Pair) -> None:
    lender, _borrower = sites
    lender.record(lent=[lent(DRIVE), lent(OTHER)])
    lender.node.mount("nvme0n1", "/srv")
    assert lender.replay(*times(nothing, 7)) == 1
    assert lender.now > 15
    assert lender.says(f"lent device {A}", "not yet", "mounted at /srv")
    assert lender.says(f"lent device {A}", "refused", "mounted at /srv")
    assert lender.node.pool() == {B: "available"}
    assert lender.node.driver(A) == "nvme"


def test_a_device_that_only_the_boot_looks_at_is_lent(sites: Pair) -> None:
    lender, _borrower = sites
    lender.record(lent=[lent(DRIVE)])
    lender.node.mount("nvme0n1", "/srv")
    assert lender.replay(nothing, lambda: lender.node.unmount("/srv")) == 0
    assert lender.node.pool() == {A: "available"}


def test_a_serial_number_that_is_told_late_is_waited_for(sites: Pair) -> None:
    """A drive of the same model may be in the slot: its driver is given time to tell."""
    lender, _borrower = sites
    lender.record(lent=[lent(DRIVE)])
    serial = next((lender.node.sysfs / "bus/pci/devices" / A / "nvme").iterdir()) / "serial"
    text = serial.read_text()
    serial.unlink()
    assert lender.replay(nothing, lambda: serial.write_text(text)) == 0
    assert lender.says(f"lent device {A}", "cannot be told yet")
    lender.node.reboot()
    serial = next((lender.node.sysfs / "bus/pci/devices" / A / "nvme").iterdir()) / "serial"
    serial.unlink()
    lender.now = 0
    assert lender.replay(*times(nothing, 6)) == 0
    assert lender.now > 15
    assert lender.node.pool() == {A: "available"}


def test_what_somebody_made_available_stays_so(sites: Pair, fabric: Fabric) -> None:
    """What was only in the pool is put there, never taken back."""
    lender, _borrower = sites
    fabric.lend(4, C)
    assert lender.replay() == 0
    assert lender.node.pool()[C] == "available"
    assert "unavailable" not in " ".join(lender.node.changing())


# -- hold, and what is recorded meanwhile -----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", "drained for new fans\n"])
def test_on_hold_nothing_is_done(sites: Pair, reason: str) -> None:
    lender, _borrower = sites
    lender.hold(reason)
    assert lender.replay() == 0
    assert lender.node.commands() == []
    assert lender.says("on hold, nothing is replayed", reason.strip() or str(lender.run_dir / "hold"))
    (lender.run_dir / "hold").unlink()
    assert lender.replay() == 0
    assert lender.node.pool()[A] == "available"


def test_a_hold_ends_the_passes(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)

    def hold() -> None:
        fabric.lend(4, A, B)
        borrower.hold("by hand")

    assert borrower.replay(nothing, hold) == 0
    assert borrower.says("on hold", "by hand")
    assert borrower.node.borrowed() == []


def test_what_was_returned_by_hand_stays_returned(sites: Pair, fabric: Fabric) -> None:
    """Also while others of its label are waited for."""
    _lender, borrower = sites
    fabric.connect(4, 8)
    (first,) = fabric.lend(4, A)

    def give_back() -> None:
        with fabric.edit() as state:
            state["devices"][first]["borrowers"] = {}

    assert borrower.replay(give_back, nothing, lambda: fabric.lend(4, B)) == 0
    assert borrower.node.borrowed() == [fabric.nodes[4].fdid(B)]
    assert borrower.check() == [f"borrowed device {A} of node 4 (label scratch): it is available, and not borrowed"]
    borrower.hold("by hand")
    assert borrower.check()[0].endswith(", held: by hand")


def test_what_is_recorded_meanwhile_counts(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fabric.lend(4, A, C)

    def record() -> None:
        borrower.record(borrowed=[borrowed(4, GPU, label="cuda")])

    assert borrower.replay(nothing, record) == 0
    assert borrower.node.borrowed() == sorted([fabric.nodes[4].fdid(A), fabric.nodes[4].fdid(C)])
    assert borrower.says("1 of 1 entries are back")


def test_a_damaged_file_is_one_sentence_and_nothing_done(sites: Pair) -> None:
    lender, _borrower = sites
    lender.file.write_text('{"format": 7}')
    with pytest.raises(StoreError, match="its format is 7"):
        lender.replay()
    assert lender.node.commands() == []


def test_nothing_recorded(sites: Pair) -> None:
    lender, _borrower = sites
    lender.file.unlink()
    assert lender.replay() == 0
    assert lender.lines == [f"nothing is recorded in {lender.file}"]
    lender.record(cplanes=[CplaneEntry(7, ("emu:a",))])
    assert lender.replay() == 0
    assert lender.node.commands() == []
    assert lender.units() == []


# -- once a boot, and once a load of the module -----------------------------------------------------------------------


def test_after_a_reload_of_the_module_all_is_done_again(sites: Pair) -> None:
    lender, _borrower = sites
    assert lender.replay() == 0
    assert lender.check() == []
    lender.node.reload_module()
    assert lender.check() == [
        "the SmartIO kernel module was loaded again since the last replay: iofabric-sharing.service is being started"
    ]
    assert lender.units() == ["restart iofabric-sharing.service"]
    lender.hold()
    assert lender.check()[0].endswith("/hold exists")
    (lender.run_dir / "hold").unlink()
    assert lender.replay() == 0
    assert lender.says("the SmartIO kernel module loaded, since the last replay")
    assert lender.node.pool()[A] == "available"
    assert lender.check() == []


def test_a_reload_while_something_is_waited_for(sites: Pair, fabric: Fabric) -> None:
    lender, _borrower = sites
    fabric.link_down(8)
    assert lender.replay(nothing, lender.node.reload_module, lambda: fabric.link_down(8, False)) == 0
    assert lender.node.pool()[A] == "available"
    assert lender.node.connections() == [[8, 0]]


def test_a_reload_without_any_replay_is_found_by_what_modules_remember(sites: Pair, fabric: Fabric) -> None:
    lender, _borrower = sites
    assert lender.replay() == 0
    (lender.run_dir / "replayed.json").unlink()
    assert lender.check() == []
    lender.node.reload_module()
    assert "loaded again" in lender.check()[0]
    # In another boot, there is nothing to find: the service is started by itself.
    lender.node.new_boot_id()
    assert "loaded again" not in lender.check()[0]


def test_progress_that_is_damaged_is_done_again(sites: Pair) -> None:
    lender, _borrower = sites
    assert lender.replay() == 0
    for junk in (
        "",
        "{",
        "[" * 100000,
        '{"format": 1, "boot_id": "", "module": [Infinity, 0], "done": [], "refused": {}}',
        '{"format": 1}',
        '{"format": 1, "boot_id": 5, "module": "x", "done": 7, "refused": []}',
    ):
        (lender.run_dir / "replayed.json").write_text(junk)
        mark = lender.node.mark()
        assert lender.replay() == 0
        assert lender.node.changing(mark) == []
        assert len(lender.progress["done"]) == 4


# -- mounts and control planes ----------------------------------------------------------------------------------------


def test_units_are_started_once_their_devices_are_back(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    mounts = [MountEntry("scratch", "/srv/a-b"), MountEntry("cuda", "/opt")]
    cplanes = [
        CplaneEntry(7, ("claim:scratch", "emu:a")),
        CplaneEntry(8, ("claim:cuda", "claim:scratch")),
        CplaneEntry(9, ("emu:b",)),
    ]
    entries = [borrowed(4, DRIVE), borrowed(4, OTHER), borrowed(4, GPU, label="cuda")]
    borrower.record(borrowed=entries, mounts=mounts, cplanes=cplanes)
    borrower.disabled.write_text("xnvme-cplane@8.service\n")
    fabric.connect(4, 8)
    fabric.lend(4, A)
    seen = []

    def lend(bdf: str) -> None:
        seen.append(borrower.units())
        fabric.lend(4, bdf)

    assert borrower.replay(lambda: lend(C), lambda: lend(B)) == 0
    assert seen == [[], ["start opt.mount"]]
    assert borrower.units() == ["start opt.mount", "start srv-a\\x2db.mount", "start xnvme-cplane@7.service"]
    assert borrower.says("control plane 8", "xnvme-cplane@8.service is not enabled")
    assert borrower.replay() == 0
    assert len(borrower.units()) == 3


def test_units_of_what_was_refused_are_refused(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fabric.lend(4, A)
    borrower.record(
        borrowed=[borrowed(4, DRIVE, serial="another")],
        mounts=[MountEntry("scratch", "/srv"), MountEntry("nobody", "/opt")],
    )
    assert borrower.replay() == 1
    assert borrower.units() == []
    assert borrower.says("mount /srv: refused, the borrowed device", "was refused")
    assert borrower.says("mount /opt: refused, nothing is recorded as borrowed under the label nobody")


def test_without_systemd_nothing_is_started(sites: Pair, fabric: Fabric) -> None:
    _lender, borrower = sites
    fabric.connect(4, 8)
    fabric.lend(4, A)
    borrower.record(borrowed=[borrowed(4, DRIVE)], mounts=[MountEntry("scratch", "/srv")])
    borrower.systemd = dataclasses.replace(borrower.systemd, booted="/nowhere")
    assert borrower.replay() == 0
    assert borrower.units() == []
    assert borrower.says("mount /srv", "without systemd")


# -- looking ----------------------------------------------------------------------------------------------------------


def test_check_and_status_change_nothing(sites: Pair, fabric: Fabric) -> None:
    lender, borrower = sites
    assert lender.check()[0].startswith("connection to node 8 (adapter 0): ")
    assert len(lender.check()) == 4
    assert lender.node.changing() == []
    assert not lender.node.state_dir.exists()
    assert all(line.startswith("MISSING") for line in lender.status())
    assert lender.replay() == 0
    mark = lender.node.mark()
    assert lender.check() == []
    assert [line[:7].strip() for line in lender.status()[1:]] == ["ok"] * 4
    assert lender.status()[0].endswith("4 entries done, 0 refused")
    assert lender.node.changing(mark) == []
    mounts = [MountEntry("scratch", "/"), MountEntry("scratch", "/nowhere")]
    sharing = store.read(str(borrower.file))
    assert sharing is not None
    borrower.record(borrowed=sharing.borrowed, mounts=mounts, cplanes=[CplaneEntry(7, ("emu:a",))])
    lines = borrower.status()
    assert [line.split()[0] for line in lines] == ["MISSING", "MISSING", "ok", "MISSING", "ok"]
    assert borrower.node.changing() == []


def test_check_without_a_tool(sites: Pair) -> None:
    lender, _borrower = sites
    lender.node.tool.unlink()
    (line,) = lender.check()
    assert "4 entries: not yet" in line
    assert "does not exist" in line
