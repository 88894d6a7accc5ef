"""Rebase: replays changes on top of a commit of another writer.

`rebase` compares a change set with the transaction log and the hierarchy of one commit, and returns
the change set with the same effect on top of it. Pure except for one lookup, because logs
do not record whether a chunk was written or deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.conflicts import Conflict, ConflictType, VersionSelection
from icefloe.model.node import ArrayNodeData, NodeKind
from icefloe.transaction import overlay
from icefloe.transaction.change_set import ChangeSet, compare_nodes
from icefloe.transaction.chunk_changes import ChunkChanges
from icefloe.transaction.node_edits import NodeEdits
from icefloe.transaction.row_order import find_common_rows
from icefloe.transaction.zarr_metadata import has_different_chunk_grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.conflicts import ConflictSolver
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.model.tree import Tree
    from icefloe.transaction.change_set import NodeChanges

    Conflicts = Iterator[tuple[NodeId | None, Conflict]]

_CAN_USE_OURS: Final = frozenset(
    {
        ConflictType.ChunkDoubleUpdate,
        ConflictType.DeleteOfUpdatedArray,
        ConflictType.DeleteOfUpdatedGroup,
    }
)


@dataclass(frozen=True, slots=True)
class OtherCommit:
    """A commit of another writer: its log, its hierarchy and its chunks.

    ``get_payload`` is called only for chunks of the log that are outside our new grid.
    """

    log: TransactionLog
    tree: Tree
    get_payload: Callable[[Path, tuple[int, ...]], ChunkPayload | None]


def rebase(
    base: Tree, changes: ChangeSet, theirs: OtherCommit, solver: ConflictSolver
) -> tuple[ChangeSet, list[Conflict]]:
    """Replay changes on top of one commit.

    Returns the changes to apply to ``theirs.tree``, and the unsolved conflicts. With conflicts, and
    if both changed only chunks of different arrays, the changes are returned as passed.
    """
    if _is_unrelated(changes, theirs.log):
        return changes, []
    unsolved = []
    dropped: dict[NodeId, Conflict] = {}
    for node_id, conflict in _find_conflicts(base, changes, theirs):
        decision = solver.decide(conflict)
        if (
            decision is VersionSelection.UseOurs
            and node_id not in changes.adopted
            and conflict.conflict_type in _CAN_USE_OURS
        ):
            continue
        if (
            decision is VersionSelection.UseTheirs
            and node_id not in changes.adopted  # adopted manifests cannot be changed
            and conflict.conflict_type is ConflictType.ChunkDoubleUpdate
            and node_id is not None
        ):
            dropped[node_id] = conflict
        else:
            unsolved.append(conflict)
    if unsolved:
        return changes, unsolved
    return _replay(base, changes, theirs.tree, dropped), []


def _is_unrelated(changes: ChangeSet, log: TransactionLog) -> bool:
    """Whether we changed only chunks, and the other commit only chunks of other arrays."""
    if len(changes.edits) or log.changes_nodes:
        return False
    arrays = (*changes.chunks, *changes.adopted)
    return all(log.updated_chunks.find_array(node_id) is None for node_id in arrays)


def _find_conflicts(base: Tree, changes: ChangeSet, theirs: OtherCommit) -> Conflicts:
    log, tree = theirs.log, theirs.tree
    ours = compare_nodes(base, changes)
    if log.moved_nodes or (ours.moved and _touches_nodes(log)):
        # Conflicts are found by path; after a move a path may name another node.
        path = log.moved_nodes[0].from_path if log.moved_nodes else ours.moved[0].from_path
        yield None, Conflict(ConflictType.MoveOperationCannotBeRebased, str(path))
        return
    deleted = {node.id: node for node in ours.deleted}
    yield from _find_new_node_conflicts(base, ours, deleted, tree)
    yield from _find_orphan_conflicts(deleted, theirs)
    yield from _find_metadata_conflicts(ours, log)
    yield from _find_chunk_conflicts(base, changes, theirs)
    yield from _find_deletion_conflicts(deleted, log)


def _find_new_node_conflicts(
    base: Tree, ours: NodeChanges, deleted: dict[NodeId, NodeSnapshot], tree: Tree
) -> Conflicts:
    for node in ours.new:
        existing = tree.get(node.path)
        is_new_array = node.kind is NodeKind.ARRAY and next(tree.iter_below(node.path), None)
        if (existing is not None and existing.id not in deleted) or (
            existing is None and is_new_array
        ):
            yield None, Conflict(ConflictType.NewNodeConflictsWithExistingNode, str(node.path))
    for node in ours.new:
        for above in node.path.ancestors():
            parent, before = tree.get(above), base.get(above)
            is_gone = parent is None and before is not None and before.id not in deleted
            if is_gone or (parent is not None and parent.kind is NodeKind.ARRAY):
                yield None, Conflict(ConflictType.NewNodeInInvalidGroup, str(above))
                break


def _find_orphan_conflicts(deleted: dict[NodeId, NodeSnapshot], theirs: OtherCommit) -> Conflicts:
    """Find groups that we delete and in which the other commit created nodes; never solvable."""
    groups = {node.path for node in deleted.values() if node.kind is NodeKind.GROUP}
    if not groups:
        return
    paths: set[Path] = set()
    for node_id in (*theirs.log.new_groups, *theirs.log.new_arrays):
        node = theirs.tree.by_id.get(node_id)
        if node is not None:
            paths |= groups.intersection(
                above
                for above in node.path.ancestors()
                if (group := theirs.tree.get(above)) is not None and group.id in deleted
            )
    for path in sorted(paths):
        yield None, Conflict(ConflictType.NewNodeInInvalidGroup, str(path))


def _find_metadata_conflicts(ours: NodeChanges, log: TransactionLog) -> Conflicts:
    updated = sorted(ours.updated, key=lambda node: (-node.kind, node.path))  # arrays first
    for node in updated:
        if node.id in log.updated_arrays or node.id in log.updated_groups:
            yield node.id, Conflict(ConflictType.ZarrMetadataDoubleUpdate, str(node.path))
    for node in updated:
        if node.id in log.deleted_arrays:
            yield node.id, Conflict(ConflictType.ZarrMetadataUpdateOfDeletedArray, str(node.path))
        elif node.id in log.deleted_groups:
            yield node.id, Conflict(ConflictType.ZarrMetadataUpdateOfDeletedGroup, str(node.path))


def _find_chunk_conflicts(base: Tree, changes: ChangeSet, theirs: OtherCommit) -> Conflicts:
    log = theirs.log
    # Arrays that this transaction created are not in the base and cannot conflict.
    changed = {node_id for node_id, columns in changes.chunks.items() if columns}
    paths = {
        node_id: str(base.by_id[node_id].path)
        for node_id in changed | changes.adopted.keys()
        if node_id in base.by_id
    }
    ordered = sorted(paths, key=lambda node_id: paths[node_id])
    for node_id in ordered:
        if node_id in log.deleted_arrays:
            yield node_id, Conflict(ConflictType.ChunksUpdatedInDeletedArray, paths[node_id])
    updated = [node_id for node_id in ordered if node_id in log.updated_arrays]
    for node_id in updated:
        yield node_id, Conflict(ConflictType.ChunksUpdatedInUpdatedArray, paths[node_id])
    for array_id, conflict in _find_grid_conflicts(base, changes, theirs):
        if array_id not in updated:  # reported above
            yield array_id, conflict
    for node_id in ordered:
        position = log.updated_chunks.find_array(node_id)
        if position is None:
            continue
        written = log.updated_chunks.get_coords(position)
        chunks: list[list[int]] = []
        if node_id in changed:
            coords = changes.chunks[node_id].to_columns().coords
            rows, _ = find_common_rows(coords, written)
            chunks += coords[rows].tolist()
        for manifest in changes.adopted.get(node_id, ()):
            # The chunks of an adopted manifest are unknown: assume all within its extents.
            box = np.array(manifest.ref.extents.ranges, np.int64).reshape(-1, 2)
            chunks += written[np.all((box[:, 0] <= written) & (written < box[:, 1]), 1)].tolist()
        if chunks:
            yield node_id, Conflict(ConflictType.ChunkDoubleUpdate, paths[node_id], chunks)


def _find_grid_conflicts(base: Tree, changes: ChangeSet, theirs: OtherCommit) -> Conflicts:
    """Find arrays whose new grid lacks chunks that the other commit wrote."""
    for node in changes.edits.iter_nodes():
        before = base.by_id.get(node.id)
        if before is None or not isinstance(node.node_data, ArrayNodeData):
            continue
        position = theirs.log.updated_chunks.find_array(node.id)
        if position is None or not isinstance(before.node_data, ArrayNodeData):
            continue
        grid = [dimension.num_chunks for dimension in node.node_data.shape]
        written = theirs.log.updated_chunks.get_coords(position)
        outside = written[~overlay.is_inside(written, grid)].tolist()
        # Chunks that the other commit deleted do not conflict.
        if has_different_chunk_grid(before, node) or any(
            theirs.get_payload(before.path, tuple(indices)) is not None for indices in outside
        ):
            yield node.id, Conflict(ConflictType.ChunksUpdatedInUpdatedArray, str(node.path))


def _find_deletion_conflicts(deleted: dict[NodeId, NodeSnapshot], log: TransactionLog) -> Conflicts:
    ordered = sorted(deleted.values(), key=lambda node: node.path)
    for node in ordered:
        if node.kind is NodeKind.ARRAY and (
            node.id in log.updated_arrays or log.updated_chunks.find_array(node.id) is not None
        ):
            yield node.id, Conflict(ConflictType.DeleteOfUpdatedArray, str(node.path))
    for node in ordered:
        if node.kind is NodeKind.GROUP and node.id in log.updated_groups:
            yield node.id, Conflict(ConflictType.DeleteOfUpdatedGroup, str(node.path))


def _touches_nodes(log: TransactionLog) -> bool:
    return bool(log.new_groups or log.new_arrays or log.deleted_groups or log.deleted_arrays)


def _replay(
    base: Tree, changes: ChangeSet, tree: Tree, dropped: dict[NodeId, Conflict]
) -> ChangeSet:
    ours = compare_nodes(base, changes)
    updated = {node.id for node in ours.updated}
    edits = NodeEdits()
    for path, node in changes.edits.items():
        if node is None:
            existing, before = tree.get(path), base.get(path)
            # The node may be deleted already, and its path reused.
            if existing is not None and before is not None and existing.id == before.id:
                edits.put(path, None)
        elif node.id in ours.before and node.id not in updated:
            # It was only moved: keep the changes of the other commit.
            existing = tree.by_id.get(node.id)
            edits.put(path, node if existing is None else replace(existing, path=path))
        else:
            edits.put(path, node)
    chunks = {}
    for node_id, changed in changes.chunks.items():
        if node_id in dropped:
            columns = changed.to_columns()
            theirs = np.array(dropped[node_id].conflicted_chunks, np.uint32)
            theirs = theirs.reshape(len(theirs), columns.coords.shape[1])
            is_kept = ~overlay.is_among(columns.coords, theirs)
            changed = ChunkChanges.of(overlay.select(columns, np.flatnonzero(is_kept)))  # noqa: PLW2901
        chunks[node_id] = changed
    return ChangeSet(edits, chunks, dict(changes.adopted))
