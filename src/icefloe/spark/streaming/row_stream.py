"""A stream of rows: those that each commit added or changed.

Rows are new if an array is longer than in the parent, or did not exist, whether or not their chunks
are stored. Existing rows changed if a chunk of theirs was written.

A chunk that contains the former end of an array has rows of both kinds, and an append rewrites it.
The transaction log does not say whether old cells changed too, so their values are compared. Chunks
of variables with fewer dimensions than the table are compared as well: some writers rewrite them
with each append, and each of them belongs to very many rows. Rows whose values are equal are left
out, so that an append only adds rows. No other chunk is read here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.option_parsing import invalid_input
from icefloe.spark.reading.group import chunk_edges
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
"""A byte of the driver's memory each, to mark those that changed."""

_COMPARED_AT_ONCE: Final = 8
"""Chunks fetched concurrently: the driver compares them before tasks run."""


@dataclass(frozen=True, slots=True, eq=False)
class RowStreamPlan:
    """`StreamPlan` of rows."""

    plan: RowsPlan

    @classmethod
    def make(cls, session: Session, options: ReadOptions) -> RowStreamPlan:
        return cls(plan_rows(session, options))

    @property
    def schema(self) -> pa.Schema:
        return self.plan.schema

    def find_changes(self, commit: Commit) -> Iterator[Changes]:
        """Yield the blocks with new rows or changed chunks; new labels alone do not count."""
        # Appending a label rewrites the chunk of labels, which has all others as well.
        names = {axis.name for axis in self.plan.axes}
        stored = [column for column in self.plan.columns if column.path is not None]
        counted = [column for column in stored if column.name not in names] or stored
        arrays = [_Growth.find(column, commit) for column in counted]
        ends = tuple(
            tuple(sorted({end for array in arrays for axis, end in array.ends() if axis == number}))
            for number in range(len(self.plan.axes))
        )
        plan = self.plan.split(ends)
        if prod(plan.grid) > _MAX_BLOCKS:
            raise invalid_input(
                f"the table of this stream has {prod(plan.grid)} blocks, more than {_MAX_BLOCKS}, "
                "because its chunks are small: follow a part of it with 'isel', or use "
                "layout='chunks'"
            )
        numbers = np.flatnonzero(_find_changed_blocks(plan, arrays, commit.find_written_chunks()))
        sizes = np.full(len(numbers), plan.row_bytes)
        places = np.unravel_index(numbers, plan.grid) if len(numbers) and plan.grid else ()
        for axis, along in zip(plan.axes, places, strict=bool(places)):
            sizes *= axis.block_lengths[along]
        yield Changes(commit.info, None, numbers, sizes, ends)

    def read(self, session: Session, parts: Sequence[CommitPart]) -> Iterator[pa.RecordBatch]:
        plan = self.plan.split(parts[0].ends)
        for part in parts:
            for blocks in part.ranges:
                yield from read_rows(session, plan, blocks)


def _find_changed_blocks(
    plan: RowsPlan, arrays: Sequence[_Growth], written: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.bool_]:
    mask = np.zeros(plan.grid, bool)
    uncertain: list[tuple[_Growth, Box, tuple[slice, ...]]] = []
    for array in arrays:
        for box in array.new_boxes():
            mask[_find_blocks(plan, array.column, box)] = True
        is_repeated = len(array.column.axes) < len(plan.axes)
        for box, has_old_end in array.rewritten_boxes(written):
            blocks = _find_blocks(plan, array.column, box)
            if has_old_end or is_repeated:
                uncertain.append((array, box, blocks))
            else:
                mask[blocks] = True
    # Nothing is read for blocks that are marked already, or not selected.
    uncertain = [question for question in uncertain if not mask[question[2]].all()]
    with ThreadPoolExecutor(_COMPARED_AT_ONCE) as pool:
        answers = pool.map(lambda question: question[0].differs(question[1]), uncertain)
        for (_, _, blocks), differs in zip(uncertain, answers, strict=True):
            mask[blocks] |= differs
    return mask


@dataclass(frozen=True, slots=True, eq=False)
class _Growth:
    """An array of the table at a commit and at its parent; ``before`` is None for a new array."""

    column: Column
    before: zarr.Array[Any] | None
    after: zarr.Array[Any]

    @classmethod
    def find(cls, column: Column, commit: Commit) -> _Growth:
        """Open both versions of an array."""
        assert column.path is not None  # noqa: S101 - the caller checked
        array = open_array(commit.after.store, column.path)
        if commit.before is None:
            return cls(column, None, array)
        path = Path(column.path)
        old, new = (contents.get_node(session, path) for session in (commit.before, commit.after))
        # A deleted or moved array of the same path is another array.
        if old is None or new is None or old.id != new.id:
            return cls(column, None, array)
        before = open_array(commit.before.store, column.path)
        return cls(column, before if before.ndim == array.ndim else None, array)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Yield the former ends of dimensions that grew, by number of the table's dimension."""
        if self.before is not None:
            lengths = zip(self.column.axes, self.before.shape, self.after.shape, strict=True)
            yield from ((axis, old) for axis, old, new in lengths if 0 < old < new)

    def new_boxes(self) -> Iterator[Box]:
        """Yield boxes of cells that did not exist before; they may overlap."""
        whole = tuple((0, length) for length in self.after.shape)
        if self.before is None:
            yield whole
            return
        for axis, (old, new) in enumerate(zip(self.before.shape, self.after.shape, strict=True)):
            if old < new:
                yield (*whole[:axis], (old, new), *whole[axis + 1 :])

    def rewritten_boxes(
        self, written: Mapping[str, NDArray[np.int64]]
    ) -> Iterator[tuple[Box, bool]]:
        """Yield the old cells of each written chunk, and whether it contains an old end."""
        chunks = written.get(self.column.path or "")
        if self.before is None or chunks is None:
            return
        edges = chunk_edges(self.after)
        # Chunks beyond the end were deleted.
        chunks = chunks[(chunks < [len(along) - 1 for along in edges]).all(axis=1)]
        lows, highs = np.empty((2, *chunks.shape), np.int64)
        for number, along in enumerate(edges):
            lows[:, number] = along[chunks[:, number]]
            highs[:, number] = along[chunks[:, number] + 1]
        old_end = np.array(self.before.shape, np.int64)
        existed = (lows < old_end).all(axis=1)
        has_old_end = (highs > old_end).any(axis=1)
        for place in np.flatnonzero(existed).tolist():
            ends = np.minimum(highs[place], old_end).tolist()
            yield tuple(zip(lows[place].tolist(), ends, strict=True)), bool(has_old_end[place])

    def differs(self, box: Box) -> bool:
        """Whether values in a box changed."""
        assert self.before is not None  # noqa: S101 - the caller checked
        where = tuple(slice(*along) for along in box)
        old, new = (np.asarray(array[where]) for array in (self.before, self.after))
        return old.dtype != new.dtype or not np.array_equal(
            old, new, equal_nan=old.dtype.kind in "fcmM"
        )


def _find_blocks(plan: RowsPlan, column: Column, box: Box) -> tuple[slice, ...]:
    """Return the blocks of a table that overlap a box of one array."""
    where = [slice(None)] * len(plan.axes)
    for axis, (start, stop) in zip(column.axes, box, strict=True):
        where[axis] = plan.axes[axis].blocks(start, stop)
    return tuple(where)
