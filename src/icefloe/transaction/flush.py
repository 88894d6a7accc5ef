"""Flush: writes the manifests, the transaction log and the snapshot of a change set.

Nothing becomes visible: files have new random ids, and only a commit refers to them. Only manifests
with changes are rewritten (`array_manifests`), and manifests of an earlier attempt of the same
session are reused if their inputs did not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from icefloe.model.ids import ManifestId, SnapshotId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.model.snapshot import MAX_RECENT_ANCESTORS, Snapshot
from icefloe.model.tree import Tree
from icefloe.transaction import overlay
from icefloe.transaction.adopted import add_adopted_chunks
from icefloe.transaction.array_manifests import (
    ChangedArray,
    NewManifests,
    find_editable_manifest,
    find_extents_after_insertion,
    replace_manifests,
    replace_manifests_of_small_arrays,
)
from icefloe.transaction.change_columns import gather_changes
from icefloe.transaction.change_set import build_transaction_log, compare_nodes, merge_logs
from icefloe.transaction.chunk_changes import ChunkChanges
from icefloe.transaction.splitting import compute_split_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.assets import Assets, EncodedFile
    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import NodeId
    from icefloe.model.node import DimensionShape
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.transaction.adopted import LogWriter
    from icefloe.transaction.array_manifests import ManifestMerger
    from icefloe.transaction.change_columns import ChangeColumns
    from icefloe.transaction.change_set import ChangeSet

# Arrays of one manifest with at most this many references and changes are processed together.
_MAX_SMALL_ARRAY_REFS = 4096
# A manifest file is edited if at most one in this many references changes.
_MIN_REFS_PER_CHANGE = 64
# Inserting few references into a file costs less than decoding and encoding all.
_MAX_INSERTED_REFS, _MIN_REFS_BEFORE_INSERTION = 8, 32


@dataclass(frozen=True, slots=True)
class FlushResult:
    """The snapshot and the transaction log that a flush wrote."""

    tree: Tree
    log: TransactionLog


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of the manifests of an array; equal inputs give equal manifests.

    ``changes`` are compared by identity, and are mutable: ``revision`` detects changes to them.
    """

    old_refs: tuple[ManifestRef, ...]
    shape: tuple[DimensionShape, ...]
    changes: ChunkChanges | None
    revision: int


