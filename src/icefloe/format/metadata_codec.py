"""The interface to the encoding of metadata files, one class for each encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class MetadataCodec(ABC):
    """Encodes and decodes the metadata files of a generation.

    Decoders take the key of the file, for errors, and the id that the file must have.
    """

    @abstractmethod
    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return metadata whose values are encoded once; raise if a value cannot be stored."""

    @abstractmethod
    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        """Encode a snapshot."""

    @abstractmethod
    def decode_snapshot(
        self, data: bytes | memoryview, file: str, snapshot_id: SnapshotId
    ) -> Snapshot:
        """Decode a snapshot."""

    @abstractmethod
    def encode_manifest(
        self, manifest: Manifest, location_compression: LocationCompression | None
    ) -> bytes:
        """Encode a manifest."""

    @abstractmethod
    def decode_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest:
        """Decode a manifest."""

    @abstractmethod
    def edit_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId, changes: Manifest
    ) -> bytes | Manifest:
        """Encode a manifest of one array with some references replaced, from its file.

        Returns the decoded manifest if its file cannot be edited.
        """

    @abstractmethod
    def encode_transaction_log(self, log: TransactionLog) -> bytes:
        """Encode a transaction log."""

    @abstractmethod
    def decode_transaction_log(
        self, data: bytes | memoryview, file: str, snapshot_id: SnapshotId
    ) -> TransactionLog:
        """Decode a transaction log."""
