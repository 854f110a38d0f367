# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's way into a guest: over the socket of the process that runs it, to the agent inside."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any, List, Optional, Tuple

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: guest
short_description: Reach a guest of the tests
description: Runs commands through the agent of a guest that a test has started.
author: The iofabric.sharing contributors (@iofabric)
version_added: 0.1.0
options:
  socket:
    description: The guest's socket.
    type: path
    required: true
    vars:
      - name: guest_socket
  limit:
    description: Seconds after which a command is killed.
    type: float
    default: 120
    vars:
      - name: guest_limit
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """A connection that is made anew for every command."""

    transport = "guest"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def close(self) -> None:
        """Nothing is kept open."""
        self._connected = False

    def exec_command(
        self, cmd: str, in_data: Optional[bytes] = None, sudoable: bool = True
    ) -> Tuple[int, bytes, bytes]:
        """Runs a command; status, output, errors."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._run(["sh", "-c", cmd], in_data or b"")

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copies a file into the guest."""
        super().put_file(in_path, out_path)
        with open(in_path, "rb") as file:
            self._must(["sh", "-c", 'cat > "$0"', out_path], file.read())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copies a file out of the guest."""
        super().fetch_file(in_path, out_path)
        data = self._must(["cat", in_path])
        with open(out_path, "wb") as file:
            file.write(data)

    def _must(self, argv: List[str], data: bytes = b"") -> bytes:
        status, out, err = self._run(argv, data)
        if status:
            raise AnsibleError(f"{argv} failed in the guest with status {status}: {err.decode(errors='replace')}")
        return out

    def _run(self, argv: List[str], data: bytes) -> Tuple[int, bytes, bytes]:
        limit = self.get_option("limit")
        request = {"argv": argv, "stdin": base64.b64encode(data).decode(), "timeout": limit}
        answer = self._ask(request)
        if "error" in answer:
            raise AnsibleConnectionFailure(answer["error"])
        return answer["rc"], base64.b64decode(answer["stdout"]), base64.b64decode(answer["stderr"])

    def _ask(self, request: Any) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(self.get_option("socket"))
                with link.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    return json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise AnsibleConnectionFailure(f"the guest does not answer: {error}") from error
