# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import (
    ToolError,
    ToolMissing,
    ToolUnreadable,
    ToolUnusable,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.model import Borrowed
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.tool import SmartioTool, find_tool

Script = Callable[..., str]
Recorders = Callable[..., Any]
BDF = "0000:81:00.0"


def make(path: str, limit: float = 20.0) -> SmartioTool:
    return SmartioTool(path, lambda subjects: [], limit)


COMMANDS = [
    ("connect 8 0", lambda tool: tool.connect(8, 0)),
    ("connect 12 1", lambda tool: tool.connect(12, 1)),
    (f"add {BDF}", lambda tool: tool.add(BDF)),
    (f"remove {BDF}", lambda tool: tool.remove(BDF)),
    (f"available {BDF}", lambda tool: tool.available(BDF, bound=False)),
    (f"available --force {BDF}", lambda tool: tool.available(BDF, bound=True)),
    (f"unavailable {BDF}", lambda tool: tool.unavailable(BDF)),
    ("scan 64 0", lambda tool: tool.scan(64, 0)),
    ("borrow 80000", lambda tool: tool.borrow("80000", None)),
    ("borrow 80000 512", lambda tool: tool.borrow("80000", "512")),
    ("return 80000", lambda tool: tool.give_back("80000")),
    ("enable-p2p 80000 80002", lambda tool: tool.enable_p2p("80000", "80002", None)),
    ("enable-p2p 80000 80002 0", lambda tool: tool.enable_p2p("80000", "80002", 0)),
    ("disable-p2p 80000 80002", lambda tool: tool.disable_p2p("80000", "80002", None)),
    ("disable-p2p 80000 80002 2", lambda tool: tool.disable_p2p("80000", "80002", 2)),
    ("config autoborrow_transparent 0", lambda tool: tool.config("autoborrow_transparent", "0")),
]
READING = [
    ("list", lambda tool: tool.list()),
    ("show 80000", lambda tool: tool.show("80000")),
    ("lspci 80000", lambda tool: tool.lspci("80000")),
]
CHANGING = pytest.mark.parametrize(("words", "call"), COMMANDS, ids=[words for words, _call in COMMANDS])
ALL = pytest.mark.parametrize(("words", "call"), COMMANDS + READING, ids=[words for words, _call in COMMANDS + READING])


@ALL
def test_command_line(recorder: Recorders, words: str, call: Callable[[SmartioTool], object]) -> None:
    recording = recorder("echo 'Name: x'")
    call(make(recording.path))
    assert recording.calls() == [words.split()]


def test_command_line_of_get_vdev(recorder: Recorders) -> None:
    recording = recorder("echo 0000:04:05.0")
    assert make(recording.path).get_vdev("80000") == "0000:04:05.0"
    assert recording.calls() == [["get-vdev", "80000"]]


@pytest.mark.parametrize("status", [17, 106, 114], ids=["EEXIST", "EISCONN", "EALREADY"])
@CHANGING
def test_it_is_so_already(script: Script, words: str, call: Callable[[SmartioTool], object], status: int) -> None:
    tool = make(script(f"exit {status}"))
    if words.startswith("scan"):  # which can be repeated: then a node has this id
        with pytest.raises(ToolError, match="'smartio_tool scan 64 0' failed"):
            call(tool)
        return
    assert call(tool) in (None, Borrowed(None, None, already=True))


def test_only_disabling_takes_einval_for_done(script: Script) -> None:
    """Nobody can ask which pairs are enabled; after a run that ended before its record it would fail for ever."""
    tool = make(script("exit 22"))
    tool.disable_p2p("80000", "80002", None)
    with pytest.raises(ToolError, match="EINVAL"):
        tool.enable_p2p("80000", "80002", None)


@pytest.mark.parametrize("status", [17, 106, 114])
@pytest.mark.parametrize(("words", "call"), READING, ids=[words for words, _call in READING])
def test_reading_is_never_done_already(
    script: Script, words: str, call: Callable[[SmartioTool], object], status: int
) -> None:
    with pytest.raises(ToolError, match=f"'smartio_tool {words}' failed"):
        call(make(script(f"exit {status}")))


@pytest.mark.parametrize(("status", "name"), [(5, "EIO"), (16, "EBUSY"), (19, "ENODEV"), (12, "ENOMEM")])
@ALL
def test_failure(script: Script, words: str, call: Callable[[SmartioTool], object], status: int, name: str) -> None:
    with pytest.raises(ToolError) as caught:
        call(make(script(f"echo reason >&2; exit {status}")))
    error = caught.value
    assert error.message.startswith(f"'smartio_tool {words}' failed: {name} ({status}), ")
    assert error.details["errno_name"] == name
    assert error.details["output"] == "reason"
    assert error.errno == status


def test_borrow_answers_what_it_printed(script: Script) -> None:
    tool = make(script("echo 'Local virtual device: 0000:04:05.0'; echo 'Bound to driver: nvme'"))
    assert tool.borrow("80000", None) == Borrowed("0000:04:05.0", "nvme")


