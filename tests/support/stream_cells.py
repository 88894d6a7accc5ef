"""Rows of a small group, and what became of them; Spark is not needed."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xarray as xr

from icefloe.spark.engine.packing import enable_packing
from icefloe.spark.option_parsing import encode_options
from icefloe.spark.writing.staged_commit import commit_staged_rows
from icefloe.spark.writing.staged_rows import stage_rows
from icefloe.spark.writing.write_job import WriteJob
from icefloe.spark.writing.write_options import WriteOptions
from icefloe.spark.writing.write_planning import parse_labels, plan_write, prepare_write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.repository import Repository
    from icefloe.session.exactly_once import JobId
    from icefloe.spark.writing.write_job import Written, WrittenBlocks

LATS = (10.0, 20.0, 30.0)
SCHEMA = pa.schema(
    [("time", pa.timestamp("us")), ("lat", pa.float64()), ("v", pa.float32()), ("n", pa.int32())]
)
DDL = "time timestamp_ntz, lat double, v float, n int"
NEW: dict[str, Any] = {"dims": ["time", "lat"], "chunks": {"time": 2, "lat": 2}}


def day(number: int) -> datetime:
    return datetime(2020, 1, number)  # noqa: DTZ001 - as CF times are


def tuples(days: Iterable[int], lats: Iterable[float] = LATS) -> list[tuple[Any, ...]]:
    """Make a row for each day and latitude; the values tell which."""
    lats = list(lats)
    return [(day(number), lat, number * 100 + lat, number) for number in days for lat in lats]


def batch(days: Iterable[int], lats: Iterable[float] = LATS) -> pa.RecordBatch:
    columns = list(zip(*tuples(days, lats), strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def options(**given: Any) -> WriteOptions:
    return WriteOptions.parse(encode_options(**given))


def write_rows(
    repository: Repository,
    *batches: pa.RecordBatch,
    overwrite: bool = False,
    job: JobId | None = None,
    base: str | None = None,
    **given: Any,
) -> Written:
    """Write rows as tasks that do not know the labels do: staged, then committed."""
    repository = enable_packing(repository)
    session = repository.readonly_session("main")
    asides = [stage_rows(session.connection, [batch]) for batch in batches]
    schema = batches[0].schema if batches else SCHEMA
    return commit_staged_rows(
        repository,
        options(**given),
        schema,
        asides,
        overwrite=overwrite,
        job=job,
        base=base,
    )


def start(
    repository: Repository, *, overwrite: bool = False, schema: pa.Schema = SCHEMA, **given: Any
) -> WriteJob:
    """Begin a write whose labels are known, as a driver does."""
    repository = enable_packing(repository)
    asked = options(**given)
    session = repository.writable_session("main")
    plan = plan_write(session, asked, schema, overwrite=overwrite)
    grid = prepare_write(session, asked, plan, parse_labels(plan, asked.coords))
    return WriteJob.start(repository, session, asked, plan, grid)


def found(repository: Repository, group: str | None = None) -> xr.Dataset:
    """Read the tip with xarray."""
    session = repository.readonly_session("main")
    dataset: xr.Dataset = xr.open_zarr(session.store, group=group, consolidated=False).load()
    return dataset


def chunk_ids(part: WrittenBlocks) -> set[bytes]:
    """Return the names of the files that a task wrote."""
    columns = [changes.to_columns() for changes in part.changes.chunks.values()]
    return {chunk_id.tobytes() for part in columns for chunk_id in part.payloads.chunk_id}


def num_commits(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main"))) - 1


def expected(days: Iterable[int], lats: Iterable[float] = LATS) -> xr.Dataset:
    frame = pa.Table.from_batches([batch(days, lats)]).to_pandas()
    frame["time"] = frame["time"].astype("M8[ns]")  # as xarray decodes CF times
    return xr.Dataset.from_dataframe(frame.set_index(["time", "lat"]))
