"""A transaction at work: one snapshot, seen through the changes made to it so far.

Reads see a single snapshot and the transaction's own writes, whatever others commit meanwhile.
Chunks are written to the storage at once, under fresh names; everything else stays in memory until
a flush. Calls are thread safe.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.byte_range import Bounded, From, Last, Until
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.ids import ChunkId, NodeId
from icefloe.model.node import ArrayNodeData, NodeKind, NodeSnapshot
from icefloe.model.path import Path
from icefloe.model.zarr_keys import METADATA_NAME
from icefloe.transaction import overlay
from icefloe.transaction.change_set import ChangeSet, compare_nodes
from icefloe.transaction.chunk_changes import ChunkChanges, Unchanged
from icefloe.transaction.manifest_index import ManifestIndex
from icefloe.transaction.packing import Packer
from icefloe.transaction.zarr_metadata import parse_node_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.model.byte_range import ByteRange
    from icefloe.model.chunk_payload import ChunkPayload
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import ManifestId, SnapshotId
    from icefloe.model.manifest import ArrayManifest, ChunkPayloads
    from icefloe.model.node import ManifestExtents
    from icefloe.model.ref_finder import RefFinder
    from icefloe.model.tree import Tree
    from icefloe.transaction.adopted import AdoptedManifest
    from icefloe.transaction.change_set import NodeChanges

_MAX_SHOWN: Final = 5


class VirtualChunkReader(Protocol):
    """Fetches chunks that are outside the repository."""

    def fetch(self, ref: VirtualChunkRef, start: int, length: int) -> bytes | memoryview:
        """Fetch ``length`` bytes of a virtual chunk from ``start``, counted inside the chunk."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkSlice:
    """Some bytes of one chunk that is not in memory: what a storage has to fetch."""

    payload: ChunkRef | VirtualChunkRef
    start: int
    length: int


class _OpenArray:
    """An array as the transaction sees it now, made ready for many chunks."""

    __slots__ = ("changes", "index", "manifests", "node", "num_chunks")

    def __init__(
        self,
        node: NodeSnapshot,
        data: ArrayNodeData,
        base: ArrayNodeData | None,
        changes: ChangeSet,
    ) -> None:
        self.node = node
        # Those that belong to these manifests: a commit replaces both while others read.
        self.changes = changes
        self.num_chunks = tuple(dimension.num_chunks for dimension in data.shape)
        # With another number of dimensions than before, an array has none of its chunks any more.
        fits = base is not None and len(base.shape) == len(data.shape)
        self.manifests = base.manifests if base and fits else ()
        self.manifests += tuple(one.ref for one in changes.adopted.get(node.id, ()))
        self.index = ManifestIndex(self.manifests, len(data.shape))

    def has(self, indices: tuple[int, ...]) -> bool:
        if len(indices) != len(self.num_chunks):
            return False
        for index, count in zip(indices, self.num_chunks, strict=True):
            if not 0 <= index < count:
                return False
        return True


