"""Arrays as a table of chunks: one row per stored chunk, or per stored shard of a sharded array.

The column ``data`` has the values as little-endian bytes in C order, decoded by the codecs of the
array only: CF scales, offsets and fill values are not applied. A chunk at the edge of an array is
clipped to the array. ``numpy.frombuffer(row.data, row.dtype).reshape(row.shape)`` returns values.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import input_error
from icefloe.spark.reading.axes import Axis, Box, Edges, iter_boxes
from icefloe.spark.reading.group import Group, get_chunk_edges
from icefloe.spark.reading.partitions import (
    MAX_BYTES_IN_MEMORY,
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
"""Index of an array in the plan, and a range of its selected chunks, numbered in C order."""

_TARGET_BATCH_BYTES: Final = 8 << 20
"""A record batch is complete once its values have this many bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayChunks:
    """The selected chunks of one array.

    Along each dimension, ``edges`` are the edges of all chunks, and ``indices`` the indices of the
    selected chunks. ``dtype`` is a little-endian NumPy type string, such as ``<f4``.
    """

    path: str
    dtype: str
    edges: tuple[Edges, ...]
    indices: tuple[NDArray[np.int64], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of selected chunks along each dimension."""
        return tuple(map(len, self.indices))

    @property
    def num_bytes(self) -> int:
        """Decoded size of the selected chunks, if all of them are stored."""
        lengths = (
            int((edges[indices + 1] - edges[indices]).sum())
            for edges, indices in zip(self.edges, self.indices, strict=True)
        )
        return prod(lengths) * np.dtype(self.dtype).itemsize

    @property
    def mean_chunk_bytes(self) -> float:
        """Average decoded size of a selected chunk."""
        return self.num_bytes / max(prod(self.grid), 1)


@dataclass(frozen=True, slots=True, eq=False)
class ChunksPlan:
    """`ReadPlan` of a table of chunks; a partition is a sequence of `ChunkRange`."""

    arrays: tuple[ArrayChunks, ...]
    target_bytes: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def partitions(self, source: object = None) -> list[tuple[ChunkRange, ...]]:  # noqa: ARG002 - required by ReadPlan
        """Split the chunks of each array into ranges; small ranges share a partition."""
        total_bytes = sum(array.num_bytes for array in self.arrays)
        target_bytes = choose_target_bytes(total_bytes, self.target_bytes)
        ranges_with_sizes = (
            ((array_index, chunk_range), len(chunk_range) * array.mean_chunk_bytes)
            for array_index, array in enumerate(self.arrays)
            for chunk_range in split_evenly(prod(array.grid), array.num_bytes, target_bytes)
        )
        return pack_tasks(ranges_with_sizes, target_bytes)

    def read(
        self, source: SnapshotSource, partition: Sequence[ChunkRange]
    ) -> Iterator[pa.RecordBatch]:
        return read_chunks(source.open_session(), self, partition)


def plan_chunks(session: Session, options: ReadOptions) -> ChunksPlan:
    """Plan a table of the chunks that overlap the selection; each row has a whole chunk.

    Raises if the group, a variable or a dimension does not exist, a selection is empty, or the
    options name a variable of variable-length values. Without names, such variables are skipped.
    """
    group = Group.fetch(session, options.group)
    names = options.variables
    variables = [group.get_variable(name) for name in (group.variables if names is None else names)]
    dims = tuple(dict.fromkeys(dim for variable in variables for dim in variable.dims))
    require_selectable(options, dims)
    # Arrays may disagree about the length of a dimension that is not selected.
    selected_dims = [dim for dim in dims if dim in options.sel or dim in options.isel]
    sizes = group.get_sizes(variables, dims=selected_dims)
    positions = select(session, group, selected_dims, sizes, options)
    arrays = []
    for variable in variables:
        array = open_array(session.store, variable.path)
        if array.dtype.hasobject or array.dtype.kind == "T":
            if names is None:
                continue
            raise input_error(
                f"variable {variable.name!r} has values of variable length, such as strings, which "
                "have no fixed layout in bytes: read it with layout='rows'"
            )
        edges = get_chunk_edges(array)
        indices = tuple(
            Axis.from_edges(dim, positions.get(dim, range(length)), dim_edges).chunks
            for dim, length, dim_edges in zip(variable.dims, variable.shape, edges, strict=True)
        )
        dtype = array.dtype.newbyteorder("<").str
        arrays.append(ArrayChunks(variable.path, dtype, edges, indices))
    return ChunksPlan(tuple(arrays), options.target_bytes)


def read_chunks(
    session: Session, plan: ChunksPlan, ranges: Sequence[ChunkRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the stored chunks of ranges in batches of rows; adjacent chunks are read together."""
    rows: list[tuple[Any, ...]] = []
    num_bytes = 0
    for row in _iter_rows(session, plan, ranges):
        rows.append(row)
        num_bytes += len(row[-1])  # the column `data`
        if num_bytes >= _TARGET_BATCH_BYTES:
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
    for array_index, chunk_range in ranges:
        array_chunks = plan.arrays[array_index]
        array = open_array(session.store, array_chunks.path)
        chunks_per_read = max(1, int(MAX_BYTES_IN_MEMORY / max(array_chunks.mean_chunk_bytes, 1)))
        for first in range(chunk_range.start, chunk_range.stop, chunks_per_read):
            stop = min(first + chunks_per_read, chunk_range.stop)
            for box in iter_boxes(first, stop, array_chunks.grid):
                for indices in _split_at_gaps(array_chunks, box):
                    yield from _read_adjacent_chunks(session, array, array_chunks, indices)


def _split_at_gaps(array_chunks: ArrayChunks, box: Box) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Split a box into boxes of adjacent chunks; yield the chunk indices along each dimension."""
    runs_by_dim = []
    for dim_indices, (first, stop) in zip(array_chunks.indices, box, strict=True):
        box_indices = dim_indices[first:stop]
        runs_by_dim.append(np.split(box_indices, np.flatnonzero(np.diff(box_indices) > 1) + 1))
    return itertools.product(*runs_by_dim)


def _read_adjacent_chunks(
    session: Session, array: Any, array_chunks: ArrayChunks, indices: tuple[NDArray[np.int64], ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of stored chunks; one read covers all of them."""
    path = Path(array_chunks.path)
    product = itertools.product(*(dim_indices.tolist() for dim_indices in indices))
    chunks = [chunk for chunk in product if contents.get_payload(session, path, chunk) is not None]
    if not chunks:
        return
    start, _ = _get_bounds(array_chunks, [dim_indices[0] for dim_indices in indices])
    _, stop = _get_bounds(array_chunks, [dim_indices[-1] for dim_indices in indices])
    box_values = array[tuple(map(slice, start, stop))]
    values = np.asarray(box_values).astype(array_chunks.dtype, copy=False)
    for chunk in chunks:
        chunk_start, chunk_stop = _get_bounds(array_chunks, chunk)
        shape = np.subtract(chunk_stop, chunk_start).tolist()
        slices = map(slice, np.subtract(chunk_start, start), np.subtract(chunk_stop, start))
        data = values[tuple(slices)].tobytes()
        yield array_chunks.path, chunk, chunk_start, shape, array_chunks.dtype, data


def _get_bounds(array_chunks: ArrayChunks, chunk: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the start and the stop of a chunk along each dimension."""
    start = [int(edges[index]) for edges, index in zip(array_chunks.edges, chunk, strict=True)]
    stop = [int(edges[index + 1]) for edges, index in zip(array_chunks.edges, chunk, strict=True)]
    return start, stop
