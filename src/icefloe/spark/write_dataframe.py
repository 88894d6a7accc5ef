"""`icefloe.spark.write`: write a DataFrame to a group in one commit."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final, Literal

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.spark.engine.packing import enable_packing
from icefloe.spark.engine.tasks import get_parallelism
from icefloe.spark.option_parsing import encode_options, input_error
from icefloe.spark.reading.repository_options import open_from_options, require_shared_storage
from icefloe.spark.spark_versions import to_arrow_schema
from icefloe.spark.writing.write_grid import BLOCK_COLUMN
from icefloe.spark.writing.write_options import WriteOptions
from icefloe.spark.writing.write_retries import RowSummary, write_with_retries

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from icefloe.spark.writing.write_job import WriteJob, Written, WrittenBlocks
    from icefloe.spark.writing.write_plan import WritePlan

_WAVES: Final = 3
"""Tasks per core, if there are enough blocks."""


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
    """Write rows to the arrays of a group in one commit.

    The first pass collects labels; the second shuffles rows so that one task writes each chunk.
    ``df`` is computed twice: cache it if that is expensive. Nothing is visible before the commit,
    and nothing is committed if this raises. If another writer appends to the group meanwhile, the
    rows are written again, after its rows.

    Parameters
    ----------
    df
        One column of labels per dimension and one column per variable. Nulls are missing values.
    repo
        A repository, whose credentials are sent to tasks and never displayed; or a path or URL.
    group
        Path of the group; the root by default.
    mode
        ``append`` adds labels along ``append_dim``, or creates the group if it does not exist.
        ``overwrite`` replaces ``region``, or all arrays of the group without a region.
    dims
        Columns that are dimensions, in order, for a new group. Its labels are the distinct values
        of these columns, sorted.
    chunks
        Chunk lengths by dimension, for a new group; -1 means one chunk along the dimension.
    append_dim
        Dimension along which rows are appended.
    region
        Region to overwrite: label selections by dimension, such as ``{"time": slice("2020-01",
        "2020-02")}``. Its cells without a row become missing; rows outside it are an error.
    leave_missing
        Variables along ``append_dim`` without a column, extended with missing values. Other
        variables need a column: one with fewer dimensions than the table has equal values for
        equal labels, one with an additional dimension, such as bounds, has arrays.
    branch
        Branch to commit to; ``main`` by default.
    transaction_id, transaction_version
        Identity of the commit, which makes the call idempotent. In ``foreachBatch``, use an id of
        the stream and the batch id.
    message
        Commit message.

    Raises
    ------
    InvalidInputError
        If the columns do not match the group; if rows are outside the region; if cells are
        duplicate, or missing from a variable without a fill value; if labels already exist or are
        out of order, possibly because of a concurrent append.
    RebaseFailedError
        If a concurrent commit changed the overwritten arrays, or every attempt to append had a
        conflict.
    """
    if mode not in {"append", "overwrite"}:
        raise input_error(f"expected mode 'append' or 'overwrite', got {mode!r}")
    if not isinstance(repo, Repository):
        repo = open_from_options({"path": str(repo)})
    require_shared_storage(repo)
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
    return write_with_retries(
        enable_packing(repo), options, _DataFrameRows(df), overwrite=mode == "overwrite"
    )


class _DataFrameRows:
    """`Rows` of a DataFrame."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self.schema = to_arrow_schema(df.schema)

    def summarize(self, plan: WritePlan) -> RowSummary:
        """Collect labels, the number of rows, and whether any value is null, in one pass."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual alias

        if not plan.growing_dims:
            return RowSummary({}, 0, has_nulls=True)
        aggregates = [
            *(F.collect_set(F.col(_quote(name))).alias(f"labels_{number}")
              for number, name in enumerate(plan.growing_dims)),
            *(F.count(F.col(_quote(name))).alias(f"count_{number}")
              for number, name in enumerate(plan.columns)),
            F.count(F.lit(1)).alias("rows"),
        ]  # fmt: skip
        summary = self._df.agg(*aggregates).toArrow()
        rows = summary["rows"][0].as_py()
        counts = {
            name: summary[f"count_{number}"][0].as_py() for number, name in enumerate(plan.columns)
        }
        for name in plan.dims:
            if counts[name] < rows:
                raise input_error(
                    f"dimension column {name!r} contains {rows - counts[name]} nulls: drop those "
                    f"rows with df.dropna(subset={[name]})"
                )
        labels = {
            name: summary[f"labels_{number}"].combine_chunks().values.cast(plan.columns[name])
            for number, name in enumerate(plan.growing_dims)
        }
        return RowSummary(labels, rows, any(counts[name] < rows for name in plan.variables))

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """Collect the distinct combinations of values of some columns."""
        return self._df.select(*map(_quote, names)).distinct().toArrow()

    def write(self, job: WriteJob, plan: WritePlan) -> list[WrittenBlocks]:
        """Shuffle rows by block and write them."""
        from pyspark.sql.types import LongType, StructType  # noqa: PLC0415 - an extra

        frame = self._df.select(*map(_quote, plan.columns))
        schema = StructType([*frame.schema.fields]).add(BLOCK_COLUMN, LongType())
        blocks = frame.mapInArrow(job.route, schema)
        tasks = max(1, min(job.grid.num_blocks, get_parallelism(self._df.sparkSession) * _WAVES))
        sorted_blocks = blocks.repartition(tasks, BLOCK_COLUMN).sortWithinPartitions(BLOCK_COLUMN)
        results = sorted_blocks.mapInArrow(
            _make_writer(job), "blocks binary, error string"
        ).toArrow()
        errors = [error for error in results["error"].to_pylist() if error is not None]
        if errors:
            more = f" (and {len(errors) - 1} more tasks failed)" if len(errors) > 1 else ""
            raise input_error(f"{errors[0]}{more}; nothing was committed")
        return [pickle.loads(blocks) for blocks in results["blocks"].to_pylist()]  # noqa: S301 - ours


def _make_writer(job: WriteJob) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def icefloe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        blocks = error = None
        try:
            blocks = pickle.dumps(job.write_routed(batches))
        except InvalidInputError as invalid:
            # Returned, not raised: Spark would retry the task, which would fail again.
            error = str(invalid)
        yield pa.RecordBatch.from_arrays(
            [pa.array([blocks], pa.binary()), pa.array([error], pa.string())],
            names=["blocks", "error"],
        )

    return icefloe


def _as_list(names: Sequence[str] | str | None) -> list[str] | str | None:
    """Return names as a list; keep a string, which the option parser splits at commas."""
    return names if names is None or isinstance(names, str) else list(names)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
