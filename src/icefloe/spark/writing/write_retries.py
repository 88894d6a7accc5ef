"""Writing rows with retries from the tip of the branch. Does not import PySpark.

If another writer commits first, an append is planned and written again, after the rows of that
commit. An overwrite fails, because it would replace data that its author has not read.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.spark.option_parsing import input_error
from icefloe.spark.writing.write_job import WriteJob, Written, WrittenBlocks, find_written
from icefloe.spark.writing.write_planning import plan_write, prepare_write
from icefloe.storage.backoff import compute_backoff_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icefloe.repository import Repository
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class RowSummary:
    """Result of a first pass over rows; ``labels`` are those of the plan's growing dimensions."""

    labels: Mapping[str, pa.Array]
    rows: int
    has_nulls: bool


class Rows(Protocol):
    """Rows that can be computed repeatedly."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""

    def summarize(self, plan: WritePlan) -> RowSummary:
        """Collect the labels of the growing dimensions, and count rows."""

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """Return some columns, in any order, preferably without duplicates."""

    def write(self, job: WriteJob, plan: WritePlan) -> list[WrittenBlocks]:
        """Write the rows, each block in one task."""


def write_with_retries(
    repository: Repository, options: WriteOptions, rows: Rows, *, overwrite: bool
) -> Written:
    """Write rows and commit them once.

    Raises `InvalidInputError` if the rows do not match the group, possibly after commits of other
    writers; `RebaseFailedError` if another commit changed the overwritten arrays, or every attempt
    to append had a conflict.
    """
    summaries: dict[Any, RowSummary] = {}
    conflict: RebaseFailedError | None = None
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(compute_backoff_s(attempt, 0.05, 5.0))
        try:
            return _try_write(repository, options, rows, summaries, overwrite=overwrite)
        except RebaseFailedError as error:
            if overwrite or attempt + 1 == _MAX_ATTEMPTS:
                raise explain_conflict(error) from error
            _log.info("conflict on branch %s: write attempt %d", options.branch, attempt + 2)
            conflict = error
        except InvalidInputError as error:
            if conflict is None:
                raise
            raise input_error(
                f"another writer committed to branch {options.branch!r} while these rows were "
                f"written, and they cannot be written after it: {error}; nothing was committed"
            ) from conflict
    raise AssertionError("the last attempt raises or returns")


def explain_conflict(error: RebaseFailedError) -> RebaseFailedError:
    """Reword the error of a conflict for users of DataFrames, who have no session."""
    return RebaseFailedError(
        f"commit {error.snapshot} changed the same arrays while these rows were written; nothing "
        "was committed. Check the current values, and write again",
        snapshot=error.snapshot,
        conflicts=error.conflicts,
    )


def _try_write(
    repository: Repository,
    options: WriteOptions,
    rows: Rows,
    summaries: dict[Any, RowSummary],
    *,
    overwrite: bool,
) -> Written:
    # Open the tip before the search: a commit of this job after the search is then a conflict.
    session = repository.writable_session(options.branch)
    if written := find_written(repository, options.branch, options.job):
        return written
    plan = plan_write(session, options, rows.schema, overwrite=overwrite)
    key = (plan.growing_dims, *plan.columns.items())
    if key not in summaries:
        summaries[key] = rows.summarize(plan)
    summary = summaries[key]
    if plan.growing_dims and not summary.rows:
        return Written(None, is_new=False)
    has_gaps = summary.has_nulls or summary.rows < prod(map(len, summary.labels.values()))
    grid = prepare_write(
        session, options, plan, summary.labels, has_gaps=has_gaps, fetch_distinct_rows=rows.distinct
    )
    job = WriteJob.start(repository, session, options, plan, grid)
    return job.commit(rows.write(job, plan), options.job)
