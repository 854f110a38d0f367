# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests in a lab ask of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("hosts.py")


def hosts(*words: str) -> str:
    """Runs the program of the lab; its output."""
    done = subprocess.run([sys.executable, "-B", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on(name: str, command: str) -> str:
    """Runs a command on a host; its output."""
    return hosts("ssh", "-o", "ConnectTimeout=5", name, command).strip()
