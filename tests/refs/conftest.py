"""A new repository of either generation, in memory and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.format.generation import find_generation
from icefloe.refs import Refs, create_refs
from icefloe.storage import LocalStorage, MemoryStorage, Storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def spec_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "repo")


@pytest.fixture
def refs(storage: Storage, spec_version: int) -> Refs:
    return create_refs(storage, generation=find_generation(spec_version))
