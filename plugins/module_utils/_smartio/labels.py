# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which virtual devices are borrowed under a label now. They move from boot to boot, so they are asked each time."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

from .host import ARGUMENTS, Places, open_host

LABEL_ARGUMENTS: Dict[str, Any] = {
    **{name: ARGUMENTS[name] for name in ("tool", "sysfs", "proc", "dev")},
    "smartio_state_dir": ARGUMENTS["state_dir"],
}
"""The arguments, beside ``timeout``, of a module that resolves labels."""


def labels_of(params: Mapping[str, Any]) -> Callable[[str], List[str]]:
    """A function from a label to the virtual BDFs borrowed under it, for a module with the SmartIO arguments.

    Nothing is run before it is called. It raises ToolMissing where SmartIO is not installed.
    """

    def labels(label: str) -> List[str]:
        places = {name: params[name] for name in ARGUMENTS if name != "state_dir"}
        host = open_host(Places(state_dir=params["smartio_state_dir"], **places))
        borrowed = host.store.load().borrowed
        vdevs = [host.tool.get_vdev(fdid) for fdid in sorted(borrowed) if borrowed[fdid] == label]
        return [vdev for vdev in vdevs if vdev]

    return labels
