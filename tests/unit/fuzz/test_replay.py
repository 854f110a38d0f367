# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What fuzzing found once stays mended, and what its corpus reaches holds; without Atheris."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import pytest
from ansible_collections.iofabric.sharing.tests.fuzz import target as fuzz

SECONDS = 5.0
"""What one input may take, of the processor."""


def replay(target: fuzz.Target, data: bytes) -> None:
    """Run one input, in bounded time."""
    begin = time.process_time()
    target.run(data)
    assert time.process_time() - begin < SECONDS


def held() -> Tuple[int, int]:
    """How many threads and descriptors there are, without those of what only waits to be collected."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.fixture
def load() -> Iterator[Callable[[str], fuzz.Target]]:
    """Load targets, and close them afterwards: other tests fork, which wants a process without threads."""
    loaded: List[fuzz.Target] = []

    def load_one(name: str) -> fuzz.Target:
        loaded.append(fuzz.load(name))
        return loaded[-1]

    yield load_one
    for target in loaded:
        target.close()


@pytest.mark.parametrize("name", fuzz.MODULES)
def test_seeds_and_corpus(load: Callable[[str], fuzz.Target], name: str) -> None:
    """Every target has seeds and a corpus, and holds for all of them."""
    before = held()
    target = load(name)
    seeds, corpus = list(target.seeds()), sorted((fuzz.CORPUS / name).glob("*" + fuzz.SUFFIX))
    assert seeds
    assert corpus
    for data in [*seeds, *(path.read_bytes() for path in corpus)]:
        assert len(data) <= target.longest
        replay(target, data)
    target.settle()
    target.close()
    assert held() == before


FOUND = [path for name in fuzz.MODULES for path in sorted((fuzz.FOUND / name).glob("*" + fuzz.SUFFIX))]


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_is_mended(load: Callable[[str], fuzz.Target], path: Path) -> None:
    """The input that made a target fail."""
    replay(load(path.parent.name), path.read_bytes())


@pytest.mark.parametrize("folder", [fuzz.CORPUS, fuzz.FOUND])
def test_no_input_is_left_out(folder: Path) -> None:
    """Every kept input belongs to a target, and its name ends as those that are replayed do."""
    files = {path for path in folder.rglob("*") if path.is_file()}
    assert files == {path for name in fuzz.MODULES for path in (folder / name).glob("*" + fuzz.SUFFIX)}
    assert sum(path.stat().st_size for path in files) < 400 << 10
