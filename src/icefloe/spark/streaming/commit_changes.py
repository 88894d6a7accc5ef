"""What of a table, or of its chunks, a commit changed: from its transaction log and from shapes.

Rows are new where an array is longer than in the parent, or was not there, whether a chunk of
theirs is stored or not: missing values are rows as well, and have none. Rows that were there
changed where a chunk of theirs was written.

A chunk that the parent's array ended in has rows of both kinds, and whoever appends writes it anew.
No log tells whether old cells were changed on that occasion, so their values are compared. Those of
variables with fewer dimensions than the table are compared as well: some writers repeat them with
each append, and each of their chunks is of very many rows. Where nothing differs the old rows are
left out. So who only appends only adds rows. Of all other chunks none is read here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.model.path import Path
from icefloe.session import contents
from icefloe.spark.reading.group import chunk_edges
from icefloe.spark.reading.read_options import invalid_input
from icefloe.store.open_array import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import zarr
    from numpy.typing import NDArray

    from icefloe.session import Session
    from icefloe.snapshots import Diff, SnapshotInfo
    from icefloe.spark.reading.axes import Box
    from icefloe.spark.reading.chunks import ArrayChunks, ChunksPlan
    from icefloe.spark.reading.rows import Column, RowsPlan

_MOST_BLOCKS: Final = 1 << 28
"""One byte of the driver's memory each, to find out which of them changed."""

_COMPARED_AT_ONCE: Final = 8
"""Chunks that are waited for together: the driver compares them before tasks run."""


@dataclass(frozen=True, slots=True)
class CommitPart:
    """Some of what a commit changed.

    Parameters
    ----------
    snapshot_id, committed_at
        The commit.
    parts
        Parts of the plan that reads its snapshot.
    ends
        Where arrays ended before, along each dimension: the plan is cut there, too.
    """

    snapshot_id: str
    committed_at: datetime
    parts: tuple[Any, ...]
    ends: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """What a commit changed of a table, or of one array: blocks or chunks, by their numbers.

    Parameters
    ----------
    info
        The commit.
    array
        The array, by its number in the plan; None for a table.
    numbers
        Ascending.
    sizes
        The bytes of each, decoded.
    ends
        As in `CommitPart`.
    """

    info: SnapshotInfo
    array: int | None
    numbers: NDArray[np.int64]
    sizes: NDArray[np.float64]
    ends: tuple[tuple[int, ...], ...] = ()

    @property
    def num_bytes(self) -> float:
        """The bytes of all of them."""
        return float(self.sizes.sum())

    def cut(self, target_bytes: float) -> Iterator[tuple[CommitPart, float]]:
        """Cut it into parts that are small enough for a task, each with its size."""
        totals = np.concatenate([[0.0], np.cumsum(self.sizes)])
        first = 0
        while first < len(self.numbers):
            room = totals[first] + target_bytes
            stop = max(first + 1, int(np.searchsorted(totals, room, "right")) - 1)
            ranges = [
                range(int(run[0]), int(run[-1]) + 1) for run in _runs(self.numbers[first:stop])
            ]
            parts = ranges if self.array is None else [(self.array, one) for one in ranges]
            yield (
                CommitPart(self.info.id, self.info.written_at, tuple(parts), self.ends),
                float(totals[stop] - totals[first]),
            )
            first = stop


def may_affect(diff: Diff, group: str) -> bool:
    """Whether a commit may have changed rows or chunks of a group."""
    paths = (*diff.new_arrays, *diff.updated_arrays, *diff.updated_chunks)
    return bool(diff.moved_nodes) or any(
        path.rpartition("/")[0] == group.rstrip("/") for path in paths
    )


def find_changed_rows(
    info: SnapshotInfo, plan: RowsPlan, before: Session | None, after: Session, diff: Diff | None
) -> Changed:
    """Find the blocks of a table that have new rows or changed chunks; new labels alone are none.

    Parameters
    ----------
    info
        The commit.
    plan
        The table as of the commit.
    before, after
        The parent and the commit. Without a parent all rows are new.
    diff
        What the log says.
    """
    # To append one label is to write the chunk of labels, in which all the others are as well.
    names = {axis.name for axis in plan.axes}
    stored = [column for column in plan.columns if column.path is not None]
    counted = [column for column in stored if column.name not in names] or stored
    grown = [_Growth.find(column, before, after) for column in counted]
    ends = tuple(
        tuple(sorted({end for one in grown for axis, end in one.ends() if axis == number}))
        for number in range(len(plan.axes))
    )
    plan = plan.split(ends)
    if prod(plan.grid) > _MOST_BLOCKS:
        raise invalid_input(
            f"the table of this stream has {prod(plan.grid)} blocks, more than {_MOST_BLOCKS}, "
            "because its chunks are small: follow a part of it with 'isel', or use layout='chunks'"
        )
    written = {} if diff is None else find_written_chunks(diff, after)
    mask = _find_changed_blocks(plan, grown, written)
    numbers = np.flatnonzero(mask)
    sizes = np.full(len(numbers), plan.row_bytes)
    places = np.unravel_index(numbers, plan.grid) if len(numbers) and plan.grid else ()
    for one_axis, along in zip(plan.axes, places, strict=bool(places)):
        sizes *= one_axis.block_lengths[along]
    return Changed(info, None, numbers, sizes, ends)


