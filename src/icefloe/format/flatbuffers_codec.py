"""The encoding of generations v1 and v2: flatbuffers in compressed envelopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError
from icefloe.format import manifest as manifest_files
from icefloe.format.manifest_lookup import open_manifest_file
from icefloe.format.metadata import encode_metadata
from icefloe.format.metadata_codec import MetadataCodec
from icefloe.format.snapshot import (
    decode_snapshot_files,
    decode_snapshot_info,
    encode_snapshot,
    open_snapshot,
)
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.location_compression import LocationCompression
    from icefloe.format.manifest_lookup import FlatbuffersManifestFile
    from icefloe.format.metadata_codec import FetchAttributes
    from icefloe.model.ids import ManifestId, ObjectId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot, SnapshotFiles, SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog


@dataclass(frozen=True, slots=True)
class FlatbuffersCodec(MetadataCodec):
    """Encodes files with ``spec_version``; decodes both, since a repository may have both."""

    spec_version: int

    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return encode_metadata(metadata, self.spec_version)

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return encode_snapshot(snapshot, spec_version=self.spec_version)

    def decode_snapshot(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,  # noqa: ARG002 - there are no attributes files
    ) -> Snapshot:
        snapshot = open_snapshot(data, file)
        _require_id(snapshot.id, snapshot_id, file)
        return snapshot

    def decode_snapshot_info(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,  # noqa: ARG002
    ) -> SnapshotInfo:
        info = decode_snapshot_info(data, file)
        _require_id(info.id, snapshot_id, file)
        return info

    def decode_snapshot_files(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,  # noqa: ARG002
    ) -> SnapshotFiles:
        files = decode_snapshot_files(data, file)
        _require_id(files.id, snapshot_id, file)
        return files

    def encode_manifest(
        self, manifest: Manifest, location_compression: LocationCompression | None
    ) -> bytes:
        return manifest_files.encode_manifest(
            manifest, spec_version=self.spec_version, location_compression=location_compression
        )

    def decode_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest:
        manifest = manifest_files.decode_manifest(data, file)
        _require_id(manifest.id, manifest_id, file)
        return manifest

    def decode_chunk_ids(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> NDArray[np.uint8]:
        actual, ids = manifest_files.decode_chunk_ids(data, file)
        _require_id(actual, manifest_id, file)
        return ids

    def open_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> FlatbuffersManifestFile:
        manifest = open_manifest_file(data, file, spec_version=self.spec_version)
        _require_id(manifest.id, manifest_id, file)
        return manifest

    def encode_transaction_log(self, log: TransactionLog) -> bytes:
        return encode_transaction_log(log, spec_version=self.spec_version)

    def decode_transaction_log(
        self, data: bytes | memoryview, file: str, snapshot_id: SnapshotId
    ) -> TransactionLog:
        log = decode_transaction_log(data, file)
        _require_id(log.id, snapshot_id, file)
        return log


def _require_id(actual: ObjectId, expected: ObjectId, file: str) -> None:
    """Raise if the id in a file differs from the id in its key."""
    if actual != expected:
        raise FormatError(f"the file has the id {actual}: it was renamed or swapped", file=file)
