# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role cplane_server over real controllers: drivers, hugepages, the native server as a process, and back."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import bundle
from ansible_collections.iofabric.sharing.tests.unit.plugins.module_utils._cplane.test_golden import Replay
from ansible_collections.iofabric.sharing.tests.vm.guest import Disk, Guest
from ansible_collections.iofabric.sharing.tests.vm.playing import (
    Answer,
    apply_role,
    changes,
    failures,
    play,
    run_plays,
    task,
)

SOFTWARE_NODE = Path(__file__).parents[2] / "roles/software_node/files/software_node"
STEPS = Path(__file__).with_name("inside") / "vfio_steps.py"
RECORD = Path(__file__).parents[1] / "unit/plugins/module_utils/_cplane/samples/native-server-vfio.json"
MIB = 1 << 20
SERVED = 7
"""The control plane that vfio_steps.py has to do with."""


class Host:
    """A guest to which the role is applied."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        # Clients find their library in the server's program.
        guest.write("/tmp/cplaned.pyz", bundle.CPLANED.build())  # noqa: S108 - in the guest
        guest.write("/tmp/steps.py", STEPS.read_bytes())  # noqa: S108

    def step(self, *words: object) -> Any:
        """What a step of vfio_steps.py answers."""
        return json.loads(self.guest.run("python3 /tmp/steps.py " + " ".join(map(str, words)), timeout=300).stdout)

    def apply(self, *instances: Dict[str, Any], check: bool = False, **more: Any) -> List[Answer]:
        variables = {f"cplane_server_{name}": value for name, value in more.items()}
        variables = {"cplane_server_manager": "process", **variables, "cplane_server_instances": list(instances)}
        return apply_role(self.guest, "cplane_server", check=check, **variables)

    def server(self, *serials: str, cplane_id: int = SERVED) -> Dict[str, Any]:
        controllers = [self.guest.bdf(serial) for serial in serials]
        return {"cplane_id": cplane_id, "controllers": controllers, "server": "native", "heap_size": "16M"}

    def drivers(self, *serials: str) -> List[str]:
        links = [f"/sys/bus/pci/devices/{self.guest.bdf(serial)}/driver" for serial in serials]
        return [self.guest.run(f"basename $(readlink {link})").stdout.strip() for link in links]

    def disk(self, serial: str) -> str:
        """The name of a disk, once the kernel's driver has it."""
        return self.guest.run(
            f"cd /sys/bus/pci/devices/{self.guest.bdf(serial)}; until [ -e nvme/nvme*/nvme*n1 ]; do sleep 0.02; done; "
            "name=$(basename nvme/nvme*/nvme*n1); until [ -e /dev/$name ]; do sleep 0.02; done; echo $name"
        ).stdout.strip()

    def checksum(self, serial: str) -> str:
        """Of the first 8 MiB of a disk, as the kernel's driver reads them."""
        return self.guest.run(f"dd if=/dev/{self.disk(serial)} bs=1M count=8 iflag=direct 2> /dev/null | md5sum").stdout

    def fill(self, serial: str) -> str:
        """Write the first 8 MiB of a disk; their checksum."""
        self.guest.run(f"dd if=/dev/urandom of=/dev/{self.disk(serial)} bs=1M count=8 oflag=direct 2> /dev/null")
        return self.checksum(serial)

    def hold(self) -> int:
        """Start a client that keeps queues of every controller; its process."""
        pid: int = self.step("background", "hold", 2)
        self.guest.run("until grep -q held /tmp/hold.out; do sleep 0.05; done", timeout=60)
        return pid

    def end(self, pid: int) -> None:
        """End a client, and wait until its server has noticed."""
        self.guest.run(f"kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.02; done")


def rows(answers: List[Answer], task: str) -> Dict[int, Dict[str, Any]]:
    """The servers that a task of the role answered, by their ids."""
    found = [answer for answer in answers if answer.task == task and "servers" in answer]
    return {row["cplane_id"]: row for answer in found for row in answer["servers"]}


def compare_with_record(log: List[Dict[str, Any]]) -> None:
    """The record that the emulated server is held to is still what the server answers over real controllers."""
    recorded = json.loads(RECORD.read_text())["log"]
    assert [entry["fds"] for entry in log] == [entry["fds"] for entry in recorded]
    for number, (then, now) in enumerate(zip(recorded, log)):
        assert now["request"][:64] == then["request"][:64], number
        Replay(None).compare(bytes.fromhex(then["reply"]), bytes.fromhex(now["reply"]), f"request {number}")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    disks = [Disk("ONE"), Disk("TWO"), Disk("MOUNTED"), Disk("PAIR-A"), Disk("PAIR-B", beside=True), Disk("LENT")]
    with Guest(disks) as guest:
        yield Host(guest)


