"""The encoding of generation sequence: JSON (``docs/format/sequence.md``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.format.metadata_codec import MetadataCodec
from icefloe.format.sequence.attributes import decode_attributes, place_attributes
from icefloe.format.sequence.manifest import decode_manifest, encode_manifest
from icefloe.format.sequence.manifest_search import open_manifest
from icefloe.format.sequence.snapshot import (
    decode_snapshot,
    encode_properties,
    encode_snapshot,
    normalize_document,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.format.metadata_codec import FetchAttributes, ManifestFile
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SequenceCodec(MetadataCodec):
    """Encodes and decodes the JSON files of generation sequence."""

    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return encode_properties(metadata)

    def normalize_document(self, data: bytes, key: str) -> bytes:
        return normalize_document(data, key)

    def place_attributes(self, snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
        return place_attributes(snapshot)

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return encode_snapshot(snapshot)

    def decode_snapshot(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> Snapshot:
        return decode_snapshot(data, file, snapshot_id, fetch_attributes)

    def decode_attributes(
        self, data: bytes | memoryview, file: str, attributes_id: AttributesId
    ) -> list[dict[str, Any]]:
        return decode_attributes(data, file, attributes_id)

    def encode_manifest(
        self,
        manifest: Manifest,
        location_compression: LocationCompression | None,  # noqa: ARG002 - JSON has none
    ) -> bytes:
        return encode_manifest(manifest)

    def decode_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest:
        return decode_manifest(data, file, manifest_id)

    def open_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest | ManifestFile:
        return open_manifest(data, file, manifest_id)
