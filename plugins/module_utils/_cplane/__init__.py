# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The xNVMe control plane: its wire format, a client, and a native server with emulated or real controllers."""

from __future__ import annotations

VERSION = "0.1.0"
"""The version of the collection, which the packed server carries in its name."""
