"""A new repository of each generation, in memory and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.format.generation import GENERATIONS, Generation
from icefloe.refs import Refs, create_refs
from icefloe.storage import LocalStorage, MemoryStorage, Storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=GENERATIONS.values(), ids=list(GENERATIONS))
def generation(request: pytest.FixtureRequest) -> Generation:
    generation: Generation = request.param
    return generation


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "repo")


@pytest.fixture
def refs(storage: Storage, generation: Generation) -> Refs:
    return create_refs(storage, generation=generation)
