"""New manifests for arrays whose chunks changed.

The splitting rules divide the grid of an array into cells. A cell with changes gets a new manifest
from its previous references and the changes; a manifest is also replaced if it shares a cell with a
replaced one or extends beyond the grid; all others are kept. No I/O except fetching the manifests
that are replaced; new manifests get random ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from icefloe.format.ids import to_id_rows
from icefloe.model.chunk_index_columns import ChunkIndexColumns
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import NodeId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ChunkIndexRange, ManifestExtents, ManifestRef
from icefloe.transaction import overlay, splitting
from icefloe.transaction.row_order import compute_row_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.assets import EncodedFile
    from icefloe.model.ids import ManifestId
    from icefloe.model.node import NodeSnapshot
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.transaction.change_columns import ChangeColumns

    Fetch = Callable[[Iterable[ManifestId]], list[Manifest]]
    MakeId = Callable[[], ManifestId]

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
    grid_shape: tuple[int, ...]
    sizes: tuple[int, ...]
    manifests: tuple[ManifestRef, ...]
    rewrite: bool

    @property
    def has_one_cell(self) -> bool:
        """Whether all references belong to one manifest."""
        return all(size >= count for size, count in zip(self.sizes, self.grid_shape, strict=True))


@dataclass(slots=True)
class NewManifests:
    """The complete list of manifest refs of each array, and the manifests among them that are new.

    ``edited`` holds new manifests that were derived by editing encoded bytes and were never
    decoded.
    """

    refs: dict[NodeId, tuple[ManifestRef, ...]]
    manifests: list[Manifest]
    edited: list[tuple[ManifestFileInfo, EncodedFile]] = field(default_factory=list)


ManifestMerger: TypeAlias = (
    "Callable[[Iterable[NodeSnapshot], Mapping[NodeId, tuple[ManifestRef, ...]], "
    "Mapping[ManifestId, int], Fetch, MakeId], NewManifests]"
)
"""Merges the manifests of all arrays, given the number of chunk references in each manifest."""


def find_editable_manifest(array: ChangedArray, changes: ArrayManifest) -> ManifestRef | None:
    """Return the manifest whose file might be edited instead of rewritten, or None.

    It is the only one affected by the changes; the caller must still check that it has a reference
    to every changed chunk.
    """
    if array.rewrite or not len(changes) or (changes.payloads.kind == overlay.DELETED).any():
        return None
    grid_shape, manifest_refs = array.grid_shape, array.manifests
    ranks = {changes.coords.shape[1], *(len(ref.extents.ranges) for ref in manifest_refs)}
    if ranks != {len(grid_shape)}:
        return None
    corners = [
        tuple(edge.tolist()) for edge in (changes.coords.min(axis=0), changes.coords.max(axis=0))
    ]
    candidates = [ref for ref in manifest_refs if all(map(ref.extents.contains, corners))]
    if len(candidates) != 1 or not _is_inside(candidates[0].extents, grid_shape):
        return None
    (candidate,) = candidates
    # Under the current splitting rules, the candidate must lie within one cell and be the only
    # manifest there.
    low, high = splitting.find_cell_boxes([candidate.extents], array.sizes, grid_shape)
    is_stale = _find_stale(array, manifest_refs, splitting.find_cells(changes.coords, array.sizes))
    is_alone = is_stale.sum() == 1 and (high - low == 1).all()
    # Two manifest refs may have the same file and different extents.
    num_refs = sum(ref.id == candidate.id for ref in manifest_refs)
    return candidate if is_alone and num_refs == 1 else None


def find_extents_after_insertion(
    array: ChangedArray, changes: ArrayManifest
) -> ManifestExtents | None:
    """Return the extents of the only manifest of an array after an insertion of chunks.

    ``changes`` has a first coordinate that is ignored. Returns None if the manifest must be
    rewritten: chunks are virtual, deleted or outside the grid, or the array was shrunk.
    """
    (ref,) = array.manifests
    kinds = set(changes.payloads.kind.tolist())
    coords = changes.coords[:, 1:]
    if array.rewrite or kinds - {ChunkKind.NATIVE, ChunkKind.INLINE}:
        return None
    if not _is_inside(ref.extents, array.grid_shape):
        return None
    if not array.grid_shape or not overlay.is_inside(coords, array.grid_shape).all():
        return None
    low, high = coords.min(axis=0).tolist(), (coords.max(axis=0) + 1).tolist()
    return ManifestExtents(
        tuple(
            ChunkIndexRange(min(extent.start, start), max(extent.stop, stop))
            for extent, start, stop in zip(ref.extents.ranges, low, high, strict=True)
        )
    )


def replace_manifests(
    array: ChangedArray, changes: ArrayManifest, fetch: Fetch, make_id: MakeId
) -> NewManifests:
    """Build the manifests of one array of any size."""
    grid_shape = array.grid_shape
    rows = np.flatnonzero(overlay.is_inside(changes.coords, grid_shape))
    if len(rows) < len(changes):
        changes = overlay.select(changes, rows)
    changed_cells = splitting.find_cells(changes.coords, array.sizes)
    # Manifests of another rank are dropped: all their chunks are outside the grid. Extents without
    # ranges cover any grid.
    old = [ref for ref in array.manifests if len(ref.extents.ranges) in {0, len(grid_shape)}]
    is_stale = _find_stale(array, old, changed_cells)
    kept = tuple(ref for ref, stale in zip(old, is_stale, strict=True) if not stale)
    parts = []
    # Two manifest refs may have the same file and different extents.
    replaced = dict.fromkeys(ref.id for ref, stale in zip(old, is_stale, strict=True) if stale)
    for manifest in fetch(replaced):
        chunk_refs = manifest.get_array(array.node_id)
        if chunk_refs is not None:
            fits = overlay.is_inside(chunk_refs.coords, grid_shape)
            parts.append(
                chunk_refs if fits.all() else overlay.select(chunk_refs, np.flatnonzero(fits))
            )
    # Icechunk 1 may leave several manifests with a reference to the same chunk: the first manifest
    # wins.
    before = overlay.stack(parts[::-1]) if parts else overlay.select(changes, slice(0, 0))
    manifests = [
        Manifest.of_array(make_id(), array.node_id, part)
        for part in _split_by_cell(overlay.apply(before, changes), array)
    ]
    new = [
        ManifestRef(manifest.id, compute_extents(manifest.indices.get_coords(0)))
        for manifest in manifests
    ]
    return NewManifests({array.node_id: (*kept, *new)}, manifests)


def replace_manifests_of_small_arrays(
    arrays: Sequence[ChangedArray], changes: ChangeColumns, fetch: Fetch, make_id: MakeId
) -> NewManifests:
    """Build the manifests of many arrays of one cell each, several arrays per file.

    ``arrays`` are those of ``changes``, in the same order, with at most one manifest each.
    """
    ndim = len(arrays[0].grid_shape)
    grids = np.array([array.grid_shape for array in arrays], np.uint64).reshape(len(arrays), ndim)
    changed = _drop_outside(changes.refs, grids)
    before = _fetch_refs(arrays, grids, fetch)
    chunk_refs = overlay.apply(before or overlay.select(changed, slice(0, 0)), changed)
    owners = chunk_refs.coords[:, 0].astype(np.int64)
    present, starts = np.unique(owners, return_index=True)
    row_offsets = np.append(starts, len(owners))
    result: dict[NodeId, tuple[ManifestRef, ...]] = {array.node_id: () for array in arrays}
    manifests = []
    for first, last in _plan_files(chunk_refs, row_offsets):
        rows = slice(int(row_offsets[first]), int(row_offsets[last]))
        ids = [arrays[index].node_id for index in present[first:last].tolist()]
        coords = chunk_refs.coords[rows, 1:]
        bounds = row_offsets[first : last + 1] - row_offsets[first]
        indices = ChunkIndexColumns(
            to_id_rows(ids, NodeId),
            bounds,
            np.full(len(ids), coords.shape[1], np.int64),
            np.ascontiguousarray(coords).reshape(-1),
        )
        payloads = overlay.compact(chunk_refs.payloads.select_rows(rows))
        manifest = Manifest(make_id(), indices, payloads)
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

    A manifest is stale if it overlaps a changed cell, extends beyond the grid, or shares a cell
    with a stale manifest; with ``rewrite``, all are. Extents must not overlap, because readers use
    the first manifest whose extents contain a chunk.
    """
    grid_shape = array.grid_shape
    is_stale = np.array(
        [array.rewrite or not _is_inside(ref.extents, grid_shape) for ref in old], bool
    )
    lows, highs = splitting.find_cell_boxes([ref.extents for ref in old], array.sizes, grid_shape)
    keys, changed_keys = compute_row_keys([lows.astype(np.uint32), changed_cells])
    # Nearly every manifest is in one cell; those written under other splitting rules are checked
    # one by one.
    is_narrow = np.all(highs - lows == 1, axis=1)
    is_wide = ~is_narrow & np.all(highs > lows, axis=1)
    is_hit = is_narrow & np.isin(keys, changed_keys)
    for index in np.flatnonzero(is_wide & ~is_stale).tolist():
        low, high = lows[index], highs[index]
        is_hit[index] = np.all((low <= changed_cells) & (changed_cells < high), axis=1).any()
    is_newly_stale = is_stale | is_hit
    while is_newly_stale.any():
        is_stale |= is_newly_stale
        is_hit = is_narrow & np.isin(keys, keys[is_newly_stale & is_narrow])
        for index in np.flatnonzero(is_wide & is_newly_stale).tolist():
            is_hit |= np.all((lows < highs[index]) & (highs > lows[index]), axis=1)
        for index in np.flatnonzero(is_wide & ~is_stale & ~is_hit).tolist():
            low, high = lows[is_newly_stale & is_narrow], highs[is_newly_stale & is_narrow]
            is_hit[index] = np.all((low < highs[index]) & (high > lows[index]), axis=1).any()
        is_newly_stale = is_hit & ~is_stale
    return is_stale


