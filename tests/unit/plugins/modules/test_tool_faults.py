# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tool that misbehaves, and how every module runs it."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, Dict, Iterator

import pytest
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import (
    Started,
    bad,
    case,
    good,
    on,
    run,
    settled,
    start,
)
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import Fabric, Node, gpu, nvme

DRIVE, GPU = "0000:81:00.0", "0000:83:00.0"


def make(fabric: Fabric, **quirks: Any) -> Node:
    """A lender; GPU has no driver. Node 8 is there to be connected."""
    fabric.node(8)
    return fabric.node(4, [nvme(DRIVE, 0), gpu(GPU, 1, driver=None)], **quirks)


# --- how commands are run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_the_surroundings_of_a_command(fabric: Fabric, terminal: bool) -> None:
    """LC_ALL=C, no terminal, standard input closed, whatever the module itself has."""
    lender = make(fabric)
    env = {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}
    result = run("smartio_device", {**lender.args, "bdf": DRIVE}, env=env, terminal=terminal)
    assert result.changed
    for call in lender.calls():
        assert call["lc_all"] == "C", call
        assert call["stdin"] in ("closed", "devnull"), call
        assert not call["terminal"], call


def test_the_tool_is_found_on_path(fabric: Fabric) -> None:
    lender = make(fabric)
    args = {key: value for key, value in lender.args.items() if key != "tool"}
    result = run("smartio_info", args, env={"PATH": f"{lender.tool.parent}:/usr/bin:/bin"})
    assert not result.failed, result.text
    assert result["node_id"] == 4


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("smartio_connect", {"node_ids": [8]}),
        ("smartio_device", {"bdf": DRIVE}),
        ("smartio_borrow", {"fdid": "48100", "timeout": 1}),
        ("smartio_p2p", {"source": "48100", "destination": "48300"}),
        ("smartio_scan", {"node_id": 32}),
        ("smartio_config", {"settings": {"verbose": 1}}),
        ("smartio_info", {}),
    ],
)
def test_every_module_names_the_missing_tool(fabric: Fabric, module: str, args: Dict[str, Any]) -> None:
    lender = make(fabric)
    lender.tool.unlink()
    result = bad(lender, module, **args)
    assert str(lender.tool) in result["msg"]
    assert not result.changed


@pytest.mark.parametrize("how", ["not executable", "a folder", "not a program"])
def test_a_tool_that_cannot_be_run(fabric: Fabric, how: str) -> None:
    lender = make(fabric)
    lender.tool.unlink()
    if how == "not executable":
        lender.tool.write_text("#!/bin/sh\n")
        lender.tool.chmod(0o644)
    elif how == "a folder":
        lender.tool.mkdir()
    elif how == "not a program":
        lender.tool.write_bytes(b"\x00\x01\x02")
        lender.tool.chmod(0o755)
    result = bad(lender, "smartio_info")
    assert str(lender.tool) in result["msg"]


def test_a_missing_tool_without_a_path(fabric: Fabric) -> None:
    lender = make(fabric)
    args = {key: value for key, value in lender.args.items() if key != "tool"}
    result = run("smartio_connect", {**args, "node_ids": [8]}, env={"PATH": "/nonexistent"})
    assert result.failed
    assert result.says("smartio_tool", "/opt/DIS/sbin")


# --- exit status ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["EIO", "EBUSY", "ENODEV", "ENOMEM", "EPERM", "ETIMEDOUT", "EINVAL"])
def test_exit_status_by_name(fabric: Fabric, name: str) -> None:
    lender = make(fabric)
    lender.rule("connect", "exit", exit=getattr(errno, name), err="the reason in words")
    result = bad(lender, "smartio_connect", node_ids=[8])
    assert name in result["msg"]
    assert result.says("connect 8", "the reason in words")