def _find_changed_blocks(
    plan: RowsPlan, grown: Sequence[_Growth], written: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.bool_]:
    mask = np.zeros(plan.grid, bool)
    doubtful: list[tuple[_Growth, Box]] = []
    for one in grown:
        for box in one.new_boxes():
            mask[_blocks(plan, one.column, box)] = True
        is_repeated = len(one.column.axes) < len(plan.axes)
        for box, is_cut in one.rewritten_boxes(written):
            if is_cut or is_repeated:
                doubtful.append((one, box))
            else:
                mask[_blocks(plan, one.column, box)] = True
    # Nothing is read for rows that come anyway, or that nobody selected.
    asked = [(one, box) for one, box in doubtful if not mask[_blocks(plan, one.column, box)].all()]
    with ThreadPoolExecutor(_COMPARED_AT_ONCE) as pool:
        answers = pool.map(lambda question: question[0].differs(question[1]), asked)
        for (one, box), differs in zip(asked, answers, strict=True):
            if differs:
                mask[_blocks(plan, one.column, box)] = True
    return mask


def find_changed_chunks(
    info: SnapshotInfo, plan: ChunksPlan, written: Mapping[str, NDArray[np.int64]]
) -> Iterator[Changed]:
    """Find the chunks of each array that a commit wrote."""
    for number, wanted in enumerate(plan.arrays):
        if wanted.path in written and 0 not in wanted.grid:
            numbers = _numbers(wanted, written[wanted.path])
            yield Changed(info, number, numbers, np.full(len(numbers), wanted.chunk_bytes))


def find_written_chunks(diff: Diff, session: Session) -> dict[str, NDArray[np.int64]]:
    """Return the chunks that a commit wrote or deleted, by the path of their array."""
    found = {}
    for path, chunks in diff.updated_chunks.items():
        if contents.get_node(session, Path(path)) is not None:
            matrix = np.array(list(chunks), np.int64)
            found[path] = matrix.reshape(len(matrix), -1)
    return found


def find_all_chunks(session: Session, group: str) -> dict[str, NDArray[np.int64]]:
    """Return the chunks that are there, of the arrays right below a group."""
    found = {}
    for node in contents.child_nodes(session, Path(group)):
        if node.is_array:
            parts = [refs.coords for refs in contents.fetch_chunk_refs(session, node.path)]
            if any(map(len, parts)):
                found[node.path.value] = np.concatenate(parts).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Growth:
    """An array of a table, and how large it was before.

    Parameters
    ----------
    column
        The column that it is.
    before, after
        The array; None where it was not there, or another one was.
    """

    column: Column
    before: zarr.Array[Any] | None
    after: zarr.Array[Any]

    @classmethod
    def find(cls, column: Column, before: Session | None, after: Session) -> _Growth:
        """Open an array of the table, and what it was in the parent."""
        assert column.path is not None  # noqa: S101 - the caller asked
        array = open_array(after.store, column.path)
        if before is None:
            return cls(column, None, array)
        old, new = (contents.get_node(one, Path(column.path)) for one in (before, after))
        # One of the same name that was deleted, or moved away, has nothing to do with this one.
        if old is None or new is None or old.id != new.id:
            return cls(column, None, array)
        was = open_array(before.store, column.path)
        return cls(column, was if was.ndim == array.ndim else None, array)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Tell where it ended before, by dimension of the table, and goes on now."""
        if self.before is not None:
            lengths = zip(self.column.axes, self.before.shape, self.after.shape, strict=True)
            yield from ((axis, old) for axis, old, new in lengths if 0 < old < new)

    def new_boxes(self) -> Iterator[Box]:
        """Tell the boxes of cells that were not there; they may overlap."""
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
        """Tell what of chunks that were written was there before.

        And whether the array ended inside of the chunk, and goes on there now.
        """
        chunks = written.get(self.column.path or "")
        if self.before is None or chunks is None:
            return
        edges = chunk_edges(self.after)
        # Those that are beyond its end were deleted.
        chunks = chunks[(chunks < [len(along) - 1 for along in edges]).all(axis=1)]
        lows, highs = np.empty((2, *chunks.shape), np.int64)
        for number, along in enumerate(edges):
            lows[:, number] = along[chunks[:, number]]
            highs[:, number] = along[chunks[:, number] + 1]
        old_end = np.array(self.before.shape, np.int64)
        was_there = (lows < old_end).all(axis=1)
        is_cut = (highs > old_end).any(axis=1)
        for place in np.flatnonzero(was_there).tolist():
            ends = np.minimum(highs[place], old_end).tolist()
            yield tuple(zip(lows[place].tolist(), ends, strict=True)), bool(is_cut[place])

    def differs(self, box: Box) -> bool:
        """Whether values in a box are not what they were."""
        assert self.before is not None  # noqa: S101 - the caller looked
        where = tuple(slice(*along) for along in box)
        old, new = (np.asarray(array[where]) for array in (self.before, self.after))
        return old.dtype != new.dtype or not np.array_equal(
            old, new, equal_nan=old.dtype.kind in "fcmM"
        )


def _blocks(plan: RowsPlan, column: Column, box: Box) -> tuple[slice, ...]:
    """Find the blocks of a table that have cells of a box of one array."""
    where = [slice(None)] * len(plan.axes)
    for axis, (start, stop) in zip(column.axes, box, strict=True):
        where[axis] = plan.axes[axis].blocks(start, stop)
    return tuple(where)


def _numbers(wanted: ArrayChunks, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give changed chunks the numbers that they have in the plan."""
    if not wanted.chunks:
        return np.zeros(min(len(chunks), 1), np.int64)
    places = []
    is_wanted = np.ones(len(chunks), bool)
    for along, numbers in zip(wanted.chunks, chunks.T, strict=True):
        place = np.searchsorted(along, numbers).clip(max=max(len(along) - 1, 0))
        is_wanted &= along[place] == numbers
        places.append(place)
    flat = np.ravel_multi_index([place[is_wanted] for place in places], wanted.grid)
    return np.unique(flat)


def _runs(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut ascending numbers where some are left out."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
