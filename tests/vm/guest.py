# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest: a Linux of its own under QEMU, with NVMe controllers behind an IOMMU, for as long as it is needed.

    with Guest([Disk("ONE"), Disk("TWO")]) as guest:
        print(guest.run("lspci -nn").stdout)

All of it, its disks too, lies in memory or in a temporary folder. It ends with the thread that started it, however that
ends.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from io import BytesIO
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Union

from . import cpio
from .image import image

_INSIDE = Path(__file__).with_name("inside")
_SITE = "usr/lib/python3.11/sitecustomize.py"
_AGENT = "iofabric.agent"
_KERNEL = (
    "console=ttyS0 loglevel=4 panic=-1 intel_iommu=on iommu=pt mitigations=off random.trust_cpu=on tsc=reliable "
    "cryptomgr.notests no_timer_check"  # on a loaded machine, the kernel's check of its timer comes too late
)
# What Python has compiled in the guest before (see sitecustomize.py), as an archive; the next one starts with it.
_compiled: List[bytes] = []
_BOOT_SECONDS = 120.0
_MONITOR_SECONDS = 60.0
# The agent ends a command that is late; somebody has to tell when the agent itself is.
_GRACE_SECONDS = 20.0


class GuestError(Exception):
    """What went wrong, with what QEMU and the guest's kernel said."""


class Disk(NamedTuple):
    """An NVMe controller with one namespace of ``mib`` MiB, empty at first.

    ``options`` are further properties of QEMU's nvme device, such as ``cmb_size_mb=16``. Each has a slot and so an
    IOMMU group of its own, unless it is ``beside`` the one before: then it is a further function of the same slot.
    """

    serial: str
    mib: int = 64
    options: str = ""
    beside: bool = False


class Result(NamedTuple):
    """A command that ended in a guest: 124 is the status of one that was too late and killed."""

    rc: int
    stdout: str
    stderr: str
    seconds: float


