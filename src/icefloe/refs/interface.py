"""What the mutable part of a repository answers and changes, whatever generation it is."""

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
    """Branches, tags, history and configuration of one repository.

    Every change is one conditional write, the deletion of a branch in generation v1 aside: it takes
    effect wholly or not at all, and of two at the same time one is told so. A `ConflictError`
    proves that nothing changed; `OutcomeUnknownError` says that nobody can tell.
    """

    spec_version: int

    @abstractmethod
    def pinned(self) -> Refs:
        """Return references that answer all questions from one moment, where that can be had."""

    @abstractmethod
    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        """Fetch all branches with the snapshots that they point at."""

    @abstractmethod
    def fetch_branch(self, branch: str) -> SnapshotId:
        """Fetch where one branch points; one request, and no listing."""

    @abstractmethod
    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        """Fetch all tags, deleted ones aside, with the snapshots that they point at."""

    @abstractmethod
    def fetch_tag(self, tag: str) -> SnapshotId:
        """Fetch where one tag points; no listing."""

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

    @abstractmethod
    def commit(self, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Move a branch from ``parent`` to a snapshot whose files are all written.

        Raises `ConflictError` if the branch points elsewhere by now.
        """

    @abstractmethod
    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        """Create a branch that is not there."""

    @abstractmethod
    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Let a branch point at another snapshot; if given, it must point at ``expected`` now."""

    @abstractmethod
    def delete_branch(self, branch: str) -> None:
        """Delete a branch, any but main."""

    @abstractmethod
    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        """Create a tag, whose name must be new for ever."""

    @abstractmethod
    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name stays taken."""

    @abstractmethod
    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        """Replace the configuration if it is still ``expected``."""
