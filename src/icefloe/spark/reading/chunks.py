"""Arrays as a table of chunks: one row per stored chunk, with its values as bytes.

Values are decoded by the codecs of the array only: CF scales, offsets and fill values are not
applied. A chunk at the edge of an array is clipped to the array.
``numpy.frombuffer(row.data, row.dtype).reshape(row.shape)`` returns its values.
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
"""Index of an array in the plan, and a range of its selected chunks in C order."""

_BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ArrayChunks:
    """Chunk edges and selected chunks of one array by dimension.

    ``dtype`` is a NumPy type string, such as ``<f4``.
    """

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
        """Size of the selected chunks, if all of them are stored."""
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

    def partitions(self, source: object = None) -> list[tuple[ChunkRange, ...]]:  # noqa: ARG002 - required by ReadPlan
        """Split the chunks of each array into ranges; small ranges share a task."""
        total = sum(array.num_bytes for array in self.arrays)
        target = choose_target_bytes(total, self.target_bytes)
        ranges = (
            ((array_index, chunk_range), len(chunk_range) * array.chunk_bytes)
            for array_index, array in enumerate(self.arrays)
            if prod(array.grid)
            for chunk_range in split_evenly(prod(array.grid), array.num_bytes, target)
        )
        return pack_tasks(ranges, target)

    def read(
        self, source: SnapshotSource, partition: Sequence[ChunkRange]
    ) -> Iterator[pa.RecordBatch]:
        return read_chunks(source.open_session(), self, partition)


def plan_chunks(session: Session, options: ReadOptions) -> ChunksPlan:
    """Plan a table of the chunks that overlap the selection; chunks are not cut to it.

    Raises if a node does not exist, a selection is empty, or a variable named in the options has
    values of no fixed size; other such arrays are skipped.
    """
    group = Group.fetch(session, options.group)
    names = options.variables
    variables = [group.get_variable(name) for name in (group.variables if names is None else names)]
    dims = tuple(dict.fromkeys(name for variable in variables for name in variable.dims))
    require_selectable(options, dims)
    # Arrays may disagree about the length of a dimension that is not selected.
    selected_dims = [name for name in dims if name in options.sel or name in options.isel]
    sizes = group.get_sizes(variables, dims=selected_dims)
    selected = select(session, group, selected_dims, sizes, options)
    arrays = []
    for variable in variables:
        array = open_array(session.store, variable.path)
        if array.dtype.hasobject or array.dtype.kind == "T":
            if names is None:
                continue
            raise input_error(
                f"variable {variable.name!r} has strings of variable length, which have no fixed "
                "layout in bytes: read it with layout='rows'"
            )
        edges = get_chunk_edges(array)
        chunks = tuple(
            Axis.from_edges(name, selected.get(name, range(length)), dim_edges).chunks
            for name, length, dim_edges in zip(variable.dims, variable.shape, edges, strict=True)
        )
        dtype = array.dtype.newbyteorder("<").str
        arrays.append(ArrayChunks(variable.path, dtype, edges, chunks))
    return ChunksPlan(tuple(arrays), options.target_bytes)


def read_chunks(
    session: Session, plan: ChunksPlan, ranges: Sequence[ChunkRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges of chunks; adjacent chunks are read together."""
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
    for array_index, chunk_range in ranges:
        selected = plan.arrays[array_index]
        array = open_array(session.store, selected.path)
        chunks_per_read = max(1, int(MAX_BYTES_IN_MEMORY / max(selected.chunk_bytes, 1)))
        for first in range(chunk_range.start, chunk_range.stop, chunks_per_read):
            stop = min(first + chunks_per_read, chunk_range.stop)
            for box in iter_boxes(first, stop, selected.grid):
                for run in _split_at_gaps(selected, box):
                    yield from _read_run(session, array, selected, run)


def _split_at_gaps(selected: ArrayChunks, box: Box) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Split a box of selected chunks at chunks that are not selected."""
    runs = []
    for chunks, (first, stop) in zip(selected.chunks, box, strict=True):
        numbers = chunks[first:stop]
        runs.append(np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1))
    for indices in np.ndindex(*map(len, runs)):
        yield tuple(dim_runs[index] for dim_runs, index in zip(runs, indices, strict=True))


def _read_run(
    session: Session, array: Any, selected: ArrayChunks, run: tuple[NDArray[np.int64], ...]
) -> Iterator[tuple[Any, ...]]:
    path = Path(selected.path)
    chunks = itertools.product(*(numbers.tolist() for numbers in run))
    stored = [chunk for chunk in chunks if contents.get_payload(session, path, chunk) is not None]
    if not stored:
        return
    start = [int(edges[numbers[0]]) for edges, numbers in zip(selected.edges, run, strict=True)]
    stop = [int(edges[numbers[-1] + 1]) for edges, numbers in zip(selected.edges, run, strict=True)]
    values = np.asarray(array[tuple(map(slice, start, stop))]).astype(selected.dtype, copy=False)
    for chunk in stored:
        low = [int(edges[index]) for edges, index in zip(selected.edges, chunk, strict=True)]
        high = [int(edges[index + 1]) for edges, index in zip(selected.edges, chunk, strict=True)]
        inside = tuple(map(slice, np.subtract(low, start), np.subtract(high, start)))
        shape = [end - begin for begin, end in zip(low, high, strict=True)]
        yield selected.path, chunk, low, shape, selected.dtype, values[inside].tobytes()
