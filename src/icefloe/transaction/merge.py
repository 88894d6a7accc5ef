"""Three-way merge of the changes of a fork into the transaction that it was forked from.

A change on one side is applied; the same change on both sides is applied once; different changes of
one node or chunk are a conflict, which `VersionSelection` may resolve for chunks.
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
    decides which version of a chunk wins if both sides wrote it differently: ``Fail`` raises
    `SessionStateError`, ``UseOurs`` is that of ``into``, ``UseTheirs`` the fork's.
    """
    if changes.adopted:
        raise _merge_error("the fork adopted manifests: adopt them in the session that commits")
    with into.lock:
        into.require_unsealed()
        edits, our_ids = _plan_nodes(into, fork_point, changes)
        _require_parents(into, fork_point, edits)
        columns = {}
        for node_id, changed in changes.chunks.items():
            if not changed:
                continue
            target = our_ids.get(node_id, node_id)
            node = _find_node(into, edits, target)
            if node is None:
                raise _merge_error(
                    f"the fork wrote chunks of {_describe_node(fork_point, node_id)}, "
                    "which was deleted here"
                )
            theirs = changed.to_columns()
            before = _find_node(fork_point, changes.edits, node_id)
            if before is not None and len(_find_misfits(theirs, before, node)):
                raise _merge_error(
                    f"the fork wrote chunks of {node.path}, whose grid was changed here"
                )
            planned = _plan_chunks(into, fork_point, node, theirs, on_chunk_conflict)
            columns[target] = node, planned
        # All checks passed: nothing fails from here on.
        for path, edited in edits.items():
            if edited is None:
                into.drop_node(path)
            else:
                into.put_node(edited)
        for node, changed_columns in columns.values():
            into.change_chunks(node, changed_columns)
        into.changes.fork_points |= changes.fork_points


def _plan_nodes(
    into: Transaction, fork_point: Transaction, changes: ChangeSet
) -> tuple[dict[Path, NodeSnapshot | None], dict[NodeId, NodeId]]:
    """Return the edits to apply, and our ids of nodes that both sides created."""
    edits: dict[Path, NodeSnapshot | None] = {}
    our_ids: dict[NodeId, NodeId] = {}
    for path, theirs in changes.edits.items():
        before, ours = fork_point.get_node(path), into.get_node(path)
        if _is_unchanged(ours, before):
            if before is not None:
                _require_unwritten(into, fork_point, before, theirs)
            edits[path] = theirs
        elif _is_equal(ours, theirs):
            # Both sides created it from the same metadata: it is one node, with our id.
            if ours is not None and theirs is not None:
                our_ids[theirs.id] = ours.id
        else:
            raise _merge_error(f"{path} was changed differently here and in the fork")
    return edits, our_ids


def _require_parents(
    into: Transaction, fork_point: Transaction, edits: dict[Path, NodeSnapshot | None]
) -> None:
    """Raise if a node would be inside an array, or in a group that the other side deleted."""
    created = {
        above: path
        for path, node in into.changes.edits.items()
        if node is not None and fork_point.get_node(path) is None
        for above in path.ancestors()
    }
    for path, theirs in edits.items():
        if path in created and (theirs is None or theirs.kind is NodeKind.ARRAY):
            what = "deleted" if theirs is None else "made an array"
            raise _merge_error(f"{path} was {what} in the fork, and {created[path]} created here")
        if theirs is None or fork_point.get_node(path) is not None:
            continue
        for above in path.ancestors():
            here = edits[above] if above in edits else into.get_node(above)
            if here is not None and here.kind is NodeKind.ARRAY:
                raise _merge_error(f"{path} of the fork would be inside the array {above}")
            if here is None and above not in edits and fork_point.get_node(above) is not None:
                raise _merge_error(f"{path} was created in the fork, and {above} deleted here")


def _find_misfits(
    written: ArrayManifest, before: NodeSnapshot, node: NodeSnapshot
) -> NDArray[np.int64]:
    """Return the rows of written chunks in the grid of ``before`` but not in that of ``node``."""
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
    """Raise if the fork deleted or regridded an array that was written here since it started."""
    changed = into.changes.chunks.get(before.id)
    if not changed:
        return
    ours = changed.to_columns()
    is_gone = theirs is None or theirs.id != before.id
    rows = (
        np.arange(len(ours)) if theirs is None or is_gone else _find_misfits(ours, before, theirs)
    )
    for row in rows.tolist():
        indices = tuple(ours.coords[row].tolist())
        if _get_payload(ours, row) != fork_point.get_payload(before.path, indices):
            what = "deleted" if is_gone else "given another grid"
            raise _merge_error(f"{before.path} was {what} in the fork, and written to here")


def _plan_chunks(
    into: Transaction,
    fork_point: Transaction,
    node: NodeSnapshot,
    theirs: ArrayManifest,
    on_conflict: VersionSelection,
) -> ArrayManifest:
    """Return the chunk changes of the fork to apply."""
    changed = into.changes.chunks.get(node.id)
    if not changed:
        return theirs
    ours = changed.to_columns()
    our_rows, their_rows = find_common_rows(ours.coords, theirs.coords)
    dropped = []
    for row, their_row in zip(our_rows.tolist(), their_rows.tolist(), strict=True):
        indices = tuple(ours.coords[row].tolist())
        our_payload = _get_payload(ours, row)
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
            dropped.append(their_row)
    if not dropped:
        return theirs
    is_kept = np.ones(len(theirs), bool)
    is_kept[dropped] = False
    return overlay.select(theirs, np.flatnonzero(is_kept))


def _get_payload(refs: ArrayManifest, row: int) -> ChunkPayload | None:
    return None if refs.payloads.kind[row] == overlay.DELETED else refs.payloads[row]


def _has_same_bytes(
    into: Transaction, ours: ChunkPayload | None, theirs: ChunkPayload | None
) -> bool:
    """Whether two references point to equal bytes, as after a task that ran twice."""
    if ours == theirs:
        return True
    if isinstance(ours, ChunkRef) and isinstance(theirs, ChunkRef) and ours.length == theirs.length:
        into.finish_chunks()  # ours may be in an unwritten pack
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
