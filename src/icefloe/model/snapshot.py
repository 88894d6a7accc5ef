"""Snapshots: the state of a repository at a commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from icefloe.model.ids import ManifestId, SnapshotId
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


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The history entry of a snapshot; times are in UTC, with microseconds."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: datetime
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    pruned_ancestor_tx_logs: tuple[SnapshotId, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit: all groups and arrays, and their manifest files.

    ``nodes`` are ordered by path. ``parent_id`` is None for the first snapshot, and in spec version
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
    nodes: tuple[NodeSnapshot, ...]
    manifest_files: tuple[ManifestFileInfo, ...]
    next_node_number: int = 0
    recent_ancestors: tuple[SnapshotInfo, ...] = ()
    num_ancestors: int = 0

    def get_info(self) -> SnapshotInfo:
        """Return the history entry of this snapshot."""
        return SnapshotInfo(self.id, self.parent_id, self.flushed_at, self.message, self.metadata)