@dataclass(slots=True)
class Flusher:
    """Writes the change sets of one session."""

    assets: Assets
    config: RepositoryConfig
    location_compression: LocationCompression | None = None
    _written: dict[NodeId, tuple[_Inputs, tuple[ManifestRef, ...]]] = field(default_factory=dict)
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
        merge_manifests: ManifestMerger | None = None,
        write_log: LogWriter | None = None,
    ) -> FlushResult:
        """Write all files of a commit, except the ref that makes it visible.

        ``amended`` is the log of the commit that this one replaces; its changes are included.
        ``rewrite`` rewrites the manifests of all arrays with the current splitting rules.
        ``with_log=False`` omits the log, for snapshots outside the history. ``durable`` makes all
        files durable; without it, the commit does. ``merge_manifests`` merges the manifests of all
        arrays before they are written. ``write_log`` writes the log of a commit with adopted
        manifests, instead of this method.
        """
        nodes = {node.path: node for node in base.snapshot.nodes}
        for path, node in changes.edits.items():
            if node is None:
                nodes.pop(path, None)
            else:
                nodes[path] = node
        infos = {info.id: info for info in base.snapshot.manifest_files} | self._infos
        adopted = [manifest.info for group in changes.adopted.values() for manifest in group]
        infos |= {info.id: info for info in adopted}
        manifests, planned, changed = self._plan_arrays(
            base, nodes.values(), changes, rewrite=rewrite
        )
        files: list[EncodedFile] = []
        new_manifests: list[Manifest] = []
        small, large = _split_by_size(changed, changes, infos)
        columns = gather_changes(small)
        # Merging reads the new manifests, and an edited manifest exists only as an encoded file.
        can_edit = merge_manifests is None
        for result in self._replace_manifests(columns, large, changed, infos, can_edit=can_edit):
            manifests |= result.refs
            new_manifests += result.manifests
            infos |= {info.id: info for info, _ in result.edited}
            files += [file for _, file in result.edited]
        if merge_manifests is not None:
            new_manifests = self._merge(
                merge_manifests, nodes.values(), manifests, infos, new_manifests
            )
        for manifest in new_manifests:
            info, file = self.assets.encode_manifest(manifest, self.location_compression)
            self._infos[info.id] = infos[info.id] = info
            files.append(file)
        used_infos, new_nodes = _attach_manifests(nodes.values(), manifests, infos)
        snapshot = self._add_generation_fields(
            Snapshot(
                self.assets.generation.make_id(SnapshotId),
                parent_id,
                # A snapshot is newer than its parent, even if the clocks of their writers disagree.
                max(datetime.now(UTC), base.snapshot.flushed_at + timedelta(microseconds=1)),
                message,
                metadata,
                new_nodes,
                used_infos,
            ),
            base.snapshot,
        )
        # `columns` has only the changes of small arrays; the log needs those of all arrays.
        if len(small) < sum(map(bool, changes.chunks.values())):
            columns = gather_changes(changes.chunks)
        log = build_transaction_log(snapshot.id, compare_nodes(base, changes), columns)
        if amended is not None:
            log = merge_logs(amended, log)
        with_log = with_log and self.assets.generation.has_transaction_logs
        if with_log and changes.adopted and write_log is not None:
            write_log(log, changes.adopted)
        elif with_log:
            log = add_adopted_chunks(log, changes.adopted, self.assets) if changes.adopted else log
            files.append(self.assets.encode_transaction_log(log))
        encoded = self.assets.encode_snapshot(snapshot)
        files += encoded.attributes
        if durable:
            self.assets.run_concurrently(self.assets.write, files)
            self.assets.publish(encoded.file)
        else:
            self.assets.run_concurrently(self.assets.write, [*files, encoded.file])
        # Only after the writes: if one fails, the next attempt must repeat them.
        self._written |= {
            node_id: (inputs, manifests[node_id]) for node_id, inputs in planned.items()
        }
        tree = Tree(encoded.snapshot)
        self.assets.cache(tree, new_manifests)
        return FlushResult(tree, log)

    def _add_generation_fields(self, snapshot: Snapshot, base: Snapshot) -> Snapshot:
        """Set the next node number and the ancestors, in generations that record them."""
        generation = self.assets.generation
        if generation.numbers_nodes:
            numbers = [node.id.number + 1 for node in snapshot.nodes]
            next_number = max([base.next_node_number, *numbers])
            snapshot = replace(snapshot, next_node_number=next_number)
        if generation.records_ancestors:
            ancestors = (base.get_info(), *base.recent_ancestors)[:MAX_RECENT_ANCESTORS]
            num_ancestors = base.num_ancestors + 1
            snapshot = replace(snapshot, recent_ancestors=ancestors, num_ancestors=num_ancestors)
        return snapshot

    def _plan_arrays(
        self, base: Tree, nodes: Iterable[NodeSnapshot], changes: ChangeSet, *, rewrite: bool
    ) -> tuple[
        dict[NodeId, tuple[ManifestRef, ...]], dict[NodeId, _Inputs], dict[NodeId, ChangedArray]
    ]:
        """Return the manifests of unchanged arrays, and the inputs and plans of all others."""
        splitting_rules = self.config.effective_manifest.effective_splitting
        manifests: dict[NodeId, tuple[ManifestRef, ...]] = {}
        planned: dict[NodeId, _Inputs] = {}
        changed: dict[NodeId, ChangedArray] = {}
        for node in nodes:
            data = node.node_data
            if not isinstance(data, ArrayNodeData):
                continue
            old_node = base.by_id.get(node.id)
            old_data = None if old_node is None else old_node.node_data
            old_refs = old_data.manifests if isinstance(old_data, ArrayNodeData) else ()
            old_refs += tuple([manifest.ref for manifest in changes.adopted.get(node.id, ())])
            chunk_changes = changes.chunks.get(node.id)
            grid = tuple([dimension.num_chunks for dimension in data.shape])
            is_same_grid = old_data is data or (
                isinstance(old_data, ArrayNodeData)
                and grid == tuple([dimension.num_chunks for dimension in old_data.shape])
            )
            if not rewrite and not chunk_changes and (is_same_grid or not old_refs):
                manifests[node.id] = old_refs
                continue
            revision = chunk_changes.revision if chunk_changes else 0
            inputs = _Inputs(old_refs, data.shape, chunk_changes, revision)
            earlier = self._written.get(node.id)
            if earlier is not None and earlier[0] == inputs and not rewrite:
                manifests[node.id] = earlier[1]
                continue
            planned[node.id] = inputs
            sizes = compute_split_sizes(splitting_rules, node.path, data)
            changed[node.id] = ChangedArray(node.id, grid, sizes, old_refs, rewrite)
        return manifests, planned, changed

    def _replace_manifests(
        self,
        small: Iterable[ChangeColumns],
        large: Mapping[NodeId, ChunkChanges],
        changed: Mapping[NodeId, ChangedArray],
        infos: Mapping[ManifestId, ManifestFileInfo],
        *,
        can_edit: bool,
    ) -> Iterable[NewManifests]:
        for columns in small:
            arrays = [changed[node_id] for node_id in columns.node_ids]
            inserted = self._insert_refs(arrays, columns.refs, infos) if can_edit else None
            yield inserted or replace_manifests_of_small_arrays(
                arrays, columns, self._fetch_manifests, self._make_manifest_id
            )
        for node_id, chunk_changes in large.items():
            array_changes = chunk_changes.to_columns()
            yield self._replace_large(changed[node_id], array_changes, infos, can_edit=can_edit)

    def _insert_refs(
        self,
        arrays: Sequence[ChangedArray],
        changes: ArrayManifest,
        infos: Mapping[ManifestId, ManifestFileInfo],
    ) -> NewManifests | None:
        """Add few chunks to the file of one array; None if its manifest must be rewritten."""
        array = arrays[0]
        if len(arrays) > 1 or len(changes) > _MAX_INSERTED_REFS or len(array.manifests) != 1:
            return None
        (old_ref,) = array.manifests
        extents = find_extents_after_insertion(array, changes)
        if extents is None or infos[old_ref.id].num_chunk_refs < _MIN_REFS_BEFORE_INSERTION:
            return None
        refs = ArrayManifest(changes.coords[:, 1:], overlay.compact(changes.payloads))
        new = Manifest.of_array(self._make_manifest_id(), array.node_id, refs)
        inserted = self.assets.insert_refs(infos[old_ref.id], new)
        if inserted is None:
            return None
        self._infos[new.id] = inserted[0]
        return NewManifests({array.node_id: (ManifestRef(new.id, extents),)}, [], [inserted])

    def _replace_large(
        self,
        array: ChangedArray,
        changes: ArrayManifest,
        infos: Mapping[ManifestId, ManifestFileInfo],
        *,
        can_edit: bool,
    ) -> NewManifests:
        """Build the manifests of a large array, by editing a file if few references change."""
        ref = find_editable_manifest(array, changes)
        if (
            ref is None
            or not can_edit
            or self.assets.is_manifest_decoded(ref.id)
            or len(changes) * _MIN_REFS_PER_CHANGE > infos[ref.id].num_chunk_refs
        ):
            return replace_manifests(array, changes, self._fetch_manifests, self._make_manifest_id)
        compact = ArrayManifest(changes.coords, overlay.compact(changes.payloads))
        new = Manifest.of_array(self._make_manifest_id(), array.node_id, compact)
        edited = self.assets.edit_manifest(infos[ref.id], new)
        if isinstance(edited, Manifest):  # the old manifest, whose file cannot be edited
            return replace_manifests(array, changes, lambda _: [edited], self._make_manifest_id)
        self._infos[new.id] = edited[0]
        refs = [
            ManifestRef(new.id, ref.extents) if old_ref is ref else old_ref
            for old_ref in array.manifests
        ]
        return NewManifests({array.node_id: tuple(refs)}, [], [edited])

    def _merge(
        self,
        merge_manifests: ManifestMerger,
        nodes: Iterable[NodeSnapshot],
        manifests: dict[NodeId, tuple[ManifestRef, ...]],
        infos: Mapping[ManifestId, ManifestFileInfo],
        new_manifests: list[Manifest],
    ) -> list[Manifest]:
        """Merge manifests, including new ones, and update ``manifests``; return those to write."""
        unwritten = {manifest.id: manifest for manifest in new_manifests}

        def fetch(ids: Iterable[ManifestId]) -> list[Manifest]:
            manifest_ids = list(ids)
            stored = self._fetch_manifests([id_ for id_ in manifest_ids if id_ not in unwritten])
            return [*stored, *(unwritten[id_] for id_ in manifest_ids if id_ in unwritten)]

        num_refs = {info.id: info.num_chunk_refs for info in infos.values()}
        num_refs |= {manifest.id: len(manifest) for manifest in new_manifests}
        merged = merge_manifests(nodes, manifests, num_refs, fetch, self._make_manifest_id)
        manifests |= merged.refs
        used_ids = {ref.id for refs in manifests.values() for ref in refs}
        candidates = [*new_manifests, *merged.manifests]
        return [manifest for manifest in candidates if manifest.id in used_ids]

    def _make_manifest_id(self) -> ManifestId:
        return self.assets.generation.make_id(ManifestId)

    def _fetch_manifests(self, manifest_ids: Iterable[ManifestId]) -> list[Manifest]:
        return self.assets.run_concurrently(self.assets.fetch_manifest, manifest_ids)


