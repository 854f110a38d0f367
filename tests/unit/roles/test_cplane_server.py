# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role cplane_server as far as it needs no host: what it looks at, what it refuses, and what it reserves."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import yaml
from ansible_collections.iofabric.sharing.tests.unit.ansible_env import ansible_env

ROLE = Path(__file__).resolve().parents[3] / "roles" / "cplane_server"

_SPEC = importlib.util.spec_from_file_location("server_host", ROLE / "files" / "server_host.py")
assert _SPEC is not None
assert _SPEC.loader is not None
server_host = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(server_host)


# -- what it looks at -------------------------------------------------------------------------------------------------


def hugepages(top: Path, size: int, **values: int) -> Path:
    folder = top / f"hugepages-{size}kB"
    folder.mkdir(parents=True)
    names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages")
    for name in names:
        (folder / name).write_text(f"{values.get(name.partition('_')[0], 0)}\n")
    return folder


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **request: Any) -> Dict[str, Any]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    server_host.main()
    answer: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_host_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hugepages(tmp_path / "huge", 2048, nr=12, free=5, resv=2, surplus=2)
    hugepages(tmp_path / "huge", 1048576)
    (tmp_path / "huge" / "other").mkdir()
    devices = tmp_path / "sys" / "bus/pci/devices"
    for bdf in ("0000:81:00.0", "0000:82:00.0"):
        (devices / bdf).mkdir(parents=True)
    (devices / "0000:81:00.0" / "driver").symlink_to("../../../../drivers/vfio-pci")
    units, state = tmp_path / "units", tmp_path / "state"
    (units / "multi-user.target.wants").mkdir(parents=True)
    for name in ("xnvme-cplane@7.service", "xnvme-cplane@x.service", "ssh.service"):
        (units / "multi-user.target.wants" / name).touch()
    for cplane_id, name in ((8, "iofabric.conf"), (9, "local.conf")):
        (units / f"xnvme-cplane@{cplane_id}.service.d").mkdir()
        (units / f"xnvme-cplane@{cplane_id}.service.d" / name).touch()
    state.mkdir()
    (state / "10.json").write_text(json.dumps({"manager": "systemd"}, indent=1))
    (state / "11.json").write_text(json.dumps({"manager": "process"}, indent=1))
    (state / "13.bound.json").write_text("{}")
    (state / "12.settings.json").write_text(json.dumps({"manager": "systemd"}))
    (tmp_path / "homi").write_text("#!/bin/sh\n")
    (tmp_path / "homi").chmod(0o755)
    found = ask(
        monkeypatch,
        capsys,
        action="look",
        hugepages=str(tmp_path / "huge"),
        sysfs=str(tmp_path / "sys"),
        bdfs=["0000:81:00.0", "0000:82:00.0", "0000:83:00.0"],
        homi=str(tmp_path / "homi"),
        units=str(units),
        state_dir=str(state),
        manager="systemd",
    )
    assert found["hugepages"]["2048"] == {"total": 10, "used": 9, "writable": True}
    assert found["hugepages"]["1048576"]["total"] == 0
    assert found["drivers"] == {"0000:81:00.0": "vfio-pci", "0000:82:00.0": None}
    assert found["instances"] == [7, 8, 10, 13]
    assert found["manager"] == "systemd"
    assert found["homi"] == str(tmp_path / "homi")
    assert found["default"] > 0 < found["available"]


def test_a_bare_host_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = dict.fromkeys(("hugepages", "sysfs", "units", "state_dir"), str(tmp_path / "nowhere"))
    request = {"action": "look", "bdfs": ["0000:81:00.0"], "homi": "no-such-homi", "manager": "auto"}
    found = ask(monkeypatch, capsys, **request, **places)
    assert (found["hugepages"], found["drivers"], found["instances"], found["homi"]) == ({}, {}, [], None)


