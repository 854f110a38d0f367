#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look for transparent devices."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_scan
short_description: Scan for fabric attached (transparent) SmartIO devices
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Runs C(smartio_tool scan), which puts devices that hang on the fabric without a host into the pool. Scanning again
    looks for changes, so the command is run each time. The task is changed when the pool changed.
options:
  node_id:
    description:
      - Node id that the transparent tree gets. It must be unique in the cluster.
    type: int
    required: true
  adapter:
    description: Number of the local adapter, from 0.
    type: int
    default: 0
  autoborrow:
    description:
      - Set the parameter C(autoborrow_transparent) before the scan, so that what is found is borrowed here at once,
        or not.
    type: bool
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
attributes:
  check_mode:
    support: partial
    details: What a scan finds only the tool knows. The first scan of a tree is predicted to change the pool, a further
      one not to; RV(predicted) is true then.
"""

EXAMPLES = r"""
- name: Put the devices of an expansion chassis into the pool
  iofabric.sharing.smartio_scan:
    node_id: 72
    adapter: 0
    autoborrow: false
"""

RETURN = r"""
node_id:
  description: Node id of the tree.
  returned: always
  type: int
  sample: 72
adapter:
  description: Number of the local adapter.
  returned: always
  type: int
  sample: 0
added:
  description: Fabric device ids that the scan brought into the pool. Null where it is not known.
  returned: always
  type: list
  elements: str
removed:
  description: Fabric device ids that the scan took out of the pool. Null where it is not known.
  returned: always
  type: list
  elements: str
predicted:
  description: Whether the answer is a guess of check mode.
  returned: always
  type: bool
action:
  description: The commands that were run, in order, or C(pending).
  returned: always
  type: str
  sample: config, scan
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.settings import scan_resource


def main() -> None:
    """Run the module."""
    run_module(
        {
            **ARGUMENTS,
            "node_id": {"type": "int", "required": True},
            "adapter": {"type": "int", "default": 0},
            "autoborrow": {"type": "bool"},
        },
        on_node(scan_resource),
    )


if __name__ == "__main__":
    main()
