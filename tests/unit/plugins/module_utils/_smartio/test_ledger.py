# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Deadline, SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import LedgerError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.ledger import (
    Ledger,
    LedgerStore,
    PairState,
    Stamp,
    pair_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

STAMP = Stamp("a2f0b1c8-0000-4000-8000-000000000000", (4711, 1700000000123456789))
FULL = Ledger(
    connections=[(8, 0), (12, 1)],
    added=["0000:81:00.0", "0000:82:00.0"],
    available={"0000:81:00.0": None, "0000:82:00.0": "nvme"},
    p2p={"80000 80002 -": PairState(True, ("0000:04:05.0@7", "0000:04:06.0@8"))},
    settings={"autoborrow_transparent": "0"},
    scanned=[64],
    borrowed={"80000": None, "80002": "scratch"},
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(0, 1 << 40)
LEDGERS = st.builds(
    Ledger,
    connections=st.lists(st.tuples(NUMBER, NUMBER), max_size=3),
    added=st.lists(TEXT, max_size=3),
    available=st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
    p2p=st.dictionaries(TEXT, st.builds(PairState, st.booleans(), st.tuples(TEXT, TEXT)), max_size=3),
    settings=st.dictionaries(TEXT, TEXT, max_size=3),
    scanned=st.lists(NUMBER, max_size=3),
    borrowed=st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
)
STAMPS = st.builds(Stamp, TEXT, st.tuples(NUMBER, NUMBER))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("state")


@given(ledger=LEDGERS, stamp=STAMPS)
def test_round_trip(folder: Path, ledger: Ledger, stamp: Stamp) -> None:
    LedgerStore(str(folder), stamp).save(ledger)
    assert LedgerStore(str(folder), stamp).load() == ledger


def test_the_whole_ledger_round_trip(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)
    assert store.load() == FULL
    assert sorted(os.listdir(tmp_path)) == ["ledger.json"]


@pytest.mark.parametrize(
    "other",
    [
        Stamp("another boot", STAMP.module),
        Stamp("", STAMP.module),
        Stamp(STAMP.boot_id, (4712, STAMP.module[1])),
        Stamp(STAMP.boot_id, (4711, STAMP.module[1] + 1)),
        None,
    ],
)
def test_valid_for_one_boot_and_one_load_of_the_module(tmp_path: Path, other: Optional[Stamp]) -> None:
    LedgerStore(str(tmp_path), STAMP).save(FULL)
    assert LedgerStore(str(tmp_path), other).load() == Ledger()
    assert LedgerStore(str(tmp_path), STAMP).load() == FULL


def test_without_a_stamp_nothing_is_written(tmp_path: Path) -> None:
    LedgerStore(str(tmp_path), None).save(FULL)
    assert os.listdir(tmp_path) == []


def test_missing(tmp_path: Path) -> None:
    assert LedgerStore(str(tmp_path), STAMP).load() == Ledger()
    assert LedgerStore(str(tmp_path / "none"), STAMP).load() == Ledger()


def test_cut_off_at_every_byte(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)
    whole = (tmp_path / "ledger.json").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "ledger.json").write_bytes(whole[:length])
        assert store.load() == Ledger()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["format", "boot_id", "module", "connections", "added", "available", "p2p", "settings", "scanned", "borrowed"]


@given(data=ANYTHING)
def test_foreign_json(folder: Path, data: object) -> None:
    (folder / "ledger.json").write_text(json.dumps(data))
    assert LedgerStore(str(folder), STAMP).load() == Ledger()


