# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all modules document of how they behave, and (by group) which action group they are in."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes; a module overrides the support that differs."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Can run in check mode and predict what a run would do, without running a command that changes anything.
  diff_mode:
    support: full
    description: Will return what has changed (or would change in check mode) when in diff mode.
  platform:
    support: full
    description: The systems that the module works on.
    platforms: linux
  idempotent:
    support: full
    description: When run twice in a row with the same arguments, the second run changes nothing.
"""

    ALL = r"""
attributes:
  action_group:
    support: full
    description: Use C(group/iofabric.sharing.all) in C(module_defaults) to set defaults for all modules.
    membership:
      - iofabric.sharing.all
"""

    SMARTIO = r"""
attributes:
  action_group:
    support: full
    description: Use C(group/iofabric.sharing.smartio) in C(module_defaults) to set defaults for all SmartIO modules.
    membership:
      - iofabric.sharing.all
      - iofabric.sharing.smartio
"""

    CPLANE = r"""
attributes:
  action_group:
    support: full
    description: Use C(group/iofabric.sharing.cplane) in C(module_defaults) to set defaults for the cplane modules.
    membership:
      - iofabric.sharing.all
      - iofabric.sharing.cplane
"""
