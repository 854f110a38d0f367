# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a node remembers things in, truncated, foreign, older or damaged: ledger, sharing.json, settings."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from ...plugins.module_utils._cplane.cplaned import read_settings
from ...plugins.module_utils._cplane.errors import ConfigError
from ...plugins.module_utils._cplane.listener import Access
from ...plugins.module_utils._replay import store
from ...plugins.module_utils._replay.merge import Change, forget, remember
from ...plugins.module_utils._replay.store import StoreError
from ...plugins.module_utils._smartio.ledger import Ledger, LedgerStore, PairState, Stamp
from .target import Taker, Target

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


SETTINGS_PLAIN = {"socket_mode": "0600", "socket_group": "0", "allow_uids": [0, 4242], "allow_gids": [777]}
_MARK = b"\0"
"""What an input starts with that changes a whole record, rather than being the bytes of one."""
_VALUES: Tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1,
    1.5,
    (1 << 32) - 1,
    99999999999,
    1 << 80,
    "",
    "0",
    "99999999999",
    "\u00b2",
    "\udc80",
    [],
    {},
)


def content(data: bytes, whole: object) -> bytes:
    """The bytes of a file: the input itself, or the record with some of its values replaced as the input says."""
    if not data.startswith(_MARK):
        return data
    taker, plain = Taker(data[1:]), copy.deepcopy(whole)
    for _change in range(1 + taker.number() % 3):
        container, key = taker.pick(list(_slots(plain)) or [([None], 0)])
        if taker.number() % 8 == 0:
            del container[key]
        else:
            container[key] = _value(taker)
    return json.dumps(plain).encode()


def _slots(plain: object) -> Iterator[Tuple[Any, Any]]:
    """Every place of a value, as its container and key."""
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in pairs:
        yield plain, key
        yield from _slots(value)


def _value(taker: Taker) -> object:
    kind = taker.number() % 24
    if kind < len(_VALUES):
        return copy.copy(_VALUES[kind])
    if kind < len(_VALUES) + 2:
        return [_value(taker) for _item in range(taker.number() % 3)]
    if kind < len(_VALUES) + 4:
        return {taker.chunk().decode("utf-8", "replace"): _value(taker) for _item in range(taker.number() % 3)}
    return taker.chunk().decode("utf-8", "replace") if kind % 2 else taker.number(taker.number() % 12)


_MADE: List[tempfile.TemporaryDirectory[str]] = []


def _folder() -> str:
    """One folder for all inputs."""
    if not _MADE:
        _MADE.append(tempfile.TemporaryDirectory(prefix="f"))
    return _MADE[0].name


def run_ledger(data: bytes) -> None:
    """A ledger that cannot be read is an empty one; one that can be is written and read as the same."""
    folder = _folder()
    Path(folder, "ledger.json").write_bytes(content(data, _plain_ledger()))
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
        found = store.parse("/etc/iofabric/sharing.json", content(data, SHARING))
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


def run_settings(data: bytes) -> None:
    """Settings of a server that runs: they are right and can be given to its socket, or they are refused."""
    path = Path(_folder(), "settings.json")
    path.write_bytes(content(data, SETTINGS_PLAIN))
    try:
        access = read_settings(str(path), Access())
        assert access.allows(0, 0)
        access.apply(str(path))
    except ConfigError as error:
        assert error.message.isprintable()
        return
    assert path.stat().st_mode & 0o7777 == access.mode <= 0o777


def settings_seeds() -> Iterator[bytes]:
    """Right and wrong ones."""
    yield json.dumps(SETTINGS_PLAIN).encode()
    yield from (_MARK + bytes((0, place % 7, 1, value, 2, 1, 3)) for place, value in enumerate(range(24)))
    yield b'{"socket_group": null}'
    yield b'{"socket_group": "no such group"}'
    yield b'{"socket_group": 0}'
    yield b'{"socket_mode": 432}'
    yield b"[]"


@functools.lru_cache
def _plain_ledger() -> Dict[str, object]:
    """The whole ledger, as it is written."""
    LedgerStore(_folder(), STAMP).save(FULL)
    found: Dict[str, object] = json.loads(Path(_folder(), "ledger.json").read_bytes())
    return found


def ledger_seeds() -> Iterator[bytes]:
    """A whole one, its first half, one of an older version, one of another boot, and what is none."""
    plain = _plain_ledger()
    whole = json.dumps(plain).encode()
    yield whole
    yield from (_MARK + bytes((0, place, 1, value, 2, 1, 3)) for place, value in enumerate(range(24)))
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
    yield from (_MARK + bytes((0, place, 1, value, 2, 1, 3)) for place, value in enumerate(range(24)))
    yield whole[: len(whole) // 2]
    yield json.dumps({**SHARING, "format": 2}).encode()
    yield json.dumps({**SHARING, "lender": None, "cplanes": {}}).encode()
    yield b'{"format": 1}'
    yield b"\xff"
    yield store.to_text(store.Sharing()).encode()


_WORDS = ["null", "true", "-1", "0", "1e400", "NaN", '"', "[]", "{}", '"\\ud800"', '"\\u0000"', "[" * 20, "9" * 40]
LEDGER = Target(run_ledger, ledger_seeds, words=[*(word.encode() for word in _WORDS), b"boot_id", b"4711", b"vdevs"])
SETTINGS = Target(
    run_settings,
    settings_seeds,
    longest=2048,
    words=[
        *(word.encode() for word in _WORDS),
        b'"socket_group"',
        b"4294967295",
        b"99999999999",
        b"\xc2\xb2",
        b'"0_7"',
    ],
)
SHARING_JSON = Target(
    run_sharing,
    sharing_seeds,
    words=[*(word.encode() for word in _WORDS), b'"0000:81:00.0"', b'"claim:a"', b'"numvfs"', b'"bar"', b'"node_id"'],
)
