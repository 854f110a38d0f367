# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which local devices are meant: a BDF, an lspci filter or a selection, resolved from sysfs to BDFs in full."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Pattern, Sequence, Tuple

from .._pci import lspci_filter
from .._pci.address import DeviceNotFound, printable
from .._pci.address import resolve as resolve_bdf
from .._pci.sysfs import PciDevice
from .._plan import SharingError


def hex_id(value: object, option: str) -> Optional[str]:
    """A vendor or device id as people write it (``10de``, ``0x10DE``) in four lower-case digits; None stays None."""
    return None if value is None else _hex_digits(value, option, 4).rjust(4, "0")


def hex_prefix(value: object, option: str) -> Optional[str]:
    """The first digits of a class code (``01``, ``0108``, ``0x010802``), lower case; None stays None."""
    return None if value is None else _hex_digits(value, option, 6)


def _hex_digits(value: object, option: str, most: int) -> str:
    match = re.match(rf"(?:0[xX])?([0-9a-fA-F]{{1,{most}}})\Z", str(value))
    if match is None:
        raise SharingError(f"{option}: {value!a} is not a hexadecimal id of at most {most} digits; quote it")
    return match.group(1).lower()


def pattern(value: Optional[str], option: str) -> Optional[Pattern[str]]:
    """A regular expression of a person; None stays None."""
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise SharingError(f"{option}: {value!a} is not a regular expression: {error}") from error


