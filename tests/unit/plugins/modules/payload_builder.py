# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds AnsiballZ payloads with ansible-core's own code, one JSON request a line.

A process of its own, since ansible-core's collection loader changes how Python imports collections and would get in
the way of the tests. ansible-core keeps the zip of a module in its local temporary folder, so only the first payload of
a module costs time.

Request: ``{"module": FQCN, "args": {...}, "check": bool, "diff": bool, "interpreter": path}``; answer:
``{"payload": text}`` or ``{"error": text}``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible import constants as C
from ansible.executor.module_common import modify_module
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_loader
from ansible.release import __version__
from ansible.template import Templar


def internal_args(module: str, check: bool, diff: bool) -> dict[str, Any]:
    """The arguments that an action plugin adds to those of the user (``ActionBase._update_module_args``)."""
    return {
        "_ansible_check_mode": check,
        "_ansible_no_log": False,
        "_ansible_debug": False,
        "_ansible_diff": diff,
        "_ansible_verbosity": 0,
        "_ansible_version": __version__,
        "_ansible_module_name": module,
        "_ansible_syslog_facility": "LOG_USER",
        "_ansible_selinux_special_fs": list(C.DEFAULT_SELINUX_SPECIAL_FS),
        "_ansible_socket": None,
        "_ansible_shell_executable": "/bin/sh",
        "_ansible_keep_remote_files": False,
        "_ansible_tmpdir": None,
        "_ansible_remote_tmp": "~/.ansible/tmp",
        "_ansible_ignore_unknown_opts": False,
        "_ansible_target_log_info": None,
        **traceback_args(),
    }


def traceback_args() -> dict[str, Any]:
    """ansible-core 2.19 tells modules for which events tracebacks are wanted."""
    if tuple(int(part) for part in __version__.split(".")[:2]) < (2, 19):
        return {}
    return {"_ansible_tracebacks_for": []}


def build(module: str, args: dict[str, Any], check: bool, diff: bool, interpreter: str) -> str:
    """The payload as text. Up to ansible-core 2.18 ``modify_module`` answers a tuple, from 2.19 on an object."""
    found = module_loader.find_plugin_with_context(module, ".py")
    if not found.resolved:
        raise LookupError(f"there is no module {module}")
    task_vars = {"ansible_python_interpreter": interpreter}
    built = modify_module(
        module_name=module,
        module_path=found.plugin_resolved_path,
        module_args={**args, **internal_args(module, check, diff)},
        templar=Templar(loader=DataLoader(), variables=task_vars),
        task_vars=task_vars,
        module_compression="ZIP_DEFLATED",
        environment={},
    )
    data: bytes = built[0] if isinstance(built, tuple) else built.b_module_data
    return data.decode()


def main() -> None:
    init_plugin_loader()
    for line in sys.stdin:
        try:
            answer = {"payload": build(**json.loads(line))}
        except Exception as error:  # noqa: BLE001 - the test that asked shall see it, whatever it is
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
