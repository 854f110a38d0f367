#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give PCI devices virtual functions."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pci_sriov
short_description: Set how many SR-IOV virtual functions PCI devices have
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Writes C(sriov_numvfs) in sysfs and waits until the virtual functions are there, which can be lent one by one.
  - A device that has the right number is left alone. From one number to another the kernel goes through none at all, so
    all virtual functions vanish for a moment. That is refused while one of them is in use on this node or is in the
    SmartIO pool, where somebody may have borrowed it; see O(force).
  - The number is gone after a reboot, or when the device's driver is unbound.
options:
  bdf:
    description:
      - PCI address of the device, in any of lspci's forms. Quote it.
    type: raw
  numvfs:
    description:
      - How many virtual functions it shall have, 0 for none.
    type: int
  devices:
    description:
      - Several devices in one task. One that is given two numbers is left as it is, and fails.
    type: list
    elements: dict
    suboptions:
      bdf:
        description: PCI address, as O(bdf).
        type: raw
        required: true
      numvfs:
        description: How many, as O(numvfs).
        type: int
        required: true
  force:
    description:
      - Take virtual functions away that are in use or in the pool.
      - One that holds the disk of C(/), C(/boot) or active swap, or carries the default route or this connection, is
        refused all the same.
    type: bool
    default: false
  taken_back:
    description:
      - PCI addresses, in full, that do not count as being in the pool, since an earlier task has taken them out of it
        (in check mode, would have). Quote them.
    type: list
    elements: raw
    default: []
  sysfs:
    description:
      - Where sysfs is mounted. A software node has a sysfs of its own.
    type: path
    default: /sys
  proc:
    description:
      - Where proc is mounted, from which mounts, swap, routes and the boot id are read.
    type: path
    default: /proc
  smartio_state_dir:
    description:
      - The folder O(iofabric.sharing.smartio_device#module:state_dir) of M(iofabric.sharing.smartio_device), which
        remembers what is in the pool.
    type: path
    default: /run/smartio
  timeout:
    description:
      - Seconds that this run may wait, all in all, for virtual functions to come or go.
    type: float
    default: 60
notes:
  - Needs root.
  - In check mode, where there is no sysfs yet (a software node that is not installed), the answer is C(pending).
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.all
"""

EXAMPLES = r"""
- name: Split a network card in four
  iofabric.sharing.pci_sriov:
    bdf: "5e:00.0"
    numvfs: 4

- name: Several devices
  iofabric.sharing.pci_sriov:
    devices:
      - {bdf: "0000:5e:00.0", numvfs: 4}
      - {bdf: "0000:5e:00.1", numvfs: 0}

# Ad hoc: ansible lenders -m iofabric.sharing.pci_sriov -a 'bdf=5e:00.0 numvfs=4'
"""

RETURN = r"""
devices:
  description: One entry for each device, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    bdf:
      description: PCI address in full.
      type: str
      sample: "0000:5e:00.0"
    before:
      description: How many virtual functions it had.
      type: int
      sample: 0
    numvfs:
      description: How many it has (in check mode, would have).
      type: int
      sample: 4
    totalvfs:
      description: How many it can have.
      type: int
      sample: 64
    vfs:
      description: PCI addresses of its virtual functions, by number. Null in check mode where only a run can tell.
      type: list
      elements: str
      sample: ["0000:5e:02.0", "0000:5e:02.1", "0000:5e:02.2", "0000:5e:02.3"]
    action:
      description: C(disable) (to none), C(enable), both in this order, C(none), or C(pending).
      type: str
      sample: enable
pending:
  description: There is no sysfs yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
errors:
  description: One entry for each device that failed or was refused, with the sentence and its details.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sriov import resource
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.pooled import POOLED_ARGUMENTS, pooled_by


def main() -> None:
    """Run the module."""
    bdf, numvfs = {"type": "raw"}, {"type": "int"}
    required = {"bdf": {**bdf, "required": True}, "numvfs": {**numvfs, "required": True}}
    run_module(
        {
            "bdf": bdf,
            "numvfs": numvfs,
            "devices": {"type": "list", "elements": "dict", "options": required},
            "force": {"type": "bool", "default": False},
            "taken_back": {"type": "list", "elements": "raw", "default": []},
            **{name: ARGUMENTS[name] for name in ("sysfs", "proc", "timeout")},
            **POOLED_ARGUMENTS,
        },
        lambda params: resource(params, pooled_by(params)),
        mutually_exclusive=[("bdf", "devices"), ("numvfs", "devices")],
        required_one_of=[("bdf", "devices")],
        required_together=[("bdf", "numvfs")],
    )


if __name__ == "__main__":
    main()
