"""`icefloe.spark.read`: a repository as a DataFrame."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.engine.progress import is_connect
from icefloe.spark.option_parsing import encode_options, invalid_input
from icefloe.spark.reading.read_options import PLACE_OPTIONS, TABLE_OPTIONS, ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.repository_options import open_from_options, require_visible
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.spark.spark_versions import to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.reading.read_options import Layout, Table


def read(
    spark: SparkSession,
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
        A repository, whose credentials travel out of sight; a session, whose snapshot is read; or a
        path or URL, opened here, or by the server of Spark Connect, with its own credentials.
    variables
        All variables by default, if they fit into one table.
    sel, isel
        Selections along dimensions, by label or by position: a value, a list, a slice, or
        ``{"nearest": value}``. Chunks outside of them are not read.
    group
        The root by default.
    layout
        ``rows``, a row per cell; or ``chunks``, a row per chunk.
    table
        A metadata table: ``snapshots``, ``history``, ``refs``, ``nodes``, ``manifests``,
        ``chunks``, ``files``, ``changes`` or ``ops_log``.
    branch, tag, snapshot, as_of
        Snapshot to read, resolved now; the tip of ``main`` by default.
    options
        Other options of ``spark.read.format("icefloe")``, such as ``target_bytes`` and
        ``nan_as_null``; ``from_`` and ``to`` for ``changes``.

    Raises
    ------
    InvalidInputError, NotFoundError
        If something does not exist or does not fit. With a path or URL on Spark Connect, the server
        raises an error of its own with the same message.
    """
    names = variables if isinstance(variables, str) or variables is None else list(variables)
    given = encode_options(
        variables=names,
        sel=None if sel is None else dict(sel),
        isel=None if isel is None else dict(isel),
        group=group,
        layout=layout,
        table=table,
        branch=branch,
        tag=tag,
        snapshot=snapshot,
        as_of=as_of.isoformat() if isinstance(as_of, datetime) else as_of,
        **{name.rstrip("_"): value for name, value in options.items()},
    )
    if isinstance(repo, Session):
        given, repo = _pin_session(repo, given)
    if not isinstance(repo, Repository):
        path = os.fspath(repo)
        place = ReadOptions.parse({**given, "path": path}).place
        if is_connect(spark):  # only the server may be able to see the location
            return spark.read.format("icefloe").options(**given).load(path)
        repo = open_from_options(place)
        given = {name: value for name, value in given.items() if name not in place}
    return _read_repository(spark, repo, given)


def _pin_session(session: Session, given: dict[str, str]) -> tuple[dict[str, str], Repository]:
    if session.has_uncommitted_changes:
        raise invalid_input(
            "this session has changes that Spark cannot see: commit them, then read"
        )
    for name in ("branch", "tag", "snapshot", "as_of"):
        if name in given:
            raise invalid_input(
                f"a session reads one snapshot: leave {name!r} out, or pass a repository"
            )
    if "table" not in given or "snapshot" in TABLE_OPTIONS[given["table"]]:
        given = {**given, "snapshot": session.snapshot_id}
    connection = session.connection
    return given, Repository.open(connection.storage, connection.config, connection.credentials)


def _read_repository(
    spark: SparkSession, repository: Repository, given: dict[str, str]
) -> DataFrame:
    """Read with a function that closes over the plan, and so the repository.

    Faster than the data source, whose batches Spark converts to rows and projects once more.
    Planned here, so that errors are raised by this library, without the traceback of another
    process, and every action reads the same snapshot.
    """
    for name in PLACE_OPTIONS:
        if name in given:
            raise invalid_input(f"an open repository was passed: leave {name!r} out")
    options = ReadOptions.parse(given)
    require_visible(repository)
    plan = plan_read(SnapshotSource.resolve(repository, options), options)
    num_partitions = len(plan.partitions())

    def icefloe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partitions = plan.partitions()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from plan.read(partitions[number])

    numbers = spark.range(0, num_partitions, 1, max(num_partitions, 1))
    return numbers.mapInArrow(icefloe, to_spark_schema(plan.schema))
