# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which local devices this collection put in the pool, for modules that must not take them away under a borrower."""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Mapping

from .host import ARGUMENTS, Places, ledger_store

POOLED_ARGUMENTS: Dict[str, Any] = {"smartio_state_dir": ARGUMENTS["state_dir"]}
"""The argument, beside ``sysfs``, ``proc`` and ``timeout``, of a module that asks for them."""


def pooled_by(params: Mapping[str, Any]) -> Callable[[], FrozenSet[str]]:
    """A function that reads the ledger for the BDFs, for a module with these arguments. Nothing is run."""

    def pooled() -> FrozenSet[str]:
        named = {name: params[name] for name in ("sysfs", "proc", "timeout")}
        places = Places(tool="", dev="", state_dir=params["smartio_state_dir"], **named)
        return ledger_store(places).load().pooled

    return pooled
