"""The encoding of generation draft: Parquet files (docs/format/draft.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.format.draft.inventory import decode_inventory, encode_inventory
from icefloe.format.metadata_codec import MetadataCodec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.format.metadata_codec import FetchAttributes
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class DraftCodec(MetadataCodec):
    """Encodes structure files, inventories and attributes files."""

    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        return metadata

    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        raise NotImplementedError

    def decode_snapshot(self, data, file, snapshot_id, fetch_attributes):
        raise NotImplementedError

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
