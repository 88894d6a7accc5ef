"""One Spark session for all tests of the pipeline, and repositories for them to work on.

Jobs take None in place of Spark, and then do everything in this process: the reference that results
of Spark are compared with, and the fast way to test what does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import icefloe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    """Create an empty repository on disk, where other processes find it; no chunk is inlined."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    return icefloe.Repository.create(storage, config)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], set[str]]:
    """List the files of the repository."""

    def files() -> set[str]:
        return {str(path) for path in (tmp_path / "repo").rglob("*") if path.is_file()}

    return files
