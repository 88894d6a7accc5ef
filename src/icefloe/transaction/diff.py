"""Differences between two snapshots, from the transaction logs between them.

From a snapshot to a descendant, the diff is the union of the logs, with paths from both
hierarchies; nodes that were created and deleted in between are omitted. Other snapshots are
compared by their hierarchies, at the nodes in the logs since their common ancestor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.node import NodeKind
from icefloe.model.transaction_log import NODE_SETS
from icefloe.snapshots import Diff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.transaction_log import TransactionLog


def diff_along_history(
    logs: Iterable[TransactionLog],
    before: Mapping[NodeId, NodeSnapshot],
    after: Mapping[NodeId, NodeSnapshot],
) -> Diff:
    """Merge logs, oldest first; ``before`` and ``after`` are the nodes of both snapshots."""

    def find(node_id: NodeId) -> NodeSnapshot | None:
        return after.get(node_id) or before.get(node_id)

    diff = Diff()
    chunks: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        for name in NODE_SETS:
            paths: set[str] = getattr(diff, name)
            nodes = map(find, getattr(log, name))
            paths |= {str(node.path) for node in nodes if node is not None}
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids()):
            chunks.setdefault(node_id, []).append(log.updated_chunks.get_coords(position))
        moves = [(str(move.from_path), str(move.to_path)) for move in log.moved_nodes]
        diff.moved_nodes[:0] = moves  # newest commit first
    _add_chunks(diff, chunks, find)
    return diff


def diff_across_history(
    logs: Iterable[TransactionLog],
    before: Mapping[NodeId, NodeSnapshot],
    after: Mapping[NodeId, NodeSnapshot],
) -> Diff:
    """Compare two hierarchies at the nodes that the logs list."""
    touched: set[NodeId] = set()
    chunks: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        touched = touched.union(*log.node_sets)
        touched |= {move.node_id for move in log.moved_nodes}
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids()):
            chunks.setdefault(node_id, []).append(log.updated_chunks.get_coords(position))
    diff = Diff()
    for node_id in touched:
        old, new = before.get(node_id), after.get(node_id)
        if old is None and new is not None:
            target = diff.new_groups if new.kind is NodeKind.GROUP else diff.new_arrays
            target.add(str(new.path))
        elif new is None and old is not None:
            target = diff.deleted_groups if old.kind is NodeKind.GROUP else diff.deleted_arrays
            target.add(str(old.path))
        elif old is not None and new is not None:
            if old.user_data != new.user_data:
                is_group = old.kind is NodeKind.GROUP
                target = diff.updated_groups if is_group else diff.updated_arrays
                target.add(str(new.path))
            if old.path != new.path:
                diff.moved_nodes.append((str(old.path), str(new.path)))
    # Chunks of a deleted array are implied by its deletion.
    _add_chunks(diff, {id_: rows for id_, rows in chunks.items() if id_ in after}, after.get)
    return diff


def _add_chunks(
    diff: Diff,
    chunks: dict[NodeId, list[NDArray[np.uint32]]],
    find: Callable[[NodeId], NodeSnapshot | None],
) -> None:
    for node_id, matrices in chunks.items():
        node = find(node_id)
        if node is None:
            continue
        # The number of dimensions may have changed, and a log may list an array without chunks,
        # whose matrix has no columns.
        by_ndim: dict[int, list[NDArray[np.uint32]]] = {}
        for matrix in matrices:
            if len(matrix):
                by_ndim.setdefault(matrix.shape[1], []).append(matrix)
        rows: list[list[int]] = []
        for parts in by_ndim.values():
            merged = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts), axis=0)
            rows += merged.tolist()
        diff.updated_chunks[str(node.path)] = rows if len(by_ndim) < 2 else sorted(rows)
