#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lend this node's devices, or take them back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_device
short_description: Manage a lender's PCIe devices in the SmartIO pool
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Puts local PCIe devices into the SmartIO pool, makes them available for borrowing, takes them back, removes them.
  - A device that is in use on this node is refused, with every reason, before anything of it is touched. See O(force).
  - A lender cannot see whether a device is borrowed, so taking back needs O(borrowers_checked) or O(force).
  - A device that this collection made available, that has been left alone since, and that C(smartio_tool list) shows
    with another word than C(available), is C(lent). That is right for O(state=available).
  - A state word that nobody knows is reported as it stands and never acted on without O(force).
options:
  bdf:
    description:
      - PCI address of one device, as C(lspci -s) takes it. The short-hand C("81:") will do where only one device
        matches.
      - Quote it. YAML reads an unquoted C(81:00.0) as a number, which is refused.
    type: raw
  filter:
    description:
      - All devices that C(lspci) lists for this filter, such as C(-d 10de:) or C(-s 81:).
      - It is resolved from O(sysfs) on the node. C(lspci) need not be installed.
    type: str
  select:
    description:
      - All devices of this node with these properties.
    type: dict
    suboptions: &select
      vendor_id:
        description: PCI vendor id, hexadecimal, such as C("144d").
        type: str
      device_id:
        description: PCI device id, hexadecimal.
        type: str
      class:
        description: The first digits of the PCI class code, such as C("0108") for NVMe controllers.
        type: str
      serial:
        description: Serial number, of the NVMe controller or the PCI Express capability.
        type: str
      name_regex:
        description: A regular expression that is found in the device's name (pool, C(pci.ids), or NVMe model).
        type: str
  devices:
    description:
      - Several devices in one task, each by O(devices[].bdf), O(devices[].filter) or O(devices[].select).
      - Elements that want one device in different states fail, and nothing that they name is touched for their sake.
    type: list
    elements: dict
    suboptions:
      bdf:
        description: PCI address, as O(bdf).
        type: raw
      filter:
        description: An lspci filter, as O(filter).
        type: str
      select:
        description: A selection, as O(select).
        type: dict
        suboptions: *select
      state:
        description: What is wanted of this element; O(state) by default.
        type: str
        choices: [present, available, unavailable, absent]
  state:
    description:
      - V(present), in the pool; whether it is available is left as it is.
      - V(available), in the pool and open for borrowing; the local driver is unbound.
      - V(unavailable), in the pool (added if missing) and closed; the local driver is bound again.
      - V(absent), not in the pool.
    type: str
    choices: [present, available, unavailable, absent]
    default: available
  borrowers_checked:
    description:
      - Somebody has made sure that no borrower holds the devices. Needed to take back an available device.
    type: bool
    default: false
  force:
    description:
      - Act on devices that are in use, that may be borrowed, or whose state word is not known.
      - The disk of C(/), C(/boot) or active swap, the interface of the default route or of this connection, bridges
        and the fabric's own adapter are refused all the same.
    type: bool
    default: false
  on_in_use:
    description:
      - What to do about a device that is in use on this node. V(skip) leaves it alone and reports it without a failure.
    type: str
    choices: [fail, skip]
    default: fail
  allow_empty:
    description:
      - Accept a filter or selection that matches nothing, and an empty list.
    type: bool
    default: false
  purge:
    description:
      - Remove from the pool those devices of this node that this collection added and that are not named here.
      - Nothing is purged when any element failed or was refused. Devices that came with a scan are exempt.
    type: bool
    default: false
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
"""

EXAMPLES = r"""
- name: Lend a drive
  iofabric.sharing.smartio_device:
    bdf: "81:00.0"

- name: Lend all NVIDIA GPUs that are not in use
  iofabric.sharing.smartio_device:
    filter: "-d 10de:"
    on_in_use: skip

- name: One task for a whole node, everything else that was added leaves the pool
  iofabric.sharing.smartio_device:
    purge: true
    devices:
      - bdf: "0000:81:00.0"
      - select: {class: "0108", vendor_id: "144d"}
      - bdf: "c1:00.0"
        state: present

- name: Take a drive back after every borrower has returned it
  iofabric.sharing.smartio_device:
    bdf: "81:00.0"
    state: absent
    borrowers_checked: true

# Ad hoc: ansible lenders -m iofabric.sharing.smartio_device -a 'bdf=81:00.0'
"""

RETURN = r"""
devices:
  description: One entry for each device, in the order given; purged ones come last.
  returned: always
  type: list
  elements: dict
  contains:
    bdf:
      description: PCI address in full.
      type: str
      sample: "0000:81:00.0"
    fdid:
      description: Fabric device id, hexadecimal. Null where the device is not in the pool.
      type: str
      sample: "48100"
    name:
      description: The device's name in the pool.
      type: str
      sample: Non-Volatile memory controller Intel Corporation Device f1a5
    before:
      description: State before this run. C(absent), C(unavailable), C(available), C(lent), or the tool's own word.
      type: str
      sample: unavailable
    state:
      description: State after this run (in check mode, as it would be).
      type: str
      sample: available
    driver_before:
      description: The driver that was bound before this run.
      type: str
      sample: nvme
    driver:
      description: The driver that is bound now. Null for none, and in check mode where only a run can tell.
      type: str
    in_use:
      description: Every reason why the device is in use on this node.
      type: list
      elements: str
      sample: ["mounted at /srv (nvme0n1p1)"]
    action:
      description: The commands that were run (in check mode would be), in order, C(none), or C(pending).
      type: str
      sample: add, available
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
errors:
  description: One entry for each element that failed or was refused, with the sentence and its details.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.lending import STATES, resource


def main() -> None:
    """Run the module."""
    text = {"type": "str"}
    select = {"vendor_id": text, "device_id": text, "class": text, "serial": text, "name_regex": text}
    element = {"bdf": {"type": "raw"}, "filter": text, "select": {"type": "dict", "options": select}}
    state = {"type": "str", "choices": list(STATES)}
    one = [("bdf", "filter", "select")]
    run_module(
        {
            **ARGUMENTS,
            **element,
            "devices": {
                "type": "list",
                "elements": "dict",
                "options": {**element, "state": state},
                "mutually_exclusive": one,
                "required_one_of": one,
            },
            "state": {**state, "default": "available"},
            "borrowers_checked": {"type": "bool", "default": False},
            "force": {"type": "bool", "default": False},
            "on_in_use": {"type": "str", "choices": ["fail", "skip"], "default": "fail"},
            "allow_empty": {"type": "bool", "default": False},
            "purge": {"type": "bool", "default": False},
        },
        on_node(resource),
        mutually_exclusive=[("bdf", "filter", "select", "devices")],
        required_one_of=[("bdf", "filter", "select", "devices")],
    )


if __name__ == "__main__":
    main()
