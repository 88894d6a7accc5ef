"""The snapshots and the ops log of a repository, made into objects when they are accessed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from icefloe.model.lazy_sequence import LazySequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import OpsLogEntry
    from icefloe.model.snapshot import SnapshotInfo, SnapshotLinks


class LazySnapshots(LazySequence["SnapshotInfo"]):
    """Snapshots of a file, ordered by id, followed by those that were added since."""

    __slots__ = ()

    def find(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return a snapshot, or None."""
        row = self.find_row(snapshot_id)
        return None if row is None else self.get_item(row)

    @abstractmethod
    def find_row(self, snapshot_id: SnapshotId) -> int | None:
        """Return the row of a snapshot, or None."""

    @abstractmethod
    def open_reader(self) -> SnapshotReader:
        """Return a reader of several snapshots."""

    @abstractmethod
    def add(self, snapshot: SnapshotInfo) -> LazySnapshots:
        """Return these snapshots and another one."""


class SnapshotReader(ABC):
    """Reads snapshots by row; safe to use from several threads."""

    @abstractmethod
    def iter_ancestry(self, row: int) -> Iterator[int]:
        """Yield the rows of a snapshot and its ancestors; raise `FormatError` on a cycle."""

    @abstractmethod
    def read(self, row: int) -> SnapshotInfo:
        """Read a snapshot."""

    @abstractmethod
    def read_links(self, row: int) -> SnapshotLinks:
        """Read to which snapshots and transaction logs a snapshot refers."""


class LazyUpdates(LazySequence["OpsLogEntry"]):
    """Entries of the ops log, newest first."""

    __slots__ = ()

    @abstractmethod
    def replace_first(self, entries: Sequence[OpsLogEntry]) -> LazyUpdates:
        """Return the log with other entries in place of the first one."""
