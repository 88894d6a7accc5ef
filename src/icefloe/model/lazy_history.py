"""The snapshots and the ops log of a repository, made into objects when they are accessed."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from icefloe.model.lazy_sequence import LazySequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import OpsLogEntry
    from icefloe.model.snapshot import SnapshotInfo


class LazySnapshots(LazySequence["SnapshotInfo"]):
    """Snapshots of a file, ordered by id, followed by those that were added since."""

    __slots__ = ()

    @abstractmethod
    def find(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return a snapshot, or None."""

    @abstractmethod
    def add(self, snapshot: SnapshotInfo) -> LazySnapshots:
        """Return these snapshots and another one."""


class LazyUpdates(LazySequence["OpsLogEntry"]):
    """Entries of the ops log, newest first."""

    __slots__ = ()

    @abstractmethod
    def replace_first(self, entries: Sequence[OpsLogEntry]) -> LazyUpdates:
        """Return the log with other entries in place of the first one."""
