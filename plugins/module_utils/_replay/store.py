# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file that says what this host had been granted: connections, lent and borrowed devices, control planes.

It holds what a device *is* (serial number, UUID, owning node and address), never what somebody had selected by. It is
written in one step, and read tolerantly: keys that are not known are passed over, missing ones have their defaults,
but a value of another kind than it must be is an error that names its place.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from .._plan import SharingError
from .._program import replace_file
from .._smartio.connections import Connection
from .._smartio.host import ARGUMENTS, Places

PATH = "/etc/iofabric/sharing.json"
FORMAT = 1

# More than any host has to say: a file that was replaced by something else does not fill the memory.
_MOST_BYTES = 16 << 20
_FULL_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_PLACES = ("tool", "sysfs", "proc", "dev", "state_dir")

Bdf = str
"""A PCI address in full, lower case."""

Entry = TypeVar("Entry")


class StoreError(SharingError):
    """The file cannot be used: damaged, of another format, or not readable."""


@dataclass(frozen=True)
class SriovEntry:
    """Virtual functions of a physical function of this host."""

    bdf: Bdf
    numvfs: int


@dataclass(frozen=True)
class LentEntry:
    """A device of this host that is in the pool; ``state`` is ``available`` or ``unavailable``.

    Ids are four hexadecimal digits; what could not be told is None.
    """

    bdf: Bdf
    state: str = "available"
    serial: Optional[str] = None
    vendor_id: Optional[str] = None
    device_id: Optional[str] = None


@dataclass(frozen=True)
class BorrowedEntry:
    """A device that this host borrowed. ``fdid`` is what it was when it was recorded: after a reboot only a hint.

    ``node_id`` and ``bdf`` say who owns it, and its address there.
    """

    fdid: str
    label: Optional[str] = None
    node_id: Optional[int] = None
    bdf: Optional[Bdf] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    vendor_id: Optional[str] = None
    device_id: Optional[str] = None
    dma_window: Optional[str] = None

    @property
    def place(self) -> Optional[End]:
        """Owner and address, where both are known."""
        return None if self.node_id is None or self.bdf is None else End(self.node_id, self.bdf)


@dataclass(frozen=True)
class End:
    """One device of a p2p pair, by its owner and its address there."""

    node_id: int
    bdf: Bdf

    def __str__(self) -> str:
        return f"{self.bdf} of node {self.node_id}"


@dataclass(frozen=True)
class PairEntry:
    """Two borrowed devices of which ``source`` reaches a BAR of ``destination`` (None: as the tool chooses)."""

    source: End
    destination: End
    bar_number: Optional[int] = field(default=None, metadata={"key": "bar"})

    def __str__(self) -> str:
        return f"{self.source} -> {self.destination}" + ("" if self.bar_number is None else f" (BAR {self.bar_number})")


@dataclass(frozen=True)
class MountEntry:
    """A mount point, known to systemd, of a filesystem on what is borrowed under a label."""

    label: str
    path: str


@dataclass(frozen=True)
class CplaneEntry:
    """A server of the control plane, with the settings of ``xnvme_cplane``; controllers as written, not resolved."""

    cplane_id: int
    controllers: Tuple[str, ...] = ()
    server: str = "auto"
    backend: Optional[str] = None
    heap_size: Optional[str] = None
    socket_mode: str = "0660"
    socket_group: Optional[str] = None
    allow_uids: Tuple[int, ...] = ()
    driver: str = "none"
    homi: str = "homi"
    program: Optional[str] = None
    socket_dir: str = "/tmp"  # noqa: S108 - where clients look
    state_dir: Optional[str] = None

    @property
    def labels(self) -> List[str]:
        """The labels whose devices it serves."""
        return [one.partition(":")[2] for one in self.controllers if one.startswith("claim:")]


DEFAULT_PLACES = Places(**{name: ARGUMENTS[name]["default"] for name in ARGUMENTS})


