"""Manifests that are too many: which belong together, and what they become.

Every append gives an array one manifest more, and every commit of a small array a file of its own.
Neighbours of one array are joined up to the size that `virtualize` makes them, within the cells of
the repository's rules; manifests of that size stay. Small arrays share files, as they do after a
usual commit: with others of as many dimensions, so that coordinates are read without the rest.
Pure but for fetching small manifests, and those that go.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ArrayNodeData, ManifestRef
from icefloe.transaction import overlay
from icefloe.transaction.array_manifests import NewManifests, compute_extents
from icefloe.transaction.splitting import find_cell_boxes, split_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from icefloe.model.ids import NodeId
    from icefloe.model.manifest_config import ManifestSplittingConfig
    from icefloe.model.node import NodeSnapshot

_SHARED_BYTES: Final = 256 * 1024
_BYTES_PER_REF: Final = 64
_FEW: Final = _SHARED_BYTES // _BYTES_PER_REF
"""Arrays with fewer references than this share a file."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some manifests of an array that are one afterwards, in the array's order.

    Parameters
    ----------
    number
        Which of the array's parts it is.
    count, size_bytes
        How many references it has, and about how large they are.
    """

    node: NodeSnapshot
    refs: tuple[ManifestRef, ...]
    number: int
    count: int
    size_bytes: int

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        data = self.node.node_data
        return len(data.shape) if isinstance(data, ArrayNodeData) else 0


@dataclass(frozen=True, slots=True)
class Loose:
    """What there is to do.

    Parameters
    ----------
    files
        For each new file, what goes into it.
    fewer
        How many files less there are afterwards.
    """

    files: tuple[tuple[Part, ...], ...] = ()
    fewer: int = 0


@dataclass(frozen=True, slots=True)
class MergeManifests:
    """Puts manifests together, when the rest of a commit is known.

    Parameters
    ----------
    rules
        How the grids of arrays are cut.
    max_refs
        How many references of an array go into one manifest at most.
    """

    rules: ManifestSplittingConfig
    max_refs: int

    def __call__(
        self,
        nodes: Iterable[NodeSnapshot],
        manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
        num_refs: Mapping[ManifestId, int],
        fetch: Callable[[Iterable[ManifestId]], list[Manifest]],
    ) -> NewManifests:
        """Make the manifests that take the place of loose ones."""
        gone: dict[NodeId, set[ManifestRef]] = {}
        new_refs: dict[NodeId, list[ManifestRef]] = {}
        made = []
        for parts in self.find(nodes, manifests, num_refs, fetch).files:
            ids = {ref.id for part in parts for ref in part.refs}
            found = {one.id: one for one in fetch(ids)}
            arrays = {part.node.id: _merged(part, found) for part in parts}
            new = Manifest.of(
                ManifestId.random(), {node: refs for node, refs in arrays.items() if len(refs)}
            )
            made.append(Manifest(new.id, new.indices, overlay.compact(new.payloads)))
            for part in parts:
                coords = arrays[part.node.id].coords
                gone.setdefault(part.node.id, set()).update(part.refs)
                if len(coords):
                    ref = ManifestRef(new.id, compute_extents(coords))
                    new_refs.setdefault(part.node.id, []).append(ref)
        refs = dict(manifests)
        for node_id, left in gone.items():
            stay = (ref for ref in manifests[node_id] if ref not in left)
            refs[node_id] = (*stay, *new_refs.get(node_id, ()))
        return NewManifests(refs, made)

    def find(
        self,
        nodes: Iterable[NodeSnapshot],
        manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
        num_refs: Mapping[ManifestId, int],
        fetch: Callable[[Iterable[ManifestId]], list[Manifest]],
    ) -> Loose:
        """Say which manifests belong together; none, if there were not fewer files afterwards."""
        arrays = sorted((node for node in nodes if node.is_array), key=lambda one: one.path)
        users = Counter(id_ for node in arrays for id_ in {ref.id for ref in manifests[node.id]})
        # The others have one user and are large: what the snapshot says of them is enough.
        small = [id_ for id_, count in users.items() if count > 1 or num_refs[id_] < _FEW]
        sizes = {}
        for manifest in fetch(small):
            for node_id in manifest.indices.nodes():
                own = manifest.array(node_id)
                if own is not None:
                    sizes[manifest.id, node_id] = len(own), _size_bytes(own)
        parts = []
        for node in arrays:
            refs = manifests[node.id]
            of_node = [
                sizes.get((ref.id, node.id), (0, 0))
                if users[ref.id] > 1 or num_refs[ref.id] < _FEW
                else (num_refs[ref.id], num_refs[ref.id] * _BYTES_PER_REF)
                for ref in refs
            ]
            groups = self._neighbours(node, refs, [count for count, _ in of_node])
            for number, rows in enumerate(groups):
                count, size = (sum(of_node[row][which] for row in rows) for which in (0, 1))
                parts.append(Part(node, tuple(refs[row] for row in rows), number, count, size))
        files = [own for own in _files(parts) if _is_loose(own)]
        used = Counter(ref.id for own in files for part in own for ref in part.refs)
        all_used = Counter(ref.id for node in arrays for ref in manifests[node.id])
        fewer = sum(all_used[id_] == count for id_, count in used.items()) - len(files)
        return Loose(tuple(files), fewer) if fewer > 0 else Loose()

    def _neighbours(
        self, node: NodeSnapshot, refs: Sequence[ManifestRef], counts: Sequence[int]
    ) -> list[list[int]]:
        """Say which manifests of an array become one: neighbours in one cell, up to a size."""
        alone = [[number] for number in range(len(refs))]
        data = node.node_data
        if not isinstance(data, ArrayNodeData) or len(refs) < 2:
            return alone
        ndim = len(data.shape)
        if not ndim or any(len(ref.extents.ranges) != ndim for ref in refs):
            return alone
        grid = [dimension.num_chunks for dimension in data.shape]
        extents = [ref.extents for ref in refs]
        cells, ends = find_cell_boxes(extents, split_sizes(self.rules, node.path, data), grid)
        in_one_cell = np.all(ends - cells == 1, axis=1)
        boxes = np.array([one.ranges for one in extents], np.int64)
        lows, highs = boxes[:, :, 0], boxes[:, :, 1]
        runs: list[list[int]] = []
        total = 0
        for row in np.lexsort([*lows.T[::-1], *cells.T[::-1]]).tolist():
            last = runs[-1][-1] if runs else row
            is_near = in_one_cell[row] and in_one_cell[last] and np.array_equal(*cells[[row, last]])
            if runs and is_near and total + counts[row] <= self.max_refs:
                runs[-1].append(row)
                total += counts[row]
            else:
                runs.append([row])
                total = counts[row]
        found = []
        for run in runs:
            if len(run) == 1:
                found.append(run)
                continue
            low, high = lows[run].min(axis=0), highs[run].max(axis=0)
            # Readers look into the first manifest that fits: a box around these may have no others.
            is_apart = int(np.all((lows < high) & (highs > low), axis=1).sum()) == len(run)
            found += [sorted(run)] if is_apart else [[row] for row in run]
        return found


def _files(parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
    """Say what goes into one file: a large part, or small ones of arrays of as many dimensions.

    Of arrays with several parts the first ones go together, the second ones, and so on.
    """
    shared: dict[tuple[int, int], list[Part]] = {}
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


def _is_loose(parts: Sequence[Part]) -> bool:
    return len({ref.id for part in parts for ref in part.refs}) > 1


def _size_bytes(refs: ArrayManifest) -> int:
    inline = refs.payloads.length[refs.payloads.kind == ChunkKind.INLINE]
    return len(refs) * _BYTES_PER_REF + int(inline.sum())


def _merged(part: Part, found: Mapping[ManifestId, Manifest]) -> ArrayManifest:
    """Put references together; of two to one chunk the first manifest's counts."""
    own = []
    for ref in part.refs:
        refs = found[ref.id].array(part.node.id)
        if refs is None:
            continue
        if ref.extents.ranges:
            low, high = np.array(ref.extents.ranges, np.int64).T
            fits = np.all((refs.coords >= low) & (refs.coords < high), axis=1)
            refs = refs if fits.all() else overlay.select(refs, np.flatnonzero(fits))
        own.append(refs)
    if not own:
        return overlay.mark_deleted(np.zeros((0, part.ndim), np.uint32))
    return overlay.stack(own[::-1])
