# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that can be switched on, at the start (``faults`` of the configuration) or at run time.

=================  =====================================================================================================
slow=SECONDS       every command of the tools takes that much longer
settle=SECONDS     what ``available``, ``borrow`` and ``return`` do becomes visible only so much later
busy=FDID|all      borrowing answers EBUSY, at the lender and at the borrower
fail=COMMAND:ERRNO the command answers that errno and does nothing; ``:N`` behind it: only the next N times
garble=COMMAND     the command works, its output does not: binary; ``:truncated`` or ``:megabytes`` for the other kinds
hang=COMMAND       the tool hangs and ignores SIGTERM; ``:child`` leaves a child behind that holds the output open
ask=COMMAND        the command asks a question on its standard input, even with --force
link_down=NODE     connections from and to that node are refused; ``:drop``: they are silent instead
killed             the daemon is gone, as after a power loss
clear              all of the above off; ``NAME=`` switches one off
=================  =====================================================================================================

COMMAND is a command of smartio_tool, ``dis_config``, ``disinfo`` or ``all``.
"""

from __future__ import annotations

import errno
import threading
from typing import Dict, Iterable, List, Optional, Tuple

from .address import parse_fdid
from .errors import ConfigError

SECONDS = ("slow", "settle")
SETS = ("busy", "fail", "garble", "hang", "ask", "link_down")
_VARIANTS = {
    "garble": ("binary", "truncated", "megabytes"),
    "hang": ("alone", "child"),
    "link_down": ("refuse", "drop"),
}


def _errno(text: str) -> int:
    value = getattr(errno, text, None) if text.startswith("E") else (int(text) if text.isdigit() else None)
    if not isinstance(value, int) or not 0 < value < 256:
        raise ConfigError(f"fault: fail: {text!r} is not an errno (EBUSY, or 16)")
    return value


class Faults:
    """The faults that are on. Safe to use from any thread."""

    def __init__(self, pairs: Iterable[Tuple[str, str]] = ()) -> None:
        self._lock = threading.Lock()
        self._seconds: Dict[str, float] = {}
        self._sets: Dict[str, Dict[str, str]] = {}
        for name, value in pairs:
            self.set(name, value)

    def set(self, name: str, value: str) -> None:
        """Switches one fault on; an empty value switches it off. ConfigError names what is wrong."""
        with self._lock:
            if name in SECONDS:
                self._seconds[name] = _seconds(name, value) if value else 0.0
            elif name in SETS:
                if value:
                    key, setting = _setting(name, value)
                    self._sets.setdefault(name, {})[key] = setting
                else:
                    self._sets.pop(name, None)
            else:
                known = ", ".join(SECONDS + SETS)
                raise ConfigError(f"fault: {name!r} is unknown (known: {known}, killed, clear)")

    def clear(self) -> None:
        """All faults off."""
        with self._lock:
            self._seconds.clear()
            self._sets.clear()

    def seconds(self, name: str) -> float:
        """``slow`` or ``settle``."""
        with self._lock:
            return self._seconds.get(name, 0.0)

    def variant(self, name: str, key: str) -> Optional[str]:
        """The kind of ``garble``, ``hang``, ``ask`` or ``link_down`` that is on for a command or node, or None."""
        with self._lock:
            values = self._sets.get(name, {})
            return values.get(key, values.get("all"))

    def busy(self, fdid: int) -> bool:
        """Whether borrowing a device must answer EBUSY."""
        return self.variant("busy", f"{fdid:x}") is not None

    def fail(self, command: str) -> int:
        """The errno that a command must answer, or 0; counts down when the fault is limited."""
        with self._lock:
            values = self._sets.get("fail", {})
            key = command if command in values else "all"
            if key not in values:
                return 0
            number, _colon, count = values[key].partition(":")
            if count:
                left = int(count) - 1
                if left:
                    values[key] = f"{number}:{left}"
                else:
                    del values[key]
            return int(number)

    def links_down(self) -> List[int]:
        """The nodes that are cut off."""
        with self._lock:
            return [int(key) for key in self._sets.get("link_down", {})]

    def describe(self) -> str:
        """One line a fault that is on."""
        with self._lock:
            lines = [f"{name}={value:g}" for name, value in sorted(self._seconds.items()) if value]
            for name in sorted(self._sets):
                for key, value in sorted(self._sets[name].items()):
                    lines.append(f"{name}={key}" + (f":{value}" if value else ""))
        return "".join(line + "\n" for line in lines)


def _seconds(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 3600:
        raise ConfigError(f"fault: {name}={value} must be seconds from 0 to 3600")
    return number


def _setting(name: str, value: str) -> Tuple[str, str]:
    key, _colon, rest = value.partition(":")
    if name == "busy":
        try:
            return ("all" if key == "all" else f"{parse_fdid(key):x}"), ""
        except ValueError as error:
            raise ConfigError(f"fault: busy={value}: {error}") from None
    if name == "fail":
        number, _colon, count = rest.partition(":")
        if count and not (count.isdigit() and int(count)):
            raise ConfigError(f"fault: fail={value}: {count!r} is not how often to fail")
        return key, f"{_errno(number)}" + (f":{count}" if count else "")
    if name == "link_down" and not key.isdigit():
        raise ConfigError(f"fault: link_down={value}: {key!r} is not a node id")
    if name == "ask":
        return key, rest
    kinds = _VARIANTS[name]
    if rest and rest not in kinds:
        raise ConfigError(f"fault: {name}={value}: {rest!r} is not one of {', '.join(kinds)}")
    return key, rest or kinds[0]
