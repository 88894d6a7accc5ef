"""Virtual chunks become native: their bytes are copied into the repository as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from icefloe.conflicts import BasicConflictSolver, VersionSelection
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.path import Path
from icefloe.pipeline.arrays.chunk_bytes import (
    MAX_CHUNKS,
    plan_units,
    require_chunk_limit,
    try_fetch_chunks,
)
from icefloe.pipeline.arrays.nodes import path_of, select_arrays
from icefloe.pipeline.options import merge_options
from icefloe.pipeline.report import JobFailedError, format_bytes
from icefloe.pipeline.run import JobRun
from icefloe.session import contents
from icefloe.spark.engine.tasks import format_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from icefloe.model.manifest import ChunkPayloads
    from icefloe.pipeline.files.file_job import OnError
    from icefloe.pipeline.options import CommitOptions, JobKeywords, RunOptions
    from icefloe.pipeline.report import Plan, Report
    from icefloe.pipeline.run import TaskWriter, WorkUnit
    from icefloe.repository import Repository
    from icefloe.session import Session


@dataclass(slots=True)
class _Work:
    """What there is to copy."""

    units: list[WorkUnit]
    locations: set[str]
    chunks: int = 0
    size_bytes: int = 0


def materialize(
    spark: SparkSession | None,
    repository: Repository,
    arrays: str | Sequence[str] = "/",
    *,
    prefix: str | None = None,
    max_chunks: int = MAX_CHUNKS,
    on_error: OnError = "raise",
    run_options: RunOptions | None = None,
    commit_options: CommitOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> Plan | Report:
    """Copy virtual chunks into the repository, and commit them once.

    Bytes are copied as they are, neither decoded nor encoded; small chunks are packed. Where
    somebody else wrote one of the chunks meanwhile, that one stays: it is newer.

    Parameters
    ----------
    spark, repository
        Who works, and on what; the containers must be open for reading.
    arrays
        The path of an array or a group, or several.
    prefix
        Only chunks whose location starts with this, as it is stored or as it is meant
        (``vcc://name/`` stands for the container's own prefix); all if not given.
    max_chunks
        Of more than so many nothing is touched: the driver holds a reference to each until the
        commit, of about 300 bytes.
    on_error
        ``raise`` fails the job and tells of all files that could not be read; ``skip`` lets their
        chunks stay virtual, and lists the files in the commit's metadata.
    run_options, commit_options, keywords
        `RunOptions` and `CommitOptions`, or their fields as keywords.

    Returns
    -------
        A report whose ``released`` are the files that the new snapshot does not need any more;
        older snapshots do.

    Raises
    ------
    InvalidInputError
        If there are too many chunks for one run. Nothing was written.
    JobFailedError
        If files could not be read, all of them with ``skip``. Nothing was committed.
    RebaseFailedError
        If somebody else deleted one of the arrays, or changed its metadata. Nothing was committed.
    """
    if on_error not in {"raise", "skip"}:
        raise InvalidInputError(
            f"on_error is raise or skip, not {on_error!r}", kind=ErrorKind.NOT_ALLOWED
        )
    options = merge_options(run_options, commit_options, keywords)
    run = JobRun.start("materialize", spark, repository, options)
    if (earlier := run.find_earlier()) is not None:
        return earlier
    work = _find(run.session, arrays, prefix, max_chunks)
    if run.dry_run:
        step = f"{work.chunks:,} virtual chunks of {len(work.locations):,} files become native"
        return run.plan(
            [f"{step}, {format_bytes(work.size_bytes)}"],
            len(run.group_units(work.units)),
            bytes_read=work.size_bytes,
            bytes_written=work.size_bytes,
            task_bytes=max((unit.size_bytes for unit in work.units), default=0),
        )
    if not work.units:
        return run.report_nothing()
    left_out = run.write_units(run.session, work.units, _copied_from(run.open_reader()))
    chunks = sum(map(len, contents.changed_chunks(run.session)))
    if left_out and (on_error == "raise" or not chunks):
        raise JobFailedError(run.name, left_out)
    files = len(work.locations) - len(left_out)
    about: dict[str, Any] = {"chunks": chunks, "files": files}
    if left_out:
        about["left_out"] = [[one.source, one.reason] for one in left_out]
    report = run.commit(
        f"materialized {chunks:,} chunks of {files:,} files",
        about=about,
        solver=BasicConflictSolver(
            on_chunk_conflict=VersionSelection.UseTheirs,
            fail_on_delete_of_updated_array=True,
            fail_on_delete_of_updated_group=True,
        ),
    )
    if not report.is_new:
        return report
    needed = _locations(run.session)
    return replace(
        report,
        files=files,
        released=tuple(sorted(work.locations - needed)),
        left_out=tuple(left_out),
    )


def _copied_from(reader: Session) -> Callable[[TaskWriter, tuple[str, NDArray[np.uint32]]], None]:
    def copy(writer: TaskWriter, value: tuple[str, NDArray[np.uint32]]) -> None:
        path, coords = value
        place = path_of(path)
        for indices, data in try_fetch_chunks(reader, path, coords):
            if isinstance(data, Exception):
                payload = contents.get_payload(reader, place, indices)
                location = getattr(payload, "location", path)
                writer.left_out.setdefault(location, format_error(data))
            else:
                contents.set_chunk(writer.fork, place, indices, data)

    return copy


def _find(
    session: Session, arrays: str | Sequence[str], prefix: str | None, max_chunks: int
) -> _Work:
    work = _Work([], set())
    chosen = select_arrays(session, arrays if isinstance(arrays, str) else list(arrays))
    for array in chosen:
        for part in contents.fetch_chunk_refs(session, path_of(array.path)):
            rows = _virtual_rows(session, part.payloads, prefix)
            if not len(rows):
                continue
            payloads = part.payloads
            # File by file and front to back: neighbours then share requests.
            order = rows[np.lexsort((payloads.offset[rows], payloads.location[rows]))]
            work.units += plan_units(array.path, part, order)
            used = np.unique(payloads.location[rows])
            work.locations.update(payloads.locations[code] for code in used.tolist())
            work.chunks += len(rows)
            require_chunk_limit(
                work.chunks, max_chunks, "do some arrays or locations (prefix) a time, or "
            )
            work.size_bytes += int(payloads.length[rows].sum())
    return work


def _virtual_rows(
    session: Session, payloads: ChunkPayloads, prefix: str | None
) -> NDArray[np.int64]:
    rows = np.flatnonzero(payloads.kind == ChunkKind.VIRTUAL)
    if prefix is None or not len(rows):
        return rows
    codes = np.unique(payloads.location[rows])
    expand = session.connection.virtual.expand
    wanted = [
        code
        for code in codes.tolist()
        if payloads.locations[code].startswith(prefix)
        or expand(payloads.locations[code]).startswith(prefix)
    ]
    return rows[np.isin(payloads.location[rows], wanted)]


def _locations(session: Session) -> set[str]:
    """Return the locations of all virtual chunks that a session sees."""
    found: set[str] = set()
    for node in contents.iter_nodes_below(session, Path("/")):
        if node.is_array:
            for part in contents.fetch_chunk_refs(session, node.path):
                rows = part.payloads.kind == ChunkKind.VIRTUAL
                used = np.unique(part.payloads.location[rows])
                found.update(part.payloads.locations[code] for code in used.tolist())
    return found