@given(key=st.sampled_from(KEYS[3:]), value=ANYTHING)
@settings(max_examples=200)
def test_a_value_of_another_shape(folder: Path, key: str, value: object) -> None:
    store = LedgerStore(str(folder), STAMP)
    store.save(Ledger())
    data = json.loads((folder / "ledger.json").read_text())
    data[key] = value
    (folder / "ledger.json").write_text(json.dumps(data))
    loaded = store.load()
    if loaded != Ledger():
        store.save(loaded)  # then it is a ledger in every respect
        assert store.load() == loaded


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_missing(tmp_path: Path, key: str) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)
    data = json.loads((tmp_path / "ledger.json").read_text())
    del data[key]
    (tmp_path / "ledger.json").write_text(json.dumps(data))
    assert store.load() == Ledger()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["connections"], [[8]]),
        (["connections"], [[8, 0, 1]]),
        (["connections"], [["8", 0]]),
        (["connections"], [[True, 0]]),
        (["connections"], [[8.0, 0]]),
        (["added"], "0000:81:00.0"),
        (["added"], [1]),
        (["available"], {"0000:81:00.0": 1}),
        (["p2p"], {"1 2 -": {"enabled": True}}),
        (["p2p"], {"1 2 -": {"enabled": True, "vdevs": ["a"]}}),
        (["p2p"], {"1 2 -": [True, ["a", "b"]]}),
        (["borrowed"], ["80000"]),
        (["format"], 2),
        (["module"], "x"),
    ],
)
def test_one_wrong_value_voids_the_ledger(tmp_path: Path, path: List[str], value: object) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)
    data: Any = json.loads((tmp_path / "ledger.json").read_text())
    data[path[0]] = value
    (tmp_path / "ledger.json").write_text(json.dumps(data))
    assert store.load() == Ledger()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[" * 100000, b'{"a":' * 100000, b"9" * 5000, b"\x00" * 10, b"nul"]
)
def test_foreign_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ledger.json").write_bytes(data)
    assert LedgerStore(str(tmp_path), STAMP).load() == Ledger()


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").mkdir()
    store = LedgerStore(str(tmp_path), STAMP)
    assert store.load() == Ledger()
    with pytest.raises(LedgerError, match="cannot be used"):
        store.save(FULL)


