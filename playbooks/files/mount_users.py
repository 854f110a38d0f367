# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps mount points from being unmounted: given as arguments, answered as JSON on standard output.

{path: {"mounted": true, "users": ["bash (pid 812)"], "below": ["/srv/x/y"]}}
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from typing import Dict, List


def mount_points(mountinfo: str) -> List[str]:
    """The mount points of a mountinfo file, in order."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.split(" ")[4] for line in file]
    return [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), point) for point in fields]


def _is_in(place: str, path: str) -> bool:
    return place == path or place.startswith(path + "/")


def users(proc: str, path: str) -> List[str]:
    """The processes that have a file, a directory or a program below a path open, each as "name (pid)"."""
    found = []
    for process in glob.glob(os.path.join(proc, "[0-9]*")):
        links = [os.path.join(process, name) for name in ("cwd", "root", "exe")]
        places = []
        for link in links + glob.glob(os.path.join(process, "fd", "*")):
            try:
                places.append(os.readlink(link))
            except OSError:  # the process, or the file, is gone, or the link is not for us to read
                continue
        if any(_is_in(place, path) for place in places):
            found.append(f"{_name(process)} (pid {os.path.basename(process)})")
    return sorted(found)


def _name(process: str) -> str:
    try:
        with open(os.path.join(process, "comm"), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def look(proc: str, paths: List[str]) -> Dict[str, Dict[str, object]]:
    """Of every path, whether it is mounted, who uses it, and what is mounted below it."""
    points = mount_points(os.path.join(proc, "self/mountinfo"))
    return {
        path: {
            "mounted": path in points,
            "users": users(proc, path) if path in points else [],
            "below": sorted({point for point in points if point.startswith(path + "/")}),
        }
        for path in paths
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look("/proc", sys.argv[1:])) + "\n")
