"""Reading from Python: an open repository, or where one is, as a DataFrame."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.engine.progress import is_connect
from icefloe.spark.reading.read_options import (
    PLACE_OPTIONS,
    ReadOptions,
    encode_options,
    invalid_input,
    table_options,
)
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.snapshot_source import SnapshotSource, open_from_options, repository_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.reading.read_options import Layout, Table


def register(spark: SparkSession) -> None:
    """Make the format ``icefloe`` and the table functions ``icefloe_…`` known to a session.

    Spark finds the format by itself where this package is installed beside it; the functions it
    does not.
    """
    from icefloe.spark.data_source import IcefloeDataSource  # noqa: PLC0415 - imports PySpark
    from icefloe.spark.table_functions import register_table_functions  # noqa: PLC0415

    spark.dataSource.register(IcefloeDataSource)
    register_table_functions(spark)


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
        A repository, which brings its credentials along out of sight; a session, whose snapshot is
        read; or a path or URL, opened here, or by the server of Spark Connect, with the credentials
        of that place.
    variables
        Which variables; all of them where none is named, if they fit into one table.
    sel, isel
        What to read along dimensions, by label or by position: a value, a list, a slice, or
        ``{"nearest": value}``. Chunks without any of it are not read.
    group
        The group; the root if not given.
    layout
        ``rows``, a row for each cell; or ``chunks``, a row for each chunk.
    table
        A metadata table: ``snapshots``, ``history``, ``refs``, ``nodes``, ``manifests``,
        ``chunks``, ``files``, ``changes`` or ``ops_log``.
    branch, tag, snapshot, as_of
        Which snapshot; the tip of ``main`` if nothing is said. It is found now, and stays.
    options
        The others of ``spark.read.format("icefloe")``, such as ``target_bytes`` and
        ``nan_as_null``; ``from_`` and ``to`` for ``changes``.

    Raises
    ------
    InvalidInputError, NotFoundError
        If what is asked for is not there. Of a path or URL the server of Spark Connect alone can
        tell, by an error of its own with the same message.
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
        if is_connect(spark):
            return _read_on_server(spark, os.fspath(repo), given)
        place = ReadOptions.parse({**given, "path": os.fspath(repo)}).place
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
    if "table" not in given or "snapshot" in table_options(given["table"]):
        given = {**given, "snapshot": session.snapshot_id}
    return given, repository_of(session)


def _read_on_server(spark: SparkSession, place: str, given: dict[str, str]) -> DataFrame:
    """Read what only the server of Spark Connect may be able to see."""
    ReadOptions.parse({**given, "path": place})
    return spark.read.format("icefloe").options(**given).load(place)


def _read_repository(
    spark: SparkSession, repository: Repository, given: dict[str, str]
) -> DataFrame:
    """Read with a function that has the plan, and so the repository, inside of it.

    Spark makes rows of the batches of a Python data source and projects them once more, which it
    does not with those of a function. Planned here: what is wrong is an error of this library, not
    one of Spark with the traceback of another process; and no action plans again what others
    changed.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - an extra

    for name in PLACE_OPTIONS:
        if name in given:
            raise invalid_input(f"an open repository was passed: leave {name!r} out")
    options = ReadOptions.parse(given)
    if repository.storage.url.startswith("memory:"):
        raise invalid_input(
            "a repository in memory cannot be seen by Spark's processes: put it on disk"
        )
    plan = plan_read(SnapshotSource.resolve(repository, options), options)
    num_tasks = len(plan.tasks())

    def icefloe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tasks = plan.tasks()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from plan.read(tasks[number])

    numbers = spark.range(0, num_tasks, 1, max(num_tasks, 1))
    return numbers.mapInArrow(icefloe, from_arrow_schema(plan.schema, prefer_timestamp_ntz=True))
