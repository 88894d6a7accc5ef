"""The mutable state of a generation v2 repository: refs, history, status and the ops log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from icefloe.model.lazy_history import LazySnapshots, LazyUpdates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model import repo_info  # noqa: PLW0406 - attributes of UpdateType hide these classes
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo

Id = TypeVar("Id", "SnapshotId", str)
"""The type of snapshot ids in updates: `SnapshotId` in the ops log, `str` in the public API."""


class RepoAvailability(IntEnum):
    """Whether a repository allows reads and writes, reads only, or neither."""

    online = 0
    read_only = 1
    offline = 2


@dataclass(frozen=True, slots=True, repr=False, init=False)
class RepoStatus:
    """The availability of a repository, the time it was set (default: now), and the reason."""

    availability: RepoAvailability
    set_at: datetime
    limited_availability_reason: str | None

    def __init__(
        self,
        availability: RepoAvailability,
        set_at: datetime | None = None,
        limited_availability_reason: str | None = None,
    ) -> None:
        object.__setattr__(self, "availability", availability)
        object.__setattr__(self, "set_at", datetime.now(UTC) if set_at is None else set_at)
        object.__setattr__(self, "limited_availability_reason", limited_availability_reason)

    def __repr__(self) -> str:
        reason = self.limited_availability_reason
        since = f"{self.availability.name} since {self.set_at:%Y-%m-%d %H:%M:%S %Z}"
        return f"<RepoStatus {since}{'' if reason is None else f': {reason!r}'}>"


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """A feature that a repository can disable; ``setting`` None means the default."""

    id: int
    name: str
    default_enabled: bool = True
    setting: bool | None = None

    @property
    def enabled(self) -> bool:
        """Whether the feature is enabled."""
        return self.default_enabled if self.setting is None else self.setting


# Numbers as in the format; 1 and 2 are reserved.
MOVE_NODE = FeatureFlag(3, "move_node")
CREATE_TAG = FeatureFlag(4, "create_tag")
DELETE_TAG = FeatureFlag(5, "delete_tag")
FEATURE_FLAGS = (MOVE_NODE, CREATE_TAG, DELETE_TAG)
"""The known flags; unknown flags are preserved and have no effect."""


@dataclass(frozen=True, slots=True)
class UpdateType:
    """Base class of the kinds of updates; each kind is also an attribute of this class.

    Use ``isinstance(update.kind, UpdateType.NewCommit)`` or ``case UpdateType.NewCommit(branch)``.
    """

    RepoInitialized: ClassVar[type[repo_info.RepoInitialized]]
    RepoMigrated: ClassVar[type[repo_info.RepoMigrated]]
    ConfigChanged: ClassVar[type[repo_info.ConfigChanged]]
    MetadataChanged: ClassVar[type[repo_info.MetadataChanged]]
    TagCreated: ClassVar[type[repo_info.TagCreated]]
    TagDeleted: ClassVar[type[repo_info.TagDeleted[str]]]
    BranchCreated: ClassVar[type[repo_info.BranchCreated]]
    BranchDeleted: ClassVar[type[repo_info.BranchDeleted[str]]]
    BranchReset: ClassVar[type[repo_info.BranchReset[str]]]
    NewCommit: ClassVar[type[repo_info.NewCommit[str]]]
    CommitAmended: ClassVar[type[repo_info.CommitAmended[str]]]
    NewDetachedSnapshot: ClassVar[type[repo_info.NewDetachedSnapshot[str]]]
    GCRan: ClassVar[type[repo_info.GCRan]]
    ExpirationRan: ClassVar[type[repo_info.ExpirationRan]]
    FeatureFlagChanged: ClassVar[type[repo_info.FeatureFlagChanged]]
    RepoStatusChanged: ClassVar[type[repo_info.RepoStatusChanged]]


@dataclass(frozen=True, slots=True)
class RepoInitialized(UpdateType):
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated(UpdateType):
    """The repository was migrated to another spec version."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class ConfigChanged(UpdateType):
    """The persisted configuration changed."""


