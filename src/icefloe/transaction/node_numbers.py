"""Numbers of new nodes, in generations whose node ids are small integers.

A session gives new nodes provisional random ids, so that sessions and forks that create nodes at
the same time do not use the same id. Nodes get numbers before their snapshot is written, and before
tasks write manifests with their chunks. Numbers are never reused: a snapshot records the next free
number of its history. If another commit takes the same numbers first, a rebase renumbers the nodes
of the session, also in adopted manifests.

On branches that diverged, the same number may denote two nodes: `mark_branch` makes them distinct.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U32
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import Manifest
from icefloe.model.transaction_log import NODE_SETS
from icefloe.transaction.change_set import ChangeSet, compare_nodes
from icefloe.transaction.node_edits import NodeEdits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.assets import Assets
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import AdoptedManifest


def plan_numbers(base: Tree, changes: ChangeSet, first: int) -> dict[NodeId, NodeId]:
    """Return new ids of the created nodes that have no number, or one below ``first``."""
    created = sorted(compare_nodes(base, changes).new, key=lambda node: node.path)
    numbered = [node.id.number for node in created if not node.id.is_provisional]
    start = max([first, changes.next_node_number, *(number + 1 for number in numbered)])
    unnumbered = [node.id for node in created if node.id.is_provisional or node.id.number < first]
    if start + len(unnumbered) > MAX_U32:
        raise InvalidInputError(
            f"this repository has had {start} nodes, and node ids end at {MAX_U32}: convert it to "
            "generation v2",
            kind=ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    return {node_id: NodeId.from_number(number) for number, node_id in enumerate(unnumbered, start)}


def renumber(changes: ChangeSet, numbers: Mapping[NodeId, NodeId], assets: Assets) -> ChangeSet:
    """Replace node ids in changes; adopted manifests that contain them are rewritten."""
    # A file may contain several arrays: references to it change in all of them.
    outdated = dict.fromkeys(
        manifest.ref.id
        for node_id, manifests in changes.adopted.items()
        if node_id in numbers
        for manifest in manifests
    )
    infos = assets.run_concurrently(
        lambda manifest_id: _rewrite_manifest(manifest_id, numbers, assets), outdated
    )
    rewritten = dict(zip(outdated, infos, strict=True))
    assigned = [new.number + 1 for new in numbers.values() if not new.is_provisional]
    return ChangeSet(
        _replace_ids(changes.edits, numbers),
        {numbers.get(node_id, node_id): chunks for node_id, chunks in changes.chunks.items()},
        {
            numbers.get(node_id, node_id): tuple(
                _replace_file(manifest, rewritten.get(manifest.ref.id)) for manifest in manifests
            )
            for node_id, manifests in changes.adopted.items()
        },
        set(changes.fork_points),
        max([changes.next_node_number, *assigned]),
    )


def make_mergeable(changes: ChangeSet, fork_base: Tree, target: ChangeSet) -> ChangeSet:
    """Return the changes of a fork without numbers that the target may use for other nodes.

    A fork that was forked itself has numbered its new nodes, as other forks may have done
    independently. If the numbers may denote other nodes in the target, the nodes get new
    provisional ids; forks of this fork, which know the numbers, can then only be merged into it.
    """
    if (
        not changes.next_node_number
        or fork_base.snapshot.next_node_number >= target.next_node_number
    ):
        return changes
    provisional = {
        node.id: NodeId.make_provisional()
        for node in compare_nodes(fork_base, changes).new
        if not node.id.is_provisional
    }
    return ChangeSet(
        _replace_ids(changes.edits, provisional),
        {provisional.get(node_id, node_id): chunks for node_id, chunks in changes.chunks.items()},
    )


def mark_branch(
    logs: Iterable[TransactionLog], nodes: Mapping[NodeId, NodeSnapshot], first: int
) -> tuple[list[TransactionLog], dict[NodeId, NodeSnapshot]]:
    """Replace the ids of nodes from number ``first`` on by ids that no other branch has.

    ``first`` is the next node number of the common ancestor of both branches.
    """
    marked = {_mark(node_id, first): node for node_id, node in nodes.items()}
    return [_mark_log(log, first) for log in logs], marked


def _replace_ids(edits: NodeEdits, ids: Mapping[NodeId, NodeId]) -> NodeEdits:
    return NodeEdits(
        (path, replace(node, id=ids[node.id]) if node is not None and node.id in ids else node)
        for path, node in edits.items()
    )


def _rewrite_manifest(
    manifest_id: ManifestId, numbers: Mapping[NodeId, NodeId], assets: Assets
) -> ManifestFileInfo:
    manifest = assets.fetch_manifest(manifest_id)
    arrays = {
        numbers.get(node_id, node_id): array
        for node_id in manifest.indices.iter_node_ids()
        if (array := manifest.get_array(node_id)) is not None
    }
    return assets.write_manifest(Manifest.of(assets.generation.make_id(ManifestId), arrays))


def _replace_file(manifest: AdoptedManifest, info: ManifestFileInfo | None) -> AdoptedManifest:
    if info is None:
        return manifest
    return replace(manifest, ref=replace(manifest.ref, id=info.id), info=info)


def _mark(node_id: NodeId, first: int) -> NodeId:
    if node_id.number < first:
        return node_id
    return NodeId(bytes([node_id.raw[0] | 0x80]) + node_id.raw[1:])


def _mark_log(log: TransactionLog, first: int) -> TransactionLog:
    sets: dict[str, Any] = {
        name: frozenset(_mark(node_id, first) for node_id in getattr(log, name))
        for name in NODE_SETS
    }
    moves = tuple(replace(move, node_id=_mark(move.node_id, first)) for move in log.moved_nodes)
    columns = log.updated_chunks
    ids = columns.node_ids.copy()
    is_new = np.frombuffer(ids.tobytes(), ">u8") >= first
    ids[is_new, 0] |= 0x80  # they stay in order
    chunks = replace(columns, node_ids=ids)
    return replace(log, updated_chunks=chunks, moved_nodes=moves, **sets)