@pytest.mark.parametrize(("booted", "manager"), [(True, "systemd"), (False, "process")])
def test_without_systemd_servers_are_processes(
    booted: bool,
    manager: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(server_host, "_SYSTEMD", str(tmp_path if booted else tmp_path / "nowhere"))
    for cplane_id, name in ((10, "systemd"), (11, "process")):
        (tmp_path / f"{cplane_id}.json").write_text(json.dumps({"manager": name}, indent=1))
    places = dict.fromkeys(("hugepages", "sysfs", "units"), str(tmp_path / "nowhere"))
    found = ask(
        monkeypatch, capsys, action="look", bdfs=[], homi="homi", manager="auto", state_dir=str(tmp_path), **places
    )
    assert (found["systemd"], found["manager"]) == (booted, manager)
    assert found["instances"] == [10 if booted else 11]


def test_hugepages_are_reserved_as_far_as_there_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compact = tmp_path / "compact_memory"
    compact.touch()
    monkeypatch.setattr(server_host, "_COMPACT", str(compact))
    folder = hugepages(tmp_path, 2048, nr=3)
    request = {"action": "reserve", "hugepages": str(tmp_path), "size": 2048}
    assert ask(monkeypatch, capsys, count=64, **request) == {"total": 64}
    assert ((folder / "nr_hugepages").read_text(), compact.read_text()) == ("64", "")
    # A kernel that gives fewer than it is asked for.
    (folder / "surplus_hugepages").write_text("1")
    assert ask(monkeypatch, capsys, count=32, **request) == {"total": 31}
    assert compact.read_text() == "1"


# -- what it refuses --------------------------------------------------------------------------------------------------


HOST: Dict[str, Any] = {
    "systemd": True,
    "manager": "systemd",
    "iommu": True,
    "hugepages": {"2048": {"total": 64, "used": 0, "writable": True}},
    "default": 2048,
    "available": 1 << 20,
    "drivers": {"0000:81:00.0": "vfio-pci"},
    "homi": "/usr/bin/homi",
    "instances": [7, 30],
}
EMU = {"cplane_id": 7, "controllers": ["emu:a"]}


def real(*controllers: Any, **more: Any) -> Dict[str, Any]:
    return {"cplane_id": 1, "controllers": list(controllers), **more}


def pages(**values: Any) -> Dict[str, Any]:
    return {"hugepages": {"2048": {**HOST["hugepages"]["2048"], **values}}}


NVME = {"drivers": {"0000:82:00.0": "nvme"}}
UIO = {"drivers": {"0000:84:00.0": "uio_pci_generic"}}
CASES: List[Tuple[Dict[str, Any], Dict[str, Any], List[str]]] = [
    # variables of the role, what differs of the host, words of each obstacle
    ({}, {}, []),
    ({"instances": [EMU]}, {"iommu": False, "homi": None, "drivers": {}, "hugepages": {}}, []),
    ({"instances": [EMU]}, {"systemd": False}, ["systemd does not run here, and cplane_server_manager asks for its"]),
    ({"instances": [EMU]}, {"systemd": False, "manager": "process"}, []),
    ({"instances": [EMU, {**EMU, "state": "stopped"}]}, {}, ["cplane_id 7 more than once"]),
    ({"instances": [{"cplane_id": 7}]}, {}, ["control plane 7 has no controllers"]),
    ({"instances": [{"cplane_id": 7, "state": "absent"}]}, {}, []),
    ({"instances": [real("0000:81:00.0", "claim:x")]}, {}, []),
    ({"instances": [real("0000:81:00.0")]}, {"iommu": False}, ["no IOMMU is in use"]),
    ({"instances": [real("84:00.0")], "driver": "none"}, {**UIO, "iommu": False}, []),
    ({"instances": [real("claim:x")]}, {"iommu": False, "drivers": {}}, ["no IOMMU is in use"]),
    ({"instances": [real("claim:x")], "places": {"sysfs": "/run/node/sysfs"}}, {"iommu": False, "hugepages": {}}, []),
    ({"instances": [real("82:00.0")], "driver": "none"}, NVME, ["0000:82:00.0 has the driver nvme"]),
    ({"instances": [real("82:00.0", driver="none")]}, NVME, ["0000:82:00.0 has the driver nvme"]),
    ({"instances": [real("82:00.0")]}, NVME, []),
    ({"instances": [real("82:00.0")]}, {**NVME, "iommu": False}, ["no IOMMU is in use"]),
    ({"instances": [real("82:00.0", driver="uio_pci_generic")]}, {**NVME, "iommu": False}, []),
    ({"instances": [real("claim:x")], "driver": "uio_pci_generic"}, {"iommu": False, "drivers": {}}, []),
    ({"instances": [real("83:00.0")], "driver": "none"}, {"drivers": {"0000:83:00.0": None}}, ["has no driver"]),
    ({"instances": [real("0000:85:00.0")]}, {"drivers": {}}, ["0000:85:00.0 is not in /sys/bus/pci/devices"]),
    ({"instances": [real("81:00.0", "emu:a")]}, {"drivers": {"0000:81:00.0": "vfio-pci"}}, []),
    ({"instances": [real("0000:81:00.0")]}, {**pages(total=0)}, ["no hugepages are reserved"]),
    ({"instances": [real("0000:81:00.0")], "hugepages": 40}, {**pages(total=0)}, []),
    ({"hugepages": 64}, {**pages(writable=False)}, []),
    ({"hugepages": "65"}, {**pages(writable=False)}, ["nr_hugepages cannot be written, as in a container"]),
    ({"hugepages": {"count": 9}}, {**pages(used=10)}, ["10 of 64 hugepages are in use"]),
    ({"hugepages": {"size": "2M", "count": 10}}, {**pages(used=10)}, []),
    ({"hugepages": {"size": "2048K", "count": 577}}, {}, ["513 more hugepages take 1026 MiB, and only 1024 MiB"]),
    ({"hugepages": {"size": "1G", "count": 1}}, {}, ["no hugepages of 1048576 KiB, only of 2048"]),
    ({"hugepages": {"size": "1G", "count": 0}}, {}, []),
]
DEFAULTS: Dict[str, Any] = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> List[Dict[str, Any]]:
    """What the variables of the role come to in each case, by one run of a playbook."""
    folder = tmp_path_factory.mktemp("role")
    names = ("obstacles", "unwanted", "wanted", "emulated", "homi_ids", "bdfs", "pages", "arguments")
    asked = ("instances", "hugepages", "places", "driver")
    cases = [
        {"instances": [], "hugepages": 0, "places": {}, "driver": "vfio-pci", **given, "look": json.dumps(host)}
        for given, host in ((given, {**HOST, **host}) for given, host, _words in CASES)
    ]
    note = {
        "name": "Note",
        "ansible.builtin.set_fact": {"all": "{{ all | default([]) + [found] }}"},
        "loop": "{{ cases }}",
        "vars": {
            **{f"cplane_server_{name}": "{{ item." + name + " }}" for name in asked},
            "cplane_server_look": "{{ {'stdout': item.look} }}",
        },
    }
    content = {"content": "{{ all | to_json }}", "dest": f"{folder}/all", "mode": "0600"}
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROLE / "vars" / "main.yml")],
        "vars": {
            **{name: value for name, value in DEFAULTS.items() if name != "cplane_server_places"},
            "ansible_python_interpreter": sys.executable,
            "cases": cases,
            "found": "{{ {" + ", ".join(f"'{name}': cplane_server_{name}" for name in names) + "} }}",
        },
        "tasks": [note, {"name": "Tell", "ansible.builtin.copy": content}],
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    env = ansible_env(folder)
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(folder / "play.yml")]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: List[Dict[str, Any]] = json.loads((folder / "all").read_text())
    return found


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_a_host_lacks_is_said(answers: List[Dict[str, Any]], number: int) -> None:
    words = CASES[number][2]
    found = answers[number]["obstacles"]
    assert len(found) == len(words), found
    for text, said in zip(found, words):
        assert said in text