@dataclass(frozen=True, slots=True)
class MetadataChanged(UpdateType):
    """The metadata of the repository changed."""


@dataclass(frozen=True, slots=True)
class TagCreated(UpdateType):
    """A tag was created."""

    name: str


@dataclass(frozen=True, slots=True)
class TagDeleted(UpdateType, Generic[Id]):
    """A tag was deleted; its name cannot be reused."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class BranchCreated(UpdateType):
    """A branch was created."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted(UpdateType, Generic[Id]):
    """A branch was deleted."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class BranchReset(UpdateType, Generic[Id]):
    """A branch was reset to another snapshot."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class NewCommit(UpdateType, Generic[Id]):
    """A commit on a branch."""

    branch: str
    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class CommitAmended(UpdateType, Generic[Id]):
    """The last commit of a branch was replaced."""

    branch: str
    previous_snap_id: Id
    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class NewDetachedSnapshot(UpdateType, Generic[Id]):
    """A snapshot that no branch points to was written."""

    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class GCRan(UpdateType):
    """Garbage collection ran."""


@dataclass(frozen=True, slots=True)
class ExpirationRan(UpdateType):
    """Expiration ran."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged(UpdateType):
    """A feature flag was set, or reset to its default (None)."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged(UpdateType):
    """The status of the repository was set."""

    status: RepoStatus


for _kind in UpdateType.__subclasses__():
    # The public name, for `repr` and pickle.
    _kind.__qualname__ = f"UpdateType.{_kind.__name__}"
    setattr(UpdateType, _kind.__name__, _kind)


@dataclass(frozen=True, slots=True)
class OpsLogEntry:
    """An entry of the ops log.

    ``backup_path`` is the path of the backup of the state right after this update; None for the
    newest entry, whose state is the current one.
    """

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None = None


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The mutable state of a generation v2 repository.

    ``snapshots`` are distinct, ``latest_updates`` ordered newest first; both are tuples, or read
    from the file on access (`icefloe.model.lazy_history`). ``branches`` always contains ``main``.
    ``repo_before_updates`` is the path of the backup in which the ops log continues, or
    None if ``latest_updates`` is complete.
    """

    spec_version: int
    branches: Mapping[str, SnapshotId] = field(hash=False)
    tags: Mapping[str, SnapshotId] = field(hash=False)
    deleted_tags: frozenset[str]
    snapshots: Sequence[SnapshotInfo]
    status: RepoStatus
    latest_updates: Sequence[OpsLogEntry]
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    repo_before_updates: str | None = None
    config: RepositoryConfig | None = None
    enabled_feature_flags: frozenset[int] = frozenset()
    disabled_feature_flags: frozenset[int] = frozenset()

    def get_feature_flag(self, flag: FeatureFlag) -> FeatureFlag:
        """Return one of `FEATURE_FLAGS` with its setting in this repository."""
        if flag.id in self.disabled_feature_flags:
            return replace(flag, setting=False)
        return replace(flag, setting=True if flag.id in self.enabled_feature_flags else None)

    def find_snapshot(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return the history entry of a snapshot, or None."""
        if isinstance(self.snapshots, LazySnapshots):
            return self.snapshots.find(snapshot_id)
        return next((info for info in self.snapshots if info.id == snapshot_id), None)

    def with_snapshot(self, snapshot: SnapshotInfo) -> RepoInfo:
        """Return the state with another snapshot."""
        if isinstance(self.snapshots, LazySnapshots):
            return replace(self, snapshots=self.snapshots.add(snapshot))
        return replace(self, snapshots=(*self.snapshots, snapshot))

    def replace_first_update(self, entries: tuple[OpsLogEntry, ...]) -> RepoInfo:
        """Return the state with other entries in place of the first one of the ops log."""
        if isinstance(self.latest_updates, LazyUpdates):
            return replace(self, latest_updates=self.latest_updates.replace_first(entries))
        return replace(self, latest_updates=(*entries, *self.latest_updates[1:]))
