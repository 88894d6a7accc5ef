"""New manifests for arrays whose chunks changed: which stay, which go, and what the new ones hold.

Along the rules of splitting an array's grid falls into cells. A cell with changes gets a new
manifest, made of the references it had and the changes; manifests that touch no such cell stay.
Pure but for fetching the manifests that go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

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

# Small arrays share a file of about this much; whoever reads one of them fetches all of it.
_SHARED_BYTES = 256 * 1024
_BYTES_PER_REF = 64


@dataclass(frozen=True, slots=True)
class ChangedArray:
    """An array that needs new manifests.

    Parameters
    ----------
    node_id
        The array.
    num_chunks
        Its grid, after the changes.
    sizes
        How many chunks a manifest spans along each dimension.
    manifests
        Those that it has now.
    rewrite
        Whether none of them may stay.
    """

    node_id: NodeId
    num_chunks: tuple[int, ...]
    sizes: tuple[int, ...]
    manifests: tuple[ManifestRef, ...]
    rewrite: bool

    @property
    def has_one_cell(self) -> bool:
        """Whether all its references belong into one manifest."""
        return all(size >= count for size, count in zip(self.sizes, self.num_chunks, strict=True))


@dataclass(slots=True)
class NewManifests:
    """What arrays get: manifests that stay or are new, and the new ones themselves.

    Those that differ in few references from one before may be files already: ``edited``.
    """

    refs: dict[NodeId, tuple[ManifestRef, ...]]
    made: list[Manifest]
    edited: list[tuple[ManifestFileInfo, EncodedFile]] = field(default_factory=list)


MergeManifests: TypeAlias = (
    "Callable[[Iterable[NodeSnapshot], Mapping[NodeId, tuple[ManifestRef, ...]], "
    "Mapping[ManifestId, int], Fetch], NewManifests]"
)
"""Merges the manifests of all arrays, given the number of references in each."""


def find_editable_manifest(array: ChangedArray, changes: ArrayManifest) -> ManifestRef | None:
    """Return the manifest that may have all the chunks that change, and would stay as it is else.

    If it has them indeed, its file can be edited, and the array's other manifests stay.
    """
    if array.rewrite or not len(changes) or (changes.payloads.kind == overlay.DELETED).any():
        return None
    grid, refs = array.num_chunks, array.manifests
    if {changes.coords.shape[1], *(len(ref.extents.ranges) for ref in refs)} != {len(grid)}:
        return None
    corners = [
        tuple(edge.tolist()) for edge in (changes.coords.min(axis=0), changes.coords.max(axis=0))
    ]
    around = [ref for ref in refs if all(map(ref.extents.contains, corners))]
    if len(around) != 1 or not _fits(around[0].extents, grid):
        return None
    (found,) = around
    # The rules of today leave it alone: it lies in one cell, and in that alone.
    low, high = splitting.find_cell_boxes([found.extents], array.sizes, grid)
    leaves = _leaving(array, refs, splitting.find_cells(changes.coords, array.sizes))
    is_alone = leaves.sum() == 1 and (high - low == 1).all()
    # Two refs may name one file, with different extents.
    return found if is_alone and sum(ref.id == found.id for ref in refs) == 1 else None


def replace_manifests(array: ChangedArray, changes: ArrayManifest, fetch: Fetch) -> NewManifests:
    """Make the manifests of one array, which may be large."""
    num_chunks = array.num_chunks
    rows = np.flatnonzero(overlay.is_inside(changes.coords, num_chunks))
    if len(rows) < len(changes):
        changes = overlay.select(changes, rows)
    changed_cells = splitting.find_cells(changes.coords, array.sizes)
    # If the array had another number of dimensions, none of its chunks has a place any more.
    old = [ref for ref in array.manifests if len(ref.extents.ranges) in {0, len(num_chunks)}]
    leaves = _leaving(array, old, changed_cells)
    kept = tuple(ref for ref, goes in zip(old, leaves, strict=True) if not goes)
    parts = []
    # Two refs may name one file, with different extents.
    gone = dict.fromkeys(ref.id for ref, goes in zip(old, leaves, strict=True) if goes)
    for manifest in fetch(gone):
        refs = manifest.array(array.node_id)
        if refs is not None:
            fits = overlay.is_inside(refs.coords, num_chunks)
            parts.append(refs if fits.all() else overlay.select(refs, np.flatnonzero(fits)))
    # Of references that overlap, which Icechunk 1 leaves behind, the first manifest's count.
    before = overlay.stack(parts[::-1]) if parts else overlay.select(changes, slice(0, 0))
    made = [
        Manifest.of_one(ManifestId.random(), array.node_id, part)
        for part in _cut(overlay.apply(before, changes), array)
    ]
    new = [ManifestRef(one.id, compute_extents(one.indices.matrix(0))) for one in made]
    return NewManifests({array.node_id: (*kept, *new)}, made)


def replace_small_manifests(
    arrays: Sequence[ChangedArray], changes: ChangeColumns, fetch: Fetch
) -> NewManifests:
    """Make the manifests of many arrays of one cell each, several arrays to a file.

    ``arrays`` are those of ``changes``, in the same order, and have one manifest at most.
    """
    ndim = len(arrays[0].num_chunks)
    grids = np.array([array.num_chunks for array in arrays], np.uint64).reshape(len(arrays), ndim)
    changed = _inside_grids(changes.refs, grids)
    before = _present(arrays, grids, fetch)
    refs = overlay.apply(before or overlay.select(changed, slice(0, 0)), changed)
    owners = refs.coords[:, 0].astype(np.int64)
    present, starts = np.unique(owners, return_index=True)
    splits = np.append(starts, len(owners))
    result: dict[NodeId, tuple[ManifestRef, ...]] = {array.node_id: () for array in arrays}
    made = []
    for first, last in _files(refs, splits):
        rows = slice(int(splits[first]), int(splits[last]))
        ids = [arrays[number].node_id for number in present[first:last].tolist()]
        coords = refs.coords[rows, 1:]
        bounds = splits[first : last + 1] - splits[first]
        manifest = Manifest(
            ManifestId.random(),
            ChunkIndexColumns(
                np.frombuffer(b"".join(one.raw for one in ids), np.uint8).reshape(-1, NodeId.SIZE),
                bounds,
                np.full(len(ids), coords.shape[1], np.int64),
                np.ascontiguousarray(coords).reshape(-1),
            ),
            overlay.compact(refs.payloads.rows(rows)),
        )
        made.append(manifest)
        for node_id, extents in zip(ids, _extents_of_each(coords, bounds), strict=True):
            result[node_id] = (ManifestRef(manifest.id, extents),)
    return NewManifests(result, made)


def compute_extents(coords: NDArray[np.uint32]) -> ManifestExtents:
    """Return the smallest box around chunks; none for the one chunk of a scalar array."""
    (extents,) = _extents_of_each(coords, np.array([0, len(coords)]))
    return extents


def _leaving(
    array: ChangedArray, old: Sequence[ManifestRef], changed_cells: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Say which manifests cannot stay.

    A manifest with references in a dirty cell is rewritten, which makes all its cells dirty:
    extents of different manifests must not overlap, because readers look into the first that fits.
    """
    grid = array.num_chunks
    leaves = np.array([array.rewrite or not _fits(ref.extents, grid) for ref in old], bool)
    lows, highs = splitting.find_cell_boxes([ref.extents for ref in old], array.sizes, grid)
    keys, changed_keys = compute_row_keys([lows.astype(np.uint32), changed_cells])
    # Nearly every manifest lies in one cell; those that were made by other rules are looked at
    # one by one.
    is_narrow = np.all(highs - lows == 1, axis=1)
    is_wide = ~is_narrow & np.all(highs > lows, axis=1)
    found = is_narrow & np.isin(keys, changed_keys)
    for number in np.flatnonzero(is_wide & ~leaves).tolist():
        low, high = lows[number], highs[number]
        found[number] = np.all((low <= changed_cells) & (changed_cells < high), axis=1).any()
    new = leaves | found
    while new.any():
        leaves |= new
        found = is_narrow & np.isin(keys, keys[new & is_narrow])
        for number in np.flatnonzero(is_wide & new).tolist():
            found |= np.all((lows < highs[number]) & (highs > lows[number]), axis=1)
        for number in np.flatnonzero(is_wide & ~leaves & ~found).tolist():
            low, high = lows[new & is_narrow], highs[new & is_narrow]
            found[number] = np.all((low < highs[number]) & (high > lows[number]), axis=1).any()
        new = found & ~leaves
    return leaves