class Transaction:
    """Reads and changes the nodes and chunks of one snapshot.

    Parameters
    ----------
    assets
        The files of the repository.
    snapshot_id
        The snapshot to start from; it is fetched when it is first needed.
    config
        What decides about inlining and packing.
    virtual
        Who reads virtual chunks.
    changes
        Changes to go on with.
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
        self._is_sealed = self._is_over = False
        self._arrays: dict[str, _OpenArray] = {}
        # The manifest that the last chunk was found in: mostly the next one is there as well, and
        # a manifest that is larger than the cache is not fetched again for each chunk.
        self._last: tuple[ManifestId, NodeId, RefFinder | None] | None = None

    @property
    def base(self) -> Tree:
        """The snapshot that the changes were made on."""
        # Held here as well: one that is larger than the cache is not fetched for every look.
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
            if not changes.edits:
                return False
            nodes = self.find_node_changes()
        return bool(nodes.new or nodes.deleted or nodes.updated or nodes.moved)

    def find_node_changes(self) -> NodeChanges:
        """Tell which nodes differ from the base."""
        with self.lock:
            return compare_nodes(self.base, self.changes)

    # -- nodes

    def get_node(self, path: Path) -> NodeSnapshot | None:
        """Return the node at a path, as it is now."""
        edits = self.changes.edits
        return edits[path] if path in edits else self.base.get(path)

    def require_node(self, path: Path) -> NodeSnapshot:
        """Return the node at a path, or raise."""
        node = self.get_node(path)
        if node is None:
            raise NodeNotFoundError(
                f"there is no group or array at {path} in snapshot {self.base_id}"
                f"{' or among the changes of this session' if self.changes.edits else ''}; "
                f"{self._near(path)}",
                kind=ErrorKind.NODE_NOT_FOUND,
            )
        return node

    def _near(self, path: Path) -> str:
        """Say what is there, in the nearest group above that is."""
        above = next((one for one in path.ancestors() if self.get_node(one) is not None), None)
        names = sorted(self.list_children(above)) if above is not None else []
        more = ", …" if len(names) > _MAX_SHOWN else ""
        return f"{above or 'it'} has {', '.join(names[:_MAX_SHOWN]) or 'nothing in it'}{more}"

    def require_array(self, path: Path) -> NodeSnapshot:
        """Return the array at a path, or raise."""
        node = self.require_node(path)
        if node.kind is not NodeKind.ARRAY:
            raise InvalidInputError(f"{path} is a group, not an array", kind=ErrorKind.NOT_AN_ARRAY)
        return node

    def iter_nodes_below(self, path: Path) -> Iterator[NodeSnapshot]:
        """Yield the nodes below a path, as they are now, in no particular order."""
        edits = dict(self.changes.edits)
        for node in self.base.iter_below(path):
            if node.path not in edits:
                yield node
        yield from (node for at, node in edits.items() if node is not None and at.is_below(path))

    def list_children(self, path: Path) -> set[str]:
        """Return the names right below a path, also of groups that only have children."""
        edits = self.changes.edits
        if not edits:
            return set(self.base.iter_children(path))
        depth = len(path.segments)
        return {node.path.segments[depth] for node in self.iter_nodes_below(path)}

    def set_metadata(self, path: Path, data: bytes) -> None:
        """Create or update the node at a path from its ``zarr.json``; equal bytes change nothing.

        Raises
        ------
        InvalidInputError
            If the metadata cannot be stored, or the path lies inside an array.
        AlreadyExistsError
            If an array is where a group should go, or the other way around.
        """
        key = f"{path.value[1:]}/zarr.json".lstrip("/")
        parsed = parse_node_metadata(data, key=key, spec_version=self.assets.spec_version)
        with self.lock:
            present = self.get_node(path)
            if present is None:
                self._require_place(path, is_array=isinstance(parsed, ArrayNodeData))
                self._edit(path, NodeSnapshot(NodeId.random(), path, data, parsed))
            elif type(present.node_data) is not type(parsed):
                raise AlreadyExistsError(
                    f"{path} is {_article(present.kind)} already: delete it first",
                    kind=ErrorKind.NODE_ALREADY_EXISTS,
                )
            elif present.user_data != data:
                self._edit(path, replace(present, user_data=data, node_data=parsed))

    def delete_node(self, path: Path) -> None:
        """Delete a node and everything below it; what is not there is no error."""
        with self.lock:
            doomed = list(self.iter_nodes_below(path))
            node = self.get_node(path)
            if node is not None:
                doomed.append(node)
            for one in doomed:
                self.drop_node(one.path)

    def find_node(self, node_id: NodeId) -> NodeSnapshot | None:
        """Return the node with an id, wherever it is now."""
        for node in self.changes.edits.values():
            if node is not None and node.id == node_id:
                return node
        before = self.base.by_id.get(node_id)
        return None if before is None or before.path in self.changes.edits else before

    def put_node(self, node: NodeSnapshot) -> None:
        """Let this node be at its path, in place of whatever is there."""
        with self.lock:
            self.require_unsealed()
            present = self.get_node(node.path)
            if present is not None and present.id != node.id:
                self.changes.forget_chunks(present.id)
            self._edit(node.path, node)

    def drop_node(self, path: Path) -> None:
        """Let no node be at a path, whatever is below it."""
        with self.lock:
            self.require_unsealed()
            present = self.get_node(path)
            if present is not None:
                self.changes.forget_chunks(present.id)
                self._edit(path, None)

    def move_node(self, source: Path, target: Path) -> None:
        """Move a node, with everything below it, to a path where nothing is.

        Raises
        ------
        SessionStateError, AlreadyExistsError, NodeNotFoundError
            If that cannot be; nothing changed then.
        """
        with self.lock:
            node = self.require_node(source)
            if target == source or target.is_below(source):
                raise SessionStateError(
                    f"{source} cannot move to {target}, which is itself or below it",
                    kind=ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
                )
            if self.get_node(target) is not None or self.list_children(target):
                raise AlreadyExistsError(
                    f"{source} cannot move to {target}: something is there; delete it first",
                    kind=ErrorKind.MOVE_WONT_OVERWRITE,
                )
            _require_name(target)
            above = target.parent
            parent = None if above is None else self.get_node(above)
            if parent is None:
                raise SessionStateError(
                    f"{source} cannot move to {target}: there is no group {above}; create it first",
                    kind=ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
                )
            if parent.kind is not NodeKind.GROUP:
                raise SessionStateError(
                    f"{source} cannot move to {target}: {above} is an array",
                    kind=ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
                )
            moving = [node, *self.iter_nodes_below(source)]
            for one in moving:
                self._edit(one.path, None)
            for one in moving:
                there = Path(target.value + one.path.value[len(source.value) :])
                self._edit(there, replace(one, path=there))

    # -- chunks

    def set_chunk(self, path: Path, indices: tuple[int, ...], data: bytes | memoryview) -> None:
        """Write a chunk: into the storage at once, or into memory if it is to be inlined."""
        array = self._require_place_of(path, indices)
        size = len(data)
        self._require_bytes(path, indices, size)
        payload: ChunkPayload
        if size <= self._inline_bytes:
            payload = InlineChunk(bytes(data))
        elif self._packer is not None and size <= self._packer.max_chunk_bytes:
            payload = self._packer.add(data)
        else:
            payload = ChunkRef(ChunkId.random(), 0, size)
            self.assets.write_chunk(payload.id, data)
        self._set_payload(array, indices, payload)

    async def set_chunk_async(
        self, path: Path, indices: tuple[int, ...], data: bytes | memoryview
    ) -> None:
        """Do as `set_chunk`, without keeping the event loop from others."""
        size = len(data)
        if size <= self._inline_bytes:
            self.set_chunk(path, indices, data)
            return
        if self._packer is not None and size <= self._packer.max_chunk_bytes:
            # The chunk that fills a pack writes it.
            await asyncio.to_thread(self.set_chunk, path, indices, data)
            return
        array = self._require_place_of(path, indices)
        payload = ChunkRef(ChunkId.random(), 0, size)
        await self.assets.write_chunk_async(payload.id, data)
        self._set_payload(array, indices, payload)

    def set_payload(self, path: Path, indices: tuple[int, ...], payload: ChunkPayload) -> None:
        """Record a reference to a chunk whose bytes are somewhere already."""
        array = self._require_place_of(path, indices)
        self._require_bytes(path, indices, _length(payload))
        self._set_payload(array, indices, payload)

    def set_payloads(self, path: Path, coords: NDArray[np.uint32], payloads: ChunkPayloads) -> None:
        """Record references to many chunks at once; the last one of a chunk counts."""
        array = self._require_open(path)
        outside = np.flatnonzero(~overlay.is_inside(coords, array.num_chunks))
        if len(outside):
            raise self._outside(array, tuple(coords[outside[0]].tolist()))
        empty = np.flatnonzero(payloads.length == 0)
        if len(empty):
            self._require_bytes(path, tuple(coords[empty[0]].tolist()), 0)
        self.change_chunks(array.node, overlay.deduplicate(coords, payloads))

    def change_chunks(self, node: NodeSnapshot, columns: ArrayManifest) -> None:
        """Add changes of an array's chunks, deletions among them."""
        with self.lock:
            self._chunk_changes(node).add(columns)

    def adopt_manifests(self, path: Path, manifests: tuple[AdoptedManifest, ...]) -> None:
        """Take over manifests of an array that others wrote, where it has no chunks yet.

        Raises
        ------
        InvalidInputError
            If one reaches outside the array, or over chunks that are there.
        """
        with self.lock:
            self.require_unsealed()
            array = self._require_open(path)
            present = [ref.extents for ref in array.manifests]
            for one in manifests:
                _require_room(array, one.ref.extents, present)
                present.append(one.ref.extents)
            adopted = self.changes.adopted
            adopted[array.node.id] = (*adopted.get(array.node.id, ()), *manifests)
            self._arrays.clear()

    def delete_chunk(self, path: Path, indices: tuple[int, ...]) -> None:
        """Delete a chunk; what is not there is no error."""
        with self.lock:
            array = self._open(path)
            if array is None or not array.has(indices):
                return
            if self._get_payload(array, indices) is not None:
                self._chunk_changes(array.node).set(indices, None)

    def delete_chunks(self, path: Path, coords: NDArray[np.uint32]) -> None:
        """Delete chunks that are there."""
        self.change_chunks(self.require_array(path), overlay.mark_deleted(coords))

    def get_payload(self, path: Path, indices: tuple[int, ...]) -> ChunkPayload | None:
        """Return where the bytes of a chunk are, None if it was never written."""
        array = self._open(path)
        if array is None or not array.has(indices):
            return None
        return self._get_payload(array, indices)

    def get_chunk_size(self, path: Path, indices: tuple[int, ...]) -> int | None:
        """Return how many bytes a chunk has, None if it was never written."""
        payload = self.get_payload(path, indices)
        return None if payload is None else _length(payload)

    def get_grid(self, path: Path) -> tuple[int, ...]:
        """Return how many chunks an array has along each dimension."""
        return self._require_open(path).num_chunks

    def require_regular_grid(self, path: Path) -> tuple[int, ...]:
        """Return the grid of an array whose chunks all have one shape, or raise.

        Chunks of other grids fit only where they are.
        """
        node = self.require_array(path)
        grid = json.loads(node.user_data).get("chunk_grid", {}).get("name")
        if grid != "regular":
            raise InvalidInputError(
                f"the chunks of {path} cannot change places: its grid is {grid!r}, not regular",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
        return self.get_grid(path)

    def is_array_loaded(self, path: Path) -> bool:
        """Whether an array is at hand without a request."""
        return path.value in self._arrays

    def is_location_cached(self, path: Path, indices: tuple[int, ...]) -> bool:
        """Whether it can be told without a request where a chunk is."""
        array = self._arrays.get(path.value)
        if array is None:
            return False
        manifest_id = array.index.find(indices) if array.has(indices) else None
        last = self._last
        return (
            manifest_id is None
            or (last is not None and last[0] == manifest_id)
            or self.assets.has_manifest(manifest_id)
        )

    def locate(
        self, path: Path, indices: tuple[int, ...], byte_range: ByteRange | None = None
    ) -> bytes | memoryview | ChunkSlice | None:
        """Return a chunk's bytes where they are in memory, else what has to be fetched.

        A range that ends past the chunk ends with it; one that starts there is empty.
        """
        payload = self.get_payload(path, indices)
        if payload is None:
            return None
        size = _length(payload)
        start, stop = _bounds(byte_range, size)
        match payload:
            case InlineChunk(data):
                return data if byte_range is None else data[start:stop]
            case ChunkRef() if self._packer is not None:
                waiting = self._packer.get(payload)
                if waiting is not None:
                    return waiting[start:stop]
        return ChunkSlice(payload, start, stop - start) if start < stop else b""

    def read(
        self, path: Path, indices: tuple[int, ...], byte_range: ByteRange | None = None
    ) -> bytes | memoryview | None:
        """Return a chunk's bytes, wherever they are; None if it was never written."""
        if byte_range is None and self._packer is None:
            payload = self.get_payload(path, indices)
            if isinstance(payload, ChunkRef):  # most chunks, the short way
                return self.assets.chunks.fetch(payload)
        found = self.locate(path, indices, byte_range)
        return self.fetch(found) if isinstance(found, ChunkSlice) else found

    def fetch(self, part: ChunkSlice) -> bytes | memoryview:
        """Fetch bytes of a chunk."""
        if isinstance(part.payload, VirtualChunkRef):
            return self._virtual.fetch(part.payload, part.start, part.length)
        return self.assets.chunks.fetch(part.payload, part.start, part.length)

    def fetch_chunk_refs(
        self, path: Path, *, within: ManifestExtents | None = None
    ) -> Iterator[ArrayManifest]:
        """Yield the references of all chunks of an array, part by part, each chunk once.

        Only the manifests that have chunks ``within`` a box are fetched; others in them come along.
        """
        node = self.require_array(path)
        array = self._require_open(path)
        with self.lock:
            changes = array.changes.chunks.get(node.id)
            columns = changes.columns() if changes else None
        wanted = (
            ref.id for ref in array.manifests if within is None or ref.extents.overlaps(within)
        )
        for manifest_id in dict.fromkeys(wanted):
            refs = self.assets.fetch_manifest(manifest_id).array(node.id)
            if refs is None:
                continue
            kept = overlay.is_inside(refs.coords, array.num_chunks)
            kept &= array.index.is_found_in(manifest_id, refs.coords)
            if columns is not None and len(columns):
                kept &= ~overlay.is_among(refs.coords, columns.coords)
            yield refs if kept.all() else overlay.select(refs, np.flatnonzero(kept))
        if columns is not None:
            kept = overlay.is_inside(columns.coords, array.num_chunks)
            kept &= columns.payloads.kind != overlay.DELETED
            yield overlay.select(columns, np.flatnonzero(kept))

    # -- the whole

    def finish_chunks(self) -> None:
        """Write chunks that still wait in memory, so that references to them may be written."""
        if self._packer is not None:
            self._packer.finish()

    def copy_changes(self) -> ChangeSet:
        """Return the changes so far; none of the chunks that they refer to waits in memory."""
        with self.lock:
            self.finish_chunks()
            return self.changes.copy()

    @contextmanager
    def seal(self) -> Iterator[None]:
        """Refuse changes meanwhile, and afterwards too if the transaction is over then.

        A change that another thread makes while a commit or a rebase is under way would be in
        neither it nor anything that comes after it.
        """
        with self.lock:
            self.require_unsealed()
            self._is_sealed = True
        try:
            yield
        finally:
            self._is_sealed = self._is_over

    @contextmanager
    def rollback_on_error(self) -> Iterator[None]:
        """Take back all changes made meanwhile if anything raises; other threads wait."""
        with self.lock:
            changes = self.changes
            before = changes.copy()
            try:
                yield
            except BaseException:
                # In place: a chunk that is on its way belongs to this change set.
                changes.edits, changes.chunks = before.edits, before.chunks
                changes.adopted, changes.fork_points = before.adopted, before.fork_points
                self._arrays.clear()
                raise

    def require_unsealed(self) -> None:
        """Refuse a change that comes too late."""
        if self._is_sealed:
            raise ReadOnlyError(
                "another thread commits or rebases this session, or has committed it: what is "
                "changed now would be lost; finish all writes before, or take a new session",
                kind=ErrorKind.READ_ONLY_SESSION,
            )

    def discard(self) -> None:
        """Forget all changes."""
        with self.lock:
            self.require_unsealed()
            self.changes = ChangeSet()
            self._arrays.clear()
            if self._packer is not None:
                self._packer.discard()

    def replace_base(self, snapshot_id: SnapshotId, changes: ChangeSet) -> None:
        """Go on from another snapshot, with these changes on top of it."""
        with self.lock:
            self.base_id = snapshot_id
            self.changes = changes
            self._arrays.clear()
            self._last = None

    def finish(self, snapshot_id: SnapshotId) -> None:
        """Show the snapshot that the changes became, and change no more."""
        with self.lock:
            self._is_over = True
            self.replace_base(snapshot_id, ChangeSet())

    # -- inside

    def _edit(self, path: Path, node: NodeSnapshot | None) -> None:
        self.require_unsealed()
        self.changes.edits[path] = node
        self._arrays.clear()
        changed = None if node is None else self.changes.chunks.get(node.id)
        if node is not None and changed is not None and changed.ndim != _ndim(node):
            self.changes.forget_chunks(node.id)

    def _open(self, path: Path) -> _OpenArray | None:
        """Return an array made ready, None if no array is there."""
        array = self._arrays.get(path.value)
        if array is not None:
            return array
        with self.lock:
            node = self.get_node(path)
            if node is None or not isinstance(node.node_data, ArrayNodeData):
                return None
            before = self.base.by_id.get(node.id)
            base = before.node_data if before is not None else None
            array = _OpenArray(
                node,
                node.node_data,
                base if isinstance(base, ArrayNodeData) else None,
                self.changes,
            )
            self._arrays[path.value] = array
            return array

    def _require_open(self, path: Path) -> _OpenArray:
        array = self._open(path)
        if array is None:
            self.require_array(path)
            raise AssertionError("an array that is required is there")
        return array

    def _require_place_of(self, path: Path, indices: tuple[int, ...]) -> _OpenArray:
        array = self._require_open(path)
        if not array.has(indices):
            raise self._outside(array, indices)
        return array

    def _get_payload(self, array: _OpenArray, indices: tuple[int, ...]) -> ChunkPayload | None:
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
            finder = self.assets.load_manifest(manifest_id).finder(array.node.id)
            self._last = manifest_id, array.node.id, finder
        return None if finder is None else finder.get(indices)

    def _set_payload(
        self, array: _OpenArray, indices: tuple[int, ...], payload: ChunkPayload
    ) -> None:
        path = array.node.path
        with self.lock:
            self.require_unsealed()
            # Much can happen while the bytes of a chunk are on their way.
            if array.changes is not self.changes:
                raise SessionStateError(
                    f"chunk {list(indices)} of {path} was being written while the session was "
                    "rebased, or its changes discarded: write it again",
                    kind=ErrorKind.NOT_ALLOWED,
                )
            if self._arrays.get(path.value) is not array:
                array = self._require_place_of(path, indices)
            self._chunk_changes(array.node).set(indices, payload)

    def _chunk_changes(self, node: NodeSnapshot) -> ChunkChanges:
        self.require_unsealed()
        changes = self.changes.chunks.get(node.id)
        if changes is None:
            changes = self.changes.chunks[node.id] = ChunkChanges(_ndim(node))
        return changes

    def _require_place(self, path: Path, *, is_array: bool) -> None:
        """Refuse a new node inside an array, a new array around nodes, and names of keys."""
        _require_name(path)
        for above in path.ancestors():
            node = self.get_node(above)
            if node is not None and node.kind is NodeKind.ARRAY:
                raise InvalidInputError(
                    f"{path} would lie inside the array {above}", kind=ErrorKind.NOT_A_GROUP
                )
        if is_array and self.list_children(path):
            raise InvalidInputError(
                f"{path} cannot be an array: there are nodes below it", kind=ErrorKind.NOT_A_GROUP
            )

    @staticmethod
    def _outside(array: _OpenArray, indices: tuple[int, ...]) -> InvalidInputError:
        return InvalidInputError(
            f"chunk {list(indices)} lies outside the grid of {array.node.path}, which has "
            f"{' x '.join(map(str, array.num_chunks)) or 'one'} chunks",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )

    @staticmethod
    def _require_bytes(path: Path, indices: tuple[int, ...], size: int) -> None:
        if not size:
            raise InvalidInputError(
                f"chunk {list(indices)} of {path} has no bytes: nothing could be decoded from it; "
                "delete the chunk instead",
                kind=ErrorKind.ZERO_LENGTH_CHUNK,
            )


def _require_name(path: Path) -> None:
    """Refuse a node whose path is the key of its group's metadata: listings could not tell."""
    if METADATA_NAME in path.segments:
        raise InvalidInputError(
            f"{path} cannot be the path of a node: {METADATA_NAME} is the metadata of the group "
            "above it; choose another name",
            kind=ErrorKind.INVALID_PATH,
        )


def _require_room(
    array: _OpenArray, extents: ManifestExtents, present: list[ManifestExtents]
) -> None:
    fits = len(extents.ranges) == len(array.num_chunks) and all(
        box.stop <= count for box, count in zip(extents.ranges, array.num_chunks, strict=True)
    )
    if not fits or any(extents.overlaps(one) for one in present):
        raise InvalidInputError(
            f"a manifest for chunks {extents} of {array.node.path} cannot be adopted: "
            f"{'other manifests have chunks there' if fits else 'the array ends before'}",
            kind=ErrorKind.INVALID_CHUNK_INDEX,
        )


def _ndim(node: NodeSnapshot) -> int:
    return len(node.node_data.shape) if isinstance(node.node_data, ArrayNodeData) else 0


def _length(payload: ChunkPayload) -> int:
    return len(payload.data) if isinstance(payload, InlineChunk) else payload.length


def _bounds(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Resolve a range within a chunk as a slice would: what lies past the end is left out."""
    match byte_range:
        case None:
            return 0, size
        case Bounded(start, end):
            stop = min(end, size)
        case From(start):
            stop = size
        case Last(length):
            return max(0, size - length), size
        case Until(skipped):
            return 0, max(0, size - skipped)
    start = min(start, size)
    return start, max(start, stop)


def _article(kind: NodeKind) -> str:
    return "an array" if kind is NodeKind.ARRAY else "a group"
