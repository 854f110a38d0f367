#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bind devices to a driver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pci_driver
short_description: Bind PCI devices to a driver
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Gives devices to a driver by name, such as C(vfio-pci), or back to the one that the kernel chooses.
  - Loads the driver's kernel module, sets the device's C(driver_override), takes the old driver away, has the kernel
    look for the new one, and reads back. Where that fails, the old driver is put back, and the failure says so.
  - A device that has the driver already is not touched.
  - A device that is in use is refused, with every reason, before anything of it is touched. See O(force).
  - VFIO takes whole IOMMU groups. So for its drivers the devices of a group move together or not at all. See O(group).
  - What is bound lasts until the next boot.
options:
  devices:
    description:
      - The devices. Each element is a PCI address as C(lspci -s) takes it, or a filter as C(lspci) takes it, such as
        C(-d 144d:), for all devices that it lists. Filters are resolved from O(sysfs); C(lspci) need not be installed.
      - Quote addresses. YAML reads an unquoted C(81:00.0) as a number, which is refused.
    type: list
    elements: raw
    required: true
  driver:
    description:
      - The driver's name as C(/sys/bus/pci/drivers) has it. No other driver may then have the device, until this module
        or a boot says otherwise.
      - V(default) lets the kernel choose. A device that some driver has and that is not kept for one by its
        C(driver_override) is right as it is.
    type: str
    required: true
  group:
    description:
      - What to do about the other devices of an IOMMU group, bridges excepted.
      - With V(refuse), where a driver of VFIO is wanted, a device is refused if others of its group are not named and
        have another driver. They are listed.
      - With V(include), all devices of the group are taken along, to O(driver=default), too.
    type: str
    choices: [refuse, include]
    default: refuse
  force:
    description:
      - Move devices that are in use.
      - The disk of C(/), C(/boot) or active swap, the interface of the default route or of this connection, bridges
        and the fabric's own adapter are refused all the same.
    type: bool
    default: false
  sysfs:
    description:
      - Where sysfs is mounted.
    type: path
    default: /sys
  proc:
    description:
      - Where proc is mounted, from which it is read what uses a device.
    type: path
    default: /proc
  timeout:
    description:
      - Seconds that this run may take, all in all. A driver that does not let go of a device, or does not take one,
        within 30 seconds is given up, and named.
    type: float
    default: 60
notes:
  - Needs root.
  - Does not know of SmartIO. Do not name devices that are available for borrowing.
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.all
"""

EXAMPLES = r"""
- name: Hand two drives to user space
  iofabric.sharing.pci_driver:
    devices: ["81:00.0", "82:00.0"]
    driver: vfio-pci

- name: Hand over a GPU with its audio function and all else that shares its IOMMU group
  iofabric.sharing.pci_driver:
    devices: ["03:00.0"]
    driver: vfio-pci
    group: include

- name: Give all Samsung drives back to their ordinary driver
  iofabric.sharing.pci_driver:
    devices: ["-d 144d:"]
    driver: default

# Ad hoc: ansible lenders -m iofabric.sharing.pci_driver -a 'devices=81:00.0 driver=vfio-pci'
"""

RETURN = r"""
devices:
  description: One entry for each device, in the order given; those that were taken along come last.
  returned: always
  type: list
  elements: dict
  contains:
    bdf:
      description: PCI address in full.
      type: str
      sample: "0000:81:00.0"
    before:
      description: The driver that had it before this run. Null for none.
      type: str
      sample: nvme
    after:
      description: The driver that has it now. Null for none, and in check mode where the kernel would choose.
      type: str
      sample: vfio-pci
    iommu_group:
      description: The number of its IOMMU group, as text. Null where it is in none.
      type: str
      sample: "17"
    in_use:
      description: Every reason why the device is in use. It is only looked for where the device would have to move.
      type: list
      elements: str
      sample: ["mounted at /srv (nvme0n1p1)"]
    action:
      description: What was done (in check mode would be), in order, of modprobe, unbind, override, probe, or C(none).
      type: str
      sample: unbind, override, probe
errors:
  description: One entry for each element that failed or was refused, with the sentence and its details.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.driver import INCLUDE, REFUSE, resource


def main() -> None:
    """Run the module."""
    run_module(
        {
            "devices": {"type": "list", "elements": "raw", "required": True},
            "driver": {"type": "str", "required": True},
            "group": {"type": "str", "choices": [REFUSE, INCLUDE], "default": REFUSE},
            "force": {"type": "bool", "default": False},
            "sysfs": {"type": "path", "default": "/sys"},
            "proc": {"type": "path", "default": "/proc"},
            "timeout": {"type": "float", "default": 60},
        },
        resource,
    )


if __name__ == "__main__":
    main()
