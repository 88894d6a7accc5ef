"""One Spark session for all tests of the pipeline, and repositories for them to work on.

Jobs take None in place of Spark, and then do everything in this process: the reference that results
of Spark are compared with, and the fast way to test what does not depend on it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.containers.local_files import LocalFiles
from support.generations import V1_AND_OLDER_IN_FULL
from support.netcdf_files import create

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import icefloe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder for files that jobs read."""
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture(params=V1_AND_OLDER_IN_FULL)
def repository(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> icefloe.Repository:
    """Create an empty repository with a container for the folder, without inline chunks."""
    return create(tmp_path / "repo", folder, generation=request.param)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], set[str]]:
    """List the files of the repository."""

    def files() -> set[str]:
        return {str(path) for path in (tmp_path / "repo").rglob("*") if path.is_file()}

    return files


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int, int]]:
    """Count how often each range of bytes of each file is read."""
    read: Counter[tuple[str, int, int]] = Counter()
    fetch, fetch_many = LocalFiles.fetch, LocalFiles.fetch_many_async

    def count_get(self: LocalFiles, file: Any, start: int, length: int, checksum: Any) -> Any:
        read[file.location.path, start, length] += 1
        return fetch(self, file, start, length, checksum)

    async def count_get_many(self: LocalFiles, file: Any, ranges: Any, checksum: Any) -> Any:
        read.update((file.location.path, part.start, part.end - part.start) for part in ranges)
        return await fetch_many(self, file, ranges, checksum)

    monkeypatch.setattr(LocalFiles, "fetch", count_get)
    monkeypatch.setattr(LocalFiles, "fetch_many_async", count_get_many)
    return read
