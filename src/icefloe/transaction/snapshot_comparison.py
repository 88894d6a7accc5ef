"""Compares a snapshot with its parent, in generations without transaction logs.

The result equals the transaction log of the commit, except that a rewrite with equal content leaves
no trace. All chunks of a new array count as written. Chunks that a smaller grid excludes count as
deleted, as after a resize with Zarr, which deletes them; chunks of an array whose number of
dimensions changed do not, as in transaction logs. Manifests that both snapshots have are not read.

References are compared as columns; inline chunks are compared in place, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index_columns import ChunkIndexColumns, is_strictly_sorted, sort_rows
from icefloe.model.node import ArrayNodeData
from icefloe.transaction import overlay
from icefloe.transaction.change_set import NodeChanges, build_transaction_log
from icefloe.transaction.manifest_index import ManifestIndex
from icefloe.transaction.payload_comparison import find_different_rows
from icefloe.transaction.row_order import compute_row_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import Assets
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import ArrayManifest, Manifest
    from icefloe.model.node import ManifestRef
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.model.tree import Tree

# Arrays are compared together, with one round of requests, up to this many references.
_MAX_BATCH_REFS = 2_000_000


def compare_snapshots(before: Tree | None, after: Tree, assets: Assets) -> TransactionLog:
    """Return the changes from a snapshot to its child; ``before`` is None for the first snapshot.

    Fetches, concurrently, the manifests that only one of them has.
    """
    (log,) = compare_many([(before, after)], assets)
    return log


def compare_many(pairs: Sequence[tuple[Tree | None, Tree]], assets: Assets) -> list[TransactionLog]:
    """Compare several pairs of snapshots, with fewer rounds of requests than one by one."""
    arrays = [
        (number, array)
        for number, (before, after) in enumerate(pairs)
        for array in _plan_arrays(before, after)
    ]
    trees = {tree.snapshot.id: tree for pair in pairs for tree in pair if tree is not None}
    num_refs = {
        info.id: info.num_chunk_refs
        for tree in (trees.values() if arrays else ())
        for info in tree.snapshot.manifest_files
    }
    changed: list[dict[NodeId, NDArray[np.uint32]]] = [{} for _ in pairs]
    for batch in _split_into_batches(arrays, num_refs):
        ids = list(dict.fromkeys(chain.from_iterable(array.manifest_ids for _, array in batch)))
        fetched = assets.run_concurrently(assets.fetch_manifest, ids)
        manifests = dict(zip(ids, fetched, strict=True))
        for number, array in batch:
            coords = array.find_changed_chunks(manifests)
            if len(coords):
                changed[number][array.node_id] = coords
    return [
        _build_log(before, after, chunks)
        for (before, after), chunks in zip(pairs, changed, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Side:
    """The manifests and the grid of an array in one snapshot, and which manifests to read."""

    manifests: tuple[ManifestRef, ...]
    grid_shape: tuple[int, ...]
    manifest_ids: tuple[ManifestId, ...] = ()

    @classmethod
    def of(cls, data: ArrayNodeData) -> _Side:
        # All chunks in manifests of another rank are outside the grid. Extents without ranges
        # contain all chunks.
        refs = tuple(
            ref for ref in data.manifests if len(ref.extents.ranges) in {0, len(data.shape)}
        )
        return cls(refs, tuple([dimension.num_chunks for dimension in data.shape]))

    def without(self, ids: set[ManifestId]) -> _Side:
        """Return the same manifests, all to be read except some."""
        read = dict.fromkeys(ref.id for ref in self.manifests if ref.id not in ids)
        return replace(self, manifest_ids=tuple(read))

    def has_inside(self, ref: ManifestRef) -> bool:
        """Whether the extents of a manifest are inside the grid."""
        return bool(ref.extents.ranges or not self.grid_shape) and all(
            extent.stop <= count
            for extent, count in zip(ref.extents.ranges, self.grid_shape, strict=True)
        )

    def select_visible(
        self, node_id: NodeId, manifests: Mapping[ManifestId, Manifest]
    ) -> list[ArrayManifest]:
        """Return the references that a reader finds in the manifests, each chunk once."""
        parts = []
        ndim = len(self.grid_shape)
        index = ManifestIndex(self.manifests, ndim)
        for manifest_id in self.manifest_ids:
            refs = manifests[manifest_id].get_array(node_id)
            if refs is None or not len(refs) or refs.coords.shape[1] != ndim:
                continue
            is_visible = overlay.is_inside(refs.coords, self.grid_shape)
            is_visible &= index.mask_chunks_of(manifest_id, refs.coords)
            if not is_visible.all():
                refs = overlay.select(refs, np.flatnonzero(is_visible))
            if len(refs):
                parts.append(refs)
        return parts


@dataclass(frozen=True, slots=True)
class _ArrayComparison:
    """An array whose manifests or grid differ between two snapshots."""

    node_id: NodeId
    before: _Side
    after: _Side

    @property
    def manifest_ids(self) -> Iterator[ManifestId]:
        return chain(self.before.manifest_ids, self.after.manifest_ids)

    def find_changed_chunks(self, manifests: Mapping[ManifestId, Manifest]) -> NDArray[np.uint32]:
        """Return the chunks that were written or deleted, sorted."""
        old = self.before.select_visible(self.node_id, manifests)
        new = self.after.select_visible(self.node_id, manifests)
        return sort_rows(find_changed_coords(old, new, len(self.after.grid_shape)))


def _plan_arrays(before: Tree | None, after: Tree) -> Iterator[_ArrayComparison]:
    old_nodes = {} if before is None else before.by_id
    for node in after.snapshot.nodes:
        data = node.node_data
        if not isinstance(data, ArrayNodeData):
            continue
        old_node = old_nodes.get(node.id)
        old_data = None if old_node is None else old_node.node_data
        new = _Side.of(data)
        old = _Side((), new.grid_shape)
        # An array whose number of dimensions changed has lost its chunks.
        if isinstance(old_data, ArrayNodeData) and len(old_data.shape) == len(data.shape):
            if old_data.manifests == data.manifests and old_data.shape == data.shape:
                continue
            old = _Side.of(old_data)
        shared = _find_shared(old, new)
        array = _ArrayComparison(node.id, old.without(shared), new.without(shared))
        if array.before.manifest_ids or array.after.manifest_ids:
            yield array


def _find_shared(old: _Side, new: _Side) -> set[ManifestId]:
    """Find the manifests from which readers of both snapshots read the same references."""
    unshared = set(old.manifests) ^ set(new.manifests)
    unshared_ids = {ref.id for ref in unshared}
    common = dict.fromkeys(ref for ref in old.manifests if ref not in unshared)
    shared = [ref for ref in common if ref.id not in unshared_ids]
    if old.grid_shape != new.grid_shape:
        outside = {ref.id for ref in shared if not (old.has_inside(ref) and new.has_inside(ref))}
        shared = [ref for ref in shared if ref.id not in outside]
    if not shared:
        return set()
    # Of manifests that overlap (Icechunk 1 writes such), the first wins: an unshared manifest hides
    # references of a shared one, or hid them before. In another order, another one wins, also among
    # the common manifests that are read.
    others = list(unshared)
    if list(common) != list(dict.fromkeys(ref for ref in new.manifests if ref in common)):
        others += common
    ndim = len(new.grid_shape)
    starts, stops = _get_bounds(shared, ndim)
    rows = {ref: row for row, ref in enumerate(shared)}
    is_affected = np.zeros(len(shared), bool)
    for other, start, stop in zip(others, *_get_bounds(others, ndim), strict=True):
        overlaps = np.all((starts < stop) & (start < stops), axis=1)
        if other in rows:
            overlaps[rows[other]] = False
        is_affected |= overlaps
    affected_ids = {ref.id for ref, hit in zip(shared, is_affected.tolist(), strict=True) if hit}
    return {ref.id for ref in shared} - affected_ids


def _get_bounds(
    refs: Sequence[ManifestRef], ndim: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the corners of extents; extents without ranges contain all chunks."""
    boxes = [ref.extents.ranges or ((0, 2**32),) * ndim for ref in refs]
    bounds = np.array(boxes, np.int64).reshape(len(refs), ndim, 2)
    return bounds[:, :, 0], bounds[:, :, 1]


