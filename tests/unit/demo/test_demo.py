# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the demo makes of its runs: the check of the recap, the pool, the table."""

from __future__ import annotations

import copy
from typing import Any, Dict

import pytest
from ansible_collections.iofabric.sharing.extensions.demo import report

RECAP = {
    "lender": {"ok": 3, "changed": 0, "unreachable": 0, "failures": 0, "skipped": 0, "rescued": 0, "ignored": 0},
    "borrower": {"ok": 2, "changed": 0, "unreachable": 0, "failures": 0, "skipped": 0, "rescued": 0, "ignored": 0},
}
HOSTS = ["lender", "borrower"]


def recap(**changes: int) -> Dict[str, Dict[str, int]]:
    """The recap of a run that changed nothing, with other counters for the borrower."""
    result = copy.deepcopy(RECAP)
    result["borrower"].update(changes)
    return result


def device(bdf: str, name: str, **more: Any) -> Dict[str, Any]:
    """A device of node 4 as smartio_info tells it."""
    facts = {"fdid": "48100", "bdf": bdf, "name": name, "node_id": 4, "uuid": "uuid-of-" + bdf, "state": "available"}
    return {**facts, "vdev": None, "label": None, **more}


GPU = device("0000:03:00.0", "VGA compatible controller: NVIDIA Corporation GK107GL [Quadro K420] (rev a1)")
DRIVE = device("0000:81:00.0", "Non-Volatile memory controller: Intel Corporation Device", state="borrowed")
INFOS = {
    "borrower": {
        "node_id": 8,
        "devices": [{**DRIVE, "state": "available", "vdev": "0000:04:05.0", "label": "scratch"}, GPU],
    },
    "lender": {"node_id": 4, "devices": [DRIVE, GPU]},
}
NODES = ["/x/dev/nvme0", "/x/dev/nvme0n1", "/x/dev/nvme0n1p1"]
BORROWINGS = {"borrower": {"devices": [{"vdev": "0000:04:05.0", "driver": "nvme", "device_nodes": NODES}]}}


def test_a_second_run_that_changed_nothing_is_right() -> None:
    assert report.check_recap(RECAP, HOSTS, must_change=False) is None


@pytest.mark.parametrize("counter", ["changed", "failures", "unreachable", "rescued", "ignored"])
def test_a_second_run_that_is_not_all_zero_fails(counter: str) -> None:
    with pytest.raises(report.DemoError, match="borrower: "):
        report.check_recap(recap(**{counter: 1}), HOSTS, must_change=False)


def test_a_host_that_took_no_part_fails() -> None:
    with pytest.raises(report.DemoError, match="third took no part"):
        report.check_recap(RECAP, [*HOSTS, "third"], must_change=False)
    with pytest.raises(report.DemoError, match="borrower took no part"):
        report.check_recap(recap(ok=0), HOSTS, must_change=False)


def test_a_host_that_nobody_knows_fails() -> None:
    with pytest.raises(report.DemoError, match="borrower is in the recap"):
        report.check_recap(RECAP, ["lender"], must_change=False)


def test_a_first_run_has_to_change_something_on_every_host() -> None:
    with pytest.raises(report.DemoError, match="lender: the first run changed nothing"):
        report.check_recap(recap(changed=1), HOSTS, must_change=True)
    both = {host: {**counters, "changed": 1} for host, counters in RECAP.items()}
    assert report.check_recap(both, HOSTS, must_change=True) is None


def test_the_pool_joins_what_owner_and_borrower_tell() -> None:
    assert report.pool(INFOS, BORROWINGS) == [
        report.Row("NVIDIA Corporation GK107GL [Quadro K420] (rev a1)", "lender", "0000:03:00.0", "available"),
        report.Row(
            device="Intel Corporation Device",
            lender="lender",
            address="0000:81:00.0",
            state="borrowed",
            borrower="borrower",
            label="scratch",
            vdev="0000:04:05.0",
            driver="nvme",
            nodes="nvme0 nvme0n1",
        ),
    ]


def test_a_device_that_two_hosts_have_borrowed_fails() -> None:
    infos = {**INFOS, "other": {**INFOS["borrower"], "node_id": 12}}
    with pytest.raises(report.DemoError, match="48100 is borrowed by borrower and by other"):
        report.pool(infos, BORROWINGS)


def test_the_table_has_columns_of_one_width_and_dashes_for_nothing() -> None:
    text = report.table(report.pool(INFOS, BORROWINGS))
    lines = text.splitlines()
    assert [line.split()[-1] for line in lines] == ["NODES", "-", "nvme0n1"]
    for heading in report.HEADINGS[1:]:
        at = lines[0].index(heading)
        assert all(line[at - 1] == " " and line[at] != " " for line in lines)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("VGA compatible controller: NVIDIA [Quadro]", "NVIDIA [Quadro]"),
        ("Non-Volatile memory controller Intel", "Non-Volatile memory controller Intel"),
    ],
)
def test_a_short_name_has_no_class(name: str, short: str) -> None:
    assert report.short_name(name) == short


CONTROLLER = {"name": "emu:scratch?size=64M", "uri": "ffff:5a:0e.7"}
SERVERS = {"borrower": {"servers": [{"cplane_id": 7, "alive": True, "clients": 0, "controllers": [CONTROLLER]}]}}


def client(verified: str = "true", nbytes: int = 131072) -> Dict[str, Any]:
    """The answer of async_status for an example client that ended."""
    return {"stdout_lines": ["uri: ffff:5a:0e.7", f"bytes: {nbytes}", f"verified: {verified}"]}


def test_what_is_served_is_told_in_a_sentence() -> None:
    (service,) = report.services(SERVERS, {"borrower": {"results": [client(), client(nbytes=4096)]}})
    assert service == report.Service("borrower", 7, CONTROLLER["name"], CONTROLLER["uri"], [131072, 4096])
    assert "2 client processes wrote and read back 128 KiB and 4 KiB" in service.sentence()


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([client()], "1 clients ended, not two"),
        ([client(), client(verified="false")], "did not read back"),
        ([client(), {"stdout_lines": []}], "did not read back"),
        ([client(), client(nbytes=0)], "did not read back"),
    ],
)
def test_clients_that_did_not_do_their_part_fail(results: Any, words: str) -> None:
    with pytest.raises(report.DemoError, match=words):
        report.services(SERVERS, {"borrower": {"results": results}})


@pytest.mark.parametrize("change", [{"alive": False}, {"clients": 1}, {"clients": None}])
def test_a_server_that_is_gone_or_still_has_clients_fails(change: Dict[str, Any]) -> None:
    servers = {"borrower": {"servers": [{**SERVERS["borrower"]["servers"][0], **change}]}}
    with pytest.raises(report.DemoError, match="does not run"):
        report.services(servers, {"borrower": {"results": [client(), client()]}})


def test_nothing_served_fails() -> None:
    with pytest.raises(report.DemoError, match="no controller"):
        report.services({}, {})
