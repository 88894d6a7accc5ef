"""Numbers of new nodes, in generations whose node ids are small integers.

A session gives new nodes provisional random ids, so that sessions and forks that create nodes at
the same time do not use the same id. Nodes get numbers before their snapshot is written. Numbers
are never reused: a snapshot records the next free number of its history. If another commit takes
the same numbers first, a rebase renumbers the nodes of the session, also in adopted manifests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.chunk_payload import MAX_U32
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import Manifest
from icefloe.model.node import ManifestRef
from icefloe.transaction.adopted import AdoptedManifest
from icefloe.transaction.change_set import ChangeSet, compare_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.assets import Assets
    from icefloe.model.tree import Tree


def plan_numbers(base: Tree, changes: ChangeSet, first: int) -> dict[NodeId, NodeId]:
    """Return new ids of the created nodes that have no number, or one below ``first``."""
    created = sorted(compare_nodes(base, changes).new, key=lambda node: node.path)
    numbered = [node.id.number for node in created if not node.id.is_provisional]
    start = max([first, *(number + 1 for number in numbered)])
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
    adopted = {}
    rewritten: dict[ManifestId, AdoptedManifest] = {}
    for node_id, manifests in changes.adopted.items():
        if node_id in numbers:
            for manifest in manifests:
                if manifest.ref.id not in rewritten:
                    new = _renumber_manifest(
                        assets.fetch_manifest(manifest.ref.id), numbers, assets
                    )
                    info = assets.write_manifest(new)
                    rewritten[manifest.ref.id] = AdoptedManifest(
                        ManifestRef(new.id, manifest.ref.extents), info
                    )
    for node_id, manifests in changes.adopted.items():
        # A file may contain several arrays, so references to it change in all of them.
        adopted[numbers.get(node_id, node_id)] = tuple(
            replace(
                manifest,
                ref=replace(manifest.ref, id=rewritten[manifest.ref.id].ref.id),
                info=rewritten[manifest.ref.id].info,
            )
            if manifest.ref.id in rewritten
            else manifest
            for manifest in manifests
        )
    return ChangeSet(
        {
            path: node
            if node is None or node.id not in numbers
            else replace(node, id=numbers[node.id])
            for path, node in changes.edits.items()
        },
        {numbers.get(node_id, node_id): chunks for node_id, chunks in changes.chunks.items()},
        adopted,
        set(changes.fork_points),
    )


def _renumber_manifest(
    manifest: Manifest, numbers: Mapping[NodeId, NodeId], assets: Assets
) -> Manifest:
    arrays = {
        numbers.get(node_id, node_id): array
        for node_id in manifest.indices.iter_node_ids()
        if (array := manifest.get_array(node_id)) is not None
    }
    return Manifest.of(assets.generation.make_id(ManifestId), arrays)
