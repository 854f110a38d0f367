#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Borrow devices from the pool, or return them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_borrow
short_description: Borrow PCIe devices from the SmartIO pool, or return them
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Borrows devices by fabric device id or by what they are, so that they appear in this node's PCI tree.
  - What is borrowed here already and matches is kept; only what is missing is borrowed, in a stable order. Candidates
    that are busy or whose node cannot be reached are passed over and tried again until O(timeout).
  - A claim that cannot be filled gives back what this run took for it, and fails with the reason for every candidate.
  - A device counts as borrowed here when C(smartio_tool get-vdev) prints its virtual address.
  - A lender that was restarted has forgotten what it lent, while a borrower may still hold it, without any use. Where
    this node borrowed a device since it was booted, the device can be looked at, C(get-vdev) prints no address, and
    C(borrow) fails with EBUSY, EIO or EEXIST, it is returned, once, and borrowed again. A warning says so.
  - Nothing is returned, and nothing else borrowed instead, while the lender of what a claim had cannot be reached.
options:
  fdid:
    description:
      - Fabric device id of one device, hexadecimal as C(smartio_tool list) prints it. Quote it.
    type: str
  select:
    description:
      - Devices with these properties, as C(smartio_tool show) tells them.
    type: dict
    suboptions: &select
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
        description: PCI vendor id, hexadecimal, such as C("144d").
        type: str
      device_id:
        description: PCI device id, hexadecimal.
        type: str
      name_regex:
        description: A regular expression that is found in the device's name.
        type: str
  devices:
    description:
      - Several claims in one task. Every device goes to one claim at most.
      - Where there are enough devices for all claims, each gets its own, in whatever order they are. Where there are
        not, those that come first do, and those for O(devices[].all) get what is left.
      - A device that a claim names by O(devices[].fdid) goes to that one, and takes on its label.
    type: list
    elements: dict
    suboptions:
      fdid:
        description: Fabric device id, as O(fdid).
        type: str
      select:
        description: A selection, as O(select).
        type: dict
        suboptions: *select
      count:
        description: How many devices, as O(count).
        type: int
      all:
        description: All that match, as O(all).
        type: bool
      dma_window:
        description: Size of the DMA window, as O(dma_window).
        type: str
      label:
        description: Name of the claim, as O(label).
        type: str
  count:
    description:
      - How many devices that match are wanted, from 1 to 4096; 1 by default.
      - With O(state=returned) all that match are returned.
    type: int
  all:
    description:
      - Borrow every device that matches and is available.
    type: bool
  dma_window:
    description:
      - Size of the DMA window, handed to the tool as it is (its unit is not documented).
    type: str
  label:
    description:
      - A name for what is borrowed. A device that was borrowed under a label stays with it, and goes to no other claim.
      - With O(state=returned) a label alone returns what was borrowed under it.
    type: str
  state:
    description:
      - V(returned) returns what matches and is borrowed here. A device in use is refused, and one of which that cannot
        be told since its lender is out of reach; see O(force).
    type: str
    choices: [borrowed, returned]
    default: borrowed
  wait_for:
    description:
      - How far a borrowed device must be before the run succeeds.
      - V(vdev), its virtual address is known. V(driver), a driver is bound. V(device_node), a device node exists.
        V(filesystem), C(disk/by-uuid) has a link to one of them.
    type: str
    choices: [none, vdev, driver, device_node, filesystem]
    default: driver
  force:
    description:
      - Return devices that are in use; try to borrow devices whose state word is not known.
    type: bool
    default: false
  unmounted:
    description:
      - Mount points that tasks before this one unmount. In check mode, in which they have not done it, what is mounted
        there does not count as use. Has no effect otherwise.
    type: list
    elements: path
    default: []
  ended:
    description:
      - Ids of processes that tasks before this one end, as O(unmounted).
    type: list
    elements: int
    default: []
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
attributes:
  check_mode:
    support: full
    details: A claim that only waiting could fill is C(pending). Another borrower may take a predicted device first.
"""

EXAMPLES = r"""
- name: Borrow one device
  iofabric.sharing.smartio_borrow:
    fdid: "48100"

