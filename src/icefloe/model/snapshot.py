"""Snapshots: the state of a repository at a commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.model.node import ArrayNodeData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.node import NodeSnapshot

MAX_RECENT_ANCESTORS = 50
"""The maximum number of ancestors that a snapshot lists."""

INITIAL_MESSAGE = "Repository initialized"
INITIAL_METADATA: Mapping[str, Any] = {"__icechunk": {"is_root": True}}


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest file that a snapshot refers to."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int


class SnapshotLinks(NamedTuple):
    """A snapshot, its parent, and its ancestors that expiration removed from the history."""

    id: SnapshotId
    parent_id: SnapshotId | None
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...]

    @property
    def log_ids(self) -> tuple[SnapshotId, ...]:
        """The transaction logs of all changes since the parent, oldest first."""
        return (*self.pruned_ancestor_tx_logs, self.id)

    def trim_logs(self, expired_id: SnapshotId) -> SnapshotLinks:
        """Return only the logs after those of an expired ancestor; self if it is not one."""
        logs = self.pruned_ancestor_tx_logs
        if expired_id not in logs:
            return self
        return self._replace(pruned_ancestor_tx_logs=logs[logs.index(expired_id) + 1 :])


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The history entry of a snapshot; times are in UTC, with microseconds."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()

    def get_links(self) -> SnapshotLinks:
        """Return to which snapshots and transaction logs this snapshot refers."""
        return SnapshotLinks(self.id, self.parent_id, self.pruned_ancestor_tx_logs)


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files that a snapshot refers to."""

    id: SnapshotId
    parent_id: SnapshotId | None
    manifests: tuple[ManifestFileInfo, ...]
    attributes: frozenset[AttributesId] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit: all groups and arrays, and their manifest files.

    ``nodes`` are ordered by path; they and ``manifest_files`` are tuples, or read from the file on
    access. ``parent_id`` is None for the first snapshot, and in spec version
    2, where `RepoInfo` records ancestry.

    In generations that number nodes, ``next_node_number`` is greater than the number of every node
    in the history. In generations that record ancestors in snapshots, ``recent_ancestors`` has some
    of the ``num_ancestors``, newest first.
    """

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(hash=False)
    nodes: Sequence[NodeSnapshot]
    manifest_files: Sequence[ManifestFileInfo]
    next_node_number: int = 0
    recent_ancestors: tuple[SnapshotInfo, ...] = ()
    num_ancestors: int = 0

    def get_info(self) -> SnapshotInfo:
        """Return the history entry of this snapshot."""
        return SnapshotInfo(self.id, self.parent_id, self.flushed_at, self.message, self.metadata)

    def find_files(self) -> SnapshotFiles:
        """Find the files that this snapshot refers to."""
        manifests = {info.id: info for info in self.manifest_files}
        # Readers use the references of arrays, even to manifests that the list lacks.
        for node in self.nodes:
            if isinstance(node.node_data, ArrayNodeData):
                for ref in node.node_data.manifests:
                    manifests.setdefault(ref.id, ManifestFileInfo(ref.id, 0, 0))
        attributes = frozenset(
            [node.attributes_ref.id for node in self.nodes if node.attributes_ref is not None]
        )
        return SnapshotFiles(self.id, self.parent_id, tuple(manifests.values()), attributes)
