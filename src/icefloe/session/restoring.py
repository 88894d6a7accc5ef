"""Restores nodes and chunks of another snapshot in a session.

Chunks are not copied: the session gets references to the chunks of the other snapshot. Arrays and
chunks that are equal in both stay untouched, so that the commit records only what changed back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.node import ArrayNodeData
from icefloe.transaction import overlay
from icefloe.transaction.snapshot_comparison import find_changed_coords
from icefloe.transaction.zarr_metadata import has_different_chunk_grid

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.path import Path
    from icefloe.session.session import Session
    from icefloe.transaction.transaction import Transaction


def restore_nodes(session: Session, snapshot_id: SnapshotId, path: Path) -> None:
    """Make the node at a path, and everything below it, as in another snapshot.

    What the other snapshot lacks is deleted. Groups above the path are restored if they are
    missing. If it fails, the session is unchanged.

    Raises
    ------
    NodeNotFoundError
        If neither the session nor the other snapshot has a node at the path.
    """
    session.require_writable()
    source = session.connection.begin_transaction(snapshot_id)
    target = session.transaction
    if target.get_node(path) is None:
        source.require_node(path)
    with target.rollback_on_error():
        wanted = _get_nodes(source, path)
        if wanted:
            for ancestor in path.ancestors():
                node = source.get_node(ancestor)
                if node is not None and target.get_node(ancestor) is None:
                    target.set_metadata(ancestor, node.user_data)
        for present_path, present in _get_nodes(target, path).items():
            node = wanted.get(present_path)
            if node is None or not _can_become(present, node):
                target.drop_node(present_path)
        for node_path in sorted(wanted, key=lambda path: path.segments):
            _restore_node(source, target, wanted[node_path])


def _get_nodes(transaction: Transaction, path: Path) -> dict[Path, NodeSnapshot]:
    node = transaction.get_node(path)
    nodes = [*transaction.iter_nodes_below(path), *([] if node is None else [node])]
    return {node.path: node for node in nodes}


def _can_become(present: NodeSnapshot, wanted: NodeSnapshot) -> bool:
    """Whether new metadata suffices: a node of another kind or chunk grid must be replaced."""
    if present.kind is not wanted.kind:
        return False
    return not present.is_array or not has_different_chunk_grid(present, wanted)


def _restore_node(source: Transaction, target: Transaction, wanted: NodeSnapshot) -> None:
    path = wanted.path
    present = target.get_node(path)
    is_same = (
        present is not None
        and present.id == wanted.id
        and present.node_data == wanted.node_data
        and not target.changes.chunks.get(present.id)
    )
    target.set_metadata(path, wanted.user_data)
    if is_same or not isinstance(wanted.node_data, ArrayNodeData):
        return
    ndim = len(wanted.node_data.shape)
    wanted_refs = list(source.fetch_chunk_refs(path))
    changed = find_changed_coords(list(target.fetch_chunk_refs(path)), wanted_refs, ndim)
    if not len(changed):
        return
    is_gone = np.ones(len(changed), bool)
    for refs in wanted_refs:
        is_gone &= ~overlay.is_among(changed, refs.coords)
        rows = np.flatnonzero(overlay.is_among(refs.coords, changed))
        if len(rows):
            part = overlay.select(refs, rows)
            target.set_payloads(path, part.coords, part.payloads)
    if is_gone.any():
        target.delete_chunks(path, changed[is_gone])
