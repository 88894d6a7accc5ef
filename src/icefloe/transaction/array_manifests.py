"""New manifests for arrays whose chunks changed.

The splitting rules divide the grid of an array into cells. A cell with changes gets a new manifest
from its previous references and the changes; manifests that overlap no such cell are kept. Pure
except for fetching the manifests that are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from icefloe.format.ids import to_id_rows
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ChunkIndexRange, ManifestExtents, ManifestRef
from icefloe.transaction import overlay, splitting
from icefloe.transaction.row_order import compute_row_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import EncodedFile
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.transaction.change_columns import ChangeColumns

    Fetch = Callable[[Iterable[ManifestId]], list[Manifest]]

# Target size of a manifest file that small arrays share; readers of one array fetch all of it.
_SHARED_BYTES = 256 * 1024
_BYTES_PER_REF = 64


@dataclass(frozen=True, slots=True)
class ChangedArray:
    """An array that needs new manifests, with its grid after the changes.

    ``sizes`` are the numbers of chunks that a manifest spans along each dimension. With ``rewrite``
    all existing manifests are replaced.
    """

    node_id: NodeId
    num_chunks: tuple[int, ...]
    sizes: tuple[int, ...]
    manifests: tuple[ManifestRef, ...]
    rewrite: bool

    @property
    def has_one_cell(self) -> bool:
        """Whether all references belong to one manifest."""
        return all(size >= count for size, count in zip(self.sizes, self.num_chunks, strict=True))


@dataclass(slots=True)
class NewManifests:
    """The manifests of arrays: all refs, and the new manifests among them.

    ``edited`` has new manifests that exist only as encoded files.
    """

    refs: dict[NodeId, tuple[ManifestRef, ...]]
    manifests: list[Manifest]
    edited: list[tuple[ManifestFileInfo, EncodedFile]] = field(default_factory=list)


MergeManifests: TypeAlias = (
    "Callable[[Iterable[NodeSnapshot], Mapping[NodeId, tuple[ManifestRef, ...]], "
    "Mapping[ManifestId, int], Fetch], NewManifests]"
)
"""Merges the manifests of all arrays, given the number of references in each."""


def find_editable_manifest(array: ChangedArray, changes: ArrayManifest) -> ManifestRef | None:
    """Return the only manifest whose extents contain all changed chunks, or None.

    If it has references to all of these chunks, its file can be edited.
    """
    if array.rewrite or not len(changes) or (changes.payloads.kind == overlay.DELETED).any():
        return None
    grid, refs = array.num_chunks, array.manifests
    if {changes.coords.shape[1], *(len(ref.extents.ranges) for ref in refs)} != {len(grid)}:
        return None
    corners = [
        tuple(edge.tolist()) for edge in (changes.coords.min(axis=0), changes.coords.max(axis=0))
    ]
    candidates = [ref for ref in refs if all(map(ref.extents.contains, corners))]
    if len(candidates) != 1 or not _is_inside(candidates[0].extents, grid):
        return None
    (candidate,) = candidates
    # With the current splitting rules it must be the only manifest of exactly one cell.
    low, high = splitting.find_cell_boxes([candidate.extents], array.sizes, grid)
    is_stale = _find_stale(array, refs, splitting.find_cells(changes.coords, array.sizes))
    is_alone = is_stale.sum() == 1 and (high - low == 1).all()
    # Two refs may have the same file and different extents.
    num_refs = sum(ref.id == candidate.id for ref in refs)
    return candidate if is_alone and num_refs == 1 else None


def replace_manifests(array: ChangedArray, changes: ArrayManifest, fetch: Fetch) -> NewManifests:
    """Build the manifests of one array of any size."""
    num_chunks = array.num_chunks
    rows = np.flatnonzero(overlay.is_inside(changes.coords, num_chunks))
    if len(rows) < len(changes):
        changes = overlay.select(changes, rows)
    changed_cells = splitting.find_cells(changes.coords, array.sizes)
    # If the number of dimensions changed, all previous chunks are outside the grid.
    old = [ref for ref in array.manifests if len(ref.extents.ranges) in {0, len(num_chunks)}]
    is_stale = _find_stale(array, old, changed_cells)
    kept = tuple(ref for ref, stale in zip(old, is_stale, strict=True) if not stale)
    parts = []
    # Two refs may have the same file and different extents.
    replaced = dict.fromkeys(ref.id for ref, stale in zip(old, is_stale, strict=True) if stale)
    for manifest in fetch(replaced):
        refs = manifest.get_array(array.node_id)
        if refs is not None:
            fits = overlay.is_inside(refs.coords, num_chunks)
            parts.append(refs if fits.all() else overlay.select(refs, np.flatnonzero(fits)))
    # Icechunk 1 leaves overlapping references behind: the first manifest wins.
    before = overlay.stack(parts[::-1]) if parts else overlay.select(changes, slice(0, 0))
    manifests = [
        Manifest.of_array(ManifestId.random(), array.node_id, part)
        for part in _split_by_cell(overlay.apply(before, changes), array)
    ]
    new = [
        ManifestRef(manifest.id, compute_extents(manifest.indices.get_coords(0)))
        for manifest in manifests
    ]
    return NewManifests({array.node_id: (*kept, *new)}, manifests)


def replace_small_manifests(
    arrays: Sequence[ChangedArray], changes: ChangeColumns, fetch: Fetch
) -> NewManifests:
    """Build the manifests of many arrays of one cell each, several arrays per file.

    ``arrays`` are those of ``changes``, in the same order, with at most one manifest each.
    """
    ndim = len(arrays[0].num_chunks)
    grids = np.array([array.num_chunks for array in arrays], np.uint64).reshape(len(arrays), ndim)
    changed = _drop_outside(changes.refs, grids)
    before = _fetch_refs(arrays, grids, fetch)
    refs = overlay.apply(before or overlay.select(changed, slice(0, 0)), changed)
    owners = refs.coords[:, 0].astype(np.int64)
    present, starts = np.unique(owners, return_index=True)
    splits = np.append(starts, len(owners))
    result: dict[NodeId, tuple[ManifestRef, ...]] = {array.node_id: () for array in arrays}
    manifests = []
    for first, last in _plan_files(refs, splits):
        rows = slice(int(splits[first]), int(splits[last]))
        ids = [arrays[number].node_id for number in present[first:last].tolist()]
        coords = refs.coords[rows, 1:]
        bounds = splits[first : last + 1] - splits[first]
        indices = ChunkIndexColumns(
            to_id_rows(ids, NodeId),
            bounds,
            np.full(len(ids), coords.shape[1], np.int64),
            np.ascontiguousarray(coords).reshape(-1),
        )
        payloads = overlay.compact(refs.payloads.select_rows(rows))
        manifest = Manifest(ManifestId.random(), indices, payloads)
        manifests.append(manifest)
        for node_id, extents in zip(ids, _compute_extents(coords, bounds), strict=True):
            result[node_id] = (ManifestRef(manifest.id, extents),)
    return NewManifests(result, manifests)


def compute_extents(coords: NDArray[np.uint32]) -> ManifestExtents:
    """Return the bounding box of chunks; it has no ranges for the chunk of a scalar array."""
    (extents,) = _compute_extents(coords, np.array([0, len(coords)]))
    return extents


def _find_stale(
    array: ChangedArray, old: Sequence[ManifestRef], changed_cells: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Return a mask of the manifests to replace.

    A manifest is stale if it is in a changed cell, or shares a cell with a stale manifest: extents
    must not overlap, because readers use the first manifest that contains a chunk.
    """
    grid = array.num_chunks
    is_stale = np.array([array.rewrite or not _is_inside(ref.extents, grid) for ref in old], bool)
    lows, highs = splitting.find_cell_boxes([ref.extents for ref in old], array.sizes, grid)
    keys, changed_keys = compute_row_keys([lows.astype(np.uint32), changed_cells])
    # Nearly every manifest is in one cell; those from other splitting rules are checked one by one.
    is_narrow = np.all(highs - lows == 1, axis=1)
    is_wide = ~is_narrow & np.all(highs > lows, axis=1)
    is_hit = is_narrow & np.isin(keys, changed_keys)
    for number in np.flatnonzero(is_wide & ~is_stale).tolist():
        low, high = lows[number], highs[number]
        is_hit[number] = np.all((low <= changed_cells) & (changed_cells < high), axis=1).any()
    is_new = is_stale | is_hit
    while is_new.any():
        is_stale |= is_new
        is_hit = is_narrow & np.isin(keys, keys[is_new & is_narrow])
        for number in np.flatnonzero(is_wide & is_new).tolist():
            is_hit |= np.all((lows < highs[number]) & (highs > lows[number]), axis=1)
        for number in np.flatnonzero(is_wide & ~is_stale & ~is_hit).tolist():
            low, high = lows[is_new & is_narrow], highs[is_new & is_narrow]
            is_hit[number] = np.all((low < highs[number]) & (high > lows[number]), axis=1).any()
        is_new = is_hit & ~is_stale
    return is_stale


