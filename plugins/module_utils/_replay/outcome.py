# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of an entry in a pass, and which errors may go away by themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Union

from .._plan import SharingError
from .._smartio.connections import Connection
from .._smartio.errors import TRY_LATER
from .store import BorrowedEntry, CplaneEntry, LentEntry, MountEntry, PairEntry, SriovEntry

Recorded = Union[Connection, SriovEntry, LentEntry, BorrowedEntry, PairEntry, MountEntry, CplaneEntry]

DONE, WAITING, REFUSED = "done", "waiting", "refused"


@dataclass(frozen=True)
class Outcome:
    """``state`` is done, waiting (another pass may bring it) or refused (none will); ``words`` are for people.

    ``is_shared``: the words are about many entries, and name none.
    """

    state: str
    words: str
    is_shared: bool = False


def done(words: str) -> Outcome:
    """The entry is as it was recorded."""
    return Outcome(DONE, words)


def waiting(why: str) -> Outcome:
    """It is not, and may be later."""
    return Outcome(WAITING, why)


def refused(why: str) -> Outcome:
    """It is not, and will not be."""
    return Outcome(REFUSED, why)


def failed(error: SharingError, is_patient: bool = False) -> Outcome:
    """The outcome of an error.

    A device that is in use is refused, unless it may only be looked at by what starts at boot (``is_patient``). An exit
    status that no waiting cures is refused; everything else (a tool that hangs or is missing, a lock) may go away.
    """
    if error.details.get("in_use"):
        return waiting(error.message) if is_patient else refused(error.message)
    status = error.details.get("rc")
    is_final = isinstance(status, int) and status > 0 and status not in TRY_LATER
    return refused(error.message) if is_final else waiting(error.message)


def name_of(entry: Recorded) -> str:
    """How messages name an entry."""
    if isinstance(entry, Connection):
        return f"connection to {entry}"
    if isinstance(entry, SriovEntry):
        return f"virtual functions of {entry.bdf}"
    if isinstance(entry, LentEntry):
        return f"lent device {entry.bdf}"
    if isinstance(entry, BorrowedEntry):
        label = f" (label {entry.label})" if entry.label else ""
        return f"borrowed device {entry.place or entry.fdid}{label}"
    if isinstance(entry, PairEntry):
        return f"peer-to-peer {entry}"
    if isinstance(entry, MountEntry):
        return f"mount {entry.path}"
    return f"control plane {entry.cplane_id}"


def key_of(entry: Recorded) -> str:
    """What tells an entry from all others, and from itself with other settings; the same for every reading of it."""
    if isinstance(entry, BorrowedEntry):
        entry = replace(entry, fdid="")  # a hint only: what the device is stays the same
    return f"{type(entry).__name__} {json.dumps(asdict(entry), sort_keys=True)}"
