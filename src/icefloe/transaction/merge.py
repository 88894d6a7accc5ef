"""Three-way merge of the changes of a fork into the transaction that it was forked from.

A change on one side is applied; the same change on both sides is applied once; different changes of
one node or chunk are a conflict. `VersionSelection` may resolve conflicts of chunks.

*Our* side is the transaction, in messages "this session"; *their* side is the fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.conflicts import VersionSelection
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.node import ArrayNodeData, NodeKind
from icefloe.transaction import overlay
from icefloe.transaction.node_edits import NodeEdits, Unedited
from icefloe.transaction.node_numbers import make_mergeable
from icefloe.transaction.row_order import find_common_rows
from icefloe.transaction.zarr_metadata import has_different_chunk_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayManifest
    from icefloe.model.node import NodeSnapshot
    from icefloe.transaction.change_set import ChangeSet
    from icefloe.transaction.transaction import Transaction


def merge_changes(
    target: Transaction,
    fork_point: Transaction,
    changes: ChangeSet,
    on_chunk_conflict: VersionSelection = VersionSelection.Fail,
) -> None:
    """Merge the changes of a fork into a transaction; on a conflict, raise and change nothing.

    ``fork_point`` is the common base: the state in which the fork started. ``on_chunk_conflict``
    applies to chunks that both sides wrote differently: ``Fail`` raises `SessionStateError`,
    ``UseOurs`` keeps the chunk of ``target``, ``UseTheirs`` takes the chunk of the fork.
    """
    if changes.adopted:
        raise _merge_error("adopted manifests cannot be merged: adopt them outside of forks")
    with target.lock:
        target.require_unsealed()
        if target.assets.generation.numbers_nodes:
            changes = make_mergeable(changes, fork_point.base, target.changes)
        edits, our_ids = _plan_nodes(target, fork_point, changes)
        _require_parents(target, fork_point, edits)
        chunk_edits = {}
        for their_id, chunk_changes in changes.chunks.items():
            if not chunk_changes:
                continue
            our_id = our_ids.get(their_id, their_id)
            node = edits.find(our_id) or target.find_node(our_id)
            if node is None:
                array = _describe_node(fork_point, their_id)
                raise _merge_error(
                    f"the fork wrote chunks of {array}, which was deleted in this session"
                )
            their_refs = chunk_changes.to_columns()
            their_node = changes.edits.find(their_id) or fork_point.find_node(their_id)
            if their_node is not None and len(_find_excluded_rows(their_refs, their_node, node)):
                change = "resized or rechunked in this session"
                raise _merge_error(f"the fork wrote chunks of {node.path}, which was {change}")
            refs = _plan_chunks(target, fork_point, node, their_refs, on_chunk_conflict)
            chunk_edits[node.id] = node, refs
        # All checks passed: nothing fails from here on.
        for path, new_node in edits.items():
            if new_node is None:
                target.drop_node(path)
            else:
                target.put_node(new_node)
        for node, refs in chunk_edits.values():
            target.change_chunks(node, refs)
        target.changes.fork_points |= changes.fork_points
        target.changes.next_node_number = max(
            target.changes.next_node_number, changes.next_node_number
        )


def _plan_nodes(
    target: Transaction, fork_point: Transaction, changes: ChangeSet
) -> tuple[NodeEdits, dict[NodeId, NodeId]]:
    """Return the edits to apply, and a map of ids from theirs to ours.

    The map has the nodes that both sides edited in the same way.
    """
    edits = NodeEdits()
    our_ids: dict[NodeId, NodeId] = {}
    for path, theirs in changes.edits.items():
        base, ours = fork_point.get_node(path), target.get_node(path)
        if _is_same_node(ours, base):
            if base is not None:
                _require_no_lost_chunks(target, fork_point, base, theirs)
            edits.put(path, theirs)
        elif _have_same_metadata(ours, theirs):
            # Both sides made the same edit. A node that both created has two ids: ours is kept.
            if ours is not None and theirs is not None:
                our_ids[theirs.id] = ours.id
        else:
            raise _merge_error(f"{path} was changed differently in this session and in the fork")
    return edits, our_ids


def _require_parents(target: Transaction, fork_point: Transaction, edits: NodeEdits) -> None:
    """Raise if a node would be inside an array, or in a group that the other side deleted."""
    checked: set[str] = set()  # ancestors of new nodes; their own ancestors are checked, too
    for path, theirs in edits.items():
        if theirs is None or theirs.kind is NodeKind.ARRAY:
            for ours in target.changes.edits.list_below(path):
                if fork_point.get_node(ours.path) is None:
                    change = "deleted" if theirs is None else "replaced by an array"
                    problem = f"{path} was {change} in the fork, and {ours.path} was created"
                    raise _merge_error(f"{problem} in this session")
        if theirs is None or fork_point.get_node(path) is not None:
            continue
        for ancestor in path.ancestors():
            if ancestor.value in checked:
                break
            checked.add(ancestor.value)
            edited = edits.get(ancestor)
            node = target.get_node(ancestor) if isinstance(edited, Unedited) else edited
            if node is not None and node.kind is NodeKind.ARRAY:
                raise _merge_error(f"{path} in the fork would be inside the array {ancestor}")
            if node is None and ancestor not in edits and fork_point.get_node(ancestor) is not None:
                raise _merge_error(
                    f"{path} was created in the fork, and {ancestor} was deleted in this session"
                )


def _find_excluded_rows(
    refs: ArrayManifest, writer_node: NodeSnapshot, other_node: NodeSnapshot
) -> NDArray[np.int64]:
    """Return the rows of written chunks that are inside ``writer_node`` but not ``other_node``.

    If the chunk grids of the two nodes differ, these are all chunks inside ``writer_node``.
    """
    is_excluded = ~overlay.is_inside(refs.coords, _get_num_chunks(other_node))
    is_excluded |= has_different_chunk_grid(writer_node, other_node)
    is_inside = overlay.is_inside(refs.coords, _get_num_chunks(writer_node))
    return np.flatnonzero(is_inside & is_excluded & (refs.payloads.kind != overlay.DELETED))


def _get_num_chunks(node: NodeSnapshot) -> list[int]:
    """Return the number of chunks along each dimension."""
    shape = node.node_data.shape if isinstance(node.node_data, ArrayNodeData) else ()
    return [dimension.num_chunks for dimension in shape]


def _require_no_lost_chunks(
    target: Transaction, fork_point: Transaction, base: NodeSnapshot, theirs: NodeSnapshot | None
) -> None:
    """Raise if their edit of an array (deletion, new shape or grid) would lose chunks of ours."""
    chunk_changes = target.changes.chunks.get(base.id)
    if not chunk_changes:
        return
    our_refs = chunk_changes.to_columns()
    if theirs is None or theirs.id != base.id:
        rows, change = np.arange(len(our_refs)), "deleted or replaced"
    else:
        rows, change = _find_excluded_rows(our_refs, base, theirs), "resized or rechunked"
    for row in rows.tolist():
        indices = tuple(our_refs.coords[row].tolist())
        if _get_payload(our_refs, row) != fork_point.get_payload(base.path, indices):
            raise _merge_error(
                f"{base.path} was {change} in the fork, and its chunks were changed in this session"
            )


def _plan_chunks(
    target: Transaction,
    fork_point: Transaction,
    node: NodeSnapshot,
    their_refs: ArrayManifest,
    on_chunk_conflict: VersionSelection,
) -> ArrayManifest:
    """Return the chunk changes of the fork to apply: all but conflicts won by ``UseOurs``."""
    chunk_changes = target.changes.chunks.get(node.id)
    if not chunk_changes:
        return their_refs
    our_refs = chunk_changes.to_columns()
    our_rows, their_rows = find_common_rows(our_refs.coords, their_refs.coords)
    dropped_rows = []
    for our_row, their_row in zip(our_rows.tolist(), their_rows.tolist(), strict=True):
        indices = tuple(our_refs.coords[our_row].tolist())
        our_payload = _get_payload(our_refs, our_row)
        if our_payload == fork_point.get_payload(node.path, indices):
            continue  # we did not change the chunk since the fork started
        if _have_same_bytes(target, our_payload, _get_payload(their_refs, their_row)):
            continue
        if on_chunk_conflict is VersionSelection.Fail:
            raise _merge_error(
                f"chunk {list(indices)} of {node.path} was written differently in this session and "
                "in the fork: write each chunk in only one of them, or choose the winner with "
                "on_chunk_conflict=VersionSelection.UseOurs or UseTheirs"
            )
        if on_chunk_conflict is VersionSelection.UseOurs:
            dropped_rows.append(their_row)
    if not dropped_rows:
        return their_refs
    is_kept = np.ones(len(their_refs), bool)
    is_kept[dropped_rows] = False
    return overlay.select(their_refs, np.flatnonzero(is_kept))


def _get_payload(refs: ArrayManifest, row: int) -> ChunkPayload | None:
    """Return the payload of a row, None if the chunk is deleted."""
    return None if refs.payloads.kind[row] == overlay.DELETED else refs.payloads[row]


def _have_same_bytes(
    target: Transaction, ours: ChunkPayload | None, theirs: ChunkPayload | None
) -> bool:
    """Whether payloads are equal, or native chunks with equal bytes (a task that ran twice)."""
    if ours == theirs:
        return True
    if isinstance(ours, ChunkRef) and isinstance(theirs, ChunkRef) and ours.length == theirs.length:
        target.finish_chunks()  # our chunk may be in a pack that is not written yet
        chunks = target.assets.chunks
        return bytes(chunks.fetch(ours)) == bytes(chunks.fetch(theirs))
    return False


def _is_same_node(left: NodeSnapshot | None, right: NodeSnapshot | None) -> bool:
    """Whether two nodes have the same id and metadata, or both do not exist."""
    if left is None or right is None:
        return left is right
    return left.id == right.id and _have_same_metadata(left, right)


def _have_same_metadata(left: NodeSnapshot | None, right: NodeSnapshot | None) -> bool:
    """Whether two nodes have the same path and metadata, or both do not exist."""
    if left is None or right is None:
        return left is right
    return left.kind is right.kind and left.path == right.path and left.user_data == right.user_data


def _describe_node(transaction: Transaction, node_id: NodeId) -> str:
    node = transaction.find_node(node_id)
    return "an array" if node is None else str(node.path)


def _merge_error(problem: str) -> SessionStateError:
    return SessionStateError(f"{problem}; nothing was merged", kind=ErrorKind.MERGE_FAILED)
