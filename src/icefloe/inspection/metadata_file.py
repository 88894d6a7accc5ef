"""Describes metadata files as JSON values, with the field names of Icechunk's ``inspect_*``."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from icefloe.errors import ErrorKind, FormatError
from icefloe.format import config_tree
from icefloe.format.envelope import MAGIC, MAX_FLATBUFFER_SIZE, FileType, read_header
from icefloe.format.generation import find_generation
from icefloe.format.json_text import parse_json
from icefloe.format.keys import CONVERSION
from icefloe.format.manifest import decode_manifest
from icefloe.format.ref_json import decode_ref
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.transaction_log import decode_transaction_log
from icefloe.model.byte_range import Bounded
from icefloe.model.chunk_payload import ChunkKind, ChunkRef, ETag, InlineChunk, VirtualChunkRef
from icefloe.model.manifest import NO_CODE
from icefloe.model.node import ArrayNodeData
from icefloe.model.repo_info import RepoStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.generation import Generation
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.manifest import ArrayManifest, Manifest
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.repo_info import OpsLogEntry, RepoInfo
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.storage.interface import Storage

_BLOCK_ROWS = 1 << 10
_MAX_TEXT_SIZE = 16 << 20


def fetch_metadata_file(storage: Storage, key: str, file: str) -> bytes | memoryview:
    """Fetch a metadata file; reject other large files by their size and first bytes."""
    size = storage.head(key).size_bytes
    head = storage.get(key, Bounded(0, min(size, len(MAGIC)))).data
    # Snapshots and manifests of older generations may be large too.
    may_be_large = bytes(head) == MAGIC or key.endswith((".json", ".parquet"))
    if size > MAX_FLATBUFFER_SIZE or (size > _MAX_TEXT_SIZE and not may_be_large):
        raise _not_metadata_error(file, f"it has {size} bytes")
    return storage.get(key).data


def describe_file(data: bytes | memoryview, file: str, *, refs: bool = True) -> dict[str, Any]:
    """Describe a file of generations v1 and v2, a configuration, or the record of a conversion.

    Chunk references are an iterator, for `icefloe.inspection.stream_json`; ``refs=False`` omits
    them. Raises `FormatError` if the file is damaged.
    """
    name = file.rpartition("/")[2]
    if bytes(data[: len(MAGIC)]) == MAGIC:
        return _describe_binary(data, file, refs=refs)
    if name == "ref.json":
        return {"file_type": "reference", "snapshot": str(decode_ref(data, file))}
    if name == "ref.json.deleted":
        return {"file_type": "tag tombstone"}
    if name.startswith("config.yaml"):
        from icefloe.format import config_yaml  # noqa: PLC0415 - PyYAML is slow to import

        config = config_yaml.loads(data, file=file)
        return {"file_type": "configuration", "config": _describe_config(config)}
    if name == CONVERSION:
        return {"file_type": "conversion", **_load_conversion(data, file)}
    raise _not_metadata_error(
        file,
        "its path is not the one of a reference, a configuration, the record of a conversion, or a "
        "metadata file of the generations sequence and draft",
    )


def _load_conversion(data: bytes | memoryview, file: str) -> dict[str, Any]:
    document = parse_json(data, file)
    if not isinstance(document, dict):
        raise FormatError("it is not a JSON object", file=file)
    return document


def _not_metadata_error(file: str, reason: str) -> FormatError:
    return FormatError(
        f"not a metadata file of a repository: it does not start with ICE🧊CHUNK, as those of "
        f"generations v1 and v2 do, and {reason} "
        "(chunk files contain only array data)",
        file=file,
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )


def _describe_binary(data: bytes | memoryview, file: str, *, refs: bool) -> dict[str, Any]:
    header = read_header(data, file)
    description: dict[str, Any] = {
        "file_type": header.file_type.name.lower().replace("_", " "),
        "header": {"spec_version": header.spec_version, "writer": header.writer},
        "size_bytes": len(data),
    }
    generation = find_generation(header.spec_version)
    match header.file_type:
        case FileType.SNAPSHOT:
            return description | describe_snapshot(decode_snapshot(data, file), generation)
        case FileType.MANIFEST:
            return description | describe_manifest(
                decode_manifest(data, file), generation, refs=refs
            )
        case FileType.TRANSACTION_LOG:
            return description | _describe_log(decode_transaction_log(data, file), refs=refs)
        case FileType.REPO_INFO:
            return description | _describe_repo_info(decode_repo_info(data, file))
    raise FormatError(
        f"files of type {header.file_type.name.lower()} are reserved by the format and not used",
        file=file,
        kind=ErrorKind.INVALID_FILE_FORMAT,
    )


def describe_snapshot(snapshot: Snapshot, generation: Generation) -> dict[str, Any]:
    """Describe a snapshot: its history entry, manifests and nodes."""
    return {
        "id": str(snapshot.id),
        "parent_id": None if snapshot.parent_id is None else str(snapshot.parent_id),
        "flushed_at": snapshot.flushed_at.isoformat(),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": iter(describe_manifests(snapshot)),
        "nodes": [describe_node(node, generation) for node in snapshot.nodes],
    }


def describe_manifests(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Describe the manifests of a snapshot."""
    return [
        {"id": str(info.id), "size_bytes": info.size_bytes, "num_chunk_refs": info.num_chunk_refs}
        for info in snapshot.manifest_files
    ]


