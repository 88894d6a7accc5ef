"""The metadata codec of generation draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.format.draft.attributes import decode_attributes, place_attributes
from icefloe.format.draft.inventory import decode_inventory, encode_inventory, open_inventory
from icefloe.format.draft.structure import (
    decode_structure,
    encode_structure,
    normalize_document,
)
from icefloe.format.json_metadata import copy_metadata
from icefloe.format.metadata_codec import MetadataCodec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.format.metadata_codec import FetchAttributes, ManifestFile
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class DraftCodec(MetadataCodec):
    """Encodes structure files, inventories and attributes files as Parquet."""

    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return copy_metadata(metadata)

    def normalize_document(self, data: bytes, key: str) -> bytes:
        return normalize_document(data, key)

    def place_attributes(self, snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
        return place_attributes(snapshot)

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        return encode_structure(snapshot)

    def decode_snapshot(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> Snapshot:
        return decode_structure(data, file, snapshot_id, fetch_attributes)

    def decode_attributes(
        self, data: bytes | memoryview, file: str, attributes_id: AttributesId
    ) -> list[dict[str, Any]]:
        return decode_attributes(data, file, attributes_id)

    def encode_manifest(
        self,
        manifest: Manifest,
        location_compression: LocationCompression | None,  # noqa: ARG002 - Parquet compresses them
    ) -> bytes:
        return encode_inventory(manifest)

    def decode_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest:
        return decode_inventory(data, file, manifest_id)

    def open_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest | ManifestFile:
        return open_inventory(data, file, manifest_id)
