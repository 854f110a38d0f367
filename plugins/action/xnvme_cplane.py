# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the server's program to the node when the module finds that it has not got it."""

from __future__ import annotations

from ansible_collections.iofabric.sharing.plugins.module_utils._cplane.bundle import CPLANED
from ansible_collections.iofabric.sharing.plugins.plugin_utils.zipapp_action import ZipappAction


class ActionModule(ZipappAction):
    """Run xnvme_cplane, with the program of the native server where it is needed."""

    zipapp = CPLANED
