"""From a change set to files: manifests, the snapshot and the transaction log of a commit.

Nothing becomes visible here: files get fresh random names, and a commit or nobody refers to them.

Only what changed is rewritten. Along the rules of splitting an array's grid falls into cells; a
cell with changes gets a new manifest, made of the references it had and the changes. Manifests that
touch no such cell are kept as they are. Small manifests of different arrays share a file: the
format has room for many arrays in one, and a commit that touches two thousand arrays should not
write two thousand files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.ids import ManifestId, SnapshotId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.snapshot import Snapshot
from icefloe.model.tree import Tree
from icefloe.transaction import overlay, splitting
from icefloe.transaction.change_set import merge_logs, node_changes, transaction_log
from icefloe.transaction.chunk_changes import ChunkChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from icefloe.assets import Assets, EncodedFile
    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import NodeId
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.transaction.change_set import ChangeSet

# A file shared by arrays holds at most this much: whoever reads one array fetches all of it.
_SHARED_REFS = 4096
_SHARED_INLINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush wrote."""

    tree: Tree
    log: TransactionLog


@dataclass(frozen=True, slots=True)
class _ArrayPlan:
    """What becomes of one array: manifests that stay, and references that need new ones."""

    node_id: NodeId
    kept: tuple[ManifestRef, ...]
    parts: tuple[ArrayManifest, ...]


@dataclass(slots=True)
class _Written:
    """The manifests that an array got, for as long as nothing it was made from changes."""

    base: tuple[ManifestRef, ...]
    shape: object
    changes: ArrayManifest | None
    manifests: tuple[ManifestRef, ...]


