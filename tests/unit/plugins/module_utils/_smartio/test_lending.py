# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lender's plan for one device: every state, every wish, every option."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Dict, Iterator, List, Optional, Tuple

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import Item
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.lending import (
    STATES,
    LocalDevice,
    Options,
    commands,
    outweigh,
    plan_device,
    refusal,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.model import PoolEntry

BDF = "0000:81:00.0"
REASONS = ("mounted at /srv (nvme0n1p1)", "held by md127")
NEVER = ("it holds /",)


def device(word: Optional[str], **known: object) -> LocalDevice:
    """A device shown with a word; None: not in the pool."""
    entry = None if word is None else PoolEntry("80000", "NVMe", word)
    return replace(LocalDevice(BDF, entry=entry), **known)  # type: ignore[arg-type]


# Words that the tool is not known to print; some of them are states of this collection's own.
UNKNOWN_WORDS = ["in use", "borrowed", "Lent to 8", "", "absent", "lent", "present", "unknown", "Absent", "none"]

DEVICES: Dict[str, LocalDevice] = {
    "absent": device(None),
    "absent, bound": device(None, driver="nvme"),
    "unavailable": device("unavailable", driver="nvme"),
    "unavailable, unbound": device("unavailable"),
    "available": device("available"),
    "available, ours": device("available", lent_here=True),
    "lent": device("in use", lent_here=True),
    "lent, shown unavailable": device("unavailable", lent_here=True),
    "lent, driver kept": device("in use", lent_here=True, driver="nvme", driver_then="nvme"),
    "taken back by hand": device("unavailable", lent_here=True, driver="nvme"),
    "bound meanwhile": device("in use", lent_here=True, driver="nvme"),
    **{f"word {word!r}": device(word) for word in UNKNOWN_WORDS},
    **{f"word {word!r}, bound": device(word, driver="nvme") for word in UNKNOWN_WORDS},
}
USES: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "free": ((), ()),
    "in use": (REASONS, ()),
    "never": ((), NEVER),
    "both": (REASONS, NEVER),
}
OPTIONS = [Options(force, checked, skip) for force, checked, skip in itertools.product((False, True), repeat=3)]


def each(name: str) -> Iterator[Tuple[LocalDevice, str]]:
    """The device in every kind of use, with everything that can be wanted for it."""
    for (reasons, never), want in itertools.product(USES.values(), STATES):
        yield replace(DEVICES[name], reasons=reasons, never=never), want


EVERY = pytest.mark.parametrize("name", list(DEVICES))


def is_unknown(known: LocalDevice) -> bool:
    """Whether the tool shows a word that nothing explains."""
    word = None if known.entry is None else known.entry.word
    return word not in (None, "available", "unavailable") and not known._is_lent(str(word).lower())


def names(item: Item) -> List[str]:
    return [action.command for action in item.actions]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("absent", "absent"),
        ("unavailable", "unavailable"),
        ("unavailable, unbound", "unavailable"),
        ("available", "available"),
        ("available, ours", "available"),
        ("lent", "lent"),
        ("lent, shown unavailable", "lent"),
        ("lent, driver kept", "lent"),
        ("taken back by hand", "unavailable"),
        ("bound meanwhile", "in use"),
        ("word 'in use'", "in use"),
        ("word 'Lent to 8'", "Lent to 8"),
        ("word ''", "unknown"),
    ],
)
def test_state(name: str, state: str) -> None:
    assert DEVICES[name].state == state


@pytest.mark.parametrize("word", ["AVAILABLE", "Available"])
def test_state_whatever_the_case(word: str) -> None:
    assert device(word).state == "available"
    assert device("UN" + word.lower()).state == "unavailable"


@pytest.mark.parametrize("word", UNKNOWN_WORDS)
def test_a_foreign_word_is_no_state_of_ours(word: str) -> None:
    assert device(word).state not in ("absent", "lent", "present", "available", "unavailable")


@pytest.mark.parametrize(
    ("state", "want", "steps"),
    [
        ("absent", "present", ["add"]),
        ("absent", "available", ["add", "available"]),
        ("absent", "unavailable", ["add"]),
        ("absent", "absent", []),
        ("unavailable", "present", []),
        ("unavailable", "available", ["available"]),
        ("unavailable", "unavailable", []),
        ("unavailable", "absent", ["remove"]),
        ("available", "present", []),
        ("available", "available", []),
        ("available", "unavailable", ["unavailable"]),
        ("available", "absent", ["unavailable", "remove"]),
        ("lent", "present", []),
        ("lent", "available", []),
        ("lent", "unavailable", ["unavailable"]),
        ("lent", "absent", ["unavailable", "remove"]),
        ("in use", "present", []),
        ("in use", "available", ["available"]),
        ("in use", "unavailable", ["unavailable"]),
        ("in use", "absent", ["unavailable", "remove"]),
    ],
)
def test_commands(state: str, want: str, steps: List[str]) -> None:
    assert list(commands(want, state)) == steps


@EVERY
def test_what_is_right_costs_no_command(name: str) -> None:
    for known, want in each(name):
        right = {
            "present": not is_unknown(known) and known.entry is not None,
            "available": known.state in ("available", "lent") and not is_unknown(known),
            "unavailable": known.state == "unavailable",
            "absent": known.entry is None,
        }[want]
        for options in OPTIONS:
            if right:
                item = plan_device(known, want, options)
                assert (item.actions, item.error) == ((), None)


