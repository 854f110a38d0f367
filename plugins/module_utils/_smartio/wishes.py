# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which local devices are meant: a BDF, an lspci filter or a selection, resolved from sysfs to BDFs in full."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Pattern, Sequence, Tuple

from .._pci import lspci_filter
from .._pci.address import resolve as resolve_bdf
from .._pci.sysfs import PciDevice
from .._plan import SharingError


def hex_id(value: object, option: str, digits: int = 4) -> Optional[str]:
    """A vendor, device or class id as people write it (``10de``, ``0x10DE``), lower case; None stays None."""
    if value is None:
        return None
    match = re.match(r"(?:0[xX])?([0-9a-fA-F]{1,%d})\Z" % digits, str(value))
    if match is None:
        raise SharingError("%s: %s is not a hexadecimal id of at most %d digits; quote it, as in \"10de\"" % (option, ascii(value), digits))
    return match.group(1).lower().rjust(min(4, digits), "0") if digits == 4 else match.group(1).lower()


def pattern(value: Optional[str], option: str) -> Optional[Pattern[str]]:
    """A regular expression of a person; None stays None."""
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise SharingError("%s: %s is not a regular expression: %s" % (option, ascii(value), error)) from error


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
    """This node's devices; serial numbers and names (several may be known) are looked up only when asked for."""

    present: Mapping[str, PciDevice]
    serial: Callable[[str], Optional[str]]
    names: Callable[[str], List[str]]


def resolve(
    wishes: Sequence[Wish], catalogue: Catalogue, allow_empty: bool
) -> Tuple[List[Target], List[Tuple[str, SharingError]]]:
    """The devices that are meant, in the order given and each once, and an error for every wish that has none."""
    targets: Dict[str, Target] = {}
    errors: List[Tuple[str, SharingError]] = []
    for wish in wishes:
        try:
            bdfs = _matching(wish, catalogue)
            if not bdfs and not allow_empty:
                raise SharingError("%s matches no PCI device of this node; correct it, or give allow_empty: true" % wish.written)
            for bdf in bdfs:
                _want(targets, Target(bdf, wish.state))
        except SharingError as error:
            errors.append((wish.written, error))
    if not wishes and not allow_empty:
        errors.append(("devices", SharingError("devices is empty; name a device, or give allow_empty: true")))
    return list(targets.values()), errors


def _want(targets: Dict[str, Target], target: Target) -> None:
    known = targets.setdefault(target.bdf, target)
    if known.state != target.state:
        raise SharingError(
            "%s is wanted both %s and %s; name it once" % (target.bdf, known.state, target.state)
        )


def _matching(wish: Wish, catalogue: Catalogue) -> List[str]:
    if wish.bdf is not None:
        return [resolve_bdf(wish.bdf, catalogue.present)]
    if wish.filter is not None:
        wanted = lspci_filter.parse(wish.filter)
        return sorted(bdf for bdf, device in catalogue.present.items() if wanted.matches(device))
    select = wish.select or LocalSelect()
    return sorted(bdf for bdf, device in catalogue.present.items() if _selected(select, device, catalogue))


def _selected(select: LocalSelect, device: PciDevice, catalogue: Catalogue) -> bool:
    """Cheap conditions first: names and serial numbers cost reading."""
    if select.vendor_id is not None and select.vendor_id != device.vendor_id:
        return False
    if select.device_id is not None and select.device_id != device.device_id:
        return False
    if select.class_code is not None and not device.class_code.startswith(select.class_code):
        return False
    if select.serial is not None and select.serial != catalogue.serial(device.bdf):
        return False
    return select.name is None or any(select.name.search(name) for name in catalogue.names(device.bdf))