def test_a_status_that_is_no_errno(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.rule("connect", "exit", exit=200, err="beyond")
    assert bad(lender, "smartio_connect", node_ids=[8]).says("200", "beyond")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_exit_by_signal(fabric: Fabric, number: signal.Signals) -> None:
    lender = make(fabric)
    lender.rule("connect", "signal", signal=int(number))
    result = bad(lender, "smartio_connect", node_ids=[8])
    assert number.name in result["msg"] or f"signal {int(number)}" in result["msg"]


def test_list_fails(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.rule("list", "exit", exit=5, err="no module")
    for check in (True, False):
        result = on(lender, "smartio_device", check=check, bdf=DRIVE)
        assert result.failed or (check and result["pending"] is True), result.text
    assert lender.changing() == []


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stderr", [False, True])
def test_megabytes_of_output(fabric: Fabric, stderr: bool) -> None:
    lender = make(fabric)
    lender.rule("add", "flood", megabytes=20, stderr=stderr)
    result = good(lender, "smartio_device", bdf=DRIVE)
    assert len(result.text) < 100_000


@pytest.mark.parametrize("stderr", [False, True])
def test_megabytes_of_output_and_a_failure(fabric: Fabric, stderr: bool) -> None:
    lender = make(fabric)
    lender.rule("connect", "flood", megabytes=20, stderr=stderr, exit=16)
    result = bad(lender, "smartio_connect", node_ids=[8])
    assert "EBUSY" in result["msg"]
    assert len(result.text) < 100_000


def test_megabytes_beside_a_list(fabric: Fabric) -> None:
    lender = make(fabric)
    fabric.lend(4, GPU)
    lender.rule("list", "flood", megabytes=5)
    assert [device["state"] for device in good(lender, "smartio_info")["devices"]] == ["available"]


@pytest.mark.parametrize("command", ["add", "available", "list", "show"])
def test_bytes_that_are_not_text(fabric: Fabric, command: str) -> None:
    lender = make(fabric)
    lender.rule(command, "binary")
    good(lender, "smartio_device", bdf=GPU)
    assert lender.pool() == {GPU: "available"}
    settled("smartio_device", {"bdf": GPU}, lender)


def test_a_name_that_is_not_text(fabric: Fabric) -> None:
    name = "Dev\udcff\udc80ice"
    lender = fabric.node(4, [gpu(GPU, 1, driver=None, name=name), nvme(DRIVE, 0)])
    args = {"filter": "-d 10de:", "timeout": 5}
    case("smartio_device", args, lender, expect_changed=True, actions=["add, available"])


@pytest.mark.parametrize("terminal", [False, True])
def test_a_question_is_a_clear_error(fabric: Fabric, terminal: bool) -> None:
    """Also when the module has a terminal, where nobody would see the question."""
    lender = make(fabric)
    lender.rule("connect", "ask")
    running = start("smartio_connect", {**lender.args, "node_ids": [8]}, terminal=terminal)
    result = running.finish(timeout=20)
    assert result.failed
    assert result.says("connect 8", "Are you quite sure?")
    assert lender.connections() == []


# --- commands that do not end -----------------------------------------------------------------------------------------


class Hanging:
    """Three modules, each in front of a command that never ends, started together: their limit is 30 s."""

    def __init__(self, folder: Any) -> None:
        self.fabric = Fabric(folder / "fabric")
        self.runs: Dict[str, Started] = {}
        self.nodes: Dict[str, Node] = {}
        self.fabric.node(8)
        for node_id, module, command, args in (
            (4, "smartio_info", "list", {}),
            (16, "smartio_device", "available", {"devices": [{"bdf": GPU}, {"bdf": DRIVE}], "timeout": 2}),
            (20, "smartio_connect", "connect", {"node_ids": [8, 4]}),
        ):
            node = self.fabric.node(node_id, [nvme(DRIVE, 0), gpu(GPU, 1, driver=None)])
            node.rule(command, "hang", times=1)
            self.nodes[module] = node
            self.runs[module] = start(module, {**node.args, **args})


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hanging]:
    made = Hanging(tmp_path_factory.mktemp("hanging"))
    yield made
    made.fabric.close()


def ended(hanging: Hanging, module: str) -> None:
    """The hung command and its child are gone."""
    node = hanging.nodes[module]
    pids = node.hung_pids()
    assert pids, "the command did not hang"
    assert [pid for pid in pids if node.alive(pid)] == []


def test_a_hanging_list(hanging: Hanging) -> None:
    result = hanging.runs["smartio_info"].finish(timeout=60)
    assert result.failed
    assert result.says("list", " s")
    assert result.seconds < 40
    ended(hanging, "smartio_info")


def test_a_hanging_command_leaves_the_others_done(hanging: Hanging) -> None:
    result = hanging.runs["smartio_device"].finish(timeout=60)
    assert result.failed
    assert result.changed
    assert result.says(GPU, "available")
    assert result.seconds < 40
    ended(hanging, "smartio_device")
    assert hanging.nodes["smartio_device"].pool()[GPU] == "unavailable"


def test_a_hanging_connect_names_the_node(hanging: Hanging) -> None:
    result = hanging.runs["smartio_connect"].finish(timeout=60)
    assert result.failed
    assert result.changed
    assert result.says("connect 8")
    ended(hanging, "smartio_connect")
    node = hanging.nodes["smartio_connect"]
    assert node.connections() == [[4, 0]]
    good(node, "smartio_connect", node_ids=[8, 4])
    settled("smartio_connect", {"node_ids": [8, 4]}, node)


# --- the ledger's folder ----------------------------------------------------------------------------------------------


def test_a_state_dir_that_is_a_file(fabric: Fabric) -> None:
    lender = make(fabric)
    lender.state_dir.write_text("in the way")
    result = bad(lender, "smartio_connect", node_ids=[8])
    assert str(lender.state_dir) in result["msg"]


def test_a_state_dir_is_made(fabric: Fabric) -> None:
    lender = make(fabric)
    args = {**lender.args, "state_dir": str(lender.state_dir / "deep" / "down"), "node_ids": [8]}
    assert run("smartio_connect", args).changed
    assert not run("smartio_connect", args).changed


def test_connections_at_once_are_all_remembered(fabric: Fabric) -> None:
    lender = make(fabric)
    for node_id in (12, 16):
        fabric.node(node_id)
    runs = [start("smartio_connect", {**lender.args, "node_ids": [node_id]}) for node_id in (8, 12, 16)]
    for running in runs:
        assert running.finish().changed
    settled("smartio_connect", {"node_ids": [8, 12, 16]}, lender)


def test_the_ledger_is_private_and_whole(fabric: Fabric) -> None:
    """Written atomically: no half-written file stays, and others cannot write to it."""
    lender = make(fabric)
    good(lender, "smartio_connect", node_ids=[8])
    for path in lender.ledger_files():
        assert not path.stat().st_mode & 0o022, path
        assert os.access(path, os.R_OK)
