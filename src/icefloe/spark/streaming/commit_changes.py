"""Changes of a commit in a stream, and the protocol for finding and reading them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from icefloe.model.path import Path
from icefloe.session import Session, contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa
    from numpy.typing import NDArray

    from icefloe.snapshots import Diff, SnapshotInfo


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """A commit of the branch, with sessions at its parent and at its own snapshot.

    ``before`` and ``diff`` are None for the first commit: everything in it is new.
    """

    info: SnapshotInfo
    before: Session | None
    after: Session
    diff: Diff | None

    def find_written_chunks(self) -> dict[str, NDArray[np.int64]]:
        """Return the chunks that the commit wrote or deleted, by path of the array."""
        written = {}
        for path, chunks in ({} if self.diff is None else self.diff.updated_chunks).items():
            if contents.get_node(self.after, Path(path)) is not None:
                matrix = np.array(list(chunks), np.int64)
                written[path] = matrix.reshape(len(matrix), -1)
        return written


@dataclass(frozen=True, slots=True)
class CommitPart:
    """Part of the changes of a commit: ranges of blocks or chunks in the plan of its snapshot.

    ``ends`` are former lengths of arrays along each dimension, where blocks of the plan are split.
    """

    snapshot_id: str
    committed_at: datetime
    ranges: tuple[Any, ...]
    ends: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Blocks of a table, or chunks of one of its arrays, that a commit changed.

    ``numbers`` are those of the blocks or chunks, ascending; ``sizes`` are in decoded bytes.
    ``array`` is the index of the array in the plan, None for a table of rows.
    """

    info: SnapshotInfo
    array: int | None
    numbers: NDArray[np.int64]
    sizes: NDArray[np.float64]
    ends: tuple[tuple[int, ...], ...] = ()

    @property
    def num_bytes(self) -> float:
        """Total decoded size."""
        return float(self.sizes.sum())

    def split(self, target_bytes: float) -> Iterator[tuple[CommitPart, float]]:
        """Yield parts with their sizes; each has at most ``target_bytes``, or a single number."""
        totals = np.concatenate([[0.0], np.cumsum(self.sizes)])
        first = 0
        while first < len(self.numbers):
            limit = totals[first] + target_bytes
            stop = max(first + 1, int(np.searchsorted(totals, limit, "right")) - 1)
            numbers = self.numbers[first:stop]
            runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
            ranges: list[Any] = [range(int(run[0]), int(run[-1]) + 1) for run in runs]
            if self.array is not None:
                ranges = [(self.array, chunks) for chunks in ranges]
            yield (
                CommitPart(self.info.id, self.info.written_at, tuple(ranges), self.ends),
                float(totals[stop] - totals[first]),
            )
            first = stop


class StreamPlan(Protocol):
    """Plan of a stream at one snapshot."""

    @property
    def schema(self) -> pa.Schema:
        """Columns and their types."""

    def find_changes(self, commit: Commit) -> Iterator[Changes]:
        """Yield the changes of the commit of the snapshot."""

    def read(self, session: Session, parts: Sequence[CommitPart]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts of the commit."""


def may_affect(diff: Diff, group: str) -> bool:
    """Whether a commit may have changed rows or chunks of a group."""
    paths = (*diff.new_arrays, *diff.updated_arrays, *diff.updated_chunks)
    return bool(diff.moved_nodes) or any(
        path.rpartition("/")[0] == group.rstrip("/") for path in paths
    )
