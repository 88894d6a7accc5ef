"""What a snapshot holds, for those who do not read repositories: plain Zarr, or Parquet.

Chunks that stay as they are go byte for byte; others block by block, in two passes where one would
take too much memory, with what is between them in a folder of the target. Metadata is written
last, so that a Zarr store that was left half done never looks like a whole one.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.pipeline.arrays.chunk_bytes import fetch_chunks, plan_pieces
from icefloe.pipeline.arrays.nodes import arrays_below, path_of
from icefloe.pipeline.exports.parquet_export import export_rows
from icefloe.pipeline.exports.plain_store import open_plain_store
from icefloe.pipeline.jobs.rechunk import (
    box_bytes,
    fitting,
    is_coordinate,
    plan_array_copy,
    shown,
    stage_document,
)
from icefloe.pipeline.report import JobFailedError, Plan, Report, format_bytes
from icefloe.pipeline.run import TASK_BYTES, Failed, JobRun, Piece, doing
from icefloe.session import contents
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession
    from zarr.abc.store import Store

    from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec
    from icefloe.pipeline.arrays.boxes import Box
    from icefloe.pipeline.jobs.rechunk import ArrayCopy
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.progress import Progress

_FORMATS: Final = ("zarr", "parquet")


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A block that goes into other chunks: of an array of the repository, or of a stage."""

    source: str | ArrayDocument
    target: ArrayDocument
    box: Box


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunks that go as they are."""

    source: str
    target: ArrayDocument
    coords: Any


@dataclass(slots=True)
class _Work:
    """What there is to do.

    Parameters
    ----------
    documents
        Metadata by key, in the order in which it is written: the root's comes last.
    first, last
        The pieces of the first pass, where two are needed, and all others.
    folder
        Where the target holds what lies between the two passes.
    arrays
        Where it holds arrays.
    steps
        What happens, in words.
    """

    documents: dict[str, bytes] = field(default_factory=dict)
    first: list[Piece] = field(default_factory=list)
    last: list[Piece] = field(default_factory=list)
    folder: str = field(default_factory=lambda: f"stage-{uuid.uuid4().hex}")
    arrays: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def export(
    spark: SparkSession | None,
    repository: Repository,
    target: str | os.PathLike[str] | Store,
    *,
    format: str = "zarr",  # noqa: A002 - Spark's word for it
    group: str = "/",
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    variables: Sequence[str] | None = None,
    chunks: ChunkSpec | None = None,
    shards: ChunkSpec | bool | None = None,
    codecs: Sequence[Any] | None = None,
    sel: Mapping[str, Any] | None = None,
    isel: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] | None = None,
    task_bytes: int = TASK_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan | Report:
    """Write a group or an array of a snapshot to a place outside of repositories.

    Parameters
    ----------
    spark, repository
        Who works, and on what.
    target
        A directory or a URL, or a Zarr store that pickles; it must be empty.
    format
        ``zarr``: a Zarr version 3 store. ``parquet``: rows, with a column for each dimension, of
        its coordinates, and one for each variable.
    group
        What to export: a group, with all that is below it, or an array.
    branch, tag, snapshot_id
        Which snapshot; the tip of main if none is given.
    variables
        The names of the arrays, all if not given; coordinates of their dimensions go along.
    chunks, shards, codecs
        As for `rechunk`, for the arrays that have such a dimension (Zarr only).
    sel, isel
        Selections by label and by index (Parquet only).
    partition_by
        Columns whose values become folders, as ``time=2020-01-01`` (Parquet only).
    task_bytes, dry_run, progress
        As for `rechunk`.

    Returns
    -------
        A report whose snapshot is the one that was exported.

    Raises
    ------
    AlreadyExistsError
        If there is something at the target.
    JobFailedError
        If blocks failed. What was written is deleted again, where the store can.
    """
    if format not in _FORMATS:
        raise InvalidInputError(
            f"format is one of {', '.join(_FORMATS)}, not {format!r}", kind=ErrorKind.STORAGE_CONFIG
        )
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    session = repository.readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
    if format == "parquet":
        if chunks is not None or shards is not None or codecs is not None:
            raise InvalidInputError(
                "chunks, shards and codecs are for Zarr: Parquet has rows",
                kind=ErrorKind.STORAGE_CONFIG,
            )
        return export_rows(
            spark,
            session,
            target,
            select={"group": group, "variables": variables, "sel": sel, "isel": isel},
            partition_by=partition_by or (),
            dry_run=dry_run,
            progress=progress,
        )
    if sel is not None or isel is not None or partition_by is not None:
        raise InvalidInputError(
            "sel and isel are for Parquet, as is partition_by: Zarr is exported in whole arrays",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    run = JobRun(
        "export", spark, repository, branch or "", session, None, int(task_bytes), progress
    )
    store = open_plain_store(target)
    sync(_require_empty(store))
    work = _find(run, group, variables, (chunks, shards, codecs), can_stage=store.supports_deletes)
    if dry_run:
        first, last = (sum(piece.size_bytes for piece in own) for own in (work.first, work.last))
        return Plan(
            "export",
            str(store),
            tuple(work.steps),
            len(run.grouped(work.first)) + len(run.grouped(work.last)),
            bytes_read=first + last,
            bytes_written=first + last,
            task_bytes=max((piece.size_bytes for piece in work.first + work.last), default=0),
        )
    do = _exported_by(run.reader(), store)
    try:
        run.run(run.grouped(work.first), do)
        counts = run.run(run.grouped(work.last), do)
    except JobFailedError:
        if store.supports_deletes:
            sync(_delete(store, [*work.arrays, work.folder]))
        raise
    if work.first:
        sync(store.delete_dir(work.folder))
    sync(_write_metadata(store, work.documents))
    return Report(
        "export",
        session.snapshot_id,
        is_new=True,
        chunks=sum(count for count, _ in counts),
        bytes_written=sum(written for _, written in counts),
        seconds=time.monotonic() - run.started,
    )


def _find(
    run: JobRun,
    group: str,
    variables: Sequence[str] | None,
    layout: tuple[ChunkSpec | None, ChunkSpec | bool | None, Sequence[Any] | None],
    *,
    can_stage: bool,
) -> _Work:
    session, root = run.session, path_of(group)
    work = _Work()
    chosen = _chosen(arrays_below(session, group), variables, group)
    _require_dimensions(chosen, layout[:2], group)
    for source in chosen:
        place = source.path[len(root.value.rstrip("/")) :] or "/"
        changed = _relaid(source, layout).at(place)
        work.documents[_metadata_key(place)] = changed.to_bytes()
        work.arrays.append(place.strip("/"))
        if changed.document == source.document:
            how = "byte for byte"
            for part in contents.fetch_chunk_refs(session, path_of(source.path)):
                rows = np.arange(len(part), dtype=np.int64)
                for piece in plan_pieces(source.path, part, rows):
                    value = _Chunks(source.path, changed, piece.value[1])
                    work.last.append(Piece(piece.what, piece.size_bytes, value))
        else:
            copy = plan_array_copy(run, source, changed)
            in_two = copy.stage is not None and can_stage
            how = f"in chunks of {'x'.join(map(str, changed.chunks))}"
            how += ", in two passes" if in_two else ""
            _cut(work, copy, is_staged=in_two)
        work.steps.append(f"{source.path} {how}, {format_bytes(source.nbytes)} in memory")
    groups = [node for node in contents.iter_nodes_below(session, root) if not node.is_array]
    for node in sorted(groups, key=lambda one: one.path, reverse=True):
        place = node.path.value[len(root.value.rstrip("/")) :]
        if variables is None or any(key.startswith(f"{place[1:]}/") for key in work.documents):
            work.documents[_metadata_key(place)] = node.user_data
    top = contents.require_node(session, root)
    if not top.is_array:
        work.documents.pop(_metadata_key("/"), None)
        work.documents[_metadata_key("/")] = top.user_data
    return work


def _cut(work: _Work, copy: ArrayCopy, *, is_staged: bool) -> None:
    """Cut the copy of one array into pieces, of two passes if there is a stage between them."""
    origin: str | ArrayDocument = copy.source.path
    if is_staged:
        stage = stage_document(copy).at(f"{work.folder}/{len(work.documents)}")
        work.first += [_piece(copy, copy.source.path, stage, box) for box in copy.first]
        origin = stage
    work.last += [_piece(copy, origin, copy.target, box) for box in copy.last]


def _piece(copy: ArrayCopy, source: str | ArrayDocument, target: ArrayDocument, box: Box) -> Piece:
    size = box_bytes(box, copy.source.item_bytes)
    return Piece(shown(copy.source.path, box), size, _Blocks(source, target, box))


def _chosen(
    arrays: Sequence[ArrayDocument], variables: Sequence[str] | None, group: str
) -> list[ArrayDocument]:
    if variables is None:
        return list(arrays)
    names = {path_of(one.path).name for one in arrays}
    for wanted in variables:
        if wanted not in names:
            raise InvalidInputError(
                f"{group} has no array {wanted!r}; it has {', '.join(sorted(names)) or 'none'}",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
    data = [one for one in arrays if path_of(one.path).name in variables]
    dimensions = {name for one in data for name in one.dimension_names}
    return [
        one
        for one in arrays
        if one in data or (is_coordinate(one) and one.dimension_names[0] in dimensions)
    ]


def _require_dimensions(
    arrays: Sequence[ArrayDocument], specs: Sequence[ChunkSpec | bool | None], group: str
) -> None:
    for spec in specs:
        for wanted in spec if isinstance(spec, Mapping) else ():
            if not any(wanted in one.dimension_names for one in arrays):
                raise InvalidInputError(
                    f"no array in {group} has the dimension {wanted!r}",
                    kind=ErrorKind.INVALID_ARRAY_METADATA,
                )


def _relaid(
    source: ArrayDocument,
    layout: tuple[ChunkSpec | None, ChunkSpec | bool | None, Sequence[Any] | None],
) -> ArrayDocument:
    chunks, shards, codecs = layout
    if chunks is None and shards is None and codecs is None:
        return source
    if is_coordinate(source):
        return source

    def own(spec: Any) -> Any:
        if isinstance(spec, Mapping):
            return {name: spec[name] for name in source.dimension_names if name in spec}
        return spec

    return source.with_chunks(own(chunks), own(shards), codecs)


def _exported_by(
    reader: Session, store: Store
) -> Callable[[tuple[Piece, ...]], tuple[int, int] | Failed]:
    def write(task: tuple[Piece, ...]) -> tuple[int, int] | Failed:
        counts: list[tuple[int, int]] = []

        def copy(value: _Blocks | _Chunks) -> None:
            if isinstance(value, _Blocks):
                counts.append(_copy_block(reader, store, value))
            else:
                counts.append(_copy_chunks(reader, store, value))

        failed = doing(task, copy)
        if failed is not None:
            return failed
        return sum(count for count, _ in counts), sum(written for _, written in counts)

    return write


def _copy_block(reader: Session, store: Store, value: _Blocks) -> tuple[int, int]:
    if isinstance(value.source, str):
        source = open_array(reader.store, value.source)
    else:
        source = _without_metadata(store, value.source)
    target = _without_metadata(store, value.target)
    data = fitting(source[value.box], target.dtype)
    target[value.box] = data
    unit = value.target.write_unit
    written = [
        -(-part.stop // step) - part.start // step
        for part, step in zip(value.box, unit, strict=True)
    ]
    return int(np.prod(written)), int(np.asarray(data).nbytes)


def _without_metadata(store: Store, document: ArrayDocument) -> zarr.Array[Any]:
    """Open an array of the target, whose metadata is not there yet, or never will be."""
    place = StorePath(store, document.path.strip("/"))
    return zarr.Array(zarr.AsyncArray(metadata=document.parse_metadata(), store_path=place))


def _copy_chunks(reader: Session, store: Store, value: _Chunks) -> tuple[int, int]:
    metadata = value.target.parse_metadata()
    prefix = value.target.path.strip("/")
    buffer = default_buffer_prototype().buffer
    found = {
        f"{prefix}/{metadata.encode_chunk_key(indices)}".lstrip("/"): data
        for indices, data in fetch_chunks(reader, value.source, value.coords)
    }

    async def put_all() -> None:
        await asyncio.gather(
            *(store.set(key, buffer.from_bytes(data)) for key, data in found.items())
        )

    sync(put_all())
    return len(found), sum(map(len, found.values()))


async def _require_empty(store: Store) -> None:
    try:
        async for key in store.list_prefix(""):
            raise AlreadyExistsError(
                f"{store} is not empty (there is {key!r}): choose another place, or delete what is "
                "there",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            )
    except FileNotFoundError:
        return


async def _write_metadata(store: Store, documents: Mapping[str, bytes]) -> None:
    buffer = default_buffer_prototype().buffer
    for key, document in documents.items():
        await store.set(key, buffer.from_bytes(document))


async def _delete(store: Store, places: Iterable[str]) -> None:
    """Delete what this export wrote, and no more: somebody else may write there by now."""
    for place in places:
        await store.delete_dir(place)


def _metadata_key(path: str) -> str:
    return f"{path.strip('/')}/zarr.json".lstrip("/")
