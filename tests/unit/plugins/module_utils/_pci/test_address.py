# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.address import (
    AddressError,
    SlotPattern,
    check_written,
    normalise,
    parse_slot,
    printable,
    resolve,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice
from hypothesis import given, settings
from hypothesis import strategies as st

PRESENT = ["0000:00:1f.7", "0000:01:00.0", "0000:81:00.0", "0000:81:00.1", "10000:e1:00.0"]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("0000:81:00.0", "0000:81:00.0"),
        ("81:00.0", "0000:81:00.0"),
        ("1:2.3", "0000:01:02.3"),
        ("10000:E1:00.0", "10000:e1:00.0"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
        ("7fffffff:ff:1f.7", "7fffffff:ff:1f.7"),
        (":81:00.0", "0000:81:00.0"),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    "text",
    ["", "1:", "81:00", "81:.0", "81:00.*", "0000:81:20.0", "100:00.0", "81:00.8", "80000000:81:00.0", "81:00.0\n",
     " 81:00.0", "0x81:00.0", "-1:00.0", "81:00.0.0", "0:0:81:00.0", "\uff11:00.0", "../..", "8_1:00.0",
     "0" * 70 + ":1:0.0"],
)  # fmt: skip
def test_not_a_full_address(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        normalise(text)
    assert caught.value.message.isprintable()


@given(st.integers(0, 0x7FFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_normal_form_is_stable_and_parses_back(domain: int, bus: int, device: int, function: int) -> None:
    bdf = normalise(f"{domain:x}:{bus:x}:{device:x}.{function:x}")
    assert bdf == f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert normalise(bdf.upper()) == bdf
    assert parse_slot(bdf) == SlotPattern(domain, bus, device, function)


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("", SlotPattern()),
        ("*", SlotPattern()),
        ("::", SlotPattern()),
        ("*:*:*.*", SlotPattern()),
        ("1:", SlotPattern(bus=1)),
        ("1", SlotPattern(device=1)),
        (".3", SlotPattern(function=3)),
        ("*.3", SlotPattern(function=3)),
        ("1f.", SlotPattern(device=0x1F)),
        ("10000::", SlotPattern(domain=0x10000)),
        ("0:81:", SlotPattern(domain=0, bus=0x81)),
        (":81:*.0", SlotPattern(bus=0x81, function=0)),
    ],
)
def test_slot_patterns(text: str, slot: SlotPattern) -> None:
    assert parse_slot(text) == slot


@pytest.mark.parametrize("text", ["81", "g:", "1:2:3:4", "1.8", "100:", "x:", "1..2", "**", "0x1:"])
def test_bad_slot_patterns_name_what_is_wrong(text: str) -> None:
    with pytest.raises(AddressError, match=r"is not a PCI address"):
        parse_slot(text)


@pytest.mark.parametrize(
    ("value", "arrived", "quoted"),
    [
        (4860.0, "4860.0", '"81:00.0"'),
        (4860.1, "4860.1", '"81:00.1"'),
        ("4860.0", "4860.0", '"81:00.0"'),
        (1.0, "1.0", '"00:01.0"'),
        ("1.0", "1.0", '"00:01.0"'),
        (4860, "4860", '"81:00"'),
        (81, "81", '"81:00.0"'),
        (-5, "-5", '"81:00.0"'),
        (float("inf"), "inf", '"81:00.0"'),
        (True, "True", '"81:00.0"'),
        (None, "None", '"81:00.0"'),
        ({"1": None}, "{'1': None}", '"81:00.0"'),
        (["1:"], "['1:']", '"81:00.0"'),
        (b"1:", "b'1:'", '"81:00.0"'),
    ],
)
def test_what_yaml_made_of_an_address_is_refused(value: object, arrived: str, quoted: str) -> None:
    with pytest.raises(AddressError) as caught:
        check_written(value, "devices[2].bdf")
    message = caught.value.message
    assert message.startswith("devices[2].bdf: ")
    assert arrived in message
    assert "quote it" in message
    assert quoted in message


@pytest.mark.parametrize("text", ["81:00.0", "1:", "1f.7", "0000:81:00.0", "a.0", ""])
def test_text_is_taken_as_it_is(text: str) -> None:
    assert check_written(text, "bdf") == text


@given(st.text(max_size=80))
def test_no_text_reaches_a_message_raw(text: str) -> None:
    try:
        resolve(text, PRESENT)
    except AddressError as error:
        assert error.message.isprintable()
    else:
        assert text.isprintable()


@given(st.integers(0, 99), st.integers(0, 19), st.integers(0, 7))
def test_the_quoted_form_of_a_base_60_number_is_what_was_written(bus: int, device: int, function: int) -> None:
    """Python's decimal reading of YAML 1.1's base 60: 81:00.1 is 81 * 60 + 0.1."""
    with pytest.raises(AddressError) as caught:
        check_written(float(f"{bus * 60 + device}.{function}"), "bdf")
    assert f'quote it: "{bus:02d}:{device:02d}.{function}"' in caught.value.message


@pytest.mark.parametrize(
    ("value", "bdf"),
    [
        ("1:", "0000:01:00.0"),
        ("81:00.1", "0000:81:00.1"),
        ("0000:81:00.0", "0000:81:00.0"),
        ("0:81:0.0", "0000:81:00.0"),
        ("1f.7", "0000:00:1f.7"),
        ("E1:", "10000:e1:00.0"),
        ("10000::", "10000:e1:00.0"),
    ],
)
def test_short_forms_name_the_one_device(value: str, bdf: str) -> None:
    assert resolve(value, PRESENT) == bdf


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("82:00.0", "no PCI device 82:00.0 on this node"),
        ("81:", r"81: names 2 PCI devices of this node \(0000:81:00.0, 0000:81:00.1\)"),
        ("", "names no particular PCI device"),
        ("*:*", "names no particular PCI device"),
        ("81:20.0", "device '20' is not"),
        (4860.0, "quote it"),
    ],
)
def test_what_does_not_name_one_device(value: object, message: str) -> None:
    with pytest.raises(AddressError, match=message):
        resolve(value, PRESENT)


