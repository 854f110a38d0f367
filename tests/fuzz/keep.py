# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes over into the corpus what runs have found of interest (`make fuzz-keep`), as few and as small as will do.

An input is kept if it takes the code from one instruction to another, or so often, as no seed and no smaller input
does. What is in the corpus already has no privilege. Needs no Atheris.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Callable, Optional, Set, Tuple

from .target import CORPUS, FOUND, MODULES, SUFFIX, WORK, Target, load

Step = Tuple[CodeType, int, int]
Feature = Tuple[Step, int]
UNDER_TEST = "/plugins/module_utils/"


class Trace:
    """The steps from instruction to instruction of the code under test, in all threads."""

    def __init__(self) -> None:
        self._steps: Counter[Step] = Counter()

    def of(self, run: Callable[[bytes], None], data: bytes) -> Set[Feature]:
        """The steps that one input makes, each with the magnitude of how often."""
        self._steps = Counter()
        sys.settrace(self.called)
        try:
            run(data)
        finally:
            sys.settrace(None)
        return {(step, count.bit_length()) for step, count in self._steps.copy().items()}

    def called(self, frame: FrameType, _event: str, _arg: Any) -> Optional[Callable[..., Any]]:
        """What sys.settrace wants: how to follow a call; None for code of others."""
        code, last = frame.f_code, -1
        if UNDER_TEST not in code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def step(inner: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "opcode":
                self._steps[(code, last, inner.f_lasti)] += 1
                last = inner.f_lasti
            return step

        return step


def keep(name: str, target: Target) -> str:
    """Choose a target's corpus anew; returns the line about it."""
    trace = Trace()
    known: Set[Feature] = set()
    threading.settrace(trace.called)  # servers start their threads at the first input
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
    threading.settrace(None)
    _write(place, chosen)
    size = sum(map(len, chosen.values()))
    return f"{name:<14} {len(chosen):>4} inputs of {len(candidates)} kept, {size} bytes"


def _write(place: Path, chosen: dict[str, bytes]) -> None:
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
