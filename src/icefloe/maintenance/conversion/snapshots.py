"""Writes converted snapshots, parents first, with their transaction logs and attributes files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import PreconditionFailedError
from icefloe.maintenance.conversion.history import count_children
from icefloe.maintenance.conversion.logs import fetch_log, map_log
from icefloe.maintenance.conversion.nodes import NodeConverter
from icefloe.maintenance.conversion.object_ids import map_id
from icefloe.maintenance.limits import map_bounded
from icefloe.maintenance.progress import Phase
from icefloe.model.id_columns import parse_names
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import MAX_RECENT_ANCESTORS, Snapshot, SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.assets import EncodedFile
    from icefloe.maintenance.conversion.node_ids import NodeIds
    from icefloe.maintenance.conversion.object_ids import MapManifestId
    from icefloe.maintenance.conversion.plan import Source
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.node import AttributesRef, NodeSnapshot
    from icefloe.model.snapshot import ManifestFileInfo

_WORKERS = 16


@dataclass(slots=True)
class _Lineage:
    """What a child takes from its parent: ancestors, and places of attributes by node."""

    info: SnapshotInfo
    recent_ancestors: tuple[SnapshotInfo, ...]
    num_ancestors: int
    attributes: Mapping[NodeId, tuple[bytes, AttributesRef]]
    num_children: int


def map_info(info: SnapshotInfo, id_size: int) -> SnapshotInfo:
    """Map the ids in the history entry of a snapshot."""
    return SnapshotInfo(
        map_id(info.id, id_size),
        None if info.parent_id is None else map_id(info.parent_id, id_size),
        info.flushed_at,
        info.message,
        dict(info.metadata),
    )


def convert_snapshots(
    source: Source,
    node_ids: NodeIds,
    manifests: Mapping[ManifestId, ManifestFileInfo],
    target: Assets,
    map_manifest_id: MapManifestId,
) -> None:
    """Write all snapshots that the target lacks, each after the files that it refers to.

    ``node_ids`` is the map of the plan, ``manifests`` has the entries of manifests of the target.
    """
    writer = _SnapshotWriter(source, node_ids, manifests, target, map_manifest_id)

    def write(files: tuple[EncodedFile, ...]) -> None:
        for file in files:
            # Another run of this conversion may write the same file at the same time.
            with contextlib.suppress(PreconditionFailedError):
                target.publish(file)

    is_local = target.storage.is_low_latency
    for _ in map_bounded(write, writer.encode_all(), workers=1 if is_local else _WORKERS):
        pass


class _SnapshotWriter:
    def __init__(
        self,
        source: Source,
        node_ids: NodeIds,
        manifests: Mapping[ManifestId, ManifestFileInfo],
        target: Assets,
        map_manifest_id: MapManifestId,
    ) -> None:
        self._source, self._manifests, self._target = source, manifests, target
        self._num_children = count_children(source.state.snapshots)
        self._generation = target.generation
        self._node_ids = node_ids.start_again()
        self._converter = NodeConverter(self._generation, map_manifest_id)
        # With caches: comparisons read the manifests of parents again.
        self._source_assets = Assets(source.storage, source.generation)
        self._lineages: dict[SnapshotId, _Lineage] = {}

    def encode_all(self) -> Iterator[tuple[EncodedFile, ...]]:
        """Yield the files of each snapshot, the snapshot itself last."""
        existing = _list_snapshots(self._target)
        for info, snapshot in self._source.read_snapshots(Phase.WRITE_SNAPSHOTS):
            node_ids = self._node_ids.add_snapshot(snapshot, info.parent_id)
            parent = self._release_parent(info.parent_id)
            snapshot_id = map_id(info.id, self._generation.id_size)
            if snapshot_id in existing:
                # An interrupted run wrote it; its attributes files have random ids.
                placed = self._target.fetch_snapshot(snapshot_id)
                files: tuple[EncodedFile, ...] = ()
            else:
                converted = self._convert(info, snapshot, node_ids, parent)
                encoded = self._target.encode_snapshot(converted)
                placed = encoded.snapshot
                files = (*self._encode_log(info, node_ids), *encoded.attributes, encoded.file)
            self._keep_lineage(map_info(info, self._generation.id_size), info.id, placed, parent)
            yield files

    def _convert(
        self,
        info: SnapshotInfo,
        snapshot: Snapshot,
        node_ids: Mapping[NodeId, NodeId] | None,
        parent: _Lineage | None,
    ) -> Snapshot:
        mapped = map_info(info, self._generation.id_size)
        nodes = [
            self._inherit_attributes(self._converter.convert(node, node_ids), parent)
            for node in snapshot.nodes
        ]
        used = {file.id for file in snapshot.manifest_files}
        used.update([ref.id for node in snapshot.nodes for ref in node.manifests])
        recent, num_ancestors = _get_ancestors(parent)
        return Snapshot(
            mapped.id,
            mapped.parent_id,
            mapped.flushed_at,
            mapped.message,
            mapped.metadata,
            tuple(nodes),
            tuple(sorted((self._manifests[used_id] for used_id in used), key=lambda file: file.id)),
            next_node_number=self._node_ids.get_next_number(snapshot)
            if self._generation.numbers_nodes
            else 0,
            recent_ancestors=recent if self._generation.records_ancestors else (),
            num_ancestors=num_ancestors if self._generation.records_ancestors else 0,
        )

    def _inherit_attributes(self, node: NodeSnapshot, parent: _Lineage | None) -> NodeSnapshot:
        """Share the attributes file of the parent if the node did not change."""
        document, ref = (
            (None, None) if parent is None else parent.attributes.get(node.id, (None, None))
        )
        return replace(node, attributes_ref=ref) if document == node.user_data else node

    def _encode_log(
        self, info: SnapshotInfo, node_ids: Mapping[NodeId, NodeId] | None
    ) -> tuple[EncodedFile, ...]:
        if not self._generation.has_transaction_logs:
            return ()
        log = map_log(fetch_log(self._source_assets, info), node_ids, self._generation.id_size)
        return (self._target.encode_transaction_log(log),)

    def _release_parent(self, parent_id: SnapshotId | None) -> _Lineage | None:
        if parent_id is None:
            return None
        parent = self._lineages[parent_id]
        parent.num_children -= 1
        if not parent.num_children:
            del self._lineages[parent_id]
        return parent

    def _keep_lineage(
        self, info: SnapshotInfo, source_id: SnapshotId, placed: Snapshot, parent: _Lineage | None
    ) -> None:
        num_children = self._num_children[source_id]
        if not num_children:
            return
        attributes = {
            node.id: (node.user_data, node.attributes_ref)
            for node in placed.nodes
            if node.attributes_ref is not None
        }
        ancestors, num_ancestors = _get_ancestors(parent)
        self._lineages[source_id] = _Lineage(
            info, ancestors, num_ancestors, attributes, num_children
        )


def _get_ancestors(parent: _Lineage | None) -> tuple[tuple[SnapshotInfo, ...], int]:
    if parent is None:
        return (), 0
    recent = (parent.info, *parent.recent_ancestors)[:MAX_RECENT_ANCESTORS]
    return recent, parent.num_ancestors + 1


def _list_snapshots(target: Assets) -> set[SnapshotId]:
    kind = target.generation.layout.snapshots
    names = [kind.parse_name(info.key) for info in target.storage.list(kind.prefix)]
    _, rows = parse_names(names, target.generation.id_size)
    return {SnapshotId(row.tobytes()) for row in rows}
