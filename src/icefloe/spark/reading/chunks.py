"""Arrays as chunks: one row per stored chunk, with its decoded values as bytes.

Values are as stored, before scales, offsets and fill values are applied; a chunk at the end of an
array is cut off there. ``numpy.frombuffer(row.data, row.dtype).reshape(row.shape)`` is the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.axes import Axis, Box, Edges, boxes
from icefloe.spark.reading.group import Group, chunk_edges
from icefloe.spark.reading.partitions import (
    MAX_BYTES_AT_ONCE,
    choose_target_bytes,
    pack_tasks,
    split_evenly,
)
from icefloe.spark.reading.selections import require_selectable, select
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.spark.reading.read_options import ReadOptions
    from icefloe.spark.reading.snapshot_source import SnapshotSource

_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("chunk", pa.list_(pa.int64())),
        ("offset", pa.list_(pa.int64())),
        ("shape", pa.list_(pa.int64())),
        ("dtype", pa.string()),
        ("data", pa.binary()),
    ]
)

ChunkRange: TypeAlias = tuple[int, range]
"""Some chunks of one array: its number in the plan, and theirs among the selected ones."""

_BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ArrayChunks:
    """Chunk edges and selected chunks of one array, by dimension; ``dtype`` is numpy's text."""

    path: str
    dtype: str
    edges: tuple[Edges, ...]
    chunks: tuple[NDArray[np.int64], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of selected chunks along each dimension."""
        return tuple(map(len, self.chunks))

    @property
    def num_bytes(self) -> int:
        """Size of the chunks, if all of them are stored."""
        lengths = (
            int((edges[chunks + 1] - edges[chunks]).sum())
            for edges, chunks in zip(self.edges, self.chunks, strict=True)
        )
        return prod(lengths) * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> float:
        """Average size of a chunk."""
        return self.num_bytes / max(prod(self.grid), 1)


@dataclass(frozen=True, slots=True, eq=False)
class ChunksPlan:
    """`ReadPlan` of a table of chunks; a partition is a sequence of `ChunkRange`."""

    arrays: tuple[ArrayChunks, ...]
    target_bytes: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def partitions(self, source: object = None) -> list[tuple[ChunkRange, ...]]:  # noqa: ARG002 - of ReadPlan
        """Split the chunks of each array into ranges; small ones, of any arrays, share a task."""
        total = sum(array.num_bytes for array in self.arrays)
        target = choose_target_bytes(total, self.target_bytes)
        ranges = (
            ((number, numbers), len(numbers) * array.chunk_bytes)
            for number, array in enumerate(self.arrays)
            if prod(array.grid)
            for numbers in split_evenly(prod(array.grid), array.num_bytes, target)
        )
        return pack_tasks(ranges, target)

    def read(
        self, source: SnapshotSource, partition: Sequence[ChunkRange]
    ) -> Iterator[pa.RecordBatch]:
        return read_chunks(source.session(), self, partition)


def plan_chunks(session: Session, options: ReadOptions) -> ChunksPlan:
    """Plan a table of chunks: those that overlap the selection, each as a whole.

    Raises if a node does not exist, a selection is empty, or values of an array have no fixed size.
    """
    group = Group.fetch(session, options.group)
    names = options.variables
    chosen = list(group.variables.values()) if names is None else list(map(group.variable, names))
    dims = tuple(dict.fromkeys(name for variable in chosen for name in variable.dims))
    require_selectable(options, dims)
    # Arrays may disagree about the length of a dimension that is not selected.
    along = [name for name in dims if name in options.sel or name in options.isel]
    selected = select(session, group, along, group.sizes(chosen, along=along), options)
    arrays = []
    for variable in chosen:
        array = open_array(session.store, variable.path)
        if array.dtype.hasobject or array.dtype.kind == "T":
            if names is None:
                continue
            raise invalid_input(
                f"variable {variable.name!r} has strings of any length, which have no fixed "
                "layout in bytes: read it with layout='rows'"
            )
        edges = chunk_edges(array)
        chunks = tuple(
            Axis.from_edges(name, selected.get(name, range(length)), along_edges).chunks
            for name, length, along_edges in zip(variable.dims, variable.shape, edges, strict=True)
        )
        dtype = array.dtype.newbyteorder("<").str
        arrays.append(ArrayChunks(variable.path, dtype, edges, chunks))
    return ChunksPlan(tuple(arrays), options.target_bytes)


def read_chunks(
    session: Session, plan: ChunksPlan, ranges: Sequence[ChunkRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some chunks; adjacent chunks are read together."""
    rows: list[tuple[Any, ...]] = []
    num_bytes = 0
    for row in _iter_rows(session, plan, ranges):
        rows.append(row)
        num_bytes += len(row[-1])
        if num_bytes >= _BATCH_BYTES:
            yield _make_batch(rows)
            rows, num_bytes = [], 0
    if rows:
        yield _make_batch(rows)


def _make_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    arrays = [pa.array(values, field.type) for values, field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _iter_rows(
    session: Session, plan: ChunksPlan, ranges: Sequence[ChunkRange]
) -> Iterator[tuple[Any, ...]]:
    for number, numbers in ranges:
        selected = plan.arrays[number]
        array = open_array(session.store, selected.path)
        at_once = max(1, int(MAX_BYTES_AT_ONCE / max(selected.chunk_bytes, 1)))
        for first in range(numbers.start, numbers.stop, at_once):
            for box in boxes(first, min(first + at_once, numbers.stop), selected.grid):
                for run in _split_at_gaps(selected, box):
                    yield from _read_run(session, array, selected, run)


def _split_at_gaps(selected: ArrayChunks, box: Box) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Split a box of selected chunks where chunks between them are not selected."""
    runs = []
    for chunks, (first, stop) in zip(selected.chunks, box, strict=True):
        numbers = chunks[first:stop]
        runs.append(np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1))
    for place in np.ndindex(*map(len, runs)):
        yield tuple(along[index] for along, index in zip(runs, place, strict=True))


def _read_run(
    session: Session, array: Any, selected: ArrayChunks, run: tuple[NDArray[np.int64], ...]
) -> Iterator[tuple[Any, ...]]:
    path = Path(selected.path)
    grid = np.ndindex(*map(len, run))
    indices = [
        tuple(int(along[index]) for along, index in zip(run, place, strict=True)) for place in grid
    ]
    stored = [chunk for chunk in indices if contents.get_payload(session, path, chunk) is not None]
    if not stored:
        return
    start = [int(edges[along[0]]) for edges, along in zip(selected.edges, run, strict=True)]
    stop = [int(edges[along[-1] + 1]) for edges, along in zip(selected.edges, run, strict=True)]
    values = np.asarray(array[tuple(map(slice, start, stop))]).astype(selected.dtype, copy=False)
    for chunk in stored:
        low = [int(edges[index]) for edges, index in zip(selected.edges, chunk, strict=True)]
        high = [int(edges[index + 1]) for edges, index in zip(selected.edges, chunk, strict=True)]
        inside = tuple(map(slice, np.subtract(low, start), np.subtract(high, start)))
        shape = [end - begin for begin, end in zip(low, high, strict=True)]
        yield selected.path, chunk, low, shape, selected.dtype, values[inside].tobytes()
