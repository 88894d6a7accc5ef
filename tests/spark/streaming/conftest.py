"""One Spark session that tries failed tasks again, and a repository for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from support.generations import V1_AND_OLDER_IN_FULL

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture(params=V1_AND_OLDER_IN_FULL)
def repository(request: pytest.FixtureRequest, folder: Path) -> Repository:
    """Create a repository that puts the smallest chunk into a file, as large ones are."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    return Repository.create(local_filesystem_storage(folder), config, generation=request.param)