@dataclass(frozen=True)
class Sharing:
    """All that is recorded. The ``timeout`` of ``places`` is not: it has its default."""

    places: Places = DEFAULT_PLACES
    connections: Tuple[Connection, ...] = ()
    sriov: Tuple[SriovEntry, ...] = ()
    lent: Tuple[LentEntry, ...] = ()
    borrowed: Tuple[BorrowedEntry, ...] = ()
    pairs: Tuple[PairEntry, ...] = ()
    mounts: Tuple[MountEntry, ...] = ()
    cplanes: Tuple[CplaneEntry, ...] = ()

    @property
    def has_smartio(self) -> bool:
        """Whether anything is recorded that SmartIO is needed for."""
        return bool(self.connections or self.sriov or self.lent or self.borrowed or self.pairs or self.mounts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is recorded."""
        return not self.has_smartio and not self.cplanes


# -- writing ----------------------------------------------------------------------------------------------------------


def to_json(sharing: Sharing) -> Dict[str, Any]:
    """The content of the file."""
    places = asdict(sharing.places)
    return {
        "format": FORMAT,
        "places": {name: places[name] for name in _PLACES},
        "lender": {
            "connections": _plain(sharing.connections),
            "sriov": _plain(sharing.sriov),
            "devices": _plain(sharing.lent),
        },
        "borrower": {
            "devices": _plain(sharing.borrowed),
            "p2p": _plain(sharing.pairs),
            "mounts": _plain(sharing.mounts),
        },
        "cplanes": _plain(sharing.cplanes),
    }


def _plain(entries: Tuple[Any, ...]) -> List[Dict[str, Any]]:
    return [{_key(one): _plain_value(getattr(entry, one.name)) for one in fields(entry)} for entry in entries]


def _plain_value(value: Any) -> Any:
    if isinstance(value, End):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _key(one: Field[Any]) -> str:
    """What a field is called in the file."""
    return str(one.metadata.get("key", one.name))


def to_text(sharing: Sharing) -> str:
    """The file, as people like to read it."""
    return json.dumps(to_json(sharing), indent=1) + "\n"


def write(path: str, sharing: Sharing) -> None:
    """Write the file in one step; StoreError where it cannot be. Call it under the lock of the state folder."""
    try:
        replace_file(path, to_text(sharing).encode(), 0o644)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}; "
            "run as root (become: true), or make room for it"
        ) from None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: str) -> Optional[Sharing]:
    """What is recorded; None where there is no file, StoreError for anything that is not such a file."""
    data = read_bytes(path)
    return None if data is None else parse(path, data)


def read_bytes(path: str) -> Optional[bytes]:
    """The file as it is; None where there is none, StoreError where it cannot be read."""
    try:
        # What is not a plain file could block for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(f"{path} is not a file; remove it, and record anew (run the site playbook)")
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}; correct its mode") from None


def parse(path: str, data: bytes) -> Sharing:
    """What the content of the file at ``path`` says; StoreError that names what is wrong with it."""
    try:
        return from_json(json.loads(data.decode()))
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, _Damage) else "it is not JSON"
        raise StoreError(
            f"{path} is damaged: {said}; correct it, or remove it and record anew (run the site playbook)"
        ) from None


class _Damage(ValueError):
    """What is wrong, and where."""


def _wrong(where: str, value: object, must: str) -> _Damage:
    text = repr(value)
    return _Damage(f"{where} must be {must}, not {text if len(text) <= 60 else text[:57] + '...'}")


def from_json(data: object) -> Sharing:
    """The content of a file; ValueError that names what is wrong."""
    if not isinstance(data, dict):
        raise _wrong("the content", data, "an object")
    if data.get("format") != FORMAT or isinstance(data["format"], bool):
        raise _Damage(f"its format is {data.get('format')!r}, and only {FORMAT} is known here")
    places, lender, borrower = (_object(data.get(name), name) for name in ("places", "lender", "borrower"))
    given: Dict[str, Any] = {name: _text(places[name], f"places.{name}") for name in _PLACES if name in places}
    return Sharing(
        places=replace(DEFAULT_PLACES, **given),
        connections=_entries(Connection, lender, "lender.connections"),
        sriov=_entries(SriovEntry, lender, "lender.sriov"),
        lent=tuple(map(_checked_state, _entries(LentEntry, lender, "lender.devices"))),
        borrowed=_entries(BorrowedEntry, borrower, "borrower.devices"),
        pairs=_entries(PairEntry, borrower, "borrower.p2p"),
        mounts=_entries(MountEntry, borrower, "borrower.mounts"),
        cplanes=_entries(CplaneEntry, data, "cplanes"),
    )


def _checked_state(entry: LentEntry) -> LentEntry:
    if entry.state not in ("available", "unavailable"):
        raise _wrong(f"lender.devices: state of {entry.bdf}", entry.state, "available or unavailable")
    return entry


def _entries(kind: Type[Entry], parent: Mapping[str, Any], where: str) -> Tuple[Entry, ...]:
    listed = parent.get(where.rpartition(".")[2])
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise _wrong(where, listed, "a list")
    return tuple(read_entry(kind, one, f"{where}[{place}]") for place, one in enumerate(listed))


def read_entry(kind: Type[Entry], data: object, where: str) -> Entry:
    """An entry from its plain form; ValueError that names what is wrong and ``where``."""
    found, values = _object(data, where), {}
    for one in fields(kind):  # type: ignore[arg-type]  # every entry is a dataclass
        if _key(one) in found:
            values[one.name] = _READERS[str(one.type)](found[_key(one)], f"{where}.{_key(one)}")
    try:
        return kind(**values)
    except TypeError:
        missing = [name for name in _required(kind) if name not in values]
        raise _Damage(f"{where} has no {', '.join(missing)}") from None


def _required(kind: Type[Any]) -> List[str]:
    return [one.name for one in fields(kind) if one.default is MISSING]


def _object(value: object, where: str) -> Dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(where, value, "text")
    return value


def _number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(where, value, "a number from 0 on")
    return value


def _bdf(value: object, where: str) -> str:
    if not isinstance(value, str) or not _FULL_BDF.fullmatch(value.lower()):
        raise _wrong(where, value, "a PCI address in full, such as 0000:81:00.0")
    return value.lower()


def _end(value: object, where: str) -> End:
    return read_entry(End, value, where)


_Reader = Callable[[object, str], Any]


def _or_null(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _list_of(reader: _Reader) -> _Reader:
    def read_list(value: object, where: str) -> Tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        return tuple(reader(one, f"{where}[{place}]") for place, one in enumerate(value))

    return read_list


_READERS: Dict[str, _Reader] = {
    "str": _text,
    "int": _number,
    "Bdf": _bdf,
    "End": _end,
    "Optional[str]": _or_null(_text),
    "Optional[int]": _or_null(_number),
    "Optional[Bdf]": _or_null(_bdf),
    "Tuple[str, ...]": _list_of(_text),
    "Tuple[int, ...]": _list_of(_number),
}
"""How a field is read, by its annotation."""
