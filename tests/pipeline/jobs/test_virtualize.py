"""Virtualizing: the dataset of xarray, in one process, on Spark and read by Icechunk."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import xarray
import zstandard

import icefloe
from icefloe.format.generation import get_generation
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.node import ArrayNodeData
from icefloe.pipeline.files import manifest_building
from icefloe.pipeline.files.staged_refs import FileInterner, ParsedFile, ParseFiles, load_staged
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.report import JobFailedError, Plan, Report
from support.netcdf_files import (
    LONGITUDES,
    arrays,
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
    from collections.abc import Callable


@pytest.fixture
def reference(tmp_path: Path, folder: Path) -> icefloe.Repository:
    """Create a second repository, to compare results."""
    return create(tmp_path / "reference", folder)


def commits(repository: icefloe.Repository) -> list[Any]:
    return list(repository.ancestry(branch="main"))


def record(repository: icefloe.Repository) -> dict[str, Any]:
    """Return the job record of the last commit."""
    found: dict[str, Any] = commits(repository)[0].metadata["icefloe"]
    return found


def test_spark_and_one_process_make_what_xarray_and_icechunk_read(
    spark: Any, folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    paths = write_files(folder, 5)
    pattern = str(folder / "part-*.nc")
    report = virtualize(spark, repository, pattern, refs_per_manifest=20)
    virtualize(None, reference, [*reversed(paths)], refs_per_manifest=20)
    assert isinstance(report, Report)
    assert (report.files, report.is_new, report.left_out) == (5, True, ())
    assert report.chunks == sum(len(refs(repository, path)) for path in arrays(repository))
    assert_same_chunks(repository, reference)
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)
    assert record(repository)["sources"] == {
        "prefix": f"{folder.as_uri()}/",
        "names": [path.name for path in paths],
    }


def test_files_make_a_grid_along_two_dimensions(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = [
        write_file(folder / f"{first}-{start}.nc", first, lats=slice(start, start + 3))
        for first in (0, 2, 4)
        for start in (0, 3)
    ]
    virtualize(None, repository, paths, dims=("time", "lat"), refs_per_manifest=10)
    # The static map goes along one of the two, which xarray calls data_vars="all" or by_coords.
    assert_same(dataset(repository), files_dataset(paths))
    assert_disjoint_manifests(repository, "/t2m", at_least=2)


def assert_disjoint_manifests(repository: icefloe.Repository, path: str, *, at_least: int) -> None:
    session = repository.readonly_session("main")
    node = session.transaction.require_array(session.path(path))
    assert isinstance(node.node_data, ArrayNodeData)
    manifests = node.node_data.manifests
    assert len(manifests) >= at_least
    cells = [
        set(np.ndindex(*(part.stop - part.start for part in manifest.extents.ranges)))
        for manifest in manifests
    ]
    starts = [tuple(part.start for part in manifest.extents.ranges) for manifest in manifests]
    moved = [
        {tuple(np.add(cell, start).tolist()) for cell in box}
        for box, start in zip(cells, starts, strict=True)
    ]
    assert len(set().union(*moved)) == sum(map(len, moved))


def test_manifests_are_small_and_do_not_overlap(
    folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    paths = write_files(folder, 6)
    virtualize(None, repository, paths, refs_per_manifest=8)
    virtualize(None, reference, paths)
    assert_disjoint_manifests(repository, "/t2m", at_least=3)
    assert_disjoint_manifests(reference, "/t2m", at_least=1)
    assert_same_chunks(repository, reference)


def test_a_file_with_many_references_becomes_several_manifests(
    folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    """Also if a single step has more references than a manifest."""
    paths = write_files(folder, 2, days=3, chunks=(1, 2, 2))  # 12 references for each day
    virtualize(None, repository, paths, refs_per_manifest=5)
    virtualize(None, reference, paths)
    for path in ("/t2m", "/rain"):
        assert_disjoint_manifests(repository, path, at_least=6 * 3)
        assert_disjoint_manifests(reference, path, at_least=1)
    session = repository.readonly_session("main")
    parts = [len(part) for part in session.transaction.fetch_chunk_refs(session.path("/t2m"))]
    assert max(parts) <= 5
    assert_same_chunks(repository, reference)
    assert_same(dataset(repository), files_dataset(paths))
    assert_icechunk_agrees(repository, folder)


def test_uncompressed_files_are_cut_where_others_end(
    folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    """Contiguous files of 4, 6 and 8 days are split into chunks of two days."""
    lengths = (4, 6, 8)
    paths = [
        write_file(folder / f"{number}.nc", sum(lengths[:number]), days, chunks=None)
        for number, days in enumerate(lengths)
    ]
    virtualize(None, repository, paths[:2], refs_per_manifest=3)
    session = icefloe.virtual.combine([icefloe.virtual.parse(path) for path in paths[:2]], "time")
    writing = reference.writable_session("main")
    icefloe.virtual.write(session, writing)
    writing.commit("by hand")
    assert_same_chunks(repository, reference)
    virtualize(None, repository, paths[2:], append=True)
    writing = reference.writable_session("main")
    icefloe.virtual.append(icefloe.virtual.parse(paths[2]), writing, dim="time")
    writing.commit("by hand")
    assert_same_chunks(repository, reference)
    assert_same(dataset(repository), files_dataset(paths))


def test_groups_in_files_are_groups_in_the_repository(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3, group="surface")
    virtualize(None, repository, paths, group="/a/b")
    expected = files_dataset(paths, group="surface", combine="nested", concat_dim="time")
    found = dataset(repository, "a/b/surface")
    xarray.testing.assert_equal(found, expected)
    assert dataset(repository, "a/b")["time"].size == found.sizes["time"] == 6
    assert record(repository)["group"] == "/a/b"


def test_a_file_without_references_for_an_array_has_none_afterwards(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    with h5py.File(paths[1], "a") as file:  # created, and never written to
        old = file["rain"]
        options = {"chunks": old.chunks, "compression": "gzip", "compression_opts": 1}
        shape, options["shuffle"] = old.shape, True
        scales = [dimension[0] for dimension in old.dims]
        attributes = {"units": old.attrs["units"]}
        del file["rain"]
        new = file.create_dataset("rain", shape, "f4", **options)
        for dimension, scale in zip(new.dims, scales, strict=True):
            dimension.attach_scale(scale)
        new.attrs.update(attributes)
    virtualize(None, repository, paths)
    steps = {coords[0] for coords in refs(repository, "/rain")}
    assert steps == {0, 1, 4, 5}
    assert (dataset(repository)["rain"][2:4] == 0).all()
    assert (dataset(repository)["rain"][4:] > 0).any()


def test_the_log_of_an_executor_is_that_of_the_driver(
    spark: Any,
    folder: Path,
    repository: icefloe.Repository,
    reference: icefloe.Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = write_files(folder, 3)
    virtualize(None, reference, paths)
    monkeypatch.setattr(manifest_building, "_MANY_REFS", 10)
    virtualize(spark, repository, paths)
    logs = []
    for target in (repository, reference):
        first, last = commits(target)[-1].id, commits(target)[0].id
        diff = target.diff(from_snapshot_id=first, to_snapshot_id=last)
        logs.append((diff.new_arrays, {**diff.updated_chunks}))
    assert logs[0] == logs[1]
    assert len(logs[0][1]["/t2m"]) == len(refs(repository, "/t2m"))


def test_what_files_have_in_common_is_in_memory_once(
    folder: Path, repository: icefloe.Repository
) -> None:
    """Also in the results of workers: many files take little more space than one."""
    urls = tuple(path.as_uri() for path in write_files(folder, 8))
    work = ParseFiles(repository.writable_session("main").connection, {}, frozenset({"time"}))
    sent = [pickle.dumps(work(some)) for some in (urls[:1], urls)]
    assert len(sent[1]) < 3 * len(sent[0])
    interner = FileInterner()
    answer = pickle.loads(sent[1])  # noqa: S301 - ours
    files = [interner.add(file) for file in answer if isinstance(file, ParsedFile)]
    assert len({id(file.dataset.arrays["t2m"]) for file in files}) == 1
    assert len({id(file.dataset.arrays["lat"]) for file in files}) == 1
    assert len({id(file.dataset.arrays["time"]) for file in files}) == len(files) == 8


def test_what_was_staged_is_gone_after_the_commit(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    write_file(folder / "part-009.nc", 30, dtype="f4")  # parsed, and then left out
    virtualize(
        None,
        repository,
        str(folder / "*.nc"),
        on_error="skip",
        parse_options={"loadable_variables": ["time"]},
    )
    chunks = get_generation(repository.generation).layout.chunks
    stored = {info.key for info in repository.storage.list(chunks.prefix)}
    used = {chunks.format_key(name) for name in _find_used_chunks(repository)}
    assert stored == used
    assert len(paths) == len(record(repository)["sources"]["names"])


def _find_used_chunks(repository: icefloe.Repository) -> set[str]:
    session = repository.readonly_session("main")
    found = set()
    for path in arrays(repository):
        for part in session.transaction.fetch_chunk_refs(session.path(path)):
            for row in range(len(part)):
                ref = part.payloads[row]
                if hasattr(ref, "id"):
                    found.add(str(ref.id))
    return found


def test_all_failures_are_told_at_once_and_nothing_is_committed(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 4)
    (folder / "broken.nc").write_bytes(paths[0].read_bytes()[:3000])
    odd = write_file(folder / "odd.nc", 20, dtype="f8")
    missing = folder / "missing.nc"
    with pytest.raises(JobFailedError) as caught:
        virtualize(None, repository, [*paths, folder / "broken.nc", odd, missing])
    found = {failure.source.rpartition("/")[2]: failure.reason for failure in caught.value.failures}
    assert set(found) == {"broken.nc", "odd.nc", "missing.nc"}
    assert "t2m: has dtype float64, but int16" in found["odd.nc"]
    assert "no such file" in found["missing.nc"]
    assert 'on_error="skip"' in str(caught.value)
    assert len(commits(repository)) == 1


def test_bad_files_are_skipped_and_listed(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 4)
    (folder / "broken.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    odd = write_file(folder / "odd.nc", 20, longitudes=LONGITUDES + 1)
    sources = [folder / "broken.nc", *paths, odd, folder / "missing.nc"]
    report = virtualize(None, repository, sources, on_error="skip")
    assert isinstance(report, Report)
    left_out = {failure.source.rpartition("/")[2] for failure in report.left_out}
    assert left_out == {"broken.nc", "odd.nc", "missing.nc"}
    assert record(repository)["left_out"] == [
        [failure.source, failure.reason] for failure in report.left_out
    ]
    assert report.files == 4
    assert_same(dataset(repository), files_dataset(paths))


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize(
    "options, reason",
    [
        ({"dtype": "f4"}, r"t2m: has dtype float32, but int16"),
        ({"longitudes": LONGITUDES[:4]}, r"lon: has 4 steps along lon, but 8"),
        ({"longitudes": LONGITUDES + 1}, r"lon: differs in 8 of 8 values"),
        ({"gzip": 5}, r"t2m: has codecs .*level=5.*, but .*level=1"),
        ({"chunks": (1, 6, 8)}, r"t2m: has chunks of 1 x 6 x 8, but 1 x 3 x 4"),
        ({"more": ["snow"]}, r"has snow, unlike .*; parse with drop_variables="),
    ],
)
def test_the_odd_one_is_found_wherever_it_is(
    folder: Path,
    repository: icefloe.Repository,
    place: int,
    options: dict[str, Any],
    reason: str,
) -> None:
    """Also if it is the first file, with which all others disagree."""
    paths = [
        write_file(folder / f"{number}.nc", number * 2, **(options if number == place else {}))
        for number in range(4)
    ]
    with pytest.raises(JobFailedError, match=reason) as caught:
        virtualize(None, repository, paths)
    assert [failure.source for failure in caught.value.failures] == [paths[place].as_uri()]
    report = virtualize(None, repository, paths, on_error="skip")
    assert isinstance(report, Report)
    assert [failure.source for failure in report.left_out] == [paths[place].as_uri()]
    assert dataset(repository).sizes["time"] == 6


def test_attributes_that_differ_are_left_out_unless_they_give_meaning(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    odd = write_file(folder / "odd.nc", 30, attributes={"title": "another"})
    virtualize(None, repository, [*paths, odd])
    assert dataset(repository).attrs == {"Conventions": "CF-1.11"}


def test_times_from_other_origins_are_brought_together(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    paths.append(write_file(folder / "later.nc", 0, units="days since 2024-03-01"))
    virtualize(None, repository, paths)
    assert_same(dataset(repository), files_dataset(paths))


def test_overlapping_and_unsorted_files(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 3)
    twice = write_file(folder / "twice.nc", 3)
    with pytest.raises(JobFailedError, match=r"twice.nc: time: ranges from 2024-01-04 to 2024"):
        virtualize(None, repository, [*paths, twice])
    with pytest.raises(JobFailedError, match=r"part-000.nc: time: .*sort the files"):
        virtualize(None, repository, paths[::-1], order="given")
    report = virtualize(None, repository, [*paths, twice], on_error="skip")
    assert isinstance(report, Report)
    assert len(report.left_out) == 1


def test_bad_arguments_are_refused_before_anything_is_written(
    folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    paths = write_files(folder, 2)
    before = {info.key for info in repository.storage.list("")}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"dims": "depth"}, icefloe.InvalidInputError, "no variable has the dimension 'depth'"),
        ({"dims": ()}, icefloe.InvalidInputError, "expected one or more different dimensions"),
        ({"on_error": "ignore"}, icefloe.InvalidInputError, "'raise', 'skip'"),
        ({"order": "size"}, icefloe.InvalidInputError, "'given', 'coordinates'"),
        ({"refs_per_manifest": 0}, icefloe.InvalidInputError, "refs_per_manifest"),
        ({"append": True, "group": "/none"}, icefloe.NodeNotFoundError, "none"),
        ({"branch": "none"}, icefloe.IcefloeError, "none"),
    ]
    for options, error, text in wrong:
        with pytest.raises(error, match=text):
            virtualize(None, repository, paths, **options)
        with pytest.raises(error, match=text):
            virtualize(None, repository, paths[0], **options)
    left = {info.key for info in repository.storage.list("")} - before
    assert all(
        key.startswith(("chunks/", "c/")) for key in left
    )  # parsed, to see what dimensions are
    elsewhere = write_file(tmp_path / "elsewhere.nc", 0)
    with pytest.raises(JobFailedError, match="container"):
        virtualize(None, repository, elsewhere)
    virtualize(None, repository, paths)
    with pytest.raises(icefloe.AlreadyExistsError, match="append"):
        virtualize(None, repository, ["no such file"])
    assert len(commits(repository)) == 2


class Dangerous:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_staged_references_that_somebody_replaced_are_not_unpickled(
    folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    (path,) = write_files(folder, 1)
    connection = repository.writable_session("main").connection
    (parsed,) = ParseFiles(connection, {}, frozenset({"time"}))((path.as_uri(),))
    assert isinstance(parsed, ParsedFile)
    staged, position = parsed.staged
    assert "t2m" in load_staged(connection, staged)[position]
    data = zstandard.compress(pickle.dumps(Dangerous(tmp_path / "made")))
    repository.storage.put(connection.generation.layout.chunks.format_key(staged.ref.id), data)
    replaced = staged._replace(ref=ChunkRef(staged.ref.id, 0, len(data)))
    with pytest.raises(
        icefloe.FormatError, match=r"c(hunks)?/\w+.* replaced after this job wrote it"
    ):
        load_staged(connection, replaced)
    assert not (tmp_path / "made").exists()


def test_a_dry_run_touches_nothing(
    folder: Path, repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    paths = write_files(folder, 3)
    before = files()
    plan = virtualize(None, repository, paths, dry_run=True)
    assert isinstance(plan, Plan)
    assert plan.has_work
    total = sum(path.stat().st_size for path in paths)
    assert f"parse 3 files, {total / 1000:.1f} kB in total" in str(plan)
    assert (plan.tasks, plan.bytes_read, plan.bytes_written) == (3, total, 0)
    largest = max(path.stat().st_size for path in paths)
    assert plan.task_bytes == largest
    assert f"about 3 tasks, at most {largest / 1000:.1f} kB of memory each, reads" in str(plan)
    assert files() == before
    virtualize(None, repository, paths)
    before = files()
    again = virtualize(None, repository, paths, append=True, dry_run=True)
    assert isinstance(again, Plan)
    assert not again.has_work
    assert files() == before


def test_a_transaction_id_is_committed_once(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 2)
    first = virtualize(None, repository, paths, transaction_id="load")
    second = virtualize(None, repository, paths, transaction_id="load")
    assert isinstance(first, Report)
    assert isinstance(second, Report)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.snapshot_id == second.snapshot_id
    assert len(commits(repository)) == 2
