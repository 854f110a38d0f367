# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every resource shares: the error a person reads, and plans that are made in one place and executed in another."""

from __future__ import annotations


class SharingError(Exception):
    """A failure that was foreseen: one sentence that says what, where and what to do.

    ``details`` are added to a module's result as they are, so their values must be plain data (text, numbers,
    lists, dictionaries).
    """

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
