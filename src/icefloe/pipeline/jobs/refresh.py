"""The refresh job: replaces the steps of files that changed since they were added to a group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from icefloe.pipeline.files.file_job import FileOptions
from icefloe.pipeline.files.source_files import list_source_names
from icefloe.pipeline.jobs.append import has_virtual_chunks
from icefloe.pipeline.jobs.ingest import Layout, run_ingest
from icefloe.pipeline.jobs.virtualize import run_virtualize
from icefloe.pipeline.opening import RepositoryOrPlace, cover_sources, require_repository
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from icefloe.pipeline.files.file_job import OnError
    from icefloe.pipeline.report import Plan, Report


def refresh(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    sources: Any = None,
    *,
    dim: str = "time",
    group: str = "/",
    virtual: bool | None = None,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Replace the steps of files that changed since they were added to a group.

    Writes only chunks with these steps, and commits once. A new version of a file must have the
    same steps along ``dim`` as the old one, and agree with the group like an appended file. Safe to
    run concurrently: after a conflict the job continues with the files that are still outdated.
    Files that do not exist anymore are named in the report, and their steps are kept.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository.
    sources
        Files of the group to look at, as for `virtualize`; all if None, which must be in containers
        that the user authorized. Files that were added without a version are replaced if named.
    dim
        The dimension along which the group grows.
    group
        A group that was virtualized or ingested, with a coordinate along ``dim``.
    virtual, on_error, parse_options
        As for `append`.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, NodeNotFoundError
        If the group has no record of its files, or not of one of ``sources``; or without
        ``sources`` if files are in no authorized container.
    JobFailedError
        If files are damaged, have other steps, or do not match the group; lists all of them.
    FilesDisagreeError
        If a file shares chunks with other files, so that references cannot be replaced. After any
        of these errors, nothing was committed.
    """
    options = merge_options(run_options, commit_options, keywords)
    opened = require_repository(spark, repository, sources)
    if virtual is None:
        virtual = has_virtual_chunks(opened, group, dim, branch=options.commit.branch)
    files = FileOptions.of(
        dim, group, None, on_error, parse_options, append=True, changed="replace"
    )
    files = replace(files, is_refresh=True)
    if virtual:
        return run_virtualize(spark, opened, sources, files, options)
    names = None if sources is None else list_source_names(sources)
    if names is not None:  # other names come from the repository, which may not authorize itself
        opened = cover_sources(opened, names)
    return run_ingest(spark, opened, names, files, options, layout=Layout())