def test_at_most_eight_devices_are_named() -> None:
    with pytest.raises(AddressError) as caught:
        resolve("81:", [f"0000:81:{device:02x}.0" for device in range(31, -1, -1)])
    assert "32 PCI devices" in caught.value.message
    assert "0000:81:07.0, ..." in caught.value.message
    assert "0000:81:08.0" not in caught.value.message


def test_printable() -> None:
    assert printable("a\nb\x1b[0m\udc80\u2028é") == "a\\nb\\x1b[0m\\udc80\\u2028é"


def _field(limit: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.sampled_from(["", "*"]), st.integers(0, limit).map("{:x}".format), st.integers(0, 9).map("{:02x}".format)
    )


slots = st.one_of(
    st.builds("{}:{}:{}.{}".format, _field(0x10001), _field(0x101), _field(0x21), _field(8)),
    st.builds("{}:{}.{}".format, _field(3), _field(3), _field(3)),
    st.builds("{}:{}".format, _field(3), _field(3)),
    _field(3),
    st.text("0123x:.*af ", max_size=12),
)
addresses = st.lists(
    st.builds(
        "{:04x}:{:02x}:{:02x}.{}".format,
        st.sampled_from([0, 1, 0x10000]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3),
    ),
    unique=True, max_size=6,
)  # fmt: skip


@settings(deadline=None)  # each example is a process
@given(slots, addresses)
def test_slots_select_what_lspci_selects(real_lspci: Any, text: str, present: List[str]) -> None:
    devices = [PciDevice(bdf, "8086", "1234", class_code="010802") for bdf in present]
    expected: Optional[List[str]]
    try:
        expected = sorted(real_lspci(devices, ["-s", text]))
    except ValueError:
        expected = None
    try:
        slot: Optional[SlotPattern] = parse_slot(text)
    except AddressError:
        slot = None
    assert (slot is None) == (expected is None)
    if slot is not None and expected is not None:
        assert sorted(bdf for bdf in present if slot.matches(bdf)) == expected
        if len(expected) == 1 and not slot.is_any() and not set(text) <= set("0123456789."):
            assert resolve(text, present) == expected[0]
