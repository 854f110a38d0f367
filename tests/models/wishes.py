# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wishes: what tasks may ask for, written in every way that a person may write it, with what is meant by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.iofabric.sharing.tests.models.fabric import Hardware
from hypothesis import strategies as st

#: The devices of a node. Two are alike, two differ in nothing but their PCI domain.
DEVICES: Tuple[Hardware, ...] = (
    Hardware("0000:01:00.0", "8086", "f1a5", "010802", "S1", "nvme"),
    Hardware("0000:02:00.0", "8086", "f1a5", "010802", "S2", "nvme"),
    Hardware("0000:02:00.1", "10de", "0ff3", "030000", "S3", None, bound=False),
    Hardware("0000:81:00.0", "15b3", "1017", "020000", "S4", "mlx5_core"),
    Hardware("0001:81:00.0", "144d", "a80a", "010802", "S5", "nvme"),
)
BDFS = tuple(one.bdf for one in DEVICES)
_NOTHING = dict.fromkeys(("vendor_id", "device_id", "class", "serial", "name_regex"))


@dataclass(frozen=True)
class Written:
    """One element as it is written, and the device that somebody had in mind."""

    element: Mapping[str, Any]

    def means(self, hardware: Mapping[str, Hardware], told: Callable[[str], bool]) -> FrozenSet[str]:
        """The devices that are meant on a node with this hardware; empty where none is, or where it is ambiguous.

        ``told`` says whether anybody can tell the serial number of a device.
        """
        element = self.element
        if element["bdf"] is not None:
            found = frozenset(bdf for bdf in hardware if _is_at(str(element["bdf"]), bdf))
            return found if len(found) == 1 else frozenset()
        if element["filter"] is not None:
            return frozenset(bdf for bdf, one in hardware.items() if _is_filtered(str(element["filter"]), one))
        found = frozenset(bdf for bdf, one in hardware.items() if _is_selected(element["select"], one))
        return found if element["select"]["serial"] is None else frozenset(filter(told, found))


def _is_at(text: str, bdf: str) -> bool:
    """``81:00.0`` is in any domain, ``81:`` any slot of a bus."""
    return bdf == text or bdf[5:] == text or (text.endswith(":") and bdf[5:8] == text.zfill(3))


def _is_filtered(text: str, one: Hardware) -> bool:
    option, value = text.split(" ")
    if option == "-s":
        return _is_at(value, one.bdf)
    return all(want in ("", have) for want, have in zip(value.split(":"), (one.vendor, one.device, one.class_code[:4])))


def _is_selected(select: Mapping[str, Optional[str]], one: Hardware) -> bool:
    have = {"vendor_id": one.vendor, "device_id": one.device, "serial": one.serial}
    return all(
        one.class_code.startswith(value) if name == "class" else have[name] == value
        for name, value in select.items()
        if value is not None
    )


def _ways(one: Hardware) -> List[Dict[str, Any]]:
    texts = [one.bdf, one.bdf[5:], one.bdf[5:8], one.bdf.upper()]
    ways: List[Dict[str, Any]] = [{"bdf": text} for text in texts]
    ways += [{"filter": f"-s {one.bdf[5:]}"}, {"filter": f"-s {one.bdf[5:8]}"}]
    ways += [{"filter": f"-d {one.vendor}:"}, {"filter": f"-d {one.vendor}:{one.device}"}]
    ways += [{"filter": f"-d ::{one.class_code[:4]}"}]
    ways += [{"select": {**_NOTHING, "vendor_id": one.vendor}}, {"select": {**_NOTHING, "serial": one.serial}}]
    ways += [{"select": {**_NOTHING, "class": one.class_code[:2], "vendor_id": one.vendor}}]
    return ways


def _written(way: Mapping[str, Any], state: Optional[str] = None) -> Written:
    return Written({"bdf": None, "filter": None, "select": None, "state": state, **way})


#: What nobody has: no device, an address that is no one's.
STRANGERS: Tuple[Dict[str, Any], ...] = (
    {"bdf": "77:00.0"},
    {"filter": "-d dead:"},
    {"select": {**_NOTHING, "serial": "S9"}},
)
STATES: Sequence[Optional[str]] = (None, "present", "available", "unavailable", "absent")

ELEMENTS = st.builds(
    _written,
    st.one_of(
        st.sampled_from(DEVICES).flatmap(lambda one: st.sampled_from(_ways(one))),
        st.sampled_from(DEVICES).map(lambda one: {"bdf": one.bdf}),
        st.sampled_from(DEVICES).map(lambda one: {"bdf": one.bdf}),
        st.sampled_from(STRANGERS),
    ),
    st.sampled_from(STATES),
)