@dataclass(slots=True)
class Flusher:
    """Writes change sets; remembers manifests, so that trying again after a rebase is cheap."""

    assets: Assets
    config: RepositoryConfig
    location_compression: LocationCompression | None = None
    _written: dict[NodeId, _Written] = field(default_factory=dict)
    _infos: dict[ManifestId, ManifestFileInfo] = field(default_factory=dict)

    def flush(
        self,
        base: Tree,
        changes: ChangeSet,
        *,
        message: str,
        metadata: Mapping[str, Any],
        parent_id: SnapshotId | None,
        amended: TransactionLog | None = None,
        rewrite: bool = False,
        with_log: bool = True,
        durable: bool = False,
    ) -> Flushed:
        """Write everything but the reference that makes it visible.

        Parameters
        ----------
        base
            What the changes were made on.
        parent_id
            The parent that the snapshot records.
        amended
            The log of the commit that this one replaces: what it changed is part of this one.
        rewrite
            Whether every array's manifests are made anew, by today's rules of splitting.
        with_log
            Whether the transaction log is written; a snapshot that no history has needs none.
        durable
            Whether everything is safe on disk at the end, because no commit follows that sees to
            it.
        """
        nodes = {node.path: node for node in base.snapshot.nodes}
        for path, node in changes.edits.items():
            if node is None:
                nodes.pop(path, None)
            else:
                nodes[path] = node
        plans: list[_ArrayPlan] = []
        manifests: dict[NodeId, tuple[ManifestRef, ...]] = {}
        for node in nodes.values():
            if not isinstance(node.node_data, ArrayNodeData):
                continue
            before = base.by_id.get(node.id)
            old = (
                before.node_data.manifests
                if before is not None and isinstance(before.node_data, ArrayNodeData)
                else ()
            )
            chunk_changes = changes.chunks.get(node.id)
            same_grid = before is not None and _same_grid(before, node)
            if not chunk_changes and (same_grid or not old) and not rewrite:
                manifests[node.id] = old
                continue
            columns = chunk_changes.columns() if chunk_changes else None
            known = self._written.get(node.id)
            if (
                known is not None
                and known.base == old
                and known.shape == node.node_data.shape
                and known.changes is columns
            ):
                manifests[node.id] = known.manifests
                continue
            plans.append(self._plan(node, old, columns, rewrite=rewrite))
            self._written[node.id] = _Written(old, node.node_data.shape, columns, ())
        files, made, new = self._manifest_files(plans)
        for plan in plans:
            refs = (*plan.kept, *new.get(plan.node_id, ()))
            manifests[plan.node_id] = self._written[plan.node_id].manifests = refs
        used, written = self._with_manifests(base, nodes.values(), manifests)
        # A snapshot is newer than its parent, whatever the clocks of the two writers say.
        flushed_at = max(datetime.now(UTC), base.snapshot.flushed_at + timedelta(microseconds=1))
        snapshot = Snapshot(
            SnapshotId.random(), parent_id, flushed_at, message, metadata, written, used
        )
        log = transaction_log(snapshot.id, changes, node_changes(base, changes))
        if amended is not None:
            log = merge_logs(amended, log)
        if with_log:
            files.append(self.assets.encode_transaction_log(log))
        snapshot_file = self.assets.encode_snapshot(snapshot)
        if durable:
            self.assets.all_at_once(self.assets.write, files)
            self.assets.publish(snapshot_file)
        else:
            self.assets.all_at_once(self.assets.write, [*files, snapshot_file])
        tree = Tree(snapshot)
        self.assets.keep(tree, made)
        return Flushed(tree, log)

    def _plan(
        self,
        node: NodeSnapshot,
        old: tuple[ManifestRef, ...],
        changes: ArrayManifest | None,
        *,
        rewrite: bool,
    ) -> _ArrayPlan:
        """Find which manifests of an array must go, and make the references for new ones."""
        data = node.node_data
        assert isinstance(data, ArrayNodeData)  # noqa: S101 - the caller looked
        num_chunks = [dimension.num_chunks for dimension in data.shape]
        sizes = splitting.split_sizes(
            self.config.effective_manifest.effective_splitting, node.path, data
        )
        if changes is None:
            changes = ChunkChanges(len(data.shape)).columns()
        else:
            rows = np.flatnonzero(overlay.inside(changes.coords, num_chunks))
            if len(rows) < len(changes):
                changes = overlay.select(changes, rows)
        changed_cells = np.unique(splitting.cell_numbers(changes.coords, sizes, num_chunks))
        cells = [splitting.overlapping_cells(ref.extents, sizes, num_chunks) for ref in old]
        leaves = np.array([rewrite or not _is_inside(ref.extents, num_chunks) for ref in old], bool)
        owners = np.repeat(np.arange(len(old)), [len(touched) for touched in cells])
        touched = np.concatenate([np.zeros(0, np.int64), *cells])
        while True:
            # A manifest with references in a dirty cell is rewritten, which makes all its cells
            # dirty: extents of different manifests must not overlap, because readers look into
            # the first that fits.
            dirty = np.union1d(changed_cells, touched[leaves[owners]])
            found = np.unique(owners[np.isin(touched, dirty) & ~leaves[owners]])
            if not len(found):
                break
            leaves[found] = True
        kept = tuple(ref for ref, goes in zip(old, leaves, strict=True) if not goes)
        leaving = [ref for ref, goes in zip(old, leaves, strict=True) if goes]
        nothing = overlay.select(changes, slice(0, 0))
        refs = overlay.apply(self._references(node.id, leaving, num_chunks) or nothing, changes)
        return _ArrayPlan(node.id, kept, tuple(_cut(refs, sizes, num_chunks)))

    def _references(
        self, node_id: NodeId, manifests: Iterable[ManifestRef], num_chunks: list[int]
    ) -> ArrayManifest | None:
        """Fetch the references of manifests that are to be replaced, as far as they stay."""
        parts = []
        # Two refs may name one file, with different extents.
        distinct = dict.fromkeys(ref.id for ref in manifests)
        for manifest in self.assets.all_at_once(self.assets.fetch_manifest, distinct):
            refs = manifest.array(node_id)
            if refs is None:
                continue
            rows = overlay.inside(refs.coords, num_chunks)
            parts.append(refs if rows.all() else overlay.select(refs, np.flatnonzero(rows)))
        return overlay.stack(parts) if parts else None

    def _manifest_files(
        self, plans: list[_ArrayPlan]
    ) -> tuple[list[EncodedFile], list[Manifest], dict[NodeId, list[ManifestRef]]]:
        """Make the new manifests, those of small arrays together."""
        made: list[Manifest] = []
        shared: dict[NodeId, ArrayManifest] = {}
        room_refs, room_bytes = _SHARED_REFS, _SHARED_INLINE_BYTES
        for plan in plans:
            sizes = [(len(part), _inline_bytes(part)) for part in plan.parts]
            if (
                len(plan.parts) == 1
                and sizes[0][0] * 4 <= _SHARED_REFS
                and (sizes[0][1] * 4 <= _SHARED_INLINE_BYTES)
            ):
                if sizes[0][0] > room_refs or sizes[0][1] > room_bytes:
                    made.append(Manifest.of(ManifestId.random(), shared))
                    shared, room_refs, room_bytes = {}, _SHARED_REFS, _SHARED_INLINE_BYTES
                shared[plan.node_id] = plan.parts[0]
                room_refs -= sizes[0][0]
                room_bytes -= sizes[0][1]
            else:
                made.extend(
                    Manifest.of(ManifestId.random(), {plan.node_id: part}) for part in plan.parts
                )
        if shared:
            made.append(Manifest.of(ManifestId.random(), shared))
        files = []
        refs: dict[NodeId, list[ManifestRef]] = {}
        for manifest in made:
            info, file = self.assets.encode_manifest(manifest, self.location_compression)
            self._infos[info.id] = info
            files.append(file)
            for position, node_id in enumerate(manifest.indices.nodes()):
                extents = _extents(manifest.indices.matrix(position))
                refs.setdefault(node_id, []).append(ManifestRef(manifest.id, extents))
        return files, made, refs

    def _with_manifests(
        self,
        base: Tree,
        nodes: Iterable[NodeSnapshot],
        manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
    ) -> tuple[tuple[ManifestFileInfo, ...], tuple[NodeSnapshot, ...]]:
        """Let the arrays name their manifests; returns what the snapshot says of those, too."""
        infos = {info.id: info for info in base.snapshot.manifest_files} | self._infos
        written = []
        used: dict[ManifestId, ManifestFileInfo] = {}
        for node in sorted(nodes, key=lambda node: node.path.value):
            data = node.node_data
            if isinstance(data, ArrayNodeData):
                refs = manifests[node.id]
                used.update((ref.id, infos[ref.id]) for ref in refs)
                if refs != data.manifests:
                    node = replace(node, node_data=replace(data, manifests=refs))  # noqa: PLW2901
            written.append(node)
        return tuple(used[manifest_id] for manifest_id in sorted(used)), tuple(written)


