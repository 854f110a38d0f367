# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of the node: what a command answers, and what is wrong with a configuration."""

from __future__ import annotations

import errno
import os


class NodeError(Exception):
    """A command that failed: the errno it exits with, and the reason (for the kernel log)."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason

    @property
    def text(self) -> str:
        """The words of the errno, as perror prints them."""
        return os.strerror(self.number)


class NodeGone(NodeError):
    """Nobody listens where another node was: its host is there, its daemon is not, and what it held is forgotten."""


class UsageError(NodeError):
    """A command line that makes no sense; its reason is printed to the caller, EINVAL is the exit status."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


class ConfigError(Exception):
    """A configuration that cannot be used: one sentence that names the place and the remedy."""


class ClusterError(Exception):
    """A cluster of local nodes that cannot be brought up, down or found: one sentence."""
