"""Three-way merge of the changes of a fork into the transaction that it was forked from.

A change on one side is applied; the same change on both sides is applied once; different changes of
one node or chunk are a conflict. `VersionSelection` may resolve conflicts of chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.conflicts import VersionSelection
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.node import ArrayNodeData, NodeKind
from icefloe.transaction import overlay
from icefloe.transaction.row_order import find_common_rows
from icefloe.transaction.zarr_metadata import has_different_chunk_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayManifest
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.transaction.change_set import ChangeSet
    from icefloe.transaction.transaction import Transaction


def merge_changes(
    into: Transaction,
    fork_point: Transaction,
    changes: ChangeSet,
    on_chunk_conflict: VersionSelection = VersionSelection.Fail,
) -> None:
    """Merge the changes of a fork into a transaction; on a conflict nothing is changed.

    ``fork_point`` is the common base: the state in which the fork started. ``on_chunk_conflict``
    applies to chunks that both sides wrote differently: ``Fail`` raises `SessionStateError`,
    ``UseOurs`` keeps the chunk of ``into``, ``UseTheirs`` takes the chunk of the fork.
    """
    if changes.adopted:
        raise _merge_error("the fork adopted manifests: adopt them in the session that commits")
    with into.lock:
        into.require_unsealed()
        edits, our_ids = _plan_nodes(into, fork_point, changes)
        _require_parents(into, fork_point, edits)
        chunk_changes = {}
        for node_id, changed in changes.chunks.items():
            if not changed:
                continue
            target_id = our_ids.get(node_id, node_id)
            node = _find_node(into, edits, target_id)
            if node is None:
                raise _merge_error(
                    f"the fork wrote chunks of {_describe_node(fork_point, node_id)}, "
                    "which was deleted here"
                )
            theirs = changed.to_columns()
            before = _find_node(fork_point, changes.edits, node_id)
            if before is not None and len(_find_misfits(theirs, before, node)):
                raise _merge_error(
                    f"the fork wrote chunks of {node.path}, which was resized or rechunked here"
                )
            chosen = _plan_chunks(into, fork_point, node, theirs, on_chunk_conflict)
            chunk_changes[target_id] = node, chosen
        # All checks passed: nothing fails from here on.
        for path, new_node in edits.items():
            if new_node is None:
                into.drop_node(path)
            else:
                into.put_node(new_node)
        for node, refs in chunk_changes.values():
            into.change_chunks(node, refs)
        into.changes.fork_points |= changes.fork_points


def _plan_nodes(
    into: Transaction, fork_point: Transaction, changes: ChangeSet
) -> tuple[dict[Path, NodeSnapshot | None], dict[NodeId, NodeId]]:
    """Return the edits to apply, and our id of each node that both sides created, by theirs."""
    edits: dict[Path, NodeSnapshot | None] = {}
    our_ids: dict[NodeId, NodeId] = {}
    for path, theirs in changes.edits.items():
        before, ours = fork_point.get_node(path), into.get_node(path)
        if _is_unchanged(ours, before):
            if before is not None:
                _require_unwritten(into, fork_point, before, theirs)
            edits[path] = theirs
        elif _is_equal(ours, theirs):
            # Both sides created the node with the same metadata: merge them, and keep our id.
            if ours is not None and theirs is not None:
                our_ids[theirs.id] = ours.id
        else:
            raise _merge_error(f"{path} was changed differently here and in the fork")
    return edits, our_ids


def _require_parents(
    into: Transaction, fork_point: Transaction, edits: dict[Path, NodeSnapshot | None]
) -> None:
    """Raise if a node would be inside an array, or in a group that the other side deleted."""
    created_below = {
        ancestor: path
        for path, node in into.changes.edits.items()
        if node is not None and fork_point.get_node(path) is None
        for ancestor in path.ancestors()
    }
    for path, theirs in edits.items():
        if path in created_below and (theirs is None or theirs.kind is NodeKind.ARRAY):
            change = "deleted" if theirs is None else "replaced by an array"
            raise _merge_error(
                f"{path} was {change} in the fork, and {created_below[path]} was created here"
            )
        if theirs is None or fork_point.get_node(path) is not None:
            continue
        for ancestor in path.ancestors():
            node = edits[ancestor] if ancestor in edits else into.get_node(ancestor)
            if node is not None and node.kind is NodeKind.ARRAY:
                raise _merge_error(f"{path} of the fork would be inside the array {ancestor}")
            if node is None and ancestor not in edits and fork_point.get_node(ancestor) is not None:
                raise _merge_error(
                    f"{path} was created in the fork, and {ancestor} was deleted here"
                )


def _find_misfits(
    written: ArrayManifest, before: NodeSnapshot, node: NodeSnapshot
) -> NDArray[np.int64]:
    """Return the rows of written chunks that ``before`` contains and ``node`` does not.

    If the chunk grids of the two differ, ``node`` contains none of them.
    """
    is_inside = overlay.is_inside(written.coords, _get_grid(node)) & (
        not has_different_chunk_grid(before, node)
    )
    was_inside = overlay.is_inside(written.coords, _get_grid(before))
    return np.flatnonzero(was_inside & ~is_inside & (written.payloads.kind != overlay.DELETED))


def _get_grid(node: NodeSnapshot) -> list[int]:
    shape = node.node_data.shape if isinstance(node.node_data, ArrayNodeData) else ()
    return [dimension.num_chunks for dimension in shape]


def _require_unwritten(
    into: Transaction, fork_point: Transaction, before: NodeSnapshot, theirs: NodeSnapshot | None
) -> None:
    """Raise if chunks written here are of an array that the fork deleted, resized or rechunked."""
    changed = into.changes.chunks.get(before.id)
    if not changed:
        return
    ours = changed.to_columns()
    is_gone = theirs is None or theirs.id != before.id
    all_rows = np.arange(len(ours))
    # `theirs is None` repeats a part of `is_gone` for the type checker.
    rows = all_rows if theirs is None or is_gone else _find_misfits(ours, before, theirs)
    for row in rows.tolist():
        indices = tuple(ours.coords[row].tolist())
        if _get_payload(ours, row) != fork_point.get_payload(before.path, indices):
            change = "deleted" if is_gone else "resized or rechunked"
            raise _merge_error(f"{before.path} was {change} in the fork, and was written to here")


def _plan_chunks(
    into: Transaction,
    fork_point: Transaction,
    node: NodeSnapshot,
    theirs: ArrayManifest,
    on_conflict: VersionSelection,
) -> ArrayManifest:
    """Return the chunk changes of the fork that are applied."""
    changed = into.changes.chunks.get(node.id)
    if not changed:
        return theirs
    ours = changed.to_columns()
    our_rows, their_rows = find_common_rows(ours.coords, theirs.coords)
    dropped_rows = []
    for our_row, their_row in zip(our_rows.tolist(), their_rows.tolist(), strict=True):
        indices = tuple(ours.coords[our_row].tolist())
        our_payload = _get_payload(ours, our_row)
        if our_payload == fork_point.get_payload(node.path, indices):
            continue  # unchanged here since the fork started
        if _has_same_bytes(into, our_payload, _get_payload(theirs, their_row)):
            continue
        if on_conflict is VersionSelection.Fail:
            raise _merge_error(
                f"chunk {list(indices)} of {node.path} was written differently here and in the "
                "fork: give each writer whole chunks, or choose the winner with "
                "on_chunk_conflict=VersionSelection.UseOurs or UseTheirs"
            )
        if on_conflict is VersionSelection.UseOurs:
            dropped_rows.append(their_row)
    if not dropped_rows:
        return theirs
    is_kept = np.ones(len(theirs), bool)
    is_kept[dropped_rows] = False
    return overlay.select(theirs, np.flatnonzero(is_kept))


def _get_payload(refs: ArrayManifest, row: int) -> ChunkPayload | None:
    return None if refs.payloads.kind[row] == overlay.DELETED else refs.payloads[row]


def _has_same_bytes(
    into: Transaction, ours: ChunkPayload | None, theirs: ChunkPayload | None
) -> bool:
    """Whether two references have equal bytes, as after a task that ran twice."""
    if ours == theirs:
        return True
    if isinstance(ours, ChunkRef) and isinstance(theirs, ChunkRef) and ours.length == theirs.length:
        into.finish_chunks()  # our chunk may be in a pack that is not written yet
        return bytes(into.assets.chunks.fetch(ours)) == bytes(into.assets.chunks.fetch(theirs))
    return False


def _is_unchanged(now: NodeSnapshot | None, before: NodeSnapshot | None) -> bool:
    if now is None or before is None:
        return now is before
    return now.id == before.id and _is_equal(now, before)


def _is_equal(left: NodeSnapshot | None, right: NodeSnapshot | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.kind is right.kind and left.path == right.path and left.user_data == right.user_data


def _find_node(
    into: Transaction, edits: dict[Path, NodeSnapshot | None], node_id: NodeId
) -> NodeSnapshot | None:
    for node in edits.values():
        if node is not None and node.id == node_id:
            return node
    return into.find_node(node_id)


def _describe_node(transaction: Transaction, node_id: NodeId) -> str:
    node = transaction.find_node(node_id)
    return "an array" if node is None else str(node.path)


def _merge_error(problem: str) -> SessionStateError:
    return SessionStateError(f"{problem}; nothing was merged", kind=ErrorKind.MERGE_FAILED)
