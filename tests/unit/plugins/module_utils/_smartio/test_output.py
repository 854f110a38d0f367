# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.address import normalise
from ansible_collections.iofabric.sharing.plugins.module_utils._plan import SharingError
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.errors import ToolUnreadable
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.model import (
    Borrowed,
    FabricDevice,
    PoolEntry,
    node_hint,
    normalise_fdid,
    slot_hint,
)
from ansible_collections.iofabric.sharing.plugins.module_utils._smartio.output import (
    find_bdf,
    parse_borrow,
    parse_list,
    parse_node_ids,
    parse_show,
)
from hypothesis import given, settings
from hypothesis import strategies as st

Sample = Callable[[str], str]

NAME = "Non-Volatile memory controller Intel Corporation Device f1a5"
QUADRO = "VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)"


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("list-2018.txt", [PoolEntry("80000", NAME, "available")]),
        (
            "list-current.txt",
            [PoolEntry("80002", "Non-Volatile memory controller: Intel Corporation Device", "available")],
        ),
        (
            "list-id-prefix.txt",
            [PoolEntry("80002", "Non-Volatile memory controller: Intel Corporation Device", "unavailable")],
        ),
        (
            "synthetic-list-mixed.txt",
            [
                PoolEntry(
                    "80000",
                    "Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD Controller SM981/PM981/PM983",
                    "available",
                ),
                PoolEntry("80002", QUADRO, "unavailable"),
                PoolEntry("48100", "VGA compatible controller NVIDIA Corporation Device 28b0", "in use"),
                PoolEntry(
                    "100800", "Ethernet controller: Intel Corporation Ethernet Controller X710 for 10GbE SFP+", ""
                ),
            ],
        ),
    ],
)
def test_list_samples(sample: Sample, name: str, entries: List[PoolEntry]) -> None:
    parsed = parse_list(sample(name))
    assert list(parsed.entries) == entries
    assert parsed.unread == ()


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (f"80002: {QUADRO} [available]", PoolEntry("80002", QUADRO, "available")),
        (f"ID 80002: {QUADRO} [available]", PoolEntry("80002", QUADRO, "available")),
        # The last bracket is the state, whatever it says.
        ("80002: Quadro [K420]", PoolEntry("80002", "Quadro", "K420")),
        ("80002: Quadro [K420] (rev a1)", PoolEntry("80002", "Quadro [K420] (rev a1)", "")),
        ("80002: NVMe [borrowed by 8]", PoolEntry("80002", "NVMe", "borrowed by 8")),
        ("80002: NVMe [AVAILABLE]", PoolEntry("80002", "NVMe", "AVAILABLE")),
        ("80002: NVMe []", PoolEntry("80002", "NVMe", "")),
        ("80002: NVMe [available] ", PoolEntry("80002", "NVMe", "available")),
        ("  80002:\tNVMe\t[available]", PoolEntry("80002", "NVMe", "available")),
        ("80002: [available]", PoolEntry("80002", "", "available")),
        ("80002:", PoolEntry("80002", "", "")),
        ("0x80C00: NVMe [available]", PoolEntry("80c00", "NVMe", "available")),
        ("ID 0x80c00: NVMe [available]", PoolEntry("80c00", "NVMe", "available")),
        ("80c00: Disque dur modèle é [available]", PoolEntry("80c00", "Disque dur modèle é", "available")),
    ],
)
def test_list_line(line: str, entry: PoolEntry) -> None:
    for ending in ("", "\n", "\r\n"):
        parsed = parse_list(line + ending)
        assert parsed.entries == (entry,)
        assert parsed.unread == ()


@pytest.mark.parametrize(
    "text", ["", "\n", "\r\n\r\n", "No devices\n", "Devices in the pool:\n", "----\n", " \t \n", "\ufffd\ufffd\n"]
)
def test_list_notes_are_passed_over(text: str) -> None:
    assert parse_list(text).entries == ()
    assert parse_list(text).unread == ()


@pytest.mark.parametrize(
    "line",
    [
        "zz: NVMe [available]",
        "80002 NVMe [available]",
        "12345678901234567: NVMe [available]",
    ],
)
def test_list_hands_on_what_it_cannot_read(line: str) -> None:
    parsed = parse_list(f"80000: A [available]\n{line}\n80004: B [unavailable]\n")
    assert [entry.fdid for entry in parsed.entries] == ["80000", "80004"]
    assert len(parsed.unread) == 1
    assert parsed.unread[0].isprintable()


