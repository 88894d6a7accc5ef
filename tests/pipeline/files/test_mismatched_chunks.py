"""Files with mismatched chunks and codecs are ingested by copying values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import JobFailedError
from support.array_repositories import array
from support.netcdf_files import (
    assert_icechunk_agrees,
    assert_same,
    assert_same_chunks,
    create,
    damage,
    dataset,
    files_dataset,
    write_file,
)

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    import icefloe

MONTHS = (5, 3, 4)  # days


def write_months(folder: Path) -> list[Path]:
    """Write files of months, one chunk each, of different lengths."""
    firsts = [sum(MONTHS[:number]) for number in range(len(MONTHS))]
    return [
        write_file(folder / f"{first:02}.nc", first, days, chunks=(days, 6, 4))
        for first, days in zip(firsts, MONTHS, strict=True)
    ]


def test_months_in_a_chunk_each(
    tmp_path: Path, spark: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_months(folder)
    reference = create(tmp_path / "reference", folder)
    for where, who in ((repository, spark), (reference, None)):
        ingest(who, where, paths, chunks={"time": 6, "lat": 2}, task_bytes=1_000)
    assert_same(dataset(repository), files_dataset(paths))
    assert_same_chunks(repository, reference)
    assert_icechunk_agrees(repository, folder)


def test_chunks_are_those_of_the_first_file_unless_told(
    folder: Path, repository: icefloe.Repository
) -> None:
    ingest(None, repository, write_months(folder))
    assert array(repository, "t2m").chunks == (5, 6, 4)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_files_that_end_within_a_chunk(
    folder: Path, repository: icefloe.Repository, order: tuple[int, ...]
) -> None:
    paths = [write_file(folder / f"{n}.nc", 3 * n, 3, chunks=(2, 3, 4)) for n in range(3)]
    ingest(None, repository, [paths[number] for number in order])
    assert_same(dataset(repository), files_dataset(paths))


def test_files_with_other_chunks_and_codecs(folder: Path, repository: icefloe.Repository) -> None:
    paths = [
        write_file(folder / "0.nc", 0, chunks=(1, 3, 4)),
        write_file(folder / "1.nc", 2, chunks=(2, 2, 8), gzip=4),
        write_file(folder / "2.nc", 4, chunks=None),
    ]
    ingest(None, repository, paths)
    assert_same(dataset(repository), files_dataset(paths))


def test_files_of_a_grid(folder: Path, repository: icefloe.Repository) -> None:
    paths = [
        write_file(
            folder / f"{first}-{lats.start}.nc",
            first,
            days,
            lats=lats,
            chunks=(days, lats.stop - lats.start, 8),
        )
        for first, days in ((0, 2), (2, 3))
        for lats in (slice(0, 2), slice(2, 6))
    ]
    ingest(None, repository, paths, dims=("time", "lat"), chunks={"time": 4})
    found = dataset(repository)
    assert found.sizes["time"] == 5
    assert found.sizes["lat"] == 6
    for path in paths:
        part = files_dataset([path])
        assert_same(found.sel(time=part["time"], lat=part["lat"]), part)


def test_they_are_appended(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_months(folder)
    ingest(None, repository, paths[:1])
    append(None, repository, paths)
    assert_same(dataset(repository), files_dataset(paths))


def test_each_source_chunk_is_read_once(
    folder: Path, repository: icefloe.Repository, read: Counter[tuple[str, int, int]]
) -> None:
    paths = write_months(folder)
    ingest(None, repository, paths, chunks={"time": 4, "lat": 1}, task_bytes=1_000)
    assert read
    assert set(read.values()) == {1}


def test_a_damaged_one_is_named_and_can_be_left_out(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_months(folder)
    damage(paths[1], "t2m")
    with pytest.raises(JobFailedError, match=paths[1].name) as caught:
        ingest(None, repository, paths)
    assert [failure.source for failure in caught.value.failures] == [paths[1].as_uri()]
    ingest(None, repository, paths, on_error="skip")
    assert_same(dataset(repository), files_dataset([paths[0], paths[2]]))


def test_virtualize_says_that_ingest_takes_them(
    folder: Path, repository: icefloe.Repository
) -> None:
    with pytest.raises(JobFailedError, match="ingest"):
        virtualize(None, repository, write_months(folder))
