# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection builds, holds no litter of this work tree, installs without a network and is found by ansible-doc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.xdist_group("collection-build")  # build once, not once a worker

ROOT = Path(__file__).resolve().parents[2]
MODULES = {path.stem for path in ROOT.glob("plugins/modules/*.py")}
LITTER = {".ansible", ".build", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__"}


def ansible(command: str, *arguments: str, home: Path, collections: Path) -> str:
    """Run one of Ansible's commands with a home and a collection path of its own, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    env.update(HOME=str(home), ANSIBLE_CONFIG=str(home / "ansible.cfg"), ANSIBLE_COLLECTIONS_PATH=str(collections))
    done = subprocess.run(
        [sys.executable, "-m", "ansible", command, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty home folder."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "ansible.cfg").touch()
    return folder


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """Return the built collection."""
    folder = tmp_path_factory.mktemp("build")
    ansible("galaxy", "collection", "build", "--output-path", str(folder), home=home, collections=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, tarball: Path, home: Path) -> Path:
    """Return the collection path that the built collection was installed to, offline."""
    folder = tmp_path_factory.mktemp("collections")
    arguments = ["collection", "install", "--offline", "--collections-path", str(folder), str(tarball)]
    ansible("galaxy", *arguments, home=home, collections=folder)
    return folder


def test_tarball_is_named_after_namespace_name_and_version(tarball: Path) -> None:
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert tarball.name == f"iofabric-sharing-{galaxy['version']}.tar.gz"


def test_tarball_holds_no_litter(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        names = archive.getnames()
    parts = {part for name in names for part in Path(name).parts}
    assert parts & LITTER == set()
    assert [part for part in parts if part.startswith(".venv") or part.endswith((".pyc", ".tar.gz"))] == []
    assert not any(name.startswith("tests/output") for name in names)


def test_tarball_holds_every_file_that_users_need(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        names = set(archive.getnames())
    wanted = {"README.md", "LICENSES/GPL-3.0-or-later.txt", "meta/runtime.yml", "MANIFEST.json", "FILES.json"}
    for folder in ("plugins", "roles", "playbooks"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        wanted |= {str(path.relative_to(ROOT)) for path in files}
    assert wanted - names == set()


def test_installs_offline_and_ansible_doc_lists_every_module(installed: Path, home: Path) -> None:
    manifest = installed / "ansible_collections" / "iofabric" / "sharing" / "MANIFEST.json"
    assert json.loads(manifest.read_text())["collection_info"]["name"] == "sharing"
    listed = json.loads(ansible("doc", "--list", "--json", "iofabric.sharing", home=home, collections=installed))
    assert set(listed) == {f"iofabric.sharing.{name}" for name in MODULES}


def test_every_module_is_in_an_action_group() -> None:
    groups = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["action_groups"]
    grouped = {member for members in groups.values() for member in members if isinstance(member, str)}
    assert grouped >= MODULES


def test_readme_names_every_module() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in sorted(MODULES) if f"`{name}`" not in readme] == []
