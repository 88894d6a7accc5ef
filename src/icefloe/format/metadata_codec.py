"""The interface to the encoding of metadata files, one class for each encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from icefloe.errors import InternalError
from icefloe.model.chunk_payload import ChunkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.ids import AttributesId, ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.ref_finder import RefFinder
    from icefloe.model.snapshot import Snapshot, SnapshotFiles, SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog


FetchAttributes: TypeAlias = "Callable[[AttributesId], tuple[str, bytes | memoryview]]"
"""Fetches an attributes file; returns its key, for errors, and its content."""


def fetch_no_attributes(attributes_id: AttributesId) -> Never:
    """Raise: for snapshots of generations without attributes files."""
    raise InternalError(f"there are no attributes files, but {attributes_id} was requested")


class ManifestFile(ABC):
    """A manifest file in memory, from which single references can be read."""

    __slots__ = ()

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The size in memory, in bytes."""

    @abstractmethod
    def find_refs(self, node_id: NodeId, decode: Callable[[], Manifest]) -> RefFinder | None:
        """Find the references of an array; None if there are none.

        The result calls ``decode``, which returns the decoded manifest, once it pays off.
        """

    @abstractmethod
    def read_manifest(self) -> Manifest:
        """Decode all references."""

    @abstractmethod
    def edit(self, changes: Manifest) -> bytes | None:
        """Encode the manifest with the id and references of ``changes``, which has one array.

        ``changes`` replaces references. Returns None if the file must be rewritten.
        """

    @abstractmethod
    def insert(self, changes: Manifest, key: str) -> tuple[ManifestFile, bytes] | None:
        """Encode the manifest with the id and the additional references of ``changes``.

        ``changes`` has one array, and few references. Returns the new file with a key, in memory
        and encoded, or None if the file must be rewritten.
        """


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

    def decode_snapshot_info(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> SnapshotInfo:
        """Decode the history entry of a snapshot."""
        return self.decode_snapshot(data, file, snapshot_id, fetch_attributes).get_info()

    def decode_snapshot_files(
        self,
        data: bytes | memoryview,
        file: str,
        snapshot_id: SnapshotId,
        fetch_attributes: FetchAttributes,
    ) -> SnapshotFiles:
        """Decode which files a snapshot refers to."""
        return self.decode_snapshot(data, file, snapshot_id, fetch_attributes).find_files()

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

    def decode_chunk_ids(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> NDArray[np.uint8]:
        """Decode the ids of the chunk files that a manifest refers to, a row each, with repeats."""
        payloads = self.decode_manifest(data, file, manifest_id).payloads
        ids: NDArray[np.uint8] = payloads.chunk_id[payloads.kind == ChunkKind.NATIVE]
        return ids

    def open_manifest(
        self, data: bytes | memoryview, file: str, manifest_id: ManifestId
    ) -> Manifest | ManifestFile:
        """Open a manifest for lookups; decode it if its encoding does not allow them."""
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
