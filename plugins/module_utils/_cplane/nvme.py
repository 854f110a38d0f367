# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands, completions and status codes of NVMe, for whoever builds or reads them.

Facts are from the NVM Express Base Specification 1.4 (sections and figures are cited by its numbering).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

COMMAND = struct.Struct("<BBHI8xQQQ6I")
"""Figure 105, common command format: opcode, flags, command id, NSID, metadata, PRP1, PRP2, CDW10 to CDW15."""
COMPLETION = struct.Struct("<IIHHHH")
"""Section 4.6: DW0, DW1, SQ head, SQ id, command id, status with the phase in bit 0."""

PAGE = 4096
SQE = 64
CQE = 16

# Admin commands (figure 139) and NVM commands (figure 346).
DELETE_SQ, CREATE_SQ, GET_LOG_PAGE, DELETE_CQ, CREATE_CQ, IDENTIFY, ABORT = 0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08
SET_FEATURES, GET_FEATURES, ASYNC_EVENT, KEEP_ALIVE, FORMAT = 0x09, 0x0A, 0x0C, 0x18, 0x80
NAMESPACE_MANAGEMENT, FIRMWARE_COMMIT, FIRMWARE_DOWNLOAD = 0x0D, 0x10, 0x11
VIRTUALIZATION, DOORBELL_BUFFER, SANITIZE = 0x1C, 0x7C, 0x84
FLUSH, WRITE, READ, WRITE_ZEROES = 0x00, 0x01, 0x02, 0x08

FEATURE_NUMBER_OF_QUEUES, FEATURE_HOST_MEMORY, FEATURE_KEEP_ALIVE = 0x07, 0x0D, 0x0F

# Registers (section 3.1) as numbers of 32-bit words, and the fields of CC and CSTS.
CAP, VS, INTMS, CC, CSTS, AQA, ASQ, ACQ = 0x00 // 4, 0x08 // 4, 0x0C // 4, 0x14 // 4, 0x1C // 4, 0x24 // 4, 10, 12
CRTO, DOORBELLS = 0x68 // 4, 0x1000 // 4
CC_EN, CC_SHN, CC_SHN_NORMAL = 1 << 0, 3 << 14, 1 << 14
CC_ENABLED = CC_EN | 6 << 16 | 4 << 20
"""The NVM command set, pages of 4 KiB, entries of 64 and 16 bytes."""
CSTS_RDY, CSTS_CFS, CSTS_SHST, CSTS_SHST_DONE = 1 << 0, 1 << 1, 3 << 2, 2 << 2

# Status codes as DNR (bit 14), SCT (bits 10:8), SC (bits 7:0): figures 126 to 130.
DNR = 0x4000
SUCCESS = 0
INVALID_OPCODE = DNR | 0x001
INVALID_FIELD = DNR | 0x002
DATA_TRANSFER_ERROR = DNR | 0x004
INTERNAL_ERROR = 0x006
ABORT_REQUESTED = 0x007
INVALID_NAMESPACE = DNR | 0x00B
COMMAND_SEQUENCE_ERROR = DNR | 0x00C
PRP_OFFSET_INVALID = DNR | 0x013
OPERATION_DENIED = DNR | 0x015
LBA_OUT_OF_RANGE = DNR | 0x080
FORMAT_IN_PROGRESS = 0x084
COMPLETION_QUEUE_INVALID = DNR | 0x100
INVALID_QUEUE_ID = DNR | 0x101
INVALID_QUEUE_SIZE = DNR | 0x102
ASYNC_EVENT_LIMIT = DNR | 0x105
INVALID_INTERRUPT_VECTOR = DNR | 0x108
INVALID_LOG_PAGE = DNR | 0x109
INVALID_FORMAT = DNR | 0x10A
INVALID_QUEUE_DELETION = DNR | 0x10C
FEATURE_NOT_SAVEABLE = DNR | 0x10D
FEATURE_NOT_CHANGEABLE = DNR | 0x10E
WRITE_FAULT = 0x280
UNRECOVERED_READ_ERROR = 0x281


class Completion(NamedTuple):
    """A completion that was read: ``status`` is DNR, SCT and SC as above, without the phase; 0 is success."""

    dw0: int
    sq_head: int
    sq_id: int
    cid: int
    status: int

    @property
    def code(self) -> str:
        """The status in words: type and code, as the specification writes them."""
        return f"SCT {self.status >> 8 & 7:x}h SC {self.status & 0xFF:02x}h"


def command(
    opcode: int,
    nsid: int = 0,
    prp1: int = 0,
    prp2: int = 0,
    cdw10: int = 0,
    cdw11: int = 0,
    cdw12: int = 0,
    cdw13: int = 0,
    cid: int = 0,
) -> bytes:
    """Return the 64 bytes of a command."""
    return COMMAND.pack(opcode, 0, cid, nsid, 0, prp1, prp2, cdw10, cdw11, cdw12, cdw13, 0, 0)


def read_completion(data: bytes) -> Completion:
    """Read the 16 bytes of a completion."""
    dw0, _dw1, head, queue, cid, status = COMPLETION.unpack(data)
    return Completion(dw0, head, queue, cid, status >> 1)


def doorbell(qid: int, completion: bool, stride: int = 0) -> int:
    """Return the number of the 32-bit word of a queue's doorbell (sections 3.1.25 and 3.1.26, stride as CAP.DSTRD)."""
    return DOORBELLS + (2 * qid + (1 if completion else 0) << stride)


def stride(cap: int) -> int:
    """Return CAP.DSTRD."""
    return cap >> 32 & 0xF
