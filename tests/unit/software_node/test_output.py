# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of the tools, byte for byte as they were published (the ids apart)."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from software_node import output
from software_node.address import parse_bdf
from software_node.config import Device, read_device
from software_node.errors import UsageError
from software_node.output import View

DRIVE = {"bdf": "06:00.0", "vendor_id": "8086", "device_id": "f1a5", "class": "010802"}
QUADRO = {
    "bdf": "09:00.0",
    "vendor_id": "10de",
    "device_id": "0ff3",
    "class": "030000",
    "name": "NVIDIA Corporation GK107GL [Quadro K420] (rev a1)",
}
GPU = {
    "bdf": "81:00.0",
    "vendor_id": "10de",
    "device_id": "28b0",
    "class": "030000",
    "subsystem_device_id": "1870",
    "uuid": "756e81e3-f403-42a3-b848-862013cca6c6",
}


def device(data: Dict[str, Any]) -> Device:
    return read_device(data, "node")


@pytest.mark.parametrize(
    ("generation", "fdid", "state", "line"),
    [
        (
            "2018",
            0x80000,
            "available",
            "80000: Non-Volatile memory controller Intel Corporation Device f1a5 [available]",
        ),
        (
            "id-prefix",
            0x80002,
            "unavailable",
            "ID 80002: Non-Volatile memory controller: Intel Corporation Device [unavailable]",
        ),
        (
            "current",
            0x80002,
            "available",
            "80002: Non-Volatile memory controller: Intel Corporation Device [available]",
        ),
    ],
)
def test_list_as_published(generation: str, fdid: int, state: str, line: str) -> None:
    assert output.list_line(View(fdid, 8, 0, state, device(DRIVE)), generation, "available") == line


def test_a_borrowed_device_has_the_configured_word() -> None:
    view = View(0x80900, 8, 0, "borrowed", device(QUADRO))
    assert output.list_line(view, "current", "in use").endswith("[Quadro K420] (rev a1) [in use]")
    assert output.list_line(view, "current", "available").endswith("[Quadro K420] (rev a1) [available]")


def test_show_as_published() -> None:
    assert output.show(View(0x48100, 4, 0, "available", device(GPU)), [8], 0, "available") == (
        "Name: VGA compatible controller NVIDIA Corporation Device 28b0\n"
        "Available: available\n"
        "Location: remote\n"
        "Adapter: 0\n"
        "NodeId: 4\n"
        "Remote BDF: 0000:81:00.0\n"
        "Physical slot: N/A\n"
        "Serial Number: 00-00-00-00-00-00-00-00\n"
        "UUID: 756e81e3-f403-42a3-b848-862013cca6c6\n"
        "Vendor ID: 10de\n"
        "Device ID: 28b0\n"
        "Subsystem Vendor ID: 10de\n"
        "Subsystem Device ID: 1870\n"
        "Local users: 0\n"
    )


def test_show_of_an_own_device_says_local() -> None:
    text = output.show(View(0x48100, 4, 0, "borrowed", device(GPU)), [4], 1, "lent")
    assert "Location: local\n" in text
    assert "Available: lent\n" in text
    assert text.endswith("Local users: 1\n")


def test_borrow_as_published() -> None:
    assert output.borrowed(device(DRIVE), parse_bdf("04:05.0"), "nvme", "nvme0") == (
        "Name: Non-Volatile memory controller Intel Corporation Device f1a5\n"
        "Local users: 1\n"
        "Local virtual device: 0000:04:05.0\n"
        "Bound to driver: nvme\n"
        "NVMe namespace: nvme0\n"
    )


def test_borrow_of_what_has_no_driver() -> None:
    text = output.borrowed(device(GPU), parse_bdf("04:05.0"), "", "")
    assert text.endswith("Bound to driver: N/A\n")


def test_lspci_line_as_published() -> None:
    expected = "09:00.0 VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)"
    assert output.lspci_line(device(QUADRO)) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "09:00.0 VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)\n"),
        (["-n"], "09:00.0 0300: 10de:0ff3 (rev a1)\n"),
        (
            ["-nn"],
            "09:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK107GL [Quadro K420] [10de:0ff3] (rev a1)\n",
        ),
        (["-D", "-n"], "0000:09:00.0 0300: 10de:0ff3 (rev a1)\n"),
        (["-nv"], "09:00.0 0300: 10de:0ff3 (rev a1)\n\tSubsystem: 10de:0ff3\n\tKernel driver in use: nvidia\n"),
    ],
)
def test_lspci(args: List[str], expected: str) -> None:
    assert output.lspci(device(QUADRO), "nvidia", args) == expected


def test_lspci_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="-xxx"):
        output.lspci(device(QUADRO), "", ["-xxx"])
