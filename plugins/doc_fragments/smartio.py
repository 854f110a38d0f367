# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all SmartIO modules document in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Options that every SmartIO module has."""

    DOCUMENTATION = r"""
options:
  tool:
    description:
      - The program C(smartio_tool), as a path or a name. A name is looked for on E(PATH), then in C(/opt/DIS/sbin).
      - C(dis_config) is looked for beside it.
    type: str
    default: smartio_tool
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
  dev:
    description:
      - The folder of device nodes.
    type: path
    default: /dev
  state_dir:
    description:
      - The folder that remembers what no command can list (connections, what was made available, labels), and holds the
        lock that all runs on a node share. What it says counts for one boot and one load of the kernel module.
    type: path
    default: /run/smartio
  timeout:
    description:
      - Seconds that this run may wait, all in all, for what comes late. A single command is ended after 30 seconds.
    type: float
    default: 60
notes:
  - Needs root on a real node.
  - In check mode, where the tool is not installed yet, the answer is C(pending) and changed.
seealso:
  - name: smartio_tool
    description: The manual page of the tool that the modules drive.
    link: https://www.dolphinics.com
"""
