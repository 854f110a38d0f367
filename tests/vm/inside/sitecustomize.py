# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python in a guest compiles a source file of an archive once only.

Ansible sends every module as a new archive of mostly the same files. To compile them takes an emulated processor five
seconds each time.
"""

from __future__ import annotations

import _imp
import marshal
import os
import zipimport

TYPE_CHECKING = False  # as typing has it, which takes as long to import as all of this
if TYPE_CHECKING:
    from types import CodeType
    from typing import Callable

_FOLDER = "/compiled"
_compile: Callable[[str, bytes], CodeType] = getattr(zipimport, "_compile_source")  # noqa: B009 - no type knows it


def _remembered(path: str, source: bytes) -> CodeType:
    kept = f"{_FOLDER}/{_imp.source_hash(0, source).hex()}"
    try:
        with open(kept, "rb") as file:
            code: CodeType = marshal.loads(file.read())  # noqa: S302 - only this has written it
    except OSError:
        code = _compile(path, source)
        try:  # noqa: SIM105 - see TYPE_CHECKING
            _keep(kept, code)
        except OSError:
            pass  # another user than root
    return code


def _keep(path: str, code: CodeType) -> None:
    os.makedirs(_FOLDER, exist_ok=True)
    own = f"{path}.{os.getpid()}"
    with open(own, "wb") as file:
        file.write(marshal.dumps(code))
    os.rename(own, path)


setattr(zipimport, "_compile_source", _remembered)  # noqa: B010
