"""Rows of a snapshot as Parquet files, written by Spark.

Spark's committer moves files to where readers look for them after all of them are whole. An export
that fails leaves none; one whose driver was killed leaves what readers pass over, in a folder
``_temporary``.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.pipeline.report import Failure, JobFailedError, Plan, Report
from icefloe.spark.progress import run_watched
from icefloe.storage.urls import require_no_secrets, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.session import Session
    from icefloe.spark.progress import Progress
    from icefloe.spark.rows import RowsPlan

_RAISED: Final = re.compile(r"(?!SQLSTATE)[A-Za-z_][\w.]*: ")
"""How the last line of a traceback begins."""

_REMEDY: Final = "see to the cause and start the job again"


def export_rows(
    spark: SparkSession | None,
    session: Session,
    target: Any,
    *,
    select: Mapping[str, Any],
    partition_by: Sequence[str],
    dry_run: bool,
    progress: Progress | None,
) -> Plan | Report:
    """Write a group as rows to a directory, or a URL that Spark can write to.

    Parameters
    ----------
    spark, session
        Who works, and the snapshot.
    select
        What to read: arguments of `icefloe.spark.read`.
    partition_by
        The columns whose values become folders.
    """
    if not isinstance(target, str):
        raise _bad("Parquet files go to a directory or a URL that Spark can write to")
    if "://" in target and split_url(target).password is not None:
        require_no_secrets(split_url(target), "give credentials to Spark, by its configuration")
    if spark is None:
        raise _bad("Parquet is written by Spark: pass a session")
    from icefloe.spark.options import ReadOptions, encode_options  # noqa: PLC0415 - an extra
    from icefloe.spark.reading import read  # noqa: PLC0415 - an extra
    from icefloe.spark.rows import plan_rows  # noqa: PLC0415 - an extra

    started = time.monotonic()
    plan = plan_rows(session, ReadOptions.parse(encode_options(**select)))
    columns = [column.name for column in plan.columns]
    for name in partition_by:
        if name not in columns:
            raise _bad(f"there is no column {name!r} to partition by; there are {columns}")
    if len(set(partition_by)) == len(columns):
        raise _bad("if all columns become folders, there is nothing left for the files")
    _require_free(spark, target)
    if dry_run:
        return _planned(plan, target, partition_by)
    rows = read(spark, session, **{name: one for name, one in select.items() if one is not None})
    writer = rows.write.mode("error").partitionBy(*partition_by)
    _remove_if_empty(target)
    try:
        run_watched(spark, lambda: writer.parquet(target), progress)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        if _condition(error) == "PATH_ALREADY_EXISTS":
            raise _taken(target) from error
        raise JobFailedError("export", [Failure(target, _cause(error))], remedy=_REMEDY) from error
    files, size_bytes = _written(spark, target)
    return Report(
        "export",
        session.snapshot_id,
        is_new=True,
        files=files,
        rows=plan.num_rows,
        bytes_written=size_bytes,
        seconds=time.monotonic() - started,
    )


def _planned(plan: RowsPlan, target: str, partition_by: Sequence[str]) -> Plan:
    columns = ", ".join(column.name for column in plan.columns)
    folders = f", in a folder for each {' and '.join(partition_by)}" if partition_by else ""
    size_bytes = int(plan.num_rows * plan.row_bytes)
    block = prod(int(max(axis.offsets[1:] - axis.offsets[:-1], default=0)) for axis in plan.axes)
    return Plan(
        "export",
        target,
        (f"{plan.num_rows:,} rows of {columns} become Parquet files{folders}",),
        len(plan.partitions(None, None)),
        bytes_read=size_bytes,
        bytes_written=size_bytes,
        task_bytes=int(block * plan.row_bytes),
    )


def _require_free(spark: SparkSession, target: str) -> None:
    """Raise where something is; asks Spark, who may see places that this process does not."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    local = _local(target)
    if local is not None and local.is_dir() and not any(local.iterdir()):
        return
    try:
        _ = spark.read.format("binaryFile").load(target).schema
    except AnalysisException as error:
        if _condition(error) != "PATH_NOT_FOUND":
            raise
        return
    raise _taken(target)


def _remove_if_empty(target: str) -> None:
    """Remove what a failed export leaves: Spark takes an empty directory for a taken one."""
    local = _local(target)
    if local is not None:
        with suppress(OSError):  # it is not there, or has something in it, which Spark refuses
            local.rmdir()


def _local(target: str) -> Path | None:
    if target.startswith("file:"):
        return Path("/" + target.removeprefix("file:").lstrip("/"))
    return None if ":" in target else Path(target)


def _written(spark: SparkSession, target: str) -> tuple[int, int]:
    """Count files, and their bytes, by a listing; no file is opened."""
    listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(target)
    found = listed.selectExpr("count(*)", "coalesce(sum(length), 0)").collect()[0]
    return int(found[0]), int(found[1])


def _condition(error: Exception) -> str | None:
    ask = getattr(error, "getCondition", None)
    return None if ask is None else ask()


def _cause(error: Exception) -> str:
    """Say what a worker raised, without the way there."""
    told = str(error).partition("JVM stacktrace")[0].strip().splitlines()
    raised = [line for line in told if _RAISED.match(line)]
    return raised[-1] if raised else told[0] if told else type(error).__name__


def _taken(target: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{target} is there already, perhaps left behind by an export that was interrupted: choose "
        "another place, or delete it",
        kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
    )


def _bad(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.STORAGE_CONFIG)
