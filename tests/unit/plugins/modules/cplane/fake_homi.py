# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the reference tool, as far as a manager of servers can tell: its command line, output and signals.

FAKE_HOMI_DIR is where it puts its socket (the real one has no choice), FAKE_HOMI_LOG collects its command lines,
FAKE_HOMI_BUILD is ``current``, ``start`` (an older verb) or ``shm`` (and an older option of the id).
"""

from __future__ import annotations

import json
import os
import sys
from typing import List

import wire_server

VERBS = {"current": "serve", "start": "start", "shm": "start"}
OPTIONS = {"current": "--homi-id", "start": "--homi-id", "shm": "--shm_id"}
BDF_LENGTH = len("0000:81:00.0")


def usage(verb: str, option: str, arguments: List[str]) -> int:
    if arguments[:1] == [verb]:
        print(f"usage: homi {verb} URI... {option} N [--be NAME] [--host_heap_size BYTES]")
    else:
        print(f"usage: homi <command> [<args>]\n  {verb}  serve controllers\n  status  tell")
    return 22


def fail(text: str) -> int:
    print(f"# ERR: {text}", file=sys.stderr)
    return 1


def main(arguments: List[str]) -> int:
    build = os.environ.get("FAKE_HOMI_BUILD", "current")
    verb, option = VERBS[build], OPTIONS[build]
    if "--help" in arguments:
        return usage(verb, option, arguments)
    with open(os.environ["FAKE_HOMI_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps(arguments) + "\n")
    if arguments[:1] != [verb] or option not in arguments:
        return usage(verb, option, arguments)
    uris = arguments[1 : arguments.index(option)]
    wrong = [uri for uri in uris if len(uri) < BDF_LENGTH]
    if wrong:
        return fail(f"'xnvme_dev_open({wrong[0]})': {{errno: 6, msg: 'No such device or address'}}")
    if "0000:de:0d.0" in uris:
        return fail("'nvme_controller_open()': 0000:de:0d.0 is not bound to vfio-pci")
    cplane_id = arguments[arguments.index(option) + 1]
    os.umask(0o022)
    wire_server.signal.signal(wire_server.signal.SIGTERM, lambda *_: sys.exit(0))
    server = wire_server.WireServer(os.path.join(os.environ["FAKE_HOMI_DIR"], f"xnvme-homi-{cplane_id}.sock"), uris)
    print("# HOMI started successfully, use Ctrl+C to stop", flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
