"""A stream of chunks: the chunks that each commit wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.path import Path
from icefloe.session import Session, contents
from icefloe.spark.reading.chunks import ArrayChunks, ChunksPlan, plan_chunks, read_chunks
from icefloe.spark.streaming.commit_changes import Changes, Commit, CommitPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from icefloe.spark.reading.read_options import ReadOptions


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStreamPlan:
    """`StreamPlan` of chunks."""

    plan: ChunksPlan
    group: str

    @classmethod
    def from_options(cls, session: Session, options: ReadOptions) -> ChunkStreamPlan:
        return cls(plan_chunks(session, options), options.group)

    @property
    def schema(self) -> pa.Schema:
        return self.plan.schema

    def find_changes(self, commit: Commit) -> Iterator[Changes]:
        written = (
            _find_all_chunks(commit.after, self.group)
            if commit.diff is None
            else commit.find_written_chunks()
        )
        for number, selected in enumerate(self.plan.arrays):
            if selected.path in written and 0 not in selected.grid:
                numbers = _number_chunks(selected, written[selected.path])
                sizes = np.full(len(numbers), selected.mean_chunk_bytes)
                yield Changes(commit.info, number, numbers, sizes)

    def read(self, session: Session, parts: Sequence[CommitPart]) -> Iterator[pa.RecordBatch]:
        ranges = [chunks for part in parts for chunks in part.ranges]
        return read_chunks(session, self.plan, ranges)


def _find_all_chunks(session: Session, group: str) -> dict[str, NDArray[np.int64]]:
    """Return the stored chunks of the child arrays of a group, by path."""
    chunks = {}
    for node in contents.list_child_nodes(session, Path(group)):
        if node.is_array:
            parts = [refs.coords for refs in contents.fetch_chunk_refs(session, node.path)]
            if any(map(len, parts)):
                chunks[node.path.value] = np.concatenate(parts).astype(np.int64)
    return chunks


def _number_chunks(selected: ArrayChunks, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the selected ones of some chunks in the plan, ascending."""
    if not selected.indices:
        return np.zeros(min(len(chunks), 1), np.int64)
    indices = []
    is_selected = np.ones(len(chunks), bool)
    for planned, numbers in zip(selected.indices, chunks.T, strict=True):
        index = np.searchsorted(planned, numbers).clip(max=max(len(planned) - 1, 0))
        is_selected &= planned[index] == numbers
        indices.append(index)
    flat = np.ravel_multi_index([index[is_selected] for index in indices], selected.grid)
    return np.unique(flat)
