# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a resource as an Ansible module. The only file of module_utils that knows Ansible."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

from ansible.module_utils.basic import AnsibleModule

from ._plan import Report, SharingError, describe_error, failure_sentence
from ._smartio.errors import ToolMissing
from ._smartio.host import Places, Resource, open_host

SMARTIO_ARGUMENTS: Dict[str, Any] = {
    "tool": {"type": "str", "default": "smartio_tool"},
    "sysfs": {"type": "path", "default": "/sys"},
    "proc": {"type": "path", "default": "/proc"},
    "dev": {"type": "path", "default": "/dev"},
    "state_dir": {"type": "path", "default": "/run/smartio"},
    "timeout": {"type": "float", "default": 60},
}


def run_smartio(
    arguments: Mapping[str, Any], resource: Callable[[Mapping[str, Any]], Resource], **constraints: object
) -> None:
    """Be the module with these arguments (beside the ones that all SmartIO modules have), and end the process.

    ``resource`` makes the resource from the module's parameters; ``constraints`` are AnsibleModule's
    (``mutually_exclusive`` and the like).
    """
    spec = {**SMARTIO_ARGUMENTS, **arguments}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True, **constraints)
    try:
        wanted = resource(module.params)
        report, warnings = _run(module, wanted)
    except SharingError as error:
        module.fail_json(msg=error.message, **error.details)
    end(module, wanted.what, report, warnings)


def _run(module: AnsibleModule, resource: Resource) -> tuple[Report, List[str]]:
    places = Places(**{name: module.params[name] for name in SMARTIO_ARGUMENTS})
    try:
        host = open_host(places)
    except ToolMissing:
        # In check mode an earlier task of the same play may be the one that installs the tool.
        if module.check_mode:
            return resource.pending(places), []
        raise
    return resource.run(host, module.check_mode), host.warnings


def end(module: AnsibleModule, what: str, report: Report, warnings: List[str]) -> None:
    """End the module with its report: as a failure where an element failed, beside what changed all the same."""
    answer: Dict[str, Any] = {"changed": report.changed, **report.results}
    if report.before or report.after:
        answer["diff"] = {"before": _lines(report.before), "after": _lines(report.after)}
    for warning in [*warnings, *report.warnings]:
        module.warn(warning)
    if not report.errors:
        module.exit_json(**answer)
    answer["errors"] = [describe_error(name, error) for name, error in report.errors]
    total = max(len(report.before), len(report.errors))
    module.fail_json(msg=failure_sentence(report.errors, total, what), **answer)


def _lines(lines: List[str]) -> str:
    return "".join(line + "\n" for line in lines)
