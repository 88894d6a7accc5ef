"""The interface to the encoding of metadata files, one class for each encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from icefloe.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


FetchAttributes: TypeAlias = "Callable[[AttributesId], tuple[str, bytes | memoryview]]"
"""Fetches an attributes file; returns its key, for errors, and its content."""


def fetch_no_attributes(attributes_id: AttributesId) -> Never:
    """Raise: for snapshots of generations without attributes files."""
    raise InternalError(f"there are no attributes files, but {attributes_id} was requested")


class MetadataCodec(ABC):
    """Encodes and decodes the metadata files of a generation.

    Decoders take the key of the file, for errors, and the id that the file must have.
    """

    @abstractmethod
    def encode_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return metadata whose values are encoded once; raise if a value cannot be stored."""

    def normalize_document(self, data: bytes, key: str) -> bytes:  # noqa: ARG002
        """Return a valid ``zarr.json`` as it is read back; raise if it cannot be stored.

        ``key`` is its Zarr key, for errors.
        """
        return data

    def place_attributes(self, snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
        """Decide which attributes are stored in attributes files.

        Returns the snapshot with all its ``attributes_ref``, and the new files.
        """
        return snapshot, {}

    @abstractmethod
    def encode_snapshot(self, snapshot: Snapshot) -> bytes:
        """Encode a snapshot."""

    @abstractmethod
    def decode_snapshot(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> Snapshot:
        """Decode a snapshot; ``fetch_attributes`` is called for each of its attributes files."""

    def decode_attributes(
        self,
        data: bytes | memoryview,  # noqa: ARG002
        file: str,
        attributes_id: AttributesId,  # noqa: ARG002
    ) -> list[dict[str, Any]]:
        """Decode an attributes file, in generations that have them."""
        raise InternalError(f"{type(self).__name__} has no attributes files: {file}")

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

    def edit_manifest(
        self,
        data: bytes | memoryview,
        file: str,
        manifest_id: ManifestId,
        changes: Manifest,  # noqa: ARG002
    ) -> bytes | Manifest:
        """Encode a manifest of one array with some references replaced, from its file.

        Returns the decoded manifest if its file cannot be edited.
        """
        return self.decode_manifest(data, file, manifest_id)

    def encode_transaction_log(self, log: TransactionLog) -> bytes:
        """Encode a transaction log, in generations that have them."""
        raise InternalError(f"{type(self).__name__} has no transaction logs: {log.id}")

    def decode_transaction_log(
        self,
        data: bytes | memoryview,  # noqa: ARG002
        file: str,
        snapshot_id: SnapshotId,  # noqa: ARG002
    ) -> TransactionLog:
        """Decode a transaction log, in generations that have them."""
        raise InternalError(f"{type(self).__name__} has no transaction logs: {file}")
