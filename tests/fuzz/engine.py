# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One target under Atheris, in a process of its own: it ends with the process, as libFuzzer has it.

``python -m ansible_collections.iofabric.sharing.tests.fuzz.engine TARGET RUNS [LIBFUZZER-ARGUMENT...]``; the last line
of standard output is JSON: how many executions there were, their seconds of processor, and what is wrong otherwise.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import List

import atheris

from .target import MODULES, Target, load

OUR_OWN = [f"{__package__}.{module}" for module in (*MODULES.values(), "memory_files")]
"""What is not under test: it would take time, and be taken for something of interest."""
_PR_SET_PDEATHSIG = 1


class Counted:
    """Counts executions, and looks once they are all done whether threads or descriptors are left behind."""

    def __init__(self, target: Target, runs: int) -> None:
        self._target = target
        self._runs = runs
        self._count = 0
        self._before = (0, 0)

    def run(self, data: bytes) -> None:
        """Execute one input."""
        self._target.run(data)
        self._count += 1
        if self._count == WARM:
            self._before = self._held()
        if self._count == self._runs:
            result = {"executions": self._count, "processor": time.process_time(), "leaks": self._leaks()}
            print(json.dumps(result), flush=True)

    def _held(self) -> tuple[int, int]:
        self._target.settle()
        return len(threading.enumerate()), len(os.listdir("/proc/self/fd"))

    def _leaks(self) -> List[str]:
        if self._count <= WARM:
            return []
        pairs = zip(("threads", "descriptors"), self._before, self._held())
        return [f"{before} {what} became {after}" for what, before, after in pairs if after > before]


WARM = 100
"""Executions after which everything that is kept for all of them is there."""


def main(name: str, runs: int, arguments: List[str]) -> None:
    """Never returns. Whoever started it may be killed, and is then not to be outlived."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with atheris.instrument_imports(include=["ansible_collections"], exclude=OUR_OWN):
        target = load(name)
    counted = Counted(target, runs)
    atheris.Setup([name, f"-runs={runs}", f"-max_len={target.longest}", *arguments], counted.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
