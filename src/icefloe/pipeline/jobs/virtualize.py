"""The virtualize job: combines files into one virtual dataset, without copying chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.file_job import (
    Changed,
    CombinedFiles,
    FileJob,
    FileOptions,
    OnError,
    Order,
)
from icefloe.pipeline.files.manifest_building import (
    REFS_PER_MANIFEST,
    build_manifests,
    require_refs_per_manifest,
)
from icefloe.pipeline.files.replacement import Replacement
from icefloe.pipeline.opening import RepositoryOrPlace, require_repository
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.virtual.agreement import raise_disagreements
from icefloe.virtual.append_plan import compare_with_group
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.pipeline.options import JobOptions
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import JobRun
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.session.commit_policy import CommitPolicy
    from icefloe.virtual.agreement import Disagreement
    from icefloe.virtual.dataset import VirtualDataset


def virtualize(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    sources: Any,
    *,
    dims: str | Sequence[str] = "time",
    group: str = "/",
    append: bool = False,
    changed: Changed = "stop",
    insert: bool = False,
    order: Order | None = None,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    refs_per_manifest: int = REFS_PER_MANIFEST,
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Create one virtual dataset from many files, and commit once.

    Executors parse the files and write the manifests; the driver holds only the metadata of files
    and manifests.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL, whose
        containers cover the files.
    sources
        Paths, URLs or glob patterns, or a table; see `find_sources`.
    dims
        The dimensions along which files are combined.
    group
        The group of the arrays: a new one, or with ``append`` an existing one.
    append
        Whether to extend the group along the first of ``dims``. Files that are already in the
        group are skipped, including those of concurrent commits.
    changed, insert
        As for `append`.
    order
        ``coordinates`` sorts files along ``dims``, ``given`` keeps the order of ``sources``; None
        sorts if files have coordinates.
    on_error
        ``raise`` fails the job and reports all invalid files; ``skip`` excludes them, and lists
        them in the commit metadata.
    parse_options
        Passed to `icefloe.virtual.parse`, such as ``drop_variables``.
    refs_per_manifest
        The maximum number of references of an array in one manifest.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Raises
    ------
    InvalidInputError, AlreadyExistsError, NodeNotFoundError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If files are damaged, or do not match each other or the group; lists all of them. Nothing
        was committed.
    FilesDisagreeError
        If the group ends within a chunk, so that references cannot be appended. Nothing was
        committed.
    RebaseFailedError
        If a concurrent commit wrote to the new group. Nothing was committed.
    """
    require_refs_per_manifest(refs_per_manifest)
    files = FileOptions.of(
        dims, group, order, on_error, parse_options, append=append, changed=changed, insert=insert
    )
    options = merge_options(run_options, commit_options, keywords)
    opened = require_repository(spark, repository, sources)
    return run_virtualize(spark, opened, sources, files, options, refs=refs_per_manifest)


def run_virtualize(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    files: FileOptions,
    options: JobOptions,
    *,
    refs: int = REFS_PER_MANIFEST,
) -> Plan | Report:
    """Run the job with checked arguments; see `virtualize`."""
    group, dim, append = files.group, files.dim, files.append

    def write(run: JobRun, combined: CombinedFiles) -> CommitPolicy:
        if append:
            append_dataset(
                combined.dataset, run.session, dim=dim, group=group, validate_containers=False
            )
        else:
            write_dataset(combined.dataset, run.session, group=group, validate_containers=False)
        return build_manifests(run, run.session, combined, group, dim, refs=refs)

    def replace_steps(run: JobRun, combined: CombinedFiles) -> None:
        dataset = combined.dataset
        replacement = Replacement.find(run.session, dataset, dim=dim, group=group)
        raise_disagreements(
            replacement.find_unaligned(run.session, dataset), f"replacing steps of {group}"
        )
        replacement.write_loaded(run.session, dataset)
        replacement.write_refs(run, combined)

    def find_mismatches(session: Session, dataset: VirtualDataset) -> Iterable[Disagreement]:
        return compare_with_group(dataset, session, dim=dim, group=group)

    step = f"{'append' if append else 'write'} references to {parse_path(group)}"
    job = FileJob("virtualize", spark, repository, sources, files, options, find_mismatches, step)
    return job.execute(write, replace_steps)
