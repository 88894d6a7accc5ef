"""Files of virtual chunks over the whole history: how many, and which snapshots refer to a file.

Reads all snapshots in the history of branches and tags, and each of their manifests once, within
memory limits. The files of virtual chunks are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.containers.dependencies import (
    Dependencies,
    DependencyCounter,
    Dependents,
    DependentSnapshot,
)
from icefloe.containers.locations import parse_location
from icefloe.maintenance.repository_reader import RepositoryReader
from icefloe.model.chunk_payload import ChunkKind
from icefloe.model.node import ArrayNodeData
from icefloe.model.snapshot import ManifestFileInfo
from icefloe.refs.lookup import find_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icefloe.assets import Assets
    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.maintenance.limits import ReadLimits
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.model.strings import Strings
    from icefloe.refs.interface import Refs

_SNAPSHOT_BATCH = 50  # snapshots fetched concurrently


@dataclass(frozen=True, slots=True)
class ReachableHistory:
    """All snapshots in the history of branches and tags."""

    infos: Mapping[SnapshotId, SnapshotInfo]
    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]

    @classmethod
    def fetch(cls, refs: Refs) -> ReachableHistory:
        """Fetch the history, each snapshot once."""
        refs = refs.pin()
        branches, tags = refs.fetch_branches(), refs.fetch_tags()
        infos = refs.fetch_reachable({*branches.values(), *tags.values()})
        return cls(infos, branches, tags)


def count_dependencies(
    refs: Refs, assets: Assets, virtual: VirtualChunks, limits: ReadLimits | None = None
) -> Dependencies:
    """Count the files that virtual chunks of the whole history refer to."""
    history = ReachableHistory.fetch(refs)
    arrays_by_manifest, infos = _find_manifests(assets, history.infos)
    counter = DependencyCounter()
    reader = RepositoryReader(assets.storage, assets.generation, limits)
    for manifest in reader.read_manifests(infos, lambda manifest: manifest):
        for node_id in sorted(arrays_by_manifest[manifest.id]):
            array = manifest.get_array(node_id)
            if array is not None:
                counter.add(node_id, array.payloads)
    return counter.finish(virtual)


def find_dependents(
    location: str,
    refs: Refs,
    assets: Assets,
    virtual: VirtualChunks,
    limits: ReadLimits | None = None,
) -> Dependents:
    """Find the snapshots that refer to a file, or to a file below a prefix that ends in ``/``."""
    history = ReachableHistory.fetch(refs)
    arrays_by_manifest, infos = _find_manifests(assets, history.infos)
    target = _Target.parse(location, virtual)
    reader = RepositoryReader(assets.storage, assets.generation, limits)

    def find_matches(manifest: Manifest) -> list[tuple[ManifestId, NodeId]]:
        node_ids = target.find_arrays(manifest, virtual)
        users = arrays_by_manifest[manifest.id]
        return [(manifest.id, node_id) for node_id in node_ids if node_id in users]

    matches = {match for part in reader.read_manifests(infos, find_matches) for match in part}
    if not matches:
        return Dependents(location, ())
    dependents = []
    for snapshot in _fetch_snapshots(assets, history.infos):
        paths = {
            str(node.path)
            for node in snapshot.nodes
            if isinstance(node.node_data, ArrayNodeData)
            and any((ref.id, node.id) in matches for ref in node.node_data.manifests)
        }
        if paths:
            info = history.infos[snapshot.id]
            dependents.append(
                DependentSnapshot(
                    str(info.id),
                    info.flushed_at,
                    info.message,
                    find_names(history.branches, info.id),
                    find_names(history.tags, info.id),
                    tuple(sorted(paths)),
                )
            )
    dependents.sort(key=lambda snapshot: snapshot.written_at, reverse=True)
    return Dependents(location, tuple(dependents))


@dataclass(frozen=True, slots=True)
class _Target:
    """A file or a folder, with all locations that references may use for it."""

    locations: frozenset[str]
    is_folder: bool

    @classmethod
    def parse(cls, location: str, virtual: VirtualChunks) -> _Target:
        """Parse a location; raises `InvalidInputError` if it is invalid."""
        is_folder = location.endswith("/")
        placeholder = "x" if is_folder else ""  # `parse_location` requires a file name
        parsed = parse_location(location + placeholder)
        locations = {location, parsed.text.removesuffix(placeholder)}
        place = virtual.place(location + placeholder)
        if place is not None:
            locations.add(place.removesuffix(placeholder))
        return cls(frozenset(locations), is_folder)

    def find_arrays(self, manifest: Manifest, virtual: VirtualChunks) -> list[NodeId]:
        """Find the arrays of a manifest that refer to the target."""
        payloads = manifest.payloads
        matches = self._match(payloads.locations)
        resolved = virtual.resolve_many(payloads.locations).locations
        if resolved is not payloads.locations:
            matches |= self._match(resolved)
        if not matches.any():
            return []
        # `NO_CODE` (-1) selects the appended False.
        is_match = np.append(matches, False)[payloads.location_codes]
        rows = np.flatnonzero(is_match & (payloads.kind == ChunkKind.VIRTUAL))
        array_positions = np.searchsorted(manifest.indices.row_offsets, rows, side="right") - 1
        node_ids = list(manifest.indices.iter_node_ids())
        return [node_ids[position] for position in np.unique(array_positions).tolist()]

    def _match(self, locations: Strings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        matches = np.zeros(len(locations), bool)
        for target in self.locations:
            size = len(target.encode())
            lengths = locations.lengths
            # Length and last byte exclude most locations cheaply.
            candidates = np.flatnonzero(lengths >= size if self.is_folder else lengths == size)
            if len(candidates):
                last = locations.data[locations.offsets[candidates] + size - 1]
                candidates = candidates[last == target.encode()[-1]]
            for row in candidates.tolist():
                text = locations[row]
                matches[row] |= text.startswith(target) if self.is_folder else text == target
        return matches


def _find_manifests(
    assets: Assets, snapshot_ids: Iterable[SnapshotId]
) -> tuple[dict[ManifestId, set[NodeId]], list[ManifestFileInfo]]:
    """Return, for all manifests of snapshots, the arrays that use each, and their file infos."""
    arrays_by_manifest: dict[ManifestId, set[NodeId]] = {}
    infos: dict[ManifestId, ManifestFileInfo] = {}
    for snapshot in _fetch_snapshots(assets, snapshot_ids):
        infos.update((info.id, info) for info in snapshot.manifest_files)
        for node in snapshot.nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    arrays_by_manifest.setdefault(ref.id, set()).add(node.id)
    # The list of a snapshot may lack manifests that its arrays use; their sizes are unknown.
    return arrays_by_manifest, [
        infos.get(manifest_id, ManifestFileInfo(manifest_id, 0, 0))
        for manifest_id in arrays_by_manifest
    ]


def _fetch_snapshots(assets: Assets, snapshot_ids: Iterable[SnapshotId]) -> Iterator[Snapshot]:
    ids = list(snapshot_ids)
    for begin in range(0, len(ids), _SNAPSHOT_BATCH):
        yield from assets.run_concurrently(
            assets.fetch_snapshot, ids[begin : begin + _SNAPSHOT_BATCH]
        )
