"""Appending files: each exactly once, with repeated and concurrent appends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray
import zarr

import icefloe
from icefloe.errors import FilesDisagreeError
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import JobFailedError, Report
from support import SUPPORT
from support.array_repositories import array
from support.netcdf_files import (
    LONGITUDES,
    assert_icechunk_agrees,
    assert_same,
    assert_same_chunks,
    create,
    dataset,
    files_dataset,
    write_file,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

JOBS = {"virtualize": virtualize, "ingest": ingest}


@pytest.fixture
def repository(tmp_path: Path, folder: Path) -> icefloe.Repository:
    repository = create(tmp_path / "repo", folder)
    repository.save_config()
    return repository


@pytest.fixture
def reference(tmp_path: Path, folder: Path) -> icefloe.Repository:
    return create(tmp_path / "reference", folder)


@pytest.fixture(params=sorted(JOBS))
def job(request: pytest.FixtureRequest) -> Any:
    return JOBS[request.param]


def commits(repository: icefloe.Repository) -> list[Any]:
    return list(repository.ancestry(branch="main"))


def test_only_new_files_are_appended(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 5)
    job(None, repository, paths[:2])
    report = job(None, repository, paths, append=True)
    assert report.files == 3
    again = job(None, repository, paths, append=True)
    assert (again.snapshot_id, again.is_new, again.files) == (None, False, 0)
    assert len(commits(repository)) == 3
    assert commits(repository)[0].metadata["icefloe"]["job"] == "append"
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)


def test_on_spark_as_in_one_process(
    spark: Any, folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    paths = write_files(folder, 5)
    for target, engine in ((repository, spark), (reference, None)):
        virtualize(engine, target, paths[:2], group="virtual")
        virtualize(engine, target, paths, group="virtual", append=True, refs_per_manifest=8)
        ingest(engine, target, paths[:2], group="native", chunks={"time": 3})
        ingest(engine, target, paths, group="native", append=True)
    assert_same_chunks(repository, reference)
    for group in ("virtual", "native"):
        assert_same(dataset(repository, group), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)


@pytest.mark.parametrize("length", [1, 3, 5, 7, 100])
def test_native_chunks_are_filled_from_where_they_end(
    folder: Path, repository: icefloe.Repository, length: int
) -> None:
    paths = write_files(folder, 6)
    options: dict[str, Any] = {"chunks": {"time": length, "lat": 4}, "task_bytes": 3_000}
    ingest(None, repository, paths[:1], **options)
    for start in (1, 2, 4):
        ingest(None, repository, paths[start : start + 2], append=True, task_bytes=3_000)
    assert array(repository, "rain").chunks == (length, 4, 4)
    assert_same(dataset(repository), files_dataset(paths))


def test_a_grid_of_files_is_appended_to_a_grid(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Along time, with files for all latitudes at each time."""
    paths = [
        write_file(folder / f"{first}-{start}.nc", first, lats=slice(start, start + 3))
        for first in (0, 2, 4)
        for start in (0, 3)
    ]
    dims = ("time", "lat")
    job(None, repository, paths[:2], dims=dims)
    with pytest.raises(JobFailedError, match=r"2-0.nc: .*(3 steps along lat|lat: 3)"):
        job(None, repository, paths[:3], dims=dims, append=True)
    job(None, repository, paths, dims=dims, append=True)
    assert_same(dataset(repository), files_dataset(paths))
    again = write_file(folder / "again.nc", 4, lats=slice(0, 3))
    more = write_file(folder / "more.nc", 4, lats=slice(3, 6))
    with pytest.raises(FilesDisagreeError, match="has 2 of its 2 steps in the repository already"):
        job(None, repository, [again, more], dims=dims, append=True)
    assert len(commits(repository)) == 3


def test_what_was_unpacked_is_unpacked_again(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths[:1], unpack=True, dtype="f8")
    ingest(None, repository, paths[1:], append=True)
    found, expected = dataset(repository)["t2m"], files_dataset(paths)["t2m"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)


def test_a_group_that_was_made_anew_forgets_the_files_of_the_old_one(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, paths, group="g")
    with repository.transaction("main", message="away with it") as store:
        del zarr.open_group(store)["g"]
    job(None, repository, paths[:1], group="g")
    assert job(None, repository, paths, group="g", append=True).files == 2
    assert_same(dataset(repository, "g"), files_dataset(paths))


