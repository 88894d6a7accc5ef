"""Writing rows whose labels are not known in advance: tasks stage rows, one process writes them.

All rows, such as those of a micro-batch, must fit into the memory of that process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.errors import ConflictError
from icefloe.session import Session, contents
from icefloe.session.parallel_write import open_session_at
from icefloe.spark.writing.staged_rows import StagedRows, fetch_rows, require_fits_in_memory
from icefloe.spark.writing.write_grid import find_distinct
from icefloe.spark.writing.write_job import (
    Written,
    clear_unwritten,
    commit_write,
    find_written,
    write_blocks,
)
from icefloe.spark.writing.write_planning import plan_write, prepare_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from icefloe.repository import Repository
    from icefloe.session.exactly_once import JobId
    from icefloe.spark.writing.write_options import WriteOptions

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 20


def commit_staged_rows(
    repository: Repository,
    options: WriteOptions,
    schema: pa.Schema,
    staged: Sequence[StagedRows],
    *,
    overwrite: bool,
    job: JobId | None,
    base: str | None = None,
) -> Written:
    """Write and commit rows that tasks staged, based on the snapshot ``base`` or on the tip (None).

    Rebases over later commits. If one of them changed the same chunks or nodes, raises
    `ConflictError` with a ``base``; without one, writes the rows again, based on the new tip.
    """
    # Open the tip before the search: a commit of this job after the search is then a conflict.
    if base is None:
        session = repository.writable_session(options.branch)
    else:
        reader = repository.readonly_session(snapshot_id=base)
        session = open_session_at(reader.connection, contents.get_base_id(reader), options.branch)
    if result := find_written(repository, options.branch, job):
        return result
    require_fits_in_memory(staged)
    has_rows = any(part.num_rows for part in staged)
    table = fetch_rows(session.connection, staged) if has_rows else schema.empty_table()
    for attempt in range(_MAX_ATTEMPTS):
        try:
            return _write_table(repository, session, options, table, overwrite=overwrite, job=job)
        except ConflictError:
            if base is not None or attempt + 1 == _MAX_ATTEMPTS:
                raise
            _log.info("conflict on branch %s: write attempt %d", options.branch, attempt + 2)
            session = repository.writable_session(options.branch)
            if result := find_written(repository, options.branch, job):
                return result
    raise AssertionError("the last attempt raises or returns")


def _write_table(
    repository: Repository,
    session: Session,
    options: WriteOptions,
    table: pa.Table,
    *,
    overwrite: bool,
    job: JobId | None,
) -> Written:
    plan = plan_write(session, options, table.schema, overwrite=overwrite)
    # Without rows, only a region has work: its cells become missing.
    if not len(table) and plan.kind != "region":
        return Written(None, is_new=False)
    labels = {name: find_distinct(table[name].chunks) for name in plan.growing_dims}
    # Only decides whether integers need a fill value. Duplicate rows, which hide gaps from this
    # count, are detected later.
    has_gaps = len(table) < np.prod([len(values) for values in labels.values()]) or any(
        table[name].null_count for name in plan.variables
    )
    grid = prepare_write(
        session, options, plan, labels, has_gaps=bool(has_gaps), fetch_distinct_rows=table.select
    )
    blocks = write_blocks(session, grid, table) if len(table) else []
    grid.require_complete(len(table))
    clear_unwritten(session, grid, plan.kind, set(blocks))
    return commit_write(repository, session, options, job, kind=plan.kind, rows=len(table))
