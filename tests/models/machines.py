# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the state machines share: how many sequences each runs, and counting them."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, Iterator, List, Sequence, Type

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

#: Kinds of sequences; each machine runs its share of what is asked for of its kind, in parts of the sum.
KINDS = {
    "plan": {"lending": 26, "borrowing": 26, "settings": 10, "persist": 8, "driver": 10, "sriov": 10, "cplane": 10},
    "module": {"lenient": 25, "strict": 25, "pci": 25, "cplane": 25},
}
# A sequence of processes that are killed takes long to shrink, and may fail in one moment and not in another.
PHASES = {
    "plan": (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    "module": (Phase.explicit, Phase.reuse, Phase.generate),
}
# What runs where nothing is asked for, as when a single test is started by hand.
_FEW = 100


class Machine(RuleBasedStateMachine):
    """A state machine that counts its sequences."""

    ran = 0

    def __init__(self) -> None:
        super().__init__()
        self._story: List[str] = []

    def teardown(self) -> None:
        type(self).ran += 1

    @contextlib.contextmanager
    def chapter(self, words: str) -> Iterator[None]:
        """A step whose failure tells all steps so far: one that depends on the moment may not fail a second time."""
        self._story.append(words)
        try:
            yield
        except Exception as error:
            steps = "\n".join(self._story)
            raise AssertionError(f"{error}\nThe steps of this sequence:\n{steps}") from error


def in_another_order(items: Sequence[Any], number: int) -> List[Any]:
    """One of the orders that a list can be in."""
    orders = list(itertools.permutations(items))
    return list(orders[number % len(orders)])


def drive(machine: Type[Machine], request: pytest.FixtureRequest, kind: str, steps: int) -> None:
    """Run a machine's share of the sequences; a failure prints the sequence, shrunk, and how to reproduce it."""
    asked = request.config.getoption(f"--{kind}-sequences") or _FEW
    name = request.node.name.removeprefix("test_")
    shares = KINDS[kind]
    share = math.ceil(asked * shares[name] / sum(shares.values()))
    machine.ran = 0
    profile = settings(
        max_examples=share,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=PHASES[kind],
    )
    try:
        run_state_machine_as_test(machine, settings=profile)
    finally:
        counted: Any = (kind, name, machine.ran)
        request.node.user_properties.append(("sequences", counted))
    assert machine.ran >= share, f"{machine.ran} of {share} sequences ran"
