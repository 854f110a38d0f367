# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a program to the node when a module finds that it has not got it.

The zipapp is built here from the collection's own files; the same files always give the same bytes. The module is told
its digest, and only where the node's copy differs is the program handed over and the module run again.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, Optional

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible_collections.iofabric.sharing.plugins.module_utils._zipapp import Zipapp


class ZipappAction(ActionBase):
    """Run the module of the same name, with the program ``zipapp`` where it is needed.

    The module has the private arguments ``_program_digest`` and ``_program_source``, and answers ``need_program``.
    """

    zipapp: Zipapp

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """Run the module, and once more with the program if it asks for it."""
        result = super().run(tmp, task_vars)
        arguments = {name: value for name, value in self._task.args.items() if not name.startswith("_program")}
        arguments["_program_digest"] = self.zipapp.digest()
        answer = self._execute_module(module_args=arguments, task_vars=task_vars)
        if answer.pop("need_program", None):
            arguments["_program_source"] = self._hand_over()
            answer = self._execute_module(module_args=arguments, task_vars=task_vars)
        asked = answer.get("invocation", {}).get("module_args", {})
        for name in [name for name in asked if name.startswith("_program")]:
            del asked[name]
        result.update(answer)
        self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def _hand_over(self) -> str:
        """Copy the program to the node's folder for temporary files; returns its path there."""
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir, self.zipapp.name)
        fd, local = tempfile.mkstemp(dir=constants.DEFAULT_LOCAL_TMP)
        try:
            with open(fd, "wb") as file:
                file.write(self.zipapp.build())
            self._transfer_file(local, remote)
        finally:
            os.unlink(local)
        self._fixup_perms2((self._connection._shell.tmpdir, remote), execute=False)
        return remote
