"""The export job: writes a snapshot to a plain Zarr store or to Parquet files.

Chunks whose layout does not change are copied byte for byte. Others are rewritten box by box, in
two passes if one would exceed the task memory; the intermediate array is in a directory of the
target. Metadata is written last, so that an incomplete Zarr store never looks complete.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError
from icefloe.pipeline.argument_errors import array_error, setting_error
from icefloe.pipeline.arrays.array_copy import ArrayCopy, build_stage_document, plan_array_copy
from icefloe.pipeline.arrays.boxes import Box, format_box, format_shape, get_box_bytes
from icefloe.pipeline.arrays.casting import cast_values
from icefloe.pipeline.arrays.chunk_bytes import fetch_chunks, plan_units
from icefloe.pipeline.arrays.nodes import parse_path, read_arrays
from icefloe.pipeline.exports.parquet_export import export_rows
from icefloe.pipeline.exports.plain_store import open_plain_store
from icefloe.pipeline.opening import RepositoryOrPlace, require_repository
from icefloe.pipeline.options import RunKeywords, RunOptions, merge_options
from icefloe.pipeline.report import JobFailedError, Plan, Report, format_bytes
from icefloe.pipeline.run import FailedUnits, JobRun, WorkUnit, run_units
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import suggest_name
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from zarr.abc.store import Store

    from icefloe.pipeline.arrays.array_document import ArrayDocument, ChunkSpec

_FORMATS: Final = ("zarr", "parquet")
_Layout: TypeAlias = "tuple[ChunkSpec | None, ChunkSpec | bool | None, Sequence[Any] | None]"
"""Chunks, shards and codecs."""


@dataclass(frozen=True, slots=True)
class _BoxExport:
    """A box that is rewritten in other chunks, from the repository or from a stage."""

    source: str | ArrayDocument
    target: ArrayDocument
    box: Box


@dataclass(frozen=True, slots=True)
class _ChunkExport:
    """Chunks that are copied byte for byte."""

    source: str
    target: ArrayDocument
    coords: Any


@dataclass(slots=True)
class _WorkPlan:
    """The planned work.

    ``documents`` has metadata by key, in writing order, with the root last. ``first`` has the units
    of the first of two passes, ``last`` all others. ``folder`` is the directory of stages.
    """

    documents: dict[str, bytes] = field(default_factory=dict)
    first: list[WorkUnit] = field(default_factory=list)
    last: list[WorkUnit] = field(default_factory=list)
    folder: str = field(default_factory=lambda: f"stage-{uuid.uuid4().hex}")
    arrays: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def export(
    spark: SparkSession | None,
    repository: RepositoryOrPlace,
    target: str | os.PathLike[str] | Store,
    *,
    format: str = "zarr",  # noqa: A002 - named as in Spark
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
    run_options: RunOptions | None = None,
    **keywords: Unpack[RunKeywords],
) -> Plan | Report:
    """Write a group or an array of a snapshot to a Zarr store or to Parquet files.

    Parameters
    ----------
    spark, repository
        Spark session (None runs in-process) and repository, or its directory or URL.
    target
        An empty directory or URL, or an empty Zarr store that pickles.
    format
        ``zarr``: a Zarr version 3 store. ``parquet``: rows, with a column for each dimension,
        holding its coordinates, and one for each variable.
    group
        A group, with everything below it, or an array.
    branch, tag, snapshot_id
        The snapshot to export; the tip of main by default.
    variables
        The names of arrays, all if None; the coordinates of their dimensions are included.
    chunks, shards, codecs
        As for `rechunk`, for the arrays that have such a dimension (Zarr only).
    sel, isel
        Selections by label and by index (Parquet only).
    partition_by
        Columns whose values become directories, such as ``time=2020-01-01`` (Parquet only).
    run_options, keywords
        `RunOptions`, or its fields as keywords.

    Returns
    -------
        A report with the id of the exported snapshot.

    Raises
    ------
    AlreadyExistsError
        If the target is not empty.
    JobFailedError
        If boxes failed. Written data is deleted, if the store supports it.
    """
    options = merge_options(run_options, None, keywords)
    if format not in _FORMATS:
        raise setting_error(f"format must be one of {', '.join(_FORMATS)}, not {format!r}")
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    repository = require_repository(spark, repository)
    session = repository.readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
    if format == "parquet":
        if chunks is not None or shards is not None or codecs is not None:
            raise setting_error("chunks, shards and codecs do not apply to Parquet")
        return export_rows(
            spark,
            session,
            target,
            select={"group": group, "variables": variables, "sel": sel, "isel": isel},
            partition_by=partition_by or (),
            options=options.run,
        )
    if sel is not None or isel is not None or partition_by is not None:
        raise setting_error(
            "sel, isel and partition_by apply to Parquet only: Zarr exports whole arrays"
        )
    return _export_zarr(
        JobRun("export", spark, repository, session, options),
        open_plain_store(target),
        group,
        variables,
        (chunks, shards, codecs),
    )


def _export_zarr(
    run: JobRun, store: Store, group: str, variables: Sequence[str] | None, layout: _Layout
) -> Plan | Report:
    sync(_require_empty(store))
    work = _plan_work(run, group, variables, layout, can_stage=store.supports_deletes)
    if run.dry_run:
        first, last = (sum(unit.size_bytes for unit in units) for units in (work.first, work.last))
        return Plan(
            "export",
            str(store),
            tuple(work.steps),
            len(run.group_units(work.first)) + len(run.group_units(work.last)),
            bytes_read=first + last,
            bytes_written=first + last,
            task_bytes=max((unit.size_bytes for unit in work.first + work.last), default=0),
        )
    export_task = partial(_export_task, run.open_reader(), store)
    try:
        run.enter_phase("exporting")
        run.run_tasks(run.group_units(work.first), export_task)
        counts = run.run_tasks(run.group_units(work.last), export_task)
    except JobFailedError:
        if store.supports_deletes:
            sync(_delete(store, [*work.arrays, work.folder]))
        raise
    if work.first:
        sync(store.delete_dir(work.folder))
    sync(_write_metadata(store, work.documents))
    return Report(
        "export",
        run.session.snapshot_id,
        is_new=True,
        chunks=sum(count for count, _ in counts),
        bytes_written=sum(written for _, written in counts),
        seconds=run.seconds,
    )


def _plan_work(
    run: JobRun, group: str, variables: Sequence[str] | None, layout: _Layout, *, can_stage: bool
) -> _WorkPlan:
    session, root = run.session, parse_path(group)
    work = _WorkPlan()
    selected = _select_arrays(read_arrays(session, group), variables, group)
    _require_dimensions(selected, layout[:2], group)
    for source in selected:
        target_path = source.path[len(root.value.rstrip("/")) :] or "/"
        changed = _change_layout(source, layout).with_path(target_path)
        work.documents[_format_metadata_key(target_path)] = changed.to_bytes()
        work.arrays.append(target_path.strip("/"))
        if changed.document == source.document:
            method = "byte for byte"
            for part in contents.fetch_chunk_refs(session, parse_path(source.path)):
                rows = np.arange(len(part), dtype=np.int64)
                for unit in plan_units(source.path, part, rows):
                    value = _ChunkExport(source.path, changed, unit.value[1])
                    work.last.append(WorkUnit(unit.label, unit.size_bytes, value))
        else:
            copy = plan_array_copy(run, source, changed)
            is_staged = copy.stage is not None and can_stage
            method = f"in chunks of {format_shape(changed.chunks)}"
            method += ", in two passes" if is_staged else ""
            _add_copy_units(work, copy, is_staged=is_staged)
        work.steps.append(f"{source.path} {method}, {format_bytes(source.nbytes)} in memory")
    groups = [node for node in contents.iter_nodes_below(session, root) if not node.is_array]
    for node in sorted(groups, key=lambda node: node.path, reverse=True):
        path = node.path.value[len(root.value.rstrip("/")) :]
        if variables is None or any(key.startswith(f"{path[1:]}/") for key in work.documents):
            work.documents[_format_metadata_key(path)] = node.user_data
    root_node = contents.require_node(session, root)
    if not root_node.is_array:
        work.documents.pop(_format_metadata_key("/"), None)
        work.documents[_format_metadata_key("/")] = root_node.user_data
    return work


def _add_copy_units(work: _WorkPlan, copy: ArrayCopy, *, is_staged: bool) -> None:
    """Split the copy of an array into units, for one or two passes."""
    origin: str | ArrayDocument = copy.source.path
    if is_staged:
        stage = build_stage_document(copy).with_path(f"{work.folder}/{len(work.documents)}")
        work.first += [_make_unit(copy, copy.source.path, stage, box) for box in copy.first_boxes]
        origin = stage
    work.last += [_make_unit(copy, origin, copy.target, box) for _, box in copy.last_boxes]


def _make_unit(
    copy: ArrayCopy, source: str | ArrayDocument, target: ArrayDocument, box: Box
) -> WorkUnit:
    size = get_box_bytes(box, copy.source.item_bytes)
    return WorkUnit(format_box(copy.source.path, box), size, _BoxExport(source, target, box))


def _select_arrays(
    arrays: Sequence[ArrayDocument], variables: Sequence[str] | None, group: str
) -> list[ArrayDocument]:
    if variables is None:
        return list(arrays)
    names = {parse_path(array.path).name for array in arrays}
    for name in variables:
        if name not in names:
            raise InvalidInputError(
                f"{group} has no array {name!r}; {suggest_name(name, names)}",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
    data = [array for array in arrays if parse_path(array.path).name in variables]
    dimensions = {name for array in data for name in array.dimension_names}
    return [
        array
        for array in arrays
        if array in data or (array.is_coordinate and array.dimension_names[0] in dimensions)
    ]


def _require_dimensions(
    arrays: Sequence[ArrayDocument], specs: Sequence[ChunkSpec | bool | None], group: str
) -> None:
    for spec in specs:
        for name in spec if isinstance(spec, Mapping) else ():
            if not any(name in array.dimension_names for array in arrays):
                raise array_error(f"no array in {group} has the dimension {name!r}")


def _change_layout(source: ArrayDocument, layout: _Layout) -> ArrayDocument:
    chunks, shards, codecs = layout
    if source.is_coordinate or (chunks is None and shards is None and codecs is None):
        return source
    return source.with_chunks(source.select_lengths(chunks), source.select_lengths(shards), codecs)


def _export_task(
    reader: Session, store: Store, task: tuple[WorkUnit, ...]
) -> tuple[int, int] | FailedUnits:
    """Copy the units of a task; return the number of chunks and their bytes."""
    counts: list[tuple[int, int]] = []

    def copy(value: _BoxExport | _ChunkExport) -> None:
        if isinstance(value, _BoxExport):
            counts.append(_export_box(reader, store, value))
        else:
            counts.append(_export_chunks(reader, store, value))

    failed = run_units(task, copy)
    if failed is not None:
        return failed
    return sum(count for count, _ in counts), sum(written for _, written in counts)


def _export_box(reader: Session, store: Store, value: _BoxExport) -> tuple[int, int]:
    if isinstance(value.source, str):
        source = open_array(reader.store, value.source)
    else:
        source = _open_without_metadata(store, value.source)
    target = _open_without_metadata(store, value.target)
    data = cast_values(source[value.box], target.dtype)
    target[value.box] = data
    unit = value.target.write_unit
    written = [
        -(-part.stop // step) - part.start // step
        for part, step in zip(value.box, unit, strict=True)
    ]
    return int(np.prod(written)), int(np.asarray(data).nbytes)


def _open_without_metadata(store: Store, document: ArrayDocument) -> zarr.Array[Any]:
    """Open an array of the target whose metadata is not written yet."""
    store_path = StorePath(store, document.path.strip("/"))
    return zarr.Array(zarr.AsyncArray(metadata=document.parse_metadata(), store_path=store_path))


def _export_chunks(reader: Session, store: Store, value: _ChunkExport) -> tuple[int, int]:
    metadata = value.target.parse_metadata()
    prefix = value.target.path.strip("/")
    buffer = default_buffer_prototype().buffer
    chunks = {
        f"{prefix}/{metadata.encode_chunk_key(indices)}".lstrip("/"): data
        for indices, data in fetch_chunks(reader, value.source, value.coords)
    }

    async def set_all() -> None:
        await asyncio.gather(
            *(store.set(key, buffer.from_bytes(data)) for key, data in chunks.items())
        )

    sync(set_all())
    return len(chunks), sum(map(len, chunks.values()))


async def _require_empty(store: Store) -> None:
    try:
        async for key in store.list_prefix(""):
            raise AlreadyExistsError(
                f"{store} is not empty (it has {key!r}): choose another target, or delete its "
                "content",
                kind=ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
            )
    except FileNotFoundError:
        return


async def _write_metadata(store: Store, documents: Mapping[str, bytes]) -> None:
    buffer = default_buffer_prototype().buffer
    for key, document in documents.items():
        await store.set(key, buffer.from_bytes(document))


async def _delete(store: Store, paths: Iterable[str]) -> None:
    """Delete only data of this export: another program may be using the target."""
    for path in paths:
        await store.delete_dir(path)


def _format_metadata_key(path: str) -> str:
    return f"{path.strip('/')}/zarr.json".lstrip("/")
