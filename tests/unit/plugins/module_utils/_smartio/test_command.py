# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.command import KEPT_BYTES, Finished, run
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import ToolError, ToolUnusable

Script = Callable[..., str]
LIMIT = 20.0
# How much later than its limit a command may be given up, on a busy machine.
LATE = 3.0


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _gone(pid: int) -> bool:
    """Whether the process ends soon."""
    end = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not _alive(pid)


def _children() -> List[int]:
    """Children of this process, zombies too."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid():
            found.append(int(entry))
    return found


def test_output_and_status(script: Script) -> None:
    tool = script('echo "out $1 $2"; echo err >&2; exit 3')
    assert run([tool, "a b", "é$HOME"], LIMIT) == Finished(3, "out a b é$HOME\n", "err\n")


@pytest.mark.parametrize("status", [0, 1, 5, 16, 19, 77, 126, 127, 128, 143, 255])
def test_exit_status(script: Script, status: int) -> None:
    assert run([script(f"exit {status}")], LIMIT).status == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP])
def test_ended_by_a_signal(script: Script, number: signal.Signals) -> None:
    finished = run([script(f"echo before; kill -{number.value} $$; sleep 20")], LIMIT)
    assert (finished.status, finished.stdout) == (-number.value, "before\n")


def test_hang_that_ignores_sigterm(script: Script, tmp_path: Path) -> None:
    tool = script(f"trap '' TERM HUP INT; echo $$ > '{tmp_path}/pid'; while :; do sleep 0.1; done")
    start = time.monotonic()
    with pytest.raises(ToolError, match=r"^'smartio_tool show 80000' did not end within 0\.5 seconds") as caught:
        run([tool, "show", "80000"], 0.5)
    assert 0.5 <= time.monotonic() - start < 0.5 + LATE
    assert caught.value.errno is None
    assert caught.value.details["rc"] is None
    assert caught.value.details["command"] == [tool, "show", "80000"]
    assert _gone(int((tmp_path / "pid").read_text()))


def test_hang_with_children_of_its_own(script: Script, tmp_path: Path) -> None:
    tool = script(f"sleep 300 & echo $! > '{tmp_path}/pid'; wait")
    with pytest.raises(ToolError, match="did not end"):
        run([tool], 0.5)
    assert _gone(int((tmp_path / "pid").read_text()))


def test_hang_after_both_streams_were_closed(script: Script) -> None:
    tool = script("exec >&- 2>&-; while :; do sleep 0.05; done")
    start, cpu = time.monotonic(), time.process_time()
    with pytest.raises(ToolError, match="did not end"):
        run([tool], 0.6)
    assert time.monotonic() - start < 0.6 + LATE
    assert time.process_time() - cpu < 0.3  # no busy waiting


def test_hang_while_printing(script: Script) -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match="did not end") as caught:
        run([script("while :; do echo 0123456789; done")], 0.5)
    assert time.monotonic() - start < 0.5 + LATE
    assert len(str(caught.value.details["output"])) <= 2000


@pytest.mark.parametrize(
    ("prompt", "hint"),
    [
        ("Unbind driver? [y/N] ", "asked a question"),
        ("Continue (yes/no)? ", "asked a question"),
        ("Password: ", "asked a question"),
        ("Really?", "asked a question"),
        ("Scanning adapter 0:", "run by hand"),
        ("80000: Device [available]", "run by hand"),
        ("Scanning...", "run by hand"),
        ("", "run by hand"),
    ],
)
def test_hang_names_a_question(script: Script, prompt: str, hint: str) -> None:
    tool = script(f"printf '%s' '{prompt}'; exec sleep 300")
    with pytest.raises(ToolError, match=hint) as caught:
        run([tool], 0.3)
    assert caught.value.details["output"] == prompt.strip()


def test_grandchild_that_holds_the_pipes(script: Script, tmp_path: Path) -> None:
    tool = script(f"sleep 300 & echo $! > '{tmp_path}/pid'; echo done")
    start = time.monotonic()
    finished = run([tool], LIMIT)
    took = time.monotonic() - start
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert finished == Finished(0, "done\n", "")
    assert took < LATE


def test_grandchild_that_goes_on_printing(script: Script, tmp_path: Path) -> None:
    tool = script(f"(while echo x; do sleep 0.01; done) & echo $! > '{tmp_path}/pid'; echo done")
    start = time.monotonic()
    finished = run([tool], LIMIT)
    took = time.monotonic() - start
    assert finished.status == 0
    assert "done\n" in finished.stdout
    assert took < 2 + LATE
    assert _gone(int((tmp_path / "pid").read_text()))  # its pipe is closed


def test_fifty_megabytes(script: Script) -> None:
    tool = script("head -c 52428800 /dev/zero; head -c 3000000 /dev/zero >&2; exit 4")
    finished = run([tool], 60)
    assert (finished.status, len(finished.stdout), len(finished.stderr)) == (4, KEPT_BYTES, KEPT_BYTES)


def test_bytes_that_are_no_text(script: Script) -> None:
    finished = run([script(r"printf 'a\377\376\0b\303'; printf '\200' >&2")], LIMIT)
    assert finished.stdout == "a\ufffd\ufffd\x00b\ufffd"
    assert finished.stderr == "\ufffd"


def test_closed_streams(script: Script) -> None:
    tool = script("exec >&-; echo 'only errors' >&2; exec 2>&-; sleep 0.1; exit 2")
    assert run([tool], LIMIT) == Finished(2, "", "only errors\n")


def test_standard_input_is_at_its_end(script: Script) -> None:
    tool = script('if read -r word; then echo "got $word"; else echo end; fi; cat')
    assert run([tool], LIMIT).stdout == "end\n"


def test_there_is_no_terminal(script: Script) -> None:
    tool = script("if (: < /dev/tty) 2>/dev/null; then echo terminal; else echo none; fi; ps -o tty= -p $$ || true")
    assert run([tool], LIMIT).stdout.split()[0] == "none"


def test_a_terminal_of_ours_is_out_of_reach(script: Script) -> None:
    """Even where this process has a controlling terminal."""
    tool = script("if (: < /dev/tty) 2>/dev/null; then exit 9; fi; exit 0")
    master, slave = os.openpty()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            os.close(os.open(os.ttyname(slave), os.O_RDWR))  # becomes the controlling terminal
            os.close(os.open("/dev/tty", os.O_RDWR))
            code = run([tool], LIMIT).status
        finally:
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    os.close(master)
    os.close(slave)
    assert os.WEXITSTATUS(status) == 0


def test_environment(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("IOFABRIC_TEST", "kept")
    tool = script('echo "$LC_ALL $LANGUAGE $IOFABRIC_TEST"')
    assert run([tool], LIMIT).stdout == "C C kept\n"
    assert os.environ["LC_ALL"] == "de_DE.UTF-8"


def _refused(command: List[str]) -> ToolUnusable:
    with pytest.raises(ToolUnusable) as caught:
        run(command, LIMIT)
    message = caught.value.message
    assert command[0] in message
    assert "give its path" in message
    assert message.isprintable()
    return caught.value


def test_missing(tmp_path: Path) -> None:
    assert "no such file" in _refused([str(tmp_path / "none")]).message


def test_not_executable(script: Script) -> None:
    tool = script("exit 0")
    os.chmod(tool, 0o644)
    assert "permission denied" in _refused([tool]).message


def test_folder(tmp_path: Path) -> None:
    assert "permission denied" in _refused([str(tmp_path)]).message


def test_bad_interpreter(script: Script, tmp_path: Path) -> None:
    _refused([script("exit 0", interpreter=str(tmp_path / "no-such-shell"))])


def test_no_program_at_all(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF garbage")
    path.chmod(0o755)
    _refused([str(path)])


@pytest.mark.parametrize("argument", ["a\x00b", "\ud800"])
def test_an_argument_that_no_command_line_can_hold(script: Script, argument: str) -> None:
    with pytest.raises(SharingError) as caught:
        run([script("exit 0"), "config", argument], LIMIT)
    assert caught.value.message.isprintable()


def test_a_command_line_that_is_too_long(script: Script) -> None:
    with pytest.raises(ToolUnusable, match="argument list too long"):
        run([script("exit 0"), "x" * 4000000], LIMIT)


def test_nothing_is_left_behind(script: Script, tmp_path: Path) -> None:
    good, bad, held = script("echo x", "good"), str(tmp_path / "none"), script("sleep 300", "held")
    run([good], LIMIT)
    children, descriptors = _children(), os.listdir("/proc/self/fd")
    for _count in range(50):
        run([good], LIMIT)
        with pytest.raises(ToolUnusable):
            run([bad], LIMIT)
    for _count in range(3):
        with pytest.raises(ToolError):
            run([held], 0.02)
    assert _children() == children
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_descriptors_of_ours_are_not_inherited(script: Script, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        finished = run([script("exec ls -l /proc/self/fd")], LIMIT)
    assert finished.status == 0
    assert "secret" not in finished.stdout


def test_many_descriptors_are_open(script: Script, tmp_path: Path) -> None:
    """select(2) would fail with a descriptor above 1023."""
    code = f"""
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        sys.path[:0] = {sys.path!r}
        from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.command import run
        print(run([{script("echo fine")!r}], 20).stdout)
        """
    program = script(code.replace("\n        ", "\n"), "many", sys.executable)
    assert run([program], 60).stdout.strip() == "fine"


def test_output_for_people() -> None:
    assert Finished(1, " out \n", "\nerr\n").output == "err\nout"
    assert Finished(1, "\n", "").output == ""
    assert Finished(0, "x" * 9000, "").output == "x" * 2000
