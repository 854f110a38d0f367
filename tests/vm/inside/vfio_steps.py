# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What test_vfio.py has done inside of a guest: ``python3 vfio_steps.py STEP [ARGUMENT...]``.

The native server and the clients are those of the packed program in /tmp/cplaned.pyz. A step prints one JSON value, or
fails with a traceback.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

PROGRAM = "/tmp/cplaned.pyz"  # noqa: S108 (in the guest)
OUTPUT = "/tmp/cplaned.out"  # noqa: S108
SYS = "/sys/bus/pci"
ID = 7

if TYPE_CHECKING:
    from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import nvme
    from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.client import (
        Connection,
        Status,
        connect,
        socket_path,
    )
    from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.errors import (
        CplaneError,
        DeviceBusy,
        RequestFailed,
    )
    from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.qpair import Attached, Queue
    from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.vfio import check_free
else:
    sys.path.insert(0, PROGRAM)
    from iofabric_sharing._cplane import nvme
    from iofabric_sharing._cplane.client import Connection, connect, socket_path
    from iofabric_sharing._cplane.errors import CplaneError, DeviceBusy, RequestFailed
    from iofabric_sharing._cplane.qpair import Attached
    from iofabric_sharing._cplane.vfio import check_free


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait until something is true; returns it."""
    end = time.monotonic() + seconds
    found = condition()
    while not found:
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
        found = condition()
    return found


# -- drivers ------------------------------------------------------------------------------------------------------


def write(path: str, text: str) -> None:
    """Write an attribute."""
    with open(path, "w") as file:
        file.write(text)


def driver_of(bdf: str) -> Optional[str]:
    """The bound driver's name."""
    try:
        return os.path.basename(os.readlink(f"{SYS}/devices/{bdf}/driver"))
    except FileNotFoundError:
        return None


def bind(driver: str, *bdfs: str) -> Dict[str, Optional[str]]:
    """Give devices to a driver, or ("default") to the one that the kernel chooses."""
    for bdf in bdfs:
        if driver_of(bdf):
            write(f"{SYS}/devices/{bdf}/driver/unbind", bdf)
        write(f"{SYS}/devices/{bdf}/driver_override", "\n" if driver == "default" else driver)
        write(f"{SYS}/drivers_probe", bdf)
    return {bdf: driver_of(bdf) for bdf in bdfs}


def kernel_reads(bdf: str, start: str, nbytes: str) -> str:
    """SHA-256 of what the kernel's own driver finds on a disk, past its cache."""

    def disk() -> Optional[str]:
        try:
            name = os.listdir(f"{SYS}/devices/{bdf}/nvme")[0]
            return next(entry for entry in os.listdir("/dev") if entry == f"{name}n1")
        except (FileNotFoundError, IndexError, StopIteration):
            return None

    fd = os.open("/dev/" + until(disk, f"a disk of {bdf}"), os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, int(nbytes)) as buffer:
        done = os.preadv(fd, [buffer], int(start))
        os.close(fd)
        assert done == int(nbytes)
        return hashlib.sha256(buffer[:]).hexdigest()


# -- the server ---------------------------------------------------------------------------------------------------


