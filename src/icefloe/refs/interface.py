"""The interface to the mutable state of a repository, the same for all generations."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from icefloe.errors import ErrorKind
from icefloe.format.unsupported import unsupported_error
from icefloe.refs.commit_check import SessionStart
from icefloe.refs.history import collect_reachable
from icefloe.refs.names import require_ref_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from icefloe.errors import FormatError
    from icefloe.format.generation import Generation
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import FeatureFlag, OpsLogEntry, RepoStatus
    from icefloe.model.snapshot import Snapshot, SnapshotInfo, SnapshotLinks
    from icefloe.refs.commit_check import CommitCheck
    from icefloe.refs.retention import ExpirationPolicy
    from icefloe.refs.state import RefsState
    from icefloe.storage.interface import Storage


class SnapshotSource(Protocol):
    """Source of snapshots: `icefloe.assets.Assets`, or a cache in front of it."""

    def fetch_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Fetch a snapshot; raise `ObjectNotFoundError` if it does not exist.

        Raises `FormatError` if a file that it refers to is missing.
        """

    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch the history entry of a snapshot; raise as `fetch_snapshot` does."""


class Publish(Protocol):
    """Commits a snapshot whose files have all been written; see `Refs.commit`."""

    def __call__(self, snapshot: SnapshotInfo, check: CommitCheck | None = None) -> None:
        """Commit the snapshot."""


def _return_info(info: SnapshotInfo) -> SnapshotInfo:
    return info


class Refs(ABC):
    """Branches, tags, history and configuration of one repository.

    Every change is one atomic compare-and-swap, or one conditional creation, except for expiration
    and branch deletion in generation v1. `ConflictError` means that nothing changed; after
    `OutcomeUnknownError` the change may or may not have taken effect.

    In generation v2 nothing lists the storage, and in v1 only what fetches all branches or
    tags; everything else works without permission to list. In the generation
    ``sequence``, everything that reads a branch lists it.

    Methods marked "version 2 only" raise `FormatError` of kind ``UNSUPPORTED_SPEC_VERSION`` in
    generation v1, as in Icechunk, and ``UNSUPPORTED_OPERATION_FOR_VERSION`` in older generations.
    """

    generation: ClassVar[Generation]
    _storage: Storage

    @abstractmethod
    def __init__(self, storage: Storage) -> None:
        """Keep the storage; no request."""

    @classmethod
    @abstractmethod
    def create(cls, storage: Storage, initial: Snapshot, config: RepositoryConfig | None) -> None:
        """Create the refs of a repository whose first snapshot is written; one create-if-absent.

        Raises `PreconditionFailedError` if they exist.
        """

    @classmethod
    @abstractmethod
    def restore(cls, storage: Storage, state: RefsState) -> None:
        """Create the refs of a repository whose snapshots are all written, with their history.

        Readers find the repository only after the last write. An interrupted call can be repeated
        with the same state. Raises `PreconditionFailedError` if other refs exist.
        """

    @classmethod
    def require_new_name(cls, name: str) -> None:
        """Raise `InvalidInputError` if no branch or tag can be created with a name."""
        require_ref_name(name, new=True)

    @property
    def spec_version(self) -> int:
        """The spec version of the repository."""
        return self.generation.spec_version

    @abstractmethod
    def pin(self) -> Refs:
        """Return refs that read one consistent state; generation v1 has none, and returns itself.

        Changes through pinned refs apply to the current state and are not visible in them.
        """

    def get_session_start(self) -> SessionStart:
        """Return the start of a session that reads from these refs, which are pinned."""
        return SessionStart()

    def with_storage(self, storage: Storage) -> Self:
        """Return the same refs through a storage with other settings."""
        refs = copy.copy(self)
        refs._storage = storage  # noqa: SLF001 - of its own class
        return refs

    @abstractmethod
    def with_assets(self, assets: SnapshotSource) -> Refs:
        """Return refs that read history from the snapshots of ``assets``.

        Generations whose refs contain the history ignore it.
        """

    @abstractmethod
    def fetch_branches(self) -> Mapping[str, SnapshotId]:
        """Fetch all branches and their tips."""

    def fetch_branch_names(self) -> set[str]:
        """Fetch the names of all branches."""
        return set(self.fetch_branches())

    @abstractmethod
    def fetch_branch(self, branch: str) -> SnapshotId:
        """Fetch the tip of a branch; one request, no listing."""

    @abstractmethod
    def fetch_tags(self) -> Mapping[str, SnapshotId]:
        """Fetch all tags that are not deleted, and their targets."""

    def fetch_tag_names(self) -> set[str]:
        """Fetch the names of all tags that are not deleted."""
        return set(self.fetch_tags())

    @abstractmethod
    def fetch_tag(self, tag: str) -> SnapshotId:
        """Fetch the target of a tag; no listing."""

    @abstractmethod
    def fetch_deleted_tags(self) -> frozenset[str]:
        """Fetch the names of deleted tags, which cannot be reused."""

    @abstractmethod
    def fetch_snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo:
        """Fetch the history entry of a snapshot, or raise `SnapshotNotFoundError`; one request."""

    @abstractmethod
    def fetch_ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield a snapshot and its ancestors, newest first."""

    def iter_ancestry(
        self, snapshot_id: SnapshotId
    ) -> tuple[Callable[[Any], SnapshotInfo], Iterator[Any]]:
        """Like `fetch_ancestry`; return a function that reads a snapshot, and its arguments."""
        return _return_info, self.fetch_ancestry(snapshot_id)

    def iter_links(self, snapshot_id: SnapshotId) -> Iterator[SnapshotLinks]:
        """Like `fetch_ancestry`, without the other fields."""
        return (info.get_links() for info in self.fetch_ancestry(snapshot_id))

    @abstractmethod
    def fetch_live_snapshots(self) -> set[SnapshotId]:
        """Fetch the snapshots that branches and tags point at, with the recorded ancestors.

        Where snapshot files name their parents, these are the tips, without ancestors.
        """

    def fetch_reachable(self, tips: Iterable[SnapshotId]) -> dict[SnapshotId, SnapshotInfo]:
        """Fetch all snapshots in the histories of ``tips``."""
        return collect_reachable(tips, self.fetch_ancestry)

    @abstractmethod
    def fetch_config(self) -> RepositoryConfig | None:
        """Fetch the persisted configuration, or None."""

    def fetch_ops_log(self) -> Iterator[OpsLogEntry]:
        """Yield the ops log, newest entry first; version 2 only."""
        raise self._unsupported_error("the ops log")

    def fetch_metadata(self) -> Mapping[str, Any]:
        """Fetch the metadata of the repository; version 2 only."""
        raise self._unsupported_error("repository metadata")

    def fetch_status(self) -> RepoStatus:
        """Fetch the status of the repository; version 2 only."""
        raise self._unsupported_error("a status")

    @abstractmethod
    def require_online(self) -> None:
        """Raise `ReadOnlyError` if the status of the repository forbids changes."""

    def fetch_feature_flags(self) -> list[FeatureFlag]:
        """Fetch all feature flags, ordered by id; version 2 only."""
        raise self._unsupported_error("the list of feature flags")

    @abstractmethod
    def commit(
        self,
        branch: str,
        parent: SnapshotId,
        snapshot: SnapshotInfo,
        check: CommitCheck | None = None,
    ) -> None:
        """Move a branch from ``parent`` to a snapshot whose files have all been written.

        Raises `ConflictError` if the tip is not ``parent``, and what ``check`` raises.
        """

    @abstractmethod
    def begin_commit(self, branch: str, parent: SnapshotId) -> Publish:
        """Check that the tip of a branch is ``parent``, before any file is written.

        Returns a function that commits like `commit` but with one request less: it starts from the
        state that was read here, and reads again only after a conflict.
        """

    def amend(
        self,
        branch: str,  # noqa: ARG002
        previous: SnapshotId,  # noqa: ARG002
        snapshot: SnapshotInfo,  # noqa: ARG002
        check: CommitCheck | None = None,  # noqa: ARG002
    ) -> None:
        """Replace the tip of a branch with a snapshot that has been written; version 2 only.

        The recorded parent and pruned logs are those of ``previous``. Raises `ConflictError` if the
        tip is not ``previous``, and `SessionStateError` if that is the first snapshot.
        """
        raise self._unsupported_error("amending a commit")

    @abstractmethod
    def add_snapshot(self, snapshot: SnapshotInfo, check: CommitCheck | None = None) -> None:
        """Record a snapshot that no branch points at; generation v1 records nothing."""

    @abstractmethod
    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> None:
        """Create a branch."""

    @abstractmethod
    def reset_branch(
        self, branch: str, snapshot_id: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Point a branch at another snapshot; if given, ``expected`` must be its tip."""

    @abstractmethod
    def delete_branch(self, branch: str) -> None:
        """Delete a branch other than main."""

    @abstractmethod
    def create_tag(self, tag: str, snapshot_id: SnapshotId) -> None:
        """Create a tag; the name of a deleted tag cannot be reused."""

    @abstractmethod
    def delete_tag(self, tag: str) -> None:
        """Delete a tag."""

    @abstractmethod
    def expire_snapshots(
        self, policy: ExpirationPolicy, *, dry_run: bool = False
    ) -> frozenset[SnapshotId]:
        """Remove old snapshots from history and return their ids; their files stay.

        Expiration is one atomic change in generations v2 and draft, and one change per branch and
        tag in v1.
        An interrupted expiration can be repeated. With ``dry_run``, nothing changes.
        """

    def collect_ref_files(self, *, before: datetime, dry_run: bool) -> int:  # noqa: ARG002
        """Delete files of branches that readers no longer need; return their size in bytes.

        Only the generation sequence has such files.
        """
        return 0

    @abstractmethod
    def save_config(self, config: RepositoryConfig, *, expected: RepositoryConfig | None) -> None:
        """Replace the persisted configuration if it still equals ``expected``."""

    def save_metadata(self, metadata: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Replace the metadata of the repository; version 2 only."""
        raise self._unsupported_error("repository metadata")

    def update_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Set some metadata keys and return all metadata; version 2 only.

        Concurrent updates of different keys are all kept.
        """
        raise self._unsupported_error("repository metadata")

    def save_status(self, status: RepoStatus) -> None:  # noqa: ARG002
        """Set the status of the repository, whatever its current status; version 2 only."""
        raise self._unsupported_error("a status")

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: ARG002, FBT001
        """Enable or disable a feature, or restore its default with None; version 2 only."""
        raise self._unsupported_error("the list of feature flags")

    def _unsupported_error(self, feature: str) -> FormatError:
        return unsupported_error(
            feature,
            self.generation,
            url=self._storage.url,
            alternative='create a repository with generation="v2"',
            kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,  # as Icechunk 2.3.0
        )
