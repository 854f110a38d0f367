# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI addresses, lspci's filters, fabric device ids."""

from __future__ import annotations

from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st
from software_node.address import (
    Bdf,
    Filter,
    counted_fdid,
    located_fdid,
    parse_bdf,
    parse_fdid,
    parse_filter,
    parse_id,
    parse_slot,
)

BDFS = st.builds(Bdf, st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))


@given(BDFS)
def test_a_bdf_survives_its_text(bdf: Bdf) -> None:
    assert parse_bdf(str(bdf)) == bdf
    assert parse_slot(str(bdf)).matches(bdf, 0, 0, 0)


@given(BDFS, BDFS)
def test_a_complete_address_selects_nothing_else(one: Bdf, other: Bdf) -> None:
    assert parse_slot(str(one)).matches(other, 0, 0, 0) == (one == other)


@pytest.mark.parametrize("text", ["", "1", "1:", "0000:01:00", "01:00.8", "01:20.0", "x1:00.0", "4860.0"])
def test_what_is_no_bdf(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_bdf(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:", Filter(bus=1)),
        ("1", Filter(slot=1)),
        (".1", Filter(function=1)),
        ("02.1", Filter(slot=2, function=1)),
        ("01:02.1", Filter(bus=1, slot=2, function=1)),
        ("1:2:3.4", Filter(1, 2, 3, 4)),
        ("10000::.", Filter(domain=0x10000)),
        ("*:*:*.*", Filter()),
        ("", Filter()),
    ],
)
def test_slot_filters(text: str, expected: Filter) -> None:
    assert parse_slot(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10de:", Filter(vendor=0x10DE)),
        (":f1a5", Filter(device=0xF1A5)),
        ("8086:f1a5", Filter(vendor=0x8086, device=0xF1A5)),
        ("::0108", Filter(class_id=0x0108)),
        ("::0108:02", Filter(class_id=0x0108, prog_if=2)),
        ("*:*", Filter()),
    ],
)
def test_id_filters(text: str, expected: Filter) -> None:
    assert parse_id(text) == expected


@pytest.mark.parametrize("text", ["10de", "10de0:", "g:", "1:2:3:4:5", ":::100"])
def test_id_filters_that_lspci_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_id(text)


@pytest.mark.parametrize("text", ["100:0.0", "20.0", ".8", "1:2:3:4.0", "0000:06:00.0.0"])
def test_slot_filters_that_lspci_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_slot(text)


def test_both_filters_together() -> None:
    wanted = parse_filter(["-d", "8086:", "-s06:"])
    assert wanted == Filter(bus=6, vendor=0x8086)
    assert wanted.matches(Bdf(0, 6, 0, 0), 0x8086, 1, 0)
    assert not wanted.matches(Bdf(0, 7, 0, 0), 0x8086, 1, 0)
    assert not wanted.matches(Bdf(0, 6, 0, 0), 0x10DE, 1, 0)


@pytest.mark.parametrize("args", [[], ["-d"], ["-k"], ["8086:"], ["-s"]])
def test_filters_that_are_none(args: List[str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_filter(args)


def test_the_class_and_the_programming_interface_are_compared() -> None:
    bdf = Bdf(0, 1, 0, 0)
    assert parse_id("::0108:02").matches(bdf, 1, 2, 0x010802)
    assert not parse_id("::0108:01").matches(bdf, 1, 2, 0x010802)
    assert not parse_id("::0300").matches(bdf, 1, 2, 0x010802)


def test_fdid_schemes() -> None:
    assert f"{located_fdid(4, parse_bdf('81:00.0'), set()):x}" == "48100"
    assert f"{located_fdid(8, parse_bdf('00:00.0'), set()):x}" == "80000"
    assert [f"{counted_fdid(8, number):x}" for number in range(3)] == ["80000", "80002", "80004"]


def test_devices_of_two_domains_get_different_fdids() -> None:
    assert located_fdid(4, parse_bdf("0001:81:00.0"), {0x48100}) == 0x48101


@given(st.integers(0, 0xFFFFFFFFFFFF))
def test_an_fdid_survives_its_text(fdid: int) -> None:
    assert parse_fdid(f"{fdid:x}") == parse_fdid(f"0x{fdid:X}") == fdid


@pytest.mark.parametrize("text", ["", "0x", "-1", "80000 ", "8000g", "06:00.0", "1" * 13])
def test_what_is_no_fdid(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_fdid(text)
