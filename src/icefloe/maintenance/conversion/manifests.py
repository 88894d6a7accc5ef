"""Converts manifests, with mapped ids of files, nodes and chunks."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.assets import Assets
from icefloe.errors import PreconditionFailedError
from icefloe.maintenance.conversion.object_ids import map_id_rows
from icefloe.maintenance.limits import Budget, map_bounded
from icefloe.maintenance.progress import Phase, Step
from icefloe.maintenance.repository_reader import DECODED_BYTES_PER_REF, NO_CACHE
from icefloe.model.id_columns import parse_names
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import Manifest
from icefloe.model.snapshot import ManifestFileInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.maintenance.conversion.object_ids import MapManifestId
    from icefloe.maintenance.conversion.plan import ConversionPlan, Source
    from icefloe.model.ids import NodeId

_MANIFESTS_IN_MEMORY = 8


def convert_manifests(
    source: Source,
    plan: ConversionPlan,
    target: Assets,
    location_compression: LocationCompression | None,
    map_manifest_id: MapManifestId,
) -> dict[ManifestId, ManifestFileInfo]:
    """Write all manifests that the target lacks; return their entries, by id in the source."""
    assets = Assets(source.storage, source.generation, NO_CACHE)
    existing = _list_manifests(target)

    def convert(info: ManifestFileInfo) -> tuple[ManifestId, ManifestFileInfo]:
        manifest_id = map_manifest_id(info.id)
        if manifest_id in existing:
            # An interrupted run wrote it.
            manifest = target.fetch_manifest(manifest_id)
            return info.id, ManifestFileInfo(manifest_id, existing[manifest_id], len(manifest))
        manifest = convert_manifest(
            assets.fetch_manifest(info.id),
            manifest_id,
            plan.node_ids.get_manifest_map(info.id),
            target.generation.id_size,
        )
        entry, file = target.encode_manifest(manifest, location_compression)
        # Another run of this conversion may write the same file at the same time.
        with contextlib.suppress(PreconditionFailedError):
            target.publish(file)
        return info.id, entry

    limits, infos = source.limits, list(plan.manifests.values())
    is_local = source.storage.is_low_latency and target.storage.is_low_latency
    converted = {}
    for manifest_id, entry in map_bounded(
        convert,
        infos,
        workers=1 if is_local else _MANIFESTS_IN_MEMORY,
        costs=lambda info: (info.num_chunk_refs * DECODED_BYTES_PER_REF,),
        budgets=(Budget(limits.max_decoded_manifest_mem_bytes),),
    ):
        converted[manifest_id] = entry
        source.progress(Step(Phase.WRITE_MANIFESTS, len(converted), len(infos)))
    return converted


def convert_manifest(
    manifest: Manifest,
    manifest_id: ManifestId,
    node_ids: Mapping[NodeId, NodeId] | None,
    id_size: int,
) -> Manifest:
    """Replace the ids in a manifest; references of nodes that no snapshot has are dropped."""
    chunk_id = map_id_rows(manifest.payloads.chunk_id, id_size)
    payloads = replace(manifest.payloads, chunk_id=chunk_id)
    converted = Manifest(manifest_id, manifest.indices, payloads)
    if node_ids is None:
        return converted
    arrays = {
        node_ids[node_id]: array
        for node_id in manifest.indices.iter_node_ids()
        if node_id in node_ids and (array := converted.get_array(node_id)) is not None
    }
    return Manifest.of(manifest_id, arrays)


def _list_manifests(target: Assets) -> dict[ManifestId, int]:
    """List the manifests of the target with their sizes."""
    kind, id_size = target.generation.layout.manifests, target.generation.id_size
    infos = list(target.storage.list(kind.prefix))
    indices, rows = parse_names([kind.parse_name(info.key) for info in infos], id_size)
    return {
        ManifestId(row.tobytes()): infos[index].size_bytes
        for index, row in zip(indices.tolist(), rows, strict=True)
    }
