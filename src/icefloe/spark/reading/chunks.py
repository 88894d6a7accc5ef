"""Arrays as chunks: one row for each chunk that was written, with its values as bytes.

Values are as stored, before scales, offsets and fill values mean anything; a chunk at the end of an
array is cut off there. ``numpy.frombuffer(row.data, row.dtype).reshape(row.shape)`` is the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from icefloe.model.path import Path
from icefloe.session import contents
from icefloe.spark.reading.axes import Axis, boxes
from icefloe.spark.reading.group import Group, chunk_edges
from icefloe.spark.reading.partitions import (
    MAX_BYTES_AT_ONCE,
    choose_target_bytes,
    pack_tasks,
    split_evenly,
)
from icefloe.spark.reading.read_options import invalid_input
from icefloe.spark.reading.selections import require_selectable, select
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.spark.reading.axes import Box, Edges
    from icefloe.spark.reading.read_options import ReadOptions

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

Part: TypeAlias = tuple[int, range]
"""Some chunks of one array: its number in the plan, and theirs among those that are wanted."""

_BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ArrayChunks:
    """The chunks of one array that are wanted.

    Parameters
    ----------
    path
        The array.
    dtype
        Its type, in the spelling of numpy.
    edges
        Where its chunks begin, and the last ends, along each dimension.
    chunks
        Which chunks are wanted, along each dimension.
    """

    path: str
    dtype: str
    edges: tuple[Edges, ...]
    chunks: tuple[NDArray[np.int64], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks are wanted along each dimension."""
        return tuple(map(len, self.chunks))

    @property
    def num_bytes(self) -> int:
        """How much the chunks take, were all of them there."""
        lengths = (
            int((edges[chunks + 1] - edges[chunks]).sum())
            for edges, chunks in zip(self.edges, self.chunks, strict=True)
        )
        return prod(lengths) * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> float:
        """How much a chunk takes, about."""
        return self.num_bytes / max(prod(self.grid), 1)


@dataclass(frozen=True, slots=True, eq=False)
class ChunksPlan:
    """Which chunks of which arrays."""

    arrays: tuple[ArrayChunks, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return _SCHEMA

    def partitions(self, target_bytes: int | None) -> list[tuple[Part, ...]]:
        """Cut each array's chunks into ranges; small ones, also of many arrays, share a task."""
        target = choose_target_bytes(sum(one.num_bytes for one in self.arrays), target_bytes)
        pieces = (
            ((number, part), len(part) * one.chunk_bytes)
            for number, one in enumerate(self.arrays)
            if prod(one.grid)
            for part in split_evenly(prod(one.grid), one.num_bytes, target)
        )
        return pack_tasks(pieces, target)


def plan_chunks(session: Session, options: ReadOptions) -> ChunksPlan:
    """Plan which chunks are read: those that have anything of the selection, and these whole.

    Raises
    ------
    NodeNotFoundError
        If the group or a variable does not exist.
    InvalidInputError
        If a selection matches nothing, or values of an array have no fixed size.
    """
    group = Group.fetch(session, options.group)
    names = options.variables
    chosen = list(group.variables.values()) if names is None else list(map(group.variable, names))
    dims = tuple(dict.fromkeys(name for one in chosen for name in one.dims))
    require_selectable(options, dims)
    # Arrays that have nothing to do with a selection may well disagree about a dimension.
    along = [name for name in dims if name in options.sel or name in options.isel]
    selected = select(session, group, along, group.sizes(chosen, along=along), options)
    arrays = []
    for variable in chosen:
        array = open_array(session.store, variable.path)
        if array.dtype.hasobject or array.dtype.kind == "T":
            if names is None:
                continue
            raise invalid_input(
                f"variable {variable.name!r} has strings of any length, which are no bytes of an "
                "array: read it with layout='rows'"
            )
        edges = chunk_edges(array)
        axes = [
            Axis.from_edges(name, selected.get(name, range(length)), cuts)
            for name, length, cuts in zip(variable.dims, variable.shape, edges, strict=True)
        ]
        dtype = array.dtype.newbyteorder("<").str
        arrays.append(ArrayChunks(variable.path, dtype, edges, tuple(axis.chunks for axis in axes)))
    return ChunksPlan(tuple(arrays))


def read_chunks(
    session: Session, plan: ChunksPlan, parts: Sequence[Part]
) -> Iterator[pa.RecordBatch]:
    """Read some chunks of some arrays as batches; a stretch of neighbours is one read each."""
    rows = _Rows()
    for number, numbers in parts:
        wanted = plan.arrays[number]
        array = open_array(session.store, wanted.path)
        at_once = max(1, int(MAX_BYTES_AT_ONCE / max(wanted.chunk_bytes, 1)))
        for first in range(numbers.start, numbers.stop, at_once):
            for box in boxes(first, min(first + at_once, numbers.stop), wanted.grid):
                for run in _neighbours(wanted, box):
                    yield from _read_part(session, array, wanted, run, rows)
    yield from rows.flush()


def _neighbours(wanted: ArrayChunks, box: Box) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Cut a box of wanted chunks where chunks between them are not wanted."""
    runs = []
    for chunks, (first, stop) in zip(wanted.chunks, box, strict=True):
        numbers = chunks[first:stop]
        runs.append(np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1))
    for place in np.ndindex(*map(len, runs)):
        yield tuple(run[one] for run, one in zip(runs, place, strict=True))


def _read_part(
    session: Session,
    array: Any,
    wanted: ArrayChunks,
    part: tuple[NDArray[np.int64], ...],
    rows: _Rows,
) -> Iterator[pa.RecordBatch]:
    path = Path(wanted.path)
    written = [
        indices
        for place in np.ndindex(*map(len, part))
        for indices in [tuple(int(run[one]) for run, one in zip(part, place, strict=True))]
        if contents.get_payload(session, path, indices) is not None
    ]
    if not written:
        return
    start = tuple(int(edges[run[0]]) for edges, run in zip(wanted.edges, part, strict=True))
    stop = tuple(int(edges[run[-1] + 1]) for edges, run in zip(wanted.edges, part, strict=True))
    values = np.asarray(array[tuple(map(slice, start, stop))]).astype(wanted.dtype, copy=False)
    for indices in written:
        low = [int(edges[one]) for edges, one in zip(wanted.edges, indices, strict=True)]
        high = [int(edges[one + 1]) for edges, one in zip(wanted.edges, indices, strict=True)]
        inside = tuple(
            slice(one - first, other - first)
            for one, other, first in zip(low, high, start, strict=True)
        )
        shape = [b - a for a, b in zip(low, high, strict=True)]
        rows.add((wanted.path, indices, low, shape, wanted.dtype), values[inside].tobytes())
        yield from rows.flush(_BATCH_BYTES)


class _Rows:
    """Rows until they are enough for a batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, place: tuple[Any, ...], data: bytes) -> None:
        self._rows.append((*place, data))
        self._bytes += len(data)

    def flush(self, enough_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        if self._rows and self._bytes >= enough_bytes:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)
            ]
            self._rows, self._bytes = [], 0
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
