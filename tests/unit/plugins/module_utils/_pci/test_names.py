# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.names import describe
from ansible_collections.iofabric.sharing.plugins.module_utils._pci.sysfs import PciDevice

PCI_IDS = """\
#\tA comment
144d  Samsung Electronics Co Ltd
\ta808  NVMe SSD SM981
\t\t144d a801  SSD 970 EVO
10DE  NVIDIA Corporation
\t0ffd  GK107 [NVS 510]

C 01  Mass storage controller
\t08  Non-Volatile memory controller
\t\t02  NVM Express
C 03  Display controller
\t00  VGA compatible controller
"""


@pytest.mark.parametrize(
    ("vendor", "device", "code", "name"),
    [
        ("144d", "a808", "010802", "Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD SM981"),
        ("10de", "0ffd", "030000", "VGA compatible controller: NVIDIA Corporation GK107 [NVS 510]"),
        ("10de", "1234", "030000", "VGA compatible controller: NVIDIA Corporation Device 1234"),
        ("144d", "a808", "019900", "Mass storage controller [0199]: Samsung Electronics Co Ltd NVMe SSD SM981"),
        ("8086", "f1a5", "420000", "Class 4200: Device 8086:f1a5"),
        ("8086", "a801", "010800", "Non-Volatile memory controller: Device 8086:a801"),
        ("", "", "", "Class ????: Device ????:????"),
    ],
)  # fmt: skip
def test_names(tmp_path: Path, vendor: str, device: str, code: str, name: str) -> None:
    (tmp_path / "pci.ids").write_text(PCI_IDS)
    paths = (str(tmp_path / "missing"), str(tmp_path / "pci.ids"))
    assert describe(PciDevice("0000:81:00.0", vendor, device, class_code=code), paths) == name


def test_numbers_where_no_file_is_installed(tmp_path: Path) -> None:
    drive = PciDevice("0000:81:00.0", "8086", "f1a5", class_code="010802")
    assert describe(drive, (str(tmp_path / "missing"),)) == "Class 0108: Device 8086:f1a5"


def test_a_file_of_something_else_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_bytes(b"\t\xff\xfe no vendor above\nC\nC \n\tx\n" + bytes(range(256)))
    drive = PciDevice("0000:81:00.0", "8086", "f1a5", class_code="010802")
    assert describe(drive, (str(tmp_path / "pci.ids"),)) == "Class 0108: Device 8086:f1a5"