def test_drives_are_bound_served_and_given_back_with_their_data(host: Host) -> None:
    guest, wanted = host.guest, host.server("ONE", "TWO")
    before = [host.fill(name) for name in ("ONE", "TWO")]

    check = host.apply(wanted, hugepages=32, check=True)
    assert (failures(check), host.drivers("ONE", "TWO")) == ([], ["nvme", "nvme"])
    first = host.apply(wanted, hugepages=32)
    assert failures(first) == []
    assert changes(check) == changes(first) == ["Reserve hugepages now", "Start servers"]
    predicted, done = rows(check, "Start servers")[SERVED], rows(first, "Start servers")[SERVED]
    assert predicted["action"] == done["action"] == "bind, start"
    assert sorted(row["uri"] for row in done["controllers"]) == sorted(wanted["controllers"])
    assert host.drivers("ONE", "TWO") == ["vfio-pci", "vfio-pci"]
    again = host.apply(wanted, hugepages=32)
    assert (failures(again), changes(again)) == ([], [])
    assert "huge pages" not in guest.run(f"cat /run/iofabric/cplane/{SERVED}.log").stdout
    compare_with_record(host.step("converse"))
    written = host.step("session", 0, "ONE", 16 * MIB)

    client = host.hold()
    refused = host.apply(wanted, state="absent")
    assert failures(refused) == [
        f"control plane {SERVED}: 1 client is connected; end them first, give drain_timeout, or force: true"
    ]
    assert host.drivers("ONE", "TWO") == ["vfio-pci", "vfio-pci"]
    host.end(client)

    check = host.apply(wanted, state="absent", drain_timeout=30, check=True)
    gone = host.apply(wanted, state="absent", drain_timeout=30)
    assert (failures(check), failures(gone)) == ([], [])
    assert changes(check) == changes(gone) == ["Stop servers"]
    stopped = [rows(answers, "Stop servers")[SERVED]["action"] for answers in (check, gone)]
    assert stopped == ["stop, give_back"] * 2
    assert host.drivers("ONE", "TWO") == ["nvme", "nvme"]
    assert [host.checksum(name) for name in ("ONE", "TWO")] == before
    assert host.step("kernel_reads", guest.bdf("ONE"), 16 * MIB, written["nbytes"]) == written["sha256"]
    assert changes(host.apply(wanted, state="absent")) == []


def test_what_is_in_use_is_refused_and_the_others_are_served(host: Host) -> None:
    guest, mounted, pair = host.guest, host.guest.bdf("MOUNTED"), host.guest.bdf("PAIR-A")
    disk = host.disk("MOUNTED")
    guest.run(f"modprobe ext4 && mkfs.ext4 -q /dev/{disk} && mount /dev/{disk} /mnt && echo kept > /mnt/file")
    wanted = [host.server("ONE"), host.server("MOUNTED", cplane_id=8), host.server("PAIR-A", cplane_id=9)]
    check = host.apply(*wanted, check=True)
    first = host.apply(*wanted)
    words = [
        f"2 of 3 servers failed: control plane 8: {mounted} is in use: mounted at /mnt ({disk}); free it first; "
        f"control plane 9: {pair} shares its IOMMU group "
    ]
    for answers in (check, first):
        assert [message[: len(words[0])] for message in failures(answers)] == words
        assert failures(answers)[0].endswith("or bind the others with iofabric.sharing.pci_driver")
    assert (changes(check), changes(first)) == (["Start servers"], ["Start servers"])
    alive = {number: row["alive"] for number, row in rows(first, "Start servers").items()}
    assert alive == {SERVED: True, 8: False, 9: False}
    assert host.drivers("ONE", "MOUNTED", "PAIR-A", "PAIR-B") == ["vfio-pci", "nvme", "nvme", "nvme"]
    assert guest.run("cat /mnt/file").stdout == "kept\n"
    guest.run("umount /mnt")
    served = host.apply(*wanted[:2])
    assert (failures(served), rows(served, "Start servers")[8]["action"]) == ([], "bind, start")
    guest.run("! ls /run/iofabric/cplane/9.*")
    # A client of the other server has a device, too, and the kernel does not tell which.
    client = host.hold()
    stopped = host.apply({**wanted[1], "state": "stopped"})
    assert (failures(stopped), host.drivers("ONE", "MOUNTED")) == ([], ["vfio-pci", "nvme"])
    host.end(client)
    assert failures(host.apply(state="absent", drain_timeout=30)) == []
    assert host.drivers("ONE", "MOUNTED", "PAIR-A") == ["nvme", "nvme", "nvme"]


