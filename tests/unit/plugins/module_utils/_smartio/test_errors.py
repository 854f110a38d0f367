# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
from typing import List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import (
    LedgerError,
    ToolError,
    ToolMissing,
    ToolUnreadable,
    ToolUnusable,
    errno_name,
    exited,
    spell,
    status_words,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("status", "name", "words"),
    [
        (5, "EIO", "EIO (5), cannot reach the other node"),
        (12, "ENOMEM", "ENOMEM (12), no buffer, BAR or DMA window could be had"),
        (16, "EBUSY", "EBUSY (16), the device is busy or not available"),
        (19, "ENODEV", "ENODEV (19), no such device"),
        (22, "EINVAL", "EINVAL (22), invalid argument"),
        (1, "EPERM", "EPERM (1), not permitted"),
        (110, "ETIMEDOUT", "ETIMEDOUT (110)"),
        (200, "exit status 200", "exit status 200"),
        (255, "exit status 255", "exit status 255"),
    ],
)
def test_status_words(status: int, name: str, words: str) -> None:
    assert errno_name(status) == name
    assert status_words(status) == words


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (errno.EIO, "check that the other node is up"),
        (errno.EBUSY, "see who holds the device"),
        (errno.ENODEV, "run 'smartio_tool list'"),
        (errno.ENOMEM, "smaller DMA window"),
        (errno.EPERM, "become: true"),
        (errno.EACCES, "become: true"),
        (errno.ENOSPC, "kernel log may hold the reason"),
        (99, "kernel log may hold the reason"),
        (222, "kernel log may hold the reason"),
    ],
)
def test_exited(status: int, advice: str) -> None:
    error = exited(["/opt/DIS/sbin/smartio_tool", "borrow", "80000"], status, "no luck", ["ntb: down"], "")
    assert error.message.startswith(f"'smartio_tool borrow 80000' failed: {status_words(status)}; ")
    assert advice in error.message
    assert error.details == {
        "command": ["/opt/DIS/sbin/smartio_tool", "borrow", "80000"],
        "rc": status,
        "output": "no luck",
        "hint": error.message.partition("; ")[2],
        "errno_name": errno_name(status),
        "kernel_log": ["ntb: down"],
    }
    assert error.errno == status


@given(st.integers(1, 255), st.lists(st.text(), min_size=1, max_size=4), st.text())
def test_a_message_is_one_printable_sentence(status: int, command: List[str], output: str) -> None:
    message = exited(command, status, output, [], "").message
    assert message.isprintable()
    assert errno_name(status) in message
    assert not message.endswith(".")


@pytest.mark.parametrize(
    ("command", "spelled"),
    [
        (["/opt/DIS/sbin/smartio_tool", "list"], "smartio_tool list"),
        (["smartio_tool", "available", "--force", "0000:81:00.0"], "smartio_tool available --force 0000:81:00.0"),
        (["./tool", "a\nb"], "tool 'a\\nb'"),
        (["/"], ""),
    ],
)
def test_spell(command: List[str], spelled: str) -> None:
    assert spell(command) == spelled


@pytest.mark.parametrize("kind", [ToolError, ToolMissing, ToolUnusable, ToolUnreadable, LedgerError])
def test_every_error_is_foreseen(kind: type) -> None:
    assert issubclass(kind, SharingError)
