"""The materialize job: copies virtual chunks into the repository, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.path import Path
from icefloe.pipeline.arrays.chunk_bytes import (
    MAX_CHUNKS,
    plan_units,
    require_chunk_limit,
    try_fetch_chunks,
)
from icefloe.pipeline.arrays.nodes import parse_path, select_arrays
from icefloe.pipeline.files.file_job import OnError, require_one_of
from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions, merge_options
from icefloe.pipeline.report import JobFailedError, Plan, Report, format_bytes
from icefloe.pipeline.run import (
    KEEP_CONCURRENT_CHUNKS,
    JobRun,
    TaskWriter,
    WorkUnit,
    writing_repository,
)
from icefloe.session import Session, contents
from icefloe.spark.engine.tasks import format_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.model.manifest import ChunkPayloads
    from icefloe.pipeline.opening import RepositoryOrPlace


@dataclass(slots=True)
class _WorkPlan:
    """The chunks to copy."""

    units: list[WorkUnit]
    locations: set[str]
    num_chunks: int = 0
    size_bytes: int = 0


def materialize(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    arrays: str | Sequence[str] = "/",
    *,
    prefix: str | None = None,
    max_chunks: int = MAX_CHUNKS,
    on_error: OnError = "raise",
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Copy virtual chunks into the repository, and commit once.

    Bytes are copied without decoding; small chunks are packed into larger objects, unless the
    repository configures ``packing`` otherwise. A chunk that a concurrent commit wrote is kept,
    because it is newer.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process), and a repository that is authorized to read the
        containers.
    arrays
        The path of an array or a group, or several.
    prefix
        Copy only chunks whose location starts with this prefix, as stored or with ``vcc://name/``
        expanded to the container's URL; None copies all.
    max_chunks
        The maximum number of chunks: the driver holds a reference of about 300 bytes to each until
        the commit.
    on_error
        ``raise`` fails the job and reports all unreadable files; ``skip`` keeps their chunks
        virtual, and lists the files in the commit metadata.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Returns
    -------
        A report (a plan if ``dry_run``). ``released`` lists the files that the new snapshot no
        longer needs; older snapshots may still need them.

    Raises
    ------
    InvalidInputError
        If there are too many chunks. Nothing was written.
    JobFailedError
        If files could not be read; with ``skip``, if none could. Nothing was committed.
    RebaseFailedError
        If a concurrent commit deleted an array or changed its metadata. Nothing was committed.
    """
    require_one_of("on_error", on_error, ("raise", "skip"))
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("materialize", spark, repository, options)
    if (earlier := run.find_earlier_result()) is not None:
        return earlier
    work = _plan_work(run.session, arrays, prefix, max_chunks)
    if run.dry_run:
        step = f"{work.num_chunks:,} virtual chunks of {len(work.locations):,} files become native"
        return run.plan(
            [f"{step}, {format_bytes(work.size_bytes)}"],
            len(run.group_units(work.units)),
            bytes_read=work.size_bytes,
            bytes_written=work.size_bytes,
            task_bytes=max((unit.size_bytes for unit in work.units), default=0),
        )
    if not work.units:
        return run.report_nothing()
    failures = run.write_units(run.session, work.units, partial(_copy_chunks, run.open_reader()))
    num_chunks = sum(map(len, contents.iter_changed_chunks(run.session)))
    if failures and (on_error == "raise" or not num_chunks):
        raise JobFailedError(run.name, failures)
    num_files = len(work.locations) - len(failures)
    job_metadata: dict[str, Any] = {"chunks": num_chunks, "files": num_files}
    if failures:
        job_metadata["left_out"] = [[failure.source, failure.reason] for failure in failures]
    report = run.commit(
        f"materialized {num_chunks:,} chunks of {num_files:,} files",
        about=job_metadata,
        solver=KEEP_CONCURRENT_CHUNKS,
    )
    # An earlier run has the same transaction id, or concurrent commits superseded all changes.
    if not report.is_new:
        return report
    needed = _find_locations(run.session)
    return replace(
        report,
        files=num_files,
        released=tuple(sorted(work.locations - needed)),
        left_out=tuple(failures),
    )


def _copy_chunks(reader: Session, writer: TaskWriter, unit: tuple[str, NDArray[np.uint32]]) -> None:
    path, coords = unit
    node_path = parse_path(path)
    for indices, data in try_fetch_chunks(reader, path, coords):
        if isinstance(data, Exception):
            payload = contents.get_payload(reader, node_path, indices)
            location = getattr(payload, "location", path)
            writer.left_out.setdefault(location, format_error(data))
        else:
            with writing_repository():
                contents.set_chunk(writer.fork, node_path, indices, data)


def _plan_work(
    session: Session, arrays: str | Sequence[str], prefix: str | None, max_chunks: int
) -> _WorkPlan:
    work = _WorkPlan([], set())
    selected = select_arrays(session, arrays if isinstance(arrays, str) else list(arrays))
    for array in selected:
        for part in contents.fetch_chunk_refs(session, parse_path(array.path)):
            rows = _find_virtual_rows(session, part.payloads, prefix)
            if not len(rows):
                continue
            payloads = part.payloads
            # Sort by file and offset, so that adjacent chunks share requests.
            order = rows[np.lexsort((payloads.offset[rows], payloads.location_codes[rows]))]
            work.units += plan_units(array.path, part, order)
            codes = np.unique(payloads.location_codes[rows])
            work.locations.update(payloads.locations[code] for code in codes.tolist())
            work.num_chunks += len(rows)
            require_chunk_limit(
                work.num_chunks, max_chunks, "select fewer arrays or a longer prefix, or "
            )
            work.size_bytes += int(payloads.length[rows].sum())
    return work


def _find_virtual_rows(
    session: Session, payloads: ChunkPayloads, prefix: str | None
) -> NDArray[np.int64]:
    rows = np.flatnonzero(payloads.kind == ChunkKind.VIRTUAL)
    if prefix is None or not len(rows):
        return rows
    codes = np.unique(payloads.location_codes[rows])
    expand = session.connection.virtual.expand
    matching = [
        code
        for code in codes.tolist()
        if payloads.locations[code].startswith(prefix)
        or expand(payloads.locations[code]).startswith(prefix)
    ]
    return rows[np.isin(payloads.location_codes[rows], matching)]


def _find_locations(session: Session) -> set[str]:
    """Return the locations of all virtual chunks in a session."""
    locations: set[str] = set()
    for node in contents.iter_nodes_below(session, Path("/")):
        if node.is_array:
            for part in contents.fetch_chunk_refs(session, node.path):
                rows = part.payloads.kind == ChunkKind.VIRTUAL
                codes = np.unique(part.payloads.location_codes[rows])
                locations.update(part.payloads.locations[code] for code in codes.tolist())
    return locations