def _split_into_batches(
    arrays: Iterable[tuple[int, _ArrayComparison]], num_refs: Mapping[ManifestId, int]
) -> Iterator[list[tuple[int, _ArrayComparison]]]:
    """Yield arrays whose manifests are in memory at the same time."""
    batch: list[tuple[int, _ArrayComparison]] = []
    ids: set[ManifestId] = set()
    size = 0
    for number, array in arrays:
        new_ids = set(array.manifest_ids) - ids
        new_size = sum(num_refs.get(manifest_id, 0) for manifest_id in new_ids)
        if batch and size + new_size > _MAX_BATCH_REFS:
            yield batch
            batch, ids, size = [], set(), 0
            new_ids = set(array.manifest_ids)
            new_size = sum(num_refs.get(manifest_id, 0) for manifest_id in new_ids)
        batch.append((number, array))
        ids |= new_ids
        size += new_size
    if batch:
        yield batch


def find_changed_coords(
    old: Sequence[ArrayManifest], new: Sequence[ArrayManifest], ndim: int
) -> NDArray[np.uint32]:
    """Return the coordinates of chunks that only one side has or whose references differ.

    They are in any order.
    """
    old_coords, new_coords = _concatenate_coords(old, ndim), _concatenate_coords(new, ndim)
    if not len(old_coords) or not len(new_coords):
        return new_coords if len(new_coords) else old_coords
    old_keys, new_keys = compute_row_keys([old_coords, new_coords])
    order = None if len(old) == 1 and is_strictly_sorted(old_coords) else np.argsort(old_keys)
    ordered = old_keys if order is None else old_keys[order]
    positions = np.minimum(np.searchsorted(ordered, new_keys), len(ordered) - 1)
    is_new = ordered[positions] != new_keys
    new_rows = np.flatnonzero(~is_new)
    old_rows = positions[new_rows] if order is None else order[positions[new_rows]]
    is_gone = np.ones(len(old_coords), bool)
    is_gone[old_rows] = False
    is_new[new_rows] = find_different_rows(
        [part.payloads for part in old], old_rows, [part.payloads for part in new], new_rows
    )
    return np.concatenate([new_coords[is_new], old_coords[is_gone]])


def _concatenate_coords(parts: Sequence[ArrayManifest], ndim: int) -> NDArray[np.uint32]:
    if len(parts) == 1:
        return parts[0].coords
    return np.concatenate([np.zeros((0, ndim), np.uint32), *(part.coords for part in parts)])


def _build_log(
    before: Tree | None, after: Tree, chunks: Mapping[NodeId, NDArray[np.uint32]]
) -> TransactionLog:
    nodes = NodeChanges({} if before is None else before.by_id, after.by_id)
    log = build_transaction_log(after.snapshot.id, nodes, ())
    ordered = sorted(chunks.items(), key=lambda item: item[0])
    return replace(log, updated_chunks=ChunkIndexColumns.of_sorted(ordered))
