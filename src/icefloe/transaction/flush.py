"""From a change set to files: manifests, the snapshot and the transaction log of a commit.

Nothing becomes visible here: files get fresh random names, and a commit or nobody refers to them.
Only what changed is rewritten (`array_manifests`), and what an earlier attempt of the same session
wrote is used again where nothing it was made from changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from icefloe.model.ids import ManifestId, SnapshotId
from icefloe.model.manifest import ArrayManifest, Manifest
from icefloe.model.node import ArrayNodeData, ManifestRef, NodeSnapshot
from icefloe.model.snapshot import Snapshot
from icefloe.model.tree import Tree
from icefloe.transaction import overlay
from icefloe.transaction.adopted import complete_log
from icefloe.transaction.array_manifests import (
    ChangedArray,
    NewManifests,
    find_editable_manifest,
    replace_manifests,
    replace_small_manifests,
)
from icefloe.transaction.change_columns import gather
from icefloe.transaction.change_set import build_transaction_log, compare_nodes, merge_logs
from icefloe.transaction.chunk_changes import ChunkChanges
from icefloe.transaction.splitting import split_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.assets import Assets, EncodedFile
    from icefloe.format.location_compression import LocationCompression
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import NodeId
    from icefloe.model.node import DimensionShape
    from icefloe.model.snapshot import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.transaction.adopted import LogWriter
    from icefloe.transaction.array_manifests import MergeManifests
    from icefloe.transaction.change_columns import ChangeColumns
    from icefloe.transaction.change_set import ChangeSet

# Arrays with fewer references and changes than this are dealt with all at once.
_FEW = 4096
# Changes to one reference in this many, or fewer, are worth a try at editing a manifest's file.
_FEW_CHANGES = 64


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush wrote."""

    tree: Tree
    log: TransactionLog


@dataclass(frozen=True, slots=True)
class _Source:
    """What the manifests of an array are made from; equal sources give equal manifests."""

    base: tuple[ManifestRef, ...]
    shape: tuple[DimensionShape, ...]
    changes: ChunkChanges | None
    revision: int


