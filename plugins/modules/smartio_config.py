#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set parameters of the SmartIO kernel module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_config
short_description: Set parameters of the SmartIO kernel module
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Runs C(smartio_tool config) for parameters whose value differs. A value is read from C(module/*/parameters) of
    O(sysfs) where the kernel shows it, else it is what was last set and is remembered in O(state_dir).
options:
  settings:
    description:
      - Parameters with their values. The only one that is publicly known is C(autoborrow_transparent) (0 or 1).
    type: dict
    required: true
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
"""

EXAMPLES = r"""
- name: Borrow transparent devices as they are found
  iofabric.sharing.smartio_config:
    settings:
      autoborrow_transparent: 1
"""

RETURN = r"""
settings:
  description: One entry for each parameter.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the parameter.
      type: str
      sample: autoborrow_transparent
    before:
      description: Value before this run. Null where it was not known.
      type: str
      sample: "0"
    value:
      description: Value after this run. Null where the command failed.
      type: str
      sample: "1"
    action:
      description: C(config), C(none), or C(pending).
      type: str
      sample: config
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
errors:
  description: One entry for each parameter that could not be set, with the sentence, the command and its output.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.settings import config_resource


def main() -> None:
    """Run the module."""
    run_module({**ARGUMENTS, "settings": {"type": "dict", "required": True}}, on_node(config_resource))


if __name__ == "__main__":
    main()
