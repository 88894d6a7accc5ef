"""Files that change after they were added to a group, or while a job reads them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.pipeline import JobFailedError, SourcesChangedError
from icefloe.pipeline.files.source_record import (
    KnownSource,
    read_known_sources,
    store_sources,
)
from icefloe.pipeline.files.source_versions import SourceVersion
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from support.netcdf_files import create, dataset, files_dataset, write_file, write_files

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe


@pytest.fixture(params=[virtualize, ingest], ids=["virtualize", "ingest"])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def repository(tmp_path: Path, folder: Path) -> icefloe.Repository:
    return create(tmp_path / "repo", folder)


def reprocess(path: Path, first: int, days: int = 2) -> None:
    """Write other rain for the same days."""
    write_file(path, first, days, dtype="i2", attributes={"title": "reprocessed"}, gzip=9)


def test_append_names_files_that_changed_and_stops(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Also if the size is the same, and if there are new files."""
    paths = write_files(folder, 4)
    job(None, repository, paths[:3])
    before = repository.lookup_branch("main")
    reprocess(paths[0], 0)
    os.utime(paths[2], (2e9, 2e9))
    with pytest.raises(SourcesChangedError, match="2 sources changed since") as caught:
        append(None, repository, paths)
    reasons = {failure.source: failure.reason for failure in caught.value.failures}
    assert reasons.keys() == {paths[0].as_uri(), paths[2].as_uri()}
    assert "bytes, now has" in reasons[paths[0].as_uri()]
    assert "was modified at 2033-05-18 03:33:20" in reasons[paths[2].as_uri()]
    with pytest.raises(SourcesChangedError):
        append(None, repository, paths, dry_run=True)
    assert repository.lookup_branch("main") == before


def test_append_keeps_what_changed_if_asked(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths[:2])
    expected = files_dataset(paths)
    os.utime(paths[0], (2e9, 2e9))
    report = append(None, repository, paths, changed="keep")
    assert report.files == 1  # type: ignore[union-attr]
    assert dataset(repository).equals(expected)
    with pytest.raises(SourcesChangedError):
        append(None, repository, paths)


def test_a_zarr_store_changes_with_any_of_its_files(
    folder: Path, repository: icefloe.Repository
) -> None:
    for first in (0, 1):
        root = zarr.create_group(folder / f"{first}.zarr")
        root.create_array("time", data=np.array([first]), dimension_names=["time"])
    stores = sorted(folder.iterdir())
    ingest(None, repository, stores)
    assert append(None, repository, stores).snapshot_id is None  # type: ignore[union-attr]
    chunk = stores[1] / "time" / "c" / "0"
    os.utime(chunk, (2e9, 2e9))
    with pytest.raises(SourcesChangedError, match=r"1\.zarr"):
        append(None, repository, stores)


def test_changes_of_files_without_a_version_are_reported_as_unknown(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths[:2])
    session = repository.writable_session("main")
    known = read_known_sources(repository, session, "/")
    store_sources(session, "/", dict.fromkeys(known, KnownSource()))
    session.commit("as written before versions were recorded")
    for sources in (paths[:2], paths):
        report = append(None, repository, sources)
        assert "2 files were added without a record of size" in str(report)
    session = repository.readonly_session("main")
    known = read_known_sources(repository, session, "/")
    assert [source.version is None for _, source in sorted(known.items())] == [True, True, False]
    assert append(None, repository, paths[2:]).notes == ()  # type: ignore[union-attr]


def test_a_file_that_changes_while_it_is_read_is_refused(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)

    def touch(done: int, total: int) -> None:
        status = paths[1].stat()
        os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns - 1_000_000))

    with pytest.raises(JobFailedError, match=r"part-001.nc: changed while it was read"):
        job(None, repository, paths, progress=touch)
    report = job(None, repository, paths[1:], progress=touch, on_error="skip")
    assert [failure.source for failure in report.left_out] == [paths[1].as_uri()]


def test_a_source_that_is_listed_twice_is_added_once(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    assert job(None, repository, [paths[0], folder / "*.nc", paths[0].as_uri()]).files == 2
    assert dataset(repository).equals(files_dataset(paths))


def test_records_of_all_kinds_are_read_back(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    sources = {
        "file:///a.nc": KnownSource(SourceVersion(10, "1700000000000001"), 24),
        "https://b/c.nc": KnownSource(SourceVersion(0, "")),
        "s3://b/c.nc": KnownSource(SourceVersion(7, "#01234567"), 0),
        "s3://b/d.nc": KnownSource(),
    }
    store_sources(session, "/", sources)
    assert read_known_sources(repository, session, "/") == sources
