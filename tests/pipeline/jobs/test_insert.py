"""Inserting late files between stored steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import FilesDisagreeError
from icefloe.pipeline import JobFailedError
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.refresh import refresh
from icefloe.pipeline.jobs.virtualize import virtualize
from support.netcdf_files import (
    assert_icechunk_agrees,
    assert_same,
    create,
    dataset,
    files_dataset,
    write_file,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe


@pytest.fixture(params=[virtualize, ingest], ids=["virtualize", "ingest"])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def repository(tmp_path: Path, folder: Path) -> icefloe.Repository:
    repository = create(tmp_path / "repo", folder)
    repository.save_config()
    return repository


def test_late_files_are_inserted_in_one_commit(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """At the start, at several places in the middle, and with files to append."""
    paths = write_files(folder, 9)
    job(None, repository, [paths[1], paths[2], paths[5], paths[7]])
    with pytest.raises(JobFailedError, match=r"part-003.nc: time: .*; insert=True inserts them"):
        append(None, repository, paths)
    report = append(None, repository, paths, insert=True)
    assert report.files == 5  # type: ignore[union-attr]
    assert report.notes == ()  # type: ignore[union-attr]
    assert len(list(repository.ancestry(branch="main"))) == 3
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)
    assert append(None, repository, paths).snapshot_id is None  # type: ignore[union-attr]
    assert refresh(None, repository).snapshot_id is None  # type: ignore[union-attr]


def test_late_files_go_into_descending_steps(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = [write_file(folder / f"{day}.nc", day, 1) for day in (9, 8, 7, 6)]
    job(None, repository, [paths[0], paths[1], paths[3]], order="given")
    append(None, repository, paths[2], insert=True)
    found = dataset(repository)
    assert found["time"].dt.day.values.tolist() == [10, 9, 8, 7]
    assert_same(found.sortby("time"), files_dataset(paths))


def test_only_whole_chunks_are_inserted(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 5)
    ingest(None, repository, [paths[0], paths[1], paths[4]], chunks={"time": 4})
    before = repository.lookup_branch("main")
    with pytest.raises(FilesDisagreeError, match="at step 4 along time with 2 steps, but has ch"):
        append(None, repository, paths[2], insert=True)
    assert repository.lookup_branch("main") == before
    append(None, repository, paths[2:4], insert=True)
    assert_same(dataset(repository), files_dataset(paths))


def test_a_place_that_another_writer_filled_is_refused(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, [paths[0], paths[2]])
    other = write_file(folder / "other.nc", 2)
    work = [lambda: append(None, repository, other, insert=True)]

    def overtake(done: int, total: int) -> None:
        if work:
            work.pop()()

    with pytest.raises(JobFailedError, match=r"part-001.nc: time: has 2 of its 2 steps in the rep"):
        append(None, repository, paths[1], insert=True, progress=overtake)
    assert_same(dataset(repository), files_dataset([paths[0], other, paths[2]]))