def _fits(extents: ManifestExtents, num_chunks: tuple[int, ...]) -> bool:
    if len(extents.ranges) != len(num_chunks):
        return not num_chunks
    return all(box.stop <= count for box, count in zip(extents.ranges, num_chunks, strict=True))


def _cut(refs: ArrayManifest, array: ChangedArray) -> Iterable[ArrayManifest]:
    """Cut sorted references into those of each cell; cells without any give nothing."""
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


def _present(
    arrays: Sequence[ChangedArray], grids: NDArray[np.uint64], fetch: Fetch
) -> ArrayManifest | None:
    """Fetch the references that arrays have now, with the array's number as first coordinate."""
    wanted = _id_numbers(b"".join(array.node_id.raw for array in arrays))
    parts = []
    ids = dict.fromkeys(ref.id for array in arrays for ref in array.manifests)
    owning = {array.node_id: array.manifests[0].id for array in arrays if array.manifests}
    for manifest in fetch(ids):
        indices = manifest.indices
        found = _id_numbers(indices.node_ids.tobytes())
        places = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
        # An array that moved on to another manifest is still in the one it shared before.
        current = np.array([owning.get(one) == manifest.id for one in indices.nodes()], bool)
        is_wanted = (wanted[places] == found) & current & (indices.ndims == grids.shape[1])
        counts = np.diff(indices.splits)
        is_row = np.repeat(is_wanted, counts)
        if not is_row.any():
            continue
        is_coord = np.repeat(is_wanted, counts * indices.ndims)
        coords = indices.coords[is_coord].reshape(int(is_row.sum()), grids.shape[1])
        owners = np.repeat(places.astype(np.uint32), counts)[is_row]
        rows = manifest.payloads.rows(np.flatnonzero(is_row))
        parts.append(ArrayManifest(np.hstack([owners[:, None], coords]), rows))
    return _inside_grids(overlay.stack(parts), grids) if parts else None


def _id_numbers(raw: bytes) -> NDArray[np.uint64]:
    """Read node ids as integers in the same order: both have eight bytes."""
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def _inside_grids(refs: ArrayManifest, grids: NDArray[np.uint64]) -> ArrayManifest:
    fits = np.all(refs.coords[:, 1:] < grids[refs.coords[:, 0]], axis=1)
    return refs if fits.all() else overlay.select(refs, np.flatnonzero(fits))


def _files(refs: ArrayManifest, splits: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Say which arrays, of those that have references, go into one file: from, to."""
    if len(splits) < 2:
        return
    inline = np.where(refs.payloads.kind == ChunkKind.INLINE, refs.payloads.length, 0)
    weight = np.add.reduceat(inline.astype(np.int64) + _BYTES_PER_REF, splits[:-1])
    number = (np.cumsum(weight) - weight) // _SHARED_BYTES
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(weight)]
    yield from pairwise(edges)


def _extents_of_each(
    coords: NDArray[np.uint32], splits: NDArray[np.int64]
) -> list[ManifestExtents]:
    """Return the smallest box around the chunks of each array; none may be without chunks."""
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
