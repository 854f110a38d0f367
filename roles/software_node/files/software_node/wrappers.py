# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the scripts smartio_tool, dis_config and disinfo that lead to a node."""

from __future__ import annotations

import os
import sys

PROGRAMS = ("smartio_tool", "dis_config", "disinfo")

_BODY = """
# A tool of the software node; written by its daemon.
import sys
sys.path.insert(0, {package!r})
from software_node.tool import main
sys.exit(main({folder!r}, {program!r}, sys.argv[1:]))
"""


def _interpreter() -> str:
    """The first line: isolated and without site-packages, since that starts fastest."""
    if len(sys.executable) < 100 and " " not in sys.executable:
        return f"#!{sys.executable} -ISE"
    quoted = sys.executable.replace("'", "'\\''")
    return f"#!/bin/sh\n'''exec' '{quoted}' -ISE \"$0\" \"$@\"\n'''"


def write_wrappers(target: str, folder: str) -> None:
    """The three tools in the folder ``target``, in front of the node whose state is in ``folder``."""
    os.makedirs(target, exist_ok=True)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for program in PROGRAMS:
        path = os.path.join(target, program)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            stream.write(_interpreter() + _BODY.format(package=package, folder=folder, program=program))
        os.chmod(path + ".new", 0o755)  # noqa: S103 - a program that everybody may start
        os.rename(path + ".new", path)
