"""The dimensions of a table: selected positions and the chunks that contain them.

A table is a grid of blocks, one per chunk with selected positions. Blocks are numbered in C order,
and a partition is a range of block numbers. Pure, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from icefloe.spark.option_parsing import input_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

Positions: TypeAlias = "range | NDArray[np.int64]"
"""Selected positions, ascending and distinct."""

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Start and stop along each dimension."""

_MAX_CHUNKS: Final = 1 << 24
"""Limit along one dimension, which takes 0.5 GB; untrusted metadata may claim any number."""


@dataclass(frozen=True, slots=True)
class RegularEdges:
    """Edges of chunks of equal length, computed when indexed."""

    path: str
    length: int
    chunk_length: int

    def __len__(self) -> int:
        return -(-self.length // self.chunk_length) + 1

    def __getitem__(self, number: Any) -> Any:
        return np.minimum(number * np.int64(self.chunk_length), self.length)

    def find_chunks(
        self, name: str, positions: Positions
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunks that contain positions, and the end of each in the positions."""
        if not len(positions):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        first, last = (int(positions[end]) // self.chunk_length for end in (0, -1))
        num_chunks = last - first + 1
        if min(num_chunks, len(positions)) > _MAX_CHUNKS:
            raise input_error(
                f"array {self.path!r} has {len(self) - 1} chunks of length {self.chunk_length} "
                f"along {name!r}, more than the limit of {_MAX_CHUNKS}: select fewer of its "
                f"{self.length} positions with 'isel', or rechunk it"
            )
        if len(positions) >= num_chunks:
            chunks, ends = _find_chunks(positions, self[np.arange(first, last + 2)])
            return chunks + first, ends
        # Sparse: many chunks between the first and the last contain no position.
        if isinstance(positions, range):
            positions = np.arange(positions.start, positions.stop, positions.step)
        chunks = positions // self.chunk_length
        ends = np.append(np.flatnonzero(np.diff(chunks)) + 1, len(chunks))
        return chunks[ends - 1], ends


Edges: TypeAlias = "RegularEdges | NDArray[np.int64]"
"""Start of each chunk along a dimension, and the end of the last chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One dimension of a table: selected positions and the chunks that contain them.

    ``positions[offsets[i]:offsets[i + 1]]`` are in the chunk ``chunks[i]``.
    """

    name: str
    positions: Positions
    chunks: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def from_edges(cls, name: str, positions: Positions, edges: Edges) -> Axis:
        """Split selected positions at chunk edges; raise if there are too many chunks."""
        chunks, ends = (
            edges.find_chunks(name, positions)
            if isinstance(edges, RegularEdges)
            else _find_chunks(positions, edges)
        )
        return cls(name, positions, chunks, np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def num_blocks(self) -> int:
        """Number of chunks with selected positions."""
        return len(self.chunks)

    @property
    def block_lengths(self) -> NDArray[np.int64]:
        """Number of selected positions in each block."""
        return np.diff(self.offsets)

    def split(self, position: int) -> Axis:
        """Split the block of a position, so that a block begins at the position."""
        index = bisect_left(self.positions, position)
        number = int(np.searchsorted(self.offsets, index))
        if number == len(self.offsets) or self.offsets[number] == index:
            return self
        return replace(
            self,
            chunks=np.insert(self.chunks, number, self.chunks[number - 1]),
            offsets=np.insert(self.offsets, number, index),
        )

    def find_blocks(self, start: int, stop: int) -> slice:
        """Return the blocks with selected positions from ``start`` to ``stop``."""
        first, last = (bisect_left(self.positions, position) for position in (start, stop))
        if first >= last:
            return slice(0, 0)
        return slice(
            int(np.searchsorted(self.offsets, first, "right")) - 1,
            int(np.searchsorted(self.offsets, last, "left")),
        )

    def make_indexer(self, first: int, stop: int) -> slice | NDArray[np.int64]:
        """Return an array index for ``positions[first:stop]``."""
        part = self.positions[first:stop]
        return slice(part.start, part.stop, part.step) if isinstance(part, range) else part


def iter_boxes(first: int, stop: int, shape: Sequence[int]) -> Iterator[Box]:
    """Split a range of cells of a grid, numbered in C order, into as few boxes as possible."""
    if not shape:
        if first < stop:
            yield ()
        return
    inner = prod(shape[1:])
    row, start = divmod(first, inner)
    last, end = divmod(stop, inner)
    if start and row < last:
        yield from (((row, row + 1), *box) for box in iter_boxes(start, inner, shape[1:]))
        row, start = row + 1, 0
    if row < last:
        yield ((row, last), *((0, size) for size in shape[1:]))
    if start < end:
        yield from (((last, last + 1), *box) for box in iter_boxes(start, end, shape[1:]))


def iter_pieces(shape: Sequence[int], max_size: int) -> Iterator[Box]:
    """Split a box into pieces that are contiguous in C order, of at most ``max_size`` cells."""
    split = len(shape)
    inner = 1
    while split and inner * shape[split - 1] <= max_size:
        split -= 1
        inner *= shape[split]
    if split == 0:
        if prod(shape):
            yield tuple((0, size) for size in shape)
        return
    step = max(1, max_size // inner)
    inner_box = tuple((0, size) for size in shape[split:])
    for outer in np.ndindex(*shape[: split - 1]):
        outer_box = tuple((index, index + 1) for index in outer)
        for start in range(0, shape[split - 1], step):
            yield (*outer_box, (start, min(start + step, shape[split - 1])), *inner_box)


def _find_chunks(
    positions: Positions, edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chunks that contain positions, and the end of each in the positions."""
    if isinstance(positions, range):
        offsets = np.clip(-((positions.start - edges) // positions.step), 0, len(positions))
    else:
        offsets = np.searchsorted(positions, edges)
    chunks = np.flatnonzero(np.diff(offsets))
    return chunks, offsets[chunks + 1]
