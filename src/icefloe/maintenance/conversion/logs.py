"""Transaction logs of converted snapshots, for generations that have them.

Logs of the source are kept; where it has none, snapshots are compared with their parents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ObjectNotFoundError
from icefloe.maintenance.conversion.object_ids import map_id
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.ids import NodeId
from icefloe.model.transaction_log import NODE_SETS, MoveOperation, TransactionLog
from icefloe.transaction.snapshot_comparison import compare_snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo


def fetch_log(source: Assets, info: SnapshotInfo) -> TransactionLog:
    """Fetch the changes since the parent of a snapshot, with the ids of the source.

    Logs of expired snapshots before it are merged into it, because they are changes since its
    parent too.
    """
    if info.parent_id is None:
        return make_empty_log(info.id)
    if source.generation.has_transaction_logs:
        try:
            ids = (*info.pruned_ancestor_tx_logs, info.id)
            return merge_logs([source.fetch_transaction_log(log_id) for log_id in ids])
        except ObjectNotFoundError:
            pass  # deleted by another program: compare the snapshots instead
    return derive_log(source, info.id, info.parent_id)


def derive_log(source: Assets, snapshot_id: SnapshotId, parent_id: SnapshotId) -> TransactionLog:
    """Compare a snapshot with its parent."""
    before, after = source.fetch_tree(parent_id), source.fetch_tree(snapshot_id)
    return compare_snapshots(before, after, source)


def make_empty_log(snapshot_id: SnapshotId) -> TransactionLog:
    """Make the log of a first snapshot."""
    none: frozenset[NodeId] = frozenset()
    no_chunks = ChunkIndexColumns.of({})
    return TransactionLog(snapshot_id, none, none, none, none, none, none, no_chunks)


def map_log(
    log: TransactionLog, node_ids: Mapping[NodeId, NodeId] | None, id_size: int
) -> TransactionLog:
    """Replace the ids in a log; nodes without another id are dropped."""
    log = replace(log, id=map_id(log.id, id_size))
    if node_ids is None:
        return log
    chunks = {
        node_ids[node_id]: log.updated_chunks.get_coords(position)
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids())
        if node_id in node_ids
    }
    sets: dict[str, Any] = {
        name: frozenset(node_ids[node_id] for node_id in getattr(log, name) if node_id in node_ids)
        for name in NODE_SETS
    }
    return replace(
        log,
        **sets,
        updated_chunks=ChunkIndexColumns.of(chunks),
        moved_nodes=tuple(
            replace(move, node_id=node_ids[move.node_id])
            for move in log.moved_nodes
            if move.node_id in node_ids
        ),
    )


def merge_logs(logs: Sequence[TransactionLog]) -> TransactionLog:
    """Merge the logs of successive commits, oldest first, into one with the id of the last."""
    if len(logs) == 1:
        return logs[0]
    nodes: dict[str, Any] = {
        name: frozenset[NodeId]().union(*(getattr(log, name) for log in logs)) for name in NODE_SETS
    }
    created = nodes["new_groups"] | nodes["new_arrays"]
    deleted = nodes["deleted_groups"] | nodes["deleted_arrays"]
    temporary = created & deleted
    moves: dict[NodeId, MoveOperation] = {}
    for log in logs:
        for move in log.moved_nodes:
            first = moves.get(move.node_id, move)
            moves[move.node_id] = replace(move, from_path=first.from_path)
    chunks: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids()):
            chunks.setdefault(node_id, []).append(log.updated_chunks.get_coords(position))
    remaining: dict[str, Any] = {name: ids - temporary for name, ids in nodes.items()}
    return replace(
        logs[-1],
        **remaining,
        updated_chunks=ChunkIndexColumns.of(
            {
                node_id: _merge_coords(matrices)
                for node_id, matrices in chunks.items()
                if node_id not in temporary
            }
        ),
        moved_nodes=tuple(
            move
            for node_id, move in moves.items()
            if node_id not in created | deleted and move.from_path != move.to_path
        ),
    )


def _merge_coords(matrices: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    # The number of dimensions may have changed; only the last meaning can be expressed.
    ndim = matrices[-1].shape[1]
    same = [matrix for matrix in matrices if matrix.shape[1] == ndim]
    return same[0] if len(same) == 1 else np.unique(np.concatenate(same), axis=0)
