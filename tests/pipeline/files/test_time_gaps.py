"""Times that are missing between the steps of a group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.pipeline.files.time_gaps import describe_gaps
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.virtual.arrays import LoadedArray
from support.netcdf_files import create, write_file, write_files

if TYPE_CHECKING:
    from pathlib import Path


def make_coordinate(values: Any, units: str, calendar: str = "standard") -> LoadedArray:
    attributes = {"units": units, "calendar": calendar}
    metadata = {"data_type": "int64", "dimension_names": ["time"], "attributes": attributes}
    return LoadedArray.of(metadata, np.asarray(values))


MONTHS = np.cumsum([0, 31, 29, 31, 30, 31, 30])

CASES = [
    (
        [0, 1, 2, 5],
        "days since 2024-02-27",
        "standard",
        "2 steps are missing: 2024-03-01, 2024-03-02",
    ),
    (
        [0, 6, 18],
        "hours since 2024-01-01 06:00",
        "standard",
        "1 step is missing: 2024-01-01 18:00:00",
    ),
    ([9, 8, 6], "days since 2024-01-01", "standard", "1 step is missing: 2024-01-08"),
    ([0.0, 0.5, 1.5], "days since 2024-01-01", "standard", "1 step is missing: 2024-01-02"),
    ([0, 1, 3], "days since 2024-01-01", "noleap", "1 step is missing: 2 days since 2024-01-01"),
    (np.delete(MONTHS, 4), "days since 2024-01-01", "standard", "1 step is missing: 2024-05-02"),
    (
        [0, 1, 30],
        "days since 2024-01-01",
        "standard",
        "28 steps are missing: 2024-01-03, .*-22, …$",
    ),
    (MONTHS, "days since 2024-01-01", "standard", None),
    ([0, 1, 4, 11, 17], "days since 2024-01-01", "standard", None),
    ([0, 1, 3], "m", "standard", None),
    ([0, 5], "days since 2024-01-01", "standard", None),
    ([0, 0, 0], "days since 2024-01-01", "standard", None),
    ([0, np.nan, 1, 2], "days since 2024-01-01", "standard", None),
]


@pytest.mark.parametrize("values, units, calendar, expected", CASES)
def test_missing_times_are_named(
    values: Any, units: str, calendar: str, expected: str | None
) -> None:
    """Times that no regular interval predicts are not missing."""
    found = describe_gaps(make_coordinate(values, units, calendar), "time", len(values))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(expected, found), found


@pytest.mark.parametrize("job", [virtualize, ingest], ids=["virtualize", "ingest"])
def test_jobs_report_gaps_next_to_the_steps_that_they_add(
    job: Any, folder: Path, tmp_path: Path
) -> None:
    repository = create(tmp_path / "repo", folder)
    paths = write_files(folder, 6)
    report = job(None, repository, [paths[0], paths[2]])
    assert report.notes == ("time: 2 steps are missing: 2024-01-03, 2024-01-04",)
    assert append(None, repository, paths[3:4]).notes == ()  # type: ignore[union-attr]
    report = append(None, repository, paths[5:])
    assert "note: time: 2 steps are missing: 2024-01-09, 2024-01-10" in str(report)
    late = write_file(folder / "later.nc", 0, units="days since 2024-01-20")
    report = append(None, repository, late)
    assert "7 steps are missing: 2024-01-13, " in str(report)
