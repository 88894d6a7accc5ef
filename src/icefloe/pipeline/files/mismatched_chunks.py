"""Files whose chunks do not share a grid, such as monthly files stored as one chunk each.

One array cannot hold their references, so their values are copied twice: file by file into an
intermediate array, read with the chunks and codecs of each file (`copy_mismatched`), and from there
like any other source. `unify_chunks` presents the files as if they had the intermediate chunks.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.pipeline.argument_errors import array_error
from icefloe.pipeline.arrays.array_copy import STAGE_CODECS
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.boxes import Box, find_divisor, format_shape, get_box_bytes, plan_copy
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.staged_refs import ParsedFile, StagedRefs, load_staged
from icefloe.pipeline.report import JobFailedError
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit, writing_repository
from icefloe.session import ForkSession, contents
from icefloe.spark.engine.tasks import format_error
from icefloe.store.open_array import open_array
from icefloe.virtual.arrays import VirtualArray
from icefloe.virtual.contiguous import align_chunk_lengths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.pipeline.files.file_job import CombinedFiles


def unify_chunks(
    files: Sequence[ParsedFile], dims: Sequence[str], last: int | None
) -> list[ParsedFile]:
    """Present files with mismatched chunks as if they had common chunks.

    ``last`` is the index of the last file, the only one that may end within a chunk; None if no
    file may.
    """
    unified = list(files)
    for path in unified[0].dataset.arrays if unified else ():
        arrays = _collect_arrays(unified, path)
        if arrays and not _has_common_grid(arrays, dims, last):
            unified = [
                _with_chunk_grid(file, path, _choose_stage_chunks(arrays, dims), arrays[0].metadata)
                for file in unified
            ]
    return unified


def copy_mismatched(
    run: JobRun,
    scratch: ForkSession,
    combined: CombinedFiles,
    group: str,
    positions: Mapping[str, Mapping[int, tuple[int, ...]]],
) -> None:
    """Copy the values of arrays with mismatched chunks into intermediate arrays.

    ``scratch`` has the empty intermediate arrays in ``group``; ``positions`` has the first chunk of
    each file (by index) in each array. Raises `JobFailedError` with the files that cannot be read.
    """
    units = [
        unit
        for path, first_chunks in positions.items()
        for number, first_chunk in first_chunks.items()
        for unit in _plan_units(run, combined.files[number], path, f"{group}/{path}", first_chunk)
    ]
    unreadable = run.write_units(scratch, units, _copy_part)
    if unreadable:
        raise JobFailedError(run.name, unreadable)


@dataclass(frozen=True, slots=True)
class _FilePart:
    """A box of an array in the file at ``position`` of ``staged``, and its target box."""

    url: str
    staged: StagedRefs
    position: int
    path: str
    document: Mapping[str, Any]
    source_box: Box
    target: str
    target_box: Box


def _plan_units(
    run: JobRun, file: ParsedFile, path: str, target: str, first_chunk: tuple[int, ...]
) -> list[WorkUnit]:
    array = ArrayDocument(path, file.mismatched[path])
    stage = file.dataset.arrays[path].chunk_shape or ()
    plan = plan_copy(array.shape, array.item_bytes, array.chunks, stage, max_bytes=run.task_bytes)
    if plan.stage is not None:  # the copy itself would need an intermediate array
        raise array_error(
            f"{file.url}: {path}: its chunks of {format_shape(array.chunks)} differ from "
            f"those of other files, and copying them needs more than {run.task_bytes:,} bytes: "
            "increase task_bytes"
        )
    staged, position = file.staged
    units = []
    for box in plan.first_boxes:
        target_box = tuple(
            slice(span.start + chunk * length, span.stop + chunk * length)
            for span, chunk, length in zip(box, first_chunk, stage, strict=True)
        )
        part = _FilePart(file.url, staged, position, path, array.document, box, target, target_box)
        label = f"{path} of {file.url}"
        units.append(WorkUnit(label, get_box_bytes(box, array.item_bytes), part))
    return units


def _copy_part(writer: TaskWriter, part: _FilePart) -> None:
    connection = writer.fork.connection
    refs = load_staged(connection, part.staged)[part.position][part.path]
    # Open the file as an array of a private session.
    session = ForkSession(connection, contents.get_base_id(writer.fork), origin=writer.fork.origin)
    name = f"file-{uuid.uuid4().hex}"
    path = parse_path(f"/{name}")
    contents.set_metadata(session, path, json.dumps(dict(part.document)).encode())
    contents.set_payloads(session, path, refs.coords, refs.payloads)
    try:
        values = np.asarray(open_array(session.store, name)[part.source_box])
    except Exception as error:  # noqa: BLE001 - reported with all others
        writer.left_out.setdefault(part.url, format_error(error))
        return
    with writing_repository():
        writer.open_target(part.target)[part.target_box] = values


def _collect_arrays(files: Sequence[ParsedFile], path: str) -> list[VirtualArray]:
    """Return an array of each file; empty if it is not virtual, or has other dimensions, in one."""
    arrays: list[VirtualArray] = []
    for number, file in enumerate(files):
        array = file.dataset.arrays.get(path)
        if not isinstance(array, VirtualArray):
            return []
        if arrays and array.dimension_names != arrays[0].dimension_names:
            return []
        arrays.append(VirtualArray(array.metadata, file.make_marker(path, number)))
    return arrays


def _has_common_grid(arrays: Sequence[VirtualArray], dims: Sequence[str], last: int | None) -> bool:
    names = arrays[0].dimension_names
    axes = [axis for axis, name in enumerate(names) if name in dims]
    if len(axes) == 1:
        arrays = align_chunk_lengths(arrays, axes[0])
    first = arrays[0]
    chunk = first.chunk_shape
    return chunk is not None and all(
        array.chunk_shape == chunk
        and array.metadata["codecs"] == first.metadata["codecs"]
        and (number == last or all(array.shape[axis] % chunk[axis] == 0 for axis in axes))
        for number, array in enumerate(arrays)
    )


def _choose_stage_chunks(arrays: Sequence[VirtualArray], dims: Sequence[str]) -> tuple[int, ...]:
    """Choose a chunk shape that divides the shape of every file along ``dims``."""
    first = arrays[0]
    chunk = first.chunk_shape or first.shape
    lengths = []
    for axis, name in enumerate(first.dimension_names):
        length = max(1, min(chunk[axis], first.shape[axis]))
        if name in dims:
            length = find_divisor(gcd(*(array.shape[axis] for array in arrays)) or 1, length)
        lengths.append(length)
    return tuple(lengths)


def _with_chunk_grid(
    file: ParsedFile, path: str, chunk_shape: tuple[int, ...], first: Mapping[str, Any]
) -> ParsedFile:
    """Present an array with other chunks; ``first`` is its metadata in the first file."""
    original = file.dataset.arrays[path].metadata
    is_numeric = ArrayDocument(path, first).dtype.kind in "biufcmM"
    metadata = {
        **original,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "codecs": [CODECS[0], *STAGE_CODECS] if is_numeric else first["codecs"],
    }
    dataset = file.dataset
    arrays = {**dataset.arrays, path: replace(dataset.arrays[path], metadata=metadata)}
    mismatched = {**file.mismatched, path: original}
    return replace(file, dataset=replace(dataset, arrays=arrays), mismatched=mismatched)
