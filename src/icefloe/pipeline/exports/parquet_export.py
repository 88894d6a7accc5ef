"""Exports a snapshot as Parquet files, with Spark or in-process to a local directory.

Spark's committer moves files into place when all of them are complete: a failed export leaves no
files, and a killed driver leaves only a ``_temporary`` directory, which readers ignore. Without
Spark, files are written to a temporary directory that is renamed at the end.
"""

from __future__ import annotations

import shutil
import time
import uuid
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from icefloe.errors import AlreadyExistsError, ErrorKind, IcefloeError
from icefloe.pipeline.argument_errors import setting_error
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report
from icefloe.spark.engine.deferred_session import DeferredSession, resolve_session
from icefloe.spark.engine.progress import Progress, run_with_progress
from icefloe.spark.engine.worker_errors import find_setup_problem, get_cause
from icefloe.spark.option_parsing import suggest_name
from icefloe.storage.urls import redact_url, require_no_secrets, split_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icefloe.pipeline.options import RunOptions
    from icefloe.session import Session
    from icefloe.spark.reading.rows import RowsPlan

_MAX_DIRECTORIES: Final = 10_000
_REMEDY: Final = "fix the cause and run the job again"


def export_rows(
    spark: SparkSession | DeferredSession | None,
    session: Session,
    target: Any,
    *,
    select: Mapping[str, Any],
    partition_by: Sequence[str],
    options: RunOptions,
) -> Plan | Report:
    """Write a group as rows to a local directory, or with Spark to any URL that Spark can write to.

    ``select`` has arguments of `icefloe.spark.read`. Each value of the ``partition_by`` columns
    becomes a directory.
    """
    if not isinstance(target, str):
        raise setting_error("the target must be a directory, or a URL that Spark can write to")
    if target.startswith("file:"):
        # Spark does not percent-decode the path of a file URL.
        target = f"file:///{unquote(target.removeprefix('file:')).lstrip('/')}"
    if "://" in target and split_url(target).password is not None:
        require_no_secrets(split_url(target), "set the credentials in the Spark configuration")
    from icefloe.spark.option_parsing import encode_options  # noqa: PLC0415 - an extra
    from icefloe.spark.reading.read_options import ReadOptions  # noqa: PLC0415 - an extra
    from icefloe.spark.reading.rows import plan_rows  # noqa: PLC0415 - an extra

    started = time.monotonic()
    plan = plan_rows(session, ReadOptions.parse(encode_options(**select)))
    columns = [column.name for column in plan.columns]
    for name in partition_by:
        if name not in columns:
            raise setting_error(
                f"partition_by: unknown column {name!r}; {suggest_name(name, columns)}"
            )
    if len(set(partition_by)) == len(columns):
        raise setting_error("partition_by names all columns: keep at least one for the files")
    if spark is None:
        _require_free_directory(target)
    else:
        spark = resolve_session(spark)
        _require_free_target(spark, target)
    if options.dry_run:
        return _plan_export(plan, target, partition_by)
    if spark is None:
        files, size_bytes = _write_locally(
            session, plan, _require_local(target), partition_by, options.progress
        )
    else:
        files, size_bytes = _write_with_spark(
            spark, session, target, select, partition_by, progress=options.progress
        )
    return Report(
        "export",
        session.snapshot_id,
        is_new=True,
        files=files,
        rows=plan.num_rows,
        bytes_written=size_bytes,
        seconds=time.monotonic() - started,
    )


def _write_with_spark(
    spark: SparkSession,
    session: Session,
    target: str,
    select: Mapping[str, Any],
    partition_by: Sequence[str],
    *,
    progress: Progress | None,
) -> tuple[int, int]:
    """Write with Spark; return the number of files and their bytes."""
    from icefloe.spark.read_dataframe import read  # noqa: PLC0415 - an extra

    rows = read(
        spark, session, **{name: value for name, value in select.items() if value is not None}
    )
    writer = rows.write.mode("error").partitionBy(*partition_by)
    _remove_if_empty(target)
    try:
        run_with_progress(spark, lambda: writer.parquet(target), progress)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        if _get_error_condition(error) == "PATH_ALREADY_EXISTS":
            raise _already_exists_error(target) from error
        failure = Failure(target, find_setup_problem(error) or get_cause(error))
        raise JobFailedError("export", [failure], remedy=_REMEDY) from error
    return _count_files(spark, target)


