# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystem of a claim is mounted where, as lines of /etc/fstab; pure.

Nothing waits for such a mount at boot, and it waits for what is done again at boot. It is found by the UUID of its
filesystem, since device nodes are numbered anew each time.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

ORDERING = "nofail,x-systemd.after=iofabric-sharing.service"
# A UUID that no filesystem has, for a device that check mode only expects.
_NOT_KNOWN = "not-known-yet"
# What fstab(5) has escapes for, the backslash first.
_ESCAPES = (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012"))


@dataclass(frozen=True)
class Mount:
    """How a claim's filesystem is mounted; see the filter's documentation."""

    label: str
    path: str
    field: str
    line: str
    search: bool
    listed: bool
    error: str


def plan_mounts(
    claims: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], fstab: str = ""
) -> List[Dict[str, Any]]:
    """A Mount, as a dictionary, for each claim that has one.

    ``rows`` are smartio_borrow's. A claim without a row, or with devices that are not borrowed yet, is only expected.
    """
    lines = _lines(fstab)
    wanted = [claim for claim in claims if claim.get("mount")]
    return [asdict(_plan(claim, [row for row in rows if row["label"] == claim["label"]], lines)) for claim in wanted]


def _lines(fstab: str) -> Dict[str, str]:
    """The lines by mount point, as it is written there."""
    fields = [(line, line.split()) for line in fstab.splitlines() if not line.lstrip().startswith("#")]
    return {words[1]: line for line, words in fields if len(words) > 1}


def _plan(claim: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], lines: Mapping[str, str]) -> Mount:
    mount = claim["mount"]
    path = re.sub(r"(?<=.)/+\Z", "", str(mount["path"]))
    field = path
    for char, escape in _ESCAPES:
        field = field.replace(char, escape)
    line = lines.get(field, "")
    found = _Found(rows, mount.get("partition"))
    uuid = mount.get("uuid") or (found.uuids[0] if found.uuids else _NOT_KNOWN)
    options = "{},{}".format(mount.get("options") or "defaults", ORDERING)
    error = f"/etc/fstab has another line for {path}; take that out, or mount elsewhere"
    if not line or ORDERING in line:
        error = found.error(mount.get("uuid"))
    return Mount(
        label=str(claim["label"]),
        path=path,
        field=field,
        line=" ".join([f"UUID={uuid}", field, mount.get("fstype") or "auto", options, "0", "0"]),
        search=not mount.get("uuid"),
        listed=ORDERING in line,
        error=f"claim {claim['label']}: {error}" if error else "",
    )


class _Found:
    """The filesystems on what is borrowed under a label, all of them or those of one partition."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], partition: Optional[int]) -> None:
        nodes = [node for row in rows for node in row.get("device_nodes") or ()]
        links = {link: node for row in rows for link, node in (row.get("by_uuid") or {}).items()}
        self._here = [row for row in rows if row.get("vdev")]
        self._where = ", ".join(map(os.path.basename, nodes)) or "its devices"
        if partition is not None:
            self._where += f" (partition {partition})"
            of_it = {"{}{}{}".format(node, "p" if node[-1].isdigit() else "", partition) for node in nodes}
            links = {link: node for link, node in links.items() if node in of_it}
        self.uuids: List[str] = list(dict.fromkeys(map(os.path.basename, links)))

    def error(self, uuid: Optional[str]) -> str:
        """Why the filesystem cannot be told, or is not there; empty where it can, or where only a run can tell."""
        listed = ", ".join(self.uuids)
        if uuid:
            if not self.uuids or uuid in self.uuids:
                return ""
            return f"there is no filesystem {uuid} on {self._where}, but {listed}; correct mount.uuid"
        if not self._here or len(self.uuids) == 1:
            return ""
        if self.uuids:
            advice = "choose one by mount.uuid or mount.partition"
            return f"there are several filesystems on {self._where} ({listed}); {advice}"
        advice = "nothing is formatted here, so make one on it, or correct mount.partition"
        return f"there is no filesystem on {self._where}; {advice}"
