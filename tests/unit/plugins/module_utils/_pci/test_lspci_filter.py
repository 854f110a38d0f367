# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shlex
from typing import Any, List

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.lspci_filter import FilterError, parse
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice
from hypothesis import given, settings
from hypothesis import strategies as st

HOST = PciDevice("0000:00:00.0", "8086", "0d57", class_code="060000")
GPU = PciDevice("0000:09:00.0", "10de", "0ffd", class_code="030000")
AUDIO = PciDevice("0000:09:00.1", "10de", "0e1b", class_code="040300")
DRIVE = PciDevice("0000:81:00.0", "144d", "a808", class_code="010802")
BEHIND_VMD = PciDevice("10000:e1:00.0", "144d", "a80a", class_code="010802")
NODE = [HOST, GPU, AUDIO, DRIVE, BEHIND_VMD]

# what lspci 3.9.0 lists for a dump of NODE
TABLE = [
    ("-d 10de:", [GPU, AUDIO]),
    ("-d10de:", [GPU, AUDIO]),
    ("-d '10de:'", [GPU, AUDIO]),
    ("-d 10DE:0FFD", [GPU]),
    ("-d :a808", [DRIVE]),
    ("-d 144d:a808:0108", [DRIVE]),
    ("-d ::0108", [DRIVE, BEHIND_VMD]),
    ("-d ::108", [DRIVE, BEHIND_VMD]),
    ("-d ::01", []),
    ("-d ::01xx", [DRIVE, BEHIND_VMD]),
    ("-d ::0Xxx", NODE),
    ("-d ::xxxx", NODE),
    ("-d ::xx03", [AUDIO]),
    ("-d ::*", NODE),
    ("-d ::0108:02", [DRIVE, BEHIND_VMD]),
    ("-d ::0108:", [DRIVE, BEHIND_VMD]),
    ("-d :::2", [DRIVE, BEHIND_VMD]),
    ("-d ::0108:3", []),
    ("-d 10d:", []),
    ("-d :", NODE),
    ("-d *:*", NODE),
    ("-s 81:", [DRIVE]),
    ("-s81:", [DRIVE]),
    ("-s 09:00.1", [AUDIO]),
    ("-s .1", [AUDIO]),
    ("-s 0", NODE),
    ("-s 10000::", [BEHIND_VMD]),
    ("-s 09: -d ::0300", [GPU]),
    ("-d 10de: -s .1", [AUDIO]),
    ("-d 144d: -s 09:", []),
    # a repeated option overrides the fields that it gives, and keeps the others
    ("-d 8086: -d 144d:", [DRIVE, BEHIND_VMD]),
    ("-d 144d: -d :", [DRIVE, BEHIND_VMD]),
    ("-d 144d: -d :a808", [DRIVE]),
    ("-d ::01xx -d ::0108", [DRIVE, BEHIND_VMD]),
    ("-s 09: -s .1", [AUDIO]),
    ("-s 09: -s 81:", [DRIVE]),
]


@pytest.mark.parametrize(("text", "selected"), TABLE)
def test_filters_select(text: str, selected: List[PciDevice]) -> None:
    chosen = parse(text)
    assert [device for device in NODE if chosen.matches(device)] == selected


@pytest.mark.parametrize(("text", "selected"), TABLE)
def test_the_table_is_what_lspci_says(real_lspci: Any, text: str, selected: List[PciDevice]) -> None:
    assert sorted(real_lspci(NODE, shlex.split(text))) == sorted(device.bdf for device in selected)


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("-d", "-d lacks its argument"),
        ("-d 10de: -s", "-s lacks its argument"),
        ("10de:", "'10de:' is not understood"),
        ("-v -d 10de:", "'-v' is not understood"),
        ("-d 10de: extra", "'extra' is not understood"),
        ("--help", "'--help' is not understood"),
        ("-d 10de", "'10de' is not"),
        ("-d 1:2:3:4:5", "'1:2:3:4:5' is not"),
        ("-d 0x10de:", "vendor '0x10de'"),
        ("-d 10dx:", "vendor '10dx'"),
        ("-d :12345", "device '12345'"),
        ("-d ::010802", "class '010802'"),
        ("-d ::xxxxx", "class 'xxxxx'"),
        ("-d ::01**", "class '01\\*\\*'"),
        ("-d ::0108:0x", "prog-if '0x'"),
        ("-s 81:20.0", "device '20'"),
        ("-s 81", "device '81'"),
        ("-s x:", "bus 'x'"),
        ("-d '10de:", "No closing quotation"),
        ("-d ' 10de:'", "vendor ' 10de'"),
        ("-d \x1b[2J:", "x1b"),
        ("-d " + "1" * 70 + ":", "is not"),
    ],
)
def test_bad_filters_name_the_bad_part(text: str, bad: str) -> None:
    with pytest.raises(FilterError, match=bad) as caught:
        parse(text)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("value", [10, None, ["-d 10de:"]])
def test_a_filter_is_text(value: object) -> None:
    with pytest.raises(FilterError, match="quote it"):
        parse(value)  # type: ignore[arg-type]


def test_a_missing_attribute_equals_nothing() -> None:
    vanished = PciDevice("0000:81:00.0")
    assert parse("-s 81:").matches(vanished)
    for text in ("-d 144d:", "-d :a808", "-d ::0108", "-d ::xxxx", "-d :::02"):
        assert not parse(text).matches(vanished)


vendors = st.sampled_from(["8086", "144d", "10de", "0001"])
classes = st.sampled_from(["010802", "010800", "030000", "060400", "000100"])
node = st.lists(
    st.builds(
        PciDevice,
        bdf=st.builds(
            "{:04x}:{:02x}:00.{}".format, st.sampled_from([0, 0x10000]), st.integers(0, 2), st.integers(0, 2)
        ),
        vendor_id=vendors,
        device_id=vendors,
        class_code=classes,
    ),
    unique_by=lambda device: device.bdf,
    max_size=5,
)
words = st.one_of(st.sampled_from(["", "*", "1", "x", "100000", "0X"]), vendors)
class_words = st.one_of(
    words, classes.map(lambda code: code[:4]), st.text("0123456789abcdefxX", min_size=1, max_size=5)
)
ids = st.one_of(
    st.builds("{}:{}".format, words, words),
    st.builds("{}:{}:{}".format, words, words, class_words),
    st.builds("{}:{}:{}:{}".format, words, words, class_words, st.sampled_from(["", "2", "02", "00", "x", "100"])),
    st.text("018dx:*", min_size=1, max_size=8),
)
slots = st.sampled_from(["1:", "0", ".1", "10000::", "0:0:0.0", "*", "33", ":1:", "2:0.2"])
options = st.one_of(
    ids.map(lambda text: ["-d", text]), ids.map(lambda text: ["-d" + text]), slots.map(lambda text: ["-s", text])
)


@settings(deadline=None)  # each example is a process
@given(node, st.lists(options, min_size=1, max_size=3))
def test_filters_select_what_lspci_selects(real_lspci: Any, node: List[PciDevice], chosen: List[List[str]]) -> None:
    arguments = [word for option in chosen for word in option]
    text = " ".join(shlex.quote(word) for word in arguments)
    try:
        expected = sorted(real_lspci(node, arguments))
    except ValueError:
        with pytest.raises(FilterError):
            parse(text)
    else:
        wanted = parse(text)
        assert sorted(device.bdf for device in node if wanted.matches(device)) == expected
