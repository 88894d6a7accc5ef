"""Files are ordered by their coordinates, whatever the order of the list."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import JobFailedError, Report
from support.netcdf_files import dataset, write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import icefloe


@pytest.fixture(params=[ingest, virtualize], ids=["ingest", "virtualize"])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


def days(repository: icefloe.Repository, group: str | None = None) -> list[int]:
    """Return the days of a group, in order."""
    return [int(day) for day in dataset(repository, group, decode_times=False).time]


def test_files_of_one_step_rise(job: Any, folder: Path, repository: icefloe.Repository) -> None:
    """Only their coordinates define the order."""
    paths = [write_file(folder / f"{day}.nc", day, 1) for day in range(3)]
    for number, listed in enumerate(permutations(paths)):
        job(None, repository, list(listed), group=f"g{number}")
        assert days(repository, f"g{number}") == [0, 1, 2]


def test_a_day_that_was_late_does_not_turn_the_axis(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """It is rejected or left out, and later files are appended."""
    job(None, repository, [write_file(folder / "5.nc", 5, 1)])
    late, next_day = write_file(folder / "1.nc", 1, 1), write_file(folder / "7.nc", 7, 1)
    with pytest.raises(JobFailedError, match=r"1\.nc: time: goes from 2024-01-02 .* in order"):
        job(None, repository, [late], append=True)
    report = job(None, repository, [late, next_day], append=True, on_error="skip")
    assert isinstance(report, Report)
    assert [failure.source for failure in report.left_out] == [late.as_uri()]
    assert days(repository) == [5, 7]


def test_files_of_one_step_go_on_from_an_axis_that_falls(
    folder: Path, repository: icefloe.Repository
) -> None:
    given = [write_file(folder / f"{day}.nc", day, 1) for day in (9, 8)]
    ingest(None, repository, given, order="given")
    more = [write_file(folder / f"{day}.nc", day, 1) for day in (5, 7, 6)]
    ingest(None, repository, more, append=True)
    assert days(repository) == [9, 8, 7, 6, 5]


def test_the_last_file_by_its_coordinates_may_end_within_a_chunk(
    folder: Path, repository: icefloe.Repository
) -> None:
    """Wherever it is in the list; other files that end within a chunk are copied."""
    chunks = (2, 3, 4)
    spans = ((0, 2), (2, 1), (3, 2))
    paths = [write_file(folder / f"{day}.nc", day, count, chunks=chunks) for day, count in spans]
    for number, listed in enumerate(permutations(paths)):
        ingest(None, repository, list(listed), group=f"g{number}")
        assert days(repository, f"g{number}") == [0, 1, 2, 3, 4]


def test_files_that_are_refused_leave_nothing_behind(
    job: Any, folder: Path, repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    """Staged references of failed jobs are deleted."""
    good = write_file(folder / "a.nc", 0)
    job(None, repository, [good])
    before = files()
    odd = write_file(folder / "b.nc", 2, dtype="i4")
    listed = [odd, good, folder / "none.nc"]
    with pytest.raises(JobFailedError):
        job(None, repository, listed, append=True)
    with pytest.raises(JobFailedError):
        job(None, repository, listed, group="new")
    assert files() == before
