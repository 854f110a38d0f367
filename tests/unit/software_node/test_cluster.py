# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters of local processes: up, down, run; nothing survives, nothing else is hit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, List

import pytest
import software_node
from software_node.cluster import Cluster, Running, is_alive

PACKAGE = str(Path(software_node.__file__).parent.parent)
NODES = {"nodes": [{"name": "one", "node_id": 8}, {"name": "two", "node_id": 4}]}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(NODES))
    return str(path)


def start_run(file: str, folder: Path, *command: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "software_node", "cluster", "run", file, "--dir", str(folder), "--", *command]
    return subprocess.Popen(line, cwd=PACKAGE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_status_up_down(new_cluster: Callable[..., Any], processes_of: Callable[[Path], List[int]], poll: Any) -> None:
    cluster = new_cluster(NODES["nodes"])
    assert cluster.do("status").count(": up, process ") == 2
    assert "up already" in cluster.python("cluster", "up", str(cluster.file), "--dir", str(cluster.state), check=False)
    assert len(processes_of(cluster.state)) == 2
    cluster.do("down", "one")
    assert "one: down" in cluster.python("cluster", "status", "--dir", str(cluster.state), check=False)
    cluster.do("start", "one")
    cluster["one"].ok("connect", "4")
    cluster.do("down")
    assert poll(lambda: not processes_of(cluster.state))
    cluster.do("down")
    cluster.up()
    cluster["one"].ok("connect", "4")


def test_the_port_of_every_node_is_its_own(new_cluster: Callable[..., Any]) -> None:
    cluster = new_cluster(NODES["nodes"])
    configs = [json.loads((cluster.state / name / "node.json").read_text()) for name in ("one", "two")]
    assert configs[0]["port"] != configs[1]["port"]
    assert configs[0]["peers"]["4"] == {"address": f"127.0.0.1:{configs[1]['port']}", "name": "two"}


def test_a_very_long_folder(tmp_path: Path, file: str) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    run = start_run(file, folder, str(folder / "one/sbin/dis_config"), "-gn")
    assert run.communicate(timeout=20)[0] == b"Card 1 - NodeId:  8\n"
    assert run.returncode == 0


def test_a_recycled_process_id_is_not_hit(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        other = Running("one", child.pid, int(stat[19]), str(tmp_path / "one"))
        earlier = Running("two", os.getpid(), 1, str(tmp_path / "two"))
        assert not is_alive(other)  # the same start, another program
        assert not is_alive(earlier)  # another start
        (tmp_path / "cluster.json").write_text(json.dumps([vars(other), vars(earlier)]))
        assert Cluster(str(tmp_path)).down() == []
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": []}, "nodes"),
        ({"nodes": [{"name": "one", "node_id": 8, "port": 1}]}, "port is chosen"),
        ({"nodes": [{"name": "one", "node_id": 8}, {"name": "two", "node_id": 8}]}, "node id 8 is there twice"),
        ({"nodes": [{"name": "one", "node_id": 8}, {"name": "one", "node_id": 4}]}, "name one is there twice"),
        ({"nodes": [{"name": "one", "node_id": 8, "faults": {"slow": "x"}}]}, "slow"),
        ({"nodes": [{"name": "one"}]}, "node_id"),
        ({"nodes": [{"name": "one", "node_id": 8}], "more": 1}, "more"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, change: Any, words: str, processes_of: Any) -> None:
    (tmp_path / "f.json").write_text(json.dumps(change))
    run = start_run(str(tmp_path / "f.json"), tmp_path / "c", "true")
    _out, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert words in err.decode()
    assert b"Traceback" not in err
    assert processes_of(tmp_path / "c") == []


def test_run_gives_the_command_s_status(tmp_path: Path, file: str, processes_of: Any) -> None:
    for code, status in (("exit 7", 7), ("kill -9 $$", 137), ("true", 0)):
        run = start_run(file, tmp_path / "c", "sh", "-c", code)
        run.communicate(timeout=20)
        assert run.returncode == status
        assert processes_of(tmp_path / "c") == []
    run = start_run(file, tmp_path / "c", str(tmp_path / "no-such-command"))
    _out, err = run.communicate(timeout=20)
    assert (run.returncode, b"No such file" in err) == (1, True)
    assert processes_of(tmp_path / "c") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_ends_everything_when_it_is_interrupted(
    tmp_path: Path, file: str, number: signal.Signals, processes_of: Any, poll: Any
) -> None:
    command = "echo started; exec sleep 30"
    run = start_run(file, tmp_path / "c", "sh", "-c", command)
    assert run.stdout and run.stderr
    assert run.stdout.readline() == b"started\n"
    (child,) = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()][-1:]
    assert len(processes_of(tmp_path / "c")) == 3  # the runner and two nodes
    run.send_signal(number)
    status = run.wait(10)
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    assert poll(lambda: not processes_of(tmp_path / "c"))
    if number == signal.SIGKILL:
        os.kill(child, signal.SIGKILL)  # the command is nobody's any more
    assert poll(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())
    run.stdout.close()
    run.stderr.close()


def test_a_foreign_folder_is_left_alone(tmp_path: Path, new_cluster: Callable[..., Any]) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/precious").write_text("x")
    cluster = new_cluster([{"name": "one", "node_id": 8}], up=False)
    (tmp_path / "node.json").write_text(json.dumps({"name": "one", "node_id": 8}))
    arguments = ("--config", str(tmp_path / "node.json"), "--dir", str(tmp_path))
    text = cluster.python("daemon", *arguments, check=False)
    assert "not a node's folder" in text
    assert (tmp_path / "dev/precious").read_text() == "x"


def test_a_daemon_by_itself(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"name": "one", "node_id": 8}))
    line = [sys.executable, "-m", "software_node", "daemon", "--config", str(tmp_path / "node.json")]
    line += ["--dir", str(tmp_path / "state"), "--prefix", str(tmp_path / "opt/DIS")]
    daemon = subprocess.Popen(line, cwd=PACKAGE, stdout=subprocess.PIPE)
    assert daemon.stdout
    assert daemon.stdout.readline() == b"ready\n"
    tool = str(tmp_path / "opt/DIS/sbin/dis_config")
    assert subprocess.run([tool, "-gn"], capture_output=True, check=True).stdout == b"Card 1 - NodeId:  8\n"
    daemon.terminate()
    assert daemon.wait(5) == 0
    daemon.stdout.close()
    left = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert left == [".software-node", "log"]
    assert subprocess.run([tool, "-gn"], capture_output=True, check=False).returncode == 6
