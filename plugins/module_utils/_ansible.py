# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a resource as an Ansible module. The only file of module_utils that knows Ansible."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping

from ansible.module_utils.basic import AnsibleModule

from ._plan import Report, Resource, SharingError, describe_error, failure_sentence


def run_module(
    arguments: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Resource], **constraints: object
) -> None:
    """Be the module with these arguments, and end the process.

    ``make`` makes the resource from the module's parameters; ``constraints`` are AnsibleModule's
    (``mutually_exclusive`` and the like).
    """
    module = AnsibleModule(argument_spec=dict(arguments), supports_check_mode=True, **constraints)
    try:
        resource = make(module.params)
        report = resource.run(module.check_mode)
    except SharingError as error:
        module.fail_json(msg=error.message, **error.details)
    _end(module, resource.what, report)


def _end(module: AnsibleModule, what: str, report: Report) -> None:
    """End the module with its report: as a failure where an element failed, beside what changed all the same."""
    answer: Dict[str, Any] = {"changed": report.changed, **report.results}
    if report.before or report.after:
        answer["diff"] = {"before": _lines(report.before), "after": _lines(report.after)}
    for warning in report.warnings:
        module.warn(warning)
    if not report.errors:
        module.exit_json(**answer)
    answer["errors"] = [describe_error(name, error) for name, error in report.errors]
    total = max(len(report.before), len(report.errors))
    module.fail_json(msg=failure_sentence(report.errors, total, what), **answer)


def _lines(lines: List[str]) -> str:
    return "".join(line + "\n" for line in lines)
