# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes over into the corpus what runs have found of interest (`make fuzz-keep`), as few and as small as will do.

An input is kept if it takes the code from one line to another in a way that no seed and no smaller input does. What is
in the corpus already has no privilege. Needs no Atheris.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Optional, Set, Tuple

from .target import CORPUS, FOUND, MODULES, SUFFIX, WORK, Target, load

Step = Tuple[str, int, int]
UNDER_TEST = "/plugins/module_utils/"


class Trace:
    """The steps from line to line of the code under test, in all threads."""

    def __init__(self) -> None:
        self.steps: Set[Step] = set()

    def of(self, run: Callable[[bytes], None], data: bytes) -> Set[Step]:
        """The steps that one input makes."""
        self.steps = set()
        sys.settrace(self._called)
        try:
            run(data)
        finally:
            sys.settrace(None)
        return self.steps

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Optional[Callable[..., Any]]:
        name = frame.f_code.co_filename
        if UNDER_TEST not in name:
            return None
        last = 0

        def line(inner: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                self.steps.add((name, last, inner.f_lineno))
                last = inner.f_lineno
            return line

        return line


def keep(name: str, target: Target) -> str:
    """Choose a target's corpus anew; returns the line about it."""
    trace, known = Trace(), set()
    threading.settrace(trace._called)  # servers start their threads at the first input
    for seed in target.seeds():
        known |= trace.of(target.run, seed)
    known |= set().union(*(trace.of(target.run, path.read_bytes()) for path in (FOUND / name).glob("*" + SUFFIX)))
    place = CORPUS / name
    candidates = [path for folder in (place, WORK / name / "corpus") if folder.is_dir() for path in folder.iterdir()]
    chosen = {}
    for data in sorted({path.read_bytes() for path in candidates}, key=lambda data: (len(data), data)):
        steps = trace.of(target.run, data) - known
        if steps:
            known |= steps
            chosen[hashlib.sha256(data).hexdigest()[:16] + SUFFIX] = data
    threading.settrace(None)  # type: ignore[arg-type]  # which is how it is ended
    _write(place, chosen)
    size = sum(map(len, chosen.values()))
    return f"{name:<14} {len(chosen):>4} inputs of {len(candidates)} kept, {size} bytes"


def _write(place: Path, chosen: "dict[str, bytes]") -> None:
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        if path.name not in chosen:
            path.unlink()
    for name, data in chosen.items():
        (place / name).write_bytes(data)


def main() -> None:
    """All targets, or those that are named."""
    for name in sys.argv[1:] or MODULES:
        print(keep(name, load(name)), flush=True)


if __name__ == "__main__":
    main()