def _is_inside(extents: ManifestExtents, grid_shape: tuple[int, ...]) -> bool:
    if len(extents.ranges) != len(grid_shape):
        return not grid_shape
    return all(
        extent.stop <= count for extent, count in zip(extents.ranges, grid_shape, strict=True)
    )


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
    """Fetch references, with the array's position in ``arrays`` prepended as first coordinate."""
    array_ids = _convert_node_ids(b"".join(array.node_id.raw for array in arrays))
    parts = []
    ids = dict.fromkeys(ref.id for array in arrays for ref in array.manifests)
    current_ids = {array.node_id: array.manifests[0].id for array in arrays if array.manifests}
    for manifest in fetch(ids):
        indices = manifest.indices
        node_ids = _convert_node_ids(indices.node_ids.tobytes())
        positions = np.minimum(np.searchsorted(array_ids, node_ids), len(array_ids) - 1)
        # A shared manifest may still hold old references of an array that has a new manifest.
        current_flags = (
            current_ids.get(node_id) == manifest.id for node_id in indices.iter_node_ids()
        )
        is_current = np.fromiter(current_flags, bool, len(indices.node_ids))
        is_current &= (array_ids[positions] == node_ids) & (indices.ndims == grids.shape[1])
        counts = np.diff(indices.row_offsets)
        row_mask = np.repeat(is_current, counts)
        if not row_mask.any():
            continue
        coord_mask = np.repeat(is_current, counts * indices.ndims)
        coords = indices.coords[coord_mask].reshape(int(row_mask.sum()), grids.shape[1])
        owners = np.repeat(positions.astype(np.uint32), counts)[row_mask]
        rows = manifest.payloads.select_rows(np.flatnonzero(row_mask))
        parts.append(ArrayManifest(np.hstack([owners[:, None], coords]), rows))
    return _drop_outside(overlay.stack(parts), grids) if parts else None