def _split_by_size(
    changed: Mapping[NodeId, ChangedArray],
    changes: ChangeSet,
    infos: Mapping[ManifestId, ManifestFileInfo],
) -> tuple[dict[NodeId, ChunkChanges], dict[NodeId, ChunkChanges]]:
    """Return the changes of small arrays, processed together, and of others, one by one."""
    small, large = {}, {}
    for node_id, array in changed.items():
        chunk_changes = changes.chunks.get(node_id)
        num_refs = sum([infos[ref.id].num_chunk_refs for ref in array.manifests])
        if (
            chunk_changes
            and num_refs <= _MAX_SMALL_ARRAY_REFS
            and len(chunk_changes) <= _MAX_SMALL_ARRAY_REFS
            and len(array.manifests) <= 1
            and array.has_one_cell
        ):
            small[node_id] = chunk_changes
        else:
            large[node_id] = chunk_changes or ChunkChanges(len(array.grid_shape))
    return small, large


def _attach_manifests(
    nodes: Iterable[NodeSnapshot],
    manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
    infos: Mapping[ManifestId, ManifestFileInfo],
) -> tuple[tuple[ManifestFileInfo, ...], tuple[NodeSnapshot, ...]]:
    """Return the manifest files in use, and all nodes, sorted by path, with their manifests."""
    new_nodes = []
    used_ids: set[ManifestId] = set()
    for node in sorted(nodes, key=lambda node: node.path.value):
        data = node.node_data
        if isinstance(data, ArrayNodeData):
            refs = manifests[node.id]
            used_ids.update([ref.id for ref in refs])
            if refs is not data.manifests:
                new_data = ArrayNodeData(data.shape, data.dimension_names, refs)
                node = replace(node, node_data=new_data)  # noqa: PLW2901
        new_nodes.append(node)
    return tuple([infos[manifest_id] for manifest_id in sorted(used_ids)]), tuple(new_nodes)
