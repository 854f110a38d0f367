# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of what was granted: written and read back, and every damage told in one sentence."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._replay import store
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import Sharing, StoreError
from hypothesis import given
from hypothesis import strategies as st

FULL: Dict[str, Any] = {
    "format": 1,
    "places": {"tool": "/opt/t", "sysfs": "/s", "proc": "/p", "dev": "/d", "state_dir": "/run/x"},
    "lender": {
        "connections": [{"node_id": 12, "adapter": 0}],
        "sriov": [{"bdf": "0000:81:00.0", "numvfs": 4}],
        "devices": [
            {
                "bdf": "0000:81:00.0",
                "state": "available",
                "serial": None,
                "vendor_id": "144d",
                "device_id": "a80a",
            }
        ],
    },
    "borrower": {
        "devices": [
            {
                "fdid": "48100",
                "label": "scratch",
                "node_id": 4,
                "bdf": "0000:81:00.0",
                "uuid": "u",
                "serial": "S",
                "vendor_id": "144d",
                "device_id": "a80a",
                "dma_window": "512",
            }
        ],
        "p2p": [
            {
                "source": {"node_id": 4, "bdf": "0000:81:00.0"},
                "destination": {"node_id": 8, "bdf": "0000:82:00.0"},
                "bar": None,
            }
        ],
        "mounts": [{"label": "scratch", "path": "/srv"}],
    },
    "cplanes": [
        {
            "cplane_id": 7,
            "controllers": ["claim:scratch", "emu:a?size=64M", "0000:04:00.0", "claim:more"],
            "server": "auto",
            "backend": None,
            "heap_size": None,
            "socket_mode": "0660",
            "socket_group": None,
            "allow_uids": [1],
            "driver": "vfio-pci",
            "homi": "homi",
            "program": None,
            "socket_dir": "/s",
            "state_dir": None,
        }
    ],
}


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    sharing = store.from_json(FULL)
    path = tmp_path / "a" / "sharing.json"
    store.write(str(path), sharing)
    assert json.loads(path.read_text()) == FULL
    assert store.read(str(path)) == sharing
    assert os.listdir(path.parent) == ["sharing.json"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert sharing.cplanes[0].labels == ["scratch", "more"]
    assert (sharing.has_smartio, sharing.is_empty) == (True, False)


def test_nothing_and_what_is_new_are_tolerated(tmp_path: Path) -> None:
    assert store.read(str(tmp_path / "none")) is None
    empty = store.from_json({"format": 1})
    assert empty == Sharing()
    assert (empty.has_smartio, empty.is_empty) == (False, True)
    assert store.from_json(store.to_json(empty)) == empty
    newer = copy.deepcopy(FULL)
    newer["lender"]["devices"][0]["colour"] = "red"
    newer["more"] = [1]
    assert store.from_json(newer) == store.from_json(FULL)
    older = {"format": 1, "lender": {"devices": [{"bdf": "0000:81:00.0"}]}, "borrower": None, "cplanes": None}
    assert store.from_json(older).lent[0].state == "available"


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("format",), 2, "its format is 2"),
        (("format",), True, "its format is True"),
        (("places",), [], "places must be an object"),
        (("places", "tool"), 5, "places.tool must be text"),
        (("lender",), "x", "lender must be an object"),
        (("lender", "devices"), {}, "lender.devices must be a list"),
        (("lender", "devices", 0), 1, r"lender.devices\[0\] must be an object"),
        (("lender", "devices", 0, "bdf"), "81:00.0", r"lender.devices\[0\].bdf must be a PCI address in full"),
        (("lender", "devices", 0, "bdf"), 4860.0, "a PCI address in full"),
        (("lender", "devices", 0, "state"), "lent", "available or unavailable"),
        (("lender", "connections", 0, "node_id"), -1, "a number from 0 on, not -1"),
        (("lender", "connections", 0, "node_id"), True, "a number from 0 on"),
        (("lender", "connections", 0), {}, r"lender.connections\[0\] has no node_id, adapter"),
        (("borrower", "devices", 0, "serial"), "a\nb", "must be text"),
        (("borrower", "p2p", 0, "source"), {"node_id": 4}, r"borrower.p2p\[0\].source has no bdf"),
        (("cplanes", 0, "controllers"), "emu:a", "must be a list"),
        (("cplanes", 0, "allow_uids"), ["root"], r"allow_uids\[0\] must be a number"),
        (("cplanes", 0, "socket_mode"), 432, "must be text"),
    ],
)
def test_damage_is_told(tmp_path: Path, where: Any, value: object, words: str) -> None:
    data: Any = copy.deepcopy(FULL)
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path = tmp_path / "sharing.json"
    path.write_text(json.dumps(data))
    with pytest.raises(StoreError, match=words) as caught:
        store.read(str(path))
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"5", b"[" * 100000, b'{"format": 1'])
def test_what_is_no_such_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sharing.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"{path} is damaged"):
        store.read(str(path))


def test_what_is_no_file_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be read|is not a file"):
        store.read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a file"):
        store.read(str(tmp_path / "pipe"))
    with pytest.raises(StoreError, match="cannot be written"):
        store.write("/proc/nowhere/sharing.json", Sharing())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_whatever_stands_in_it_is_read_or_refused(data: st.DataObject) -> None:
    """No other exception than the one that is told."""
    content: Any = copy.deepcopy(FULL)
    inner = content
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], (dict, list)) or data.draw(st.booleans()):
            inner[key] = data.draw(JSON)
            break
        inner = inner[key]
    try:
        sharing = store.from_json(content)
    except ValueError:
        return
    assert store.from_json(store.to_json(sharing)) == sharing
