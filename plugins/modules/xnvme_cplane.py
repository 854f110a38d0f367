#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manage servers of the xNVMe control plane."""

from __future__ import annotations

DOCUMENTATION = r"""
module: xnvme_cplane
short_description: Serve NVMe controllers to the processes of a host (xNVMe control plane)
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Starts, stops and restarts servers of the xNVMe control plane. A server opens NVMe controllers and hands
    descriptors, queues and buffers to client processes over a unix socket.
  - Two servers can be managed, the reference tool C(homi) for real controllers, and the collection's own for
    emulated ones. The program of the latter is put on the node where it is needed. It serves real controllers, too,
    which is experimental.
  - A server with clients is never stopped or restarted without O(force). Mode, group and allow list change under a
    running server; other controllers take a restart; every other difference is reported as C(restart_pending) and
    takes effect when the server has no clients.
  - A server under the same id that was not started by this module is left as it is where it serves what is wanted, and
    V(started) is refused where it does not. V(stopped) and V(restarted) end it when nobody is connected.
  - V(started) and V(restarted) refuse an id whose socket belongs to another user than root or that of the run, whatever
    it serves, and also with O(force).
  - A unit that still waits to start its server, since what is claimed is not borrowed yet, is stopped for V(stopped),
    and started anew for the other states.
  - A server that has the socket and cannot be understood (it hangs, or speaks another version of the wire format) is
    refused by all states unless O(force) is given.
options:
  cplane_id:
    description:
      - Id of the control plane, from 1 to 4294967295. Clients name it (C(--homi-id)).
    type: int
  controllers:
    description:
      - The controllers to serve, a set. PCI addresses (quoted), C(emu:NAME?size=64M) for emulated ones, or
        C(claim:LABEL) for what is borrowed under a label of M(iofabric.sharing.smartio_borrow).
    type: list
    elements: raw
  servers:
    description:
      - Several servers in one task. What an element does not say is taken from the options of the same name.
    type: list
    elements: dict
    suboptions:
      cplane_id:
        description: Id of the control plane, as O(cplane_id).
        type: int
        required: true
      controllers:
        description: The controllers to serve, as O(controllers).
        type: list
        elements: raw
      server:
        description: Which server, as O(server).
        type: str
        choices: [auto, homi, native]
      backend:
        description: Backend, as O(backend).
        type: str
      heap_size:
        description: Size of the heap, as O(heap_size).
        type: str
      manager:
        description: Manager, as O(manager).
        type: str
        choices: [auto, systemd, process]
      socket_mode:
        description: Mode of the socket, as O(socket_mode).
        type: raw
      socket_group:
        description: Group of the socket, as O(socket_group).
        type: str
      allow_uids:
        description: Users that are served, as O(allow_uids).
        type: list
        elements: int
      driver:
        description: Driver of real controllers, as O(driver).
        type: str
  state:
    description:
      - V(started), a server answers and lists exactly the wanted controllers. V(stopped), nobody serves the id.
      - V(restarted) stops a server that runs and starts it, each time.
    type: str
    choices: [started, stopped, restarted]
    default: started
  server:
    description:
      - V(homi), the reference tool. V(native), the collection's own server.
      - V(auto) keeps what runs, else takes C(homi), else V(native) if all controllers are emulated.
      - V(native) over real controllers is experimental and must be named. It needs an IOMMU, and each controller, with
        all of its IOMMU group, bound to C(vfio-pci). A client that keeps a controller open after its server has ended
        keeps it from the next server, and from its next driver.
    type: str
    choices: [auto, homi, native]
    default: auto
  backend:
    description:
      - Backend that C(homi) is started with (C(--be)).
    type: str
  heap_size:
    description:
      - Memory to share for each controller, in bytes or with K, M, G; by default the server's own choice.
    type: str
  manager:
    description:
      - V(process), a detached process. V(systemd), an instance of the unit C(xnvme-cplane@.service), which
        P(iofabric.sharing.cplane_server#role) installs. It starts a server again that ended by accident, and resolves
        C(claim:LABEL) anew each time.
      - V(auto) takes V(systemd) where the unit is installed, and O(state_dir) is not given.
    type: str
    choices: [auto, systemd, process]
    default: auto
  socket_mode:
    description:
      - Mode of the socket, octal and quoted. A number is refused, since YAML reads C(0660) as 432.
    type: raw
    default: '0660'
  socket_group:
    description:
      - Group of the socket, by name or number; by default that of the server.
    type: str
  allow_uids:
    description:
      - Users that are served, by number; by default everybody who may open the socket.
      - Only the V(native) server checks.
    type: list
    elements: int
    default: []
  driver:
    description:
      - Driver that real controllers are bound to before they are served, such as C(vfio-pci), as with
        M(iofabric.sharing.pci_driver). What was bound for a server goes back to the driver that the kernel chooses when
        the server is stopped, or no longer serves it; what had the driver already keeps it.
      - Nothing in use is bound or given back, whatever O(force) says.
      - V(none) leaves drivers as they are.
    type: str
    default: none
  drain_timeout:
    description:
      - Seconds to wait for clients to leave before a stop or restart is refused.
    type: float
    default: 0
  force:
    description:
      - Stop or restart a server that has clients or cannot be understood, and kill one that does not end.
      - Restart a server that runs with other settings than the wanted ones, also while it has clients.
    type: bool
    default: false
  timeout:
    description:
      - Seconds that a server may take to start or to stop.
    type: float
    default: 60
  homi:
    description:
      - The reference tool, as a path or a name on E(PATH).
    type: str
    default: homi
  program:
    description:
      - Path of the native server's program on the node. By default the collection brings its own.
    type: path
  program_dir:
    description:
      - The folder on the node in which the collection puts the native server's program.
      - By default C(/var/lib/iofabric), without root C(~/.local/share/iofabric).
    type: path
  socket_dir:
    description:
      - The folder of sockets. Clients, and V(homi), look in C(/tmp).
    type: path
    default: /tmp
  state_dir:
    description:
      - The folder in which servers are remembered, and have their output (C(ID.log)).
      - By default C(/run/iofabric/cplane), without root a folder of the user's own.
    type: path
  tool:
    description:
      - The program C(smartio_tool), for C(claim:LABEL).
    type: str
    default: smartio_tool
  sysfs:
    description:
      - Where sysfs is mounted, for C(claim:LABEL) and O(driver).
    type: path
    default: /sys
  proc:
    description:
      - Where proc is mounted, for C(claim:LABEL) and O(driver).
    type: path
    default: /proc
  dev:
    description:
      - The folder of device nodes, for C(claim:LABEL).
    type: path
    default: /dev
  smartio_state_dir:
    description:
      - O(iofabric.sharing.smartio_borrow#module:state_dir) of the module that borrowed under the label.
    type: path
    default: /run/smartio
notes:
  - Clients of one server can overwrite each other's queues and buffers. They are one trust domain.
  - A real controller must be bound to C(vfio-pci) before it can be served; O(driver) does that.
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.cplane
  - iofabric.sharing.program
attributes:
  check_mode:
    details: What waits for clients to leave (O(drain_timeout)), for a device to be borrowed, a group to be created or a
      tool to be installed is C(pending).
  idempotent:
    support: partial
    details: With O(state=restarted) every run restarts.
"""

