# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SmartIO tool for somebody who tries without end: a command that hangs costs its limit once, not every time."""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

from .._smartio.command import Finished
from .._smartio.errors import ToolError
from .._smartio.tool import COMMAND_LIMIT, SmartioTool


class Memory:
    """Which commands hung. Within a pass, none of the same kind is tried any more; the one that hung rests for one
    pass, then for two, four and so on, so that what can be had without it is had."""

    def __init__(self) -> None:
        self._pass = 0
        self._hung_now: Dict[str, ToolError] = {}
        self._rests: Dict[Tuple[str, ...], Tuple[int, int, ToolError]] = {}

    def next_pass(self) -> None:
        """A new pass begins."""
        self._pass += 1
        self._hung_now.clear()

    def check(self, args: Tuple[str, ...]) -> None:
        """Raise the error of a command that hung instead of running it."""
        if args[0] in self._hung_now:
            raise self._hung_now[args[0]]
        until, _length, error = self._rests.get(args, (0, 0, None))
        if error is not None and self._pass <= until:
            raise error

    def hung(self, args: Tuple[str, ...], error: ToolError) -> None:
        """A command did not end."""
        length = min(2 * self._rests[args][1], 64) if args in self._rests else 1
        self._hung_now[args[0]] = error
        self._rests[args] = (self._pass + length, length, error)


class CautiousTool(SmartioTool):
    """The commands of one node, less those that are known to hang."""

    def __init__(
        self, path: str, kernel_log: Callable[[List[str]], List[str]], memory: Memory, limit: float = COMMAND_LIMIT
    ) -> None:
        super().__init__(path, kernel_log, limit)
        self._memory = memory

    def _run(self, *args: str) -> Finished:
        self._memory.check(args)
        try:
            return super()._run(*args)
        except ToolError as error:
            self._memory.hung(args, error)
            raise