def test_times_in_other_units_go_behind_those_that_are_there(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    paths.append(write_file(folder / "later.nc", 0, units="days since 2024-02-01"))
    job(None, repository, paths[:2])
    job(None, repository, paths, append=True)
    assert_same(dataset(repository), files_dataset(paths))


def test_steps_that_are_there_already_are_refused(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Another file with the same days: nothing is duplicated or overwritten."""
    paths = write_files(folder, 3)
    job(None, repository, paths[:2])
    before = dataset(repository)
    same = write_file(folder / "same.nc", 2)
    with pytest.raises(JobFailedError, match=r"same.nc: time: has 2 of its 2 steps in the repo"):
        job(None, repository, same, append=True)
    earlier = write_file(folder / "earlier.nc", -9)
    with pytest.raises(JobFailedError, match=r"earlier.nc: time: .* does not continue"):
        job(None, repository, [earlier, paths[2]], append=True)
    assert_same(dataset(repository), before)
    report = job(None, repository, [same, earlier, paths[2]], append=True, on_error="skip")
    assert len(report.left_out) == 2
    assert_same(dataset(repository), files_dataset(paths))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"dtype": "f4"}, "t2m"),
        ({"longitudes": LONGITUDES + 1}, "lon"),
        ({"longitudes": LONGITUDES[:4]}, "(4 steps along lon|lon: 4)"),
        ({"more": ["snow"]}, "has snow"),
    ],
)
def test_files_that_do_not_fit_the_group_are_refused(
    job: Any, folder: Path, repository: icefloe.Repository, options: dict[str, Any], reason: str
) -> None:
    job(None, repository, write_files(folder, 2))
    odd = write_file(folder / "odd.nc", 10, **options)
    with pytest.raises(JobFailedError, match=rf"odd.nc.*{reason}"):
        job(None, repository, odd, append=True)
    assert len(commits(repository)) == 2


def test_the_group_says_who_is_odd_and_not_the_most(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Of three new files, two agree with each other, and one with the group."""
    paths = write_files(folder, 3)
    job(None, repository, paths[:2])
    odd = [write_file(folder / f"odd-{first}.nc", first, dtype="f4") for first in (10, 12)]
    with pytest.raises(JobFailedError, match=r"odd-10.nc: t2m: .*float32.*int16") as caught:
        job(None, repository, [*odd, paths[2]], append=True)
    assert [failure.source for failure in caught.value.failures] == [path.as_uri() for path in odd]
    report = job(None, repository, [*odd, paths[2]], append=True, on_error="skip")
    assert len(report.left_out) == 2
    assert_same(dataset(repository), files_dataset(paths))


def test_a_variable_that_the_files_lack_is_missed(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2, more=["snow"])
    job(None, repository, paths)
    with pytest.raises(JobFailedError, match=r"bare.nc: has no snow, unlike the repository"):
        job(None, repository, write_file(folder / "bare.nc", 10), append=True)


RACING = (
    ["part-002.nc", "part-003.nc"],
    ["part-002.nc", "part-003.nc"],
    ["part-002.nc", "part-003.nc", "part-004.nc"],
)


@pytest.mark.parametrize("way", sorted(JOBS))
def test_who_appends_at_once_loses_and_doubles_nothing(
    way: str, folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    """Three processes: two with the same files, and one with an additional file."""
    paths = write_files(folder, 5)
    options = {} if way == "virtualize" else {"chunks": {"time": 3}}
    JOBS[way](None, repository, paths[:2], **options)  # type: ignore[operator]
    program = SUPPORT / "racing_appends.py"
    ran = subprocess.run(
        [sys.executable, program, tmp_path / "repo", folder, way, json.dumps(RACING)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    reports = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(reports) == 3
    named = sorted({name for names in RACING for name in names})
    assert sum(report["files"] for report in reports) == len(named)
    recorded = [
        name
        for info in commits(repository)[:-2]
        for name in info.metadata["icefloe"]["sources"]["names"]
    ]
    assert sorted(recorded) == named
    assert_same(dataset(repository), files_dataset(paths[: 2 + len(named)]))


class Meanwhile:
    """Runs a function once, while a job runs."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def __call__(self, done: int, total: int) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


def test_an_appender_that_was_overtaken_goes_on_with_what_is_left(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 4)
    job(None, repository, paths[:1])
    overtaking = Meanwhile(lambda: job(None, repository, paths[:3], append=True))
    report = job(None, repository, paths, append=True, progress=overtaking)
    assert report.files == 1
    assert [info.message for info in commits(repository)][:2] == [
        "appended 1 file",
        "appended 2 files",
    ]
    assert_same(dataset(repository), files_dataset(paths))


def test_an_overtaken_appender_with_nothing_left_has_nothing_to_do(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, paths[:1])
    overtaking = Meanwhile(lambda: job(None, repository, paths, append=True))
    report = job(None, repository, paths, append=True, progress=overtaking)
    assert (report.snapshot_id, report.files) == (None, 0)
    assert len(commits(repository)) == 3


def test_a_transaction_id_counts_for_appending_too(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, paths[:1])
    overtaking = Meanwhile(
        lambda: job(None, repository, paths, append=True, transaction_id="today")
    )
    report = job(None, repository, paths, append=True, transaction_id="today", progress=overtaking)
    assert isinstance(report, Report)
    assert not report.is_new
    assert report.snapshot_id == repository.lookup_branch("main")


def test_a_change_elsewhere_is_rebased_over(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, paths[:1], group="g")

    def elsewhere() -> None:
        with repository.transaction("main", message="theirs") as store:
            zarr.create_array(store, name="other", shape=(3,), dtype="i4")

    job(None, repository, paths, group="g", append=True, progress=Meanwhile(elsewhere))
    assert [info.message for info in commits(repository)][1] == "theirs"
    assert_same(dataset(repository, "g"), files_dataset(paths))


def test_append_goes_on_in_the_way_of_the_group(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    virtualize(None, repository, paths[:2], group="virtual")
    ingest(None, repository, paths[:2], group="native")
    for group in ("virtual", "native"):
        append(None, repository, paths, group=group)
    expected = files_dataset(paths)
    for path in paths:
        path.unlink()
    xarray.testing.assert_equal(dataset(repository, "native"), expected)
    with pytest.raises(icefloe.StorageError):
        dataset(repository, "virtual")