def test_the_variables_are_what_the_module_takes(answers: List[Dict[str, Any]]) -> None:
    by_case = {json.dumps(given): answer for (given, _host, _words), answer in zip(CASES, answers)}
    stopped = by_case[json.dumps({"instances": [EMU, {**EMU, "state": "stopped"}]})]
    assert (stopped["wanted"], stopped["unwanted"], stopped["emulated"]) == ([EMU], [{"cplane_id": 7}], [EMU])
    mixed = by_case[json.dumps({"instances": [real("81:00.0", "emu:a")]})]
    assert (mixed["emulated"], mixed["homi_ids"], mixed["bdfs"]) == ([], ["1"], ["0000:81:00.0"])
    assert mixed["wanted"][0]["driver"] == "vfio-pci"
    claim = by_case[json.dumps({"instances": [real("claim:x")], "places": {"sysfs": "/run/node/sysfs"}})]
    assert claim["arguments"] == {
        "homi": "homi",
        "socket_dir": "/tmp",  # noqa: S108 - where clients look
        "force": False,
        "drain_timeout": 0.0,
        "timeout": 60.0,
        "sysfs": "/run/node/sysfs",
    }
    assert by_case[json.dumps({"hugepages": "65"})]["pages"] == {"count": 65, "size": 2048}
    assert by_case[json.dumps({"hugepages": {"size": "1G", "count": 1}})]["pages"] == {"count": 1, "size": 1048576}