@pytest.mark.parametrize(
    ("line", "name", "word"),
    [
        ("80002: NV\ufffdMe [available]", "NV\ufffdMe", "available"),
        ("80002: NVMe \ufffd", "NVMe \ufffd", ""),
        ("80002: NV\x00Me [unavailable]", "NV\ufffdMe", "unavailable"),
        ("80002: NVMe [avail\ufffdable]", "NVMe", "avail\ufffdable"),
        ("80002: NVMe [avail\x1b[0mable]", "NVMe [avail\ufffd", "0mable"),
    ],
)
def test_list_keeps_an_entry_whatever_the_bytes_of_its_name(line: str, name: str, word: str) -> None:
    assert parse_list(line).entries == (PoolEntry("80002", name, word),)


def test_list_of_many_megabytes() -> None:
    text = "".join(f"{number:x}: {QUADRO} [available]\n" for number in range(0x80000, 0x80000 + 30000))
    start = time.monotonic()
    parsed = parse_list(text)
    assert len(parsed.entries) == 30000
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("filler", [" ", "[", "]", "[x] ", "a", "\t", "?", "0", "[ "])
def test_a_long_line_is_read_in_no_time(filler: str) -> None:
    """The last line of an output that was cut off after a megabyte may be that long."""
    text = "80000: x" + filler * (30000 // len(filler)) + "y"
    start = time.monotonic()
    parsed = parse_list(text)
    assert time.monotonic() - start < 0.3
    assert [entry.fdid for entry in parsed.entries] == ["80000"]


NAMES = st.lists(
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["C", "Z"]), min_size=1),
    min_size=1,
    max_size=6,
).map(" ".join)
WORDS = st.one_of(
    st.sampled_from(["available", "unavailable"]),
    st.text(st.sampled_from("abcdefgh -_/0123456789"), max_size=20).map(str.strip),
)
ENTRIES = st.builds(PoolEntry, st.integers(0x10, 0xFFFFFFFFFFFF).map("{:x}".format), NAMES, WORDS)
GENERATIONS: Dict[str, Callable[[PoolEntry], str]] = {
    "2018": lambda entry: f"{entry.fdid}: {entry.name.replace(': ', ' ')} [{entry.word}]",
    "prefix": lambda entry: f"ID {entry.fdid}: {entry.name} [{entry.word}]",
    "current": lambda entry: f"{entry.fdid}: {entry.name} [{entry.word}]",
}


@pytest.mark.parametrize("generation", list(GENERATIONS))
@given(entries=st.lists(ENTRIES, max_size=8), ending=st.sampled_from(["\n", "\r\n"]))
def test_list_round_trip(generation: str, entries: List[PoolEntry], ending: str) -> None:
    render = GENERATIONS[generation]
    parsed = parse_list("".join(render(entry) + ending for entry in entries))
    if generation == "2018":
        entries = [PoolEntry(entry.fdid, entry.name.replace(": ", " ").strip(), entry.word) for entry in entries]
    assert list(parsed.entries) == entries
    assert parsed.unread == ()


def test_show_sample(sample: Sample) -> None:
    assert parse_show("48100", sample("show-48100.txt")) == FabricDevice(
        fdid="48100",
        name="VGA compatible controller NVIDIA Corporation Device 28b0",
        available="available",
        location="remote",
        adapter=0,
        node_id=4,
        bdf="0000:81:00.0",
        slot=None,
        serial="00-00-00-00-00-00-00-00",
        uuid="756e81e3-f403-42a3-b848-862013cca6c6",
        vendor_id="10de",
        device_id="28b0",
        subsystem_vendor_id="10de",
        subsystem_device_id="1870",
        users=0,
    )


def _lines(text: str) -> List[str]:
    return [line for line in text.splitlines() if line]


FIELD_OF = {
    "Name": "name",
    "Available": "available",
    "Location": "location",
    "Adapter": "adapter",
    "NodeId": "node_id",
    "Remote BDF": "bdf",
    "Physical slot": "slot",
    "Serial Number": "serial",
    "UUID": "uuid",
    "Vendor ID": "vendor_id",
    "Device ID": "device_id",
    "Subsystem Vendor ID": "subsystem_vendor_id",
    "Subsystem Device ID": "subsystem_device_id",
    "Local users": "users",
}


