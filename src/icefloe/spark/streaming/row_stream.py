"""A stream of rows: the rows that each commit added or changed.

Rows are new if an array is longer than in the parent or did not exist there, even if their chunks
are not stored. Existing rows changed if one of their chunks was written.

A chunk that contains the former end of an array has existing and new rows, and an append rewrites
it. The transaction log does not record which cells changed, so the values of existing cells are
compared. Chunks of variables with fewer dimensions than the table are also compared: some writers
rewrite them with each append, and each chunk belongs to many rows. Rows with equal values are
omitted, so that an append yields only new rows. Planning reads no other chunks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import input_error
from icefloe.spark.reading.group import get_chunk_edges
from icefloe.spark.reading.rows import Column, RowsPlan, plan_rows, read_rows
from icefloe.spark.streaming.commit_changes import Changes, Commit, CommitPart
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    import zarr
    from numpy.typing import NDArray

    from icefloe.spark.reading.axes import Box
    from icefloe.spark.reading.read_options import ReadOptions

_MAX_BLOCKS: Final = 1 << 28
"""The driver marks changed blocks in a mask of one byte per block."""

_COMPARE_THREADS: Final = 8
"""Threads of the driver that fetch and compare chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class RowStreamPlan:
    """`StreamPlan` of rows."""

    plan: RowsPlan

    @classmethod
    def from_options(cls, session: Session, options: ReadOptions) -> RowStreamPlan:
        return cls(plan_rows(session, options))

    @property
    def schema(self) -> pa.Schema:
        return self.plan.schema

    def find_changes(self, commit: Commit) -> Iterator[Changes]:
        """Yield the blocks with new rows or changed chunks; new labels alone do not count."""
        # Appending a label rewrites a chunk that also contains existing labels.
        names = {axis.name for axis in self.plan.axes}
        stored = [column for column in self.plan.columns if column.path is not None]
        data_columns = [column for column in stored if column.name not in names] or stored
        arrays = [_ArrayVersions.open(column, commit) for column in data_columns]
        old_ends = {end for array in arrays for end in array.find_old_ends()}
        ends = tuple(
            tuple(sorted(end for axis, end in old_ends if axis == number))
            for number in range(len(self.plan.axes))
        )
        plan = self.plan.split(ends)
        if prod(plan.grid) > _MAX_BLOCKS:
            raise input_error(
                f"the table of this stream has {prod(plan.grid)} blocks, more than the limit of "
                f"{_MAX_BLOCKS}, because its chunks are small: select a part of it with 'isel', or "
                "use layout='chunks'"
            )
        numbers = np.flatnonzero(_find_changed_blocks(plan, arrays, commit.find_written_chunks()))
        sizes = np.full(len(numbers), plan.row_bytes)
        indices = np.unravel_index(numbers, plan.grid) if len(numbers) and plan.grid else ()
        for axis, index in zip(plan.axes, indices, strict=bool(indices)):
            sizes *= axis.block_lengths[index]
        yield Changes(commit.info, None, numbers, sizes, ends)

    def read(self, session: Session, parts: Sequence[CommitPart]) -> Iterator[pa.RecordBatch]:
        plan = self.plan.split(parts[0].ends)
        for part in parts:
            for blocks in part.ranges:
                yield from read_rows(session, plan, blocks)


