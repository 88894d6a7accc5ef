"""One Spark session for the folder, and a repository to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.repository import Repository
from icefloe.storage import local_filesystem_storage
from support.spark_tables import ENCODING, commit, weather

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from icefloe.session import Session


@pytest.fixture(scope="session")
def dataset() -> xr.Dataset:
    return weather()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, dataset: xr.Dataset) -> Path:
    """Commit a dataset; tests do not change this repository."""
    folder = tmp_path_factory.mktemp("spark") / "weather"
    repository = Repository.create(local_filesystem_storage(folder))
    commit(repository, dataset, ENCODING)
    return folder


@pytest.fixture
def repository(written: Path) -> Repository:
    return Repository.open(local_filesystem_storage(written))


@pytest.fixture
def session(repository: Repository) -> Session:
    return repository.readonly_session("main")


@pytest.fixture
def empty(tmp_path: Path) -> Repository:
    """Create a repository for a test of its own."""
    return Repository.create(local_filesystem_storage(tmp_path / "repository"))