@pytest.mark.parametrize("key", list(FIELD_OF))
def test_show_without_a_key_or_with_na(sample: Sample, key: str) -> None:
    lines = _lines(sample("show-48100.txt"))
    whole = parse_show("48100", "\n".join(lines))
    missing = parse_show("48100", "\n".join(line for line in lines if not line.startswith(key + ":")))
    empty = parse_show("48100", "\n".join(f"{key}: N/A" if line.startswith(key + ":") else line for line in lines))
    assert missing == empty
    assert getattr(missing, FIELD_OF[key]) is None
    others = [field for field in FIELD_OF.values() if field != FIELD_OF[key]]
    assert all(getattr(missing, field) == getattr(whole, field) for field in others)


@given(data=st.data())
def test_show_keys_in_any_order_with_new_ones_between(data: st.DataObject) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in SHOWN.items())
    new = data.draw(
        st.lists(st.sampled_from(["Firmware: 3", "no colon", "Lane: x4: up", "", "Parent BDF: 0000:80:01.0"]))
    )
    lines = data.draw(st.permutations(_lines(text) + new))
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    assert parse_show("48100", ending.join(lines)) == parse_show("48100", text)


SHOWN = {
    "Name": "NVMe: with a colon",
    "Location": "remote",
    "NodeId": "4",
    "Remote BDF": "0000:81:00.0",
    "Vendor ID": "0x10DE",
    "Device ID": "1",
    "Local users": "2",
}


def test_show_values() -> None:
    device = parse_show("1", "".join(f"{key}:   {value}  \n" for key, value in SHOWN.items()))
    assert device.name == "NVMe: with a colon"
    assert (device.vendor_id, device.device_id) == ("10de", "0001")
    assert (device.node_id, device.users, device.bdf) == (4, 2, "0000:81:00.0")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("NodeId: eight", "node_id"),
        ("NodeId: -4", "node_id"),
        ("NodeId: \u0664", "node_id"),
        ("NodeId: 4 (this node)", "node_id"),
        ("Local users: 99999999999999999999", "users"),
        ("Remote BDF: none", "bdf"),
        ("Vendor ID: intel", "vendor_id"),
        ("Vendor ID: 10de0", "vendor_id"),
        ("UUID: \ufffd", "uuid"),
        ("Serial Number: a\x07b", "serial"),
    ],
)
def test_show_values_that_are_none(line: str, field: str) -> None:
    assert getattr(parse_show("1", f"Name: x\n{line}\n"), field) is None


def test_show_of_a_key_that_comes_twice_the_first_counts() -> None:
    assert parse_show("1", "NodeId: 4\nNodeId: 8\n").node_id == 4


@pytest.mark.parametrize("text", ["", "\n", "no such thing", "Firmware: 3\n", "\ufffd\n" * 5, "Name: N/A\n"])
def test_show_without_a_known_key(text: str) -> None:
    with pytest.raises(ToolUnreadable, match="smartio_tool show 80000"):
        parse_show("80000", text)


