# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every resource shares: the error a person reads, and plans that are made in one place and executed in another.

A resource observes its node once, plans without touching anything, and applies the plan. ``changed``, the diff, check
mode and execution all read the same :class:`Plan`, so that what check mode predicts is what a run does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple


class SharingError(Exception):
    """A failure that was foreseen: one sentence that says what, where and what to do.

    ``details`` are added to a module's result as they are, so their values must be plain data (text, numbers,
    lists, dictionaries).
    """

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        # What a tool or a person wrote may hold anything; a message is one line that a terminal can show.
        self.message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in message)
        self.details = details


@dataclass(frozen=True)
class Action:
    """One changing command: its name, its arguments, and the words that a person reads."""

    command: str
    args: Tuple[object, ...]
    words: str


@dataclass(frozen=True)
class Item:
    """One element of what is wanted, and what is to be done about it.

    ``before`` and ``after`` are the element's state in words, for the diff. An element with an ``error`` was refused
    or could not be resolved: it has no actions and nothing of it has been touched.
    """

    name: str
    before: str
    after: str
    actions: Tuple[Action, ...] = ()
    error: Optional[SharingError] = None


@dataclass
class Outcome:
    """What became of an item: the commands that were run (in check mode: would be), and the error that ended it."""

    item: Item
    done: List[Action] = field(default_factory=list)
    error: Optional[SharingError] = None

    @property
    def action(self) -> str:
        """The commands by name, in order, or ``none``."""
        return ", ".join(action.command for action in self.done) or "none"


@dataclass(frozen=True)
class Plan:
    """What is to be done, element by element, in order."""

    items: Tuple[Item, ...]

    def predict(self) -> List[Outcome]:
        """What :meth:`apply` would do if every command succeeds; runs nothing."""
        return [Outcome(item, list(item.actions), item.error) for item in self.items]

    def apply(self, perform: Callable[[Action], None]) -> List[Outcome]:
        """Run every action through ``perform``; an element that fails ends there, and the next ones go on."""
        return [_apply_item(item, perform) for item in self.items]


def _apply_item(item: Item, perform: Callable[[Action], None]) -> Outcome:
    outcome = Outcome(item, error=item.error)
    for action in item.actions:
        try:
            perform(action)
        except SharingError as error:
            outcome.error = error
            break
        outcome.done.append(action)
    return outcome


@dataclass
class Report:
    """A module's answer before Ansible's words are put around it.

    ``results`` are the module's own return values; ``errors`` name each element that failed; ``before`` and ``after``
    hold a line an element, for the diff.
    """

    results: Dict[str, object]
    changed: bool = False
    errors: List[Tuple[str, SharingError]] = field(default_factory=list)
    before: List[str] = field(default_factory=list)
    after: List[str] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Resource:
    """What a module manages. ``run`` observes and plans, and applies unless its argument (check) is true.

    ``what`` names the elements in a failure, such as "devices".
    """

    what: str
    run: Callable[[bool], Report]


def run_plan(plan: Plan, check: bool, perform: Callable[[Action], None]) -> Tuple[Report, List[Outcome]]:
    """Predict or apply a plan whose commands are their own proof, and start the report of it."""
    outcomes = plan.predict() if check else plan.apply(perform)
    report = Report({})
    for outcome in outcomes:
        item = outcome.item
        report.before.append(f"{item.name}: {item.before}")
        report.after.append(f"{item.name}: {item.before if outcome.error else item.after}")
        report.changed = report.changed or bool(outcome.done)
        if outcome.error is not None:
            report.errors.append((item.name, outcome.error))
    return report, outcomes


def failure_sentence(errors: Sequence[Tuple[str, SharingError]], total: int, what: str) -> str:
    """One sentence for all failed elements: the first one's own words, and how many more there are."""
    name, first = errors[0]
    text = first.message if name in first.message or not name else f"{name}: {first.message}"
    if total == 1:
        return text
    return f"{len(errors)} of {total} {what} failed: " + "; ".join([text, *_others(errors[1:])])


def _others(errors: Sequence[Tuple[str, SharingError]]) -> List[str]:
    texts = [e.message if name in e.message else f"{name}: {e.message}" for name, e in errors[:7]]
    if len(errors) > 7:
        texts.append(f"and {len(errors) - 7} more (see errors)")
    return texts


def describe_error(name: str, error: SharingError) -> Dict[str, object]:
    """An element's failure as plain data for the ``errors`` list of a result."""
    described: Dict[str, object] = {"element": name, "msg": error.message}
    described.update(error.details)
    return described


class Deadline:
    """A point on the monotonic clock that all waiting of one run shares."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds that remain, never below zero."""
        return max(0.0, self._end - self._clock())

    def pauses(
        self, first: float = 0.05, most: float = 2.0, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[bool]:
        """Pace the tries of a loop, with growing pauses between them; yields whether a try is the last one.

        There is always a first try, and the last one comes when the time is just up.
        """
        pause, last = first, False
        while not last:
            last = self.left() <= 0
            yield last
            sleep(min(pause, self.left()))
            pause = min(pause * 1.6, most)
