#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let fabric devices reach each other directly."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_p2p
short_description: Enable or disable peer-to-peer between SmartIO devices
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Runs C(smartio_tool enable-p2p) or C(disable-p2p) on the borrower of two devices.
  - No command lists the pairs. They are remembered in O(state_dir), and count as long as both virtual devices are the
    ones that they were.
options:
  source:
    description: Fabric device id of the device that reads or writes. Quote it.
    type: str
  destination:
    description: Fabric device id of the device that is reached. Quote it.
    type: str
  bar:
    description: Number of the destination's BAR, from 0 to 5. By default the tool chooses.
    type: int
  pairs:
    description: Several pairs in one task.
    type: list
    elements: dict
    suboptions:
      source:
        description: As O(source).
        type: str
        required: true
      destination:
        description: As O(destination).
        type: str
        required: true
      bar:
        description: As O(bar).
        type: int
  state:
    description:
      - Whether the source may reach the destination.
      - A pair ends with its devices. Where one of them is not borrowed there is nothing to disable.
    type: str
    choices: [enabled, disabled]
    default: enabled
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
"""

EXAMPLES = r"""
- name: Let a GPU read from a drive
  iofabric.sharing.smartio_p2p:
    source: "48100"
    destination: "48200"
    bar: 0

- name: Undo two pairs
  iofabric.sharing.smartio_p2p:
    state: disabled
    pairs:
      - {source: "48100", destination: "48200"}
      - {source: "48200", destination: "48100"}
"""

RETURN = r"""
pairs:
  description: One entry for each pair, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    source:
      description: Fabric device id of the source.
      type: str
      sample: "48100"
    destination:
      description: Fabric device id of the destination.
      type: str
      sample: "48200"
    bar:
      description: Number of the BAR.
      type: int
    state:
      description: C(enabled) or C(disabled). Null where the command failed.
      type: str
      sample: enabled
    action:
      description: C(enable-p2p), C(disable-p2p), C(none), or C(pending).
      type: str
      sample: enable-p2p
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
errors:
  description: One entry for each pair that failed, with the sentence, the command and its output.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.p2p import resource


def main() -> None:
    """Run the module."""
    text = {"type": "str", "required": True}
    pair = {"source": text, "destination": text, "bar": {"type": "int"}}
    run_module(
        {
            **ARGUMENTS,
            "source": {"type": "str"},
            "destination": {"type": "str"},
            "bar": {"type": "int"},
            "pairs": {"type": "list", "elements": "dict", "options": pair},
            "state": {"type": "str", "choices": ["enabled", "disabled"], "default": "enabled"},
        },
        on_node(resource),
        mutually_exclusive=[("source", "pairs"), ("destination", "pairs"), ("bar", "pairs")],
        required_one_of=[("source", "pairs")],
        required_together=[("source", "destination")],
    )


if __name__ == "__main__":
    main()
