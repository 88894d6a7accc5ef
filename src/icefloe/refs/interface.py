"""What the mutable part of a repository answers and changes, whatever generation it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import FeatureFlag, OpsLogEntry, RepoStatus
    from icefloe.model.snapshot import Snapshot, SnapshotInfo
    from icefloe.refs.retention import ExpirationPolicy


class SnapshotSource(Protocol):
    """Fetches snapshots, or has them: `icefloe.assets.Assets`, or a cache in front of it."""

    def fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Fetch a snapshot; raises `ObjectNotFoundError` if it is not there."""


class Refs(ABC):
    """Branches, tags, history and configuration of one repository.

    Every change is one conditional write, expiration and the deletion of a branch in generation v1
    aside: it takes effect wholly or not at all, and of two at the same time one is told so. A
    `ConflictError` proves that nothing changed; `OutcomeUnknownError` says that nobody can tell.

    Only `fetch_branches`, `fetch_tags` and `fetch_deleted_tags` list the storage, and only in
    generation v1: all else works where listing is not allowed.

    What generation v1 has no place for raises `FormatError` of kind ``UNSUPPORTED_SPEC_VERSION``
    there, as in Icechunk: `amend`, the ops log, metadata, status and feature flags. The error says
    how to get a repository of version 2.
    """

    spec_version: int

    @abstractmethod
    def pin(self) -> Refs:
        """Return references that answer all questions from one moment, where that can be had.

        Changes go to what is there by then, and are not seen by pinned references.
        """

    @abstractmethod
    def with_assets(self, assets: SnapshotSource) -> Refs:
        """Return references that take snapshots from ``assets``, where history is kept in them."""

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
    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch what history says of one snapshot; one request.

        Raises `SnapshotNotFoundError` if it is not there.
        """

    @abstractmethod
    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Fetch a snapshot and its ancestors, newest first."""

    @abstractmethod
    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch the persisted configuration, None where there is none."""

    @abstractmethod
    def fetch_ops_log(self) -> Iterator[OpsLogEntry]:
        """Fetch what was done to the repository, newest first; version 2 only."""

    @abstractmethod
    def fetch_metadata(self) -> Mapping[str, Any]:
        """Fetch the repository's own metadata; version 2 only."""

    @abstractmethod
    def fetch_status(self) -> RepoStatus:
        """Fetch whether the repository takes changes; version 2 only."""

    @abstractmethod
    def require_online(self) -> None:
        """Refuse with `ReadOnlyError` if the repository takes no changes."""

    @abstractmethod
    def fetch_feature_flags(self) -> list[FeatureFlag]:
        """Fetch what the repository allows, one flag for each thing; version 2 only."""

    @abstractmethod
    def commit(self, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Move a branch from ``parent`` to a snapshot whose files are all written.

        Raises `ConflictError` if the branch points elsewhere by now.
        """

    @abstractmethod
    def begin_commit(self, branch: str, parent: SnapshotId) -> Callable[[SnapshotInfo], None]:
        """Look whether a branch is at ``parent``, before files are written for nothing.

        Returns what does as `commit` does, with a request less: it goes on from what was seen here,
        and looks again if something changed since.
        """

    @abstractmethod
    def amend(self, branch: str, previous: SnapshotId, snapshot: SnapshotInfo) -> None:
        """Put a snapshot, whose files are all written, in the place of a branch's tip.

        The parent and the pruned logs that are recorded are those of ``previous``, whatever
        ``snapshot`` says. Raises `ConflictError` if the branch points elsewhere than at
        ``previous`` by now, and `SessionStateError` if that is the first snapshot; version 2 only.
        """

    @abstractmethod
    def add_snapshot(self, snapshot: SnapshotInfo) -> None:
        """Make a snapshot, whose files are all written, known without moving a branch.

        Generation v1 keeps no list, so nothing is to be done there.
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
    def expire_snapshots(self, policy: ExpirationPolicy) -> frozenset[SnapshotId]:
        """Take old snapshots out of history, and return which; their files stay.

        In generation v2 that is one change. In v1 each branch and each tag is a change of its own:
        whoever dies half-way leaves some histories cut off and the others whole, and may try again.
        """

    @abstractmethod
    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        """Replace the configuration if it is still ``expected``."""

    @abstractmethod
    def save_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the repository's own metadata; version 2 only."""

    @abstractmethod
    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set some keys of the repository's own metadata, and return all of it; version 2 only.

        Of several at the same time none undoes what the others set.
        """

    @abstractmethod
    def save_status(self, status: RepoStatus) -> None:
        """Set whether the repository takes changes; allowed in any status; version 2 only."""

    @abstractmethod
    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Allow or forbid something, or let its default apply again: None; version 2 only."""
