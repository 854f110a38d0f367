#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell what would keep a node from lending or borrowing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_preflight
short_description: Look for what would keep a SmartIO node from lending or borrowing
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Looks at the kernel module, the tool, the adapter, the pool, the IOMMU, the node id and the CPU, and says of each
    problem what to do. Changes nothing, and does not fail because of a problem.
  - Problems that are not fatal are warnings, too.
options:
  side:
    description:
      - What the node is for. A CPU that cannot lend is a problem of a lender alone.
    type: str
    choices: [lender, borrower]
    required: true
  node_id:
    description:
      - The node id that this node should have (of any adapter). By default it is not checked.
    type: int
  ignore:
    description:
      - Names of problems that are not fatal here.
    type: list
    elements: str
    choices: [module, tool, adapter, pool, node_id, iommu, cpu]
    default: []
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
attributes:
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: Look for problems of a lender
  iofabric.sharing.smartio_preflight:
    side: lender
    node_id: 4
  register: preflight

- name: Stop at the fatal ones
  ansible.builtin.assert:
    that: preflight.problems | selectattr('fatal') | length == 0
    fail_msg: "{{ preflight.problems | selectattr('fatal') | map(attribute='msg') | join('; ') }}"

# Ad hoc: ansible borrowers -m iofabric.sharing.smartio_preflight -a 'side=borrower'
"""

RETURN = r"""
facts:
  description: What was found. What cannot be told is null.
  returned: always
  type: dict
  contains:
    tool:
      description: Path of C(smartio_tool).
      type: str
      sample: /opt/DIS/sbin/smartio_tool
    module:
      description: Name of the kernel module that is loaded.
      type: str
      sample: dis_smartio
    version:
      description: Version of the kernel module, as sysfs tells it.
      type: str
      sample: 5.24.0
    node_ids:
      description: This node's id by adapter number.
      type: dict
      sample: {"0": 8}
    iommu:
      description: Whether an IOMMU is active. Null on a software node.
      type: bool
      sample: true
    cpu:
      description: The CPU with its family and model.
      type: str
      sample: Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz (family 6, model 85)
    kernel:
      description: Release of the kernel.
      type: str
      sample: 6.1.0-18-amd64
problems:
  description: What is wrong, the tool first.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description:
        - C(module), no kernel module is loaded. C(tool), C(smartio_tool) is missing or cannot be run.
        - C(adapter), C(dis_config -gn) tells no adapter. C(pool), C(smartio_tool list) fails.
        - C(node_id), it is another one than expected. C(iommu), none is active.
        - C(cpu), the CPU of a lender is on the vendor's list of those that cannot lend.
      type: str
      sample: module
    fatal:
      description: Whether nothing could work with it. False for C(iommu) and what is in O(ignore).
      type: bool
      sample: true
    msg:
      description: A sentence that says what, where and what to do.
      type: str
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.preflight import (
    BORROWER,
    LENDER,
    PROBLEMS,
    resource,
)


def main() -> None:
    """Run the module."""
    run_module(
        {
            **ARGUMENTS,
            "side": {"type": "str", "choices": [LENDER, BORROWER], "required": True},
            "node_id": {"type": "int"},
            "ignore": {"type": "list", "elements": "str", "choices": list(PROBLEMS), "default": []},
        },
        resource,
    )


if __name__ == "__main__":
    main()
