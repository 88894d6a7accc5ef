"""Chunk changes of many arrays in one set of columns.

A commit may change a few chunks in each of thousands of arrays: numpy calls for all of them at once
are much faster than calls for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.transaction.overlay import deduplicate, mark_deleted
from icefloe.transaction.row_order import to_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import NodeId
    from icefloe.transaction.chunk_changes import ChunkChanges

# An array with more changes gets its own columns, which are not copied.
_MAX_SHARED_CHANGES = 4096


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """Sorted chunk changes of arrays with the same number of dimensions, ordered by id.

    The first coordinate of a row is the position of its array in ``node_ids``.
    """

    node_ids: tuple[NodeId, ...]
    refs: ArrayManifest

    def compute_splits(self) -> NDArray[np.int64]:
        """Return the first row of each array, and the number of rows as last entry."""
        return np.searchsorted(self.refs.coords[:, 0], np.arange(len(self.node_ids) + 1))


def gather_changes(chunks: Mapping[NodeId, ChunkChanges]) -> list[ChangeColumns]:
    """Group the changes of all arrays by number of dimensions."""
    groups: dict[tuple[int, NodeId | None], list[NodeId]] = {}
    for node_id, changes in chunks.items():
        if changes:
            alone = node_id if len(changes) > _MAX_SHARED_CHANGES else None
            groups.setdefault((changes.ndim, alone), []).append(node_id)
    return [_gather_group(ndim, sorted(node_ids), chunks) for (ndim, _), node_ids in groups.items()]


def collect_chunk_indices(columns: Iterable[ChangeColumns]) -> ChunkIndexColumns:
    """Return the changed chunks of all arrays, as transaction logs record them."""
    parts: list[tuple[NodeId, NDArray[np.uint32]]] = []
    for group in columns:
        coords, splits = group.refs.coords[:, 1:], group.compute_splits().tolist()
        parts += [
            (node_id, coords[start:end])
            for node_id, start, end in zip(group.node_ids, splits[:-1], splits[1:], strict=True)
        ]
    parts.sort(key=lambda part: part[0].raw)
    return ChunkIndexColumns.of_sorted(parts)


def _gather_group(
    ndim: int, node_ids: list[NodeId], chunks: Mapping[NodeId, ChunkChanges]
) -> ChangeColumns:
    written: list[tuple[int, ...]] = []
    payloads: list[ChunkPayload] = []
    deleted: list[tuple[int, ...]] = []
    parts: list[ArrayManifest] = []
    for number, node_id in enumerate(node_ids):
        changes = chunks[node_id]
        recent = changes.recent
        if recent is None or len(recent) > _MAX_SHARED_CHANGES:
            part = changes.to_columns()
            owner = np.full((len(part), 1), number, np.uint32)
            parts.append(ArrayManifest(np.hstack([owner, part.coords]), part.payloads))
            continue
        for indices, payload in recent.items():
            if payload is None:
                deleted.append((number, *indices))
            else:
                written.append((number, *indices))
                payloads.append(payload)
    if written:
        parts.append(ArrayManifest(to_matrix(written, ndim + 1), ChunkPayloads.of(payloads)))
    if deleted:
        parts.append(mark_deleted(to_matrix(deleted, ndim + 1)))
    coords = parts[0].coords if len(parts) == 1 else np.concatenate([part.coords for part in parts])
    merged = ChunkPayloads.concatenate([part.payloads for part in parts])
    return ChangeColumns(tuple(node_ids), deduplicate(coords, merged))
