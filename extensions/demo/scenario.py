# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens while the demo's nodes run: the playbook twice, then the table. ``run.py`` starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Optional

from guard import end_with_parent
from report import DemoError, Recap, Row, Service, check_recap, pool, services, table

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = "playbooks/demo.yml"
INVENTORY = "extensions/demo/inventory.yml"


def say(text: str) -> None:
    """Print a line, at once: the programs that are started here print to the same place."""
    print(text, flush=True)


def play(record: Path) -> dict[str, Any]:
    """Run the playbook; what the callback plugin wrote to ``record``."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", INVENTORY, PLAYBOOK]
    environment = {**os.environ, "DEMO_RECORD": str(record)}
    status = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
    ).returncode
    if status != 0:
        raise DemoError(f"ansible-playbook ended with exit status {status}")
    with open(record, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def scenario(folder: Path, hosts: list[str]) -> tuple[list[Row], list[Service]]:
    """Both runs and the table; its rows, and what is served. DemoError when anything is not as it has to be."""
    say(f"demo: first run: ansible-playbook -i {INVENTORY} {PLAYBOOK}")
    first: Recap = play(folder / "first.json")["recap"]
    check_recap(first, hosts, must_change=True)
    say("demo: second run of the same playbook, which must change nothing")
    second = play(folder / "second.json")
    check_recap(second["recap"], hosts, must_change=False)
    results = second["results"]
    rows = pool(results["iofabric.sharing.smartio_info"], results["iofabric.sharing.smartio_borrow"])
    say("demo: the pool, as smartio_info tells it on all nodes\n")
    say(table(rows))
    served = services(results["iofabric.sharing.xnvme_cplane_info"], results["ansible.builtin.async_status"])
    for service in served:
        say(f"demo: {service.sentence()}")
    return rows, served


def _end(number: int, _frame: Optional[FrameType]) -> None:
    # At once: the playbook dies with this process, and the guard ends what it leaves behind.
    os._exit(128 + number)


def main(arguments: list[str]) -> int:
    """Usage: scenario.py FOLDER HOST..."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    folder = Path(arguments[0])
    try:
        rows, served = scenario(folder, arguments[1:])
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr, flush=True)
        return 1
    counts = {
        "lent": len(rows),
        "borrowed": sum(1 for row in rows if row.borrower),
        "served": len(served),
        "clients": sum(len(service.clients) for service in served),
    }
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
