"""Chunk changes of one array; the last change of each chunk wins.

Single writes are collected in a dictionary and batches stay columnar; `to_columns` merges both into
one sorted `ArrayManifest`. Callers check that chunks are inside the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.model.chunk_index_columns import find_row
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.transaction.overlay import DELETED, mark_deleted, stack
from icefloe.transaction.row_order import to_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.chunk_payload import ChunkPayload

# Columns take less memory than single changes, and merging forks or committing takes them.
_MAX_RECENT = 1 << 12
# Each batch is searched separately until they are merged.
_MAX_BATCHES = 8


class Unchanged:
    """Marks a chunk that the transaction did not change."""


UNCHANGED = Unchanged()


class ChunkChanges:
    """Chunks written and deleted, by their indices."""

    __slots__ = ("_batches", "_recent", "ndim", "revision")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.revision = 0
        self._recent: dict[tuple[int, ...], ChunkPayload | None] = {}
        self._batches: list[ArrayManifest] = []

    @classmethod
    def of(cls, columns: ArrayManifest) -> ChunkChanges:
        """Make changes from columns with sorted, distinct rows."""
        changes = cls(columns.coords.shape[1])
        if len(columns):
            changes._batches.append(columns)
        return changes

    def set(self, indices: tuple[int, ...], payload: ChunkPayload | None) -> None:
        """Write one chunk, or delete it with None."""
        self._recent[indices] = payload
        self.revision += 1
        if len(self._recent) >= _MAX_RECENT:
            self._batch_recent()
            self._limit_batches()

    def add(self, columns: ArrayManifest) -> None:
        """Write or delete many chunks; rows must be sorted and distinct."""
        if not len(columns):
            return
        self._batch_recent()
        self.revision += 1
        self._batches.append(columns)
        self._limit_batches()

    def get(self, indices: tuple[int, ...]) -> ChunkPayload | Unchanged | None:
        """Return the change of a chunk: a payload, None if deleted, or `UNCHANGED`."""
        change = self._recent.get(indices, UNCHANGED)
        if change is not UNCHANGED or not self._batches:
            return change
        for batch in reversed(self._batches):
            row = find_row(batch.coords, indices)
            if row is not None:
                return None if batch.payloads.kind[row] == DELETED else batch.payloads[row]
        return UNCHANGED

    def to_columns(self) -> ArrayManifest:
        """Return all changes as sorted columns, each chunk once."""
        self._batch_recent()
        if len(self._batches) > 1:
            self._batches = [stack(self._batches)]
        return self._batches[0] if self._batches else mark_deleted(to_matrix([], self.ndim))

    def copy(self) -> ChunkChanges:
        """Return an independent copy that shares columns."""
        other = ChunkChanges(self.ndim)
        other.revision = self.revision
        other._recent = dict(self._recent)
        other._batches = list(self._batches)
        return other

    @property
    def recent(self) -> Mapping[tuple[int, ...], ChunkPayload | None] | None:
        """All changes by indices, None for a deletion; or None if there are batches."""
        return None if self._batches else self._recent

    def __len__(self) -> int:
        """Return the number of changes; overwritten ones may count twice."""
        return len(self._recent) + sum(len(batch) for batch in self._batches)

    def __bool__(self) -> bool:
        return bool(self._recent or self._batches)

    def __getstate__(self) -> Any:
        return self.ndim, self.to_columns()

    def __setstate__(self, state: Any) -> None:
        self.ndim, columns = state
        self.revision = 0
        self._recent, self._batches = {}, [columns] if len(columns) else []

    def _limit_batches(self) -> None:
        if len(self._batches) > _MAX_BATCHES:
            self._batches = [stack(self._batches)]

    def _batch_recent(self) -> None:
        """Turn single changes into a batch."""
        if not self._recent:
            return
        recent, self._recent = self._recent, {}
        deleted = [indices for indices, payload in recent.items() if payload is None]
        for indices in deleted:
            del recent[indices]
        payloads = [payload for payload in recent.values() if payload is not None]
        if payloads:
            coords = to_matrix(recent, self.ndim)
            self._batches.append(ArrayManifest.of(coords, ChunkPayloads.of(payloads)))
        if deleted:
            self._batches.append(mark_deleted(to_matrix(deleted, self.ndim)))
