"""Reads and writes the immutable files of a repository: snapshots, manifests, logs and chunks."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from icefloe.assets.cache import Cache
from icefloe.assets.chunk_reader import ChunkReader
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InternalError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.envelope import MAX_FLATBUFFER_SIZE
from icefloe.format.metadata_codec import ManifestFile
from icefloe.model.config import CachingConfig
from icefloe.model.lazy_nodes import LazyNodes
from icefloe.model.manifest import Manifest
from icefloe.model.ref_finder import IndexedRefs
from icefloe.model.snapshot import ManifestFileInfo
from icefloe.model.tree import Tree
from icefloe.storage.interface import Create, Fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.generation import Generation
    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.ids import AttributesId, ChunkId, ManifestId, NodeId, SnapshotId
    from icefloe.model.ref_finder import RefFinder
    from icefloe.model.snapshot import Snapshot, SnapshotFiles, SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.storage.interface import Fetched, Storage, Version

T = TypeVar("T")
R = TypeVar("R")

_LOGGER = logging.getLogger(__name__)

# Estimated sizes of items: the configuration limits the number of items, a cache limits bytes.
_BYTES_PER_REF = 64
_BYTES_PER_NODE = 1024
_BYTES_PER_CHANGE = 16
_BYTES_PER_ENTRY = 200
_MAX_THREADS = 64
# Larger new manifests are not kept as bytes for the next commit.
_MAX_EXTENDED_BYTES = 256 << 10
_MAX_MANIFEST_FILES_BYTES = 64 << 20
_MAX_SNAPSHOT_FILES_BYTES = 16 << 20
_MAX_ATTRIBUTES_BYTES = 64 << 20


def fetch_file(storage: Storage, key: str, *, max_bytes: int = MAX_FLATBUFFER_SIZE) -> Fetched:
    """Fetch a metadata file; raise `FormatError` if it is larger than ``max_bytes``."""
    try:
        return storage.get(key, max_bytes=max_bytes)
    except StorageError as error:
        _reject_large_file(error, key)
        raise


def fetch_file_if_changed(storage: Storage, key: str, version: Version) -> Fetched | None:
    """Like `fetch_file`; None if the file still has a known version."""
    try:
        return storage.get_if_changed(key, version, max_bytes=MAX_FLATBUFFER_SIZE)
    except StorageError as error:
        _reject_large_file(error, key)
        raise


def _reject_large_file(error: StorageError, key: str) -> None:
    if error.kind is ErrorKind.INVALID_OBJECT_SIZE:
        raise FormatError(error.message, file=key) from error


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """The key and the bytes of a file to write."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """The files of a snapshot, and the snapshot with the places of its attributes."""

    snapshot: Snapshot
    file: EncodedFile
    attributes: tuple[EncodedFile, ...]


class LoadedManifest:
    """A manifest as a file for lookups, or decoded, with a finder for each array that was read."""

    __slots__ = ("_finders", "_lock", "_report_size", "content")

    def __init__(
        self, content: Manifest | ManifestFile, report_size: Callable[[], None] = lambda: None
    ) -> None:
        """``report_size`` is called after the size changed."""
        self.content = content
        self._report_size = report_size
        self._finders: dict[NodeId, RefFinder | None] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        if isinstance(self.content, Manifest):
            # Finders are built later and take eight bytes for each reference.
            return self.content.nbytes + 8 * len(self.content)
        return self.content.nbytes

    def get_finder(self, node_id: NodeId) -> RefFinder | None:
        """Return the finder of an array, or None if the manifest has no chunks of it."""
        try:
            return self._finders[node_id]
        except KeyError:
            finder = self._finders[node_id] = self._make_finder(node_id)
            return finder

    def decode(self) -> Manifest:
        """Decode the manifest, and replace its file."""
        with self._lock:
            if isinstance(self.content, Manifest):
                return self.content
            manifest = self.content = self.content.read_manifest()
            self._finders = {}
        self._report_size()
        return manifest

    def _make_finder(self, node_id: NodeId) -> RefFinder | None:
        content = self.content
        if not isinstance(content, Manifest):
            return content.find_refs(node_id, self.decode)
        refs = content.get_array(node_id)
        return None if refs is None else IndexedRefs(refs)


class Assets:
    """Typed access to the files of a repository; fetching an uncached file is one request.

    New files are written in ``generation``; files of generation v1 stay after an upgrade to v2.
    Files have random ids and are never replaced, so cached files stay valid. The only exception is
    expiration in generation v1, which replaces the parent in snapshot files.
    """

    def __init__(
        self,
        storage: Storage,
        generation: Generation,
        caching: CachingConfig | None = None,
        *,
        max_concurrent_requests: int = 256,
    ) -> None:
        self.storage = storage
        self.generation = generation
        self._layout, self._codec = generation.layout, generation.codec
        limits = CachingConfig() if caching is None else caching
        self._trees: Cache[SnapshotId, Tree] = Cache(
            limits.effective_num_snapshot_nodes * _BYTES_PER_NODE,
            _estimate_tree_bytes,
            lambda tree: _LOGGER.warning(
                "a snapshot with %d nodes is too large for its cache, which can keep %d nodes: "
                "raise num_snapshot_nodes in CachingConfig",
                len(tree.snapshot.nodes),
                limits.effective_num_snapshot_nodes,
            ),
        )
        # Snapshots of which only some fields were read are cached as bytes.
        self._snapshot_files: Cache[SnapshotId, bytes | memoryview] = Cache(
            min(limits.effective_num_snapshot_nodes * _BYTES_PER_NODE, _MAX_SNAPSHOT_FILES_BYTES),
            len,
        )
        self._manifests: Cache[ManifestId, LoadedManifest] = Cache(
            limits.effective_num_chunk_refs * _BYTES_PER_REF,
            lambda loaded: loaded.nbytes + _BYTES_PER_ENTRY,
            lambda loaded: _LOGGER.warning(
                "a manifest of %d bytes is too large for its cache, which can keep %d references "
                "of %d bytes: raise num_chunk_refs in CachingConfig",
                loaded.nbytes,
                limits.effective_num_chunk_refs,
                _BYTES_PER_REF,
            ),
        )
        # Manifests that are edited but not read are cached as bytes.
        self._manifest_files: Cache[ManifestId, bytes | memoryview] = Cache(
            min(limits.effective_num_chunk_refs * _BYTES_PER_REF, _MAX_MANIFEST_FILES_BYTES), len
        )
        self._logs: Cache[SnapshotId, TransactionLog] = Cache(
            limits.effective_num_transaction_changes * _BYTES_PER_CHANGE, _estimate_log_bytes
        )
        # The parent may change: expiration cuts histories.
        self._comparisons: Cache[tuple[SnapshotId, SnapshotId | None], TransactionLog] = Cache(
            limits.effective_num_transaction_changes * _BYTES_PER_CHANGE, _estimate_log_bytes
        )
        self._attributes: Cache[AttributesId, bytes | memoryview] = Cache(
            min(limits.effective_num_snapshot_nodes * _BYTES_PER_NODE, _MAX_ATTRIBUTES_BYTES), len
        )
        self.chunks = ChunkReader(
            storage, generation.layout.chunks, limits.effective_num_bytes_chunks
        )
        self._num_threads = min(_MAX_THREADS, max_concurrent_requests)
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    def fetch_tree(self, snapshot_id: SnapshotId) -> Tree:
        """Fetch a snapshot and index its nodes."""
        return self._trees.get(snapshot_id, lambda: Tree(self._fetch_snapshot(snapshot_id)))

    def require_tree(self, snapshot_id: SnapshotId) -> Tree:
        """Like `fetch_tree`, but raise `SnapshotNotFoundError` if the snapshot does not exist."""
        try:
            return self.fetch_tree(snapshot_id)
        except ObjectNotFoundError as error:
            raise SnapshotNotFoundError(
                f"there is no snapshot {snapshot_id} in {self.storage.url}"
            ) from error

    def fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Fetch a snapshot."""
        return self.fetch_tree(snapshot_id).snapshot

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch the history entry of a snapshot, without decoding its nodes."""
        tree = self._trees.find(snapshot_id)
        if tree is not None:
            return tree.snapshot.get_info()
        key, data = self._fetch_snapshot_file(snapshot_id)
        self._snapshot_files.put(snapshot_id, data)
        fetch_attributes = partial(self._fetch_attributes, referrer=key)
        return self._codec.decode_snapshot_info(data, key, snapshot_id, fetch_attributes)

    def fetch_snapshot_files(self, snapshot_id: SnapshotId) -> SnapshotFiles:
        """Fetch which files a snapshot refers to; does not cache."""
        key, data = self._fetch_snapshot_file(snapshot_id)
        fetch_attributes = partial(self._fetch_attributes, referrer=key)
        return self._codec.decode_snapshot_files(data, key, snapshot_id, fetch_attributes)

    def fetch_chunk_ids(self, manifest_id: ManifestId) -> NDArray[np.uint8]:
        """Fetch the ids of the chunk files of a manifest, a row each; does not cache."""
        key, data = self._fetch_manifest_file(manifest_id)
        return self._codec.decode_chunk_ids(data, key, manifest_id)

    def load_manifest(self, manifest_id: ManifestId) -> LoadedManifest:
        """Fetch a manifest for lookups of single chunks."""
        return self._manifests.get(
            manifest_id,
            lambda: self._open_manifest(manifest_id, *self._fetch_manifest_file(manifest_id)),
        )

    def is_manifest_cached(self, manifest_id: ManifestId) -> bool:
        """Whether a manifest is cached."""
        return manifest_id in self._manifests

    def is_manifest_decoded(self, manifest_id: ManifestId) -> bool:
        """Whether a manifest is cached and decoded."""
        loaded = self._manifests.find(manifest_id)
        return loaded is not None and isinstance(loaded.content, Manifest)

    def fetch_manifest(self, manifest_id: ManifestId) -> Manifest:
        """Fetch and decode a manifest."""
        loaded = self._manifests.get(
            manifest_id, lambda: LoadedManifest(self._fetch_manifest(manifest_id))
        )
        return loaded.decode()

    def fetch_transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """Fetch the transaction log of a snapshot."""
        return self._logs.get(snapshot_id, lambda: self._fetch_transaction_log(snapshot_id))

    def find_comparison(
        self, snapshot_id: SnapshotId, parent_id: SnapshotId | None
    ) -> TransactionLog | None:
        """Return the changes from a snapshot to its child, if they are cached."""
        return self._comparisons.find((snapshot_id, parent_id))

    def cache_comparison(
        self, snapshot_id: SnapshotId, parent_id: SnapshotId | None, log: TransactionLog
    ) -> None:
        """Cache the changes from a snapshot to its child, in generations without logs."""
        self._comparisons.put((snapshot_id, parent_id), log)

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedSnapshot:
        """Encode a snapshot and the attributes that it stores in files of their own."""
        placed, new_files = self._codec.place_attributes(snapshot)
        attributes = []
        for attributes_id, data in new_files.items():
            self._attributes.put(attributes_id, data)
            attributes.append(EncodedFile(self._get_attributes_key(attributes_id), data))
        key = self._layout.snapshots.format_key(snapshot.id)
        file = EncodedFile(key, self._codec.encode_snapshot(placed))
        return EncodedSnapshot(placed, file, tuple(attributes))

    def encode_manifest(
        self, manifest: Manifest, location_compression: LocationCompression | None = None
    ) -> tuple[ManifestFileInfo, EncodedFile]:
        """Encode a manifest; return its entry for the snapshot and the file.

        The size in the entry must be exact: Icechunk fetches that number of bytes.
        """
        data = self._codec.encode_manifest(manifest, location_compression)
        if len(manifest.indices.node_ids) == 1 and len(data) <= _MAX_EXTENDED_BYTES:
            self._manifest_files.put(manifest.id, data)  # for `insert_refs`
        info = ManifestFileInfo(manifest.id, len(data), len(manifest))
        return info, EncodedFile(self.format_manifest_key(manifest.id), data)

    def edit_manifest(
        self, before: ManifestFileInfo, changes: Manifest
    ) -> tuple[ManifestFileInfo, EncodedFile] | Manifest:
        """Replace references in a manifest of one array by editing its file.

        Returns the entry and the file of the new manifest, which has the id of ``changes``; or the
        decoded manifest ``before`` if its file cannot be edited.
        """
        loaded, old_data = self._manifests.find(before.id), None
        if loaded is None or isinstance(loaded.content, Manifest):
            key, old_data = self._fetch_manifest_file(before.id)
            loaded = self._open_manifest(before.id, key, old_data)
        content = loaded.content
        edited = None if isinstance(content, Manifest) else content.edit(changes)
        if edited is None:
            manifest = loaded.decode()
            self._manifests.put(before.id, loaded)
            return manifest
        if old_data is not None:
            self._manifest_files.put(before.id, old_data)
        self._manifest_files.put(changes.id, edited)
        info = ManifestFileInfo(changes.id, len(edited), before.num_chunk_refs)
        return info, EncodedFile(self.format_manifest_key(changes.id), edited)

    def insert_refs(
        self, before: ManifestFileInfo, changes: Manifest
    ) -> tuple[ManifestFileInfo, EncodedFile] | None:
        """Add references to a manifest of one array by copying its file.

        Returns the entry and the file of the new manifest, which has the id of ``changes``; or None
        if the file must be rewritten, or only the decoded manifest is in memory.
        """
        if self.is_manifest_decoded(before.id) and before.id not in self._manifest_files:
            return None
        loaded = self._manifests.find(before.id)
        content = None if loaded is None else loaded.content
        if not isinstance(content, ManifestFile):
            old_key, old_data = self._fetch_manifest_file(before.id)
            self._manifest_files.put(before.id, old_data)  # for a caller that rewrites it
            content = self._codec.open_manifest(old_data, old_key, before.id)
        key = self.format_manifest_key(changes.id)
        inserted = content.insert(changes, key) if isinstance(content, ManifestFile) else None
        if inserted is None:
            return None
        file, data = inserted
        self._manifests.put(changes.id, self._load(changes.id, file))
        if len(data) <= _MAX_EXTENDED_BYTES:
            self._manifest_files.put(changes.id, data)
        info = ManifestFileInfo(changes.id, len(data), before.num_chunk_refs + len(changes))
        return info, EncodedFile(key, data)

    def encode_transaction_log(self, log: TransactionLog) -> EncodedFile:
        """Encode a transaction log."""
        data = self._codec.encode_transaction_log(log)
        return EncodedFile(self._get_log_key(log.id), data)

    def write(self, file: EncodedFile) -> None:
        """Write a file with a fresh id."""
        self.storage.put(file.key, file.data, Fresh())

    def publish(self, file: EncodedFile) -> None:
        """Write a file; afterwards this file and all files written before it are durable."""
        self.storage.put(file.key, file.data, Create())

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot."""
        encoded = self.encode_snapshot(snapshot)
        for file in (*encoded.attributes, encoded.file):
            self.write(file)

    def write_manifest(
        self, manifest: Manifest, location_compression: LocationCompression | None = None
    ) -> ManifestFileInfo:
        """Write a manifest; return its entry for the snapshot."""
        info, file = self.encode_manifest(manifest, location_compression)
        self.write(file)
        return info

    def write_transaction_log(self, log: TransactionLog) -> None:
        """Write a transaction log."""
        self.write(self.encode_transaction_log(log))

    def write_chunk(self, chunk_id: ChunkId, data: bytes | memoryview) -> None:
        """Write a chunk file."""
        self.storage.put(self._layout.chunks.format_key(chunk_id), data, Fresh())

    async def write_chunk_async(self, chunk_id: ChunkId, data: bytes | memoryview) -> None:
        """Write a chunk file, without blocking the event loop."""
        await self.storage.put_async(self._layout.chunks.format_key(chunk_id), data)

    def cache(self, tree: Tree, manifests: Iterable[Manifest]) -> None:
        """Cache a snapshot and manifests that were just written."""
        self._trees.put(tree.snapshot.id, tree)
        for manifest in manifests:
            self._manifests.put(manifest.id, LoadedManifest(manifest))

    def run_concurrently(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function that does I/O on each item; return the results in order.

        Raises the first error in the order of the items. With threads, it first waits for all
        calls; a storage with low latency needs no threads, and the first error ends the calls.
        """
        arguments = list(items)
        if len(arguments) < 2 or self.storage.is_low_latency:
            return [function(item) for item in arguments]
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="icefloe")
        futures = [self._pool.submit(function, item) for item in arguments]
        errors = [future.exception() for future in futures]
        if first_error := next((error for error in errors if error is not None), None):
            raise first_error
        return [future.result() for future in futures]

    def _fetch_snapshot_file(self, snapshot_id: SnapshotId) -> tuple[str, bytes | memoryview]:
        key = self._layout.snapshots.format_key(snapshot_id)
        cached = self._snapshot_files.find(snapshot_id)
        return key, fetch_file(self.storage, key).data if cached is None else cached

    def _fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        key, data = self._fetch_snapshot_file(snapshot_id)
        fetch_attributes = partial(self._fetch_attributes, referrer=key)
        return self._codec.decode_snapshot(data, key, snapshot_id, fetch_attributes)

    def _fetch_attributes(
        self, attributes_id: AttributesId, *, referrer: str
    ) -> tuple[str, bytes | memoryview]:
        key = self._get_attributes_key(attributes_id)
        try:
            data = self._attributes.get(attributes_id, lambda: fetch_file(self.storage, key).data)
        except ObjectNotFoundError as error:
            # Not the error of a missing snapshot: the snapshot that refers to the file exists.
            raise FormatError(
                f"the attributes file is missing in {self.storage.url}; {referrer} refers to it: "
                "it was lost, or the snapshot is damaged",
                file=key,
                kind=ErrorKind.OBJECT_NOT_FOUND,
            ) from error
        return key, data

    def _get_attributes_key(self, attributes_id: AttributesId) -> str:
        if self._layout.attributes is None:
            raise InternalError(f"generation {self.generation.name} has no attributes files")
        return self._layout.attributes.format_key(attributes_id)

    def format_manifest_key(self, manifest_id: ManifestId) -> str:
        """Return the key of a manifest file."""
        return self._layout.manifests.format_key(manifest_id)

    def format_snapshot_key(self, snapshot_id: SnapshotId) -> str:
        """Return the key of a snapshot file."""
        return self._layout.snapshots.format_key(snapshot_id)

    def _fetch_manifest(self, manifest_id: ManifestId) -> Manifest:
        key, data = self._fetch_manifest_file(manifest_id)
        return self._codec.decode_manifest(data, key, manifest_id)

    def _open_manifest(
        self, manifest_id: ManifestId, key: str, data: bytes | memoryview
    ) -> LoadedManifest:
        return self._load(manifest_id, self._codec.open_manifest(data, key, manifest_id))

    def _load(self, manifest_id: ManifestId, content: Manifest | ManifestFile) -> LoadedManifest:
        return LoadedManifest(content, lambda: self._manifests.update_size(manifest_id))

    def _fetch_manifest_file(self, manifest_id: ManifestId) -> tuple[str, bytes | memoryview]:
        key = self.format_manifest_key(manifest_id)
        cached = self._manifest_files.find(manifest_id)
        return key, fetch_file(self.storage, key).data if cached is None else cached

    def _fetch_transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        key = self._get_log_key(snapshot_id)
        data = fetch_file(self.storage, key).data
        return self._codec.decode_transaction_log(data, key, snapshot_id)

    def _get_log_key(self, snapshot_id: SnapshotId) -> str:
        if self._layout.transaction_logs is None:
            raise InternalError(f"generation {self.generation.name} has no transaction logs")
        return self._layout.transaction_logs.format_key(snapshot_id)


def _estimate_tree_bytes(tree: Tree) -> int:
    nodes = tree.snapshot.nodes
    if isinstance(nodes, LazyNodes):
        return len(nodes) * _BYTES_PER_NODE + nodes.nbytes
    return sum(len(node.user_data) + _BYTES_PER_NODE for node in nodes)


def _estimate_log_bytes(log: TransactionLog) -> int:
    num_nodes = sum(map(len, log.node_sets)) + len(log.moved_nodes)
    num_nodes += log.updated_chunks.num_arrays
    return log.updated_chunks.nbytes + (num_nodes + 1) * _BYTES_PER_ENTRY
