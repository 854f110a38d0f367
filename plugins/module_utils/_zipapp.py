# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packs a program made of files of this folder into one file that any Python 3.8 or later runs.

The same sources give the same bytes: entries are sorted and not compressed (compressors differ), with one fixed
time and mode, whatever the times and modes of the files. Runs on the controller.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Tuple

_PACKAGE = "iofabric_sharing"
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Zipapp:
    """``name`` is the file's; ``main`` the module (``_cplane.cplaned``) whose ``main()`` is run and gives the exit
    status; ``sources`` what the program needs of module_utils, by path.
    """

    name: str
    main: str
    sources: Tuple[str, ...]

    def contents(self, module_utils: Path) -> Dict[str, bytes]:
        """Return what goes into the archive, by name."""
        files = {f"{_PACKAGE}/{name}": (module_utils / name).read_bytes() for name in self.sources}
        folders = {name.rpartition("/")[0] for name in files}
        files.update({f"{folder}/__init__.py": b"" for folder in folders if f"{folder}/__init__.py" not in files})
        start = f"import sys\n\nfrom {_PACKAGE}.{self.main} import main\n\nsys.exit(main())\n"
        files["__main__.py"] = start.encode("ascii")
        return files

    def build(self) -> bytes:
        """Return the zipapp, made from the files beside this one."""
        buffer = io.BytesIO()
        # Behind this line, so that the offsets in the archive count from the start of the file.
        buffer.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
            for name, data in sorted(self.contents(Path(__file__).parent).items()):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.create_system = 3
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data)
        return buffer.getvalue()

    def digest(self) -> str:
        """Return the SHA-256 of the zipapp in hex, to tell whether the one on a node is this one."""
        return hashlib.sha256(self.build()).hexdigest()

    def write(self, directory: str) -> str:
        """Put the zipapp into ``directory`` in one step, executable for everybody; returns its path."""
        path = os.path.join(directory, self.name)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(self.build())
            os.fchmod(file.fileno(), 0o755)
        os.replace(temporary, path)
        return path
