"""Read-only access to the core types of one snapshot, for tools that work on the format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.core.chunk_counts import ChunkCounts, count_chunks
from icefloe.core.chunk_table import build_chunk_schema, iter_record_batches
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.model.arrow import load_pyarrow
from icefloe.model.chunk_payload import ChunkIndices, ChunkRef
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.node import ArrayNodeData
from icefloe.model.path import Path
from icefloe.transaction import overlay
from icefloe.transaction.commit_log import fetch_commit_logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.ids import SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.node import ManifestRef, NodeSnapshot
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.refs.interface import Refs
    from icefloe.transaction.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """The bytes of a native chunk: a byte range of an object in the storage of the repository.

    ``key`` is relative to the root of the storage; ``url`` is the URL of the object, without
    endpoint and credentials.
    """

    key: str
    url: str
    offset: int
    length: int


class SnapshotView:
    """The nodes, manifests, chunk references and changes of a snapshot. Immutable.

    Made by `Repository.fetch_snapshot`. Paths are a `Path` or text, ids are typed or text. Methods
    called ``fetch_…`` read files that the repository has not cached, one request each.
    """

    def __init__(self, transaction: Transaction, refs: Refs) -> None:
        self._transaction = transaction
        self._assets = transaction.assets
        self._refs = refs

    def __repr__(self) -> str:
        return f"<SnapshotView {self.id}: {len(self.nodes)} nodes>"

    @property
    def id(self) -> SnapshotId:
        """The id of the snapshot."""
        return self.snapshot.id

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        return self._transaction.base.snapshot

    @property
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """All groups and arrays, ordered by path."""
        return tuple(self.snapshot.nodes)

    def get_node(self, path: Path | str) -> NodeSnapshot:
        """Return the group or array at a path; raise `NodeNotFoundError` if there is none."""
        return self._transaction.require_node(_parse_path(path))

    def get_manifests(self, path: Path | str) -> tuple[ManifestRef, ...]:
        """Return the manifests of an array, with the extents of its chunks in each."""
        data = self._require_array(path).node_data
        return data.manifests if isinstance(data, ArrayNodeData) else ()

    def fetch_info(self) -> SnapshotInfo:
        """Fetch the history entry of the snapshot: its parent, time, message and metadata."""
        return self._refs.fetch_snapshot_info(self.id)

    def fetch_transaction_log(self) -> TransactionLog:
        """Fetch the changes of the commit.

        Generations without transaction logs compare the snapshot with its parent, which reads the
        manifests that only one of them has.
        """
        has_logs = self._assets.generation.has_transaction_logs
        parent_id = None if has_logs else self.fetch_info().parent_id
        (log,) = fetch_commit_logs(self._assets, [(self.id, parent_id)])
        return log

    def fetch_manifest(self, manifest_id: ManifestId | str) -> Manifest:
        """Fetch a manifest file, with the references of all its arrays."""
        return self._assets.fetch_manifest(ManifestId.parse(manifest_id))

    def fetch_chunk_ref(self, path: Path | str, indices: Iterable[int]) -> ChunkPayload | None:
        """Fetch the reference of one chunk, or None if the chunk was never written.

        Reads only the manifest whose extents contain the chunk. Raises `InvalidInputError` if the
        array has no such chunk.
        """
        parsed_path, parsed_indices = _parse_path(path), ChunkIndices(*indices)
        self._require_array(parsed_path)
        grid = self._transaction.get_grid(parsed_path)
        if len(grid) != len(parsed_indices) or any(
            coord >= num_chunks for coord, num_chunks in zip(parsed_indices, grid, strict=True)
        ):
            raise InvalidInputError(
                f"chunk {tuple(parsed_indices)} is not in the grid of {parsed_path}, which has "
                f"{grid} chunks",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        return self._transaction.get_payload(parsed_path, parsed_indices)

    def iter_chunk_refs(self, path: Path | str) -> Iterator[ArrayManifest]:
        """Yield the references of an array as columns, manifest by manifest, each chunk once."""
        node = self._require_array(path)
        for refs in self._transaction.fetch_chunk_refs(node.path):
            yield ArrayManifest(refs.coords, overlay.compact(refs.payloads))

    def fetch_chunk_refs(self, path: Path | str) -> ArrayManifest:
        """Fetch all references of an array as columns, ordered by chunk indices."""
        parts = [part for part in self.iter_chunk_refs(path) if len(part)]
        if len(parts) == 1:
            return ArrayManifest.of(parts[0].coords, parts[0].payloads)
        grid = self._transaction.get_grid(_parse_path(path))
        return _concatenate(parts, len(grid))

    def count_chunks(self, path: Path | str) -> ChunkCounts:
        """Count the references of an array by kind, and sum their sizes; reads its manifests."""
        return count_chunks(self._transaction.fetch_chunk_refs(self._require_array(path).path))

    def fetch_arrow_table(self, path: Path | str) -> Any:
        """Fetch all references of an array as a `pyarrow.Table`; needs pyarrow.

        The columns are ``index``, ``kind`` (``native``, ``virtual`` or ``inline``), ``chunk_id``
        and ``key`` of native chunks, ``location``, ``etag`` and ``last_modified`` of virtual ones,
        ``offset``, ``length`` and the bytes of ``inline`` chunks.
        """
        pa = load_pyarrow()
        chunk_files = self._assets.generation.layout.chunks
        batches = [
            batch
            for refs in self.iter_chunk_refs(path)
            for batch in iter_record_batches(refs, chunk_files)
        ]
        return pa.Table.from_batches(batches, build_chunk_schema()).unify_dictionaries()

    def locate(self, ref: ChunkRef) -> ChunkLocation:
        """Return where the bytes of a native chunk are."""
        if not isinstance(ref, ChunkRef):
            raise InvalidInputError(
                f"expected a ChunkRef, the reference of a native chunk, got a {type(ref).__name__}",
                kind=ErrorKind.INVALID_CHUNK_INDEX,
            )
        key = self._assets.generation.layout.chunks.format_key(ref.id)
        root = self._assets.storage.url
        separator = "" if root.endswith("/") else "/"
        return ChunkLocation(key, f"{root}{separator}{key}", ref.offset, ref.length)

    def _require_array(self, path: Path | str) -> NodeSnapshot:
        return self._transaction.require_array(_parse_path(path))


def _parse_path(path: Path | str) -> Path:
    """Return a path; text may omit the leading slash."""
    if isinstance(path, Path):
        return path
    if not isinstance(path, str):
        raise InvalidInputError(
            f"expected a Path or str, got {path!r:.80}", kind=ErrorKind.INVALID_PATH
        )
    return Path("/" + path.strip("/"))


def _concatenate(parts: list[ArrayManifest], ndim: int) -> ArrayManifest:
    coords = np.concatenate([np.zeros((0, ndim), np.uint32), *(part.coords for part in parts)])
    return ArrayManifest.of(coords, ChunkPayloads.concatenate([part.payloads for part in parts]))
