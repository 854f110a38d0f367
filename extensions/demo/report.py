# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the demo makes of its runs, without touching anything: the check of a recap, the pool, a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Recap = Mapping[str, Mapping[str, int]]
"""Counters by host, as in the recap of ansible-playbook: ok, changed, unreachable, failures, ..."""
Answers = Mapping[str, Mapping[str, Any]]
"""What a module answered, by host."""

HEADINGS = ("DEVICE", "LENDER", "ADDRESS", "STATE", "BORROWER", "LABEL", "APPEARS AS", "DRIVER", "DEVICE NODES")


class DemoError(Exception):
    """The demo failed; the message is the sentence that is printed."""


@dataclass(frozen=True)
class Row:
    """A device of the pool: who lends it, and where it is borrowed. What does not apply is empty."""

    device: str
    lender: str
    address: str
    state: str
    borrower: str = ""
    label: str = ""
    vdev: str = ""
    driver: str = ""
    nodes: str = ""


@dataclass(frozen=True)
class Service:
    """A controller that is served on a host: how it is named there, and how many bytes each client read back."""

    host: str
    cplane_id: int
    name: str
    uri: str
    clients: Sequence[int]

    def sentence(self) -> str:
        """What was seen, for a person."""
        sizes = " and ".join(f"{nbytes // 1024} KiB" for nbytes in self.clients)
        return (
            f"{self.host} serves {self.name} as {self.uri} under id {self.cplane_id}; "
            f"{len(self.clients)} client processes wrote and read back {sizes}"
        )


def check_recap(recap: Recap, hosts: Sequence[str], must_change: bool) -> None:
    """Raise DemoError unless every host was reached, nothing failed, and all hosts changed (or none did)."""
    for host in hosts:
        counters = recap.get(host)
        if counters is None or not counters["ok"]:
            raise DemoError(f"{host} took no part in the run")
        for counter in ("failures", "unreachable", "rescued", "ignored"):
            if counters[counter]:
                raise DemoError(f"{host}: {counter}={counters[counter]} in the recap")
        if must_change and not counters["changed"]:
            raise DemoError(f"{host}: the first run changed nothing, so a second one proves nothing")
        if not must_change and counters["changed"]:
            raise DemoError(f"{host}: the second run changed {counters['changed']} tasks, and must not change any")
    strangers = sorted(set(recap) - set(hosts))
    if strangers:
        raise DemoError(f"{strangers[0]} is in the recap and not in the cluster")


def pool(infos: Answers, borrowings: Answers) -> list[Row]:
    """The pool as all hosts see it together.

    ``infos`` are the answers of smartio_info (with borrowed: true): an owner tells name and state, a borrower tells
    address and label. ``borrowings`` are those of smartio_borrow, which tell drivers and device nodes.
    """
    names = {answer["node_id"]: host for host, answer in infos.items()}
    bound = {(host, one["vdev"]): one for host, answer in borrowings.items() for one in answer["devices"]}
    rows = []
    for device in sorted(_seen_by_owners(infos), key=lambda one: (one["node_id"], one["bdf"])):
        here = [(host, one) for host, one in _borrowed(infos) if one["uuid"] == device["uuid"]]
        if len(here) > 1:
            raise DemoError(f"{device['fdid']} is borrowed by {' and by '.join(host for host, _one in here)}")
        row = Row(short_name(device["name"]), names[device["node_id"]], device["bdf"], device["state"])
        for host, one in here:
            up = bound.get((host, one["vdev"]), {})
            nodes = short_nodes(up.get("device_nodes") or ())
            where = (host, one["label"] or "", one["vdev"], up.get("driver") or "", nodes)
            row = Row(row.device, row.lender, row.address, row.state, *where)
        rows.append(row)
    return rows


def _seen_by_owners(infos: Answers) -> list[Mapping[str, Any]]:
    return [one for answer in infos.values() for one in answer["devices"] if one["node_id"] == answer["node_id"]]


def _borrowed(infos: Answers) -> list[tuple[str, Mapping[str, Any]]]:
    return [(host, one) for host, answer in infos.items() for one in answer["devices"] if one["vdev"]]


def short_name(name: str) -> str:
    """A device's name without its class, which stands before the first colon."""
    return name.partition(": ")[2] or name


def short_nodes(paths: Sequence[str]) -> str:
    """Device nodes as they are called below /dev, without the partitions of a drive."""
    names = [path.partition("/dev/")[2] for path in paths]
    return " ".join(name for name in names if not re.search(r"n\d+p\d+$", name))


def table(rows: Sequence[Row]) -> str:
    """The rows below headings, in columns as wide as they need to be; a dash stands for nothing."""
    lines = [HEADINGS, *(tuple(cell or "-" for cell in vars(row).values()) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def services(servers: Answers, waited: Answers) -> list[Service]:
    """What is served, by the answers of xnvme_cplane_info, and what the clients printed, by those of async_status."""
    found = []
    for host, answer in servers.items():
        clients = [_verified(host, result) for result in waited.get(host, {}).get("results", ())]
        if len(clients) < 2:
            raise DemoError(f"{host}: {len(clients)} clients ended, not two")
        for server in answer["servers"]:
            if not server["alive"] or server["clients"] != 0:
                raise DemoError(f"{host}: the server does not run, or the clients left something behind")
            for one in server["controllers"]:
                found.append(Service(host, server["cplane_id"], one["name"], one["uri"], clients))
    if not found:
        raise DemoError("no controller is served")
    return found


def _verified(host: str, result: Mapping[str, Any]) -> int:
    """The bytes that a client says it read back as it had written them."""
    said = dict(line.split(": ", 1) for line in result["stdout_lines"])
    if said.get("verified") != "true" or not int(said.get("bytes", 0)):
        raise DemoError(f"{host}: a client did not read back what it wrote")
    return int(said["bytes"])
