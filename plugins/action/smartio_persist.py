# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the program that replays what is recorded to the node when the module finds that it has not got it."""

from __future__ import annotations

from ansible_collections.iofabric.sharing.plugins.module_utils._replay.bundle import SHARING
from ansible_collections.iofabric.sharing.plugins.plugin_utils.zipapp_action import ZipappAction


class ActionModule(ZipappAction):
    """Run smartio_persist, with the program where it is needed."""

    zipapp = SHARING
