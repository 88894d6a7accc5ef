"""What each value should be in its file, as a tree for `flatbuffers_library`.

Written from the specification: which fields are there in which version, and in what order.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgpack
import zstandard

from icefloe.format import config_flexbuffers, flexbuffers
from icefloe.model import repo_info as info
from icefloe.model.chunk_payload import ChunkRef, ETag, InlineChunk, LastModified, VirtualChunkRef
from icefloe.model.node import ArrayNodeData
from support.flatbuffers_library import UPDATE_KINDS, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.chunk_index_columns import ChunkIndexColumns
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.node import NodeData
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog

NODE_KINDS = ("groups", "arrays")


def microseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def metadata_tree(metadata: Mapping[str, Any], spec_version: int) -> list[Tree]:
    encode = flexbuffers.dumps if spec_version > 1 else msgpack.packb
    return [
        {"name": name, "value": bytes(encode(metadata[name]))}
        for name in sorted(metadata, key=str.encode)
    ]


def indices_of(columns: ChunkIndexColumns, array: int) -> list[list[int]]:
    rows: list[list[int]] = columns.get_coords(array).tolist()
    return rows


def manifest_tree(manifest: Manifest, dictionary: bytes | None = None) -> Tree:
    """Describe a manifest; with a dictionary, its locations are compressed."""
    compressor = None
    if dictionary is not None:
        compressor = zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary), write_content_size=True
        )
    arrays = []
    for place, node_id in enumerate(manifest.indices.iter_node_ids()):
        array = manifest.get_array(node_id)
        assert array is not None
        indices = indices_of(manifest.indices, place)
        refs = [
            {"index": index, **_payload_tree(payload, compressor)}
            for index, payload in zip(indices, array.payloads, strict=True)
        ]
        arrays.append({"node_id": node_id.raw, "refs": refs})
    tree: Tree = {
        "id": manifest.id.raw,
        "arrays": arrays,
        "compression_algorithm": 0 if dictionary is None else 1,
    }
    return tree if dictionary is None else {**tree, "location_dictionary": dictionary}


def _payload_tree(payload: ChunkPayload, compressor: zstandard.ZstdCompressor | None) -> Tree:
    nothing: Tree = {"offset": 0, "length": 0, "checksum_last_modified": 0}
    match payload:
        case InlineChunk(data):
            return {**nothing, "inline": data}
        case ChunkRef(chunk_id, offset, length):
            return {**nothing, "chunk_id": chunk_id.raw, "offset": offset, "length": length}
        case VirtualChunkRef(location, offset, length, checksum):
            tree = {**nothing, "offset": offset, "length": length}
            if compressor is None:
                tree["location"] = location
            else:
                tree["compressed_location"] = compressor.compress(location.encode())
            match checksum:
                case ETag(value):
                    tree["checksum_etag"] = value
                case LastModified(seconds):
                    tree["checksum_last_modified"] = seconds
            return tree


def snapshot_tree(snapshot: Snapshot, spec_version: int) -> Tree:
    is_v1 = spec_version == 1
    tree: Tree = {
        "id": snapshot.id.raw,
        "nodes": [
            {
                "id": node.id.raw,
                "path": str(node.path),
                "user_data": node.user_data,
                "node_data_type": 1 if isinstance(node.node_data, ArrayNodeData) else 2,
                "node_data": _node_data_tree(node.node_data, is_v1=is_v1),
            }
            for node in sorted(snapshot.nodes, key=lambda node: str(node.path).encode())
        ],
        "flushed_at": microseconds(snapshot.flushed_at),
        "message": snapshot.message,
        "metadata": metadata_tree(snapshot.metadata, spec_version),
        "manifest_files": [
            file.id.raw + bytes(4) + struct.pack("<QIxxxx", file.size_bytes, file.num_chunk_refs)
            for file in snapshot.manifest_files
            if is_v1
        ],
    }
    if snapshot.parent_id is not None:
        tree["parent_id"] = snapshot.parent_id.raw
    if not is_v1:
        tree["manifest_files_v2"] = [
            {
                "id": file.id.raw,
                "size_bytes": file.size_bytes,
                "num_chunk_refs": file.num_chunk_refs,
            }
            for file in snapshot.manifest_files
        ]
    return tree


def _node_data_tree(data: NodeData, *, is_v1: bool) -> tuple[int, Tree]:
    if not isinstance(data, ArrayNodeData):
        return 2, {}
    tree: Tree = {
        "shape": [
            struct.pack("<QQ", dimension.array_length, dimension.chunk_length)
            for dimension in data.shape
            if is_v1
        ],
        "manifests": [
            {
                "object_id": ref.id.raw,
                "extents": [struct.pack("<II", *pair) for pair in ref.extents.ranges],
            }
            for ref in data.manifests
        ],
    }
    if not is_v1:
        tree["shape_v2"] = [
            {"array_length": dimension.array_length, "num_chunks": dimension.num_chunks}
            for dimension in data.shape
        ]
    if data.dimension_names is not None:
        tree["dimension_names"] = [
            {} if name is None else {"name": name} for name in data.dimension_names
        ]
    return 1, tree


def transaction_log_tree(log: TransactionLog) -> Tree:
    sets = [f"{what}_{nodes}" for what in ("new", "deleted", "updated") for nodes in NODE_KINDS]
    return {
        "id": log.id.raw,
        **{name: sorted(node_id.raw for node_id in getattr(log, name)) for name in sets},
        "updated_chunks": [
            {
                "node_id": node_id.raw,
                "chunks": [{"coords": row} for row in indices_of(log.updated_chunks, place)],
            }
            for place, node_id in enumerate(log.updated_chunks.iter_node_ids())
        ],
        "moved_nodes": [
            {
                "from": str(move.from_path),
                "to": str(move.to_path),
                "node_id": move.node_id.raw,
                "node_type": int(move.node_kind),
            }
            for move in sorted(log.moved_nodes, key=lambda move: move.to_path.segments)
        ],
    }


def repo_tree(repo: info.RepoInfo) -> Tree:
    snapshots = sorted(repo.snapshots, key=lambda snapshot: snapshot.id.raw)
    places = {snapshot.id: place for place, snapshot in enumerate(snapshots)}
    tree: Tree = {
        "spec_version": repo.spec_version,
        "tags": _refs_tree(repo.tags, places),
        "branches": _refs_tree(repo.branches, places),
        "deleted_tags": sorted(repo.deleted_tags, key=str.encode),
        "snapshots": [
            {
                "id": snapshot.id.raw,
                "parent_offset": -1 if snapshot.parent_id is None else places[snapshot.parent_id],
                "flushed_at": microseconds(snapshot.flushed_at),
                "message": snapshot.message,
                "metadata": metadata_tree(snapshot.metadata, 2),
                **_optional(
                    "pruned_ancestor_tx_logs",
                    [log_id.raw for log_id in snapshot.pruned_ancestor_tx_logs] or None,
                ),
            }
            for snapshot in snapshots
        ],
        "status": _status_tree(repo.status),
        "metadata": metadata_tree(repo.metadata, 2),
        "latest_updates": [_update_tree(update) for update in repo.latest_updates],
        **_optional("repo_before_updates", repo.repo_before_updates),
        **_optional("enabled_feature_flags", sorted(repo.enabled_feature_flags) or None),
        **_optional("disabled_feature_flags", sorted(repo.disabled_feature_flags) or None),
    }
    if repo.config is not None:
        tree["config"] = config_flexbuffers.dumps(repo.config)
    return tree


def _optional(name: str, value: Any) -> Tree:
    return {} if value is None else {name: value}


def _refs_tree(refs: Mapping[str, SnapshotId], places: Mapping[SnapshotId, int]) -> list[Tree]:
    return [
        {"name": name, "snapshot_index": places[refs[name]]}
        for name in sorted(refs, key=str.encode)
    ]


def _status_tree(status: info.RepoStatus) -> Tree:
    return {
        "availability": int(status.availability),
        "set_at": microseconds(status.set_at),
        **_optional("limited_availability_reason", status.limited_availability_reason),
    }


def _update_tree(update: info.OpsLogEntry) -> Tree:
    code = 1 + list(UPDATE_KINDS).index(type(update.kind).__name__)
    content: Tree = {}
    for name, _ in UPDATE_KINDS[type(update.kind).__name__]:
        match update.kind:
            case info.FeatureFlagChanged(_, value) if name != "id":
                content[name] = bool(value) if name == "new_value" else value is not None
            case info.RepoStatusChanged(status):
                content[name] = _status_tree(status)
            case kind:
                value = getattr(kind, name)
                content[name] = value if isinstance(value, str | int) else value.raw
    return {
        "update_type_type": code,
        "update_type": (code, content),
        "updated_at": microseconds(update.updated_at),
        **_optional("backup_path", update.backup_path),
    }