def test_what_a_client_keeps_is_given_back_when_it_ends_and_what_had_the_driver_keeps_it(host: Host) -> None:
    wanted, one, two = host.server("ONE", "TWO"), host.guest.bdf("ONE"), host.guest.bdf("TWO")
    host.step("bind", "vfio-pci", two)
    first = host.apply(wanted)
    assert (failures(first), rows(first, "Start servers")[SERVED]["action"]) == ([], "bind, start")
    client = host.hold()
    host.end(rows(first, "Start servers")[SERVED]["pid"])
    kept = host.apply({**wanted, "state": "stopped"})
    words = f"may be open by python3 (pid {client}), which was handed a device of VFIO; free it first"
    assert failures(kept) == [f"control plane {SERVED}: {one} is in use: {words}"]
    assert (changes(kept), host.drivers("ONE", "TWO")) == ([], ["vfio-pci", "vfio-pci"])
    host.end(client)
    back = host.apply({**wanted, "state": "stopped"})
    assert (failures(back), rows(back, "Stop servers")[SERVED]["action"]) == ([], "give_back")
    assert host.drivers("ONE", "TWO") == ["nvme", "vfio-pci"]
    host.step("bind", "default", two)


# A node's own sysfs has the kernel module of SmartIO in it, and not the host's devices; here they are side by side.
PLACES = {"tool": "/run/node/sbin/smartio_tool", "sysfs": "/run/sysfs"}
NODE = """
set -e
ip link set lo up
mkdir /run/sysfs /run/node
for name in block bus class dev devices kernel; do ln -s /sys/$name /run/sysfs/$name; done
ln -s /run/node/sysfs/module /run/sysfs/module
cd /opt
python3 -m software_node daemon --config /run/node.json --dir /run/node > /run/node.out 2>&1 &
until grep -qs ready /run/node.out; do sleep 0.05; kill -0 $! || { cat /run/node.out >&2; exit 1; }; done
"""


def start_node(guest: Guest, bdf: str) -> None:
    """Start a software node that has a controller of the guest's."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(SOFTWARE_NODE, "software_node", filter=lambda info: None if "__pycache__" in info.name else info)
    guest.run("mkdir -p /opt; tar x -C /opt", stdin=archive.getvalue())
    config = {"name": "guest", "node_id": 4, "port": 4711, "sysfs": "/sys", "devices": [{"bdf": bdf}]}
    guest.write("/run/node.json", json.dumps(config))
    guest.run(NODE)


def smartio(guest: Guest, *tasks: Dict[str, Any]) -> List[Answer]:
    return play(guest, *tasks, module_defaults={"group/iofabric.sharing.smartio": PLACES})


def drain(guest: Guest, check: bool) -> List[Answer]:
    variables = {"drain_borrower": "guest", "smartio_places": PLACES, "cplane_server_manager": "process"}
    playbook = {"name": "Drain", "ansible.builtin.import_playbook": "iofabric.sharing.drain", "vars": variables}
    return run_plays(guest, [playbook], groups=("borrowers", "cplane_servers"), check=check)


def test_what_is_borrowed_is_served_refused_to_be_returned_and_drained(host: Host) -> None:
    """A node lends its own drive to itself: so the label means a real controller."""
    guest, lent = host.guest, host.guest.bdf("LENT")
    before = host.fill("LENT")
    start_node(guest, lent)
    wanted = {"cplane_id": SERVED, "controllers": ["claim:drive"], "server": "native", "heap_size": "16M"}
    claim = {"select": {"node_id": 4}, "label": "drive"}
    check = host.apply(wanted, check=True, places=PLACES, driver="vfio-pci")
    assert (failures(check), rows(check, "Start servers")[SERVED]["action"]) == ([], "pending")
    lend, borrow = smartio(guest, task("smartio_device", bdf=lent), task("smartio_borrow", devices=[claim]))
    assert lend["devices"][0]["state"] == "available"
    assert (borrow["devices"][0]["vdev"], borrow["devices"][0]["driver"]) == (lent, "nvme")

    first = host.apply(wanted, places=PLACES, driver="vfio-pci")
    again = host.apply(wanted, places=PLACES, driver="vfio-pci")
    assert [failures(answers) for answers in (first, again)] == [[], []]
    assert [changes(answers) for answers in (first, again)] == [["Start servers"], []]
    server = rows(first, "Start servers")[SERVED]
    assert (server["action"], server["controllers"][0]["uri"]) == ("bind, start", lent)
    assert host.drivers("LENT") == ["vfio-pci"]
    written = host.step("session", 0, "LENT", 16 * MIB)

    (kept,) = smartio(guest, task("smartio_borrow", devices=[claim], state="returned"))
    assert f"open by python3 (pid {server['pid']})" in kept["msg"]
    assert (kept.changed, host.drivers("LENT")) == (False, ["vfio-pci"])

    for drained in (drain(guest, check=True), drain(guest, check=False)):
        assert (failures(drained), changes(drained)) == ([], ["Stop servers", "Return the devices"])
        assert rows(drained, "Stop servers")[SERVED]["action"] == "stop, give_back"
    (back,) = smartio(guest, task("smartio_device", bdf=lent, state="absent", borrowers_checked=True))
    assert (back["devices"][0]["state"], back["devices"][0]["driver"]) == ("absent", "nvme")
    assert host.checksum("LENT") == before
    assert host.step("kernel_reads", lent, 16 * MIB, written["nbytes"]) == written["sha256"]