EXAMPLES = r"""
- name: Serve an emulated controller to the processes of a CI host
  iofabric.sharing.xnvme_cplane:
    cplane_id: 7
    controllers: ["emu:scratch?size=256M"]
    socket_group: ci

- name: Serve a real drive with homi
  iofabric.sharing.xnvme_cplane:
    cplane_id: 1
    controllers: ["0000:81:00.0"]
    server: homi
    driver: vfio-pci

- name: Serve a real drive without homi (experimental)
  iofabric.sharing.xnvme_cplane:
    cplane_id: 3
    controllers: ["0000:82:00.0"]
    server: native
    driver: vfio-pci

- name: Serve what was borrowed under a label
  iofabric.sharing.xnvme_cplane:
    cplane_id: 2
    controllers: ["claim:build-scratch"]

- name: Stop a server once its clients have left, for at most five minutes
  iofabric.sharing.xnvme_cplane:
    cplane_id: 7
    state: stopped
    drain_timeout: 300

# Ad hoc: ansible ci -m iofabric.sharing.xnvme_cplane -a 'cplane_id=7 controllers=emu:scratch'
"""

RETURN = r"""
server:
  description: The server, as an entry of RV(servers).
  returned: when one server is managed
  type: dict
servers:
  description: One entry for each server, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    cplane_id:
      description: Id of the control plane.
      type: int
      sample: 7
    alive:
      description: Whether somebody serves the id.
      type: bool
    pid:
      description: The process that serves it. Null where it is not known (yet).
      type: int
    owner:
      description:
        - The user that the socket belongs to, by number. Null where nobody serves.
        - The folder of sockets is open to everybody. A server of neither root nor the user of the run is a stranger's.
      type: int
      sample: 0
    version:
      description: Version of the wire format. Null where nobody serves, or the server did not say it.
      type: int
      sample: 4
    protocol:
      description:
        - C(ok), C(mismatch) for another wire version, C(unknown) for a server that does not answer.
        - Null where nobody serves.
      type: str
      sample: ok
    connections:
      description: Connections that the server has, that of this module included. Null where it did not say.
      type: int
      sample: 1
    clients:
      description: Clients that are connected, without this module. Null where the server did not say.
      type: int
      sample: 0
    restart_pending:
      description:
        - The server runs with other settings than the wanted ones, or its program or unit changed, and has clients.
        - M(iofabric.sharing.xnvme_cplane_info) knows no wanted ones and compares with what the server was started with.
      type: bool
    controllers:
      description: What the server says of its controllers.
      type: list
      elements: dict
      contains:
        name:
          description: The controller as it was configured.
          type: str
          sample: emu:scratch?size=256M
        uri:
          description: The address that clients name.
          type: str
          sample: "ffff:1a:02.3"
        connections:
          description: Clients that were given this controller's descriptors.
          type: int
        nsq_used:
          description: I/O submission queues in use.
          type: int
        ncq_used:
          description: I/O completion queues in use.
          type: int
        nsq_total:
          description: I/O submission queues that the controller has; zero when it did not answer.
          type: int
        ncq_total:
          description: I/O completion queues that the controller has; zero when it did not answer.
          type: int
        initialized:
          description: Whether the server answered for the controller.
          type: bool
    error:
      description: Why a server that is there could not be understood, or what its unit waits for to start it.
      type: str
    action:
      description:
        - What was done, in order. C(start), C(stop), C(configure), C(bind) (controllers got their driver), C(give_back)
          (they went back to their ordinary one), or C(none).
        - In check mode what would be, or C(pending) where that depends on an earlier task or on clients that leave.
      type: str
      sample: start
program:
  description: Where the native server's program lies on the node, or would be put.
  returned: always
  type: str
  sample: /var/lib/iofabric/xnvme-cplaned-0.1.0.pyz
pending:
  description: Check mode could not tell what a run would do.
  returned: in check mode, where it is so
  type: bool
errors:
  description: One entry for each server that failed or was refused, with the sentence and its details.
  returned: on failure of elements
  type: list
  elements: dict
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.serving import (
    MANAGERS,
    SERVERS,
    STATES,
    resource,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.labels import LABEL_ARGUMENTS, labels_of


def main() -> None:
    """Run the module."""
    text = {"type": "str"}
    one = {
        "controllers": {"type": "list", "elements": "raw"},
        "server": {"type": "str", "choices": list(SERVERS)},
        "backend": text,
        "heap_size": text,
        "manager": {"type": "str", "choices": list(MANAGERS)},
        "socket_mode": {"type": "raw"},
        "socket_group": text,
        "allow_uids": {"type": "list", "elements": "int"},
        "driver": text,
    }
    run_module(
        {
            **one,
            "cplane_id": {"type": "int"},
            "servers": {
                "type": "list",
                "elements": "dict",
                "options": {**one, "cplane_id": {"type": "int", "required": True}},
            },
            "state": {"type": "str", "choices": list(STATES), "default": "started"},
            "server": {"type": "str", "choices": list(SERVERS), "default": "auto"},
            "manager": {"type": "str", "choices": list(MANAGERS), "default": "auto"},
            "socket_mode": {"type": "raw", "default": "0660"},
            "allow_uids": {"type": "list", "elements": "int", "default": []},
            "driver": {"type": "str", "default": "none"},
            "drain_timeout": {"type": "float", "default": 0},
            "force": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 60},
            "homi": {"type": "str", "default": "homi"},
            "program": {"type": "path"},
            "program_dir": {"type": "path"},
            "socket_dir": {"type": "path", "default": "/tmp"},  # noqa: S108 - where clients look
            "state_dir": {"type": "path"},
            **LABEL_ARGUMENTS,
            "_program_digest": {"type": "str"},
            "_program_source": {"type": "path"},
        },
        lambda params: resource(params, labels_of(params)),
        mutually_exclusive=[("cplane_id", "servers")],
        required_one_of=[("cplane_id", "servers")],
    )


if __name__ == "__main__":
    main()
