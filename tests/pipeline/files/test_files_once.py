"""No file twice, even after its commit expired or the group moved."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np
import pytest
import zarr
import zstandard

import icefloe
from icefloe.pipeline.files.source_record import (
    SOURCES_ATTRIBUTE,
    KnownSource,
    read_known_sources,
    store_sources,
)
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from support.array_repositories import array
from support.netcdf_files import assert_icechunk_agrees, dataset, write_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(params=[virtualize, ingest], ids=["virtualize", "ingest"])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


def without_coordinate(folder: Path, count: int) -> list[Path]:
    """Write files with indistinguishable steps and equal bytes."""
    paths = [folder / f"{number}.nc" for number in range(count)]
    for path in paths:
        with h5netcdf.File(path, "w") as file:
            file.dimensions = {"step": 2, "x": 3}
            file.attrs["title"] = "steps"
            file.create_variable("rain", ("step", "x"), "f4", data=np.ones((2, 3), "f4"))
    return paths


def expire_all_but_the_tip(repository: icefloe.Repository) -> None:
    with repository.transaction("main", message="another commit") as store:
        zarr.create_group(store, path="elsewhere")
    now = datetime.now(UTC) + timedelta(seconds=1)
    repository.expire_snapshots(now)
    repository.garbage_collect(now)
    told = [info.metadata for info in repository.ancestry(branch="main")]
    assert not any("icefloe" in name for name in told)


def test_files_are_known_after_all_commits_of_the_jobs_expired(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = without_coordinate(folder, 4)
    job(None, repository, paths[:2], dims="step", group="g")
    append(None, repository, paths[:3], dim="step", group="g")
    expire_all_but_the_tip(repository)
    again = append(None, repository, paths[:3], dim="step", group="g")
    assert again.snapshot_id is None  # type: ignore[union-attr]
    append(None, repository, paths, dim="step", group="g")
    assert array(repository, "g/rain").shape == (8, 3)
    assert_icechunk_agrees(repository, folder)


def test_files_are_known_where_the_group_moved_to(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = without_coordinate(folder, 3)
    job(None, repository, paths[:2], dims="step", group="g")
    session = repository.rearrange_session("main")
    session.move("/g", "/moved")
    session.commit("moved")
    append(None, repository, paths, dim="step", group="moved")
    assert array(repository, "moved/rain").shape == (6, 3)
    job(None, repository, paths[:2], dims="step", group="g")  # another group of that name
    append(None, repository, paths, dim="step", group="g")
    assert array(repository, "g/rain").shape == (6, 3)


def test_who_replaces_the_attributes_loses_nothing_that_commits_tell(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = without_coordinate(folder, 3)
    job(None, repository, paths[:2], dims="step")
    with repository.transaction("main", message="other attributes") as store:
        zarr.open_group(store).attrs.put({"title": "mine"})
    append(None, repository, paths, dim="step")
    assert array(repository, "rain").shape == (6, 3)
    expire_all_but_the_tip(repository)
    again = append(None, repository, paths, dim="step")
    assert again.snapshot_id is None  # type: ignore[union-attr]
    assert dataset(repository).attrs == {"title": "mine"}


def test_attributes_that_somebody_sets_meanwhile_stay(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = without_coordinate(folder, 3)
    job(None, repository, paths[:1], dims="step")
    work: list[Callable[[], Any]] = [
        lambda: set_title(repository),
        lambda: append(None, repository, paths[:2], dim="step"),
    ]

    def meanwhile(done: int, total: int) -> None:
        if work:
            work.pop()()

    append(None, repository, paths, dim="step", progress=meanwhile)
    assert array(repository, "rain").shape == (6, 3)
    assert dataset(repository).attrs == {"title": "set meanwhile"}
    assert append(None, repository, paths, dim="step").snapshot_id is None  # type: ignore[union-attr]


def set_title(repository: icefloe.Repository) -> None:
    with repository.transaction("main", message="attributes") as store:
        zarr.open_group(store).attrs["title"] = "set meanwhile"


def bomb() -> str:
    """Return compressed data that declares a size of gigabytes."""
    compressor = zstandard.ZstdCompressor().compressobj(size=2**33)
    data = compressor.compress(b"s3://") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("record", ["no record", 7, bomb()], ids=["text", "number", "bomb"])
def test_a_record_that_was_damaged_is_told(
    folder: Path, repository: icefloe.Repository, record: Any
) -> None:
    paths = without_coordinate(folder, 2)
    ingest(None, repository, paths[:1], dims="step")
    with repository.transaction("main", message="damage") as store:
        zarr.open_group(store).attrs[SOURCES_ATTRIBUTE] = record
    with pytest.raises(icefloe.InvalidInputError, match=f"/: the attribute {SOURCES_ATTRIBUTE}"):
        append(None, repository, paths, dim="step")


def test_xarray_does_not_show_the_record(folder: Path, repository: icefloe.Repository) -> None:
    ingest(None, repository, write_files(folder, 2))
    assert dataset(repository).attrs == {"Conventions": "CF-1.11"}
    store = repository.readonly_session("main").store
    assert SOURCES_ATTRIBUTE in zarr.open_group(store, mode="r").attrs


@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_a_hundred_thousand_names_are_small(repository: icefloe.Repository) -> None:
    first = datetime(1980, 1, 1, tzinfo=UTC)
    urls = {
        f"s3://bucket/archive/{day:%Y}/analysis-{day:%Y%m%dT%H}.nc"
        for day in (first + timedelta(hours=hours) for hours in range(100_000))
    }
    sources = dict.fromkeys(urls, KnownSource())
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    store_sources(session, "/", sources)
    assert read_known_sources(repository, session, "/") == sources
    session.commit("named")
    (info,) = (entry for entry in repository.storage.list("snapshots/") if entry.size_bytes > 5_000)
    assert info.size_bytes < 100_000
