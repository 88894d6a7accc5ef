"""Exporting: plain Zarr stores and Parquet files hold the same values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pytest
import zarr
from pyarrow import dataset

import icefloe
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.format.generation import get_generation
from icefloe.pipeline.exports.plain_store import PlainStore
from icefloe.pipeline.jobs.export import export
from icefloe.pipeline.jobs.rechunk import rechunk
from icefloe.pipeline.report import JobFailedError, Plan, Report
from support.array_repositories import chunk_bytes, write_every_dtype, write_weather

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_group_goes_byte_for_byte(repository: icefloe.Repository, tmp_path: Path) -> None:
    values = write_weather(repository)
    report = export(None, repository, str(tmp_path / "out"))
    assert isinstance(report, Report)
    assert report.snapshot_id == repository.lookup_branch("main")
    found = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert dict(found.attrs) == {"title": "weather"}
    np.testing.assert_array_equal(found["air"][:], values)  # type: ignore[index]
    for indices, data in chunk_bytes(repository, "air").items():
        assert (tmp_path / "out/air/c" / "/".join(map(str, indices))).read_bytes() == data


def test_other_chunks(repository: icefloe.Repository, tmp_path: Path) -> None:
    values = write_weather(repository)
    export(None, repository, str(tmp_path / "out"), chunks={"time": 20, "lat": 2}, task_bytes=4_000)
    found: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert (found["air"].chunks, found["mask"].chunks) == ((20, 2, 6), (2, 17))
    assert found["lat"].chunks == (13,)
    np.testing.assert_array_equal(found["air"][:], values)


@pytest.mark.parametrize("is_remote", [False, True])
def test_two_passes_where_one_takes_too_much_memory(
    repository: icefloe.Repository, tmp_path: Path, *, is_remote: bool
) -> None:
    """Days to time series: no chunk is read twice, and the stage is deleted afterwards."""
    write_weather(repository)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "out"))
    target = PlainStore(storage) if is_remote else str(tmp_path / "out")
    layout: dict[str, Any] = {"chunks": {"time": 20, "lat": 1, "lon": 1}, "task_bytes": 1_000}
    plan = export(None, repository, target, variables=["air"], **layout, dry_run=True)
    assert isinstance(plan, Plan)
    assert "/air in chunks of 20x1x1, in two passes" in str(plan)
    assert plan.task_bytes <= 1_000
    before = sum(info.size_bytes for info in repository.storage.list())
    export(None, repository, target, variables=["air"], **layout)
    assert sum(info.size_bytes for info in repository.storage.list()) == before
    folders = {info.key.split("/")[0] for info in storage.list()}
    assert folders == {"air", "lat", "lon", "time", "zarr.json"}
    rechunk(None, repository, "air", (20, 1, 1))
    for indices, data in chunk_bytes(repository, "air").items():
        assert (tmp_path / "out/air/c" / "/".join(map(str, indices))).read_bytes() == data


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_every_kind_of_array(repository: icefloe.Repository, tmp_path: Path) -> None:
    arrays = write_every_dtype(repository)
    export(None, repository, tmp_path / "out")
    found: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name][...], values, err_msg=name)


def test_one_array_of_an_older_snapshot_into_a_storage(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    values = write_weather(repository)
    repository.create_tag("v1", repository.lookup_branch("main"))
    with repository.transaction("main", message="newer") as store:
        zarr.open_array(store, path="air")[:] = 0
    storage = icefloe.local_filesystem_storage(str(tmp_path / "out"))
    export(None, repository, PlainStore(storage), group="air", tag="v1", chunks=(4, 4, 4))
    found = zarr.open_array(PlainStore(storage), mode="r")
    np.testing.assert_array_equal(found[:], values)


def test_a_notebook_may_export(repository: icefloe.Repository, tmp_path: Path) -> None:
    """An event loop already runs in the thread of the caller."""
    write_weather(repository)

    async def cell() -> None:
        export(None, repository, str(tmp_path / "out"))

    asyncio.run(cell())
    assert "air" in zarr.open_group(str(tmp_path / "out"), mode="r")


def test_variables_bring_their_coordinates_along(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_weather(repository)
    export(None, repository, str(tmp_path / "out"), variables=["mask"])
    found = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert sorted(found.array_keys()) == ["lat", "lon", "mask"]


def lose_a_chunk(repository: icefloe.Repository, place: Path) -> None:
    """Delete the file of a chunk of ``air``."""
    session = repository.readonly_session("main")
    (part,) = session.transaction.fetch_chunk_refs(session.path("air"))
    chunks = get_generation(repository.generation).layout.chunks
    (place / chunks.format_key(part.payloads[3].id)).unlink()  # type: ignore[union-attr]


def test_an_export_that_failed_does_not_look_like_one(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_weather(repository)
    lose_a_chunk(repository, tmp_path / "repo")
    for chunks in ({"time": 20}, {"time": 20, "lat": 1, "lon": 1}):
        with pytest.raises(JobFailedError, match=r"nothing was exported.*\n.*/air"):
            export(None, repository, str(tmp_path / "out"), chunks=chunks, task_bytes=4_000)
        left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        assert left == [], "nothing is left behind"


@pytest.mark.parametrize("folders", [(), ("lat",)])
def test_rows_without_spark(
    repository: icefloe.Repository, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    """One process writes the same rows as Spark, to a directory that is renamed at the end."""
    values = write_weather(repository)
    rows = (tmp_path / "all rows").as_uri()
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {"format": "parquet", "variables": ["air"], "partition_by": folders}
    plan = export(None, repository, rows, **options, dry_run=True)
    assert isinstance(plan, Plan)
    report = export(None, repository, rows, **options, progress=lambda *at: told.append(at))
    assert isinstance(report, Report)
    table = dataset.dataset(tmp_path / "all rows", partitioning="hive").to_table().to_pandas()
    assert report.rows == len(table) == values.size
    in_order = table.sort_values(["time", "lat", "lon"])
    np.testing.assert_array_equal(in_order["air"].to_numpy(), values.reshape(-1))
    assert report.files == len(list((tmp_path / "all rows").rglob("*.parquet")))
    assert (len(list((tmp_path / "all rows").iterdir())) > 1) == bool(folders)
    assert told[0][0] == 0
    with pytest.raises(AlreadyExistsError, match="already exists"):
        export(None, repository, rows, **options)
    with pytest.raises(InvalidInputError, match="with spark=None"):
        export(None, repository, "s3://bucket/rows", **options)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_times_name_folders_as_spark_does(repository: icefloe.Repository, tmp_path: Path) -> None:
    """Spark infers timestamps again; fractions of a second are written only if nonzero."""
    with repository.transaction("main", message="times") as store:
        seconds = zarr.create_array(
            store, name="time", data=np.array([0, 90061.5]), dimension_names=["time"]
        )
        seconds.attrs["units"] = "seconds since 2024-01-01"
        zarr.create_array(store, name="v", data=np.arange(2), dimension_names=["time"])
    rows = str(tmp_path / "rows")
    export(None, repository, rows, format="parquet", partition_by=["time"])
    folders = sorted(unquote(path.name) for path in (tmp_path / "rows").iterdir())
    assert folders == ["time=2024-01-01 00:00:00", "time=2024-01-02 01:01:01.5"]


def test_rows_that_cannot_be_read_fail_the_job(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_weather(repository)
    lose_a_chunk(repository, tmp_path / "repo")
    with pytest.raises(JobFailedError, match="object not found"):
        export(None, repository, str(tmp_path / "rows"), format="parquet", variables=["air"])
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "repo"}


def test_a_dry_run_writes_nothing(
    repository: icefloe.Repository, tmp_path: Path, files: Callable[[], set[str]]
) -> None:
    write_weather(repository)
    before = files()
    plan = export(None, repository, str(tmp_path / "out"), dry_run=True)
    assert "/air byte for byte" in str(plan)
    assert files() == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ({"format": "csv"}, InvalidInputError, "format must be one of zarr, parquet"),
        ({"group": "none"}, NodeNotFoundError, "no group or array at /none"),
        ({"variables": ["depth"]}, InvalidInputError, "has no array 'depth'; available: air"),
        ({"chunks": {"time": 0}}, InvalidInputError, "must be positive"),
        ({"chunks": {"depth": 2}}, InvalidInputError, "no array in / has the dimension 'depth'"),
        ({"partition_by": ["time"]}, InvalidInputError, "partition_by apply"),
        ({"task_bytes": 0}, InvalidInputError, "task_bytes, the memory limit"),
        ({"sel": {"time": 1}}, InvalidInputError, "apply to Parquet only"),
        ({"format": "parquet", "chunks": (1,)}, InvalidInputError, "do not apply to Parquet"),
        ({"format": "parquet", "partition_by": ["no"]}, InvalidInputError, "unknown column 'no'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    repository: icefloe.Repository,
    tmp_path: Path,
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    write_weather(repository)
    with pytest.raises(error, match=says):
        export(None, repository, str(tmp_path / "out"), **arguments)
    assert not (tmp_path / "out").exists()


def test_a_place_with_something_in_it_is_refused(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write_weather(repository)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("data")
    with pytest.raises(AlreadyExistsError, match="precious"):
        export(None, repository, str(tmp_path / "out"))