def _find_changed_blocks(
    plan: RowsPlan, arrays: Sequence[_ArrayVersions], written: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.bool_]:
    mask = np.zeros(plan.grid, bool)
    candidates: list[tuple[_ArrayVersions, Box, tuple[slice, ...]]] = []
    for array in arrays:
        for box in array.find_new_boxes():
            mask[_find_blocks(plan, array.column, box)] = True
        is_broadcast = len(array.column.axes) < len(plan.axes)
        for box, has_old_end in array.find_rewritten_boxes(written):
            blocks = _find_blocks(plan, array.column, box)
            if has_old_end or is_broadcast:
                candidates.append((array, box, blocks))
            else:
                mask[blocks] = True
    # Skip blocks that are already marked or not selected.
    candidates = [candidate for candidate in candidates if not mask[candidate[2]].all()]
    with ThreadPoolExecutor(_COMPARE_THREADS) as pool:
        results = pool.map(lambda candidate: candidate[0].has_changed(candidate[1]), candidates)
        for (_, _, blocks), has_changed in zip(candidates, results, strict=True):
            mask[blocks] |= has_changed
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class _ArrayVersions:
    """An array of the table at a commit and at its parent; ``before`` is None for a new array."""

    column: Column
    before: zarr.Array[Any] | None
    after: zarr.Array[Any]

    @classmethod
    def open(cls, column: Column, commit: Commit) -> _ArrayVersions:
        """Open both versions of an array."""
        assert column.path is not None  # noqa: S101 - the caller checked
        array = open_array(commit.after.store, column.path)
        if commit.before is None:
            return cls(column, None, array)
        path = Path(column.path)
        old, new = (contents.get_node(session, path) for session in (commit.before, commit.after))
        # A new array may have the path of a deleted or moved one.
        if old is None or new is None or old.id != new.id:
            return cls(column, None, array)
        before = open_array(commit.before.store, column.path)
        return cls(column, before if before.ndim == array.ndim else None, array)

    def find_old_ends(self) -> Iterator[tuple[int, int]]:
        """Yield (axis of the table, former length) for each dimension that grew."""
        if self.before is not None:
            lengths = zip(self.column.axes, self.before.shape, self.after.shape, strict=True)
            yield from ((axis, old) for axis, old, new in lengths if 0 < old < new)

    def find_new_boxes(self) -> Iterator[Box]:
        """Yield boxes of new cells; boxes may overlap."""
        full_box = tuple((0, length) for length in self.after.shape)
        if self.before is None:
            yield full_box
            return
        for axis, (old, new) in enumerate(zip(self.before.shape, self.after.shape, strict=True)):
            if old < new:
                yield (*full_box[:axis], (old, new), *full_box[axis + 1 :])

    def find_rewritten_boxes(
        self, written: Mapping[str, NDArray[np.int64]]
    ) -> Iterator[tuple[Box, bool]]:
        """Yield the existing cells of each written chunk, and whether it contains a former end."""
        chunks = written.get(self.column.path or "")
        if self.before is None or chunks is None:
            return
        edges = get_chunk_edges(self.after)
        # Chunks beyond the end were deleted.
        chunks = chunks[(chunks < [len(dim_edges) - 1 for dim_edges in edges]).all(axis=1)]
        lows, highs = np.empty((2, *chunks.shape), np.int64)
        for number, dim_edges in enumerate(edges):
            lows[:, number] = dim_edges[chunks[:, number]]
            highs[:, number] = dim_edges[chunks[:, number] + 1]
        old_end = np.array(self.before.shape, np.int64)
        has_old_cells = (lows < old_end).all(axis=1)
        has_old_end = (highs > old_end).any(axis=1)
        for index in np.flatnonzero(has_old_cells).tolist():
            ends = np.minimum(highs[index], old_end).tolist()
            yield tuple(zip(lows[index].tolist(), ends, strict=True)), bool(has_old_end[index])

    def has_changed(self, box: Box) -> bool:
        """Whether values in a box changed."""
        assert self.before is not None  # noqa: S101 - the caller checked
        region = tuple(slice(*bounds) for bounds in box)
        old, new = (np.asarray(array[region]) for array in (self.before, self.after))
        return old.dtype != new.dtype or not np.array_equal(
            old, new, equal_nan=old.dtype.kind in "fcmM"
        )


def _find_blocks(plan: RowsPlan, column: Column, box: Box) -> tuple[slice, ...]:
    """Return the blocks of a table that overlap a box of one array."""
    blocks = [slice(None)] * len(plan.axes)
    for axis, (start, stop) in zip(column.axes, box, strict=True):
        blocks[axis] = plan.axes[axis].find_blocks(start, stop)
    return tuple(blocks)
