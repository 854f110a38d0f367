#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let other nodes see and borrow this node's devices."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_connect
short_description: Connect a SmartIO lender to the nodes that may borrow from it
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Runs C(smartio_tool connect) on a lender, so that the named nodes see and may borrow its devices. Two lenders whose
    devices talk to each other directly need a connection, too.
  - No command lists or undoes connections. What was connected is remembered in O(state_dir) for one boot and one load
    of the kernel module, so that connecting again costs no command.
  - A node that cannot be reached does not keep the others from being connected. The run then fails, and says beside the
    failure what it changed; see O(on_unreachable).
options:
  node_ids:
    description:
      - Ids of the nodes to connect to.
    type: list
    elements: int
    aliases: [node_id]
  hostnames:
    description:
      - Names of hosts to connect to, beside O(node_ids). Their node ids are asked for on this node with
        C(disinfo get-nodeid -hostname), also in check mode.
    type: list
    elements: str
    aliases: [hostname]
  adapter:
    description:
      - Number of the local adapter (from 0) towards O(node_ids) and O(hostnames).
    type: int
    default: 0
  connections:
    description:
      - Nodes with an adapter each, instead of O(node_ids) and O(hostnames).
    type: list
    elements: dict
    suboptions:
      node_id:
        description: Id of the node to connect to.
        type: int
      hostname:
        description: Its name, which messages have. Without O(connections[].node_id) its id is asked for.
        type: str
      adapter:
        description: Number of the local adapter towards it, from 0.
        type: int
        default: 0
  reconnect:
    description:
      - Connect even where a connection is remembered.
    type: bool
    default: false
  on_unreachable:
    description:
      - What to do about a node that cannot be reached now (C(EIO)). V(warn) says so in a warning instead of a failure.
    type: str
    choices: [fail, warn]
    default: fail
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
attributes:
  idempotent:
    support: partial
    details: With O(reconnect=true) every run connects.
"""

EXAMPLES = r"""
- name: Let nodes 8 and 12 borrow from this one
  iofabric.sharing.smartio_connect:
    node_ids: [8, 12]

- name: Let two hosts borrow, whoever of them is up
  iofabric.sharing.smartio_connect:
    hostnames: [build1, build2]
    on_unreachable: warn

- name: Over two adapters
  iofabric.sharing.smartio_connect:
    connections:
      - node_id: 8
        adapter: 0
      - node_id: 12
        adapter: 1

# Ad hoc: ansible lenders -m iofabric.sharing.smartio_connect -a 'node_id=8'
"""

RETURN = r"""
connections:
  description: One entry for each node, in the order given; those whose id could not be told come last.
  returned: always
  type: list
  elements: dict
  contains:
    node_id:
      description: Id of the node. Null where it could not be told.
      type: int
      sample: 8
    hostname:
      description: The host's name where it was given.
      type: str
      sample: build1
    adapter:
      description: Number of the local adapter.
      type: int
      sample: 0
    state:
      description: C(connected), C(unreachable), or null for any other failure. In check mode what is expected.
      type: str
      sample: connected
    action:
      description: C(connect) where the command was run (in check mode would be), C(none), or C(pending).
      type: str
      sample: connect
others:
  description: Connections that were made from this node, are remembered, and are not named here. Nothing can undo them.
  returned: always
  type: list
  elements: dict
  contains:
    node_id:
      description: Id of the node.
      type: int
      sample: 12
    adapter:
      description: Number of the local adapter.
      type: int
      sample: 0
pending:
  description: The tool is not installed yet, so nothing could be told.
  returned: in check mode, where it is so
  type: bool
errors:
  description:
    - One entry for each node that could not be connected, with the sentence, the command, its output and the name of
      its exit status (C(errno_name), such as C(EIO)), and with C(node_id), C(adapter) and C(hostname).
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.connections import resource
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS, on_node


def main() -> None:
    """Run the module."""
    connection = {"node_id": {"type": "int"}, "hostname": {"type": "str"}, "adapter": {"type": "int", "default": 0}}
    run_module(
        {
            **ARGUMENTS,
            "node_ids": {"type": "list", "elements": "int", "aliases": ["node_id"]},
            "hostnames": {"type": "list", "elements": "str", "aliases": ["hostname"]},
            "adapter": {"type": "int", "default": 0},
            "connections": {
                "type": "list",
                "elements": "dict",
                "options": connection,
                "required_one_of": [("node_id", "hostname")],
            },
            "reconnect": {"type": "bool", "default": False},
            "on_unreachable": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
        },
        on_node(resource),
        mutually_exclusive=[("node_ids", "connections"), ("hostnames", "connections")],
        required_one_of=[("node_ids", "hostnames", "connections")],
    )


if __name__ == "__main__":
    main()