@EVERY
def test_never_is_refused_even_with_force(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if known.never:
                assert not {"available", "unavailable"} & set(names(item))


@EVERY
def test_in_use_is_refused_without_force(name: str) -> None:
    """Nothing in use is lent or taken back unless force; a refused device has not been touched at all."""
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if known.in_use and not options.force:
                assert not {"available", "unavailable"} & set(names(item))
            if item.error is not None:
                assert item.actions == ()
                assert item.before == item.after == known.state


@EVERY
def test_a_refusal_for_use_names_every_reason(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            error = refusal(known, want, options)
            if error is not None and "in_use" in error.details:
                reasons = known.never if options.force or known.never else known.reasons
                assert reasons
                assert all(reason in error.message for reason in reasons)
                assert error.message.startswith(f"{BDF} {'must not be touched' if known.never else 'is in use'}: ")
                assert "force" in error.message


@EVERY
def test_taking_back_needs_somebody_who_has_checked(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if "unavailable" in names(item) and known.state == "available":
                assert options.force or options.borrowers_checked
        item = plan_device(known, want, Options())
        if known.state == "available" and want in ("unavailable", "absent") and not known.in_use:
            assert item.error is not None
            assert "borrowers_checked: true" in item.error.message
            assert "force: true" in item.error.message


@EVERY
def test_lent_is_taken_back_only_by_force(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if known.state == "lent" and not options.force:
                assert item.actions == ()
                skipped = options.skip_in_use and known.in_use
                if want in ("unavailable", "absent") and not skipped:
                    assert item.error is not None
                    assert item.error.message.startswith(BDF)


@EVERY
def test_an_unknown_word_is_acted_on_only_by_force(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if is_unknown(known) and not options.force:
                assert item.actions == ()
                if want != "present" and not known.never:
                    assert item.error is not None
                    assert f"[{known.entry.word if known.entry else ''}]" in item.error.message


@EVERY
def test_force_gets_there_unless_never(name: str) -> None:
    for known, want in each(name):
        item = plan_device(known, want, Options(force=True))
        if not known.never:
            assert item.error is None
            good = {"present": {item.after}, "available": {"available", "lent"}}.get(want, {want})
            assert item.after in good


@EVERY
def test_the_plan_is_what_the_commands_lead_to(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            assert item.name == BDF
            assert item.before == outweigh(known, want, options).state
            if not item.actions:
                assert item.after == item.before
            else:
                assert item.after == after(known, item).state
            assert all(BDF in action.words and action.args[0] == BDF for action in item.actions)


def after(known: LocalDevice, item: Item) -> LocalDevice:
    """The device as the tool shows it when every action has succeeded, and as the ledger remembers it."""
    for name in names(item):
        if name == "add":
            known = replace(known, entry=PoolEntry("80000", "NVMe", "unavailable"))
        elif name == "available":
            known = replace(known, entry=PoolEntry("80000", "NVMe", "available"), lent_here=True, driver=None)
            known = replace(known, reasons=(), driver_then=None)
        elif name == "unavailable":
            known = replace(known, entry=PoolEntry("80000", "NVMe", "unavailable"), lent_here=False, driver="nvme")
        else:
            known = replace(known, entry=None, lent_here=False)
    return known


@EVERY
def test_a_second_run_has_nothing_to_do(name: str) -> None:
    for known, want in each(name):
        for options in OPTIONS:
            item = plan_device(known, want, options)
            if item.error is None and not (item.actions == () and item.before != item.after):
                again = plan_device(after(known, item), want, options)
                assert again.actions == ()
                assert (again.before, again.after) == (item.after, item.after)
                assert again.error is None


@pytest.mark.parametrize("want", STATES)
def test_a_driver_is_unbound_by_force_only_where_one_is_bound(want: str) -> None:
    for driver in (None, "nvme"):
        item = plan_device(device(None, driver=driver), want, Options())
        assert [action.args[1] for action in item.actions if action.command == "available"] == (
            [driver is not None] if want == "available" else []
        )


@pytest.mark.parametrize("want", STATES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_doubt_is_never_acted_on(want: str, options: Options) -> None:
    item = plan_device(device(None, doubt="'show' gives no BDF"), want, options)
    assert item.actions == ()
    assert item.error is not None
    assert item.error.message == f"{BDF}: 'show' gives no BDF; nothing was done"


def test_skipping_what_is_in_use() -> None:
    options = Options(skip_in_use=True)
    for reasons, never in ((REASONS, ()), ((), NEVER)):
        item = plan_device(device("unavailable", reasons=reasons, never=never), "available", options)
        assert (item.actions, item.error, item.after) == ((), None, "unavailable")
    # Only use is skipped, other refusals are not.
    assert plan_device(device("odd"), "available", options).error is not None
    assert plan_device(device("available"), "absent", options).error is not None
    assert plan_device(device(None, doubt="x"), "available", options).error is not None


def test_adding_what_is_in_use_changes_nothing_on_it() -> None:
    item = plan_device(device(None, reasons=REASONS, never=NEVER), "present", Options())
    assert (names(item), item.error, item.after) == (["add"], None, "unavailable")


def test_words_for_people() -> None:
    item = plan_device(device(None), "available", Options())
    assert [action.words for action in item.actions] == [f"add {BDF} to the pool", f"make {BDF} available"]
    item = plan_device(device("available"), "absent", Options(borrowers_checked=True))
    assert [action.words for action in item.actions] == [f"take {BDF} back", f"remove {BDF} from the pool"]


def test_in_use_lists_every_reason() -> None:
    assert device("available", reasons=REASONS, never=NEVER).in_use == [*NEVER, *REASONS]
