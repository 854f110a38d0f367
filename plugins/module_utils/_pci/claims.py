# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a disk for itself, where nothing in sysfs or proc tells: the kernel says only that somebody has (O_EXCL)."""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import Optional

# Of a ZFS label (vdev_label_t): what is in front of the list of names and values, and the list's room.
_ZFS_LIST, _ZFS_BYTES = 16 << 10, 112 << 10
_STRING = 9  # DATA_TYPE_STRING


def is_claimed(path: str, number: str) -> Optional[bool]:
    """Whether somebody has claimed a block device, such as a filesystem that is no longer mounted anywhere.

    None where ``path`` is not the device with that "major:minor". OSError where it may not be opened. To open it for
    reading wakes nothing up, and it is let go at once.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISBLK(found.st_mode) or f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" != number:
            return None
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def zfs_pool(path: str) -> Optional[str]:
    """The name of the ZFS pool that a block device is labelled as a member of."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(_ZFS_LIST)
            return _name_in(file.read(_ZFS_BYTES))
    except OSError:
        return None


def _name_in(data: bytes) -> Optional[str]:
    """The value of ``name`` in a list of names and values in XDR form (libnvpair); None where this is not one."""
    if data[:1] != b"\1":
        return None
    place = 12  # encoding, version and flags
    try:
        while True:
            size, _unpacked, length = struct.unpack_from(">iii", data, place)
            if size <= 0:
                return None
            name = data[place + 12 : place + 12 + length]
            after = place + 12 + (length + 3) // 4 * 4
            kind, _count, chars = struct.unpack_from(">iii", data, after)
            if name == b"name" and kind == _STRING:
                return data[after + 12 : after + 12 + chars].decode("utf-8", "replace")
            place += size
    except struct.error:
        return None