def elements_of(params: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """The elements of a module call: the list ``devices``, or the one element that the call itself describes."""
    return [params] if params["devices"] is None else list(params["devices"])


def written(element: Mapping[str, Any], keys: Sequence[str]) -> str:
    """How an element names itself in messages: the first of ``keys`` that it has."""
    for key in keys:
        value = element.get(key)
        if isinstance(value, Mapping):
            named = ", ".join(f"{name}: {printable(str(value[name]))}" for name in value if value[name] is not None)
            return f"{key} {{{named}}}"
        if value is not None:
            return printable(str(value)) if key in ("bdf", "fdid") else f"{key} '{printable(str(value))}'"
    return "device"


def wish_from(element: Mapping[str, Any], state: str) -> Wish:
    """A wish from a module call's element; ``state`` is the call's own, which an element may override."""
    select = element.get("select")
    return Wish(
        written=written(element, ("bdf", "filter", "select")),
        state=element.get("state") or state,
        bdf=element.get("bdf"),
        filter=element.get("filter"),
        select=None if select is None else _local_select(select),
    )


def check_select(select: Mapping[str, Any]) -> None:
    """Refuse a selection that says nothing, as a whole or in one of its parts: a template may have come out empty."""
    given = {name: value for name, value in select.items() if value is not None}
    if not given:
        raise SharingError("select is empty: say what the device must be like (vendor_id, serial, ...)")
    for name, value in given.items():
        if not str(value).strip():
            raise SharingError(f"select.{name} is empty: give a value, or leave it out")


def _local_select(select: Mapping[str, Any]) -> LocalSelect:
    check_select(select)
    return LocalSelect(
        vendor_id=hex_id(select["vendor_id"], "vendor_id"),
        device_id=hex_id(select["device_id"], "device_id"),
        class_code=hex_prefix(select["class"], "class"),
        serial=select["serial"],
        name=pattern(select["name_regex"], "name_regex"),
    )


@dataclass(frozen=True)
class LocalSelect:
    """What a local device must be like; None is anything. ``class_code`` is a prefix (``01``, ``0108``, ``010802``)."""

    vendor_id: Optional[str] = None
    device_id: Optional[str] = None
    class_code: Optional[str] = None
    serial: Optional[str] = None
    name: Optional[Pattern[str]] = None


@dataclass(frozen=True)
class Wish:
    """One element of what is wanted. ``written`` names it in messages; ``bdf``, ``filter`` or ``select`` is set."""

    written: str
    state: str
    bdf: object = None
    filter: Optional[str] = None
    select: Optional[LocalSelect] = None


@dataclass(frozen=True)
class Target:
    """A device of this node, and the state that is wanted for it."""

    bdf: str
    state: str


@dataclass(frozen=True)
class Catalogue:
    """This node's devices; serial numbers and names (several may be known) are looked up one by one when asked for."""

    present: Mapping[str, PciDevice]
    serials: Callable[[str], Iterable[Optional[str]]]
    names: Callable[[str], Iterable[Optional[str]]]


def resolve(
    wishes: Sequence[Wish], catalogue: Catalogue, allow_empty: bool
) -> Tuple[List[Target], List[Tuple[str, SharingError]]]:
    """The devices that are meant, in the order given and each once, and an error for every wish that has none.

    A device that is wanted in two states is left alone, with all else of the wishes that name it: neither the order of
    a list nor that of addresses may decide what becomes of it.
    """
    targets: Dict[str, Target] = {}
    errors: List[Tuple[str, SharingError]] = []
    found = [_look_up(wish, catalogue, allow_empty) for wish in wishes]
    states: Dict[str, Dict[str, None]] = {}
    for wish, meant in zip(wishes, found):
        for bdf in meant.bdfs:
            states.setdefault(bdf, {})[wish.state] = None
    for wish, meant in zip(wishes, found):
        error = meant.error or _torn(meant.bdfs, states)
        if error is not None:
            errors.append((wish.written, error))
            continue
        targets.update((bdf, Target(bdf, wish.state)) for bdf in meant.bdfs if bdf not in targets)
    if not wishes and not allow_empty:
        errors.append(("devices", SharingError("devices is empty; name a device, or give allow_empty: true")))
    return list(targets.values()), errors


@dataclass(frozen=True)
class _Meant:
    """The devices that one wish is about, or why it is about none."""

    bdfs: Tuple[str, ...] = ()
    error: Optional[SharingError] = None


def _look_up(wish: Wish, catalogue: Catalogue, allow_empty: bool) -> _Meant:
    try:
        bdfs = _matching(wish, catalogue)
        if not bdfs and not allow_empty:
            raise DeviceNotFound(
                f"{wish.written} matches no PCI device of this node; correct it, or give allow_empty: true"
            )
    except SharingError as error:
        return _Meant(error=error)
    return _Meant(tuple(bdfs))


def _torn(bdfs: Iterable[str], states: Mapping[str, Iterable[str]]) -> Optional[SharingError]:
    """The error for a wish with a device that is wanted in two states; None where there is none."""
    for bdf in bdfs:
        wanted = list(states[bdf])
        if len(wanted) > 1:
            return SharingError(f"{bdf} is wanted both {' and '.join(wanted)}; nothing was done, name it once")
    return None


def _matching(wish: Wish, catalogue: Catalogue) -> List[str]:
    if wish.bdf is not None:
        return [resolve_bdf(wish.bdf, catalogue.present)]
    if wish.filter is not None:
        wanted = lspci_filter.parse(wish.filter)
        return sorted(bdf for bdf, device in catalogue.present.items() if wanted.matches(device))
    if wish.select is None:  # options that are null pass for given
        raise SharingError(f"{wish.written} names nothing: give bdf, filter or select")
    select = wish.select
    return sorted(bdf for bdf, device in catalogue.present.items() if _selected(select, device, catalogue))


def _selected(select: LocalSelect, device: PciDevice, catalogue: Catalogue) -> bool:
    """Cheap conditions first: names and serial numbers cost reading."""
    if select.vendor_id is not None and select.vendor_id != device.vendor_id:
        return False
    if select.device_id is not None and select.device_id != device.device_id:
        return False
    if select.class_code is not None and not device.class_code.startswith(select.class_code):
        return False
    if select.serial is not None and select.serial not in catalogue.serials(device.bdf):
        return False
    return select.name is None or any(name and select.name.search(name) for name in catalogue.names(device.bdf))
