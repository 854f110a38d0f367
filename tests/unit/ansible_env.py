# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that tests run Ansible in: none of the caller's settings, and no folder but the test's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict

_COLLECTIONS = Path(__file__).resolve().parents[2] / ".build" / "collections"


def ansible_env(folder: Path, **more: str) -> Dict[str, str]:
    """Variables for one run; ``folder`` gets a configuration that says nothing, and what Ansible writes.

    The user who runs the tests may have no home folder, which is where Ansible would put a node's temporary files.
    """
    (folder / "ansible.cfg").touch()
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        "ANSIBLE_COLLECTIONS_PATH": str(_COLLECTIONS),
        **more,
    }
