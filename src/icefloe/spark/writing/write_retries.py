"""A write that is retried from the tip of its branch until it commits. Knows nothing of Spark.

If another writer commits first, an append is planned and written again, behind the rows of that
commit: its rows have other positions by then. An overwrite has not seen the other commit, and
fails.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.write_job import WriteJob, Written, WrittenBlocks, find_written
from icefloe.spark.writing.write_planning import plan_write, prepare_write
from icefloe.storage.backoff import backoff_delay_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icefloe.repository import Repository
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan

_log = logging.getLogger(__name__)

_TRIES: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class RowSummary:
    """Result of a first pass over rows; ``labels`` are those of the plan's unknown dimensions."""

    labels: Mapping[str, pa.Array]
    rows: int
    has_nulls: bool


class Rows(Protocol):
    """Rows that can be computed repeatedly."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""

    def summarize(self, plan: WritePlan) -> RowSummary:
        """Return what a plan does not know."""

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """Return some columns, in any order, preferably without duplicates."""

    def write(self, job: WriteJob, plan: WritePlan) -> list[WrittenBlocks]:
        """Write the rows, each block in one task."""


def write_with_retries(
    repository: Repository, options: WriteOptions, rows: Rows, *, overwrite: bool
) -> Written:
    """Write rows and commit them once.

    Raises `InvalidInputError` if the rows do not fit the group, also after commits of other
    writers; `RebaseFailedError` if another commit changed what is overwritten, or others committed
    first in every attempt.
    """
    summaries: dict[Any, RowSummary] = {}
    conflict: RebaseFailedError | None = None
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(backoff_delay_s(attempt, 0.05, 5.0))
        try:
            return _try(repository, options, rows, summaries, overwrite=overwrite)
        except RebaseFailedError as error:
            if overwrite or attempt + 1 == _TRIES:
                raise explain_conflict(error) from error
            _log.info("conflict on branch %s: write attempt %d", options.branch, attempt + 2)
            conflict = error
        except InvalidInputError as error:
            if conflict is None:
                raise
            raise invalid_input(
                f"others committed to branch {options.branch!r} while these rows were written, and "
                f"behind those commits they no longer fit: {error}; nothing was committed"
            ) from conflict
    raise AssertionError("the last attempt raises or returns")


def explain_conflict(error: RebaseFailedError) -> RebaseFailedError:
    """Return the error of a conflict for users who have rows and no session."""
    return RebaseFailedError(
        f"commit {error.snapshot} changed what these rows are written to after the write began; "
        "nothing was committed. Check what is there now, and write again",
        snapshot=error.snapshot,
        conflicts=error.conflicts,
    )


def _try(
    repository: Repository,
    options: WriteOptions,
    rows: Rows,
    summaries: dict[Any, RowSummary],
    *,
    overwrite: bool,
) -> Written:
    # The tip before the search: a later commit of this job is a conflict, and found then.
    session = repository.writable_session(options.branch)
    if found := find_written(repository, options.branch, options.job):
        return found
    plan = plan_write(session, options, rows.schema, overwrite=overwrite)
    key = (plan.unknown, *plan.columns.items())
    if key not in summaries:
        summaries[key] = rows.summarize(plan)
    summary = summaries[key]
    if plan.unknown and not summary.rows:
        return Written(None, is_new=False)
    has_gaps = summary.has_nulls or summary.rows < prod(map(len, summary.labels.values()))
    grid = prepare_write(
        session, options, plan, summary.labels, has_gaps=has_gaps, distinct_rows=rows.distinct
    )
    job = WriteJob.start(repository, session, options, plan, grid)
    return job.commit(rows.write(job, plan), options.job)
