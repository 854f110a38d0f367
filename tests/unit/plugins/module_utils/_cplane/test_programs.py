# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs: xnvme-cplaned, its packed form, the example client; and servers as detached processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import pytest
import yaml
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import (
    VERSION,
    bundle,
    client,
    cplaned,
    example,
    nvme,
    process,
    qpair,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
    AlreadyServed,
    ConfigError,
    CplaneError,
    ServerTimeout,
    WireError,
)

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).parents[5]


# -- status -------------------------------------------------------------------------------------------------------


def test_status_is_written_as_the_reference_tool_writes_it() -> None:
    """The sample, byte for byte."""
    server = client.ServerInfo(
        77,
        client.Peer(1, 0, 0),
        1,
        2,
        (
            client.CtrlrInfo("0000:01:00.0", 0, 0, 0, 64, 32, True),
            client.CtrlrInfo("0000:02:00.0", 1, 2, 2, 0, 0, True),
        ),
    )
    assert cplaned.status_text(77, server) == (SAMPLES / "homi-status.txt").read_text()


def test_status_of_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference tool's words, and its exit status."""
    assert cplaned.main(["status", "--homi-id", "9", "--directory", str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        "homi_id: 9\nserver_running: false\nready: false\ncontrollers: []\n"
        "# ERR: 'status': {errno: -19, msg: 'No such device'}\n"
    )


def test_status_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs, but it is not one to work with."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(client.socket_path(9, str(tmp_path)))
        listener.listen(1)

        def answer() -> None:
            peer, _unused = listener.accept()
            with peer:
                peer.recv(104)
                peer.sendall(struct.pack("<II", 7, 5) + bytes(120))

        thread = threading.Thread(target=answer)
        thread.start()
        assert cplaned.main(["status", "--homi-id", "9", "--directory", str(tmp_path)]) == 1
        thread.join(10)
    assert capsys.readouterr().out == (
        "homi_id: 9\nserver_running: true\nready: false\ncontrollers: []\n"
        "# ERR: 'status': {errno: -71, msg: 'Protocol error'}\n"
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_status_of_a_dead_controller(
    start: Callable[..., Any], wait_for: Callable[..., Any], capsys: pytest.CaptureFixture[str], victim: int
) -> None:
    """It is listed by its name, but neither readable nor initialized, and the server is not ready."""
    server = start("emu:a", "emu:b")
    directory = str(server.directory)
    before = client.read_server(7, directory).controllers
    os.kill(server.children()[victim], signal.SIGKILL)
    wait_for(lambda: not client.read_server(7, directory).controllers[victim].initialized)
    found = client.read_server(7, directory).controllers
    assert [controller.uri for controller in found] == [controller.uri for controller in before]
    assert found[1 - victim] == before[1 - victim]
    assert found[victim].nsq_total == 0
    assert client.get_ctrlr_info(before[victim].uri, directory) == found[victim]
    with client.connect(7, directory) as connection:
        assert example.find_controller(connection, before[1 - victim].uri) == 1 - victim
    assert cplaned.main(["status", "--homi-id", "7", "--directory", directory]) == 1
    text = capsys.readouterr().out
    assert (text.count("readable: false"), text.count("initialized: false")) == (1, 1)


def test_status_of_a_server(start: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Of ours, read as YAML."""
    server = start("emu:a", "emu:b?queues=8")
    arguments = ["status", "--homi-id", "7", "--directory", str(server.directory)]
    assert cplaned.main(arguments) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["homi_id"] == 7
    assert found["ready"] is True
    assert found["controllers"] == [
        {
            "uri": uri,
            "readable": True,
            "initialized": True,
            "connections": 0,
            "nsq_used": 0,
            "ncq_used": 0,
            "nsq_total": total,
            "ncq_total": total,
        }
        for uri, total in (("ffff:be:08.3", 64), ("ffff:ef:1f.1", 8))
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve", "--homi-id", "7"],
        ["serve", "emu:a"],
        ["serve", "emu:a", "--homi-id", "4294967296"],
        ["serve", "emu:a", "--homi-id", "7", "--socket-mode", "0999"],
        ["serve", "emu:a", "--homi-id", "7", "--heap-size", "0"],
        ["status", "--homi-id", "-1"],
    ],
)
def test_command_lines_that_are_wrong(arguments: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and a word of what is wrong."""
    with pytest.raises(SystemExit) as caught:
        cplaned.main(arguments)
    assert caught.value.code == 2
    assert "xnvme-cplaned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["emu:a?size=1"], "size=1"),
        (["emu:a", "emu:a"], "named twice"),
        (["ffff:fe:1f.7"], "there is no such PCI device"),
        (["emu:a", "--heap-size", "4096"], "too small"),
        (["emu:a", "--socket-group", "no such group"], "no group"),
        (["emu:a", "--settings", "/proc/nowhere"], "settings"),
        (["emu:a?size=512T&path=/dev/null"], "not a regular file"),
        (["emu:a", "emu:b?size=512T"], "emu:b: cannot map its"),
        (["emu:a", "--heap-size", str(2**47)], "cannot get what 1 controllers"),
        (["emu:a", "--directory", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_servers_that_cannot_start(start: Callable[..., Any], tmp_path: Path, arguments: List[str], words: str) -> None:
    """Exit 1, one line that says why, and nothing is left."""
    server = start(arguments=tuple(arguments), wait=False)
    assert server.process.wait(20) == 1
    assert words in server.errors()
    assert server.errors().startswith("xnvme-cplaned: ")
    assert server.errors().count("\n") == 1
    assert os.listdir(tmp_path) == ["server.err"]


# -- the packed form ----------------------------------------------------------------------------------------------


def test_the_version_is_the_collections() -> None:
    """It is in the name of the packed server."""
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == VERSION
    assert f"xnvme-cplaned-{VERSION}.pyz" == bundle.CPLANED.name


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the times, modes and umask."""
    first = bundle.CPLANED.write(str(tmp_path))
    data = Path(first).read_bytes()
    assert bundle.CPLANED.build() == data
    copy = tmp_path / "elsewhere" / "module_utils"
    package = Path(bundle.__file__).parent
    for source in (*package.parent.glob("_*.py"), *package.glob("*.py"), *(package.parent / "_pci").glob("*.py")):
        place = copy / source.relative_to(package.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source.read_bytes())
    for path in copy.rglob("*.py"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o600)
    script = (
        "import os; os.umask(0o077); from module_utils._cplane import bundle; print(bundle.CPLANED.digest(), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=copy.parent, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert done.stdout == bundle.CPLANED.digest()
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o755
    assert sorted(name for name in os.listdir(tmp_path) if "pyz" in name) == [bundle.CPLANED.name]


def test_the_packed_server_is_complete(tmp_path: Path) -> None:
    """It needs nothing beside it, and contains nothing that it does not need."""
    path = bundle.CPLANED.write(str(tmp_path))
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert archive.testzip() is None
        assert not any("bundle" in name or "_smartio" in name for name in names)
    command = [sys.executable, "-I", path]
    done = subprocess.run([*command, "--version"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout == f"xnvme-cplaned {VERSION}\n"
    done = subprocess.run([*command, "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert "serve" in done.stdout


# -- the example client -------------------------------------------------------------------------------------------


def test_the_example(start: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Writes and reads back, on the controller that is named."""
    server = start("emu:a", "emu:b?lba=4096")
    base = ["example", "--homi-id", "7", "--directory", str(server.directory)]
    assert cplaned.main(base) == 0
    assert yaml.safe_load(capsys.readouterr().out)["verified"] is True
    assert cplaned.main([*base, "--uri", "ffff:ef:1f.1", "--blocks", "256", "--start", "100"]) == 0
    seen = yaml.safe_load(capsys.readouterr().out)
    assert (seen["uri"], seen["block_size"], seen["bytes"]) == ("ffff:ef:1f.1", 4096, 1 << 20)
    assert cplaned.main([*base, "--uri", "0000:01:00.0"]) == 1
    assert "does not serve" in capsys.readouterr().err
    assert cplaned.main([*base, "--start", str(1 << 40)]) == 1
    assert "SC 80h" in capsys.readouterr().err
    assert cplaned.main(["example", "--homi-id", "8", "--directory", str(server.directory)]) == 1
    assert "nobody serves" in capsys.readouterr().err
    with client.connect(7, str(server.directory)) as connection:
        found = connection.status(0)
        assert (found.nclients, found.nclients_ctrlr, found.nqueues) == (0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"depth": 0}, "depth .u16 at offset 52. is 0"),
        ({"depth": 1}, "depth"),
        ({"qid": 100000}, "qid .u32 at offset 48. is 100000, beyond the end of BAR0"),
        ({"sq_offset": (1 << 64) - 64}, "sq_offset .u64 at offset 24."),
        ({"sq_offset": 4097}, "sq_offset"),
        ({"cq_offset": 1 << 40}, "cq_offset .u64 at offset 32."),
        ({"prp_offset": (80 << 20) - 4096}, "prp_offset .u64 at offset 40."),
    ],
)
def test_a_queue_pair_that_is_not_in_the_heap(start: Callable[..., Any], wrong: Dict[str, int], words: str) -> None:
    """A client must not use what a server only says that it handed over."""
    server = start("emu:a")
    with client.connect(7, str(server.directory)) as connection, qpair.Attached(connection, 0) as attached:
        pair = connection.alloc_ioqpair(0, 16)
        qpair.Queue(attached, pair)
        with pytest.raises(WireError, match=words):
            qpair.Queue(attached, pair._replace(**wrong))


class HandsOver:
    """A connection whose server hands over memory of some sizes, and says others."""

    path = "somewhere"

    def __init__(self, said: Sequence[int], sizes: Sequence[int]) -> None:
        self._said, self._sizes = said, sizes

    def init(self, _index: int) -> client.Attachment:
        fds = [os.memfd_create("test") for _size in self._sizes]
        for fd, size in zip(fds, self._sizes):
            os.truncate(fd, size)
        return client.Attachment(4096, self._said[0], self._said[1], fds[0], fds[1])


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ((8190, 16384), (8192, 16384)),
        ((8192, 16383), (8192, 16384)),
        ((0, 16384), (8192, 16384)),
        ((8192, 0), (8192, 16384)),
        ((8192, 16384), (4096, 16384)),
        ((8192, 16384), (8192, 4096)),
        ((8192, (1 << 64) - 4), (8192, 16384)),
        ((8192, 16384), (8192, 16384)),  # as large as it says, but without a record
    ],
)
def test_memory_that_is_not_what_the_server_says(said: Sequence[int], sizes: Sequence[int]) -> None:
    """An error of the control plane, and nothing stays open or mapped."""
    before = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:test")
    connection: Any = HandsOver(said, sizes)
    with pytest.raises(CplaneError):
        qpair.Attached(connection, 0)
    assert (len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:test")) == before


def test_our_client_uses_every_operation(start: Callable[..., Any]) -> None:
    """And leaves no descriptor behind."""
    server = start("emu:a?format_time=0.1")
    before = len(os.listdir("/proc/self/fd"))
    with client.connect(7, str(server.directory)) as connection:
        assert connection.peer().pid == server.pid
        with qpair.Attached(connection, 0) as attached:
            assert attached.record.bdf == "ffff:be:08.3"
            queue = attached.queue_pair(4)
            for number in range(10):
                queue.submit(nvme.command(nvme.FLUSH, 1, cid=number))
                assert queue.wait(5)[3:] == (number, 0)
            assert queue.poll() is None
            with pytest.raises(ServerTimeout):
                queue.wait(0.05)
            with pytest.raises(WireError):
                queue.transfer(nvme.READ, 1, 0, 8, 4097, 4096)
            queue.close()
            assert attached.admin(nvme.command(nvme.FORMAT, 1)).status == 0
            for call in (
                lambda: connection.register_mem(0, 0, 4096, 4096),
                lambda: connection.unregister_mem(0, 4096),
                lambda: connection.alloc_ioqpair_at(0, 4096, 0, 65536, 16),
                lambda: connection.alloc_ioqpair_cq_at(0, 4096, 0, 16),
            ):
                with pytest.raises(CplaneError) as caught:
                    call()
                assert caught.value.errno in (errno.EOPNOTSUPP, errno.ENOENT)
            waiting = attached.queue_pair(4)
            os.kill(server.children()[0], signal.SIGKILL)
            with pytest.raises(CplaneError, match="has failed"):
                waiting.wait(10)
    assert len(os.listdir("/proc/self/fd")) == before
    info = client.get_info(7, str(server.directory))
    assert info == client.Info(1, 1, 1, ("ffff:be:08.3",))
    assert client.get_ctrlr_info("ffff:be:08.3", str(server.directory)).nsq_total == 0
    assert client.server_alive(7, str(server.directory)) is True


# -- detached processes -------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Dict[str, str]:
    """Where a process is remembered and writes."""
    return {"pid_file": str(tmp_path / "7.pid"), "log_file": str(tmp_path / "7.log")}


def program() -> List[str]:
    """How xnvme-cplaned is run here."""
    script = f"import sys; sys.path.insert(0, {str(ROOT / '.build' / 'collections')!r}); "
    script += f"from {cplaned.__name__} import main; sys.exit(main())"
    return [sys.executable, "-c", script]


def test_start_inspect_and_stop(tmp_path: Path, place: Dict[str, str]) -> None:
    """The life of a server that outlives who started it."""
    command = process.native_command(program(), ["emu:a"], 7, str(tmp_path), heap_size=8 << 20)
    ready = process.served_by(7, ["ffff:be:08.3"], str(tmp_path))
    started = process.start(command, ready=ready, timeout=20, **place)
    try:
        assert process.inspect(place["pid_file"]) == started
        assert os.getsid(started.pid) == started.pid
        assert os.readlink(f"/proc/{started.pid}/cwd") == "/"
        assert client.get_info(7, str(tmp_path)).nctrlrs == 1
        with pytest.raises(AlreadyServed):
            process.start(command, ready=ready, timeout=20, **place)
        assert process.send_signal(place["pid_file"], signal.SIGHUP) is True
        assert process.is_alive(started)
    finally:
        assert process.stop(place["pid_file"], 10) is True
    assert not process.is_alive(started)
    assert not os.path.exists(place["pid_file"])
    assert process.stop(place["pid_file"], 10) is False
    assert process.send_signal(place["pid_file"], signal.SIGHUP) is False
    assert client.server_alive(7, str(tmp_path)) is False


def test_a_server_that_dies_while_starting(tmp_path: Path, place: Dict[str, str]) -> None:
    """Is reported with the end of its output."""
    command = process.native_command(program(), ["emu:a?size=3"], 7, str(tmp_path), settings="/nowhere")
    with pytest.raises(process.DiedWhileStarting) as caught:
        process.start(command, ready=process.served_by(7, [], str(tmp_path)), timeout=20, **place)
    assert "status 1" in caught.value.message
    assert "cannot read the settings /nowhere" in str(caught.value.details["output"])
    assert not os.path.exists(place["pid_file"])


def test_a_server_that_never_becomes_ready(place: Dict[str, str]) -> None:
    """Is stopped, also when it does not want to."""
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('busy', flush=True); time.sleep(60)"
    seen: List[int] = []

    def ready(pid: int) -> bool:
        seen.append(pid)
        return False

    with pytest.raises(ServerTimeout, match="not ready after"):
        process.start([sys.executable, "-c", script], ready=ready, timeout=0.5, **place)
    assert seen
    assert not os.path.exists(f"/proc/{seen[0]}")
    assert not os.path.exists(place["pid_file"])


def test_a_program_that_is_not_there(place: Dict[str, str]) -> None:
    """Is named."""
    with pytest.raises(CplaneError, match="cannot run /no/such/program"):
        process.start(["/no/such/program"], ready=lambda _pid: True, timeout=1, **place)
    assert not os.path.exists(place["pid_file"])


def test_one_that_ignores_sigterm(place: Dict[str, str]) -> None:
    """Is told of, and killed only on demand."""
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    started = process.start(
        [sys.executable, "-c", script], ready=lambda _pid: "up" in process.tail(place["log_file"]), timeout=10, **place
    )
    with pytest.raises(ServerTimeout, match="runs on after"):
        process.stop(place["pid_file"], 0.2)
    assert process.is_alive(started)
    assert process.stop(place["pid_file"], 1, kill=True) is True
    assert not process.is_alive(started)


@pytest.mark.parametrize(
    "change", [{"start_time": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}, {"pid": -1}, {"pid": 0}]
)
def test_a_recycled_number_is_not_hit(place: Dict[str, str], change: Dict[str, Any]) -> None:
    """The process that has the number now lives on."""
    started = process.start(["/bin/sleep", "60"], ready=lambda _pid: True, timeout=5, **place)
    good = Path(place["pid_file"]).read_text()
    Path(place["pid_file"]).write_text(json.dumps({**json.loads(good), **change}))
    assert process.inspect(place["pid_file"]) is None
    assert process.stop(place["pid_file"], 1, kill=True) is False
    assert process.is_alive(started)
    Path(place["pid_file"]).write_text(good)
    assert process.stop(place["pid_file"], 5) is True


@pytest.mark.parametrize("text", ["", "{", "[]", "17", '{"pid": 1}', '{"pid": "x", "start_time": 1}', "\0" * 100])
def test_pid_files_that_say_nothing(place: Dict[str, str], text: str) -> None:
    """Mean no process."""
    Path(place["pid_file"]).write_text(text)
    assert process.inspect(place["pid_file"]) is None


def test_the_end_of_the_output(tmp_path: Path) -> None:
    """At most 4 KiB, whole lines."""
    path = tmp_path / "log"
    assert process.tail(str(path)) == ""
    path.write_text("".join(f"line {number}\n" for number in range(2000)))
    lines = process.tail(str(path)).splitlines()
    assert lines[-1] == "line 1999"
    assert all(line.startswith("line ") for line in lines)
    assert len("\n".join(lines)) <= 4096


# -- the reference tool -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "option"), [("serve", "--homi-id"), ("start", "--homi-id"), ("start", "--shm_id"), ("serve", "--homi_id")]
)
def test_every_generation_of_the_reference_tool(tmp_path: Path, verb: str, option: str) -> None:
    """It is asked how it wants to be called."""
    tool = tmp_path / "homi"
    tool.write_text(
        f"#!/bin/sh\n[ $# = 1 ] && echo 'Usage: homi {verb} | status' || echo 'options: {option} --be'\nexit 22\n"
    )
    tool.chmod(0o755)
    usage = process.homi_usage(str(tool))
    assert usage == process.HomiUsage(str(tool), verb, option)
    assert process.homi_command(usage, ["0000:01:00.0", "0000:02:00.0"], 7, "upcie", 1 << 30) == [
        str(tool),
        verb,
        "0000:01:00.0",
        "0000:02:00.0",
        option,
        "7",
        "--be",
        "upcie",
        "--host_heap_size",
        "1073741824",
    ]
    assert process.homi_command(usage, ["0000:01:00.0"], 7) == [str(tool), verb, "0000:01:00.0", option, "7"]


def test_tools_that_are_something_else(tmp_path: Path) -> None:
    """Are not run with guesses."""
    tool = tmp_path / "homi"
    with pytest.raises(ConfigError, match="cannot run"):
        process.homi_usage(str(tool))
    tool.write_text("#!/bin/sh\necho hello\n")
    tool.chmod(0o755)
    with pytest.raises(ConfigError, match="neither serve nor start"):
        process.homi_usage(str(tool))
    tool.write_text("#!/bin/sh\necho serve\n")
    with pytest.raises(ConfigError, match="with --homi-id or --shm_id"):
        process.homi_usage(str(tool))