def _is_inside(extents: ManifestExtents, num_chunks: tuple[int, ...]) -> bool:
    if len(extents.ranges) != len(num_chunks):
        return not num_chunks
    return all(box.stop <= count for box, count in zip(extents.ranges, num_chunks, strict=True))


def _split_by_cell(refs: ArrayManifest, array: ChangedArray) -> Iterable[ArrayManifest]:
    """Yield the sorted references of each cell, except empty cells."""
    if not len(refs):
        return
    if array.has_one_cell:
        yield ArrayManifest(refs.coords, overlay.compact(refs.payloads))
        return
    (keys,) = compute_row_keys([splitting.find_cells(refs.coords, array.sizes)])
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    for rows in np.split(order, bounds):
        part = overlay.select(refs, rows)
        yield ArrayManifest(part.coords, overlay.compact(part.payloads))


def _fetch_refs(
    arrays: Sequence[ChangedArray], grids: NDArray[np.uint64], fetch: Fetch
) -> ArrayManifest | None:
    """Fetch the references of arrays, with the position of the array as first coordinate."""
    array_ids = _read_node_ids(b"".join(array.node_id.raw for array in arrays))
    parts = []
    ids = dict.fromkeys(ref.id for array in arrays for ref in array.manifests)
    current_ids = {array.node_id: array.manifests[0].id for array in arrays if array.manifests}
    for manifest in fetch(ids):
        indices = manifest.indices
        node_ids = _read_node_ids(indices.node_ids.tobytes())
        positions = np.minimum(np.searchsorted(array_ids, node_ids), len(array_ids) - 1)
        # A shared manifest may still hold old references of an array that has a new manifest.
        currents = (current_ids.get(node_id) == manifest.id for node_id in indices.iter_node_ids())
        is_current = np.fromiter(currents, bool, len(indices.node_ids))
        is_current &= (array_ids[positions] == node_ids) & (indices.ndims == grids.shape[1])
        counts = np.diff(indices.row_offsets)
        is_row = np.repeat(is_current, counts)
        if not is_row.any():
            continue
        is_coord = np.repeat(is_current, counts * indices.ndims)
        coords = indices.coords[is_coord].reshape(int(is_row.sum()), grids.shape[1])
        owners = np.repeat(positions.astype(np.uint32), counts)[is_row]
        rows = manifest.payloads.select_rows(np.flatnonzero(is_row))
        parts.append(ArrayManifest(np.hstack([owners[:, None], coords]), rows))
    return _drop_outside(overlay.stack(parts), grids) if parts else None