def describe_manifest_refs(array: ArrayNodeData) -> list[dict[str, Any]]:
    """Describe the manifest references of an array."""
    return [
        {"id": str(ref.id), "extents": [list(pair) for pair in ref.extents.ranges]}
        for ref in array.manifests
    ]


def describe_node(node: NodeSnapshot, generation: Generation) -> dict[str, Any]:
    """Describe a group or an array, with its Zarr metadata."""
    description: dict[str, Any] = {
        "id": generation.describe_node_id(node.id),
        "path": str(node.path),
        "node_type": node.kind.name.lower(),
    }
    if isinstance(node.node_data, ArrayNodeData):
        array = node.node_data
        description["shape"] = iter(
            [
                {"array_length": dimension.array_length, "num_chunks": dimension.num_chunks}
                | (
                    {}
                    if dimension.chunk_length is None
                    else {"chunk_length": dimension.chunk_length}
                )
                for dimension in array.shape
            ]
        )
        if array.dimension_names is not None:
            description["dimension_names"] = list(array.dimension_names)
        description["manifest_refs"] = iter(describe_manifest_refs(array))
    description["user_data"] = parse_json_or_base64(node.user_data)
    return description


def parse_json_or_base64(data: bytes) -> Any:
    """Parse JSON; encode data that is not JSON in base64."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {"base64": base64.b64encode(data).decode()}


def describe_manifest(manifest: Manifest, generation: Generation, *, refs: bool) -> dict[str, Any]:
    """Describe a manifest: its arrays and, if ``refs``, their chunk references."""
    return {
        "id": str(manifest.id),
        "num_arrays": len(manifest.indices.node_ids),
        "total_chunk_refs": len(manifest),
        **count_kinds("total", manifest.payloads.kind),
        "arrays": (
            _describe_array(
                generation.describe_node_id(node_id), manifest.get_array(node_id), refs=refs
            )
            for node_id in manifest.indices.iter_node_ids()
        ),
    }


def _describe_array(
    node_id: int | str, array: ArrayManifest | None, *, refs: bool
) -> dict[str, Any]:
    if array is None:
        return {"node_id": node_id}
    description: dict[str, Any] = {
        "node_id": node_id,
        "num_chunk_refs": len(array),
        **count_kinds("num", array.payloads.kind),
    }
    if refs:
        description["refs"] = _describe_refs(array)
    return description


def count_kinds(prefix: str, kinds: NDArray[np.uint8]) -> dict[str, int]:
    """Count the chunk references of each kind."""
    return {f"{prefix}_{kind.name.lower()}": int((kinds == kind).sum()) for kind in ChunkKind}


def _describe_refs(array: ArrayManifest) -> Iterator[dict[str, Any]]:
    # Python lists are faster to iterate than numpy columns; blocks of them bound the memory.
    for begin in range(0, len(array), _BLOCK_ROWS):
        rows = slice(begin, begin + _BLOCK_ROWS)
        block = array.payloads.select_rows(rows)
        codes = block.location_codes.tolist()
        names = {code: block.locations[code] for code in set(codes) - {NO_CODE}}
        is_plain = (
            (block.etag_codes == NO_CODE)
            & (block.last_modified == 0)
            & (block.location_codes != NO_CODE)
        )
        columns = (block.offset.tolist(), block.length.tolist(), codes, is_plain.tolist())
        for row, (index, offset, length, code, plain) in enumerate(
            zip(array.coords[rows].tolist(), *columns, strict=True)
        ):
            if plain:
                reference = {"location": names[code], "offset": offset, "length": length}
            else:
                reference = _describe_payload(block[row])
            yield {"index": index, **reference}


def _describe_payload(payload: ChunkPayload) -> dict[str, Any]:
    match payload:
        case ChunkRef(chunk_id, offset, length):
            return {"chunk_id": str(chunk_id), "offset": offset, "length": length}
        case InlineChunk(data):
            return {"inline": base64.b64encode(data).decode(), "length": len(data)}
        case VirtualChunkRef(location, offset, length, checksum):
            description = {"location": location, "offset": offset, "length": length}
            if checksum is None:
                return description
            if isinstance(checksum, ETag):
                return description | {"checksum_etag": checksum.value}
            return description | {"checksum_last_modified": checksum.seconds}


def _describe_log(log: TransactionLog, *, refs: bool) -> dict[str, Any]:
    description: dict[str, Any] = {"id": str(log.id)}
    for field in fields(log):
        nodes = getattr(log, field.name)
        if isinstance(nodes, frozenset):
            description[field.name] = [str(node_id) for node_id in sorted(nodes)]
    description["total_updated_chunks"] = len(log.updated_chunks)
    description["updated_chunks"] = (
        {"node_id": str(node_id), "num_chunks": len(log.updated_chunks.get_coords(position))}
        | ({"chunks": iter(log.updated_chunks.get_coords(position).tolist())} if refs else {})
        for position, node_id in enumerate(log.updated_chunks.iter_node_ids())
    )
    description["moved_nodes"] = (
        {
            "from": str(move.from_path),
            "to": str(move.to_path),
            "node_id": str(move.node_id),
            "node_type": move.node_kind.name.lower(),
        }
        for move in log.moved_nodes
    )
    return description


def _describe_repo_info(info: RepoInfo) -> dict[str, Any]:
    return {
        "spec_version": info.spec_version,
        "branches": {name: str(target) for name, target in sorted(info.branches.items())},
        "tags": {name: str(target) for name, target in sorted(info.tags.items())},
        "deleted_tags": sorted(info.deleted_tags),
        "status": _describe_status(info.status),
        "metadata": dict(info.metadata),
        "config": None if info.config is None else _describe_config(info.config),
        "enabled_feature_flags": sorted(info.enabled_feature_flags),
        "disabled_feature_flags": sorted(info.disabled_feature_flags),
        "snapshots": (describe_snapshot_info(snapshot) for snapshot in info.snapshots),
        "latest_updates": (_describe_update(update) for update in info.latest_updates),
        "repo_before_updates": info.repo_before_updates,
    }


def describe_snapshot_info(info: SnapshotInfo) -> dict[str, Any]:
    """Describe a commit."""
    description: dict[str, Any] = {
        "id": str(info.id),
        "parent_id": None if info.parent_id is None else str(info.parent_id),
        "flushed_at": info.flushed_at.isoformat(),
        "message": info.message,
        "metadata": dict(info.metadata),
    }
    if info.pruned_ancestor_tx_logs:
        description["pruned_ancestor_tx_logs"] = [
            str(log_id) for log_id in info.pruned_ancestor_tx_logs
        ]
    return description


def _describe_status(status: RepoStatus) -> dict[str, Any]:
    return {
        "availability": status.availability.name.lower(),
        "set_at": status.set_at.isoformat(),
        "limited_availability_reason": status.limited_availability_reason,
    }


def _describe_update(update: OpsLogEntry) -> dict[str, Any]:
    kind = update.kind
    details = {field.name: _to_json_value(getattr(kind, field.name)) for field in fields(kind)}
    description: dict[str, Any] = {
        "update_type": {"type": type(kind).__name__, **details},
        "updated_at": update.updated_at.isoformat(),
    }
    if update.backup_path is not None:
        description["backup_path"] = update.backup_path
    return description


def _to_json_value(value: Any) -> Any:
    if isinstance(value, RepoStatus):
        return _describe_status(value)
    return value if value is None or isinstance(value, int) else str(value)


def _describe_config(config: RepositoryConfig) -> Any:
    return _unwrap_variants(config_tree.to_tree(config))


def _unwrap_variants(tree: Any) -> Any:
    match tree:
        case config_tree.Variant(name, None):
            return name
        case config_tree.Variant(name, value):
            return {name: _unwrap_variants(value)}
        case dict():
            return {key: _unwrap_variants(value) for key, value in tree.items()}
        case list() | tuple():
            return [_unwrap_variants(value) for value in tree]
    return tree
