# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SmartIO tools' output, as text, to dataclasses.

Three generations of ``list`` are known; keys of ``show`` may be missing, new or in another order. Nothing here
guesses: an unknown state word is kept as it stands, and what cannot be read is handed on as such.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from .errors import ToolUnreadable
from .model import Borrowed, FabricDevice, PoolEntry, PoolList, normalise_fdid

_ENTRY = re.compile(r"\s*(?:ID\s+)?(?:0[xX])?(?P<fdid>[0-9a-fA-F]{2,16})\s*:\s*(?P<rest>.*)\Z", re.DOTALL)
_WORD = re.compile(r"\[([^\[\]]*)\]\Z")
_CARD = re.compile(r"Card\s+(0*[1-9][0-9]{0,8})\s*-\s*NodeId:\s*([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_BDF = re.compile(
    r"(?<![0-9A-Fa-f:.])(?:([0-7]?[0-9A-Fa-f]{4,7}):)?([0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7])(?![0-9A-Fa-f:.])"
)

_SHOW_TEXT = {
    "name": "name",
    "available": "available",
    "location": "location",
    "physical slot": "slot",
    "serial number": "serial",
    "uuid": "uuid",
}
_SHOW_HEX = {
    "vendor id": "vendor_id",
    "device id": "device_id",
    "subsystem vendor id": "subsystem_vendor_id",
    "subsystem device id": "subsystem_device_id",
}
_SHOW_NUMBER = {"adapter": "adapter", "nodeid": "node_id", "node id": "node_id", "local users": "users"}
_SHOW_BDF = {"remote bdf": "bdf", "local bdf": "bdf", "bdf": "bdf"}


def parse_list(text: str) -> PoolList:
    """``smartio_tool list``: every generation; notes that cannot be entries ("no devices") are passed over."""
    entries, unread = [], []
    for line in text.replace("\r\n", "\n").split("\n"):
        entry = _parse_entry(line)
        if entry is not None:
            entries.append(entry)
        elif _looks_like_an_entry(line):
            unread.append(ascii(line[:200]))
    return PoolList(tuple(entries), tuple(unread))


def _parse_entry(line: str) -> Optional[PoolEntry]:
    match = _ENTRY.match(line)
    if match is None:
        return None
    fdid, rest = normalise_fdid(match.group("fdid")), _printable(match.group("rest")).strip()
    state = _WORD.search(rest)
    if state is None:
        return PoolEntry(fdid, rest, "")
    return PoolEntry(fdid, rest[: state.start()].rstrip(), state.group(1).strip())


def _printable(text: str) -> str:
    """A name is kept whatever its bytes are: control characters become U+FFFD, as broken UTF-8 has already."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text)


def _looks_like_an_entry(line: str) -> bool:
    return "[" in line


def _pairs(text: str) -> Dict[str, str]:
    """``Key: value`` lines; of a key that comes twice the first counts."""
    pairs: Dict[str, str] = {}
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            pairs.setdefault(" ".join(key.lower().split()), _printable(value).strip())
    return {key: value for key, value in pairs.items() if value and value.upper() != "N/A"}


def parse_show(fdid: str, text: str) -> FabricDevice:
    """``smartio_tool show FDID``. Raises ToolUnreadable where not one known key was found."""
    fields: Dict[str, Any] = {}
    for key, value in _pairs(text).items():
        if key in _SHOW_TEXT:
            fields[_SHOW_TEXT[key]] = value if key == "name" or "\ufffd" not in value else None
        elif key in _SHOW_HEX:
            fields[_SHOW_HEX[key]] = _hex_id(value)
        elif key in _SHOW_NUMBER:
            fields[_SHOW_NUMBER[key]] = _number(value)
        elif key in _SHOW_BDF:
            fields.setdefault(_SHOW_BDF[key], find_bdf(value))
    if not fields:
        raise ToolUnreadable(
            f"'smartio_tool show {fdid}' printed nothing that can be read as 'Key: value' lines", output=text[:2000]
        )
    return FabricDevice(fdid=fdid, **fields)


def _hex_id(value: str) -> Optional[str]:
    match = re.match(r"(?:0[xX])?([0-9a-fA-F]{1,4})\Z", value)
    return match.group(1).lower().rjust(4, "0") if match else None


def _number(value: str) -> Optional[int]:
    return int(value) if re.match(r"[0-9]{1,9}\Z", value) else None


def find_bdf(text: str) -> Optional[str]:
    """The first BDF in a text, in full and lower case, or None."""
    match = _BDF.search(text)
    return "{:04x}:{}".format(int(match.group(1) or "0", 16), match.group(2).lower()) if match else None


def parse_borrow(text: str) -> Borrowed:
    """``smartio_tool borrow FDID``; both fields None where the lines are not there."""
    pairs = _pairs(text)
    return Borrowed(find_bdf(pairs.get("local virtual device", "")), pairs.get("bound to driver"))


def parse_node_ids(text: str) -> Dict[int, int]:
    """``dis_config -gn``: node id by adapter. Cards count from 1, adapters from 0."""
    return {int(card) - 1: int(node) for card, node in _CARD.findall(text)}


def parse_node_id(hostname: str, text: str) -> int:
    """``disinfo get-nodeid -hostname H``: a bare number. Raises ToolUnreadable for anything else."""
    node_id = _number(text.strip())
    if not node_id:
        raise ToolUnreadable(
            f"'disinfo get-nodeid -hostname {hostname}' printed no node id but {text[:200]!a}", output=text[:2000]
        )
    return node_id
