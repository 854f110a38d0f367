# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What went wrong in several tasks, for a role that does the rest all the same and fails at its end."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

DOCUMENTATION = r"""
name: failures
short_description: Sentences of all that went wrong in several tasks
version_added: 0.1.0
author: The iofabric.sharing contributors (@iofabric)
description:
  - Modules of this collection leave the other elements of a task done when one fails. A role that registers their
    results with C(failed_when) false can so do what is left, and fail at its end with everything that went wrong.
positional: ignored
options:
  _input:
    description: Registered results. One of a task that was skipped, or that succeeded, has no failures.
    type: list
    elements: dict
    required: true
  ignored:
    description: Entries of the C(errors) of a result that do not count.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Fail with everything that went wrong
  ansible.builtin.assert:
    that: "[connected, lent] | iofabric.sharing.failures | length == 0"
    fail_msg: "{{ [connected, lent] | iofabric.sharing.failures | join('; ') }}"
"""

RETURN = r"""
_value:
  description: A sentence for each element that failed, and for each task that failed as a whole.
  type: list
  elements: str
"""


def failures(results: Sequence[Mapping[str, Any]], ignored: Sequence[Mapping[str, Any]] = ()) -> List[str]:
    """A sentence for each element that failed, and for each task that failed as a whole."""
    sentences = []
    for result in results:
        for error in result.get("errors") or ([result] if "msg" in result else []):
            if error not in ignored:
                sentences.append(_sentence(error))
    return sentences


def _sentence(error: Mapping[str, Any]) -> str:
    msg, element = str(error["msg"]), str(error.get("element", ""))
    return msg if element in msg else f"{element}: {msg}"


class FilterModule:
    """The filter, for Ansible."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """The filter by its name."""
        return {"failures": failures}
