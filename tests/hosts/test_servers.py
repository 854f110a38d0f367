# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of the role cplane_server that bind what they serve, on hosts with software nodes. Runs inside a lab.

The reference tool is a stand-in, and the driver one that needs no IOMMU: a host of a lab has neither. The tests build
on each other.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.tests.hosts.inside import Run, hosts, on

STAND_IN = Path(__file__).parents[1] / "unit/plugins/modules/cplane"
NODE = "/run/iofabric-software-node"
UNIT = "xnvme-cplane@1.service"
DRIVER = "uio_pci_generic"
CAP_SYS_MODULE_AND_PTRACE = (16, 19)
DRIVE = {"bdf": "81:00.0", "vendor_id": "144d", "device_id": "a80a", "class": "010802", "serial": "S1"}
INVENTORY: Dict[str, Any] = {
    "all": {
        "vars": {
            "ansible_ssh_common_args": "-F /run/iofabric-hosts/ssh_config",
            "ansible_python_interpreter": "/usr/bin/python3",
            "software_node_token": "bench",
            "smartio_places": {"sysfs": f"{NODE}/sysfs", "dev": f"{NODE}/dev"},
        },
        "children": {
            "software_nodes": {"hosts": {"lender": {}, "server": {}}},
            "lenders": {
                "hosts": {
                    "lender": {
                        "software_node_id": 4,
                        "software_node_devices": [DRIVE],
                        "lender_devices": [{"bdf": "81:00.0"}],
                    }
                }
            },
            "borrowers": {
                "hosts": {
                    "server": {
                        "software_node_id": 8,
                        "borrower_claims": [{"label": "scratch", "select": {"serial": "S1"}}],
                    }
                }
            },
            "cplane_servers": {
                "hosts": {
                    "server": {
                        "cplane_server_driver": DRIVER,
                        "cplane_server_homi": "/opt/homi/homi",
                        "cplane_server_environment": {"FAKE_HOMI_DIR": "/tmp", "FAKE_HOMI_LOG": "/tmp/homi.log"},  # noqa: S108
                        "cplane_server_instances": [{"cplane_id": 1, "controllers": ["claim:scratch"]}],
                    }
                }
            },
        },
    }
}


def eventually(condition: Callable[[], bool], seconds: float = 90) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return condition()


def borrowed() -> List[str]:
    """Address and driver of every device that the server has, all of them virtual."""
    script = 'for one in *; do echo "$one $(basename "$(readlink $one/driver)")"; done'
    return on("server", f"cd {NODE}/sysfs/bus/pci/devices; {script}").split("\n")


def is_active() -> bool:
    return on("server", f"systemctl is-active {UNIT} || true") == "active"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("servers")
    (folder / "inventory.json").write_text(json.dumps(INVENTORY))
    hosts("up", "lender=bookworm", "server=bookworm")
    on("server", "mkdir /opt/homi")
    for name in ("fake_homi.py", "wire_server.py"):
        on("server", f"cat > /opt/homi/{name} <<'END'\n{(STAND_IN / name).read_text()}\nEND")
    on("server", "printf '#!/bin/sh\\nexec python3 -B /opt/homi/fake_homi.py \"$@\"\\n' > /opt/homi/homi")
    on("server", "chmod 755 /opt/homi/homi")
    yield folder
    hosts("down")


def play(folder: Path, name: str, *arguments: str, **variables: Any) -> Run:
    """A run of one of the collection's playbooks that nothing may fail in."""
    run = Run(folder, "-i", str(folder / "inventory.json"), f"iofabric.sharing.{name}", *arguments, **variables)
    assert run.rc == 0, run.output
    return run


def test_what_is_borrowed_is_bound_and_served(folder: Path) -> None:
    play(folder, "site")
    assert is_active()
    (device,) = borrowed()
    assert device.endswith(f" {DRIVER}")
    assert json.loads(on("server", "cat /etc/iofabric/sharing.json"))["cplanes"][0]["driver"] == DRIVER
    assert play(folder, "site").changed == set()
    assert play(folder, "site", "--check").changed == set()


def test_a_boot_replays_binds_and_serves(folder: Path) -> None:
    hosts("crash", "server")
    hosts("up", "server")
    assert eventually(is_active), on("server", f"journalctl --no-pager -u {UNIT} -u iofabric-sharing.service")
    (device,) = borrowed()
    assert device.endswith(f" {DRIVER}")
    assert on("server", "tail -n 1 /tmp/homi.log").split('"')[3] == device.split()[0]
    assert play(folder, "site").changed == set()


@pytest.mark.usefixtures("folder")
def test_the_server_itself_cannot_do_what_binding_takes() -> None:
    pid = on("server", f"systemctl show -p MainPID --value {UNIT}")
    has = int(on("server", f"grep CapBnd /proc/{pid}/status").split()[1], 16)
    assert [number for number in CAP_SYS_MODULE_AND_PTRACE if has >> number & 1] == []


@pytest.mark.usefixtures("folder")
def test_what_is_in_use_is_not_bound_by_a_start() -> None:
    """The unit says so, and tries again; once the device is free, it is served."""
    device, bus = borrowed()[0].split()[0], f"{NODE}/sysfs/bus/pci"
    place = f"{bus}/devices/{device}"
    on("server", f"systemctl stop {UNIT}")
    on("server", f"echo {device} > {place}/driver/unbind; echo > {place}/driver_override")
    on("server", f"until [ ! -e {place}/driver ]; do sleep 0.05; done; echo {device} > {bus}/drivers_probe")
    on("server", f"until [ -e {place}/nvme ]; do sleep 0.05; done")
    # A holder of its disk, as sysfs shows one of device-mapper's.
    holder = f"$(echo {place}/nvme/nvme*/nvme*n1)/holders/dm-0"
    on("server", f"mkdir -p {NODE}/sysfs/block/dm-0 {holder}")
    on("server", f"systemctl start --no-block {UNIT}")
    assert eventually(lambda: "in use" in on("server", f"systemctl show -p StatusText --value {UNIT}"))
    assert borrowed() == [f"{device} nvme"]
    on("server", f"rmdir {holder}")
    assert eventually(is_active), on("server", f"journalctl --no-pager -u {UNIT}")
    assert borrowed() == [f"{device} {DRIVER}"]


def test_a_drain_gives_the_driver_back_before_the_device(folder: Path) -> None:
    check = play(folder, "drain", "--check", drain_borrower="server")
    assert is_active()
    run = play(folder, "drain", drain_borrower="server")
    assert run.changed == check.changed
    stopped = [result for task, _host, _status, result in run.rows if task.endswith("Stop servers")]
    assert [row["action"] for result in stopped for row in result.get("servers", ())] == ["stop, give_back"]
    assert on("server", f"ls {NODE}/sysfs/bus/pci/devices") == ""
    assert not is_active()
    assert play(folder, "drain", drain_borrower="server").changed == set()
