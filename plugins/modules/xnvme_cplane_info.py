#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell what serves on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: xnvme_cplane_info
short_description: Gather what servers of the xNVMe control plane say of themselves
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Asks servers over their sockets, without becoming their client. Changes nothing.
  - That nobody serves an id is an answer (C(alive) is false), not a failure.
options:
  cplane_ids:
    description:
      - Ids to ask, from 1 to 4294967295; by default every server that has a socket on the node.
    type: list
    elements: int
    aliases: [cplane_id]
  controllers:
    description:
      - Controllers to look for on all servers, by the address that they are served under, or as C(emu:NAME).
      - Quote them.
    type: list
    elements: raw
  timeout:
    description:
      - Seconds for the whole survey. A server that hangs costs no more than its share.
    type: float
    default: 10
  socket_dir:
    description:
      - The folder of sockets.
    type: path
    default: /tmp
  state_dir:
    description:
      - The folder in which M(iofabric.sharing.xnvme_cplane) remembers servers; by default the same as there.
    type: path
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.cplane
attributes:
  diff_mode:
    support: none
"""

EXAMPLES = r"""
- name: See every server of the node
  iofabric.sharing.xnvme_cplane_info:
  register: cplane

- name: Find out who serves a drive
  iofabric.sharing.xnvme_cplane_info:
    controllers: ["0000:81:00.0"]

# Ad hoc: ansible ci -m iofabric.sharing.xnvme_cplane_info -a 'cplane_id=7'
"""

RETURN = r"""
servers:
  description: One entry for each server, as M(iofabric.sharing.xnvme_cplane) returns it.
  returned: always
  type: list
  elements: dict
controllers:
  description: One entry for each of O(controllers), with C(alive) and C(cplane_id) of the server that holds it.
  returned: always
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.survey import resource


def main() -> None:
    """Run the module."""
    run_module(
        {
            "cplane_ids": {"type": "list", "elements": "int", "aliases": ["cplane_id"]},
            "controllers": {"type": "list", "elements": "raw"},
            "timeout": {"type": "float", "default": 10},
            "socket_dir": {"type": "path", "default": "/tmp"},  # noqa: S108 - where clients look
            "state_dir": {"type": "path"},
        },
        resource,
    )


if __name__ == "__main__":
    main()