def start(*arguments: str) -> Dict[str, Any]:
    """Start a server, and wait until it answers; returns its pid and how long that took."""
    begin = time.monotonic()
    with open(OUTPUT, "wb") as output:
        server = subprocess.Popen(
            [sys.executable, PROGRAM, "serve", *arguments, "--homi-id", str(ID)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def ready() -> bool:
        assert server.poll() is None, said()
        return "started" in said()

    until(ready, "the server")
    return {"pid": server.pid, "seconds": round(time.monotonic() - begin, 2), "said": said()}


def refused(*arguments: str) -> str:
    """What a server says that cannot start."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "serve", *arguments, "--homi-id", "8"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done
    return done.stdout.decode()


def said() -> str:
    """What the server wrote."""
    with open(OUTPUT) as file:
        return file.read()


def state(pid: int) -> str:
    """The state of a process, empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stop(pid: str, number: int = signal.SIGTERM) -> Dict[str, Any]:
    """End a server, and wait until nothing of it is left; returns how long that took."""
    begin = time.monotonic()
    os.kill(int(pid), number)
    until(lambda: state(int(pid)) in ("", "Z"), "the end of the server")
    return {"seconds": round(time.monotonic() - begin, 2), "said": said()}


# -- clients ------------------------------------------------------------------------------------------------------


def identify(attached: Attached, connection: Connection, cns: int, nsid: int) -> bytes:
    """Identify into a buffer; the data."""
    buffer = connection.alloc_buf(nvme.PAGE)
    attached.heap[buffer : buffer + nvme.PAGE] = b"\xaa" * nvme.PAGE
    completion = attached.admin(nvme.command(nvme.IDENTIFY, nsid, buffer, cdw10=cns, cid=0x1234))
    assert (completion.status, completion.cid) == (0, 0x1234), completion
    data = bytes(attached.heap[buffer : buffer + nvme.PAGE])
    connection.free_buf(buffer)
    return data


def do(queue: Queue, opcode: int, lba: int, buffer: int, nbytes: int, cid: int = 0) -> None:
    """One transfer of whole blocks of 512 bytes."""
    queue.transfer(opcode, 1, lba, nbytes // 512, buffer, nbytes, cid)
    completion = queue.wait(30)
    assert (completion.status, completion.cid) == (0, cid), completion


def failure(call: Callable[..., object], *arguments: int) -> int:
    """The status that a request fails with."""
    try:
        call(*arguments)
    except RequestFailed as error:
        return error.status
    raise AssertionError("it did not fail")


def session(index: str, serial: str, start: str) -> Dict[str, Any]:
    """Everything that a client can do with a controller; returns what it wrote, at byte ``start``."""
    place = int(index)
    with connect(ID) as connection:
        status = connection.status(place)
        assert status.nsq_total == status.ncq_total == 64
        assert failure(connection.alloc_ioqpair, place, 16) == -107
        with Attached(connection, place) as attached:
            check_records(attached, status)
            check_admin(attached, connection, serial)
            check_queue_commands(attached, connection)
            written = check_transfers(attached, connection, int(start) // 512)
            check_limits(attached, connection, place)
        return written


class Recording(Connection):
    """A connection that keeps what goes over it, byte for byte."""

    def __init__(self) -> None:
        super().__init__(socket_path(ID))
        self.log: List[Dict[str, Any]] = []

    def _send(self, data: bytes, fds: Any, deadline: Any) -> None:
        self.log.append({"request": data.hex()})
        super()._send(data, fds, deadline)

    def _receive(self, fds: List[int], deadline: Any) -> bytes:
        reply = super()._receive(fds, deadline)
        self.log[-1].update(reply=reply.hex(), fds=len(fds))
        return reply


def converse() -> List[Dict[str, Any]]:
    """A session with two controllers, as bytes: all that a client without a GPU can ask, and what is refused."""
    recording = Recording()
    with recording as connection:
        connection.status(0)
        connection.status(1)
        assert failure(connection.alloc_ioqpair, 0, 16) == -107
        with Attached(connection, 0) as first, Attached(connection, 1) as second:
            identify(first, connection, 1, 0)
            identify(second, connection, 0, 1)
            assert first.admin(nvme.command(nvme.GET_FEATURES, cdw10=7)).dw0 == 63 << 16 | 63
            assert second.admin(nvme.command(0x7F)).status & 0x7FF == 1
            buffer = connection.alloc_buf(4096)
            queue, other = first.queue_pair(64), second.queue_pair(2)
            do(queue, nvme.READ, 0, buffer, 4096)
            do(other, nvme.READ, 0, buffer, 512)
            connection.status(0)
            connection.status(1)
            queue.close()
            assert failure(connection.free_ioqpair, 0, queue.pair.qid) < 0
            assert failure(connection.alloc_ioqpair, 0, 0) < 0
            other.close()
            connection.free_buf(buffer)
            assert failure(connection.free_buf, buffer) < 0
        connection.status(0)
    return recording.log


def check_records(attached: Attached, status: Status) -> None:
    """What lies in the heap, and the registers."""
    record, descriptor, bar0 = attached.record, attached.descriptor, attached.bar0
    assert record.bdf == status.bdf
    assert record.cap == bar0[nvme.CAP] | bar0[nvme.CAP + 1] << 32
    assert record.cc == bar0[nvme.CC] == nvme.CC_ENABLED
    assert record.timeout_ms == (record.cap >> 24 & 0xFF) * 500
    assert bar0[nvme.CSTS] == nvme.CSTS_RDY
    assert (descriptor.kind, descriptor.base_addr, descriptor.nbytes) == (2, 0, len(attached.heap))
    assert record.heap_nbytes == len(attached.heap)


def check_admin(attached: Attached, connection: Connection, serial: str) -> None:
    """Identify, features, a log page, an error of the controller."""
    data = identify(attached, connection, 1, 0)
    assert data[4:24].decode().strip() == serial
    blocks = struct.unpack_from("<Q", identify(attached, connection, 0, 1))[0]
    assert blocks == 64 << 20 >> 9
    assert attached.admin(nvme.command(nvme.GET_FEATURES, cdw10=7)).dw0 == 63 << 16 | 63
    buffer = connection.alloc_buf(512)
    assert attached.admin(nvme.command(nvme.GET_LOG_PAGE, 0xFFFFFFFF, buffer, cdw10=127 << 16 | 2)).status == 0
    assert 273 < struct.unpack_from("<H", attached.heap, buffer + 1)[0] < 400, "the temperature"
    connection.free_buf(buffer)
    assert attached.admin(nvme.command(0x7F)).status & 0x7FF == 1


def check_queue_commands(attached: Attached, connection: Connection) -> None:
    """They are the server's."""
    buffer = connection.alloc_buf(65536)
    queue = attached.queue_pair(16)
    assert queue.pair.qid >= 2
    for command, status in (
        (nvme.command(nvme.DELETE_SQ, cdw10=queue.pair.qid), nvme.OPERATION_DENIED),
        (nvme.command(nvme.DELETE_CQ, cdw10=queue.pair.qid), nvme.INVALID_QUEUE_DELETION),
        (nvme.command(nvme.DELETE_CQ, cdw10=60), nvme.INVALID_QUEUE_ID),
        (nvme.command(nvme.CREATE_CQ, prp1=buffer, cdw10=15 << 16 | 60, cdw11=1), nvme.OPERATION_DENIED),
        (nvme.command(nvme.SET_FEATURES, cdw10=7, cdw11=0), nvme.COMMAND_SEQUENCE_ERROR),
        (nvme.command(nvme.ASYNC_EVENT), nvme.ASYNC_EVENT_LIMIT),
    ):
        assert attached.admin(command).status == status, command
    queue.submit(nvme.command(nvme.FLUSH, 1))
    assert queue.wait(30).status == 0
    queue.close()
    connection.free_buf(buffer)


def check_transfers(attached: Attached, connection: Connection, lba: int) -> Dict[str, Any]:
    """One page, two pages, PRP lists, around the ends of shallow and deep queues; the last pattern stays."""
    nbytes = 1 << 20
    source, target = connection.alloc_buf(nbytes), connection.alloc_buf(nbytes)
    shallow, deep = attached.queue_pair(2), attached.queue_pair(1024)
    assert shallow.pair.qid != deep.pair.qid
    for number, size in enumerate((512, 4096, 8192, 12288, 65536, 512 << 10)):
        pattern = hashlib.sha256(os.urandom(8)).digest() * (size // 32)
        attached.heap[source : source + size] = pattern
        attached.heap[target : target + size] = bytes(size)
        do(shallow, nvme.WRITE, lba, source, size, number)
        do(deep, nvme.READ, lba, target, size, 60000 + number)
        assert attached.heap[target : target + size] == pattern, size
    for number in range(300):
        do(shallow, nvme.READ, lba, target, 4096, number)
    burst(deep, lba, target)
    pattern = hashlib.sha256(os.urandom(8)).digest() * (nbytes // 32)
    attached.heap[source : source + nbytes] = pattern
    for at in range(0, nbytes, 256 << 10):
        do(deep, nvme.WRITE, lba + at // 512, source + at, 256 << 10)
    # An address that is not there: the controller says so.
    deep.transfer(nvme.READ, 1, 1 << 40, 1, target, 512)
    assert deep.wait(30).status & 0x7FF == 0x80
    for queue in (shallow, deep):
        queue.close()
    for buffer in (source, target):
        connection.free_buf(buffer)
    return {"sha256": hashlib.sha256(pattern).hexdigest(), "nbytes": nbytes}


def burst(queue: Queue, lba: int, target: int) -> None:
    """Many entries under way at once, twice around the queue."""
    for _turn in range(5):
        for number in range(500):
            queue.submit(nvme.command(nvme.READ, 1, target, cdw10=lba + number % 8, cdw12=0, cid=number))
        assert sorted(queue.wait(60).cid for _number in range(500)) == list(range(500))


def check_limits(attached: Attached, connection: Connection, index: int) -> None:
    """Depths, and memory that is cleared."""
    for depth in (0, 1, 1025):
        assert failure(connection.alloc_ioqpair, index, depth) == -22
    buffer = connection.alloc_buf(1 << 20)
    assert not any(attached.heap[buffer : buffer + (1 << 20)])
    attached.heap[buffer : buffer + 4096] = b"\xff" * 4096
    connection.free_buf(buffer)
    again = connection.alloc_buf(1 << 20)
    assert not any(attached.heap[again : again + (1 << 20)])


def two(*arguments: str) -> List[Any]:
    """Two clients at once, each with a controller of its own."""
    half = len(arguments) // 2
    clients = [
        subprocess.Popen([sys.executable, __file__, "session", *part], stdout=subprocess.PIPE)
        for part in (arguments[:half], arguments[half:])
    ]
    outputs = [client.communicate(timeout=240)[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0]
    with connect(ID) as connection:
        assert [connection.status(index).nqueues for index in (0, 1)] == [0, 0]
    return [json.loads(output) for output in outputs]


def hold(count: str) -> None:
    """Take queue pairs of every controller, keep them busy, and stay; for one that will be killed."""
    with connect(ID) as connection:
        attached = [Attached(connection, index) for index in range(connection.status(0).ndevs)]
        queues = [one.queue_pair(16) for one in attached for _number in range(int(count))]
        buffer = connection.alloc_buf(4096)
        sys.stdout.write("held\n")
        sys.stdout.flush()
        while True:
            for queue in queues:
                do(queue, nvme.READ, 0, buffer, 4096)


def holder(count: int) -> subprocess.Popen[bytes]:
    """Start one in the background; returns when it holds what it wants."""
    client = subprocess.Popen([sys.executable, __file__, "hold", str(count)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"held\n"
    return client


def killed(count: str) -> Dict[str, Any]:
    """A client that is killed leaves no queue behind: not in the books, and not on the controllers."""
    client = holder(int(count))
    with connect(ID) as connection:
        held = connection.status(0).nqueues
        client.kill()
        client.wait()
        until(lambda: connection.status(0).nclients == 0, "the end of the client")
        until(lambda: connection.status(0).nqueues == 0, "the end of its queues")
        with Attached(connection, 0) as attached:
            # The controller refuses to create what it still has.
            again = [attached.queue_pair(16) for _number in range(int(count))]
            found = sorted(queue.pair.qid for queue in again)
            again[0].submit(nvme.command(nvme.FLUSH, 1))
            assert again[0].wait(30).status == 0
    return {"held": held, "qids": found}


# -- DMA ----------------------------------------------------------------------------------------------------------


def physical(memory: mmap.mmap, address: int) -> int:
    """Where a page of this process lies in the guest's memory (pagemap, as root)."""
    memory[0] = memory[0]
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // 4096 * 8)
        entry = int.from_bytes(file.read(8), "little")
    assert entry >> 63
    return (entry & (1 << 55) - 1) * 4096


def victim(beyond: int) -> Tuple[mmap.mmap, int]:
    """A page of this process whose physical address no heap reaches."""
    kept = []
    while True:
        memory = mmap.mmap(-1, 4096)
        kept.append(memory)
        place = physical(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        if place > beyond:
            return memory, place


def stray(index: str, lba: str) -> Dict[str, Any]:
    """Have a controller write to, and read from, memory of the guest that is not in the heap.

    A page of this process has a physical address that a controller without an IOMMU in front would reach.
    """
    block = int(lba)
    with connect(ID) as connection, Attached(connection, int(index)) as attached:
        memory, place = victim(len(attached.heap) + (1 << 20))
        memory[:] = b"V" * 4096
        buffer = connection.alloc_buf(4096)
        queue = attached.queue_pair(16)
        attached.heap[buffer : buffer + 4096] = b"D" * 4096
        do(queue, nvme.WRITE, block, buffer, 4096)
        statuses = []
        for opcode, start in ((nvme.READ, block), (nvme.WRITE, block + 8)):
            queue.submit(nvme.command(opcode, 1, place, cdw10=start, cdw12=7))
            statuses.append(queue.wait(30).status)
        admin = attached.admin(nvme.command(nvme.IDENTIFY, 0, place, cdw10=1)).status
        do(queue, nvme.READ, block + 8, buffer, 4096)
        return {
            "place": place,
            "untouched": memory[:] == b"V" * 4096,
            "leaked": b"VVVV" in bytes(attached.heap[buffer : buffer + 4096]),
            "statuses": statuses,
            "admin": admin,
        }


# -- a controller that goes ---------------------------------------------------------------------------------------


def watch(path: str, close: str) -> Dict[str, Any]:
    """Work on two controllers until a file is there; what became of either is written beside it.

    Whether what failed is closed: to close a device that was pulled can take the kernel more than a minute.
    """
    with connect(ID) as connection:
        attached = [Attached(connection, index) for index in (0, 1)]
        queues = [one.queue_pair(16) for one in attached]
        buffer = connection.alloc_buf(4096)
        found: Dict[str, Any] = {"errors": [None, None], "done": [0, 0], "after": [0, 0]}
        while not os.path.exists(path):
            for index in (0, 1):
                if found["errors"][index]:
                    continue
                try:
                    do(queues[index], nvme.READ, 0, buffer, 4096)
                except CplaneError as error:
                    found["errors"][index] = error.message
                    found["statuses"] = [failure(connection.alloc_ioqpair, index, 16), connection.try_status(index)[1]]
                    queues[index].close()
                    if int(close):
                        attached[index].close()
                found["done"][index] += 1
                found["after"][index] += any(found["errors"])
            write(path + ".new", json.dumps(found))
            os.replace(path + ".new", path + ".found")
        return found


def background(*arguments: str) -> int:
    """Run a step in the background, with its output in /tmp/STEP.out."""
    with open(f"/tmp/{arguments[0]}.out", "wb") as output:  # noqa: S108
        client = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    return client.pid


def power_off(port: str) -> None:
    """Take the power from a slot, as somebody who pulls a device without asking."""
    path = f"{SYS}/devices/{port}/config"
    with open(path, "r+b", buffering=0) as config:
        head = config.read(256)
        place = head[0x34]
        while head[place] != 0x10:
            place = head[place + 1]
        config.seek(place + 0x18)
        control: int = struct.unpack("<H", config.read(2))[0]
        config.seek(place + 0x18)
        config.write(struct.pack("<H", control | 0x0700))


# -- again and again ----------------------------------------------------------------------------------------------


def turns(count: str, *arguments: str) -> Dict[str, Any]:
    """Start a server, use it and stop it, so many times; what was written is read in the next turn."""
    last, times = b"", []
    for turn in range(int(count)):
        server = start(*arguments)
        with connect(ID) as connection, Attached(connection, 0) as attached:
            buffer = connection.alloc_buf(4096)
            queue = attached.queue_pair(16)
            if last:
                do(queue, nvme.READ, 2048, buffer, 4096)
                assert attached.heap[buffer : buffer + 4096] == last, turn
            last = os.urandom(4096)
            attached.heap[buffer : buffer + 4096] = last
            do(queue, nvme.WRITE, 2048, buffer, 4096)
        times.append([server["seconds"], stop(str(server["pid"]))["seconds"]])
    return {"times": times, "said": said(), "sha256": hashlib.sha256(last).hexdigest()}


def crash(*arguments: str) -> Dict[str, Any]:
    """Kill a server whose client stays: the next one cannot start and says why, until the client is gone, too."""
    server = start(*arguments)
    group = os.path.basename(os.readlink(f"{SYS}/devices/{arguments[0]}/iommu_group"))
    check_free(arguments[0], server=server["pid"])
    client = holder(2)
    try:
        check_free(arguments[0], server=server["pid"])
        preflight: object = []
    except DeviceBusy as error:
        preflight = error.details["holders"]
    stop(str(server["pid"]), signal.SIGKILL)
    words = refused(*arguments)
    client.kill()
    client.wait()
    again = start(*arguments)
    return {
        "client": client.pid,
        "node": f"/dev/vfio/{group}",
        "preflight": preflight,
        "words": words,
        "pid": again["pid"],
    }


STEPS: Dict[str, Callable[..., object]] = {
    step.__name__: step
    for step in (
        *(
            bind,
            kernel_reads,
            start,
            refused,
            said,
            stop,
            session,
            converse,
            two,
            hold,
            killed,
            stray,
            watch,
            background,
        ),
        *(power_off, turns, crash),
    )
}


def main() -> None:
    """Run one step."""
    json.dump(STEPS[sys.argv[1]](*sys.argv[2:]), sys.stdout)


if __name__ == "__main__":
    main()
