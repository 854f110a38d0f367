# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all fuzz targets are made of: a function that takes bytes and raises when something is wrong with the code."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Sequence, Tuple, TypeVar

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORPUS = HERE / "corpus"
FOUND = HERE / "found"
WORK = ROOT / ".build" / "fuzz"
SUFFIX = ".bin"
"""Of every input that is kept: without it, tools would take them for text."""

Item = TypeVar("Item")

MODULES = {
    "server": "server",
    "usage": "node_files",
    "client": "client",
    "controller": "controller",
    "proc": "node_files",
    "tool_output": "tool_output",
    "ledger": "records",
    "sharing_json": "records",
    "settings": "records",
    "address": "addresses",
    "lspci_filter": "addresses",
    "wire": "wire",
}
"""Every target, and the module of this folder that has it; what takes longest comes first."""


@dataclass(frozen=True)
class Target:
    """Code under test. ``run`` takes one input, at most ``longest`` bytes; it raises for a bug and returns otherwise.

    ``seeds`` are inputs that are known to reach far, ``words`` what the language under test consists of. ``settle`` is
    called before threads and descriptors are counted, ``close`` when there will be no more inputs.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    longest: int = 4096
    words: Sequence[bytes] = ()
    settle: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


def load(name: str) -> Target:
    """The target of this name, imported only now: what is imported under Atheris is instrumented."""
    module = importlib.import_module(f".{MODULES[name]}", __package__)
    target = getattr(module, name.upper())
    assert isinstance(target, Target)
    return target


def kept(name: str) -> List[Path]:
    """The inputs that the project keeps for a target: its corpus, and what once made it fail."""
    return sorted([*(CORPUS / name).glob("*" + SUFFIX), *(FOUND / name).glob("*" + SUFFIX)])


class Taker:
    """Takes values out of an input, one after the other; an input that has come to its end yields zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether there is anything left."""
        return self._at < len(self._data)

    def raw(self, count: int) -> bytes:
        """So many bytes, fewer at the end."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def number(self, size: int = 1) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.raw(size), "little")

    def flag(self) -> bool:
        """Yes or no."""
        return bool(self.number() & 1)

    def pick(self, items: Sequence[Item]) -> Item:
        """One of at most 256 items."""
        return items[self.number() % len(items)]

    def chunk(self) -> bytes:
        """Some bytes, whose number comes first."""
        return self.raw(self.number())

    def rest(self) -> bytes:
        """All that is left."""
        return self.raw(max(0, len(self._data) - self._at))


def samples(*patterns: Tuple[str, str]) -> Iterator[bytes]:
    """The files that the other tests have as samples: (folder below tests/unit, pattern)."""
    for folder, pattern in patterns:
        found = sorted((ROOT / "tests" / "unit" / folder).glob(pattern))
        assert found, f"there is no {pattern} in {folder}"
        yield from (path.read_bytes() for path in found)
