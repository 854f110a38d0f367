# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the collection's action plugins hand a program to modules."""

from __future__ import annotations


class ModuleDocFragment:
    """Private options of a module that installs a program on the node."""

    DOCUMENTATION = r"""
options:
  _program_digest:
    description:
      - Set by the collection's action plugin, not for playbooks. The SHA-256 of the program that the collection brings.
    type: str
  _program_source:
    description:
      - Set by the collection's action plugin, not for playbooks. Where it put that program for the taking.
    type: path
"""
