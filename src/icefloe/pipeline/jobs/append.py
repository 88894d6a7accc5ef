"""New files along a dimension of a group, in the way in which the group holds the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import ChunkKind
from icefloe.pipeline.arrays.nodes import arrays_below, path_of
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.run import TASK_BYTES
from icefloe.session import contents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from icefloe.pipeline.jobs.virtualize import OnError
    from icefloe.pipeline.report import Plan, Report
    from icefloe.repository import Repository
    from icefloe.spark.engine.progress import Progress


def append(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    *,
    dim: str = "time",
    group: str = "/",
    branch: str = "main",
    virtual: bool | None = None,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
    transaction_id: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan | Report:
    """Go on where a group ends, with files that no earlier commit brought into it.

    Safe to run twice: files that are there are left alone. Safe to run twice at once: who is
    overtaken looks again at what the group has, and goes on with the files that are left.

    Parameters
    ----------
    spark, repository
        Who works (this process alone, if None), and on what.
    sources
        Paths, URLs or patterns of them, or a table; see `virtualize`.
    dim
        The dimension that grows.
    group
        A group that was virtualized or ingested.
    virtual
        Whether chunks stay in the files and are referred to; if not given, as those that the group
        has along ``dim``.
    on_error, parse_options, task_bytes
        As for `ingest`.
    branch, transaction_id, message, metadata, dry_run, progress
        As for `virtualize`.

    Raises
    ------
    InvalidInputError, NodeNotFoundError
        If there is nothing to append to. Nothing was written.
    JobFailedError
        If files are damaged, or do not fit together or what the group has: names all of them.
        Nothing was committed.
    FilesDisagreeError
        If the group ends within a chunk, behind which no references go. Nothing was committed.
    """
    if virtual is None:
        virtual = holds_virtual_chunks(repository, group, dim, branch=branch)
    if virtual:
        return virtualize(
            spark,
            repository,
            sources,
            dims=dim,
            group=group,
            branch=branch,
            append=True,
            on_error=on_error,
            parse_options=parse_options,
            transaction_id=transaction_id,
            message=message,
            metadata=metadata,
            dry_run=dry_run,
            progress=progress,
        )
    return ingest(
        spark,
        repository,
        sources,
        dims=dim,
        group=group,
        branch=branch,
        append=True,
        on_error=on_error,
        parse_options=parse_options,
        task_bytes=task_bytes,
        transaction_id=transaction_id,
        message=message,
        metadata=metadata,
        dry_run=dry_run,
        progress=progress,
    )


def holds_virtual_chunks(
    repository: Repository, group: str, dim: str, *, branch: str = "main"
) -> bool:
    """Tell whether the arrays of a group that grow along a dimension have virtual chunks.

    Costs a manifest for each array without any.

    Raises
    ------
    InvalidInputError
        If no array has that dimension.
    """
    session = repository.readonly_session(branch)
    arrays = arrays_below(session, group)
    growing = [one for one in arrays if dim in one.dimension_names]
    if not growing:
        named = {str(name) for one in arrays for name in one.dimension_names if name is not None}
        raise InvalidInputError(
            f"no array in {path_of(group)} has the dimension {dim!r} to append along; there are: "
            f"{', '.join(sorted(named)) or 'no arrays at all, so virtualize or ingest first'}",
            kind=ErrorKind.FILES_DISAGREE,
        )
    for array in growing:
        # The first manifest tells: an array is written in one way, or materialized from its start.
        part = next(iter(contents.fetch_chunk_refs(session, path_of(array.path))), None)
        if part is not None and bool(np.any(part.payloads.kind == ChunkKind.VIRTUAL)):
            return True
    return False
