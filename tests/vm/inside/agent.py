# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inside a guest: runs what is asked for on a virtio-serial port, any number of commands at a time.

One JSON object a line, each way; bytes are in base64.

    host -> guest   {"id": any, "argv": [...], "stdin": bytes, "timeout": seconds}
    guest -> host   {"id": null, "uptime": seconds}                                           once, at the start
                    {"id": any, "rc": int, "stdout": bytes, "stderr": bytes, "seconds": number}

A command that is not done in time is killed with all that it started: its status is then 124.
"""

from __future__ import annotations

import base64
import glob
import json
import os
import signal
import subprocess
import threading
import time
from typing import Any, Dict, Iterator, List

NAME = "iofabric.agent"
_LATE = 124


def _open_port() -> int:
    for path in glob.glob("/sys/class/virtio-ports/*/name"):
        with open(path, encoding="ascii") as file:
            if file.read().strip() == NAME:
                return os.open(f"/dev/{path.split('/')[-2]}", os.O_RDWR)
    raise SystemExit(f"there is no virtio-serial port {NAME}")


class Port:
    """The port, on which several threads answer."""

    def __init__(self) -> None:
        self._port = _open_port()
        self._lock = threading.Lock()

    def send(self, answer: Dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._port, data) :]

    def lines(self) -> Iterator[bytes]:
        parts: List[bytes] = []  # of a line; the kernel gives a page at a time
        while True:
            *ends, rest = os.read(self._port, 1 << 16).split(b"\n")
            for end in ends:
                yield b"".join(parts) + end
                parts = []
            parts.append(rest)


def _run(request: Dict[str, Any]) -> Dict[str, Any]:
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            request["argv"],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return {"rc": 127, "stdout": "", "stderr": _packed(str(error).encode()), "seconds": 0}
    late = False
    try:
        out, err = child.communicate(base64.b64decode(request["stdin"]), request["timeout"])
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(child.pid, signal.SIGKILL)
        try:
            out, err = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            out, err = b"", b"the command cannot be killed"
    seconds = round(time.monotonic() - started, 3)
    status = _LATE if late else child.returncode
    return {"rc": status, "stdout": _packed(out), "stderr": _packed(err), "seconds": seconds}


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main() -> None:
    port = Port()
    with open("/proc/uptime", encoding="ascii") as file:
        port.send({"id": None, "uptime": float(file.read().split()[0])})

    def answer(request: Dict[str, Any]) -> None:
        port.send({"id": request["id"], **_run(request)})

    for line in port.lines():
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
