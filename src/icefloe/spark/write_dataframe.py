"""Writing from Python: a DataFrame into a group of an open repository, in one commit."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final, Literal

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.engine.progress import is_connect
from icefloe.spark.option_parsing import encode_options, invalid_input
from icefloe.spark.reading.repository_options import open_from_options
from icefloe.spark.spark_versions import to_arrow_schema
from icefloe.spark.writing.sink import packing
from icefloe.spark.writing.write_grid import BLOCK_COLUMN
from icefloe.spark.writing.write_options import WriteOptions
from icefloe.spark.writing.write_retries import RowSummary, write_with_retries

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from icefloe.spark.writing.sink import Part, WriteJob, Written
    from icefloe.spark.writing.write_plan import WritePlan

_WAVES: Final = 3
"""Tasks per core, where there are blocks enough."""


def write(
    df: DataFrame,
    repo: Repository | str | os.PathLike[str],
    *,
    group: str | None = None,
    mode: Literal["append", "overwrite"] = "append",
    dims: Sequence[str] | str | None = None,
    chunks: Mapping[str, int] | None = None,
    append_dim: str | None = None,
    region: Mapping[str, Any] | None = None,
    leave_missing: Sequence[str] | str | None = None,
    branch: str | None = None,
    transaction_id: str | None = None,
    transaction_version: int | None = None,
    message: str | None = None,
) -> Written:
    """Write rows into the arrays of a group, and commit once.

    Looks at the rows once to learn their labels, brings those of a chunk together, and lets one
    task write each. So ``df`` is computed twice: cache it if that is dear. Nobody sees anything
    before the commit, and if this raises there is none. Where others append to the group meanwhile,
    the rows are written once more, behind theirs.

    Parameters
    ----------
    df
        A column for each dimension, with labels, and one for each variable. Null is missing.
    repo
        A repository, which brings its credentials along out of sight; or a path or URL.
    group
        The group; the root if not given.
    mode
        ``append``: add labels along ``append_dim``, or create the group if it is not there.
        ``overwrite``: replace what is in ``region``, or without one all arrays of the group.
    dims
        Which columns are dimensions, in this order, for a new group. Its labels are the distinct
        values of these columns, sorted.
    chunks
        Chunk lengths by dimension, for a new group; -1 means all of it.
    append_dim
        The dimension that rows are appended along.
    region
        What is overwritten: label selections by dimension, such as ``{"time": slice("2020-01",
        "2020-02")}``. Cells in it that no row tells of become missing; rows elsewhere are refused.
    leave_missing
        Variables along ``append_dim`` that have no column: what is appended to them is missing.
        Those with fewer dimensions than the table have a column that says the same wherever their
        labels are the same; those with another one, such as bounds, have a column of arrays.
    branch
        Gets the commit; ``main`` if not given.
    transaction_id, transaction_version
        The commit of this id, or a later version of it, is made once, however often this is
        called. In ``foreachBatch``: an id of the stream, and the batch id.
    message
        What history says.

    Raises
    ------
    InvalidInputError
        If the columns do not fit the group; if rows are outside of what is written; if cells come
        twice, or are missing where that cannot be said; if labels are there already or out of
        order, also because others appended them meanwhile.
    RebaseFailedError
        If others changed meanwhile what is overwritten, or were faster time after time.
    """
    if mode not in {"append", "overwrite"}:
        raise invalid_input(f"mode is 'append' or 'overwrite', not {mode!r}")
    if not isinstance(repo, Repository):
        repo = open_from_options({"path": str(repo)})
    if repo.storage.url.startswith("memory:"):
        raise invalid_input(
            "a repository in memory cannot be seen by Spark's processes: put it on disk"
        )
    options = WriteOptions.parse(
        encode_options(
            group=group,
            dims=_as_list(dims),
            chunks=None if chunks is None else dict(chunks),
            append_dim=append_dim,
            replace_where=None if region is None else dict(region),
            leave_missing=_as_list(leave_missing),
            branch=branch,
            transaction_id=transaction_id,
            transaction_version=transaction_version,
            message=message,
        )
    )
    return write_with_retries(packing(repo), options, _Frame(df), overwrite=mode == "overwrite")


class _Frame:
    """The rows of a DataFrame."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self.schema = to_arrow_schema(df.schema)

    def summarize(self, intent: WritePlan) -> RowSummary:
        """Learn labels, the number of rows, and whether any value is null, in one pass."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it

        if not intent.unknown:
            return RowSummary({}, 0, has_nulls=True)
        wanted = [
            *(F.collect_set(F.col(_quote(name))).alias(f"labels_{place}")
              for place, name in enumerate(intent.unknown)),
            *(F.count(F.col(_quote(name))).alias(f"count_{place}")
              for place, name in enumerate(intent.columns)),
            F.count(F.lit(1)).alias("rows"),
        ]  # fmt: skip
        found = self._df.agg(*wanted).toArrow()
        rows = found["rows"][0].as_py()
        counts = {
            name: found[f"count_{place}"][0].as_py() for place, name in enumerate(intent.columns)
        }
        for name in intent.dims:
            if counts[name] < rows:
                raise invalid_input(
                    f"column {name!r} has {rows - counts[name]} nulls, which are no place along a "
                    f"dimension: drop those rows with df.dropna(subset={[name]})"
                )
        labels = {
            name: found[f"labels_{place}"].combine_chunks().values.cast(intent.columns[name])
            for place, name in enumerate(intent.unknown)
        }
        return RowSummary(labels, rows, any(counts[name] < rows for name in intent.variables))

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """Collect what some columns have, each once."""
        return self._df.select(*map(_quote, names)).distinct().toArrow()

    def write(self, job: WriteJob, intent: WritePlan) -> list[Part]:
        """Let Spark bring rows together by block, and write them."""
        from pyspark.sql.types import LongType, StructType  # noqa: PLC0415 - an extra

        chosen = self._df.select(*map(_quote, intent.columns))
        routed = StructType([*chosen.schema.fields]).add(BLOCK_COLUMN, LongType())
        blocks = chosen.mapInArrow(job.route, routed)
        tasks = max(1, min(job.grid.num_blocks, _cores(self._df) * _WAVES))
        sorted_blocks = blocks.repartition(tasks, BLOCK_COLUMN).sortWithinPartitions(BLOCK_COLUMN)
        answers = sorted_blocks.mapInArrow(_make_writer(job), "part binary, error string").toArrow()
        errors = [error for error in answers["error"].to_pylist() if error is not None]
        if errors:
            more = f" (and {len(errors) - 1} more tasks failed)" if len(errors) > 1 else ""
            raise invalid_input(f"{errors[0]}{more}; nothing was committed")
        return [pickle.loads(part) for part in answers["part"].to_pylist()]  # noqa: S301 - ours


def _make_writer(
    job: WriteJob,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def icefloe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        part = error = None
        try:
            part = pickle.dumps(job.write_routed(batches))
        except InvalidInputError as problem:
            # An answer: rows that do not fit do not fit the fourth time either.
            error = str(problem)
        yield pa.RecordBatch.from_arrays(
            [pa.array([part], pa.binary()), pa.array([error], pa.string())],
            names=["part", "error"],
        )

    return icefloe


def _as_list(names: Sequence[str] | str | None) -> list[str] | str | None:
    """Leave text alone: the option is read with commas, and letters are no names."""
    return names if names is None or isinstance(names, str) else list(names)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _cores(df: DataFrame) -> int:
    spark = df.sparkSession
    if is_connect(spark):
        return int(spark.conf.get("spark.default.parallelism", "8") or 8)
    return int(spark.sparkContext.defaultParallelism)