- name: Borrow two drives of node 4 for a build, under a name
  iofabric.sharing.smartio_borrow:
    select: {node_id: 4, vendor_id: "144d"}
    count: 2
    label: build-scratch
    wait_for: device_node
  register: borrowed

- name: Several claims in one task
  iofabric.sharing.smartio_borrow:
    devices:
      - select: {name_regex: "NVIDIA.*Quadro"}
        label: gpu
      - select: {serial: "S4EVNX0R123456"}
        label: journal

- name: Return what was borrowed for the build
  iofabric.sharing.smartio_borrow:
    label: build-scratch
    state: returned

# Ad hoc: ansible borrowers -m iofabric.sharing.smartio_borrow -a 'fdid=48100'
"""

RETURN = r"""
devices:
  description: One entry for each device, claim by claim in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    fdid:
      description: Fabric device id, hexadecimal. Null where it is not known yet (pending).
      type: str
      sample: "48100"
    label:
      description: The label that it is borrowed under.
      type: str
      sample: build-scratch
    node_id:
      description: Id of the node that owns it.
      type: int
      sample: 4
    bdf:
      description: PCI address on the node that owns it.
      type: str
      sample: "0000:81:00.0"
    uuid:
      description: UUID.
      type: str
      sample: 756e81e3-f403-42a3-b848-862013cca6c6
    serial:
      description: Serial number as the tool prints it.
      type: str
    vendor_id:
      description: PCI vendor id.
      type: str
      sample: 144d
    device_id:
      description: PCI device id.
      type: str
      sample: a80a
    vdev:
      description: PCI address of the virtual device on this node. Null where it is not borrowed (yet).
      type: str
      sample: "0000:04:05.0"
    driver:
      description: The driver that is bound to the virtual device.
      type: str
      sample: nvme
    device_nodes:
      description: Device nodes of the virtual device.
      type: list
      elements: str
      sample: [/dev/nvme0, /dev/nvme0n1]
    by_id:
      description: Links in C(disk/by-id) to them.
      type: list
      elements: str
    by_uuid:
      description: Links in C(disk/by-uuid) to them, one for each filesystem, with the device node of each.
      type: dict
      sample: {"/dev/disk/by-uuid/0a5c9d2e-6c1f-4d0a-9b1e-3f6f0f6a2b11": "/dev/nvme0n1p1"}
    users:
      description: What the tool calls local users.
      type: int
    action:
      description: C(borrow), C(return), C(none), or C(pending).
      type: str
      sample: borrow
pending:
  description: Check mode could not tell what a run would borrow.
  returned: in check mode, where it is so
  type: bool
errors:
  description:
    - One entry for each claim that failed or device that was refused, with the sentence, the C(label) of the claim (or
      null), and details.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.borrowing import resource
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.claims import SELECT_ARGUMENTS
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node


def main() -> None:
    """Run the module."""
    element = {
        "fdid": {"type": "str"},
        "select": {"type": "dict", "options": SELECT_ARGUMENTS},
        "count": {"type": "int"},
        "all": {"type": "bool"},
        "dma_window": {"type": "str"},
        "label": {"type": "str"},
    }
    exclusive = [("fdid", "select"), ("count", "all")]
    one_of = [("fdid", "select", "label")]
    run_module(
        {
            **ARGUMENTS,
            **element,
            "devices": {
                "type": "list",
                "elements": "dict",
                "options": element,
                "mutually_exclusive": exclusive,
                "required_one_of": one_of,
            },
            "state": {"type": "str", "choices": ["borrowed", "returned"], "default": "borrowed"},
            "wait_for": {
                "type": "str",
                "choices": ["none", "vdev", "driver", "device_node", "filesystem"],
                "default": "driver",
            },
            "force": {"type": "bool", "default": False},
            "unmounted": {"type": "list", "elements": "path", "default": []},
            "ended": {"type": "list", "elements": "int", "default": []},
        },
        on_node(resource),
        mutually_exclusive=[*exclusive, *((key, "devices") for key in element)],
        required_one_of=[("fdid", "select", "label", "devices")],
    )


if __name__ == "__main__":
    main()