def _in_child(work: Callable[[], int]) -> int:
    """Exit status (negative: signal) of work in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def test_killed_between_write_and_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)

    def die(_source: str, _target: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> int:
        monkeypatch.setattr(os, "replace", die)
        store.save(Ledger(scanned=[1]))
        return 0

    assert _in_child(work) == -signal.SIGKILL
    assert store.load() == FULL
    store.save(Ledger(scanned=[2]))
    assert store.load() == Ledger(scanned=[2])


def test_readers_see_the_old_or_the_new_one(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    big = Ledger(scanned=list(range(3000)))
    store.save(FULL)

    def work() -> int:
        for _count in range(30):
            store.save(big)
            store.save(FULL)
        return 0

    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    seen = []
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        seen.append(store.load())
    assert all(ledger in (FULL, big) for ledger in seen)
    assert store.load() == FULL


def test_a_full_disk(tmp_path: Path) -> None:
    """Writing fails as it does on a full disk: the old ledger stays, and nothing raises but a LedgerError."""
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(FULL)

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with contextlib.suppress(LedgerError), store.locked(Deadline(0)):
            assert store.load() == FULL
        try:
            store.save(Ledger())
        except LedgerError:
            return 7
        return 8

    assert _in_child(work) == 7
    assert store.load() == FULL


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, plain_user: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    LedgerStore("state", STAMP).save(FULL)
    (tmp_path / "state" / "ledger.json").chmod(0o644)
    (tmp_path / "state").chmod(0o555)
    (tmp_path / "closed").mkdir(mode=0o555)
    with plain_user():
        store = LedgerStore("state", STAMP)
        assert store.load() == FULL
        with pytest.raises(LedgerError, match="folder state cannot be used: permission denied; run as root"):
            store.save(FULL)
        with pytest.raises(LedgerError, match="give another 'state_dir'"), store.locked(Deadline(0)):
            pass
        with pytest.raises(LedgerError, match="permission denied"), LedgerStore("closed/none", STAMP).locked(
            Deadline(0)
        ):
            pass


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        store = LedgerStore(str(tmp_path / name), STAMP)
        assert store.load() == Ledger()
        with pytest.raises(LedgerError, match="cannot be used"), store.locked(Deadline(0)):
            pass
        with pytest.raises(LedgerError, match="cannot be used"):
            store.save(FULL)


def test_the_folder_is_made(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path / "run" / "smartio"), STAMP)
    with store.locked(Deadline(0)):
        store.save(FULL)
    assert store.load() == FULL


@pytest.mark.parametrize("name", ["ledger.json", "ledger.json.new", "lock"])
def test_a_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    state = tmp_path / "state"
    state.mkdir()
    (state / name).symlink_to(precious)
    store = LedgerStore(str(state), STAMP)
    with contextlib.suppress(LedgerError), store.locked(Deadline(0)):
        store.save(FULL)
    assert precious.read_text() == "precious"


@contextlib.contextmanager
def _held(store: LedgerStore) -> Iterator[int]:
    """The lock, held by another process until the end of the context; yields its pid."""
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end_write)
        with store.locked(Deadline(5)):
            os.write(ready_write, b"x")
            os.read(end_read, 1)
        os._exit(0)
    os.close(end_read)
    os.read(ready_read, 1)
    try:
        yield pid
    finally:
        with contextlib.suppress(BrokenPipeError):
            os.write(end_write, b"x")  # not closed: a process that was forked meanwhile may have it too
        os.waitpid(pid, 0)
        os.close(end_write)
        os.close(ready_read)
        os.close(ready_write)


def test_lock_timeout_names_the_holder(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    with _held(store) as pid:
        start = time.monotonic()
        with pytest.raises(LedgerError) as caught, store.locked(Deadline(0.3)):
            pytest.fail("two hold the lock")
        assert 0.3 <= time.monotonic() - start < 2
    assert f"(pid {pid})" in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert "0.3 seconds" in caught.value.message
    assert "'timeout'" in caught.value.message
    with store.locked(Deadline(0)):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_lock_is_had_when_the_holder_lets_go(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    with _held(store):
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                with store.locked(Deadline(10)):
                    code = 0
            finally:
                os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_lock_dies_with_its_holder(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    with _held(store) as pid:
        os.kill(pid, signal.SIGKILL)
        with store.locked(Deadline(5)):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_lock_is_let_go_after_an_error(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    with pytest.raises(SharingError, match="x"), store.locked(Deadline(0)):
        raise SharingError("x")
    with store.locked(Deadline(0)):
        assert (tmp_path / "lock").exists()


def test_read_modify_write_of_many_processes(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    store.save(Ledger())
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                for count in range(5):
                    with store.locked(Deadline(20)):
                        ledger = store.load()
                        ledger.scanned.append(worker * 100 + count)
                        store.save(ledger)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0, 0]
    assert sorted(store.load().scanned) == sorted(worker * 100 + count for worker in range(4) for count in range(5))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), STAMP)
    before = len(os.listdir("/proc/self/fd"))
    for _count in range(20):
        with store.locked(Deadline(0)):
            store.save(FULL)
        assert store.load() == FULL
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_is_not_inherited(tmp_path: Path) -> None:
    """A grandchild that a tool leaves behind must not hold the lock."""
    store = LedgerStore(str(tmp_path), STAMP)
    with store.locked(Deadline(0)):
        held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _inheritable(int(fd))]
    assert str(tmp_path / "lock") not in held


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_forget_device() -> None:
    ledger = Ledger(
        borrowed={"1": None, "2": "a", "3": "b"},
        p2p={
            pair_key("1", "2", None): PairState(True, ("", "")),
            pair_key("2", "1", 2): PairState(True, ("", "")),
            pair_key("2", "3", 1): PairState(False, ("", "")),
        },
    )
    ledger.forget_device("1")
    ledger.forget_device("unheard")
    assert ledger.borrowed == {"2": "a", "3": "b"}
    assert list(ledger.p2p) == ["2 3 1"]


def test_pair_key() -> None:
    assert pair_key("80000", "80002", None) == "80000 80002 -"
    assert pair_key("80000", "80002", 0) == "80000 80002 0"
