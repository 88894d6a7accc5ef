"""Files whose chunks share no common grid, such as monthly files stored as one chunk each.

Their references have no place in one array. Their values are copied twice: file by file, with each
file's chunks and codecs, into an intermediate array (`copy_mismatched`), and from there like any
other source. Until then `unify_chunks` presents each file as if it had the intermediate chunks.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.pipeline.argument_errors import invalid_array
from icefloe.pipeline.arrays.array_copy import STAGE_CODECS
from icefloe.pipeline.arrays.array_document import CODECS, ArrayDocument
from icefloe.pipeline.arrays.boxes import Box, box_bytes, format_shape, largest_divisor, plan_copy
from icefloe.pipeline.arrays.nodes import parse_path
from icefloe.pipeline.files.staged_refs import ParsedFile, StagedRefs, load_staged
from icefloe.pipeline.run import JobRun, TaskWriter, WorkUnit
from icefloe.session import ForkSession, contents
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

    ``last`` is the index of the last file, the only one that may end within a chunk; None if
    several do.
    """
    found = list(files)
    for path in found[0].dataset.arrays if found else ():
        arrays = _arrays(found, path)
        if arrays and not _have_one_grid(arrays, dims, last):
            found = [
                _with_chunk_grid(file, path, _stage_grid(arrays, dims), arrays[0].metadata)
                for file in found
            ]
    return found


def copy_mismatched(
    run: JobRun,
    scratch: ForkSession,
    found: CombinedFiles,
    group: str,
    places: Mapping[str, Mapping[int, tuple[int, ...]]],
) -> None:
    """Copy the values of arrays with mismatched chunks into a session.

    ``scratch`` has the arrays, empty, in ``group``; ``places`` has the first chunk of each file in
    each array.
    """
    units = [
        unit
        for path, starts in places.items()
        for number, start in starts.items()
        for unit in _plan_units(run, found.files[number], path, f"{group}/{path}", start)
    ]
    run.write_units(scratch, units, _copy)


@dataclass(frozen=True, slots=True)
class _FilePart:
    """A box of an array of a file, and its target box."""

    staged: StagedRefs
    position: int
    path: str
    document: Mapping[str, Any]
    read: Box
    target: str
    write: Box


def _plan_units(
    run: JobRun, file: ParsedFile, path: str, target: str, start: tuple[int, ...]
) -> list[WorkUnit]:
    own = ArrayDocument(path, file.mismatched[path])
    stage = file.dataset.arrays[path].chunk_shape or ()
    plan = plan_copy(own.shape, own.item_bytes, own.chunks, stage, max_bytes=run.task_bytes)
    if plan.stage is not None:
        raise invalid_array(
            f"{file.url}: {path}: its chunks of {format_shape(own.chunks)} differ from "
            f"those of other files, and copying them needs more than {run.task_bytes:,} bytes: "
            "raise task_bytes"
        )
    staged, position = file.staged
    units = []
    for read in plan.first_boxes:
        write = tuple(
            slice(part.start + first * length, part.stop + first * length)
            for part, first, length in zip(read, start, stage, strict=True)
        )
        part = _FilePart(staged, position, path, own.document, read, target, write)
        units.append(WorkUnit(file.url, box_bytes(read, own.item_bytes), part))
    return units


def _copy(writer: TaskWriter, part: _FilePart) -> None:
    connection = writer.fork.connection
    refs = load_staged(connection, part.staged)[part.position][part.path]
    # The file as an array in a private session.
    own = ForkSession(connection, contents.get_base_id(writer.fork), origin=writer.fork.origin)
    name = f"file-{uuid.uuid4().hex}"
    path = parse_path(f"/{name}")
    contents.set_metadata(own, path, json.dumps(dict(part.document)).encode())
    contents.set_payloads(own, path, refs.coords, refs.payloads)
    values = open_array(own.store, name)[part.read]
    writer.open_target(part.target)[part.write] = np.asarray(values)


def _arrays(files: Sequence[ParsedFile], path: str) -> list[VirtualArray]:
    """Return an array of all files; empty if a file lacks it or has other dimensions."""
    found: list[VirtualArray] = []
    for number, file in enumerate(files):
        array = file.dataset.arrays.get(path)
        if not isinstance(array, VirtualArray):
            return []
        if found and array.dimension_names != found[0].dimension_names:
            return []
        found.append(VirtualArray(array.metadata, file.marker(path, number)))
    return found


def _have_one_grid(arrays: Sequence[VirtualArray], dims: Sequence[str], last: int | None) -> bool:
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


def _stage_grid(arrays: Sequence[VirtualArray], dims: Sequence[str]) -> tuple[int, ...]:
    """Return a chunk shape that every file is a multiple of."""
    first = arrays[0]
    chunk = first.chunk_shape or first.shape
    lengths = []
    for axis, name in enumerate(first.dimension_names):
        length = max(1, min(chunk[axis], first.shape[axis]))
        if name in dims:
            length = largest_divisor(gcd(*(array.shape[axis] for array in arrays)) or 1, length)
        lengths.append(length)
    return tuple(lengths)


def _with_chunk_grid(
    file: ParsedFile, path: str, grid: tuple[int, ...], like: Mapping[str, Any]
) -> ParsedFile:
    own = file.dataset.arrays[path].metadata
    is_number = ArrayDocument(path, like).dtype.kind in "biufcmM"
    metadata = {
        **own,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(grid)}},
        "codecs": [CODECS[0], *STAGE_CODECS] if is_number else like["codecs"],
    }
    dataset = file.dataset
    arrays = {**dataset.arrays, path: replace(dataset.arrays[path], metadata=metadata)}
    return replace(
        file, dataset=replace(dataset, arrays=arrays), mismatched={**file.mismatched, path: own}
    )
