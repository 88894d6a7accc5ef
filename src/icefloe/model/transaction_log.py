"""Transaction logs: the changes of a commit, for conflict detection, rebase and diffs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefloe.model.chunk_index_columns import ChunkIndexColumns
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.node import NodeKind
    from icefloe.model.path import Path


NODE_SETS = tuple(
    f"{change}_{kind}" for change in ("new", "deleted", "updated") for kind in ("groups", "arrays")
)
"""The fields of `TransactionLog` that are sets of node ids."""


@dataclass(frozen=True, slots=True)
class MoveOperation:
    """The move of a node, which preserves its id."""

    from_path: Path
    to_path: Path
    node_id: NodeId
    node_kind: NodeKind


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """The changes of one commit; ``id`` is the id of its snapshot.

    The metadata of ``updated_groups`` and ``updated_arrays`` changed; ``updated_chunks`` were
    written or deleted.
    """

    id: SnapshotId
    new_groups: frozenset[NodeId]
    new_arrays: frozenset[NodeId]
    deleted_groups: frozenset[NodeId]
    deleted_arrays: frozenset[NodeId]
    updated_groups: frozenset[NodeId]
    updated_arrays: frozenset[NodeId]
    updated_chunks: ChunkIndexColumns
    moved_nodes: tuple[MoveOperation, ...] = ()

    @property
    def node_sets(self) -> tuple[frozenset[NodeId], ...]:
        """The fields that are sets of node ids."""
        return (
            self.new_groups,
            self.new_arrays,
            self.deleted_groups,
            self.deleted_arrays,
            self.updated_groups,
            self.updated_arrays,
        )

    @property
    def changes_nodes(self) -> bool:
        """Whether nodes changed, and not only chunks."""
        return bool(self.moved_nodes) or any(self.node_sets)
