"""Virtual files of the whole history of a repository: counts, and the references to one file.

Reads all snapshots in the history of branches and tags, and each of their manifests once, within
limits of memory. Virtual data is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icefloe.containers.dependencies import (
    Dependencies,
    DependencyCount,
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

# Snapshots fetched at the same time.
_SNAPSHOTS_AT_ONCE = 50


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
    """Count the virtual files of the whole history."""
    history = ReachableHistory.fetch(refs)
    wanted, infos = _fetch_manifests(assets, history.infos)
    count = DependencyCount()
    reader = RepositoryReader(assets.storage, assets.spec_version, limits)
    for manifest in reader.read_manifests(infos, lambda manifest: manifest):
        for node_id in sorted(wanted[manifest.id]):
            refs_of_array = manifest.array(node_id)
            if refs_of_array is not None:
                count.add(node_id, refs_of_array.payloads)
    return count.finish(virtual)


def find_dependents(
    location: str,
    refs: Refs,
    assets: Assets,
    virtual: VirtualChunks,
    limits: ReadLimits | None = None,
) -> Dependents:
    """Find the references to a file, or to all files below a prefix that ends in ``/``."""
    history = ReachableHistory.fetch(refs)
    wanted, infos = _fetch_manifests(assets, history.infos)
    target = _Target.of(location, virtual)
    reader = RepositoryReader(assets.storage, assets.spec_version, limits)

    def find_arrays(manifest: Manifest) -> list[tuple[ManifestId, NodeId]]:
        nodes = target.find_in(manifest, virtual)
        return [(manifest.id, node) for node in nodes if node in wanted[manifest.id]]

    hits = {hit for found in reader.read_manifests(infos, find_arrays) for hit in found}
    if not hits:
        return Dependents(location, ())
    dependents = []
    for snapshot in _fetch_snapshots(assets, history.infos):
        paths = {
            str(node.path)
            for node in snapshot.nodes
            if isinstance(node.node_data, ArrayNodeData)
            and any((ref.id, node.id) in hits for ref in node.node_data.manifests)
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
    """The locations by which references may name a file or a folder."""

    names: frozenset[str]
    is_folder: bool

    @classmethod
    def of(cls, location: str, virtual: VirtualChunks) -> _Target:
        """Parse a location; raises `InvalidInputError` if it is invalid."""
        is_folder = location.endswith("/")
        name = "x" if is_folder else ""
        parsed = parse_location(location + name)
        names = {location, parsed.text.removesuffix(name)}
        place = virtual.place(location + name)
        if place is not None:
            names.add(place.removesuffix(name))
        return cls(frozenset(names), is_folder)

    def find_in(self, manifest: Manifest, virtual: VirtualChunks) -> list[NodeId]:
        """Find the arrays of a manifest that refer to the target."""
        payloads = manifest.payloads
        matches = self._matches(payloads.locations)
        places = virtual.resolve_many(payloads.locations).places
        if places is not payloads.locations:
            matches |= self._matches(places)
        if not matches.any():
            return []
        rows = (payloads.kind == ChunkKind.VIRTUAL) & np.append(matches, False)[payloads.location]
        owners = np.searchsorted(manifest.indices.splits, np.flatnonzero(rows), side="right") - 1
        nodes = list(manifest.indices.nodes())
        return [nodes[number] for number in np.unique(owners).tolist()]

    def _matches(self, locations: Strings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        found = np.zeros(len(locations), bool)
        for name in self.names:
            size = len(name.encode())
            lengths = locations.lengths
            # Few locations have the right length and last byte.
            likely = np.flatnonzero(lengths >= size if self.is_folder else lengths == size)
            if len(likely):
                last = locations.data[locations.offsets[likely] + size - 1]
                likely = likely[last == name.encode()[-1]]
            for row in likely.tolist():
                text = locations[row]
                found[row] |= text.startswith(name) if self.is_folder else text == name
        return found


def _fetch_manifests(
    assets: Assets, snapshot_ids: Iterable[SnapshotId]
) -> tuple[dict[ManifestId, set[NodeId]], list[ManifestFileInfo]]:
    """Return the manifests of all snapshots, and the arrays that use each."""
    wanted: dict[ManifestId, set[NodeId]] = {}
    infos: dict[ManifestId, ManifestFileInfo] = {}
    for snapshot in _fetch_snapshots(assets, snapshot_ids):
        infos.update((info.id, info) for info in snapshot.manifest_files)
        for node in snapshot.nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    wanted.setdefault(ref.id, set()).add(node.id)
    return wanted, [
        infos.get(manifest_id, ManifestFileInfo(manifest_id, 0, 0)) for manifest_id in wanted
    ]


def _fetch_snapshots(assets: Assets, snapshot_ids: Iterable[SnapshotId]) -> Iterator[Snapshot]:
    ids = list(snapshot_ids)
    for begin in range(0, len(ids), _SNAPSHOTS_AT_ONCE):
        yield from assets.run_concurrently(
            assets.fetch_snapshot, ids[begin : begin + _SNAPSHOTS_AT_ONCE]
        )