def _write_locally(
    session: Session,
    plan: RowsPlan,
    target: Path,
    partition_by: Sequence[str],
    progress: Progress | None,
) -> tuple[int, int]:
    """Write in this process; return the number of files and their bytes."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import dataset  # noqa: PLC0415 - an extra

    from icefloe.spark.reading.rows import read_rows  # noqa: PLC0415 - an extra

    def read_batches() -> Iterator[pa.RecordBatch]:
        parts = plan.partitions()
        for number, part in enumerate(parts):
            if progress is not None:
                progress(number, len(parts))
            for batch in read_rows(session, plan, part):
                yield _format_partition_columns(batch, partition_by)

    empty_batch = pa.RecordBatch.from_pylist([], schema=plan.schema)
    schema = _format_partition_columns(empty_batch, partition_by).schema
    folders = pa.schema([schema.field(name) for name in partition_by])
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        dataset.write_dataset(
            read_batches(),
            temporary,
            schema=schema,
            format="parquet",
            partitioning=dataset.partitioning(folders, flavor="hive") if partition_by else None,
            max_partitions=_MAX_DIRECTORIES,
        )
        written = [path.stat().st_size for path in temporary.rglob("*.parquet")]
        _remove_if_empty(str(target))
        temporary.rename(target)
    except IcefloeError as error:
        failure = Failure(str(target), error.message)
        raise JobFailedError("export", [failure], remedy=_REMEDY) from error
    except pa.ArrowInvalid as error:
        if "partitions" not in str(error):
            raise
        raise setting_error(f"{target}: {error}: partition by columns with fewer values") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return len(written), sum(written)


def _format_partition_columns(batch: pa.RecordBatch, partition_by: Sequence[str]) -> pa.RecordBatch:
    """Format timestamps of partition columns as Spark does, so that Spark infers their type."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import compute  # noqa: PLC0415 - an extra

    for name in partition_by:
        column = batch[name]
        if pa.types.is_timestamp(column.type):
            long_text = compute.strftime(column, "%Y-%m-%d %H:%M:%S")
            short_text = compute.utf8_rtrim(compute.utf8_rtrim(long_text, "0"), ".")
            has_fraction = compute.match_substring(long_text, ".")
            index = batch.schema.get_field_index(name)
            text = compute.if_else(has_fraction, short_text, long_text)
            batch = batch.set_column(index, pa.field(name, pa.string()), text)
    return batch


def _require_free_directory(target: str) -> None:
    local = _require_local(target)
    if local.exists() and not (local.is_dir() and not any(local.iterdir())):
        raise _already_exists_error(target)


def _require_local(target: str) -> Path:
    local = _parse_local_path(target)
    if local is None:
        raise setting_error(
            f"{redact_url(target)}: with spark=None, rows are exported to a local directory: pass "
            "one, or a Spark session"
        )
    return local.absolute()


def _plan_export(plan: RowsPlan, target: str, partition_by: Sequence[str]) -> Plan:
    columns = ", ".join(column.name for column in plan.columns)
    directories = f", in a directory for each {' and '.join(partition_by)}" if partition_by else ""
    size_bytes = int(plan.num_rows * plan.row_bytes)
    block = prod(int(max(axis.offsets[1:] - axis.offsets[:-1], default=0)) for axis in plan.axes)
    return Plan(
        "export",
        target,
        (f"{plan.num_rows:,} rows of {columns} become Parquet files{directories}",),
        len(plan.partitions()),
        bytes_read=size_bytes,
        bytes_written=size_bytes,
        task_bytes=int(block * plan.row_bytes),
    )


def _require_free_target(spark: SparkSession, target: str) -> None:
    """Raise if the target exists, checked by Spark: this process may have no access."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    local = _parse_local_path(target)
    if local is not None and local.is_dir() and not any(local.iterdir()):
        return
    try:
        _ = spark.read.format("binaryFile").load(target).schema
    except AnalysisException as error:
        if _get_error_condition(error) != "PATH_NOT_FOUND":
            raise
        return
    raise _already_exists_error(target)


def _remove_if_empty(target: str) -> None:
    """Remove an empty directory, which Spark would reject as an existing target."""
    local = _parse_local_path(target)
    if local is not None:
        with suppress(OSError):  # missing, or not empty, which Spark rejects
            local.rmdir()


def _parse_local_path(target: str) -> Path | None:
    if target.startswith("file:"):
        return Path("/" + target.removeprefix("file:").lstrip("/"))
    return None if ":" in target else Path(target)


def _count_files(spark: SparkSession, target: str) -> tuple[int, int]:
    """Return the number of files and their bytes."""
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(target)
    totals = files.selectExpr("count(*)", "coalesce(sum(length), 0)").collect()[0]
    return int(totals[0]), int(totals[1])


def _get_error_condition(error: Exception) -> str | None:
    get_condition = getattr(error, "getCondition", None)
    return None if get_condition is None else get_condition()


def _already_exists_error(target: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{target} already exists, perhaps from an interrupted export: choose another target, or "
        "delete it",
        kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
    )
