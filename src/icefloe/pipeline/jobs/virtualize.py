"""Thousands of files become references: parsed by executors, checked together, committed once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.nodes import path_of
from icefloe.pipeline.files.built_manifests import BuildManifests, FilePlace, TargetArray, WriteLog
from icefloe.pipeline.files.file_job import FileJob, OnError, Order
from icefloe.pipeline.files.staged_refs import file_number
from icefloe.pipeline.report import Failure, JobFailedError
from icefloe.pipeline.run import TASK_BYTES
from icefloe.session import contents
from icefloe.session.commit_policy import NO_POLICY, CommitPolicy
from icefloe.session.parallel_write import adopt_manifests
from icefloe.virtual.append_plan import compare_with_group
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.writer import append as append_dataset
from icefloe.virtual.writer import write as write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.model.path import Path
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.pipeline.files.file_job import CombinedFiles
    from icefloe.pipeline.files.staged_refs import ParsedFile
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import JobRun
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.session.parallel_write import Adopted, AdoptedManifest
    from icefloe.spark.engine.progress import Progress
    from icefloe.virtual.agreement import Disagreement
    from icefloe.virtual.dataset import VirtualDataset

__all__ = ["OnError", "virtualize"]

REFS_PER_MANIFEST: Final = 250_000
"""Of one array: some megabytes, which is what a reader of one chunk has to fetch."""

_MANY_REFS: Final = 500_000
"""With more, the transaction log is written by an executor: the driver then never holds them."""

_REMEDY: Final = "see to the cause and start the job again"


def virtualize(
    spark: SparkSession | None,
    repository: Repository,
    sources: Any,
    *,
    dims: str | Sequence[str] = "time",
    group: str = "/",
    branch: str = "main",
    append: bool = False,
    order: Order | None = None,
    on_error: OnError = "raise",
    parse_options: Mapping[str, Any] | None = None,
    refs_per_manifest: int = REFS_PER_MANIFEST,
    transaction_id: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan | Report:
    """Make one virtual dataset of many files, and commit it once.

    Executors parse the files and write the manifests; the driver handles a few lines for each
    file and each manifest.

    Parameters
    ----------
    spark, repository
        Who works (this process alone, if None), and on what. The repository has containers that
        cover the files; on its own platform default ones do.
    sources
        Paths, URLs or patterns of them, or a table; see `find_sources`.
    dims
        The dimensions along which files are combined.
    group
        The group that gets the arrays; a new one, or with ``append`` one that has them.
    branch
        Gets the commit.
    append
        Whether to go on where the group ends, along the first of ``dims``. Files that earlier
        commits brought into the group are left alone, also commits that others make meanwhile.
    order
        By ``coordinates`` along ``dims``, or as ``given``; None takes coordinates where files have
        them.
    on_error
        ``raise`` fails the job and tells of all files in which something is wrong; ``skip`` leaves
        those out, and lists them in the commit's metadata.
    parse_options
        Passed on to `icefloe.virtual.parse`, such as ``drop_variables``.
    refs_per_manifest
        How many references of an array go into one manifest at most.
    transaction_id
        The name of this job: if it is on the branch already, nothing is done.
    message, metadata
        What the commit records besides.
    dry_run
        Whether to return the plan, and touch nothing.
    progress
        Hears how far Spark is.

    Raises
    ------
    InvalidInputError, AlreadyExistsError, NodeNotFoundError
        If the arguments do not fit the repository. Nothing was written.
    JobFailedError
        If files are damaged, or do not fit together or what they are appended to: names all of
        them. Nothing was committed.
    FilesDisagreeError
        If the group ends within a chunk, behind which no references go. Nothing was committed.
    RebaseFailedError
        If somebody else wrote to the new group meanwhile. Nothing was committed.
    """
    names = (dims,) if isinstance(dims, str) else tuple(dims)
    if refs_per_manifest < 1:
        raise InvalidInputError(
            f"refs_per_manifest is how many references a manifest has, not {refs_per_manifest}",
            kind=ErrorKind.NOT_ALLOWED,
        )
    job = FileJob(
        name="virtualize",
        copies=False,
        spark=spark,
        repository=repository,
        sources=sources,
        dims=names,
        group=group,
        branch=branch,
        append=append,
        order=order,
        on_error=on_error,
        parse_options=parse_options,
        task_bytes=TASK_BYTES,
        transaction_id=transaction_id,
        message=message,
        metadata=metadata,
        progress=progress,
    )

    def write(run: JobRun, found: CombinedFiles) -> CommitPolicy:
        if append:
            append_dataset(
                found.dataset, run.session, dim=names[0], group=group, validate_containers=False
            )
        else:
            write_dataset(found.dataset, run.session, group=group, validate_containers=False)
        return build_manifests(run, run.session, found, group, names[0], refs=refs_per_manifest)

    def misfits(session: Session, dataset: VirtualDataset) -> Iterable[Disagreement]:
        return compare_with_group(dataset, session, dim=names[0], group=group)

    verb = "append" if append else "write"
    step = f"{verb} references to {path_of(group)}"
    return job.do(write, misfits=misfits, last_step=step, dry_run=dry_run)


def build_manifests(
    run: JobRun,
    session: Session,
    found: CombinedFiles,
    group: str,
    dim: str,
    *,
    refs: int = REFS_PER_MANIFEST,
) -> CommitPolicy:
    """Let executors build the manifests of a dataset whose markers were written to a session."""
    paths = [path for path in _virtual_arrays(found) if path not in found.mismatched]
    targets, places = take_markers(session, found, group, paths)
    axis_of = {
        path: names.index(dim) if dim in names else None
        for path, names in ((path, found.dataset.arrays[path].dimension_names) for path in targets)
    }
    slabs = _slabs(places, axis_of)
    tasks = _manifest_tasks(slabs, found.files, places, refs * max(1, len(targets)))
    work = BuildManifests(
        session.connection,
        {path: target for path, (_, target) in targets.items()},
        refs,
    )
    built: dict[str, list[AdoptedManifest]] = {path: [] for path in targets}
    failures = []
    for task, outcome in zip(tasks, run.outcomes(tasks, work), strict=True):
        if outcome.error is not None:
            failures.append(Failure(f"a manifest of {len(task):,} files", outcome.error))
        for path, parts in (outcome.result or {}).items():
            built[path] += [one.manifest for one in parts]
            run.chunks += sum(one.chunks for one in parts)
            run.bytes_written += sum(one.size_bytes for one in parts)
    if failures:
        raise JobFailedError(run.name, failures, remedy=_REMEDY)
    for path, (where, _) in targets.items():
        adopt_manifests(session, where, built[path])
    if sum(file.num_refs for file in found.files) <= _MANY_REFS:
        return NO_POLICY

    def write_log(log: TransactionLog, adopted: Adopted) -> None:
        (outcome,) = run.outcomes([(log, adopted)], WriteLog(session.connection))
        if outcome.error is not None:
            failure = Failure("the transaction log", outcome.error)
            raise JobFailedError(run.name, [failure], remedy=_REMEDY)

    return CommitPolicy(write_log=write_log)


Places: TypeAlias = dict[str, dict[int, tuple[int, ...]]]
"""The first chunk of each file in each array."""


def _virtual_arrays(found: CombinedFiles) -> list[str]:
    return [path for path, array in found.dataset.arrays.items() if isinstance(array, VirtualArray)]


def take_markers(
    session: Session, found: CombinedFiles, group: str, paths: Iterable[str]
) -> tuple[dict[str, tuple[Path, TargetArray]], Places]:
    """Read from the session where the markers of arrays went, and take them out again."""
    base = path_of(group)
    targets: dict[str, tuple[Path, TargetArray]] = {}
    places: Places = {}
    for path in paths:
        where = base
        for name in path.split("/"):
            where = where.child(name)
        node = contents.require_array(session, where)
        columns = contents.take_changed_chunks(session, node)
        if columns is None:
            continue  # an array that does not grow
        if found.dataset.arrays[path].chunk_shape is None:
            raise InvalidInputError(
                f"{path}: its chunks differ in shape, which cannot be combined yet: parse with "
                f"drop_variables={[path]}",
                kind=ErrorKind.FILES_DISAGREE,
            )
        # Of the array in the repository: what is appended to it may have been cut to fit.
        grid = json.loads(node.user_data)["chunk_grid"]["configuration"]
        targets[path] = where, TargetArray(node.id, tuple(grid["chunk_shape"]))
        names = [file_number(name) for name in columns.payloads.locations]
        numbers = np.array(names)[columns.payloads.location]
        starts: dict[int, tuple[int, ...]] = {}
        # Rows are sorted: the first row of a file is where it begins.
        for number, row in zip(numbers.tolist(), columns.coords.tolist(), strict=True):
            starts.setdefault(number, tuple(row))
        places[path] = starts
    return targets, places


def _slabs(places: Places, axis_of: Mapping[str, int | None]) -> list[list[int]]:
    """Put files together that begin at one place along the first dimension, in its order.

    Manifests are made of whole slabs, so that the boxes of two manifests never overlap.
    """
    begin: dict[int, int] = {}
    for path, starts in places.items():
        axis = axis_of[path]
        for number, start in starts.items():
            if axis is not None:
                begin.setdefault(number, start[axis])
    for starts in places.values():
        for number in starts:
            begin.setdefault(number, min(begin.values(), default=0))
    slabs: dict[int, list[int]] = {}
    for number, place in sorted(begin.items(), key=lambda item: (item[1], item[0])):
        slabs.setdefault(place, []).append(number)
    return list(slabs.values())


def _manifest_tasks(
    slabs: Sequence[Sequence[int]], files: Sequence[ParsedFile], places: Places, max_refs: int
) -> list[tuple[FilePlace, ...]]:
    tasks: list[tuple[FilePlace, ...]] = []
    task: list[FilePlace] = []
    count = 0
    for slab in slabs:
        size = sum(files[number].num_refs for number in slab)
        if task and count + size > max_refs:
            tasks.append(tuple(task))
            task, count = [], 0
        task += [_file_place(files[number], number, places) for number in slab]
        count += size
    if task:
        tasks.append(tuple(task))
    return tasks


def _file_place(file: ParsedFile, number: int, places: Places) -> FilePlace:
    staged, position = file.staged
    starts = {path: found[number] for path, found in places.items() if number in found}
    documents = {
        path: dict(file.dataset.arrays[path].metadata)
        for path in starts
        if [one["name"] for one in file.dataset.arrays[path].metadata["codecs"]] == ["bytes"]
    }
    return FilePlace(staged, position, documents, starts)
