# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of the host's real sysfs: reading what they are, and really unbinding and re-probing their drivers."""

from __future__ import annotations

import os
import time
from typing import Any, Dict

from .address import Bdf, parse_bdf
from .errors import ConfigError, NodeError

_SETTLE = 2.0  # seconds that a driver may take to let go of a device, or to take it


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().strip()


def complete(sysfs: str, data: Any) -> Any:
    """Adds to a configured device (at least its ``bdf``) what the real sysfs says; what is configured counts."""
    if not isinstance(data, dict):
        return data
    try:
        bdf = parse_bdf(str(data.get("bdf")))
        path = os.path.join(sysfs, "bus/pci/devices", str(bdf))
        found: Dict[str, Any] = {
            "vendor_id": _read(os.path.join(path, "vendor")),
            "device_id": _read(os.path.join(path, "device")),
            "class": _read(os.path.join(path, "class")),
            "subsystem_vendor_id": _read(os.path.join(path, "subsystem_vendor")),
            "subsystem_device_id": _read(os.path.join(path, "subsystem_device")),
        }
    except ValueError as error:
        raise ConfigError(f"device: bdf {error}") from None
    except OSError as error:
        raise ConfigError(f"device {data.get('bdf')}: {error.filename}: {error.strerror}") from None
    driver = RealSysfs(sysfs).driver(bdf)
    found["driver"] = driver
    found.update(_nvme(path))
    return {**found, **data}


def _nvme(path: str) -> Dict[str, Any]:
    """Serial number and model of a drive, as far as its driver is bound."""
    folder = os.path.join(path, "nvme")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        return {key: _read(os.path.join(folder, name, key)) for key in ("serial", "model")}
    return {}


class RealSysfs:
    """The part of a node's local devices that the real sysfs knows."""

    def __init__(self, root: str) -> None:
        self._bus = os.path.join(root, "bus/pci")

    def driver(self, bdf: Bdf) -> str:
        """The driver that is bound, or an empty string."""
        try:
            return os.path.basename(os.readlink(os.path.join(self._bus, "devices", str(bdf), "driver")))
        except OSError:
            return ""

    def unbind(self, bdf: Bdf) -> None:
        """Takes the driver away; NodeError with the kernel's errno."""
        if self.driver(bdf):
            self._write(os.path.join(self._bus, "devices", str(bdf), "driver/unbind"), str(bdf))
            self._wait(bdf, False)

    def bind(self, bdf: Bdf) -> None:
        """Lets the kernel probe for a driver again."""
        if not self.driver(bdf):
            self._write(os.path.join(self._bus, "drivers_probe"), str(bdf))
            self._wait(bdf, True)

    def _write(self, path: str, text: str) -> None:
        try:
            with open(path, "w", encoding="ascii") as stream:
                stream.write(text)
        except OSError as error:
            raise NodeError(error.errno or 5, f"{path}: {error.strerror}") from None

    def _wait(self, bdf: Bdf, bound: bool) -> None:
        deadline = time.monotonic() + _SETTLE
        while bool(self.driver(bdf)) != bound and time.monotonic() < deadline:
            time.sleep(0.01)
