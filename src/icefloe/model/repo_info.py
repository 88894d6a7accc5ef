"""The mutable state of a generation v2 repository: refs, history, status and the ops log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo


class RepoAvailability(IntEnum):
    """Whether a repository allows reads and writes, reads only, or neither."""

    online = 0
    read_only = 1
    offline = 2


@dataclass(frozen=True, slots=True, repr=False, init=False)
class RepoStatus:
    """The availability of a repository, since when (default: now), and why."""

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
"""The known flags; unknown ones are kept and have no effect."""


@dataclass(frozen=True, slots=True)
class RepoInitialized:
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated:
    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The persisted configuration changed."""


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata of the repository changed."""


@dataclass(frozen=True, slots=True)
class TagCreated:
    name: str


@dataclass(frozen=True, slots=True)
class TagDeleted:
    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class BranchCreated:
    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted:
    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class BranchReset:
    name: str
    previous_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class NewCommit:
    branch: str
    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class CommitAmended:
    branch: str
    previous_snap_id: SnapshotId
    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class NewDetachedSnapshot:
    new_snap_id: SnapshotId


@dataclass(frozen=True, slots=True)
class GCRan:
    """Garbage collection ran."""


@dataclass(frozen=True, slots=True)
class ExpirationRan:
    """Expiration ran."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged:
    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged:
    status: RepoStatus


UpdateType: TypeAlias = (
    RepoInitialized
    | RepoMigrated
    | ConfigChanged
    | MetadataChanged
    | TagCreated
    | TagDeleted
    | BranchCreated
    | BranchDeleted
    | BranchReset
    | NewCommit
    | CommitAmended
    | NewDetachedSnapshot
    | GCRan
    | ExpirationRan
    | FeatureFlagChanged
    | RepoStatusChanged
)


@dataclass(frozen=True, slots=True)
class OpsLogEntry:
    """An entry of the ops log; ``backup_path`` is the backup of the state after it."""

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None = None


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """The mutable state of a generation v2 repository.

    ``snapshots`` are ordered by id, ``latest_updates`` newest first. ``branches`` always has
    ``main``. ``repo_before_updates`` is the backup with the rest of the ops log.
    """

    spec_version: int
    branches: Mapping[str, SnapshotId] = field(hash=False)
    tags: Mapping[str, SnapshotId] = field(hash=False)
    deleted_tags: frozenset[str]
    snapshots: tuple[SnapshotInfo, ...]
    status: RepoStatus
    latest_updates: tuple[OpsLogEntry, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    repo_before_updates: str | None = None
    config: RepositoryConfig | None = None
    enabled_feature_flags: frozenset[int] = frozenset()
    disabled_feature_flags: frozenset[int] = frozenset()

    def feature_flag(self, known: FeatureFlag) -> FeatureFlag:
        """Return one of `FEATURE_FLAGS` with its setting in this repository."""
        if known.id in self.disabled_feature_flags:
            return replace(known, setting=False)
        return replace(known, setting=True if known.id in self.enabled_feature_flags else None)
