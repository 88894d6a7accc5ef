"""The append job: adds files to a group along a dimension, as references or copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import ChunkKind
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.pipeline.jobs.ingest import ingest
from icefloe.pipeline.jobs.virtualize import virtualize
from icefloe.pipeline.opening import RepositoryOrPlace, require_repository
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.session import contents
from icefloe.spark.option_parsing import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from icefloe.pipeline.files.file_job import Changed, OnError
    from icefloe.pipeline.report import Plan, Report
    from icefloe.repository import Repository


def append(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    sources: Any,
    *,
    dim: str = "time",
    group: str = "/",
    virtual: bool | None = None,
    changed: Changed = "stop",
    insert: bool = False,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Append files that are not yet in a group.

    Idempotent: files that are already there are skipped. Safe to run concurrently: after a conflict
    the job continues with the files that are still missing.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL.
    dim
        The dimension that grows.
    group
        A group that was virtualized or ingested.
    virtual
        Whether to write references to the chunks of the files, or to copy them; if None, like the
        arrays of the group along ``dim``.
    changed
        What to do if files of ``sources`` that are in the group changed since they were added:
        ``stop`` raises `SourcesChangedError`, ``replace`` replaces their steps as `refresh` does,
        in the same commit, and ``keep`` does not look for changes.
    insert
        Whether to insert files whose steps belong between stored steps, or before them; otherwise
        such files are refused. Chunks are moved, not copied: the steps must fill whole chunks, and
        begin where a chunk begins.
    sources, on_error, parse_options
        As for `virtualize`.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError
        If there is nothing to append to. Nothing was written.
    SourcesChangedError
        If files changed since they were added; lists all of them. Nothing was written.
    JobFailedError
        If files are damaged, or do not match each other or the group; lists all of them. Nothing
        was committed.
    FilesDisagreeError
        If the group ends within a chunk, so that references cannot be appended. Nothing was
        committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    repository = require_repository(spark, repository, sources)
    if virtual is None:
        virtual = has_virtual_chunks(repository, group, dim, branch=options.commit.branch)
    job = virtualize if virtual else ingest
    return job(
        spark,
        repository,
        sources,
        dims=dim,
        group=group,
        append=True,
        changed=changed,
        insert=insert,
        on_error=on_error,
        parse_options=parse_options,
        run_options=options.run,
        commit_options=options.commit,
    )


def has_virtual_chunks(
    repository: Repository, group: str, dim: str, *, branch: str = "main"
) -> bool:
    """Whether the arrays of a group that grow along a dimension have virtual chunks.

    Fetches at most one manifest of each array. Raises `InvalidInputError` if no array has the
    dimension.
    """
    session = repository.readonly_session(branch)
    arrays = read_arrays(session, group)
    growing = [array for array in arrays if dim in array.dimension_names]
    if not growing:
        names = {str(name) for array in arrays for name in array.dimension_names if name}
        raise InvalidInputError(
            f"no array in {parse_path(group)} has the dimension {dim!r} to append along; "
            + (suggest_name(dim, names) if names else "virtualize or ingest first"),
            kind=ErrorKind.FILES_DISAGREE,
        )
    for array in growing:
        # One manifest is enough: jobs write all chunks of an array as references or as copies.
        part = next(iter(contents.fetch_chunk_refs(session, parse_path(array.path))), None)
        if part is not None and bool(np.any(part.payloads.kind == ChunkKind.VIRTUAL)):
            return True
    return False
