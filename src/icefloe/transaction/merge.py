"""Merging change sets of forks: transactions that started from the same point and went apart.

A fork changed some nodes and chunks; so may have the one it is merged into. Where only one side
changed a thing, that change counts; where both made the same change, it counts once; where they
differ, somebody has to choose.
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
    """Take over the changes of a fork.

    Parameters
    ----------
    into
        The transaction that takes them over.
    fork_point
        What the fork saw when it began, unchanged.
    changes
        What the fork did.
    on_chunk_conflict
        What happens where both wrote a chunk, differently: ``Fail``, ``UseOurs`` (the one that
        is there) or ``UseTheirs`` (the fork's).

    Raises
    ------
    SessionStateError
        If both sides contradict each other; nothing was taken over then.
    """
    if changes.adopted:
        raise _failed("the fork adopted manifests, which only the session that commits can")
    with into.lock:
        into.require_unsealed()
        _merge(into, fork_point, changes, on_chunk_conflict)


def _merge(
    into: Transaction,
    fork_point: Transaction,
    changes: ChangeSet,
    on_chunk_conflict: VersionSelection,
) -> None:
    edits, renamed = _plan_nodes(into, fork_point, changes)
    _require_places(into, fork_point, edits)
    columns = {}
    for node_id, changed in changes.chunks.items():
        if not changed:
            continue
        target = renamed.get(node_id, node_id)
        node = _find(into, edits, target)
        if node is None:
            raise _failed(
                f"the fork wrote chunks of {_name(fork_point, node_id)}, which was deleted here"
            )
        theirs = changed.columns()
        seen = _find(fork_point, changes.edits, node_id)
        if seen is not None and len(_misfits(theirs, seen, node)):
            raise _failed(f"the fork wrote chunks of {node.path}, whose grid was changed here")
        columns[target] = (
            node,
            _plan_chunks(into, fork_point, node, theirs, on_chunk_conflict),
        )
    # Everything was checked: from here on nothing fails.
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
    """Decide about each path that the fork touched; also which of its new nodes are there."""
    edits: dict[Path, NodeSnapshot | None] = {}
    renamed: dict[NodeId, NodeId] = {}
    for path, theirs in changes.edits.items():
        before, ours = fork_point.get_node(path), into.get_node(path)
        if _unchanged(ours, before):
            if before is not None:
                _require_unwritten(into, fork_point, before, theirs)
            edits[path] = theirs
        elif _alike(ours, theirs):
            # Both created it, from the same metadata: it is one node, under our id.
            if ours is not None and theirs is not None:
                renamed[theirs.id] = ours.id
        else:
            raise _failed(f"{path} was changed here and in the fork, in different ways")
    return edits, renamed


def _require_places(
    into: Transaction, fork_point: Transaction, edits: dict[Path, NodeSnapshot | None]
) -> None:
    """Refuse nodes inside arrays, and nodes whose group the other side deleted."""
    created = {
        above: path
        for path, node in into.changes.edits.items()
        if node is not None and fork_point.get_node(path) is None
        for above in path.ancestors()
    }
    for path, theirs in edits.items():
        if path in created and (theirs is None or theirs.kind is NodeKind.ARRAY):
            what = "deleted" if theirs is None else "made an array"
            raise _failed(f"{path} was {what} in the fork, and {created[path]} created here")
        if theirs is None or fork_point.get_node(path) is not None:
            continue
        for above in path.ancestors():
            here = edits[above] if above in edits else into.get_node(above)
            if here is not None and here.kind is NodeKind.ARRAY:
                raise _failed(f"{path} of the fork would lie inside the array {above}")
            if here is None and above not in edits and fork_point.get_node(above) is not None:
                raise _failed(f"{path} was created in the fork, and {above} deleted here")


def _misfits(written: ArrayManifest, seen: NodeSnapshot, node: NodeSnapshot) -> NDArray[np.int64]:
    """Find the chunks that were written for a grid, ``seen``, and have no place in another."""
    has_place = overlay.is_inside(written.coords, _grid(node)) & (
        not has_different_chunk_grid(seen, node)
    )
    was_seen = overlay.is_inside(written.coords, _grid(seen))
    return np.flatnonzero(was_seen & ~has_place & (written.payloads.kind != overlay.DELETED))


def _grid(node: NodeSnapshot) -> list[int]:
    data = node.node_data
    return [one.num_chunks for one in data.shape] if isinstance(data, ArrayNodeData) else []


def _require_unwritten(
    into: Transaction, fork_point: Transaction, before: NodeSnapshot, theirs: NodeSnapshot | None
) -> None:
    """Refuse to delete, or to cut anew, an array that was written to after the fork began."""
    changed = into.changes.chunks.get(before.id)
    if not changed:
        return
    ours = changed.columns()
    is_gone = theirs is None or theirs.id != before.id
    rows = np.arange(len(ours)) if theirs is None or is_gone else _misfits(ours, before, theirs)
    for row in rows.tolist():
        indices = tuple(ours.coords[row].tolist())
        if _payload(ours, row) != fork_point.get_payload(before.path, indices):
            what = "deleted" if is_gone else "given another grid"
            raise _failed(f"{before.path} was {what} in the fork, and written to here")


def _plan_chunks(
    into: Transaction,
    fork_point: Transaction,
    node: NodeSnapshot,
    theirs: ArrayManifest,
    on_conflict: VersionSelection,
) -> ArrayManifest:
    """Return those of the fork's chunk changes that are to be taken over."""
    changed = into.changes.chunks.get(node.id)
    if not changed:
        return theirs
    ours = changed.columns()
    mine, other = find_common_rows(ours.coords, theirs.coords)
    refused = []
    for row, their_row in zip(mine.tolist(), other.tolist(), strict=True):
        indices = tuple(ours.coords[row].tolist())
        our_payload = _payload(ours, row)
        if our_payload == fork_point.get_payload(node.path, indices):
            continue  # the fork knew this one, and went on from it
        if _same_bytes(into, our_payload, _payload(theirs, their_row)):
            continue
        if on_conflict is VersionSelection.Fail:
            raise _failed(
                f"chunk {list(indices)} of {node.path} was written here and in the fork, with "
                "different bytes: let each writer have whole chunks of its own, or say which "
                "wins with on_chunk_conflict=VersionSelection.UseOurs or UseTheirs"
            )
        if on_conflict is VersionSelection.UseOurs:
            refused.append(their_row)
    if not refused:
        return theirs
    kept = np.ones(len(theirs), bool)
    kept[refused] = False
    return overlay.select(theirs, np.flatnonzero(kept))


def _payload(refs: ArrayManifest, row: int) -> ChunkPayload | None:
    return None if refs.payloads.kind[row] == overlay.DELETED else refs.payloads[row]


def _same_bytes(into: Transaction, one: ChunkPayload | None, other: ChunkPayload | None) -> bool:
    """Whether two references lead to equal bytes; a task that ran twice wrote the same twice."""
    if one == other:
        return True
    if isinstance(one, ChunkRef) and isinstance(other, ChunkRef) and one.length == other.length:
        into.finish_chunks()  # ours may wait in a pack
        return bytes(into.assets.chunks.fetch(one)) == bytes(into.assets.chunks.fetch(other))
    return False


def _unchanged(now: NodeSnapshot | None, before: NodeSnapshot | None) -> bool:
    if now is None or before is None:
        return now is before
    return now.id == before.id and _alike(now, before)


def _alike(one: NodeSnapshot | None, other: NodeSnapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.kind is other.kind and one.path == other.path and one.user_data == other.user_data


def _find(
    into: Transaction, edits: dict[Path, NodeSnapshot | None], node_id: NodeId
) -> NodeSnapshot | None:
    for node in edits.values():
        if node is not None and node.id == node_id:
            return node
    return into.find_node(node_id)


def _name(transaction: Transaction, node_id: NodeId) -> str:
    node = transaction.find_node(node_id)
    return "an array" if node is None else str(node.path)


def _failed(problem: str) -> SessionStateError:
    return SessionStateError(f"{problem}; nothing was merged", kind=ErrorKind.MERGE_FAILED)