@pytest.mark.parametrize(
    ("text", "bdf"),
    [
        ("0000:04:05.0", "0000:04:05.0"),
        ("04:05.0\n", "0000:04:05.0"),
        ("Local virtual device: 0000:0A:1F.7\r\n", "0000:0a:1f.7"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
        ("7fffffff:e1:00.0", "7fffffff:e1:00.0"),
        ("first 0000:01:00.0 then 0000:02:00.0", "0000:01:00.0"),
        ("(0000:01:00.0)", "0000:01:00.0"),
        ("N/A", None),
        ("", None),
        ("not borrowed", None),
        ("0000:04:25.0", None),
        ("0000:04:05.8", None),
        ("12:34:56:04:05.0", None),
        ("04:05.01", None),
        ("\ufffd", None),
    ],
)
def test_find_bdf(text: str, bdf: Optional[str]) -> None:
    assert find_bdf(text) == bdf


@given(st.integers(0, 0x7FFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7), st.booleans())
def test_find_bdf_gives_the_form_that_sysfs_has(domain: int, bus: int, device: int, function: int, wide: bool) -> None:
    text = f"{domain:0{8 if wide else 4}X}:{bus:02X}:{device:02x}.{function}"
    assert find_bdf(f"x {text} y") == normalise(text)


@pytest.mark.parametrize(
    ("text", "borrowed"),
    [
        ("Local virtual device: 0000:04:05.0\nBound to driver: nvme\n", Borrowed("0000:04:05.0", "nvme")),
        ("Local virtual device: 0000:04:05.0\nBound to driver: N/A\n", Borrowed("0000:04:05.0", None)),
        ("Local virtual device: 0000:04:05.0\r\n", Borrowed("0000:04:05.0", None)),
        ("Device 0000:81:00.0 is now local\n", Borrowed(None, None)),
        ("", Borrowed(None, None)),
        ("\ufffd\ufffd: \x00\n", Borrowed(None, None)),
    ],
)
def test_borrow(text: str, borrowed: Borrowed) -> None:
    assert parse_borrow(text) == borrowed


def test_borrow_and_get_vdev_samples(sample: Sample) -> None:
    assert parse_borrow(sample("borrow-80002.txt")) == Borrowed("0000:04:05.0", "nvme")
    assert find_bdf(sample("synthetic-get-vdev.txt")) == "0000:04:05.0"


@pytest.mark.parametrize(
    ("name", "ids"),
    [("dis_config-gn.txt", {0: 8}), ("synthetic-dis_config-two-cards.txt", {0: 8, 1: 12})],
)
def test_node_id_samples(sample: Sample, name: str, ids: Dict[int, int]) -> None:
    assert parse_node_ids(sample(name)) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Card 1 - NodeId:  8", {0: 8}),
        ("card 2 - nodeid:12\r\nCard 1  -  NodeId: 8\r\n", {0: 8, 1: 12}),
        ("Card 1 - NodeId: none\n", {}),
        ("no cards\n", {}),
        ("", {}),
        ("\ufffdCard 3 - NodeId: 68\ufffd", {2: 68}),
        ("Card 1 - NodeId: " + "9" * 5000, {}),
        ("Card 0 - NodeId: 8\nCard 00 - NodeId: 8\nCard 01 - NodeId: 12", {0: 12}),
    ],
)
def test_node_ids(text: str, ids: Dict[int, int]) -> None:
    assert parse_node_ids(text) == ids


PIECES = st.sampled_from(
    ["80000", "ID ", ": ", ":", "[available]", "[", "]", "\n", "\r\n", " ", "\ufffd", "\x00", "\x85", "\u2028",
     "Name: ",
     "NodeId: ", "Remote BDF: ", "0000:81:00.0", "N/A", "Card 1 - NodeId: ", "9" * 5000, "0x", "\ud800",
     "Local users: ",
     "Vendor ID: "]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(), st.lists(PIECES, max_size=12).map("".join), st.binary().map(lambda b: b.decode("utf-8", "replace"))
)


@given(TEXTS)
@settings(max_examples=300)
def test_any_text_raises_nothing_but_a_sharing_error(text: str) -> None:
    parsed = parse_list(text)
    assert all(normalise_fdid(entry.fdid) == entry.fdid for entry in parsed.entries)
    assert all(line.isprintable() for line in parsed.unread)
    bdf = find_bdf(text)
    assert bdf is None or normalise(bdf) == bdf
    assert isinstance(parse_borrow(text), Borrowed)
    assert all(adapter >= -1 for adapter in parse_node_ids(text))
    try:
        assert parse_show("80000", text).fdid == "80000"
    except SharingError as error:
        assert "80000" in error.message


@pytest.mark.parametrize(
    ("value", "fdid"),
    [("80000", "80000"), ("0x80C00", "80c00"), (" 80000\n", "80000"), (80000, "80000"), ("0X48100", "48100"),
     ("0", "0"),
     ("00080000", "80000"), ("0000", "0"), ("f" * 16, "f" * 16)],
)  # fmt: skip
def test_fdid(value: object, fdid: str) -> None:
    assert normalise_fdid(value) == fdid


@pytest.mark.parametrize(
    "value", ["", "0x", "8000g", "80 000", "-1", -1, 1.0, None, True, "f" * 17, "80000;", "\uff18", [], b"8"]
)
def test_not_an_fdid(value: object) -> None:
    with pytest.raises(SharingError, match="is not a fabric device id") as caught:
        normalise_fdid(value)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("fdid", "node", "slot"),
    [
        ("48100", 4, "81:00.0"),
        ("80000", 8, "00:00.0"),
        ("80c00", 8, "0c:00.0"),
        ("4481ff", 68, "81:1f.7"),
        ("2", 0, "00:00.2"),
    ],
)
def test_hints(fdid: str, node: int, slot: str) -> None:
    assert (node_hint(fdid), slot_hint(fdid)) == (node, slot)
