# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server is to serve: the configuration of a controller, and the address that it is served under.

A real controller is written as its BDF (``0000:81:00.0``). An emulated one is written
``emu:NAME?size=64M&path=FILE&lba=512&queues=64&latency=100us&format_time=5s&timeout=30s``, everything after NAME
being optional. Clients demand an address in the shape of a BDF, so an emulated controller is served under an
invented one of domain ffff, which follows from its name.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Union

from .errors import ConfigError

MAX_CTRLRS = 64
PAGE = 4096
MAX_QUEUES = 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)", re.ASCII)
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(us|ms|s|)", re.ASCII)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


@dataclass(frozen=True)
class EmulatedConfig:
    """An emulated controller: sizes in bytes, times in seconds.

    Without ``path`` the data lives in memory. ``size`` is None for "as large as the file at path". ``latency`` is
    added to every I/O command, ``format_time`` is what a Format takes; ``timeout`` is how long the server waits for an
    admin command.
    """

    name: str
    size: Optional[int] = None
    path: Optional[str] = None
    lba: int = 512
    queues: int = 64
    latency: float = 0.0
    format_time: float = 0.0
    timeout: float = 30.0

    @property
    def label(self) -> str:
        """How the controller is named in messages."""
        return "emu:" + self.name


@dataclass(frozen=True)
class PciConfig:
    """A real controller, by its address."""

    bdf: str

    @property
    def label(self) -> str:
        """How the controller is named in messages."""
        return self.bdf


Config = Union[EmulatedConfig, PciConfig]


def parse_controller(text: str) -> Config:
    """Read the configuration of one controller; raises ConfigError that names the part which is wrong."""
    if text.startswith("emu:"):
        return _parse_emulated(text)
    if _BDF.fullmatch(text):
        return PciConfig(text)
    raise ConfigError(f"{text!r} is neither a BDF like 0000:81:00.0 nor emu:NAME?size=64M")


def parse_controllers(texts: Sequence[str]) -> List[Config]:
    """Read all controllers of a server: at least one, at most 64, no name and no file twice."""
    configs = [parse_controller(text) for text in texts]
    if not 1 <= len(configs) <= MAX_CTRLRS:
        raise ConfigError(f"a server has 1 to {MAX_CTRLRS} controllers, not {len(configs)}")
    _refuse_twice("controller", [config.label for config in configs])
    _refuse_twice("path", [config.path for config in configs if isinstance(config, EmulatedConfig) and config.path])
    return configs


def _refuse_twice(what: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{what} {value} is named twice")


def _parse_emulated(text: str) -> EmulatedConfig:
    name, mark, query = text[len("emu:") :].partition("?")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{text!r}: the name {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores")
    options: Dict[str, object] = {}
    for part in query.split("&") if mark else ():
        key, equals, value = part.partition("=")
        if key not in _OPTIONS:
            raise ConfigError(f"{text!r}: unknown option {key!r} (there are {', '.join(_OPTIONS)})")
        if not equals or key in options:
            raise ConfigError(f"{text!r}: {key} {'is given twice' if equals else 'needs a value'}")
        try:
            options[key] = _OPTIONS[key](value)
        except ValueError as error:
            raise ConfigError(f"{text!r}: {key}={value}: {error}") from None
    config = EmulatedConfig(name, **options)  # type: ignore[arg-type]
    if config.size is None and config.path is None:
        return EmulatedConfig(name, size=64 << 20, **options)  # type: ignore[arg-type]
    return config


def _size(value: str) -> int:
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError("not a size such as 64M (bytes, or with K, M, G, T)")
    size = int(match.group(1)) << _UNITS[match.group(2)]
    if not size or size % PAGE or size >= 1 << 50:
        raise ValueError(f"must be a multiple of {PAGE} bytes above 0 and below 1 PiB")
    return size


def _path(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path")
    return value


def _lba(value: str) -> int:
    if value not in ("512", "4096"):
        raise ValueError("must be 512 or 4096")
    return int(value)


def _queues(value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", value, re.ASCII) or int(value) > MAX_QUEUES:
        raise ValueError(f"must be 1 to {MAX_QUEUES}")
    return int(value)


def _time(value: str) -> float:
    match = _TIME.fullmatch(value)
    if not match:
        raise ValueError("not a time such as 100us, 5ms or 2s (seconds without a unit)")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _timeout(value: str) -> float:
    seconds = _time(value)
    if not 0.001 <= seconds <= 4000000:
        raise ValueError("must be 1ms to 4000000s")
    return seconds


_OPTIONS: Dict[str, Callable[[str], object]] = {
    "size": _size,
    "path": _path,
    "lba": _lba,
    "queues": _queues,
    "latency": _time,
    "format_time": _time,
    "timeout": _timeout,
}


def served_uris(configs: Sequence[Config]) -> List[str]:
    """Return the address that each controller is served under, in the same order.

    A real controller keeps its BDF. That of an emulated one is made from its name alone, unless two names of this
    server meet: then the one that sorts later moves to the next free place.
    """
    taken: Dict[int, str] = {}
    for name in sorted(config.name for config in configs if isinstance(config, EmulatedConfig)):
        place = zlib.crc32(name.encode("ascii")) & 0xFFFF
        while place in taken:
            place = (place + 1) & 0xFFFF
        taken[place] = name
    invented = {name: f"ffff:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}" for place, name in taken.items()}
    return [invented[config.name] if isinstance(config, EmulatedConfig) else config.bdf for config in configs]
