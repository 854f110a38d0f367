# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the fuzz targets (`make fuzz`), each for so many executions, and says at the end whether all of them held.

Each starts from its seeds, the corpus that the project keeps, what earlier runs here found of interest, and what once
made it fail. What is new lies in .build/fuzz/TARGET/corpus afterwards; `make fuzz-keep` takes over what is worth it.
An input that fails lies in .build/fuzz/TARGET with the traceback in .build/fuzz/TARGET/log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List

from .target import CORPUS, FOUND, MODULES, WORK, Target, load

INPUT_SECONDS = 10
"""How long one execution may take, on a machine that may be busy."""
TARGET_SECONDS = 600
MEMORY_MIB = 1024
NAMES = ("crash-", "timeout-", "oom-")
DONE = re.compile(r"#[0-9]+\s+DONE\s+cov: ([0-9]+) ft: [0-9]+ corp: ([0-9]+)/([0-9]+[KMG]?b)")
FINAL = re.compile(r'^\{"executions": .*\}$', re.MULTILINE)


class Run:
    """One target's process, and what became of it."""

    def __init__(self, name: str, runs: int, seed: int) -> None:
        self.name = name
        self._runs = runs
        self._seed = seed
        self._place = WORK / name
        self._log = self._place / "log"
        self._old: set[Path] = set()
        self.problems: List[str] = []

    def execute(self) -> str:
        """Run it to its end; returns the line about it."""
        target = load(self.name)
        self._prepare(target)
        begin = time.monotonic()
        status = self._call(target)
        seconds = time.monotonic() - begin
        text = self._log.read_text("utf-8", "replace")
        done, final = DONE.search(text), FINAL.search(text)
        result: Dict[str, object] = json.loads(final.group()) if final else {}
        self._judge(status, result)
        coverage, count, size = done.groups() if done else ("?", "?", "?")
        line = f"{self.name:<14} {result.get('executions', 0):>8} executions {seconds:>6.1f} s"
        line += f" ({result.get('processor', 0.0):>5.1f} s of processor)"
        new = len(list((self._place / "corpus").iterdir()))
        line += f"   coverage {coverage:>5}   corpus {count:>5} ({size}, {new} of them not kept yet)"
        # Without the lines of progress.
        said = [one for one in text.splitlines() if not one.startswith(("#", "INFO:"))]
        return "\n  ".join([line, *self.problems, *(said[-40:] if self.problems else ())])

    def _prepare(self, target: Target) -> None:
        shutil.rmtree(self._place / "seeds", ignore_errors=True)
        for folder in ("seeds", "corpus"):
            (self._place / folder).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.seeds()):
            assert len(seed) <= target.longest, f"{self.name}: seed {number} has {len(seed)} bytes"
            (self._place / "seeds" / str(number)).write_bytes(seed)
        words = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.words]
        (self._place / "words").write_text("".join(f'"{word}"\n' for word in words))
        self._old = set(self._failing())

    def _call(self, target: Target) -> int:
        arguments = [f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={self._place}/"]
        arguments += ["-reload=0", f"-seed={self._seed}", *([f"-dict={self._place / 'words'}"] if target.words else [])]
        places = [self._place / "corpus", self._place / "seeds", CORPUS / self.name, FOUND / self.name]
        command = [sys.executable, "-m", f"{__package__}.engine", self.name, str(self._runs), *arguments]
        command += [str(place) for place in places if place.is_dir()]
        # In memory where there is such a place: some targets write a file for each input.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the name in it is made up
        with self._log.open("wb") as log, tempfile.TemporaryDirectory(prefix="f", dir=memory) as folder:
            try:
                return subprocess.run(
                    command,
                    env={**os.environ, "TMPDIR": folder},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=TARGET_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                self.problems.append(f"FAILED: was ended after {TARGET_SECONDS} s")
                return 1

    def _failing(self) -> List[Path]:
        return [path for path in self._place.iterdir() if path.name.startswith(NAMES)]

    def _judge(self, status: int, result: Dict[str, object]) -> None:
        for path in sorted(set(self._failing()) - self._old):
            kept = FOUND / self.name / f"{path.name}.bin"
            self.problems.append(f"FAILED: mend it, and keep its input: mv {path} {kept}")
        if status and not self.problems:
            self.problems.append(f"FAILED: its process ended with status {status}")
        if result.get("executions") != self._runs:
            self.problems.append(f"FAILED: {result.get('executions', 0)} executions, not {self._runs}")
        leaks = result.get("leaks") or []
        assert isinstance(leaks, list)
        self.problems += [f"FAILED: it leaks: {leak}" for leak in leaks]


def main() -> int:
    """Run what is asked for; 0 if all of it held."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=100000, help="executions of each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets that run at once")
    parser.add_argument("--seed", type=int, default=0, help="where chance starts, 0 for another place every time")
    parser.add_argument("targets", nargs="*", choices=[[], *MODULES], help="all of them by default")
    chosen = parser.parse_args()
    begin = time.monotonic()
    runs = [Run(name, chosen.runs, chosen.seed) for name in chosen.targets or MODULES]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for line in pool.map(Run.execute, runs):
            print(line, flush=True)
    failed = [run.name for run in runs if run.problems]
    held, seconds = len(runs) - len(failed), time.monotonic() - begin
    print(f"fuzz: {held} of {len(runs)} targets held, {chosen.runs} executions each, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
