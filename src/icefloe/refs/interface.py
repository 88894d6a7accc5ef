"""What the mutable part of a repository answers, whatever generation it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import Update
    from icefloe.model.snapshot import SnapshotInfo


class Refs(ABC):
    """Branches, tags, history and configuration of one repository, read from its storage."""

    spec_version: int

    @abstractmethod
    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        """Fetch all branches with the snapshots that they point at."""

    @abstractmethod
    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        """Fetch all tags, deleted ones aside, with the snapshots that they point at."""

    @abstractmethod
    def fetch_deleted_tags(self) -> frozenset[str]:
        """Fetch the names of deleted tags, which can never be used again."""

    @abstractmethod
    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Fetch a snapshot and its ancestors, newest first."""

    @abstractmethod
    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch the persisted configuration, None where there is none."""

    @abstractmethod
    def fetch_ops_log(self) -> Iterator[Update]:
        """Fetch what was done to the repository, newest first; generation v1 keeps no such log."""