class Guest:
    """A guest that runs between ``with`` and its end. ``share`` is a folder that it sees, writable, as /share.

    ``devices`` are further arguments of QEMU, ``kernel`` is added to the kernel's command line.
    """

    def __init__(
        self,
        disks: Sequence[Disk] = (),
        *,
        share: Optional[Path] = None,
        devices: Sequence[str] = (),
        kernel: str = "",
        memory: int = 1024,
    ) -> None:
        self._disks = list(disks)
        self._share = share
        self._devices = list(devices)
        self._kernel = kernel
        self._memory = memory
        self._numbers = itertools.count(1)
        self._waiting: Dict[Optional[int], queue.SimpleQueue[Optional[Dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._pulled: Set[str] = set()
        self._bdfs: Optional[Dict[str, str]] = None
        self.uptime = 0.0
        """Seconds that the kernel had run when the agent began."""

    # Life

    def __enter__(self) -> Guest:
        with contextlib.ExitStack() as stack:
            # As short as can be: there are sockets in it, whose paths have at most 107 bytes.
            self.folder = Path(tempfile.mkdtemp(prefix="vm"))
            stack.callback(shutil.rmtree, self.folder)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._stack, contextlib.suppress(GuestError):
            _compiled[:] = [self._output("cd /; [ ! -d compiled ] || find compiled | cpio -o -H newc 2> /dev/null")]

    def _start(self, stack: contextlib.ExitStack) -> None:
        if not image().files.exists():
            raise GuestError("the image of guests is not made yet; run make prepare-vm")
        self._agent, agent = _pair(stack)
        self._monitor, monitor = _pair(stack)
        with _initrd() as initrd:
            handed = [agent.fileno(), monitor.fileno(), initrd]
            with (self.folder / "qemu.log").open("wb") as log:
                self._process = subprocess.Popen(
                    # QEMU is killed when the thread that started it ends.
                    ["setpriv", "--pdeathsig", "KILL", *self._command(*handed)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=handed,
                )
        stack.callback(self._end)
        agent.close()
        monitor.close()
        hello = self._expect(None)
        threading.Thread(target=self._read, daemon=True).start()
        self._monitor.settimeout(_MONITOR_SECONDS)
        self._monitor_file = stack.enter_context(self._monitor.makefile("rwb"))
        self._monitor_file.readline()
        self.qmp("qmp_capabilities")
        self.uptime = self._answer(hello, _BOOT_SECONDS, "the boot")["uptime"]
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.address))
        listener.listen(16)
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _command(self, agent: int, monitor: int, initrd: int) -> List[str]:
        files = image()
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max", "-smp", "2"]
        command += ["-m", str(self._memory), "-display", "none", "-vga", "none", "-nodefaults", "-no-reboot"]
        command += ["-kernel", str(files.kernel), "-initrd", f"/proc/self/fd/{initrd}"]
        command += ["-append", f"{_KERNEL} {self._kernel}{' share' if self._share else ''}"]
        command += ["-serial", f"file:{self.folder}/console.log"]
        command += ["-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]
        command += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        command += ["-device", "virtio-serial-pci,addr=1e.0", "-chardev", f"socket,id=agent,fd={agent}"]
        command += ["-device", f"virtserialport,chardev=agent,name={_AGENT}"]
        if self._share:
            command += ["-fsdev", f"local,id=share,path={self._share},security_model=none"]
            command += ["-device", "virtio-9p-pci,fsdev=share,mount_tag=share,addr=1d.0"]
        for number, disk in enumerate(self._disks):
            command += self._disk(number, disk)
        return command + self._devices

    def _disk(self, number: int, disk: Disk) -> List[str]:
        """QEMU's arguments for a disk: the slot p0, the file d0, the controller nvme0."""
        path = self.disk_file(number)
        with path.open("wb") as file:
            file.truncate(disk.mib << 20)
        command = ["-blockdev", json.dumps(self._file(number))]
        if not disk.beside:
            place = f"chassis={number + 1},slot={number + 1},addr={number + 2:x}.0"
            command += ["-device", f"pcie-root-port,id=p{number},{place}"]
        return [*command, "-device", ",".join(f"{key}={value}" for key, value in self._controller(number).items())]

    def _file(self, number: int) -> Dict[str, object]:
        """QEMU's view of the file of a disk."""
        cache = {"no-flush": True}
        return {
            "driver": "raw",
            "node-name": f"d{number}",
            "cache": cache,
            "file": {"driver": "file", "filename": str(self.disk_file(number)), "cache": cache},
        }

    def _controller(self, number: int) -> Dict[str, str]:
        """The properties of QEMU's device for a disk."""
        disk, slot = self._disks[number], number
        while self._disks[slot].beside:
            slot -= 1
        options = dict(option.split("=", 1) for option in disk.options.split(",") if option)
        return {
            "driver": "nvme",
            "id": f"nvme{number}",
            "drive": f"d{number}",
            "serial": disk.serial,
            "bus": f"p{slot}",
            "addr": f"0.{number - slot:x}",
            "multifunction": "on",
            **options,
        }

    # Use

    @property
    def address(self) -> Path:
        """Where the connection plugin reaches the agent: requests and answers as the agent has them, one each."""
        return self.folder / "s"

    def disk_file(self, number: int) -> Path:
        """The file that holds what is on a disk."""
        return self.folder / f"nvme{number}.img"

    def run(
        self, command: Union[str, Sequence[str]], *, stdin: bytes = b"", timeout: float = 60, check: bool = True
    ) -> Result:
        """Runs a command, a text in a shell; one that fails is a GuestError unless ``check`` is false."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        answer = self._ask({"argv": argv, "stdin": base64.b64encode(stdin).decode(), "timeout": timeout})
        out, err = (base64.b64decode(answer[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        if check and answer["rc"]:
            raise GuestError(f"{command!r} failed in the guest with status {answer['rc']}:\n{err}{out}")
        return Result(answer["rc"], out, err, answer["seconds"])

    def _output(self, script: str) -> bytes:
        answer = self._ask({"argv": ["sh", "-c", script], "stdin": "", "timeout": 60})
        return base64.b64decode(answer["stdout"])

    def write(self, path: str, data: Union[str, bytes]) -> None:
        """Writes a file in the guest."""
        content = data.encode() if isinstance(data, str) else data
        self.run(["sh", "-c", 'cat > "$0"', path], stdin=content)

    def bdf(self, serial: str) -> str:
        """The PCI address of a disk, also while another driver than nvme has it."""
        if self._bdfs is None:
            found = self.run(
                "cd /sys/class/nvme; for name in *; do cat $name/serial $name/address; done"
            ).stdout.split()
            self._bdfs = dict(zip(found[::2], found[1::2]))
        return self._bdfs[serial]

    def qmp(self, command: str, **arguments: object) -> Any:
        """Runs a command of QEMU's monitor; what it returns."""
        with self._lock:
            self._monitor_file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            self._monitor_file.flush()
            reply = self._heard("return", "error")
        if "error" in reply:
            raise GuestError(f"QEMU refused {command}: {reply['error']['desc']}")
        return reply["return"]

    def _heard(self, *kinds: str) -> Dict[str, Any]:
        """The next message of QEMU's monitor of one of these kinds."""
        while True:
            line = self._monitor_file.readline()
            if not line:
                raise GuestError(f"QEMU ended\n{self.logs()}")
            message: Dict[str, Any] = json.loads(line)
            if message.get("event") == "DEVICE_DELETED":
                self._pulled.discard(message["data"].get("device"))
            if any(kind in message for kind in kinds):
                return message

    def pull(self, number: int) -> None:
        """Pulls out a disk's controller; the guest is told, and has not yet let go of it when this returns."""
        self._pulled.add(f"nvme{number}")
        self.qmp("device_del", id=f"nvme{number}")

    def plug(self, number: int) -> None:
        """Puts a controller that was pulled out back, with its disk, as soon as the guest has let go of it."""
        with self._lock:
            while f"nvme{number}" in self._pulled:
                self._heard("event")
        self.qmp("device_add", **self._controller(number))

    def logs(self) -> str:
        """What QEMU and the guest's kernel said."""
        paths = [self.folder / name for name in ("qemu.log", "console.log")]
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in paths if path.exists())

    # The agent

    def _ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        number = next(self._numbers)
        answers = self._expect(number)
        data = json.dumps({**request, "id": number}).encode() + b"\n"
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._agent.sendall(data)
        return self._answer(answers, request["timeout"] + _GRACE_SECONDS, repr(request["argv"]))

    def _expect(self, number: Optional[int]) -> queue.SimpleQueue[Optional[Dict[str, Any]]]:
        answers: queue.SimpleQueue[Optional[Dict[str, Any]]] = queue.SimpleQueue()
        with self._lock:
            if -1 in self._waiting:  # there is nobody to answer any more
                answers.put(None)
            self._waiting[number] = answers
        return answers

    def _answer(
        self, answers: queue.SimpleQueue[Optional[Dict[str, Any]]], seconds: float, what: str
    ) -> Dict[str, Any]:
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise GuestError(f"{what}: no answer from the guest within {seconds:g} s\n{self.logs()}") from None
        if answer is None:
            raise GuestError(f"{what}: the guest ended\n{self.logs()}")
        return answer

    def _read(self) -> None:
        """Hands every answer to whoever waits for it, until there are none any more."""
        with self._agent.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                answer = json.loads(line)
                with self._lock:
                    answers = self._waiting.pop(answer["id"], None)
                if answers is not None:
                    answers.put(answer)
        with self._lock:
            for answers in self._waiting.values():
                answers.put(None)
            self._waiting[-1] = queue.SimpleQueue()

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(listener.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
            try:
                answer = self._ask(json.loads(stream.readline()))
            except GuestError as error:
                answer = {"error": str(error)}
            stream.write(json.dumps(answer).encode() + b"\n")


def _pair(stack: contextlib.ExitStack) -> List[socket.socket]:
    return [stack.enter_context(end) for end in socket.socketpair()]


@contextlib.contextmanager
def _initrd() -> Iterator[int]:
    """The image's files with the agent and process 1, as a descriptor of a file in memory."""
    own = BytesIO()
    for name, place in (("init", "init"), ("agent.py", "agent.py"), ("sitecustomize.py", _SITE)):
        cpio.add_path(own, place, _INSIDE / name)
    cpio.end(own)
    descriptor = os.memfd_create("initrd")
    with open(descriptor, "wb") as file:
        with image().files.open("rb") as files:
            shutil.copyfileobj(files, file, 1 << 20)
        file.write(own.getvalue() + b"".join(_compiled))
        file.flush()
        yield descriptor
