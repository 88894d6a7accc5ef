"""Ingesting: the values of xarray in chosen chunks, each source chunk read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.pipeline.jobs.append import append
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.report import JobFailedError, Plan, Report
from support.array_repositories import array
from support.netcdf_files import (
    LONGITUDES,
    arrays,
    assert_icechunk_agrees,
    assert_same,
    assert_same_chunks,
    create,
    damage,
    dataset,
    files_dataset,
    refs,
    write_file,
    write_files,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def reference(tmp_path: Path, folder: Path) -> icefloe.Repository:
    return create(tmp_path / "reference", folder)


def test_spark_and_one_process_make_what_xarray_and_icechunk_read(
    spark: Any, folder: Path, repository: icefloe.Repository, reference: icefloe.Repository
) -> None:
    paths = write_files(folder, 5)
    chunks = {"time": 4, "lat": 2, "lon": 8}
    options: dict[str, Any] = {"chunks": chunks, "task_bytes": 2_000, "unpack": True}
    report = ingest(spark, repository, paths, **options)
    ingest(None, reference, paths, **options)
    assert isinstance(report, Report)
    assert (report.files, report.is_new) == (5, True)
    assert_same_chunks(repository, reference)
    assert array(repository, "t2m").chunks == (4, 2, 8)
    found, expected = dataset(repository), files_dataset(paths)
    np.testing.assert_allclose(found["t2m"], expected["t2m"], rtol=1e-6)
    assert_same(found.drop_vars("t2m"), expected.drop_vars("t2m"))
    assert_icechunk_agrees(repository, folder)


def test_nothing_refers_to_the_files_afterwards(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 3)
    expected = files_dataset(paths)
    ingest(None, repository, paths)
    for path in paths:
        path.unlink()
    assert_same(dataset(repository), expected)
    assert all(
        isinstance(ref, bytes)
        for path in arrays(repository)
        for ref in refs(repository, path).values()
    )


def test_files_of_a_grid(folder: Path, repository: icefloe.Repository) -> None:
    paths = [
        write_file(folder / f"{first}-{start}.nc", first, lats=slice(start, start + 3))
        for first in (0, 2)
        for start in (0, 3)
    ]
    ingest(None, repository, paths, dims=("time", "lat"), chunks={"time": 3, "lat": 4})
    assert_same(dataset(repository), files_dataset(paths))


@pytest.mark.parametrize("source", [(1, 3, 4), (2, 6, 8), None])
def test_source_chunks_are_read_once(
    folder: Path,
    repository: icefloe.Repository,
    read: Counter[tuple[str, int, int]],
    source: tuple[int, int, int] | None,
) -> None:
    """Also if every target chunk overlaps all source chunks, and no task holds the whole array."""
    paths = write_files(folder, 4, chunks=source)
    ingest(None, repository, paths, chunks={"time": 8, "lat": 1, "lon": 3}, task_bytes=2_000)
    assert set(read.values()) == {1}
    assert_same(dataset(repository), files_dataset(paths))


@pytest.mark.parametrize(
    "source, target",
    [
        ((1, 6, 8), {"time": 8, "lat": 1, "lon": 3}),  # in two passes
        ((2, 6, 8), {"time": 3}),  # in one, were it not for where the first chunk begins
        ((3, 6, 8), {"time": 6}),
        (None, {"time": 5, "lat": 2}),
    ],
)
def test_source_chunks_are_read_once_behind_a_chunk_that_is_not_full(
    folder: Path,
    repository: icefloe.Repository,
    read: Counter[tuple[str, int, int]],
    source: tuple[int, int, int] | None,
    target: dict[str, int],
) -> None:
    paths = [
        write_file(folder / "0.nc", 0, 1, chunks=source),
        *(write_file(folder / f"{first}.nc", first, 6, chunks=source) for first in (1, 7, 13)),
    ]
    ingest(None, repository, paths[:1], chunks=target)
    read.clear()
    ingest(None, repository, paths, append=True, task_bytes=1_200)
    assert set(read.values()) == {1}
    assert_same(dataset(repository), files_dataset(paths))


def test_shards_and_codecs(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 4)
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 2}},
    ]
    ingest(
        None,
        repository,
        paths,
        chunks={"time": 2, "lat": 3},
        shards={"time": 4, "lat": 6},
        codecs=codecs,
    )
    rain = array(repository, "rain")
    assert (rain.chunks, rain.shards) == ((2, 3, 4), (4, 6, 4))
    assert [type(codec).__name__ for codec in rain.compressors] == ["GzipCodec"]
    assert_same(dataset(repository), files_dataset(paths))


@pytest.mark.parametrize("dtype", [None, "f4", "f8"])
def test_unpacked_values_are_those_of_xarray(
    folder: Path, repository: icefloe.Repository, dtype: str | None
) -> None:
    paths = write_files(folder, 3)
    ingest(None, repository, paths, unpack=True, dtype=dtype)
    found, expected = dataset(repository)["t2m"], files_dataset(paths)["t2m"]
    assert found.dtype == (dtype or "f4")
    assert np.isnan(expected).any()
    np.testing.assert_allclose(found, expected, rtol=0 if dtype == "f8" else 1e-6)
    assert found.attrs == {"units": "K"}
    assert not {"scale_factor", "add_offset"} & dict(array(repository, "t2m").attrs).keys()


PACK: dict[str, Any] = {"t2m": {"dtype": "int32", "scale_factor": 0.001, "add_offset": 280}}
PACK["rain"] = {"dtype": "uint16", "scale_factor": 0.125, "_FillValue": 9}


def test_values_are_packed_on_the_way_in(folder: Path, repository: icefloe.Repository) -> None:
    """From floats and from other packed numbers; appended values are packed in the same way."""
    paths = write_files(folder, 3)
    report = ingest(None, repository, paths[:2], chunks={"time": 3}, pack=PACK)
    assert isinstance(report, Report)
    append(None, repository, paths)
    found, expected = dataset(repository), files_dataset(paths)
    for name in ("t2m", "rain"):
        scale = PACK[name]["scale_factor"]
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=float(scale) / 2)
        stored = array(repository, name)
        assert stored.dtype == PACK[name]["dtype"]
        assert stored.attrs["scale_factor"] == scale
    assert np.isnan(found["t2m"]).any()
    # Eighths are exact, and so are their numbers.
    np.testing.assert_array_equal(found["rain"], expected["rain"])
    assert found.attrs["Conventions"] == "CF-1.11"
    assert not [name for name in found.attrs if "icefloe" in name]
    assert_icechunk_agrees(repository, folder)


@pytest.mark.parametrize(
    "spec, reason",
    [
        ({"dtype": "int8", "scale_factor": 0.125}, "int8 with scale_factor 0.125 .* -16 to"),
        (
            {"dtype": "int16", "scale_factor": 0.125, "_FillValue": 101},
            "near 12.625 would .*_FillValue",
        ),
    ],
)
def test_values_that_cannot_be_packed_fail_the_job(
    folder: Path, repository: icefloe.Repository, spec: dict[str, Any], reason: str
) -> None:
    with pytest.raises(JobFailedError, match=rf"/rain \[.*{reason}"):
        ingest(None, repository, write_files(folder, 2), pack={"rain": spec})
    assert len(list(repository.ancestry(branch="main"))) == 1


def test_a_dtype_is_that_of_all_data(folder: Path, repository: icefloe.Repository) -> None:
    """Packed or not; coordinates are unchanged, and appended values are converted too."""
    paths = write_files(folder, 3)
    ingest(None, repository, paths[:2], dtype="float64")
    append(None, repository, paths)
    found, expected = dataset(repository, decode_times=False), files_dataset(paths)
    for name in ("t2m", "rain", "height"):
        assert found[name].dtype == array(repository, name).dtype == np.float64
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    kept = {name: str(found[name].dtype) for name in ("time", "lat", "crs")}
    assert kept == {"time": "int32", "lat": "float32", "crs": "int32"}
    assert_icechunk_agrees(repository, folder)


def test_dtypes_by_name_are_of_those_alone(folder: Path, repository: icefloe.Repository) -> None:
    """A larger integer type keeps packing; values that do not fit fail the job."""
    paths = write_files(folder, 3)
    ingest(None, repository, paths[:2], dtype={"t2m": "int32"})
    append(None, repository, paths)
    assert [str(array(repository, name).dtype) for name in ("t2m", "rain")] == ["int32", "float32"]
    assert_same(dataset(repository), files_dataset(paths))
    far = write_file(folder / "far.nc", 10_000)
    with pytest.raises(JobFailedError, match=r"/far/rain \[.*too large for float16"):
        ingest(None, repository, far, group="far", dtype={"rain": "float16"})


def test_packed_values_stay_packed_unless_told(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    ingest(None, repository, paths)
    assert array(repository, "t2m").dtype == np.int16
    assert_same(dataset(repository), files_dataset(paths))


def test_bad_files_are_skipped_and_listed(folder: Path, repository: icefloe.Repository) -> None:
    odd = write_file(folder / "a-first.nc", 50, longitudes=LONGITUDES + 1)
    paths = write_files(folder, 3)
    (folder / "broken.nc").write_bytes(b"no file of arrays")
    sources = [odd, *paths, folder / "broken.nc"]
    with pytest.raises(JobFailedError) as caught:
        ingest(None, repository, sources)
    assert len(caught.value.failures) == 2
    report = ingest(None, repository, sources, on_error="skip")
    assert isinstance(report, Report)
    assert {failure.source for failure in report.left_out} == {
        odd.as_uri(),
        (folder / "broken.nc").as_uri(),
    }
    info = next(iter(repository.ancestry(branch="main")))
    assert len(info.metadata["icefloe"]["left_out"]) == 2
    assert_same(dataset(repository), files_dataset(paths))


def test_files_that_are_damaged_inside_fail_the_job(
    spark: Any, folder: Path, repository: icefloe.Repository
) -> None:
    """Files with readable metadata and unreadable chunks are all reported, or left out."""
    paths = write_files(folder, 5)
    for path, name in ((paths[1], "t2m"), (paths[3], "rain")):
        damage(path, name)
    with pytest.raises(JobFailedError) as caught:
        ingest(None, repository, paths)
    found = {failure.source: failure.reason for failure in caught.value.failures}
    assert set(found) == {paths[1].as_uri(), paths[3].as_uri()}
    assert found[paths[1].as_uri()].startswith("t2m [0:1, 0:3, 0:4]: ")
    assert found[paths[3].as_uri()].startswith("rain [0:1, 0:3, 0:4]: ")
    assert len(list(repository.ancestry(branch="main"))) == 1
    report = ingest(spark, repository, paths, on_error="skip")
    assert isinstance(report, Report)
    assert {failure.source: failure.reason for failure in report.left_out} == found
    info = next(iter(repository.ancestry(branch="main")))
    assert {source for source, _ in info.metadata["icefloe"]["left_out"]} == set(found)
    assert_same(dataset(repository), files_dataset(paths[::2]))


def test_a_group_of_any_name_may_be_there(folder: Path, repository: icefloe.Repository) -> None:
    """Including a group that is named like an intermediate node."""
    paths = write_files(folder, 2)
    for group in ("source", "other"):
        ingest(None, repository, paths, group=group)
        assert_same(dataset(repository, group), files_dataset(paths))


def test_bad_arguments_are_refused_and_nothing_is_committed(
    folder: Path, repository: icefloe.Repository
) -> None:
    paths = write_files(folder, 2)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"chunks": {"depth": 3}}, "'depth'; available:"),
        ({"chunks": {"time": 0}}, "positive"),
        ({"chunks": {"time": 2}, "shards": {"time": 3}}, "not a multiple of chunks"),
        ({"unpack": True, "dtype": "i4"}, "float32 or float64"),
        ({"shards": {"depth": 3}}, "shards: unknown dimension 'depth'; available:"),
        ({"dtype": "nonsense"}, "'nonsense' is not a data type"),
        ({"dtype": "datetime64[s]"}, "is not numeric"),
        ({"dtype": {"snow": "f4"}}, "dtype: unknown variable 'snow'; available:"),
        ({"dtype": {"time": "f4"}}, "'time' is a coordinate"),
        ({"dtype": "i4"}, "height|rain: cannot convert float32 to int32; pack="),
        ({"dtype": "f4", "append": True}, "append uses the data types and packing"),
        ({"pack": {"snow": {"dtype": "i2"}}}, "pack: unknown variable 'snow'"),
        ({"pack": {"rain": {"scale_factor": 2}}}, "rain: .*dtype is required"),
        ({"pack": {"rain": {"dtype": "f4"}}}, "integers of up to 32 bits, not float32"),
        ({"pack": {"rain": {"dtype": "i2", "scale_factor": 0}}}, "must be finite"),
        ({"pack": {"rain": {"dtype": "u1", "_FillValue": -1}}}, "-1 is not in the range of uint8"),
        ({"pack": PACK, "dtype": {"rain": "f8"}}, "rain: pass the data type in dtype or in pack"),
        ({"pack": ["rain"]}, "from variable names"),
        ({"task_bytes": 0}, "task_bytes"),
        ({"dims": "depth"}, "no variable has the dimension 'depth'"),
    ]
    for options, text in wrong:
        with pytest.raises(icefloe.InvalidInputError, match=text):
            ingest(None, repository, paths, **options)
    assert len(list(repository.ancestry(branch="main"))) == 1
    ingest(None, repository, paths)
    with pytest.raises(icefloe.AlreadyExistsError):
        ingest(None, repository, paths)


def test_a_dry_run_touches_nothing(
    folder: Path, repository: icefloe.Repository, files: Callable[[], set[str]]
) -> None:
    paths = write_files(folder, 3)
    before = files()
    plan = ingest(None, repository, paths, chunks={"time": 3}, dry_run=True)
    assert isinstance(plan, Plan)
    assert "into chunks of time 3" in str(plan)
    total = sum(path.stat().st_size for path in paths)
    assert (plan.bytes_read, plan.bytes_written, plan.tasks) == (total, total, 3 + 1)
    assert plan.task_bytes == 256_000_000
    assert f"about 4 tasks, at most 256.0 MB of memory each, reads about {total / 1000:.1f} kB" in (
        str(plan)
    )
    small = ingest(None, repository, paths, task_bytes=-(-total // 4), dry_run=True)
    assert isinstance(small, Plan)
    assert small.tasks == 3 + 4
    assert files() == before
    ingest(None, repository, paths[:2])
    rest = append(None, repository, paths, dry_run=True)
    assert isinstance(rest, Plan)
    assert rest.bytes_read == paths[2].stat().st_size


def test_a_transaction_id_is_committed_once(folder: Path, repository: icefloe.Repository) -> None:
    paths = write_files(folder, 2)
    reports = [ingest(None, repository, paths, transaction_id="load") for _ in range(2)]
    assert [isinstance(report, Report) and report.is_new for report in reports] == [True, False]
    assert len(list(repository.ancestry(branch="main"))) == 2
