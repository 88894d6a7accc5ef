"""Metadata files as the dictionaries that Icechunk's ``inspect_*`` methods return.

They are like Icechunk's, with two differences: the chunks of a transaction log are sorted, and the
entry for location compression is omitted, which Icechunk reports incorrectly for spec version 1.
`icefloe.inspection.metadata_file` describes files in more detail.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC
from functools import reduce
from typing import TYPE_CHECKING, Any

from icefloe.assets import fetch_file
from icefloe.errors import ErrorKind, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.format.envelope import MAGIC, FileType, read_header, unpack
from icefloe.format.keys import REPO
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.unsupported import unsupported_error
from icefloe.inspection.metadata_file import (
    count_kinds,
    describe_manifest_refs,
    describe_manifests,
)
from icefloe.model.ids import ManifestId, SnapshotId
from icefloe.model.node import ArrayNodeData
from icefloe.model.repo_info import FeatureFlagChanged, RepoStatus
from icefloe.transaction.change_set import merge_logs
from icefloe.transaction.commit_log import fetch_commit_logs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from icefloe.assets import Assets
    from icefloe.format.generation import Generation
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.repo_info import OpsLogEntry
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.refs.interface import Refs
    from icefloe.storage.interface import Storage


def inspect_snapshot(assets: Assets, snapshot_id: str) -> dict[str, Any]:
    """Describe a snapshot file."""
    parsed_id = SnapshotId.parse(snapshot_id)
    file = assets.generation.layout.snapshots.format_key(parsed_id)
    header = _describe_header(fetch_file(assets.storage, file).data, file, assets.generation)
    snapshot = assets.fetch_snapshot(parsed_id)
    return {
        "id": str(snapshot.id),
        "header": header,
        "flushed_at": _format_time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": describe_manifests(snapshot),
        "nodes": [_describe_node(node, assets.generation) for node in snapshot.nodes],
    }


def inspect_manifest(assets: Assets, manifest_id: str) -> dict[str, Any]:
    """Describe a manifest file.

    ``size_bytes`` is its uncompressed size in generations v1 and v2, and the size of the file in
    others.
    """
    parsed_id = ManifestId.parse(manifest_id)
    file = assets.generation.layout.manifests.format_key(parsed_id)
    data = fetch_file(assets.storage, file).data
    manifest = assets.generation.codec.decode_manifest(data, file, parsed_id)
    has_envelope = bytes(data[: len(MAGIC)]) == MAGIC
    content = unpack(data, FileType.MANIFEST, file)[1] if has_envelope else data
    node_ids = manifest.indices.iter_node_ids()
    arrays = ((node_id, manifest.get_array(node_id)) for node_id in node_ids)
    return {
        "id": str(manifest.id),
        "header": _describe_header(data, file, assets.generation),
        "size_bytes": len(content),
        "num_arrays": len(manifest.indices.node_ids),
        "total_chunk_refs": len(manifest),
        **count_kinds("total", manifest.payloads.kind),
        "arrays": [
            {
                "node_id": assets.generation.describe_node_id(node_id),
                "num_chunk_refs": len(array),
                **count_kinds("num", array.payloads.kind),
            }
            for node_id, array in arrays
            if array is not None
        ],
    }


def inspect_transaction_log(assets: Assets, refs: Refs, snapshot_id: str) -> dict[str, Any]:
    """Describe the changes of a commit: its transaction log or, without one, a comparison.

    If expiration removed the ancestors of the commit from the history, their logs are merged with
    its own, and ``synthetic_composite`` lists them.
    """
    parsed_id = SnapshotId.parse(snapshot_id)
    composite: dict[str, Any] = {}
    layout = assets.generation.layout
    if layout.transaction_logs is None:
        parent_id = refs.fetch_snapshot_info(parsed_id).parent_id
        (log,) = fetch_commit_logs(assets, [(parsed_id, parent_id)])
        header = {"generation": assets.generation.name}
    else:
        file = layout.transaction_logs.format_key(parsed_id)
        data = fetch_file(assets.storage, file).data
        log = assets.generation.codec.decode_transaction_log(data, file, parsed_id)
        header = _describe_header(data, file, assets.generation)
        pruned_ids = _find_pruned_logs(refs, parsed_id)
        if pruned_ids:
            log, missing_ids = _merge_pruned_logs(assets, log, pruned_ids)
            composite["synthetic_composite"] = {
                "note": (
                    "the ancestors of this snapshot expired: the changes below are those of their "
                    "transaction logs and of its own, which alone has this header"
                ),
                "merged_pruned_ancestor_tx_logs": [
                    str(log_id) for log_id in pruned_ids if log_id not in missing_ids
                ],
                "missing_tx_logs": [str(log_id) for log_id in missing_ids],
            }
    describe_id = assets.generation.describe_node_id
    nodes = {
        f"{change}_{kind}": list(map(describe_id, sorted(getattr(log, f"{change}_{kind}"))))
        for change in ("new", "deleted", "updated")
        for kind in ("groups", "arrays")
    }
    chunks = log.updated_chunks
    return {
        "header": header,
        **nodes,
        "updated_chunks": [
            {"node_id": describe_id(node_id), "chunks": chunks.get_coords(position).tolist()}
            for position, node_id in enumerate(chunks.iter_node_ids())
        ],
        "moved_nodes": [
            {"from": str(move.from_path), "to": str(move.to_path)} for move in log.moved_nodes
        ],
        **composite,
    }


def _find_pruned_logs(refs: Refs, snapshot_id: SnapshotId) -> tuple[SnapshotId, ...]:
    """Return the logs of expired ancestors, oldest first; none if the snapshot has no history."""
    try:
        return refs.fetch_snapshot_info(snapshot_id).pruned_ancestor_tx_logs
    except SnapshotNotFoundError:
        return ()


def _merge_pruned_logs(
    assets: Assets, log: TransactionLog, pruned_ids: Sequence[SnapshotId]
) -> tuple[TransactionLog, list[SnapshotId]]:
    """Merge the logs of expired ancestors with a log; return also the ids of those missing."""
    logs, missing_ids = [], []
    for pruned_id in pruned_ids:
        try:
            logs.append(assets.fetch_transaction_log(pruned_id))
        except ObjectNotFoundError:
            missing_ids.append(pruned_id)
    return reduce(merge_logs, [*logs, log]), missing_ids


def inspect_repo_info(storage: Storage, generation: Generation) -> dict[str, Any]:
    """Describe the repo info file; raise `FormatError` for a generation that has none."""
    if not generation.has_repo_info:
        raise unsupported_error(
            "the repo info file",
            generation,
            url=storage.url,
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    data = fetch_file(storage, REPO).data
    info = decode_repo_info(data, REPO)
    return {
        "header": _describe_header(data, REPO, generation),
        "spec_version": f"{info.spec_version}.0",
        "branches": {name: str(target) for name, target in sorted(info.branches.items())},
        "tags": {name: str(target) for name, target in sorted(info.tags.items())},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_describe_snapshot_info(snapshot) for snapshot in info.snapshots],
        "metadata": dict(info.metadata),
        "latest_updates": [_describe_update(update) for update in info.latest_updates],
    }


def _describe_header(data: bytes | memoryview, file: str, generation: Generation) -> dict[str, str]:
    if bytes(data[: len(MAGIC)]) != MAGIC:
        return {"generation": generation.name}
    header = read_header(data, file)
    name, _, version = header.writer.partition("-")
    return {
        "written_by": header.writer,
        "app_name": name,
        "app_version": version,
        "spec_version": f"{header.spec_version}.0",
        "file_type": header.file_type.name.lower().replace("_", "-"),
        "compression": "zstd",
    }


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _describe_node(node: NodeSnapshot, generation: Generation) -> dict[str, Any]:
    description: dict[str, Any] = {
        "id": generation.describe_node_id(node.id),
        "path": str(node.path),
        "node_type": node.kind.name.lower(),
    }
    if isinstance(node.node_data, ArrayNodeData):
        array = node.node_data
        names = array.dimension_names or (None,) * len(array.shape)
        description["shape"] = [
            ({} if name is None else {"name": name})
            | {"array_length": dimension.array_length, "num_chunks": dimension.num_chunks}
            for name, dimension in zip(names, array.shape, strict=True)
        ]
        description["manifest_refs"] = describe_manifest_refs(array)
    return description


def _describe_snapshot_info(info: SnapshotInfo) -> dict[str, Any]:
    parent = {} if info.parent_id is None else {"parent_id": str(info.parent_id)}
    return {
        "id": str(info.id),
        **parent,
        "flushed_at": _format_time(info.flushed_at),
        "message": info.message,
        "metadata": dict(info.metadata),
    }


def _describe_update(update: OpsLogEntry) -> dict[str, Any]:
    kind = update.kind
    # In Icechunk, this is the only update type without the suffix.
    suffix = "" if isinstance(kind, FeatureFlagChanged) else "Update"
    backup = {} if update.backup_path is None else {"backup_path": update.backup_path}
    return {
        "update_type": {"type": f"{type(kind).__name__}{suffix}"}
        | {field.name: _to_json_value(getattr(kind, field.name)) for field in fields(kind)},
        "updated_at": _format_time(update.updated_at),
        **backup,
    }


def _to_json_value(value: Any) -> Any:
    if isinstance(value, RepoStatus):
        return {
            "availability": value.availability.name.title().replace("_", ""),
            "limited_availability_reason": value.limited_availability_reason,
            "set_at": _format_time(value.set_at),
        }
    return value if value is None or isinstance(value, int) else str(value)
