"""A repository on disk for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(tmp_path / "repository"))