def _convert_node_ids(raw: bytes) -> NDArray[np.uint64]:
    """Return eight-byte node ids as integers that sort like the ids."""
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def _drop_outside(refs: ArrayManifest, grids: NDArray[np.uint64]) -> ArrayManifest:
    fits = np.all(refs.coords[:, 1:] < grids[refs.coords[:, 0]], axis=1)
    return refs if fits.all() else overlay.select(refs, np.flatnonzero(fits))


def _plan_files(refs: ArrayManifest, row_offsets: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Yield, for each file, the range of its arrays, counted among arrays that have references."""
    if len(row_offsets) < 2:
        return
    inline = np.where(refs.payloads.kind == ChunkKind.INLINE, refs.payloads.length, 0)
    weight = np.add.reduceat(inline.astype(np.int64) + _BYTES_PER_REF, row_offsets[:-1])
    file_indices = (np.cumsum(weight) - weight) // _SHARED_BYTES
    edges = [0, *(np.flatnonzero(np.diff(file_indices)) + 1).tolist(), len(weight)]
    yield from pairwise(edges)


def _compute_extents(
    coords: NDArray[np.uint32], row_offsets: NDArray[np.int64]
) -> list[ManifestExtents]:
    """Return the bounding box of the chunks of each array; each has at least one chunk."""
    if not coords.shape[1]:
        return [ManifestExtents(())] * (len(row_offsets) - 1)
    lowest = np.minimum.reduceat(coords, row_offsets[:-1], axis=0).tolist()
    highest = np.maximum.reduceat(coords, row_offsets[:-1], axis=0).tolist()
    return [
        ManifestExtents(
            tuple(ChunkIndexRange(low, high + 1) for low, high in zip(lows, highs, strict=True))
        )
        for lows, highs in zip(lowest, highest, strict=True)
    ]
