# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module call asks of one server, as a checked dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from .._pci.address import check_written, normalise
from .._pci.driver import DEFAULT, check_name
from .client import MAX_ID
from .config import Config, EmulatedConfig, parse_controllers, served_uris
from .errors import ConfigError, NotYet

_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)i?B?\Z", re.IGNORECASE)
CLAIM = "claim:"
NONE = "none"
"""In the place of a driver's name: drivers are left as they are."""
_MAX_SECONDS = 1000000

Labels = Callable[[str], List[str]]
"""The virtual BDFs that are borrowed under a label now; empty where there are none."""


@dataclass(frozen=True)
class Wanted:
    """One server. ``controllers`` are as configured (``claim:LABEL`` already resolved), ``uris`` as clients see them,
    in the same order. ``written`` are the controllers as they were asked for.

    ``heap_size`` is in bytes for each controller, ``socket_mode`` an octal number's text; None leaves a thing to the
    server's default. ``driver`` is what real controllers are bound to before they are served, or NONE.
    """

    cplane_id: int
    controllers: Tuple[str, ...] = ()
    uris: Tuple[str, ...] = ()
    emulated: bool = False
    server: str = "auto"
    backend: Optional[str] = None
    heap_size: Optional[int] = None
    manager: str = "auto"
    socket_mode: str = "0660"
    socket_group: Optional[str] = None
    allow_uids: Tuple[int, ...] = ()
    written: Tuple[str, ...] = ()
    driver: str = NONE

    @property
    def real(self) -> Tuple[str, ...]:
        """The addresses of the controllers that are real."""
        return tuple(name for name in self.controllers if not name.startswith("emu:"))


def wanted_from(element: Mapping[str, Any], labels: Labels) -> Wanted:
    """A server from a module call's element. Raises ConfigError (or AddressError) that names what is wrong.

    NotYet (or what ``labels`` raises) says that what is claimed is not borrowed.
    """
    written = written_from(element)
    controllers = _resolve(written, labels)
    configs: Sequence[Config] = parse_controllers(controllers) if controllers else []
    return Wanted(
        cplane_id=check_id(element["cplane_id"]),
        controllers=tuple(controllers),
        uris=tuple(served_uris(configs)),
        emulated=any(isinstance(config, EmulatedConfig) for config in configs),
        server=element["server"],
        backend=element.get("backend"),
        heap_size=None if element.get("heap_size") is None else size(element["heap_size"], "heap_size"),
        manager=element["manager"],
        socket_mode=_mode(element["socket_mode"]),
        socket_group=_group(element.get("socket_group")),
        allow_uids=_uids(element.get("allow_uids") or ()),
        written=tuple(written),
        driver=_driver(element.get("driver") or NONE),
    )


def check_id(cplane_id: int) -> int:
    """A control plane's id that clients can use: they read 0 as "not shared"."""
    if not 1 <= cplane_id <= MAX_ID:
        raise ConfigError(f"cplane_id: {cplane_id} is not a number from 1 to {MAX_ID} (clients read 0 as 'not shared')")
    return cplane_id


def check_seconds(seconds: float, option: str) -> float:
    """A time that can be waited for; neither negative, nor nan, nor without end."""
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ConfigError(f"{option}: {seconds} is not a number of seconds from 0 to {_MAX_SECONDS}")
    return seconds


def uri_of(value: object) -> str:
    """A controller's URI as servers list it: a BDF in full, or what else a server may name."""
    text = check_written(value, "controllers")
    return (
        normalise(text) if re.fullmatch(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", text) else text
    )


def written_from(element: Mapping[str, Any]) -> List[str]:
    """The controllers of an element as they were asked for, in a stable order, since they are a set."""
    texts = [check_written(value, "controllers") for value in element.get("controllers") or []]
    return sorted({text if text.startswith((CLAIM, "emu:")) else normalise(text) for text in texts})


def _resolve(written: Sequence[str], labels: Labels) -> List[str]:
    """The controllers without claims, in a stable order, too."""
    controllers: List[str] = []
    for text in written:
        controllers += _claimed(text[len(CLAIM) :], labels) if text.startswith(CLAIM) else [text]
    return sorted(set(controllers))


def _claimed(label: str, labels: Labels) -> List[str]:
    bdfs = labels(label)
    if not bdfs:
        raise NotYet(f"controllers: nothing is borrowed under the label {label!a}; borrow it first")
    return bdfs


def size(value: object, option: str) -> int:
    """A size as people write it (bytes, or with K, M, G, T as powers of 1024), in bytes."""
    match = _SIZE.match(str(value).strip())
    if match is None or int(match.group(1)) == 0:
        raise ConfigError(f"{option}: {value!a} is not a size such as 80M or 83886080")
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match.group(2).upper()]


def _mode(value: object) -> str:
    """An octal mode as text; YAML makes another number of an unquoted 0660, so numbers are refused."""
    text = value if isinstance(value, str) else ""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ConfigError(f"socket_mode: {value!a} is not an octal mode written as text; quote it, as in '0660'")
    return text.rjust(4, "0")


def _driver(value: object) -> str:
    """A driver that a controller can be served with; the kernel's own choice is none."""
    name = check_name(value, NONE)
    if name == DEFAULT:
        raise ConfigError(f"driver: {DEFAULT} is not a driver to serve with; give one such as vfio-pci, or {NONE}")
    return name


def _group(value: Optional[str]) -> Optional[str]:
    """A group's name or number; the highest number is no group, it tells chown to leave things as they are."""
    if value is None:
        return None
    wrong = not value or not value.isascii() or not value.isprintable() or set(value) & set(" :/")
    if wrong or value[0] in "+-" or (value.isdigit() and int(value[:11]) >= MAX_ID):
        raise ConfigError(f"socket_group: {value!a} is neither a group's name nor its number (0 to {MAX_ID - 1})")
    return value


def _uids(values: Sequence[int]) -> Tuple[int, ...]:
    for uid in values:
        if not 0 <= uid <= MAX_ID:
            raise ConfigError(f"allow_uids: {uid} is not a user's number (0 to {MAX_ID})")
    return tuple(sorted(set(values)))