def test_show_that_prints_nothing(script: Script) -> None:
    with pytest.raises(ToolUnreadable, match="show 80000"):
        make(script("exit 0")).show("80000")


@pytest.mark.parametrize(
    ("body", "vdev"),
    [
        ("echo 0000:04:05.0", "0000:04:05.0"),
        ("echo 04:05.0", "0000:04:05.0"),
        ("echo 'Local virtual device: 0000:04:05.0'", "0000:04:05.0"),
        ("echo 0000:04:05.0 >&2", None),
        ("echo 0000:04:05.0; exit 19", None),
        ("echo 0000:04:05.0; exit 1", None),
        ("echo N/A", None),
        ("echo 'not borrowed'", None),
        ("exit 0", None),
        ("exit 16", None),
        ("kill -9 $$", None),
    ],
)
def test_get_vdev(script: Script, body: str, vdev: Optional[str]) -> None:
    assert make(script(body)).get_vdev("80000") == vdev


def test_ended_by_a_signal(script: Script) -> None:
    with pytest.raises(ToolError, match="'smartio_tool borrow 80000' was ended by signal 9; run it by hand") as caught:
        make(script("kill -9 $$")).borrow("80000", None)
    assert caught.value.errno is None


@pytest.mark.parametrize(
    "body",
    [
        "printf 'Device is bound to nvme. Continue? [y/N] '; exit 125",
        "printf 'Device is bound to nvme. Continue? [y/N]: '; exit 125",
        "printf 'Unbind it (yes/no)? '; exit 1",
        "printf 'Unbind it (Y/n)'; exit 1",
        "printf 'Are you sure?\n'; exit 125",
        "printf 'Are you sure? [y/N] ' >&2; exit 125",
        "printf 'Are you sure? [y/N] '; echo aborted >&2; exit 125",
        "echo 'Making 0000:81:00.0 available'; printf 'Are you sure? [y/N] ' >&2; exit 125",
    ],
)
def test_a_question_is_named(script: Script, body: str) -> None:
    with pytest.raises(ToolError, match="asked a question, which nobody can answer here"):
        make(script(body)).available(BDF, bound=False)


@pytest.mark.parametrize(
    "body",
    [
        *("echo 'no such device'; exit 19", "exit 16", "echo 'maybe/now' >&2; exit 5"),
        *("echo 'smartio_tool: error:'; exit 5", "echo 'device [busy]'; exit 16", "echo 'gone (y)'; exit 19"),
    ],
)
def test_no_question(script: Script, body: str) -> None:
    with pytest.raises(ToolError) as caught:
        make(script(body)).available(BDF, bound=False)
    assert "question" not in caught.value.message


def test_the_prompt_reads_the_end_of_file(recorder: Recorders) -> None:
    """available of a device that was bound meanwhile: the tool asks, and gets no answer."""
    recording = recorder("printf 'Continue? [y/N] '; read -r answer || exit 125; echo \"$answer\"")
    with pytest.raises(ToolError, match="asked a question"):
        make(recording.path).available(BDF, bound=False)


def test_a_hang_has_its_limit(script: Script) -> None:
    with pytest.raises(ToolError, match=r"did not end within 0\.2 seconds"):
        make(script("exec sleep 300"), limit=0.2).list()


TWO_CARDS = "echo 'Card 1 - NodeId:  8'; echo 'Card 2 - NodeId:  9'"


@pytest.mark.parametrize(
    ("cards", "call", "words"),
    [
        ("echo 'Card 1 - NodeId:  8'", lambda tool: tool.borrow("48100", None), "node 8 cannot reach node 4 (to go by"),
        ("echo 'Card 1 - NodeId:  8'", lambda tool: tool.give_back("48100"), "the id 48100); check that"),
        ("exit 1", lambda tool: tool.lspci("48100"), "this node cannot reach node 4 ("),
        (TWO_CARDS, lambda tool: tool.show("48100"), "this node (ids 8, 9) cannot reach node 4 ("),
        (TWO_CARDS, lambda tool: tool.connect(12, 1), "node 9 cannot reach node 12; check"),
        (TWO_CARDS, lambda tool: tool.connect(12, 2), "this node cannot reach node 12; check"),
        (TWO_CARDS, lambda tool: tool.scan(72, 0), "node 8 cannot reach node 72; check"),
        (TWO_CARDS, lambda tool: tool.show("81"), "cannot reach the node that owns 81; check"),
        (
            TWO_CARDS,
            lambda tool: tool.enable_p2p("48100", "80600", 2),
            "node 4 (to go by the id 48100) or node 8 (",
        ),
        (
            TWO_CARDS,
            lambda tool: tool.disable_p2p("48100", "48200", 2),
            "48100) or node 4 (to go by the id 48200)",
        ),
        (TWO_CARDS, lambda tool: tool.list(), "EIO (5), cannot reach the other node; check"),
        (TWO_CARDS, lambda tool: tool.add(BDF), "EIO (5), cannot reach the other node; check"),
    ],
)
def test_eio_names_both_nodes(script: Script, cards: str, call: Callable[[SmartioTool], object], words: str) -> None:
    script(cards, "dis_config")
    with pytest.raises(ToolError) as caught:
        call(make(script("exit 5")))
    assert words in caught.value.message
    assert "EIO (5), " in caught.value.message


