# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every role says of itself, in its README and its argument specification, is true and the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
INVENTORIES = ["extensions/demo/inventory.yml", "extensions/molecule/inventory.yml"]
# How a table says that nothing is there by default.
NOTHING = {"empty": "", "none": None}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def specification(role: str) -> Dict[str, Any]:
    """The options of a role."""
    options: Dict[str, Any] = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"][
        "options"
    ]
    return options


def readme(role: str) -> str:
    return (ROOT / "roles" / role / "README.md").read_text()


def table(role: str) -> List[Tuple[str, str, str]]:
    """Variable, default and meaning, as the README has them."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", readme(role), re.MULTILINE)
    return [row for row in rows if row[0].startswith(role)]


def all_options(options: Dict[str, Any], path: str = "") -> Iterator[Tuple[str, Dict[str, Any]]]:
    for name, option in options.items():
        yield f"{path}{name}", option
        yield from all_options(option.get("options", {}), f"{path}{name}.")


def tasks_of(data: Any) -> Iterator[Dict[str, Any]]:
    for task in data or ():
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part))


def tags_of(role: str) -> Set[str]:
    """All tags of a role's tasks, without those that Ansible has a meaning for."""
    tags: Set[str] = set()
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        for task in tasks_of(load(path)):
            found = task.get("tags", [])
            tags |= set(found if isinstance(found, list) else [found])
    return tags - {"always", "never"}


@pytest.mark.parametrize("role", ROLES)
def test_the_table_has_every_variable_in_the_order_of_the_specification(role: str) -> None:
    assert [row[0] for row in table(role)] == list(specification(role))


@pytest.mark.parametrize("role", ROLES)
def test_the_table_has_the_defaults_of_the_specification(role: str) -> None:
    options = specification(role)
    for name, default, _meaning in table(role):
        if "default" in options[name]:
            told = NOTHING[default] if default in NOTHING else yaml.safe_load(default.strip("`"))
            assert told == options[name]["default"], name


@pytest.mark.parametrize("role", ROLES)
def test_the_defaults_are_those_of_the_specification(role: str) -> None:
    options, defaults = specification(role), load(ROOT / "roles" / role / "defaults/main.yml")
    assert set(defaults) <= set(options)
    fixed = {name: value for name, value in defaults.items() if "{{" not in str(value) and "{%" not in str(value)}
    assert {name: options[name].get("default") for name in fixed} == fixed
    assert [name for name, option in options.items() if "default" in option and name not in defaults] == []


@pytest.mark.parametrize("role", ROLES)
def test_every_option_is_named_after_the_role_and_described(role: str) -> None:
    assert [name for name in specification(role) if not name.startswith(f"{role}_")] == []
    assert [name for name, option in all_options(specification(role)) if not option.get("description")] == []
    assert [name for name, option in all_options(specification(role)) if "type" not in option] == []


@pytest.mark.parametrize("role", ROLES)
def test_secrets_are_not_logged(role: str) -> None:
    secret = re.compile(r"token|password|secret|passphrase")
    named = {name: option for name, option in all_options(specification(role)) if secret.search(name)}
    assert [name for name, option in named.items() if not option.get("no_log")] == []


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_has_an_example_and_all_tags(role: str) -> None:
    text = readme(role)
    assert "## Example" in text
    tags = text.partition("## Tags")[2]
    assert {tag for tag in tags_of(role) if f"`{tag}`" not in tags} == set()
    assert {tag for tag in re.findall(rf"`({role}\w*)`", tags) if tag not in tags_of(role)} == set()
    assert "check mode" in text.lower()


@pytest.mark.parametrize("role", ROLES)
def test_the_galaxy_is_told_the_truth(role: str) -> None:
    told = load(ROOT / "roles" / role / "meta/main.yml")
    wanted = load(ROOT / "meta/runtime.yml")["requires_ansible"]
    assert f">={told['galaxy_info']['min_ansible_version']}.0" == wanted
    assert told["dependencies"] == []


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_of_the_collection_names_the_role(role: str) -> None:
    assert f"(roles/{role}/README.md)" in (ROOT / "README.md").read_text()


# -- inventories --------------------------------------------------------------------------------------------------


def variables(data: Any) -> Iterator[Dict[str, Any]]:
    """The variables of every host and group of an inventory."""
    for name, value in (data or {}).items():
        if name == "hosts":
            yield from (found for found in value.values() if found)
        elif name == "vars":
            yield value
        elif isinstance(value, dict):
            yield from variables(value)


def inventories() -> Iterator[Any]:
    for path in INVENTORIES:
        yield path, load(ROOT / path)
    for role in ROLES:
        for block in re.findall(r"```yaml\n(.*?)```", readme(role), re.DOTALL):
            data = yaml.safe_load(block)
            if isinstance(data, dict):
                yield f"the README of {role}", data


def test_inventories_are_as_the_specifications_want_them() -> None:
    """Those of the demo and the scenarios, and the examples; templates are somebody else's to check."""
    checked = set()
    for where, inventory in inventories():
        for found in variables(inventory):
            for role in ROLES:
                options = specification(role)
                given = {name: value for name, value in found.items() if name in options and "{{" not in str(value)}
                checked |= {(where, name) for name in given}
                spec = {name: options[name] for name in given}
                result = ArgumentSpecValidator(spec).validate(given)
                assert result.error_messages == [], where
    assert {name for _where, name in checked} >= {"lender_devices", "borrower_claims", "lender_sriov"}
