"""Refreshing: new versions of files replace the steps of the old ones, and nothing else."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import h5netcdf
import numpy as np
import pytest
import zarr

from icefloe.errors import FilesDisagreeError, InvalidInputError
from icefloe.pipeline import JobFailedError
from icefloe.pipeline.files.source_record import KnownSource, read_known_sources, store_sources
from icefloe.pipeline.files.source_versions import SourceVersion
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.refresh import refresh
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import Report
from icefloe.virtual import parse
from support.netcdf_files import (
    assert_icechunk_agrees,
    assert_same,
    assert_same_chunks,
    create,
    dataset,
    files_dataset,
    refs,
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


def reprocess(path: Path) -> Path:
    """Change the rain of all days of a file."""
    with h5netcdf.File(path, "r+") as file:
        rain = file.variables["rain"]
        rain[...] = rain[...] + 1000
        file.attrs["history"] = "reprocessed"
    return age(path)


def age(path: Path) -> Path:
    """Make a file a minute newer: references have the modification time in seconds."""
    seconds = path.stat().st_mtime + 60
    os.utime(path, (seconds, seconds))
    return path


def assert_icechunk_agrees_at_the_tip(repository: icefloe.Repository, folder: Path) -> None:
    """Compare with Icechunk, without earlier commits: they refer to files that changed."""
    repository.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))
    assert_icechunk_agrees(repository, folder)


def commits(repository: icefloe.Repository) -> list[Any]:
    return list(repository.ancestry(branch="main"))


def test_only_chunks_of_changed_files_are_written(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 8)
    job(None, repository, paths)
    assert refresh(None, repository).snapshot_id is None  # type: ignore[union-attr]
    before = {name: refs(repository, f"/{name}") for name in ("rain", "t2m", "height")}
    for number in (0, 3, 4, 7):
        reprocess(paths[number])
    report = refresh(None, repository)
    assert isinstance(report, Report)
    assert report.files == 4
    assert commits(repository)[0].message == "replaced 4 files"
    assert commits(repository)[0].metadata["icefloe"]["job"] == "refresh"
    assert len(commits(repository)) == 3
    after = refs(repository, "/rain")
    replaced = {coords[0] for coords, ref in after.items() if before["rain"][coords] != ref}
    assert replaced == {0, 1, 6, 7, 8, 9, 14, 15}
    assert refs(repository, "/height").keys() == before["height"].keys()
    assert_same(dataset(repository), files_dataset(paths))
    assert append(None, repository, paths).snapshot_id is None  # type: ignore[union-attr]
    assert refresh(None, repository).snapshot_id is None  # type: ignore[union-attr]
    assert_icechunk_agrees_at_the_tip(repository, folder)


@pytest.mark.parametrize("length", [1, 3, 5, 100])
def test_files_share_chunks_with_files_that_stay(
    folder: Path, repository: icefloe.Repository, length: int
) -> None:
    paths = write_files(folder, 9)
    ingest(None, repository, paths, chunks={"time": length, "lat": 4})
    for number in (0, 2, 3, 5, 8):
        reprocess(paths[number])
    refresh(None, repository, task_bytes=3_000)
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)


def test_on_spark_as_in_one_process(
    spark: Any, folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    reference = create(tmp_path / "reference", folder)
    paths = write_files(folder, 6)
    for target in (repository, reference):
        virtualize(None, target, paths, group="virtual")
        ingest(None, target, paths, group="native", chunks={"time": 3})
    for number in (1, 4):
        reprocess(paths[number])
    for target, engine in ((repository, spark), (reference, None)):
        for group in ("virtual", "native"):
            refresh(engine, target, group=group)
    assert_same_chunks(repository, reference)
    for group in ("virtual", "native"):
        assert_same(dataset(repository, group), files_dataset(paths))


def test_append_replaces_what_changed_in_the_same_commit(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 6)
    job(None, repository, paths[:4])
    reprocess(paths[1])
    report = append(None, repository, paths, changed="replace")
    assert report.files == 3  # type: ignore[union-attr]
    assert commits(repository)[0].message == "appended 2 files, replaced 1 file"
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees_at_the_tip(repository, folder)


def test_what_was_unpacked_is_unpacked_again(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths, unpack=True, dtype="f8")
    reprocess(paths[1])
    refresh(None, repository)
    found, expected = dataset(repository), files_dataset(paths)
    for name in ("t2m", "rain"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_chunks_that_the_new_version_lacks_are_gone(
    folder: Path, repository: icefloe.Repository
) -> None:
    """A chunk without a reference has missing values; the old one must not stay."""
    paths = write_files(folder, 3)
    virtualize(None, repository, paths)
    with h5netcdf.File(paths[1], "r") as file:
        shape = file.variables["rain"].shape
    write_file(paths[1], 2)
    with h5netcdf.File(paths[1], "r+") as file:
        old = file.variables["rain"]
        attributes = dict(old.attrs)
        del file._h5group["rain"]
    with h5netcdf.File(paths[1], "r+") as file:
        options: dict[str, Any] = {"chunks": (1, 3, 4), "compression": "gzip", "shuffle": True}
        options["compression_opts"] = 1
        rain = file.create_variable("rain", ("time", "lat", "lon"), "f4", **options)
        rain.attrs["units"] = attributes["units"]
        rain[0] = np.full(shape[1:], 7, "f4")
    refresh(None, repository)
    assert {coords[0] for coords in refs(repository, "/rain")} == {0, 1, 2, 4, 5}
    assert_same(dataset(repository), files_dataset(paths))


def test_a_new_version_with_other_steps_is_refused(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 4)
    job(None, repository, paths)
    before = repository.lookup_branch("main")
    age(write_file(paths[0], 0, 1))
    age(write_file(paths[1], 2, 3))
    age(write_file(paths[2], 40))
    reprocess(paths[3])
    with pytest.raises(JobFailedError) as caught:
        refresh(None, repository)
    reasons = [failure.reason for failure in caught.value.failures]
    assert "time: has 1 step, but had 2 when the file was added" in reasons[0]
    assert "time: has 3 steps, but had 2" in reasons[1]
    assert "time: has 2 of 2 steps that are not in the repository" in reasons[2]
    assert repository.lookup_branch("main") == before
    report = refresh(None, repository, on_error="skip")
    assert isinstance(report, Report)
    assert (report.files, len(report.left_out)) == (1, 3)


def test_a_new_version_that_falls_or_repeats_is_refused(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths)
    for path, days in ((paths[0], [1, 0]), (paths[1], [2, 2])):
        with h5netcdf.File(path, "r+") as file:
            file.variables["time"][...] = days
    with pytest.raises(JobFailedError) as caught:
        refresh(None, repository)
    reasons = [failure.reason for failure in caught.value.failures]
    assert "time: is not strictly increasing" in reasons[0]
    assert "time: has its steps in another order than the repository" in reasons[1]


def test_files_that_vanished_are_named_and_kept(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths)
    expected = files_dataset(paths)
    paths[1].unlink()
    report = refresh(None, repository)
    assert f"1 file in the group does not exist anymore: {paths[1].as_uri()}" in str(report)
    assert paths[1].as_uri() in str(refresh(None, repository, dry_run=True))
    assert_same(dataset(repository), expected)


def test_references_do_not_replace_chunks_with_steps_of_other_files(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 4, days=1, chunks=(2, 3, 4))
    options: dict[str, Any] = {"parse_options": {"drop_variables": ["t2m", "height"]}}
    codecs = parse(paths[0]).arrays["rain"].metadata["codecs"]
    ingest(None, repository, paths, chunks={"time": 2}, codecs=codecs, **options)
    reprocess(paths[1])
    with pytest.raises(FilesDisagreeError, match=r"shares chunks of 2 steps .*steps 1 to 1.*False"):
        refresh(None, repository, virtual=True, **options)
    refresh(None, repository, **options)
    assert_same(dataset(repository), files_dataset(paths).drop_vars(["t2m", "height"]))


def test_bad_files_are_reported_together(folder: Path, repository: icefloe.Repository) -> None:
    """New and changed ones; the others are added without them."""
    paths = write_files(folder, 4)
    ingest(None, repository, paths[:2])
    expected = files_dataset([*paths[:2], paths[3]])
    for path in paths[1:3]:
        age(path).write_bytes(b"damaged")
    with pytest.raises(JobFailedError, match="2 sources failed") as caught:
        append(None, repository, paths[:3], changed="replace")
    named = [failure.source for failure in caught.value.failures]
    assert sorted(named) == [path.as_uri() for path in paths[1:3]]
    report = append(None, repository, paths, changed="replace", on_error="skip")
    assert isinstance(report, Report)
    assert (report.files, len(report.left_out)) == (1, 2)
    assert_same(dataset(repository), expected)


def test_groups_with_coordinates_of_their_own_are_refused(
    folder: Path, repository: icefloe.Repository
) -> None:
    """The steps of a file are at other positions in each group."""
    paths = [folder / f"{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        with h5netcdf.File(path, "w") as file:
            for node, count in ((file, 1), (file.create_group("fine"), 4)):
                node.dimensions = {"time": count}
                hours = np.arange(number * count, (number + 1) * count)
                time = node.create_variable("time", ("time",), "i4", data=hours)
                time.attrs["units"] = "hours since 2024-01-01"
                node.create_variable("v", ("time",), "f4", data=hours)
    ingest(None, repository, [paths[0], paths[2]])
    age(paths[2])
    with pytest.raises(JobFailedError, match="has another coordinate or length in some groups"):
        refresh(None, repository)
    with pytest.raises(JobFailedError, match="does not continue the steps"):
        append(None, repository, paths[1], insert=True)


def test_a_dry_run_names_what_would_be_replaced(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    job(None, repository, paths)
    reprocess(paths[1])
    plan = str(refresh(None, repository, dry_run=True))
    assert f"replace the steps of 1 changed file: {paths[1].as_uri()}" in plan
    assert len(commits(repository)) == 2


def test_files_without_a_version_are_replaced_if_they_are_named(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths)
    session = repository.writable_session("main")
    known = read_known_sources(repository, session, "/")
    store_sources(session, "/", dict.fromkeys(known, KnownSource()))
    session.commit("as written before versions were recorded")
    reprocess(paths[1])
    report = refresh(None, repository)
    assert report.snapshot_id is None  # type: ignore[union-attr]
    assert "changes cannot be detected" in str(report)
    assert refresh(None, repository, paths[1]).files == 1  # type: ignore[union-attr]
    assert_same(dataset(repository), files_dataset(paths))


def test_files_that_are_not_in_the_group_are_refused(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    ingest(None, repository, paths[:1])
    with pytest.raises(InvalidInputError, match=r"part-001.nc: not in /, .* append new files"):
        refresh(None, repository, paths)
    ingest(None, repository, paths[:1], group="g")
    session = repository.writable_session("main")
    zarr.open_group(session.store)["g"].attrs.put({})
    session.commit("not written by a job")
    repository.expire_snapshots(datetime.now(UTC) + timedelta(seconds=1))
    with pytest.raises(InvalidInputError, match="/g has no record of source files"):
        refresh(None, repository, group="g")


def test_files_outside_of_containers_are_read_only_if_they_are_named(
    folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    """A writer of the repository could list any file."""
    secret = write_file(tmp_path / "elsewhere" / "secret.nc", 0)
    ingest(None, repository, write_files(folder, 1))
    session = repository.writable_session("main")
    store_sources(session, "/", {secret.as_uri(): KnownSource(SourceVersion(1, ""))})
    session.commit("another record")
    before = repository.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=r"in no authorized container, in .*elsewhere"):
        refresh(None, repository)
    assert repository.lookup_branch("main") == before


def test_of_two_refreshes_at_once_the_second_has_nothing_left(
    job: Any, folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 4)
    job(None, repository, paths)
    reprocess(paths[1])
    reprocess(paths[2])
    work = [lambda: refresh(None, repository, paths[1])]

    def overtake(done: int, total: int) -> None:
        if work:
            work.pop()()

    report = refresh(None, repository, progress=overtake)
    assert report.files == 1  # type: ignore[union-attr]
    assert [info.message for info in commits(repository)][:2] == ["replaced 1 file"] * 2
    assert_same(dataset(repository), files_dataset(paths))
