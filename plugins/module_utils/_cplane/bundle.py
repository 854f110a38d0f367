# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packs the server into one file that any Python 3.8 or later runs: ``xnvme-cplaned-<version>.pyz``.

The same sources give the same bytes: entries are sorted and not compressed (compressors differ), with one fixed
time and mode, whatever the times and modes of the files.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Dict

from .program import NAME

_PACKAGE = "iofabric_sharing"
_SOURCES = (
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
    "_pci/address.py",
    "_pci/sysfs.py",
    "_plan.py",
)
"""What the server needs of module_utils, and nothing else."""
_MAIN = f"""\
import sys

from {_PACKAGE}._cplane.cplaned import main

sys.exit(main())
"""
_TIME = (1980, 1, 1, 0, 0, 0)


def contents(module_utils: Path) -> Dict[str, bytes]:
    """Return what goes into the archive, by name."""
    files = {f"{_PACKAGE}/{name}": (module_utils / name).read_bytes() for name in _SOURCES}
    # A folder without __init__.py is no package in an archive before Python 3.13.
    for package in (_PACKAGE, f"{_PACKAGE}/_pci"):
        files[f"{package}/__init__.py"] = b""
    files["__main__.py"] = _MAIN.encode("ascii")
    return files


def build() -> bytes:
    """Return the zipapp, made from the files beside this one."""
    buffer = io.BytesIO()
    # Behind this line, so that the offsets in the archive count from the start of the file.
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(contents(Path(__file__).parents[1]).items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def digest() -> str:
    """Return the SHA-256 of the zipapp in hex, to tell whether the one on a node is this one."""
    return hashlib.sha256(build()).hexdigest()


def write(directory: str) -> str:
    """Put the zipapp into ``directory`` in one step, executable for everybody; returns its path."""
    path = os.path.join(directory, NAME)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(build())
        os.fchmod(file.fileno(), 0o755)
    os.replace(temporary, path)
    return path