def test_eio_names_the_owner_that_show_told(script: Script) -> None:
    tool = make(script("[ $1 = show ] && echo 'NodeId: 24' || exit 5"))
    tool.show("48100")
    with pytest.raises(ToolError, match=r"EIO \(5\), this node cannot reach node 24; check"):
        tool.borrow("48100", None)


def test_a_device_that_may_be_here(script: Script) -> None:
    """get-vdev that cannot reach the owner is no answer."""
    tool = make(script("exit 5"))
    assert tool.get_vdev("48100") is None
    assert "cannot reach node 4" in tool.unanswered["48100"].message
    tool.path = script("exit 19", "gone")
    assert tool.get_vdev("48100") is None
    assert tool.unanswered == {}


def test_the_kernel_log_is_asked_about_the_things_of_the_command_only(script: Script) -> None:
    asked: List[List[str]] = []

    def kernel_log(subjects: List[str]) -> List[str]:
        asked.append(subjects)
        return ["dis_smartio: reason"]

    tool = SmartioTool(script("exit ${status:-16}"), kernel_log)
    with pytest.raises(ToolError) as caught:
        tool.available(BDF, bound=True)
    assert caught.value.details["kernel_log"] == ["dis_smartio: reason"]
    (subjects,) = asked
    assert BDF in subjects
    assert "available" not in subjects  # which names no thing, but would be found in other lines of the log


def test_the_kernel_log_is_not_asked_without_need(recorder: Recorders) -> None:
    def kernel_log(subjects: List[str]) -> List[str]:
        raise AssertionError

    tool = SmartioTool(recorder("echo 'Name: x'").path, kernel_log)
    tool.add(BDF)
    assert tool.show("80000").name == "x"


def test_node_ids(recorder: Recorders, script: Script) -> None:
    recording = recorder("echo 'Card 1 - NodeId:  8'; echo 'Card 2 - NodeId:  12'", "dis_config")
    tool = make(script("exit 0"))
    assert tool.node_ids() == {0: 8, 1: 12}
    assert recording.calls() == [["-gn"]]


@pytest.mark.parametrize(
    "body",
    ["exit 1", "echo 'Card 1 - NodeId: 8'; exit 5", "kill -9 $$", "exec sleep 300", "printf '\\377'", "echo none"],
)
def test_node_ids_that_cannot_be_told(script: Script, body: str) -> None:
    script(body, "dis_config")
    assert make(script("exit 0"), limit=0.5).node_ids() == {}


def test_node_ids_without_dis_config(script: Script, tmp_path: Path) -> None:
    tool = make(script("exit 0"))
    assert tool.node_ids() == {}
    config = tmp_path / "sbin" / "dis_config"
    config.mkdir()
    assert tool.node_ids() == {}
    config.rmdir()
    config.write_text("no program")
    assert tool.node_ids() == {}
    config.chmod(0o755)
    assert tool.node_ids() == {}


def test_find_tool_with_a_folder(script: Script) -> None:
    path = script("exit 0")
    assert find_tool(path) == path


def test_find_tool_on_path(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "bin"
    (other / "smartio_tool").mkdir(parents=True)  # a folder is no program
    path = script("exit 0")
    monkeypatch.setenv("PATH", f"{other}:{tmp_path}/none:{Path(path).parent}")
    assert find_tool("smartio_tool") == path


def test_find_tool_passes_over_what_cannot_be_run(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "smartio_tool").write_text("")
    path = script("exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{Path(path).parent}")
    assert find_tool("smartio_tool") == path


def test_find_tool_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ToolMissing, match="iofabric_no_such_tool is not on PATH nor in /opt/DIS/sbin: install"
    ) as caught:
        find_tool("iofabric_no_such_tool")
    assert caught.value.details["searched"] == [str(tmp_path), "/opt/DIS/sbin"]


def test_find_tool_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ToolMissing, match="smartio_tool does not exist: install the SmartIO software, or correct 'tool'"
    ):
        find_tool(str(tmp_path / "smartio_tool"))


def test_find_tool_that_cannot_be_run(script: Script, tmp_path: Path) -> None:
    path = script("exit 0")
    os.chmod(path, 0o644)
    for bad in (path, str(tmp_path)):
        with pytest.raises(ToolUnusable, match="is not an executable file: correct 'tool', or its mode"):
            find_tool(bad)


@pytest.mark.parametrize("path", ["", "a\x00b", "/a\x00b", "\ud800", "/\ud800"])
def test_find_tool_with_names_that_no_file_can_have(path: str) -> None:
    with pytest.raises(SharingError):
        find_tool(path)
