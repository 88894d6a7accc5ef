"""The immutable files of a repository as values: fetched, decoded, encoded, written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, StorageError
from icefloe.format.envelope import MAX_FLATBUFFER_SIZE
from icefloe.format.keys import (
    chunk_key,
    manifest_key,
    snapshot_key,
    transaction_log_key,
)
from icefloe.format.manifest import decode_manifest, encode_manifest
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from icefloe.model.byte_range import Bounded
from icefloe.model.snapshot import ManifestFileInfo

if TYPE_CHECKING:
    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.chunk_payload import ChunkRef
    from icefloe.model.ids import ChunkId, ManifestId, ObjectId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.storage.interface import Fetched, Storage


def fetch_file(storage: Storage, key: str, *, max_bytes: int = MAX_FLATBUFFER_SIZE) -> Fetched:
    """Fetch a metadata file; one that is larger than its kind can be is refused unread."""
    try:
        return storage.get(key, max_bytes=max_bytes)
    except StorageError as error:
        if error.kind is ErrorKind.INVALID_OBJECT_SIZE:
            raise FormatError(error.message, file=key) from error
        raise


@dataclass(frozen=True, slots=True)
class Assets:
    """Typed access to one repository's files; each call is one request.

    Each file tells its own version, so that a repository may mix them; ``spec_version`` is the one
    that is written. Files are written under fresh random ids: nothing is ever replaced.
    """

    storage: Storage
    spec_version: int

    def fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Fetch a snapshot."""
        key = snapshot_key(snapshot_id)
        snapshot = decode_snapshot(fetch_file(self.storage, key).data, key)
        _require_id(snapshot.id, snapshot_id, key)
        return snapshot

    def fetch_manifest(self, manifest_id: ManifestId) -> Manifest:
        """Fetch a manifest."""
        key = manifest_key(manifest_id)
        manifest = decode_manifest(fetch_file(self.storage, key).data, key)
        _require_id(manifest.id, manifest_id, key)
        return manifest

    def fetch_transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """Fetch the log of what a snapshot changed."""
        key = transaction_log_key(snapshot_id)
        log = decode_transaction_log(fetch_file(self.storage, key).data, key)
        _require_id(log.id, snapshot_id, key)
        return log

    def fetch_chunk(self, ref: ChunkRef) -> bytes | memoryview:
        """Fetch the bytes of a native chunk."""
        key, wanted = chunk_key(ref.id), Bounded(ref.offset, ref.offset + ref.length)
        try:
            return self.storage.get(key, wanted).data
        except InvalidInputError as error:
            # Not the caller's mistake: a manifest says that there is more than there is.
            raise FormatError(error.message, file=key) from error

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot."""
        data = encode_snapshot(snapshot, spec_version=self.spec_version)
        self.storage.put(snapshot_key(snapshot.id), data)

    def write_manifest(
        self, manifest: Manifest, location_compression: LocationCompression | None = None
    ) -> ManifestFileInfo:
        """Write a manifest; returns what a snapshot must know of it.

        Readers trust the size in it: the reference implementation fetches that many bytes.
        """
        data = encode_manifest(
            manifest,
            spec_version=self.spec_version,
            location_compression=location_compression,
        )
        self.storage.put(manifest_key(manifest.id), data)
        return ManifestFileInfo(manifest.id, len(data), len(manifest))

    def write_transaction_log(self, log: TransactionLog) -> None:
        """Write the log of what a snapshot changed."""
        data = encode_transaction_log(log, spec_version=self.spec_version)
        self.storage.put(transaction_log_key(log.id), data)

    def write_chunk(self, chunk_id: ChunkId, data: bytes | memoryview) -> None:
        """Write a chunk file."""
        self.storage.put(chunk_key(chunk_id), data)


def _require_id(found: ObjectId, expected: ObjectId, key: str) -> None:
    """Refuse a whole, valid file that is not the one its name says."""
    if found != expected:
        raise FormatError(f"holds {found}: files were mixed up or renamed", file=key)
