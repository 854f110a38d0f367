# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystem of a claim is mounted where, as lines of /etc/fstab."""

from __future__ import annotations

from typing import Any, Callable, Dict

from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.mounts import plan_mounts

DOCUMENTATION = r"""
name: mount_plan
short_description: Lines of /etc/fstab for filesystems on borrowed devices
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Finds the filesystem of each claim with a C(mount) on what was borrowed under its label, and says how
    C(/etc/fstab) has it. Used by P(iofabric.sharing.borrower#role).
positional: rows, fstab
options:
  _input:
    description:
      - Claims, as O(iofabric.sharing.borrower#role:main:borrower_claims) has them. Those without a C(mount) are left
        out.
    type: list
    elements: dict
    required: true
  rows:
    description: The C(devices) that M(iofabric.sharing.smartio_borrow) returned.
    type: list
    elements: dict
    required: true
  fstab:
    description: The text of C(/etc/fstab) as it is.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show how it would be mounted
  ansible.builtin.debug:
    msg: "{{ borrower_claims | iofabric.sharing.mount_plan(borrowed.devices) | map(attribute='line') }}"
"""

RETURN = r"""
_value:
  description: An entry for each claim with a mount.
  type: list
  elements: dict
  contains:
    label:
      description: The claim's label.
      type: str
    path:
      description: The mount point.
      type: str
    field:
      description: The mount point as it is written in C(/etc/fstab).
      type: str
    line:
      description: The line. Where the device is not borrowed yet (check mode), it names no UUID that there is.
      type: str
    search:
      description: Whether no UUID was given, so that the filesystem is to be found.
      type: bool
    listed:
      description: Whether C(/etc/fstab) has a line of such a mount for this mount point.
      type: bool
    error:
      description: Why it cannot be mounted, in a sentence. Empty where it can.
      type: str
"""


class FilterModule:
    """The filter, for Ansible."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filter by its name."""
        return {"mount_plan": plan_mounts}