def _read_node_ids(raw: bytes) -> NDArray[np.uint64]:
    """Return node ids, of eight bytes each, as integers with the same order."""
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def _drop_outside(refs: ArrayManifest, grids: NDArray[np.uint64]) -> ArrayManifest:
    fits = np.all(refs.coords[:, 1:] < grids[refs.coords[:, 0]], axis=1)
    return refs if fits.all() else overlay.select(refs, np.flatnonzero(fits))


def _plan_files(refs: ArrayManifest, splits: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Yield the range of arrays, among those with references, of each file."""
    if len(splits) < 2:
        return
    inline = np.where(refs.payloads.kind == ChunkKind.INLINE, refs.payloads.length, 0)
    weight = np.add.reduceat(inline.astype(np.int64) + _BYTES_PER_REF, splits[:-1])
    number = (np.cumsum(weight) - weight) // _SHARED_BYTES
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(weight)]
    yield from pairwise(edges)


def _compute_extents(
    coords: NDArray[np.uint32], splits: NDArray[np.int64]
) -> list[ManifestExtents]:
    """Return the bounding box of the chunks of each array; each has at least one chunk."""
    if not coords.shape[1]:
        return [ManifestExtents(())] * (len(splits) - 1)
    lowest = np.minimum.reduceat(coords, splits[:-1], axis=0).tolist()
    highest = np.maximum.reduceat(coords, splits[:-1], axis=0).tolist()
    return [
        ManifestExtents(
            tuple(ChunkIndexRange(low, high + 1) for low, high in zip(lows, highs, strict=True))
        )
        for lows, highs in zip(lowest, highest, strict=True)
    ]