@dataclass(slots=True)
class Flusher:
    """Writes change sets of one session."""

    assets: Assets
    config: RepositoryConfig
    location_compression: LocationCompression | None = None
    _written: dict[NodeId, tuple[_Source, tuple[ManifestRef, ...]]] = field(default_factory=dict)
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
        merge_manifests: MergeManifests | None = None,
        write_log: LogWriter | None = None,
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
        merge_manifests
            Merges the manifests of all arrays before they are written.
        write_log
            Writes the transaction log of a commit with adopted manifests, instead of this process.
        """
        nodes = {node.path: node for node in base.snapshot.nodes}
        for path, node in changes.edits.items():
            if node is None:
                nodes.pop(path, None)
            else:
                nodes[path] = node
        infos = {info.id: info for info in base.snapshot.manifest_files} | self._infos
        infos |= {one.info.id: one.info for refs in changes.adopted.values() for one in refs}
        manifests, planned, changed = self._look_at(base, nodes.values(), changes, rewrite=rewrite)
        files: list[EncodedFile] = []
        made: list[Manifest] = []
        small, large = _by_size(changed, changes, infos)
        columns = gather(small)
        can_edit = merge_manifests is None
        for new in self._replace_manifests(columns, large, changed, infos, can_edit=can_edit):
            manifests |= new.refs
            made += new.made
            infos |= {info.id: info for info, _ in new.edited}
            files += [file for _, file in new.edited]
        if merge_manifests is not None:
            made = self._merge(merge_manifests, nodes.values(), manifests, infos, made)
        for manifest in made:
            info, file = self.assets.encode_manifest(manifest, self.location_compression)
            self._infos[info.id] = infos[info.id] = info
            files.append(file)
        used, written = _with_manifests(nodes.values(), manifests, infos)
        # A snapshot is newer than its parent, whatever the clocks of the two writers say.
        flushed_at = max(datetime.now(UTC), base.snapshot.flushed_at + timedelta(microseconds=1))
        snapshot = Snapshot(
            SnapshotId.random(), parent_id, flushed_at, message, metadata, written, used
        )
        if len(small) < sum(map(bool, changes.chunks.values())):
            columns = gather(changes.chunks)
        log = build_transaction_log(snapshot.id, compare_nodes(base, changes), columns)
        if amended is not None:
            log = merge_logs(amended, log)
        if with_log and changes.adopted and write_log is not None:
            write_log(log, changes.adopted)
        elif with_log:
            log = complete_log(log, changes.adopted, self.assets) if changes.adopted else log
            files.append(self.assets.encode_transaction_log(log))
        snapshot_file = self.assets.encode_snapshot(snapshot)
        if durable:
            self.assets.run_concurrently(self.assets.write, files)
            self.assets.publish(snapshot_file)
        else:
            self.assets.run_concurrently(self.assets.write, [*files, snapshot_file])
        # Only now: manifests whose write failed must be written by the next attempt.
        self._written |= {
            node_id: (source, manifests[node_id]) for node_id, source in planned.items()
        }
        tree = Tree(snapshot)
        self.assets.keep(tree, made)
        return Flushed(tree, log)

    def _look_at(
        self, base: Tree, nodes: Iterable[NodeSnapshot], changes: ChangeSet, *, rewrite: bool
    ) -> tuple[
        dict[NodeId, tuple[ManifestRef, ...]], dict[NodeId, _Source], dict[NodeId, ChangedArray]
    ]:
        """Tell arrays whose manifests are known from those that need new ones."""
        rules = self.config.effective_manifest.effective_splitting
        manifests: dict[NodeId, tuple[ManifestRef, ...]] = {}
        planned: dict[NodeId, _Source] = {}
        changed: dict[NodeId, ChangedArray] = {}
        for node in nodes:
            data = node.node_data
            if not isinstance(data, ArrayNodeData):
                continue
            before = base.by_id.get(node.id)
            was = None if before is None else before.node_data
            old = was.manifests if isinstance(was, ArrayNodeData) else ()
            old += tuple([one.ref for one in changes.adopted.get(node.id, ())])
            chunk_changes = changes.chunks.get(node.id)
            grid = tuple([dimension.num_chunks for dimension in data.shape])
            is_same_grid = was is data or (
                isinstance(was, ArrayNodeData)
                and grid == tuple([dimension.num_chunks for dimension in was.shape])
            )
            if not rewrite and not chunk_changes and (is_same_grid or not old):
                manifests[node.id] = old
                continue
            revision = chunk_changes.revision if chunk_changes else 0
            source = _Source(old, data.shape, chunk_changes, revision)
            known = self._written.get(node.id)
            if known is not None and known[0] == source and not rewrite:
                manifests[node.id] = known[1]
                continue
            planned[node.id] = source
            sizes = split_sizes(rules, node.path, data)
            changed[node.id] = ChangedArray(node.id, grid, sizes, old, rewrite)
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
        for group in small:
            arrays = [changed[node_id] for node_id in group.node_ids]
            yield replace_small_manifests(arrays, group, self._fetch)
        for node_id, chunk_changes in large.items():
            columns = chunk_changes.columns()
            yield self._replace_large(changed[node_id], columns, infos, can_edit=can_edit)

    def _replace_large(
        self,
        array: ChangedArray,
        changes: ArrayManifest,
        infos: Mapping[ManifestId, ManifestFileInfo],
        *,
        can_edit: bool,
    ) -> NewManifests:
        """Make the manifests of a large array, by editing a file where that is less work."""
        ref = find_editable_manifest(array, changes)
        if (
            ref is None
            or not can_edit
            or self.assets.has_manifest(ref.id)
            or len(changes) * _FEW_CHANGES > infos[ref.id].num_chunk_refs
        ):
            return replace_manifests(array, changes, self._fetch)
        compact = ArrayManifest(changes.coords, overlay.compact(changes.payloads))
        new = Manifest.of_one(ManifestId.random(), array.node_id, compact)
        edited = self.assets.edit_manifest(infos[ref.id], new)
        if isinstance(edited, Manifest):
            return replace_manifests(array, changes, lambda _: [edited])
        self._infos[new.id] = edited[0]
        refs = [ManifestRef(new.id, ref.extents) if one is ref else one for one in array.manifests]
        return NewManifests({array.node_id: tuple(refs)}, [], [edited])

    def _merge(
        self,
        merge_manifests: MergeManifests,
        nodes: Iterable[NodeSnapshot],
        manifests: dict[NodeId, tuple[ManifestRef, ...]],
        infos: Mapping[ManifestId, ManifestFileInfo],
        made: list[Manifest],
    ) -> list[Manifest]:
        """Let somebody put manifests together, also those just made; returns what is to write."""
        own = {one.id: one for one in made}

        def fetch(ids: Iterable[ManifestId]) -> list[Manifest]:
            wanted = list(ids)
            stored = self._fetch([one for one in wanted if one not in own])
            return [*stored, *(own[one] for one in wanted if one in own)]

        num_refs = {one.id: one.num_chunk_refs for one in infos.values()}
        num_refs |= {one.id: len(one) for one in made}
        new = merge_manifests(nodes, manifests, num_refs, fetch)
        manifests |= new.refs
        used = {ref.id for refs in manifests.values() for ref in refs}
        return [one for one in [*made, *new.made] if one.id in used]

    def _fetch(self, manifest_ids: Iterable[ManifestId]) -> list[Manifest]:
        return self.assets.run_concurrently(self.assets.fetch_manifest, manifest_ids)


def _by_size(
    changed: Mapping[NodeId, ChangedArray],
    changes: ChangeSet,
    infos: Mapping[ManifestId, ManifestFileInfo],
) -> tuple[dict[NodeId, ChunkChanges], dict[NodeId, ChunkChanges]]:
    """Tell arrays that are dealt with together from those that are worth a pass of their own."""
    small, large = {}, {}
    for node_id, array in changed.items():
        chunk_changes = changes.chunks.get(node_id)
        refs = sum([infos[ref.id].num_chunk_refs for ref in array.manifests])
        if (
            chunk_changes
            and refs <= _FEW
            and len(chunk_changes) <= _FEW
            and len(array.manifests) <= 1
            and array.has_one_cell
        ):
            small[node_id] = chunk_changes
        else:
            large[node_id] = chunk_changes or ChunkChanges(len(array.num_chunks))
    return small, large


def _with_manifests(
    nodes: Iterable[NodeSnapshot],
    manifests: Mapping[NodeId, tuple[ManifestRef, ...]],
    infos: Mapping[ManifestId, ManifestFileInfo],
) -> tuple[tuple[ManifestFileInfo, ...], tuple[NodeSnapshot, ...]]:
    """Let the arrays name their manifests; returns what the snapshot says of those, too."""
    written = []
    used: set[ManifestId] = set()
    for node in sorted(nodes, key=lambda node: node.path.value):
        data = node.node_data
        if isinstance(data, ArrayNodeData):
            refs = manifests[node.id]
            used.update([ref.id for ref in refs])
            if refs is not data.manifests:
                now = ArrayNodeData(data.shape, data.dimension_names, refs)
                node = NodeSnapshot(node.id, node.path, node.user_data, now)  # noqa: PLW2901
        written.append(node)
    return tuple([infos[manifest_id] for manifest_id in sorted(used)]), tuple(written)
