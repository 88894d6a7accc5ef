"""What changed between two snapshots, from the transaction logs on the way between them.

Along one line of history this is the union of what each commit logged, with paths looked up in the
two hierarchies: a node that came and went is in neither, and left out. Between snapshots on
different lines the way goes back to the common ancestor and forward again; there the hierarchies
decide what is new, gone or different, and the logs only where to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.node import NodeKind
from icefloe.snapshots import Diff

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from icefloe.model.ids import NodeId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.transaction_log import TransactionLog


def diff_along_history(
    logs: Iterable[TransactionLog],
    before: dict[NodeId, NodeSnapshot],
    after: dict[NodeId, NodeSnapshot],
) -> Diff:
    """Sum up logs, oldest first; ``before`` and ``after`` are the nodes at both ends."""
    nodes = before | after
    diff = Diff()
    chunks: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        for name in (
            "new_groups",
            "new_arrays",
            "deleted_groups",
            "deleted_arrays",
            "updated_groups",
            "updated_arrays",
        ):
            paths: set[str] = getattr(diff, name)
            paths |= {str(nodes[node_id].path) for node_id in getattr(log, name) & nodes.keys()}
        for position, node_id in enumerate(log.updated_chunks.nodes()):
            chunks.setdefault(node_id, []).append(log.updated_chunks.matrix(position))
        moves = [(str(move.from_path), str(move.to_path)) for move in log.moved_nodes]
        diff.moved_nodes[:0] = moves  # those of the newest commit first
    _add_chunks(diff, chunks, nodes)
    return diff


def diff_across_history(
    logs: Iterable[TransactionLog],
    before: dict[NodeId, NodeSnapshot],
    after: dict[NodeId, NodeSnapshot],
) -> Diff:
    """Compare two hierarchies where the logs say that they may differ."""
    touched: set[NodeId] = set()
    chunks: dict[NodeId, list[NDArray[np.uint32]]] = {}
    for log in logs:
        touched |= log.new_groups | log.new_arrays | log.deleted_groups | log.deleted_arrays
        touched |= log.updated_groups | log.updated_arrays
        touched |= {move.node_id for move in log.moved_nodes}
        for position, node_id in enumerate(log.updated_chunks.nodes()):
            chunks.setdefault(node_id, []).append(log.updated_chunks.matrix(position))
    diff = Diff()
    for node_id in touched:
        one, other = before.get(node_id), after.get(node_id)
        if one is None and other is not None:
            target = diff.new_groups if other.kind is NodeKind.GROUP else diff.new_arrays
            target.add(str(other.path))
        elif other is None and one is not None:
            target = diff.deleted_groups if one.kind is NodeKind.GROUP else diff.deleted_arrays
            target.add(str(one.path))
        elif one is not None and other is not None:
            if one.user_data != other.user_data:
                is_group = one.kind is NodeKind.GROUP
                target = diff.updated_groups if is_group else diff.updated_arrays
                target.add(str(other.path))
            if one.path != other.path:
                diff.moved_nodes.append((str(one.path), str(other.path)))
    # Chunks of an array that one side does not have say no more than that.
    _add_chunks(diff, {id_: rows for id_, rows in chunks.items() if id_ in after}, after)
    return diff


def _add_chunks(
    diff: Diff,
    chunks: dict[NodeId, list[NDArray[np.uint32]]],
    nodes: dict[NodeId, NodeSnapshot],
) -> None:
    for node_id, matrices in chunks.items():
        if node_id not in nodes:
            continue
        # An array may have had another number of dimensions. A log may also name an array without
        # any chunk, and its matrix has no columns then.
        by_rank: dict[int, list[NDArray[np.uint32]]] = {}
        for matrix in matrices:
            if len(matrix):
                by_rank.setdefault(matrix.shape[1], []).append(matrix)
        rows: list[list[int]] = []
        for filled in by_rank.values():
            one = filled[0] if len(filled) == 1 else np.unique(np.concatenate(filled), axis=0)
            rows += one.tolist()
        diff.updated_chunks[str(nodes[node_id].path)] = rows if len(by_rank) < 2 else sorted(rows)
