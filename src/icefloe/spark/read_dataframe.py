"""`icefloe.spark.read`: read a group or a metadata table as a DataFrame."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.engine.deferred_session import DeferredSession, resolve_session
from icefloe.spark.engine.progress import is_connect
from icefloe.spark.option_parsing import encode_options, input_error
from icefloe.spark.reading.read_options import REPOSITORY_OPTIONS, TABLE_OPTIONS, ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.repository_options import open_from_options, require_shared_storage
from icefloe.spark.reading.snapshot_source import SnapshotSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.reading.read_options import Layout, Table


def read(
    spark: SparkSession | DeferredSession,
    repo: Repository | Session | str | os.PathLike[str],
    *,
    variables: Iterable[str] | str | None = None,
    sel: Mapping[str, Any] | None = None,
    isel: Mapping[str, Any] | None = None,
    group: str | None = None,
    layout: Layout | None = None,
    table: Table | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | str | None = None,
    **options: Any,
) -> DataFrame:
    """Read a group as rows or chunks, or a metadata table.

    Parameters
    ----------
    spark
        A classic session or one of Spark Connect.
    repo
        A repository, whose credentials are sent to tasks and never displayed; a session without
        changes; or a path or URL, opened with the credentials of the environment (on Spark
        Connect, the environment of the server).
    variables
        Variables to read; all by default, which for ``rows`` must fit into one table.
    sel, isel
        Selections along dimensions, by label or by position: a value, a list, a slice, or
        ``{"nearest": value}``. Only chunks that overlap the selection are read.
    group
        Path of the group; the root by default.
    layout
        ``rows`` (default), one row per cell, or ``chunks``, one row per chunk.
    table
        A metadata table: ``snapshots``, ``history``, ``refs``, ``nodes``, ``manifests``,
        ``chunks``, ``files``, ``changes`` or ``ops_log``.
    branch, tag, snapshot, as_of
        Snapshot to read; the tip of ``main`` by default. Resolved by this call; for a path or URL
        on Spark Connect, by each action.
    options
        Other options of ``spark.read.format("icefloe")``, such as ``target_bytes`` and
        ``nan_as_null``; ``from_`` and ``to`` for ``changes``.

    Raises
    ------
    InvalidInputError, NotFoundError
        If an option is invalid, or a node, ref or repository does not exist. With a path or URL on
        Spark Connect, Spark raises its own exception with the same message.
    """
    if not isinstance(variables, str) and variables is not None:
        variables = list(variables)
    settings = encode_options(
        variables=variables,
        sel=None if sel is None else dict(sel),
        isel=None if isel is None else dict(isel),
        group=group,
        layout=layout,
        table=table,
        branch=branch,
        tag=tag,
        snapshot=snapshot,
        as_of=as_of.isoformat() if isinstance(as_of, datetime) else as_of,
        # `from_` stands for the option `from`, which is a keyword of Python.
        **{name.rstrip("_"): value for name, value in options.items()},
    )
    if isinstance(repo, Session):
        settings, repo = _pin_session(repo, settings)
    if not isinstance(repo, Repository):
        path = os.fspath(repo)
        repo_options = ReadOptions.parse({**settings, "path": path}).repository
        spark = resolve_session(spark)
        if is_connect(spark):  # the server opens the path, which the client may not be able to
            return spark.read.format("icefloe").options(**settings).load(path)
        repo = open_from_options(repo_options)
        settings = {name: value for name, value in settings.items() if name not in repo_options}
    return _read_repository(spark, repo, settings)


def _pin_session(session: Session, settings: dict[str, str]) -> tuple[dict[str, str], Repository]:
    """Return the options to read the snapshot of a session, and its repository."""
    if session.has_uncommitted_changes:
        raise input_error(
            "this session has uncommitted changes, which Spark cannot read: commit them, then read"
        )
    for name in ("branch", "tag", "snapshot", "as_of"):
        if name in settings:
            raise input_error(
                f"a session reads its own snapshot: omit {name!r}, or pass a repository"
            )
    if "table" not in settings or "snapshot" in TABLE_OPTIONS[settings["table"]]:
        settings = {**settings, "snapshot": session.snapshot_id}
    connection = session.connection
    return settings, Repository.open(connection.storage, connection.config, connection.credentials)


def _read_repository(
    spark: SparkSession | DeferredSession, repository: Repository, settings: dict[str, str]
) -> DataFrame:
    """Read with `mapInArrow` and a function that closes over the plan and its repository.

    This is faster than the data source, whose batches Spark converts to rows. Planning runs in this
    process, so that errors have no traceback of a worker and all actions read the same snapshot.
    """
    for name in REPOSITORY_OPTIONS:
        if name in settings:
            raise input_error(f"option {name!r} has no effect on an open repository: omit it")
    options = ReadOptions.parse(settings)
    require_shared_storage(repository)
    plan = plan_read(SnapshotSource.resolve(repository, options), options)
    num_partitions = len(plan.partitions())

    # Spark shows the name of this function in plans.
    def icefloe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partitions = plan.partitions()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from plan.read(partitions[number])

    from icefloe.spark.spark_versions import to_spark_schema  # noqa: PLC0415 - imports PySpark

    numbers = resolve_session(spark).range(0, num_partitions, 1, max(num_partitions, 1))
    return numbers.mapInArrow(icefloe, to_spark_schema(plan.schema))
