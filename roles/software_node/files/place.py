# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the host, and puts the software node's program in its place or takes it away.

Runs on the node. Standard input is a JSON object:

- ``action``: look, place or remove
- ``library``: the folder that holds the program
- ``sbin``: the folder that holds the tools
- ``files``: the program's files, each with its content in Base64 (not for remove)

Standard output is a JSON object, for look with

- ``modules``: real dis_* modules that are loaded
- ``tools``: paths of a smartio_tool that is not the software node's
- ``systemd``: whether it runs here
- ``differs``: whether the program is not here exactly as given
- ``present``: whether anything of program and tools is here
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
from typing import Any, Callable, Dict, List

PACKAGE = "software_node"
TOOLS = ("smartio_tool", "dis_config", "disinfo")
# The tools' own words (wrappers.py of the program).
OURS = b"A tool of the software node"
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def read(path: str) -> bytes:
    """The content of a file; empty when there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def own_tools(sbin: str) -> List[str]:
    """The software node's tools that are here."""
    paths = [os.path.join(sbin, name) for name in TOOLS]
    return [path for path in paths if OURS in read(path)]


def names(folder: str) -> List[str]:
    """The program's files that are here."""
    return [name for name in os.listdir(folder) if name.endswith(".py")] if os.path.isdir(folder) else []


def look(data: Dict[str, Any]) -> Dict[str, Any]:
    """What a real SmartIO installation would have here, and what of the software node there is."""
    folders = [data["sbin"], *os.environ.get("PATH", "").split(":"), *FOLDERS]
    paths = {os.path.realpath(os.path.join(folder, "smartio_tool")) for folder in folders if folder}
    loaded = os.listdir("/sys/module") if os.path.isdir("/sys/module") else []
    folder = os.path.join(data["library"], PACKAGE)
    have = {name: read(os.path.join(folder, name)) for name in names(folder)}
    return {
        "modules": sorted(name for name in loaded if name.startswith("dis_")),
        "tools": sorted(path for path in paths if os.path.exists(path) and OURS not in read(path)),
        "systemd": os.path.isdir("/run/systemd/system"),
        "differs": have != {name: base64.b64decode(content) for name, content in data["files"].items()},
        "present": os.path.exists(data["library"]) or bool(own_tools(data["sbin"])),
    }


def place(data: Dict[str, Any]) -> Dict[str, Any]:
    """Makes the program's folder hold exactly the files given."""
    folder = os.path.join(data["library"], PACKAGE)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    for name, content in data["files"].items():
        path = os.path.join(folder, name)
        with open(path + ".new", "wb") as stream:
            stream.write(base64.b64decode(content))
        os.chmod(path + ".new", 0o644)
        os.replace(path + ".new", path)
    for name in set(names(folder)) - set(data["files"]):
        os.unlink(os.path.join(folder, name))
    shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
    return {}


def remove(data: Dict[str, Any]) -> Dict[str, Any]:
    """Takes the program and its tools away; a tool of somebody else stays."""
    shutil.rmtree(data["library"], ignore_errors=True)
    for path in own_tools(data["sbin"]):
        os.unlink(path)
    for folder in (data["sbin"], os.path.dirname(data["sbin"])):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # only when it is empty
    return {}


def main() -> None:
    """Does what standard input asks for."""
    os.umask(0o022)
    data = json.load(sys.stdin)
    actions: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {"look": look, "place": place, "remove": remove}
    json.dump(actions[data["action"]](data), sys.stdout)


if __name__ == "__main__":
    main()
