# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a node remembers things in: the ledger and sharing.json, truncated, foreign, older or damaged."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Iterator

from ...plugins.module_utils._replay import store
from ...plugins.module_utils._replay.merge import Change, forget, remember
from ...plugins.module_utils._replay.store import StoreError
from ...plugins.module_utils._smartio.ledger import Ledger, LedgerStore, PairState, Stamp
from .target import Target

STAMP = Stamp("a2f0b1c8", (4711, 17))
FULL = Ledger(
    connections=[(8, 0)],
    added=["0000:81:00.0"],
    available={"0000:81:00.0": None, "0000:82:00.0": "nvme"},
    serials={"0000:81:00.0": "S1"},
    p2p={"80000 80002 -": PairState(True, ("0000:04:05.0@7", "0000:04:06.0@8"))},
    settings={"autoborrow_transparent": "0"},
    scanned=[64],
    borrowed={"80000": None, "80002": "scratch"},
)
SHARING = {
    "format": 1,
    "places": {"tool": "/opt/DIS/sbin/smartio_tool"},
    "lender": {
        "connections": [{"node_id": 8, "adapter": 0}],
        "sriov": [{"bdf": "0000:5e:00.0", "numvfs": 4}],
        "devices": [{"bdf": "0000:81:00.0", "state": "available", "serial": "S1", "vendor_id": "144d"}],
    },
    "borrower": {
        "devices": [
            {"fdid": "80000", "label": "scratch", "node_id": 4, "bdf": "0000:81:00.0", "uuid": "u", "dma_window": "1G"},
            {"fdid": "80002", "node_id": 4, "bdf": "0000:82:00.0", "label": None},
        ],
        "p2p": [
            {
                "source": {"node_id": 4, "bdf": "0000:81:00.0"},
                "destination": {"node_id": 4, "bdf": "0000:82:00.0"},
                "bar": None,
            }
        ],
        "mounts": [{"label": "scratch", "path": "/mnt"}],
    },
    "cplanes": [{"cplane_id": 7, "controllers": ["emu:a", "claim:scratch"], "allow_uids": [0]}],
}


def _folder() -> str:
    """One folder for all inputs, in memory where there is such a place: it is written to hundreds of times a second."""
    made = tempfile.TemporaryDirectory(prefix="fuzz", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)  # noqa: S108
    _KEPT.append(made)
    return made.name


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def run_ledger(data: bytes) -> None:
    """A ledger that cannot be read is an empty one; one that can be is written and read as the same."""
    folder = _KEPT[0].name if _KEPT else _folder()
    path = Path(folder, "ledger.json")
    path.write_bytes(data)
    ledgers = LedgerStore(folder, STAMP)
    found = ledgers.load()
    assert LedgerStore(folder, None).load() == Ledger()
    stamp = ledgers.written_for()
    if found == Ledger():
        return
    assert stamp == STAMP
    assert found.pooled == set(found.added) | set(found.available)
    ledgers.save(found)
    assert ledgers.load() == found
    for fdid in list(found.borrowed):
        found.forget_device(fdid)
    assert not found.borrowed
    other = Stamp(STAMP.boot_id, (STAMP.module[0], STAMP.module[1] + 1))
    assert LedgerStore(folder, other).load() == Ledger()


def run_sharing(data: bytes) -> None:
    """What cannot be read is an error that names the file; what can be is written and read as the same."""
    try:
        found = store.parse("/etc/iofabric/sharing.json", data)
    except StoreError as error:
        assert error.message.startswith("/etc/iofabric/sharing.json is damaged")
        assert error.message.isprintable()
        return
    text = store.to_text(found)
    again = store.parse("again", text.encode())
    assert again == found
    assert store.to_text(again) == text
    assert found.is_empty == (not found.has_smartio and not found.cplanes)
    kept, unknown = remember(found, Change())
    assert not unknown
    assert remember(kept, Change()) == (kept, [])
    assert forget(kept, Change()) == kept


def ledger_seeds() -> Iterator[bytes]:
    """A whole one, its first half, one of an older version, one of another boot, and what is none."""
    with tempfile.TemporaryDirectory() as folder:
        LedgerStore(folder, STAMP).save(FULL)
        whole = Path(folder, "ledger.json").read_bytes()
    plain = json.loads(whole)
    yield whole
    yield whole[: len(whole) // 2]
    yield json.dumps({**plain, "boot_id": "other"}).encode()
    yield json.dumps({name: value for name, value in plain.items() if name != "serials"}).encode()
    yield json.dumps({**plain, "added": [], "available": {}, "p2p": {}}, separators=(",", ":")).encode()
    yield b"[]"
    yield b'{"format": 1, "boot_id": "a2f0b1c8", "module": [4711, 17]}'


def sharing_seeds() -> Iterator[bytes]:
    """Likewise."""
    whole = json.dumps(SHARING).encode()
    yield whole
    yield whole[: len(whole) // 2]
    yield json.dumps({**SHARING, "format": 2}).encode()
    yield json.dumps({**SHARING, "lender": None, "cplanes": {}}).encode()
    yield b'{"format": 1}'
    yield b"\xff"
    yield store.to_text(store.Sharing()).encode()


_WORDS = ["null", "true", "-1", "0", "1e400", "NaN", '"', "[]", "{}", '"\\ud800"', '"\\u0000"', "[" * 20, "9" * 40]
LEDGER = Target(run_ledger, ledger_seeds, words=[*(word.encode() for word in _WORDS), b"boot_id", b"4711", b"vdevs"])
SHARING_JSON = Target(
    run_sharing,
    sharing_seeds,
    words=[*(word.encode() for word in _WORDS), b'"0000:81:00.0"', b'"claim:a"', b'"numvfs"', b'"bar"', b'"node_id"'],
)