def _same_grid(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    one, other = before.node_data, after.node_data
    assert isinstance(one, ArrayNodeData)  # noqa: S101 - a node keeps its kind
    assert isinstance(other, ArrayNodeData)  # noqa: S101
    return [dimension.num_chunks for dimension in one.shape] == [
        dimension.num_chunks for dimension in other.shape
    ]


def _is_inside(extents: ManifestExtents, num_chunks: list[int]) -> bool:
    if len(extents.ranges) != len(num_chunks):
        return not num_chunks
    return all(box.stop <= count for box, count in zip(extents.ranges, num_chunks, strict=True))


def _cut(
    refs: ArrayManifest, sizes: tuple[int, ...], num_chunks: list[int]
) -> Iterable[ArrayManifest]:
    """Cut sorted references into those of each cell; cells without any give nothing."""
    if not len(refs):
        return
    if all(size >= count for size, count in zip(sizes, num_chunks, strict=True)):
        yield refs
        return
    numbers = splitting.cell_numbers(refs.coords, sizes, num_chunks)
    order = np.argsort(numbers, kind="stable")
    bounds = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, bounds):
        part = overlay.select(refs, rows)
        yield ArrayManifest(part.coords, overlay.compact(part.payloads))


def _extents(coords: NDArray[np.uint32]) -> ManifestExtents:
    """Return the smallest box around chunks; none for the one chunk of a scalar array."""
    if not coords.shape[1]:
        return ManifestExtents(())
    lowest, highest = coords.min(axis=0).tolist(), coords.max(axis=0).tolist()
    return ManifestExtents(
        tuple(ChunkIndexRange(low, high + 1) for low, high in zip(lowest, highest, strict=True))
    )


def _inline_bytes(refs: ArrayManifest) -> int:
    return int(refs.payloads.length[refs.payloads.kind == ChunkKind.INLINE].sum())
