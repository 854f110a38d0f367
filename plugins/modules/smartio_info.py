#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell what is in the SmartIO pool."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_info
short_description: Gather what a node knows of the SmartIO pool
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Reads C(smartio_tool list), C(show) and, on request, C(lspci) and C(get-vdev). Changes nothing.
options:
  fdids:
    description: Only these devices, by fabric device id. Quote them.
    type: list
    elements: str
    aliases: [fdid]
  select:
    description: Only devices with these properties.
    type: dict
    suboptions:
      node_id:
        description: Id of the node that owns the device.
        type: int
      bdf:
        description: PCI address on the node that owns it. Quote it.
        type: raw
      uuid:
        description: UUID of the device.
        type: str
      serial:
        description: Serial number as the tool prints it.
        type: str
      vendor_id:
        description: PCI vendor id, hexadecimal.
        type: str
      device_id:
        description: PCI device id, hexadecimal.
        type: str
      name_regex:
        description: A regular expression that is found in the device's name.
        type: str
  details:
    description: Run C(show) for each device.
    type: bool
    default: true
  lspci:
    description: Run C(smartio_tool lspci) for each device.
    type: bool
    default: false
  borrowed:
    description:
      - Run C(smartio_tool get-vdev) for each device, to tell which ones are borrowed here.
      - Devices that were borrowed here and are not in the pool now (their lender cannot be reached) are listed, too.
    type: bool
    default: false
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
"""

EXAMPLES = r"""
- name: See the whole pool
  iofabric.sharing.smartio_info:
  register: pool

- name: Drives of node 4 that are borrowed here
  iofabric.sharing.smartio_info:
    select: {node_id: 4}
    borrowed: true

# Ad hoc: ansible borrowers -m iofabric.sharing.smartio_info
"""

RETURN = r"""
node_id:
  description: This node's id (of its first adapter). Null where C(dis_config) does not tell.
  returned: always
  type: int
  sample: 8
node_ids:
  description: This node's id by adapter number.
  returned: always
  type: dict
  sample: {"0": 8}
connections:
  description: Connections that were made from this node and are remembered.
  returned: always
  type: list
  elements: dict
borrowed:
  description: Devices that were borrowed here and are remembered, with the label of each (null without one).
  returned: always
  type: list
  elements: dict
  sample: [{"fdid": "48100", "label": "scratch"}]
missing:
  description: Those of O(fdids) that are not in the pool.
  returned: always
  type: list
  elements: str
devices:
  description: The devices in the order of the pool. What the tool does not tell is null.
  returned: always
  type: list
  elements: dict
  contains:
    fdid:
      description: Fabric device id, hexadecimal.
      type: str
      sample: "48100"
    name:
      description: Name in the pool.
      type: str
    state:
      description: The word that C(smartio_tool list) shows. Null for a device that it does not show.
      type: str
      sample: available
    location:
      description: C(local) or C(remote).
      type: str
      sample: remote
    adapter:
      description: Adapter number.
      type: int
    node_id:
      description: Id of the node that owns it.
      type: int
      sample: 4
    bdf:
      description: PCI address on the node that owns it.
      type: str
      sample: "0000:81:00.0"
    slot:
      description: Physical slot.
      type: str
    serial:
      description: Serial number.
      type: str
    uuid:
      description: UUID.
      type: str
    vendor_id:
      description: PCI vendor id.
      type: str
      sample: 10de
    device_id:
      description: PCI device id.
      type: str
    subsystem_vendor_id:
      description: PCI subsystem vendor id.
      type: str
    subsystem_device_id:
      description: PCI subsystem device id.
      type: str
    users:
      description: What the tool calls local users.
      type: int
    label:
      description: The label that the device was borrowed under here.
      type: str
    lspci:
      description: Output of C(smartio_tool lspci), with O(lspci).
      type: str
    borrowed:
      description: Whether it is borrowed here, with O(borrowed). Null where its owner cannot be reached to tell.
      type: bool
    vdev:
      description: PCI address of the virtual device where it is borrowed here, with O(borrowed).
      type: str
    driver:
      description: The driver of the virtual device, with O(borrowed).
      type: str
      sample: nvme
    device_nodes:
      description: Device nodes of the virtual device, with O(borrowed).
      type: list
      elements: str
      sample: [/dev/nvme0, /dev/nvme0n1]
    error:
      description: Why the device could not be looked at.
      type: str
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.claims import SELECT_ARGUMENTS
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.info import resource


def main() -> None:
    """Run the module."""
    run_module(
        {
            **ARGUMENTS,
            "fdids": {"type": "list", "elements": "str", "aliases": ["fdid"]},
            "select": {"type": "dict", "options": SELECT_ARGUMENTS},
            "details": {"type": "bool", "default": True},
            "lspci": {"type": "bool", "default": False},
            "borrowed": {"type": "bool", "default": False},
        },
        on_node(resource),
        mutually_exclusive=[("fdids", "select")],
    )


if __name__ == "__main__":
    main()
