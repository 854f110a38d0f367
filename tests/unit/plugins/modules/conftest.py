# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the module tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from ansible_collections.iofabric.sharing.plugins.module_utils._cplane import bundle
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.cplane.lab import Lab
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.harness import BUILDER
from ansible_collections.iofabric.sharing.tests.unit.plugins.modules.stub.node import VARIANTS, Fabric


@pytest.fixture(scope="session", autouse=True)
def _builder() -> Iterator[None]:
    yield
    BUILDER.close()


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """An empty fabric of stub nodes."""
    made = Fabric(tmp_path / "fabric")
    yield made
    made.close()


@pytest.fixture(params=list(VARIANTS))
def quirks(request: pytest.FixtureRequest) -> Dict[str, Any]:
    """The test runs once with every set of quirks."""
    return dict(VARIANTS[request.param])


@pytest.fixture(params=["lenient-current", "strict-id-prefix"])
def two_quirks(request: pytest.FixtureRequest) -> Dict[str, Any]:
    """The test runs with the two sets of quirks that differ most."""
    return dict(VARIANTS[request.param])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the native server's program, for the tests of one file."""
    folder = tmp_path_factory.mktemp("programs")
    bundle.CPLANED.write(str(folder))
    return folder


@pytest.fixture
def lab(tmp_path: Path, programs: Path) -> Iterator[Lab]:
    """A machine with control planes of its own."""
    made = Lab(tmp_path, programs)
    yield made
    made.close()
