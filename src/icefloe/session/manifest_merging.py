"""Merges the many small manifests that appends and small commits leave behind.

Neighbouring manifests of an array are merged up to the size that `virtualize` writes, within the
cells of the splitting configuration. Small arrays with the same number of dimensions share a file,
as after any commit, so that reading coordinates does not fetch the references of large arrays.
Pure except for fetching manifests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ArrayNodeData, ManifestRef
from icefloe.transaction import overlay
from icefloe.transaction.array_manifests import NewManifests, compute_extents
from icefloe.transaction.splitting import compute_split_sizes, find_cell_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest_config import ManifestSplittingConfig
    from icefloe.model.node import NodeSnapshot

_SHARED_BYTES: Final = 256 * 1024
_BYTES_PER_REF: Final = 64
_SHARED_REFS: Final = _SHARED_BYTES // _BYTES_PER_REF
"""Arrays with fewer references than this share a file."""


@dataclass(frozen=True, slots=True)
class MergedManifest:
    """Manifests of an array to merge into one, in the order of the array.

    ``number`` is its position among those of the array, ``count`` and ``size_bytes`` are the number
    and the approximate size of its references.
    """

    node: NodeSnapshot
    refs: tuple[ManifestRef, ...]
    number: int
    count: int
    size_bytes: int

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        data = self.node.node_data
        return len(data.shape) if isinstance(data, ArrayNodeData) else 0


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The content of each new file, and the number of files saved."""

    files: tuple[tuple[MergedManifest, ...], ...] = ()
    num_saved: int = 0


@dataclass(frozen=True, slots=True)
class MergeManifests:
    """Merges manifests while a commit is written.

    ``max_refs`` is the maximum number of references of an array in one manifest.
    """

    rules: ManifestSplittingConfig
    max_refs: int

    def __call__(
        self,
        nodes: Iterable[NodeSnapshot],
        manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
        num_refs: Mapping[ManifestId, int],
        fetch: Callable[[Iterable[ManifestId]], list[Manifest]],
        make_id: Callable[[], ManifestId],
    ) -> NewManifests:
        """Return the manifests of all arrays after merging."""
        replaced: dict[NodeId, set[ManifestRef]] = {}
        new_refs: dict[NodeId, list[ManifestRef]] = {}
        new_manifests = []
        for parts in self.plan(nodes, manifests, num_refs, fetch).files:
            ids = {ref.id for part in parts for ref in part.refs}
            fetched = {manifest.id: manifest for manifest in fetch(ids)}
            arrays = {part.node.id: _merge_refs(part, fetched) for part in parts}
            new = Manifest.of(make_id(), {node: refs for node, refs in arrays.items() if len(refs)})
            new_manifests.append(Manifest(new.id, new.indices, overlay.compact(new.payloads)))
            for part in parts:
                coords = arrays[part.node.id].coords
                replaced.setdefault(part.node.id, set()).update(part.refs)
                if len(coords):
                    ref = ManifestRef(new.id, compute_extents(coords))
                    new_refs.setdefault(part.node.id, []).append(ref)
        refs = dict(manifests)
        for node_id, old_refs in replaced.items():
            kept = (ref for ref in manifests[node_id] if ref not in old_refs)
            refs[node_id] = (*kept, *new_refs.get(node_id, ()))
        return NewManifests(refs, new_manifests)

    def plan(
        self,
        nodes: Iterable[NodeSnapshot],
        manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
        num_refs: Mapping[ManifestId, int],
        fetch: Callable[[Iterable[ManifestId]], list[Manifest]],
    ) -> MergePlan:
        """Choose manifests to merge; the plan is empty if merging would not save files."""
        arrays = sorted((node for node in nodes if node.is_array), key=lambda node: node.path)
        users = Counter(id_ for node in arrays for id_ in {ref.id for ref in manifests[node.id]})
        # Large manifests of a single array need not be fetched: the snapshot has their counts.
        small = [id_ for id_, count in users.items() if count > 1 or num_refs[id_] < _SHARED_REFS]
        sizes = {}
        for manifest in fetch(small):
            for node_id in manifest.indices.iter_node_ids():
                refs = manifest.get_array(node_id)
                if refs is not None:
                    sizes[manifest.id, node_id] = len(refs), _estimate_size(refs)
        merged = []
        for node in arrays:
            manifest_refs = manifests[node.id]
            counts_and_sizes = [
                sizes.get((ref.id, node.id), (0, 0))
                if users[ref.id] > 1 or num_refs[ref.id] < _SHARED_REFS
                else (num_refs[ref.id], num_refs[ref.id] * _BYTES_PER_REF)
                for ref in manifest_refs
            ]
            counts = [count for count, _ in counts_and_sizes]
            for number, rows in enumerate(self._group_neighbours(node, manifest_refs, counts)):
                count = sum(counts[row] for row in rows)
                size = sum(counts_and_sizes[row][1] for row in rows)
                old_refs = tuple(manifest_refs[row] for row in rows)
                merged.append(MergedManifest(node, old_refs, number, count, size))
        files = [parts for parts in _assign_files(merged) if _spans_several_files(parts)]
        used = Counter(ref.id for parts in files for part in parts for ref in part.refs)
        all_used = Counter(ref.id for node in arrays for ref in manifests[node.id])
        num_saved = sum(all_used[id_] == count for id_, count in used.items()) - len(files)
        return MergePlan(tuple(files), num_saved) if num_saved > 0 else MergePlan()

    def _group_neighbours(
        self, node: NodeSnapshot, refs: Sequence[ManifestRef], counts: Sequence[int]
    ) -> list[list[int]]:
        """Group rows of ``refs`` to merge: neighbours in one cell, up to `max_refs` references."""
        singles = [[number] for number in range(len(refs))]
        data = node.node_data
        if not isinstance(data, ArrayNodeData) or len(refs) < 2:
            return singles
        ndim = len(data.shape)
        if not ndim or any(len(ref.extents.ranges) != ndim for ref in refs):
            return singles
        grid = [dimension.num_chunks for dimension in data.shape]
        extents = [ref.extents for ref in refs]
        cells, ends = find_cell_boxes(
            extents, compute_split_sizes(self.rules, node.path, data), grid
        )
        in_one_cell = np.all(ends - cells == 1, axis=1)
        boxes = np.array([extent.ranges for extent in extents], np.int64)
        lows, highs = boxes[:, :, 0], boxes[:, :, 1]
        runs: list[list[int]] = []
        total = 0
        for row in np.lexsort([*lows.T[::-1], *cells.T[::-1]]).tolist():
            last = runs[-1][-1] if runs else row
            is_same_cell = in_one_cell[[row, last]].all() and np.array_equal(*cells[[row, last]])
            if runs and is_same_cell and total + counts[row] <= self.max_refs:
                runs[-1].append(row)
                total += counts[row]
            else:
                runs.append([row])
                total = counts[row]
        groups = []
        for run in runs:
            if len(run) == 1:
                groups.append(run)
                continue
            low, high = lows[run].min(axis=0), highs[run].max(axis=0)
            # Readers use the first manifest whose extents fit: no other may overlap the merged box.
            is_isolated = int(np.all((lows < high) & (highs > low), axis=1).sum()) == len(run)
            groups += [sorted(run)] if is_isolated else [[row] for row in run]
        return groups


