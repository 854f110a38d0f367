# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the packed server is made of."""

from __future__ import annotations

from .._zipapp import Zipapp
from .program import NAME

CPLANED = Zipapp(
    name=NAME,
    main="_cplane.cplaned",
    sources=(
        "_cplane/__init__.py",
        "_cplane/backend.py",
        "_cplane/client.py",
        "_cplane/config.py",
        "_cplane/controller.py",
        "_cplane/cplaned.py",
        "_cplane/emulated.py",
        "_cplane/errors.py",
        "_cplane/example.py",
        "_cplane/heap.py",
        "_cplane/holders.py",
        "_cplane/listener.py",
        "_cplane/nvme.py",
        "_cplane/qpair.py",
        "_cplane/server.py",
        "_cplane/vfio.py",
        "_cplane/vfio_backend.py",
        "_cplane/wire.py",
        "_notify.py",
        "_pci/address.py",
        "_pci/sysfs.py",
        "_plan.py",
    ),
)
"""The server, and nothing else."""
