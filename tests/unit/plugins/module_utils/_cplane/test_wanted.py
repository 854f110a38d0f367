# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module call asks of a server."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import errors, wanted
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from hypothesis import given
from hypothesis import strategies as st

BORROWED = {"scratch": ["0000:04:00.0", "0000:03:00.0"], "empty": []}


def asked(**changes: Any) -> wanted.Wanted:
    element: Dict[str, Any] = {
        "cplane_id": 7,
        "controllers": ["emu:a"],
        "server": "auto",
        "manager": "auto",
        "socket_mode": "0660",
    }
    return wanted.wanted_from({**element, **changes}, lambda label: BORROWED[label])


def test_what_is_left_out_is_the_servers_own_choice() -> None:
    one = asked()
    assert (one.controllers, one.emulated, one.socket_mode) == (("emu:a",), True, "0660")
    assert (one.backend, one.heap_size, one.socket_group, one.allow_uids) == (None, None, None, ())


@given(st.permutations(["emu:a?size=1M", "emu:b", "81:00.0", "0000:81:00.0", "claim:scratch", "emu:b"]))
def test_controllers_are_a_set(controllers: List[str]) -> None:
    one = asked(controllers=controllers)
    assert one.controllers == ("0000:03:00.0", "0000:04:00.0", "0000:81:00.0", "emu:a?size=1M", "emu:b")
    assert one.uris[:3] == one.controllers[:3]
    assert all(uri.startswith("ffff:") for uri in one.uris[3:])


def test_a_label_that_holds_nothing_is_not_there_yet() -> None:
    with pytest.raises(errors.NotYet, match="'empty'"):
        asked(controllers=["emu:a", "claim:empty"])


def test_one_emulated_controller_with_two_configurations_is_refused() -> None:
    with pytest.raises(SharingError, match="named twice"):
        asked(controllers=["emu:a?size=1M", "emu:a"])


@pytest.mark.parametrize("mode", ["660", "0660"])
def test_a_mode_is_text(mode: str) -> None:
    assert asked(socket_mode=mode).socket_mode == "0660"


@pytest.mark.parametrize("mode", [432, 660, "rw", "0888", "01660", "", None, "\u0660660"])
def test_what_is_no_mode_is_refused(mode: Any) -> None:
    with pytest.raises(SharingError, match="quote it"):
        asked(socket_mode=mode)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("80M", 80 << 20),
        ("80MiB", 80 << 20),
        ("1g", 1 << 30),
        (" 2 ".strip() + "K", 2048),
    ],
)
def test_sizes(text: Any, nbytes: int) -> None:
    assert asked(heap_size=text).heap_size == nbytes


@pytest.mark.parametrize("text", ["0", "-1", "1.5M", "much", "", "1P", "1 M"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SharingError, match="heap_size"):
        asked(heap_size=text)


@given(st.integers())
def test_only_ids_that_clients_can_name(number: int) -> None:
    if 1 <= number < 2**32:
        assert wanted.check_id(number) == number
        return
    with pytest.raises(SharingError, match="cplane_id"):
        wanted.check_id(number)


@pytest.mark.parametrize(
    ("written", "uri"),
    [("81:00.0", "0000:81:00.0"), ("FFFF:FF:1F.7", "ffff:ff:1f.7"), ("10000:e1:00.0", "10000:e1:00.0"), ("x/y", "x/y")],
)
def test_uris(written: str, uri: str) -> None:
    assert wanted.uri_of(written) == uri
