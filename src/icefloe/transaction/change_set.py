"""The change set of a transaction: node edits by path, chunk changes by array id.

Created, deleted, updated and moved nodes are not recorded but found by comparing the edited paths
with the base, by node id: a node that is created and deleted in one transaction leaves no trace,
and only the net effect of moves remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.node import NodeKind
from icefloe.model.transaction_log import NODE_SETS, MoveOperation, TransactionLog
from icefloe.transaction.change_columns import collect_chunk_indices
from icefloe.transaction.node_edits import NodeEdits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import AdoptedManifest
    from icefloe.transaction.change_columns import ChangeColumns
    from icefloe.transaction.chunk_changes import ChunkChanges


@dataclass(slots=True)
class ChangeSet:
    """The changes of one transaction: nodes by path, chunks and adopted manifests by array.

    The manifests of edited nodes are ignored; those of the base are used. ``fork_points`` are
    snapshots of these changes, or parts of them, where forks started. ``next_node_number`` is
    greater than the numbers of new nodes in these snapshots, even of nodes that were deleted since;
    0 if there are none.
    """

    edits: NodeEdits = field(default_factory=NodeEdits)
    chunks: dict[NodeId, ChunkChanges] = field(default_factory=dict)
    adopted: dict[NodeId, tuple[AdoptedManifest, ...]] = field(default_factory=dict)
    fork_points: set[SnapshotId] = field(default_factory=set)
    next_node_number: int = 0

    def get_ndim(self, node_id: NodeId) -> int | None:
        """Return the number of dimensions of an array whose chunks changed, or None."""
        if (changes := self.chunks.get(node_id)) is not None:
            return changes.ndim
        adopted = self.adopted.get(node_id)
        return len(adopted[0].ref.extents.ranges) if adopted else None

    def drop_chunks(self, node_id: NodeId) -> None:
        """Drop the chunk changes of an array."""
        self.chunks.pop(node_id, None)
        self.adopted.pop(node_id, None)

    def copy(self) -> ChangeSet:
        """Return an independent copy."""
        return ChangeSet(
            self.edits.copy(),
            {node_id: changes.copy() for node_id, changes in self.chunks.items()},
            dict(self.adopted),
            set(self.fork_points),
            self.next_node_number,
        )


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """The nodes at the edited paths, before and after the changes, by id."""

    before: Mapping[NodeId, NodeSnapshot]
    after: Mapping[NodeId, NodeSnapshot]

    @property
    def new(self) -> list[NodeSnapshot]:
        """Created nodes."""
        return [node for node_id, node in self.after.items() if node_id not in self.before]

    @property
    def deleted(self) -> list[NodeSnapshot]:
        """Deleted nodes."""
        return [node for node_id, node in self.before.items() if node_id not in self.after]

    @property
    def updated(self) -> list[NodeSnapshot]:
        """Nodes with changed Zarr metadata, after the change."""
        return [
            node
            for node_id, node in self.after.items()
            if node_id in self.before and node.user_data != self.before[node_id].user_data
        ]

    @property
    def moved(self) -> list[MoveOperation]:
        """Moved nodes, ordered by new path, level by level."""
        moves = [
            MoveOperation(self.before[node_id].path, node.path, node_id, node.kind)
            for node_id, node in self.after.items()
            if node_id in self.before and node.path != self.before[node_id].path
        ]
        return sorted(moves, key=lambda move: move.to_path.segments)


def compare_nodes(base: Tree, changes: ChangeSet) -> NodeChanges:
    """Compare the edited paths with the base."""
    before = [base.get(path) for path, _ in changes.edits.items()]
    return NodeChanges(
        {node.id: node for node in before if node is not None},
        {node.id: node for node in changes.edits.iter_nodes()},
    )


def is_changed(before: NodeSnapshot | None, after: NodeSnapshot | None) -> bool:
    """Whether the nodes at one path before and after the changes differ."""
    if before is None or after is None:
        return before is not after
    return before.id != after.id or before.user_data != after.user_data


def build_transaction_log(
    snapshot_id: SnapshotId, nodes: NodeChanges, chunks: Iterable[ChangeColumns]
) -> TransactionLog:
    """Build the transaction log of a change set with these node and chunk changes."""
    changed = {"new": nodes.new, "deleted": nodes.deleted, "updated": nodes.updated}
    sets = {
        f"{name}_{kind.name.lower()}s": frozenset(node.id for node in group if node.kind is kind)
        for name, group in changed.items()
        for kind in NodeKind
    }
    updated, moves = collect_chunk_indices(chunks), tuple(nodes.moved)
    return TransactionLog(snapshot_id, updated_chunks=updated, moved_nodes=moves, **sets)


def merge_logs(older: TransactionLog, newer: TransactionLog) -> TransactionLog:
    """Merge the logs of two consecutive commits, with the id of the newer one."""
    chunks: dict[NodeId, NDArray[np.uint32]] = {}
    for log in (older, newer):
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids()):
            rows = log.updated_chunks.get_coords(position)
            old = chunks.get(node_id)
            # An array whose number of dimensions changed has lost its older chunks.
            if old is not None and len(old) and len(rows) and old.shape[1] == rows.shape[1]:
                rows = np.unique(np.concatenate([old, rows]), axis=0)
            # A log may list an array without chunks, whose matrix has no columns.
            chunks[node_id] = rows if old is None or len(rows) else old
    moves = {move.node_id: move for move in older.moved_nodes}
    for move in newer.moved_nodes:
        first = moves.get(move.node_id, move)
        moves[move.node_id] = replace(move, from_path=first.from_path)
    return replace(
        newer,
        updated_chunks=ChunkIndexColumns.of(chunks),
        moved_nodes=tuple(move for move in moves.values() if move.from_path != move.to_path),
        **{name: getattr(older, name) | getattr(newer, name) for name in NODE_SETS},
    )
