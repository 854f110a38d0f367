# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel log's last lines about SmartIO, where they can be read: the manual page says they may hold the reason."""

from __future__ import annotations

import os
import re
from typing import List, Sequence

_RELATED = re.compile(r"smartio|\bdis_|\bntb\b", re.IGNORECASE)
_LINES = 5
_MOST_RECORDS = 20000


def related_lines(dev: str, subjects: Sequence[str]) -> List[str]:
    """At most five last lines of ``<dev>/kmsg`` that speak of SmartIO or name one of ``subjects`` (BDFs, fdids).

    Empty where the log cannot be read: it is a help, never a condition.
    """
    needles = [subject for subject in subjects if len(subject) > 4]
    found: List[str] = []
    for record in _records(os.path.join(dev, "kmsg")):
        text = record.partition(";")[2] or record
        if _RELATED.search(text) or any(needle in text for needle in needles):
            found.append(text if text.isprintable() else ascii(text))
            del found[:-_LINES]
    return found


def _records(path: str) -> List[str]:
    """The log's lines ("level,sequence,time;text"), without the indented ones that belong to a record."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    records: List[str] = []
    try:
        for _count in range(_MOST_RECORDS):
            try:
                data = os.read(fd, 65536)
            except BrokenPipeError:  # the record was overwritten meanwhile; the next read goes on
                continue
            if not data:
                break
            records.extend(line for line in data.decode("utf-8", "replace").splitlines() if not line.startswith(" "))
    except OSError:  # the end of the log (EAGAIN), or not for us to read
        pass
    finally:
        os.close(fd)
    return records
