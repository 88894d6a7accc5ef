"""A write, tried from the tip of its branch until it lands. Knows nothing of Spark.

Whoever appends and comes second goes behind whoever came first: its rows have other places by then,
so all of it is planned and written anew. Whoever overwrites has not seen what the other wrote, and
is told.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.session.exactly_once import find_committed
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.writing.sink import WriteJob, Written
from icefloe.spark.writing.write_planning import plan_write, prepare_write
from icefloe.storage.backoff import backoff_delay_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icefloe.repository import Repository
    from icefloe.spark.writing.sink import Part
    from icefloe.spark.writing.write_options import WriteOptions
    from icefloe.spark.writing.write_plan import WritePlan

_TRIES: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class RowSummary:
    """What a first look at rows tells.

    Parameters
    ----------
    labels
        The distinct labels of the dimensions that the plan does not know.
    rows
        How many rows there are.
    has_nulls
        Whether a variable is null anywhere.
    """

    labels: Mapping[str, pa.Array]
    rows: int
    has_nulls: bool


class Rows(Protocol):
    """Rows that can be computed as often as it takes."""

    @property
    def schema(self) -> pa.Schema:
        """Their columns."""
        ...

    def summarize(self, intent: WritePlan) -> RowSummary:
        """Learn what a plan does not know."""
        ...

    def distinct(self, names: Sequence[str]) -> pa.Table:
        """Return what some columns have, in any order, preferably each once."""
        ...

    def write(self, job: WriteJob, intent: WritePlan) -> list[Part]:
        """Write them, each block by one task."""
        ...


def write_with_retries(
    repository: Repository, options: WriteOptions, rows: Rows, *, overwrite: bool
) -> Written:
    """Write rows and commit them once.

    Raises
    ------
    InvalidInputError
        If the rows do not fit the group, or not any more after others appended to it.
    RebaseFailedError
        If others changed what is overwritten; or if others were faster, time after time.
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
            conflict = error
        except InvalidInputError as error:
            if conflict is None:
                raise
            raise invalid_input(
                f"others committed to branch {options.branch!r} while these rows were written, and "
                f"behind that they do not fit any more: {error}; nothing was committed"
            ) from conflict
    raise AssertionError("the last try raises or returns")


def explain_conflict(error: RebaseFailedError) -> RebaseFailedError:
    """Say what a conflict means to somebody who has rows and no session."""
    return RebaseFailedError(
        f"others changed what these rows are written to, in commit {error.snapshot}, after the "
        "write began; nothing was committed. RowSummary at what is there now, and write again",
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
    # The tip first: a commit of this very job that comes after it is a conflict, and found then.
    session = repository.writable_session(options.branch)
    if options.job is not None:
        found = find_committed(repository, options.branch, options.job)
        if found is not None:
            return Written.of(found, 0)
    intent = plan_write(session, options, rows.schema, overwrite=overwrite)
    asked = (intent.unknown, *intent.columns.items())
    if asked not in summaries:
        summaries[asked] = rows.summarize(intent)
    summary = summaries[asked]
    if intent.unknown and not summary.rows:
        return Written(None, is_new=False)
    cells = 1
    for one in summary.labels.values():
        cells *= len(one)
    has_gaps = summary.has_nulls or summary.rows < cells
    grid = prepare_write(
        session, options, intent, summary.labels, has_gaps=has_gaps, distinct_rows=rows.distinct
    )
    job = WriteJob.start(repository, session, options, intent, grid)
    return job.commit(rows.write(job, intent), options.job)
