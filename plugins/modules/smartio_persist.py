#!/usr/bin/python
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record what was granted to a host, so that it comes back after a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smartio_persist
short_description: Record what a host lends, borrows and serves, so that it comes back after a reboot
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - SmartIO forgets everything at a reboot and when its kernel module is loaded again. This module records what was
    granted (serial number, UUID, owning node and address of every device, never the selection that it was found by),
    and installs the program that does it all again. P(iofabric.sharing.persistence#role) installs its services.
  - It is the only writer of the file. What is named joins what is recorded; nothing else is dropped.
  - Works where SmartIO is not installed, too.
options:
  path:
    description:
      - The file. Nobody but its owner and root may be able to write its folder.
    type: path
    default: /etc/iofabric/sharing.json
  state:
    description:
      - V(absent) removes what is named from the file.
    type: str
    choices: [present, absent]
    default: present
  connections:
    description:
      - Nodes that this one connected to, each with C(node_id) and C(adapter), as M(iofabric.sharing.smartio_connect)
        takes and returns them. One that could not be reached does not count.
    type: list
    elements: dict
  sriov:
    description:
      - Virtual functions of physical functions of this host.
    type: list
    elements: dict
    suboptions:
      bdf:
        description: PCI address of the physical function, in full. Quote it.
        type: raw
        required: true
      numvfs:
        description: How many virtual functions; 0 removes the entry.
        type: int
        default: 0
  lent:
    description:
      - The RV(iofabric.sharing.smartio_device#module:devices) that M(iofabric.sharing.smartio_device) returned.
      - A device that is available or lent is recorded as available, one that is unavailable as such, one that is absent
        is removed. What is recorded of a device in any other state stays.
      - With O(state=absent) every device that is named is removed.
    type: list
    elements: dict
  errors:
    description:
      - The RV(iofabric.sharing.smartio_device#module:errors) that M(iofabric.sharing.smartio_device) or
        M(iofabric.sharing.smartio_connect) returned. What is recorded of these devices and nodes stays as it is.
    type: list
    elements: dict
  borrowed:
    description:
      - The RV(iofabric.sharing.smartio_borrow#module:devices) that M(iofabric.sharing.smartio_borrow) returned, to each
        of which C(dma_window) may have been added.
      - A device that is borrowed here is recorded, one that was returned is removed, one that was not borrowed does not
        count.
      - With O(state=absent) every device that is named is removed.
    type: list
    elements: dict
  claims:
    description:
      - Labels of which O(borrowed) is all that there is. Other devices that are recorded under them are removed.
      - With O(state=absent) everything that is recorded under these labels is removed, mounts included.
    type: list
    elements: str
  p2p:
    description:
      - Pairs of borrowed devices, each with C(source), C(destination) and C(bar), as M(iofabric.sharing.smartio_p2p)
        takes and returns them. One with a null C(state), which could not be set, does not count.
    type: list
    elements: dict
  mounts:
    description:
      - Mount points, known to systemd, of filesystems on what is borrowed. They are mounted once all devices of their
        label are back.
    type: list
    elements: dict
    suboptions:
      path:
        description: The mount point.
        type: str
        required: true
      label:
        description: The label. Not needed with O(state=absent).
        type: str
        default: ""
  cplanes:
    description:
      - Servers of the control plane with the settings of M(iofabric.sharing.xnvme_cplane). An entry replaces the one of
        the same id as a whole.
    type: list
    elements: dict
    suboptions:
      cplane_id:
        description: Id of the control plane.
        type: int
        required: true
      controllers:
        description: Controllers as written, C(claim:LABEL) included.
        type: list
        elements: raw
      server:
        description: Which server.
        type: str
        choices: [auto, homi, native]
      backend:
        description: Backend of C(homi).
        type: str
      heap_size:
        description: Size of the heap.
        type: str
      socket_mode:
        description: Mode of the socket, octal and quoted.
        type: raw
      socket_group:
        description: Group of the socket.
        type: str
      allow_uids:
        description: Users that are served, by number.
        type: list
        elements: int
      driver:
        description: The driver that controllers are bound to at every start.
        type: str
      homi:
        description: The program C(homi).
        type: str
      program:
        description: The native server's program.
        type: path
      socket_dir:
        description: The folder of sockets.
        type: path
      state_dir:
        description: The folder in which servers are remembered.
        type: path
  all:
    description:
      - With O(state=absent), forget everything and remove the file.
    type: bool
    default: false
  program_dir:
    description:
      - The folder of the program on the node. Nobody but its owner and root may be able to write it.
    type: path
    default: /usr/local/lib/iofabric
extends_documentation_fragment:
  - iofabric.sharing.attributes
  - iofabric.sharing.attributes.smartio
  - iofabric.sharing.smartio
  - iofabric.sharing.program
attributes:
  check_mode:
    support: full
    details: Rows of devices that an earlier task of the play would bring are C(pending), and count as a change.
notes:
  - A run that names anything of SmartIO records O(tool), O(sysfs), O(proc), O(dev) and O(state_dir), too.
"""

EXAMPLES = r"""
- name: Lend, and record it whatever came of it
  block:
    - name: Lend two drives
      iofabric.sharing.smartio_device:
        devices:
          - bdf: "81:00.0"
          - bdf: "82:00.0"
      register: lent
  always:
    - name: Record what is lent
      iofabric.sharing.smartio_persist:
        lent: "{{ lent.devices | default([]) }}"
        errors: "{{ lent.errors | default([]) }}"

- name: Borrow
  iofabric.sharing.smartio_borrow:
    select: {node_id: 4}
    label: scratch
  register: borrowed

- name: Record what was borrowed, and nothing else under this label
  iofabric.sharing.smartio_persist:
    borrowed: "{{ borrowed.devices }}"
    claims: [scratch]
    mounts:
      - {label: scratch, path: /srv/scratch}

- name: Forget what was borrowed under a label
  iofabric.sharing.smartio_persist:
    claims: [scratch]
    state: absent

- name: Forget everything
  iofabric.sharing.smartio_persist:
    all: true
    state: absent
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
  sample: /etc/iofabric/sharing.json
sharing:
  description: All that is recorded after this run (in check mode, would be).
  returned: always
  type: dict
program:
  description: Where the program lies on the node, or would be put.
  returned: always
  type: str
  sample: /usr/local/lib/iofabric/iofabric-sharing.pyz
pending:
  description: Check mode could not tell all that a run would record.
  returned: in check mode, where it is so
  type: bool
"""

from ansible_collections.iofabric.sharing.plugins.module_utils._ansible import run_module
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.persist import (
    ABSENT,
    PRESENT,
    PROGRAM_DIR,
    resource,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._replay.store import PATH
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.host import ARGUMENTS


def main() -> None:
    """Run the module."""

    def entries(**options: object) -> object:
        return {"type": "list", "elements": "dict", "options": options}

    text, number, path = {"type": "str"}, {"type": "int"}, {"type": "path"}
    needed = {"required": True}
    rows = {"type": "list", "elements": "dict"}
    run_module(
        {
            **ARGUMENTS,
            "path": {"type": "path", "default": PATH},
            "state": {"type": "str", "choices": [PRESENT, ABSENT], "default": PRESENT},
            "connections": rows,
            "sriov": entries(bdf={"type": "raw", **needed}, numvfs={**number, "default": 0}),
            "lent": rows,
            "errors": rows,
            "borrowed": rows,
            "claims": {"type": "list", "elements": "str"},
            "p2p": rows,
            "mounts": entries(path={**text, **needed}, label={**text, "default": ""}),
            "cplanes": entries(
                cplane_id={**number, **needed},
                controllers={"type": "list", "elements": "raw"},
                server={**text, "choices": ["auto", "homi", "native"]},
                backend=text,
                heap_size=text,
                socket_mode={"type": "raw"},
                socket_group=text,
                allow_uids={"type": "list", "elements": "int"},
                driver=text,
                homi=text,
                program=path,
                socket_dir=path,
                state_dir=path,
            ),
            "all": {"type": "bool", "default": False},
            "program_dir": {"type": "path", "default": PROGRAM_DIR},
            "_program_digest": text,
            "_program_source": path,
        },
        resource,
    )


if __name__ == "__main__":
    main()