def _assign_files(parts: Iterable[MergedManifest]) -> Iterator[tuple[MergedManifest, ...]]:
    """Yield the content of each file: a large part, or small parts with equal ``ndim``.

    The first parts of arrays share files, then the second ones, and so on.
    """
    shared: dict[tuple[int, int], list[MergedManifest]] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    for part in parts:
        if part.size_bytes >= _SHARED_BYTES:
            yield (part,)
            continue
        kind = part.ndim, part.number
        if sizes[kind] + part.size_bytes > _SHARED_BYTES:
            yield tuple(shared.pop(kind))
            sizes[kind] = 0
        shared.setdefault(kind, []).append(part)
        sizes[kind] += part.size_bytes
    yield from map(tuple, shared.values())


def _spans_several_files(parts: Sequence[MergedManifest]) -> bool:
    return len({ref.id for part in parts for ref in part.refs}) > 1


def _estimate_size(refs: ArrayManifest) -> int:
    inline = refs.payloads.length[refs.payloads.kind == ChunkKind.INLINE]
    return len(refs) * _BYTES_PER_REF + int(inline.sum())


def _merge_refs(part: MergedManifest, manifests: Mapping[ManifestId, Manifest]) -> ArrayManifest:
    """Join the references of manifests; if several have a chunk, the first one wins."""
    matching = []
    for ref in part.refs:
        refs = manifests[ref.id].get_array(part.node.id)
        if refs is None:
            continue
        if ref.extents.ranges:
            low, high = np.array(ref.extents.ranges, np.int64).T
            fits = np.all((refs.coords >= low) & (refs.coords < high), axis=1)
            refs = refs if fits.all() else overlay.select(refs, np.flatnonzero(fits))
        matching.append(refs)
    if not matching:
        return overlay.mark_deleted(np.zeros((0, part.ndim), np.uint32))
    return overlay.stack(matching[::-1])
