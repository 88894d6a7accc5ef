"""A transaction: one snapshot with changes on top.

Reads see the base snapshot and the transaction's own writes, whatever other writers commit. Chunks
are written to the storage at once, under new ids; all other changes stay in memory until a flush.
Methods are thread-safe.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    NodeNotFoundError,
    ObjectNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.ids import ChunkId
from icefloe.model.node import ArrayNodeData, NodeKind, NodeSnapshot
from icefloe.model.path import Path
from icefloe.transaction import overlay
from icefloe.transaction.array_view import ArrayView
from icefloe.transaction.change_set import ChangeSet, compare_nodes, is_changed
from icefloe.transaction.chunk_changes import ChunkChanges, Unchanged
from icefloe.transaction.chunk_slice import ChunkSlice, clip_byte_range, get_chunk_length
from icefloe.transaction.node_edits import Unedited
from icefloe.transaction.node_numbers import plan_numbers, renumber
from icefloe.transaction.node_rules import describe_nearest, require_valid_move, require_valid_path
from icefloe.transaction.packing import Packer
from icefloe.transaction.zarr_metadata import parse_node_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.assets.assets import LoadedManifest
    from icefloe.model.byte_range import ByteRange
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ArrayManifest, ChunkPayloads
    from icefloe.model.node import ManifestExtents
    from icefloe.model.ref_finder import RefFinder
    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import AdoptedManifest
    from icefloe.transaction.change_set import NodeChanges


class VirtualChunkReader(Protocol):
    """Fetches chunks that are outside the repository."""

    def fetch(self, ref: VirtualChunkRef, start: int, length: int) -> bytes | memoryview:
        """Fetch ``length`` bytes of a virtual chunk, beginning ``start`` bytes into the chunk."""
        ...

    def describe(self, location: str) -> str:
        """Return the file at a location and its container, for messages."""
        ...


class Transaction:
    """Reads and changes the nodes and chunks of one snapshot, which is fetched when first needed.

    ``config`` decides on inlining and packing; ``changes`` are the changes to start with.
    """

    def __init__(
        self,
        assets: Assets,
        snapshot_id: SnapshotId,
        config: RepositoryConfig,
        virtual: VirtualChunkReader,
        changes: ChangeSet | None = None,
    ) -> None:
        self.assets = assets
        self.base_id = snapshot_id
        self._base: Tree | None = None
        self.changes = ChangeSet() if changes is None else changes
        self._inline_bytes = config.effective_inline_chunk_threshold_bytes
        self._virtual = virtual
        self._packer = None if config.packing is None else Packer(assets, config.packing)
        self.lock = threading.RLock()
        self._is_sealed = self._has_ended = False
        self._arrays: dict[str, ArrayView] = {}
        self._numbers: dict[NodeId, NodeId] = {}
        self._unnumbered: list[ChangeSet] = []
        # The manifest of the last chunk read, most likely that of the next chunk too. A manifest
        # larger than the cache is thus not fetched for each chunk.
        self._last: tuple[ManifestId, NodeId, RefFinder | None] | None = None

    @property
    def base(self) -> Tree:
        """The base snapshot."""
        # Stored here too, so that a snapshot larger than the cache is not fetched each time.
        tree = self._base
        if tree is None or tree.snapshot.id != self.base_id:
            tree = self._base = self.assets.fetch_tree(self.base_id)
        return tree

    @property
    def has_changes(self) -> bool:
        """Whether a commit would record anything."""
        with self.lock:
            changes = self.changes
            if changes.adopted or any(changes.chunks.values()):
                return True
            return any(
                is_changed(self.base.get(path), node) for path, node in changes.edits.items()
            )

    def find_node_changes(self) -> NodeChanges:
        """Find the nodes that differ from the base."""
        with self.lock:
            return compare_nodes(self.base, self.changes)

    # -- nodes

    def get_node(self, path: Path) -> NodeSnapshot | None:
        """Return the node at a path."""
        edited = self.changes.edits.get(path)
        return self.base.get(path) if isinstance(edited, Unedited) else edited

    def require_node(self, path: Path) -> NodeSnapshot:
        """Return the node at a path, or raise."""
        node = self.get_node(path)
        if node is None:
            raise NodeNotFoundError(
                f"node not found: there is no group or array at {path} in snapshot {self.base_id}"
                f"{' or among the changes of this session' if self.changes.edits else ''}; "
                f"{describe_nearest(self, path)}",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        return node

    def require_array(self, path: Path) -> NodeSnapshot:
        """Return the array at a path, or raise."""
        node = self.require_node(path)
        if node.kind is not NodeKind.ARRAY:
            raise InvalidInputError(f"{path} is a group, not an array", kind=ErrorKind.NOT_AN_ARRAY)
        return node

    def iter_nodes_below(self, path: Path) -> Iterator[NodeSnapshot]:
        """Yield the nodes below a path, in no particular order."""
        with self.lock:
            edited_nodes = self.changes.edits.list_below(path)
            deleted_paths = self.changes.edits.list_deleted_below(path)
        edited_paths = {edited.value for edited in deleted_paths}
        edited_paths |= {node.path.value for node in edited_nodes}
        for node in self.base.iter_below(path):
            if node.path.value not in edited_paths:
                yield node
        yield from edited_nodes

    def list_children(self, path: Path) -> set[str]:
        """Return the names directly below a path, including those of implicit groups."""
        with self.lock:
            edits = self.changes.edits
            names, deleted_names = edits.list_children(path), edits.list_deleted_children(path)
            for name in self.base.iter_children(path):
                if name not in deleted_names or self._is_in_base(path.child(name)):
                    names.add(name)
        return names

    def has_nodes_from(self, path: Path) -> bool:
        """Whether there is a node at a path or below it."""
        with self.lock:
            return self.changes.edits.has_from(path) or self._is_in_base(path)

    def set_metadata(self, path: Path, data: bytes) -> None:
        """Create or update the node at a path from its ``zarr.json``; equal bytes change nothing.

        Raises `InvalidInputError` if the metadata cannot be stored or the path is inside an array,
        `AlreadyExistsError` if the node exists and has the other kind.
        """
        key = f"{path.value[1:]}/zarr.json".lstrip("/")
        generation = self.assets.generation
        parsed = parse_node_metadata(data, key=key, generation=generation)
        data = generation.codec.normalize_document(data, key)
        with self.lock:
            present = self.get_node(path)
            if present is None:
                require_valid_path(self, path, is_array=isinstance(parsed, ArrayNodeData))
                self._edit(path, NodeSnapshot(generation.make_node_id(), path, data, parsed))
            elif type(present.node_data) is not type(parsed):
                kind = "an array" if present.kind is NodeKind.ARRAY else "a group"
                raise AlreadyExistsError(
                    f"{path} is already {kind}: delete it first", kind=ErrorKind.NODE_ALREADY_EXISTS
                )
            elif present.user_data != data:
                has_same_attributes = present.attributes_ref is not None and (
                    _get_attributes(present.user_data) == _get_attributes(data)
                )
                self._edit(
                    path,
                    replace(
                        present,
                        user_data=data,
                        node_data=parsed,
                        attributes_ref=present.attributes_ref if has_same_attributes else None,
                    ),
                )

    def delete_node(self, path: Path) -> None:
        """Delete a node, if present, and everything below it."""
        with self.lock:
            for node in [*self.iter_nodes_below(path), self.get_node(path)]:
                if node is not None:
                    self.drop_node(node.path)

    def find_node(self, node_id: NodeId) -> NodeSnapshot | None:
        """Return the node with an id, at any path."""
        node = self.changes.edits.find(node_id)
        if node is None:
            node = self.base.by_id.get(node_id)
            if node is not None and node.path in self.changes.edits:
                return None
        return node

    def put_node(self, node: NodeSnapshot) -> None:
        """Put a node at its path, replacing any node there."""
        with self.lock:
            self.require_unsealed()
            present = self.get_node(node.path)
            if present is not None and present.id != node.id:
                self.changes.drop_chunks(present.id)
            self._edit(node.path, node)

    def drop_node(self, path: Path) -> None:
        """Remove the node at a path, without those below it."""
        with self.lock:
            self.require_unsealed()
            present = self.get_node(path)
            if present is not None:
                self.changes.drop_chunks(present.id)
                self._edit(path, None)

    def move_node(self, source: Path, target: Path) -> None:
        """Move a node, with everything below it, to an unused path.

        Raises `SessionStateError`, `AlreadyExistsError` or `NodeNotFoundError` if the move is not
        possible; nothing changes.
        """
        with self.lock:
            node = self.require_node(source)
            require_valid_move(self, source, target)
            nodes = [node, *self.iter_nodes_below(source)]
            for node in nodes:
                self._edit(node.path, None)
            for node in nodes:
                path = Path(target.value + node.path.value[len(source.value) :])
                self._edit(path, replace(node, path=path))

    # -- chunks

    def set_chunk(self, path: Path, indices: tuple[int, ...], data: bytes | memoryview) -> None:
        """Write a chunk: to the storage at once, or to memory if it is inlined or packed."""
        array = self._require_chunk(path, indices)
        size = len(data)
        self._require_bytes(path, indices, size)
        payload: ChunkPayload
        if size <= self._inline_bytes:
            payload = InlineChunk(bytes(data))
        elif self._packer is not None and size <= self._packer.max_chunk_bytes:
            payload = self._packer.add(data)
        else:
            payload = ChunkRef(self.assets.generation.make_id(ChunkId), 0, size)
            self.assets.write_chunk(payload.id, data)
        self._set_payload(array, indices, payload)

    async def set_chunk_async(
        self, path: Path, indices: tuple[int, ...], data: bytes | memoryview
    ) -> None:
        """Write a chunk as `set_chunk` does, without blocking the event loop."""
        size = len(data)
        if size <= self._inline_bytes:
            self.set_chunk(path, indices, data)
            return
        if self._packer is not None and size <= self._packer.max_chunk_bytes:
            # In a thread: the chunk that fills a pack writes the pack.
            await asyncio.to_thread(self.set_chunk, path, indices, data)
            return
        array = self._require_chunk(path, indices)
        payload = ChunkRef(self.assets.generation.make_id(ChunkId), 0, size)
        await self.assets.write_chunk_async(payload.id, data)
        self._set_payload(array, indices, payload)

    def set_payload(self, path: Path, indices: tuple[int, ...], payload: ChunkPayload) -> None:
        """Record a reference to a chunk that is already stored."""
        array = self._require_chunk(path, indices)
        self._require_bytes(path, indices, get_chunk_length(payload))
        self._set_payload(array, indices, payload)

    def set_payloads(self, path: Path, coords: NDArray[np.uint32], payloads: ChunkPayloads) -> None:
        """Record references to many chunks; the last one for a chunk wins."""
        array = self._require_open_array(path)
        outside = np.flatnonzero(~overlay.is_inside(coords, array.num_chunks))
        if len(outside):
            raise array.outside_error(tuple(coords[outside[0]].tolist()))
        empty = np.flatnonzero(payloads.length == 0)
        if len(empty):
            self._require_bytes(path, tuple(coords[empty[0]].tolist()), 0)
        self.change_chunks(array.node, overlay.deduplicate(coords, payloads))

    def change_chunks(self, node: NodeSnapshot, columns: ArrayManifest) -> None:
        """Record changes of chunks of an array, including deletions."""
        with self.lock:
            self._get_chunk_changes(node).add(columns)

    def adopt_manifests(self, path: Path, manifests: tuple[AdoptedManifest, ...]) -> None:
        """Adopt manifests that other processes wrote, for a part of an array without chunks.

        Raises `InvalidInputError` if a manifest is outside the grid or overlaps another one.
        """
        with self.lock:
            self.require_unsealed()
            array = self._require_open_array(path)
            extents = [ref.extents for ref in array.manifests]
            for manifest in manifests:
                array.require_room(manifest.ref.extents, extents)
                extents.append(manifest.ref.extents)
            adopted = self.changes.adopted
            adopted[array.node.id] = (*adopted.get(array.node.id, ()), *manifests)
            self._arrays.clear()

    def delete_chunk(self, path: Path, indices: tuple[int, ...]) -> None:
        """Delete a chunk, if present."""
        with self.lock:
            array = self._open_array(path)
            if array is None or not array.is_in_grid(indices):
                return
            if self._get_payload(array, indices) is not None:
                self._get_chunk_changes(array.node).set(indices, None)

    def delete_chunks(self, path: Path, coords: NDArray[np.uint32]) -> None:
        """Delete chunks that exist."""
        self.change_chunks(self.require_array(path), overlay.mark_deleted(coords))

    def get_payload(self, path: Path, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return the reference of a chunk, or None if the chunk does not exist."""
        array = self._open_array(path)
        if array is None or not array.is_in_grid(indices):
            return None
        return self._get_payload(array, indices)

    def get_chunk_size(self, path: Path, indices: tuple[int, ...]) -> int | None:
        """Return the length of a chunk in bytes, or None if the chunk does not exist."""
        payload = self.get_payload(path, indices)
        return None if payload is None else get_chunk_length(payload)

    def get_grid(self, path: Path) -> tuple[int, ...]:
        """Return the number of chunks of an array along each dimension."""
        return self._require_open_array(path).num_chunks

    def require_regular_grid(self, path: Path) -> tuple[int, ...]:
        """Return the grid of an array; raise if it is not regular: its chunks cannot be moved."""
        node = self.require_array(path)
        grid = json.loads(node.user_data).get("chunk_grid", {}).get("name")
        if grid != "regular":
            raise InvalidInputError(
                f"the chunks of {path} cannot be moved: its chunk grid is {grid!r}, not regular",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return self.get_grid(path)

    def is_array_loaded(self, path: Path) -> bool:
        """Whether an array can be accessed without a request."""
        return path.value in self._arrays

    def is_location_cached(self, path: Path, indices: tuple[int, ...]) -> bool:
        """Whether the reference of a chunk can be found without a request."""
        array = self._arrays.get(path.value)
        if array is None:
            return False
        manifest_id = array.index.find(indices) if array.is_in_grid(indices) else None
        last = self._last
        return (
            manifest_id is None
            or (last is not None and last[0] == manifest_id)
            or self.assets.is_manifest_cached(manifest_id)
        )

    def locate(
        self, path: Path, indices: tuple[int, ...], byte_range: ByteRange | None = None
    ) -> bytes | memoryview | ChunkSlice | None:
        """Return the bytes of a chunk if they are in memory, else the slice to fetch.

        Byte ranges are clipped to the chunk.
        """
        payload = self.get_payload(path, indices)
        if payload is None:
            return None
        size = get_chunk_length(payload)
        start, stop = clip_byte_range(byte_range, size)
        match payload:
            case InlineChunk(data):
                return data if byte_range is None else data[start:stop]
            case ChunkRef() if self._packer is not None:
                packed = self._packer.get(payload)
                if packed is not None:
                    return packed[start:stop]
        return ChunkSlice(payload, start, stop - start) if start < stop else b""

    def read(
        self, path: Path, indices: tuple[int, ...], byte_range: ByteRange | None = None
    ) -> bytes | memoryview | None:
        """Return the bytes of a chunk, or None if the chunk does not exist."""
        if byte_range is None and self._packer is None:
            payload = self.get_payload(path, indices)
            if isinstance(payload, ChunkRef):  # fast path for the common case
                return self.assets.chunks.fetch(payload)
        chunk = self.locate(path, indices, byte_range)
        return self.fetch(chunk) if isinstance(chunk, ChunkSlice) else chunk

    def fetch(self, part: ChunkSlice) -> bytes | memoryview:
        """Fetch the bytes of a slice."""
        if isinstance(part.payload, VirtualChunkRef):
            return self._virtual.fetch(part.payload, part.start, part.length)
        return self.assets.chunks.fetch(part.payload, part.start, part.length)

    def make_decoding_error(
        self, path: Path, indices: tuple[int, ...], problem: object
    ) -> FormatError:
        """Return the error for a chunk that the codecs of its array cannot decode."""
        payload = self.get_payload(path, indices)
        manifest_key = self._find_manifest_key(path, indices)
        suspects = ["the chunk", "the metadata of the array"]
        match payload:
            case VirtualChunkRef(location, offset, length):
                file = f"{self._virtual.describe(location)}, bytes {offset} to {offset + length}"
            case ChunkRef(offset=offset, length=length):
                key = self.assets.chunks.format_key(payload)
                file = f"{key}, bytes {offset} to {offset + length}"
            case _:
                file, manifest_key = manifest_key or "uncommitted changes", None
        if manifest_key is not None:
            suspects.append(f"the reference in {manifest_key}")
        return FormatError(
            f"chunk {list(indices)} of {path} cannot be decoded: {problem}; "
            f"{', '.join(suspects[:-1])} or {suspects[-1]} is damaged",
            file=file,
        )

    def explain_chunk_error(
        self, path: Path, indices: tuple[int, ...], error: FormatError | ObjectNotFoundError
    ) -> FormatError | ObjectNotFoundError | None:
        """Return an error for a missing or short chunk file that names what refers to it.

        Returns None if the chunk has no file of its own, or is not committed.
        """
        key = self._find_manifest_key(path, indices)
        if key is None or not isinstance(self.get_payload(path, indices), ChunkRef):
            return None
        advice = (
            f"; it has chunk {list(indices)} of {path} according to {key}: one of the two files is "
            "damaged"
        )
        if isinstance(error, FormatError):
            return FormatError(error.reason + advice, error.kind, file=error.file)
        return ObjectNotFoundError(error.message + advice)

    def format_snapshot_key(self) -> str:
        """Return the key of the file of the base snapshot."""
        return self.assets.format_snapshot_key(self.base_id)

    def is_edited(self, path: Path) -> bool:
        """Whether the node at a path is not that of the base snapshot."""
        return not isinstance(self.changes.edits.get(path), Unedited)

    def fetch_chunk_refs(
        self, path: Path, *, within: ManifestExtents | None = None
    ) -> Iterator[ArrayManifest]:
        """Yield the references of an array by manifest, each chunk once.

        Only manifests that overlap ``within`` are fetched; their other references are included.
        """
        node = self.require_array(path)
        array = self._require_open_array(path)
        with self.lock:
            changes = array.changes.chunks.get(node.id)
            columns = changes.to_columns() if changes else None
        manifest_ids = (
            ref.id for ref in array.manifests if within is None or ref.extents.overlaps(within)
        )
        for manifest_id in dict.fromkeys(manifest_ids):
            try:
                refs = self.assets.fetch_manifest(manifest_id).get_array(node.id)
            except ObjectNotFoundError as error:
                raise self._explain_missing_manifest(array, error) from error
            if refs is None:
                continue
            is_visible = overlay.is_inside(refs.coords, array.num_chunks)
            is_visible &= array.index.mask_chunks_of(manifest_id, refs.coords)
            if columns is not None and len(columns):
                is_visible &= ~overlay.is_among(refs.coords, columns.coords)
            yield refs if is_visible.all() else overlay.select(refs, np.flatnonzero(is_visible))
        if columns is not None:
            is_visible = overlay.is_inside(columns.coords, array.num_chunks)
            is_visible &= columns.payloads.kind != overlay.DELETED
            yield overlay.select(columns, np.flatnonzero(is_visible))

    # -- life cycle

    def finish_chunks(self) -> None:
        """Write packed chunks that are still in memory, so that references to them are valid."""
        if self._packer is not None:
            self._packer.finish()

    def copy_changes(self) -> ChangeSet:
        """Return a copy of the changes, after writing packed chunks that are still in memory."""
        with self.lock:
            self.finish_chunks()
            return self.changes.copy()

    @contextmanager
    def seal(self) -> Iterator[None]:
        """Refuse changes during a commit or rebase, and after it if the transaction has ended.

        A change that another thread made meanwhile would be lost.
        """
        with self.lock:
            self.require_unsealed()
            self._is_sealed = True
        try:
            yield
        finally:
            self._is_sealed = self._has_ended

    @contextmanager
    def rollback_on_error(self, *, exclusive: bool = False) -> Iterator[None]:
        """Undo changes made in the body if it raises; chunk writes in progress then fail.

        With ``exclusive`` other threads wait. Without it they may write, as threads of Zarr do.
        """
        with self.lock if exclusive else nullcontext():
            with self.lock:
                before = self.changes.copy()
            try:
                yield
            except BaseException:
                self.replace_base(self.base_id, before)
                raise

    def require_unsealed(self) -> None:
        """Raise if the transaction is sealed."""
        if self._is_sealed:
            raise ReadOnlyError(
                "this session is being committed or rebased by another thread, or was committed: "
                "finish all writes first, or open a new session",
                kind=ErrorKind.READ_ONLY_SESSION,
            )

    def discard(self) -> None:
        """Discard all changes."""
        with self.lock:
            self.require_unsealed()
            self.changes = ChangeSet()
            self._unnumbered.clear()
            self._arrays.clear()
            if self._packer is not None:
                self._packer.discard()

    def replace_base(
        self,
        snapshot_id: SnapshotId,
        changes: ChangeSet,
        numbers: Mapping[NodeId, NodeId] | None = None,
    ) -> None:
        """Replace the base snapshot and the changes; ``numbers`` are those of `plan_numbers`."""
        with self.lock:
            if numbers:
                self._add_numbers(numbers)
            self.base_id = snapshot_id
            # Another object in any case: chunks in flight are to notice it.
            self.changes = replace(changes)
            self._unnumbered.clear()
            self._arrays.clear()
            self._last = None

    def number_new_nodes(self) -> None:
        """Give numbers to the created nodes, in generations that number nodes."""
        if not self.assets.generation.numbers_nodes:
            return
        with self.lock:
            before = self.changes
            self.changes, numbers = self.plan_numbers(self.base)
            if numbers:
                self._add_numbers(numbers)
                self._unnumbered.append(before)
                self._arrays.clear()
                self._last = None

    def plan_numbers(self, tip: Tree) -> tuple[ChangeSet, dict[NodeId, NodeId]]:
        """Return the changes for use on top of ``tip``, the base or a newer snapshot.

        In generations that number nodes, created nodes have numbers that are free there. The new
        ids by old ids are returned too; rewrites adopted manifests that contain old ids.
        """
        if not self.assets.generation.numbers_nodes:
            return self.changes, {}
        with self.lock:
            numbers = plan_numbers(self.base, self.changes, tip.snapshot.next_node_number)
            if not numbers:
                return self.changes, {}
            return renumber(self.changes, numbers, self.assets), numbers

    def finish(self, snapshot_id: SnapshotId) -> None:
        """End the transaction: read the committed snapshot, and refuse changes."""
        with self.lock:
            self._has_ended = True
            self.replace_base(snapshot_id, ChangeSet())

    # -- implementation

    def _add_numbers(self, numbers: Mapping[NodeId, NodeId]) -> None:
        """Record the numbers of nodes, for threads that still have a node with a provisional id.

        An earlier number is not recorded: it may be that of another node in the new base.
        """
        known = {**numbers, **{old: numbers.get(new, new) for old, new in self._numbers.items()}}
        self._numbers = {old: new for old, new in known.items() if old.is_provisional}

    def _is_in_base(self, path: Path) -> bool:
        """Whether the base has a node at a path or below it that is not edited."""
        edits = self.changes.edits
        if path not in edits and self.base.get(path) is not None:
            return True
        return any(node.path not in edits for node in self.base.iter_below(path))

    def _edit(self, path: Path, node: NodeSnapshot | None) -> None:
        self.require_unsealed()
        self.changes.edits.put(path, node)
        self._arrays.pop(path.value, None)
        if node is not None and self.changes.get_ndim(node.id) not in (None, _get_ndim(node)):
            self.changes.drop_chunks(node.id)

    def _open_array(self, path: Path) -> ArrayView | None:
        """Return an array prepared for chunk access, or None."""
        array = self._arrays.get(path.value)
        if array is not None:
            return array
        with self.lock:
            node = self.get_node(path)
            if node is None or not isinstance(node.node_data, ArrayNodeData):
                return None
            base = self.base.get(path)
            if base is None or base.id != node.id:  # created or moved
                base = self.base.by_id.get(node.id)
            array = self._arrays[path.value] = ArrayView(node, node.node_data, base, self.changes)
            return array

    def _require_open_array(self, path: Path) -> ArrayView:
        array = self._open_array(path)
        if array is None:
            self.require_array(path)
            raise AssertionError("require_array raises if there is no array")
        return array

    def _require_chunk(self, path: Path, indices: tuple[int, ...]) -> ArrayView:
        array = self._require_open_array(path)
        if not array.is_in_grid(indices):
            raise array.outside_error(indices)
        return array

    def _get_payload(self, array: ArrayView, indices: tuple[int, ...]) -> ChunkPayload | None:
        changes = array.changes.chunks.get(array.node.id)
        if changes is not None:
            with self.lock:
                changed = changes.get(indices)
            if not isinstance(changed, Unchanged):
                return changed
        manifest_id = array.index.find(indices)
        if manifest_id is None:
            return None
        last = self._last
        if last is not None and last[0] is manifest_id and last[1] is array.node.id:
            finder = last[2]
        else:
            finder = self._load_manifest(array, manifest_id).get_finder(array.node.id)
            self._last = manifest_id, array.node.id, finder
        return None if finder is None else finder.get(indices)

    def _load_manifest(self, array: ArrayView, manifest_id: ManifestId) -> LoadedManifest:
        try:
            return self.assets.load_manifest(manifest_id)
        except ObjectNotFoundError as error:
            raise self._explain_missing_manifest(array, error) from error

    def _explain_missing_manifest(
        self, array: ArrayView, error: ObjectNotFoundError
    ) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"{error.message}; it has chunks of {array.node.path} according to "
            f"{self.format_snapshot_key()}: it was lost, or the snapshot is damaged"
        )

    def _find_manifest_key(self, path: Path, indices: tuple[int, ...]) -> str | None:
        """Return the key of the manifest with the reference of a chunk; None if uncommitted."""
        array = self._require_open_array(path)
        changes = array.changes.chunks.get(array.node.id)
        if changes is not None and not isinstance(changes.get(indices), Unchanged):
            return None
        manifest_id = array.index.find(indices)
        return None if manifest_id is None else self.assets.format_manifest_key(manifest_id)

    def _set_payload(
        self, array: ArrayView, indices: tuple[int, ...], payload: ChunkPayload
    ) -> None:
        path = array.node.path
        with self.lock:
            self.require_unsealed()
            # The array may have changed while the bytes were written.
            if not any(array.changes is changes for changes in (self.changes, *self._unnumbered)):
                raise _make_replaced_error(f"chunk {list(indices)} of {path} was")
            if self._arrays.get(path.value) is not array:
                array = self._require_chunk(path, indices)
            self._get_chunk_changes(array.node).set(indices, payload)

    def _get_chunk_changes(self, node: NodeSnapshot) -> ChunkChanges:
        self.require_unsealed()
        # Another thread may have numbered the node while this one prepared the change.
        node_id = self._numbers.get(node.id, node.id)
        if self.assets.generation.numbers_nodes:
            current = self.get_node(node.path)
            if current is None or current.id != node_id:
                raise _make_replaced_error(f"chunks of {node.path} were")
        changes = self.changes.chunks.get(node_id)
        if changes is None:
            changes = self.changes.chunks[node_id] = ChunkChanges(_get_ndim(node))
        return changes

    @staticmethod
    def _require_bytes(path: Path, indices: tuple[int, ...], size: int) -> None:
        if not size:
            raise InvalidInputError(
                f"chunk {list(indices)} of {path} has no bytes and could not be decoded; delete "
                "the chunk instead",
                kind=ErrorKind.ZERO_LENGTH_CHUNK,
            )


def _make_replaced_error(what: str) -> SessionStateError:
    return SessionStateError(
        f"the session was rebased, rolled back or discarded while {what} written: write it again",
        kind=ErrorKind.NOT_ALLOWED,
    )


def _get_ndim(node: NodeSnapshot) -> int:
    return len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0


def _get_attributes(document: bytes) -> Any:
    return json.loads(document).get("attributes")
