"""Public values of the ops log, with Icechunk's names and fields, and ids as text.

The stored form is `icefloe.model.repo_info.OpsLogEntry`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from icefloe.maintenance import GCSummary
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from datetime import datetime

    from icefloe.model import repo_info as model
    from icefloe.model.repo_info import RepoStatus

__all__ = ["GCSummary", "Update", "UpdateType"]


class UpdateType:
    """The kind of an update: one of the classes below.

    Use ``isinstance(update.kind, UpdateType.NewCommit)`` or ``case UpdateType.NewCommit(branch)``.
    """

    __slots__ = ()

    BranchCreated: ClassVar[type[_BranchCreated]]
    BranchDeleted: ClassVar[type[_BranchDeleted]]
    BranchReset: ClassVar[type[_BranchReset]]
    CommitAmended: ClassVar[type[_CommitAmended]]
    ConfigChanged: ClassVar[type[_ConfigChanged]]
    ExpirationRan: ClassVar[type[_ExpirationRan]]
    FeatureFlagChanged: ClassVar[type[_FeatureFlagChanged]]
    GCRan: ClassVar[type[_GCRan]]
    MetadataChanged: ClassVar[type[_MetadataChanged]]
    NewCommit: ClassVar[type[_NewCommit]]
    NewDetachedSnapshot: ClassVar[type[_NewDetachedSnapshot]]
    RepoInitialized: ClassVar[type[_RepoInitialized]]
    RepoMigrated: ClassVar[type[_RepoMigrated]]
    RepoStatusChanged: ClassVar[type[_RepoStatusChanged]]
    TagCreated: ClassVar[type[_TagCreated]]
    TagDeleted: ClassVar[type[_TagDeleted]]


@dataclass(frozen=True, slots=True)
class _BranchCreated(UpdateType):
    """A branch was created."""

    name: str


@dataclass(frozen=True, slots=True)
class _BranchDeleted(UpdateType):
    """A branch was deleted."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class _BranchReset(UpdateType):
    """A branch was pointed at another snapshot."""

    name: str
    previous_snap_id: str


@dataclass(frozen=True, slots=True)
class _CommitAmended(UpdateType):
    """The last commit of a branch was replaced."""

    branch: str
    previous_snap_id: str
    new_snap_id: str


@dataclass(frozen=True, slots=True)
class _ConfigChanged(UpdateType):
    """The persisted configuration changed."""


@dataclass(frozen=True, slots=True)
class _ExpirationRan(UpdateType):
    """Expiration ran."""


@dataclass(frozen=True, slots=True)
class _FeatureFlagChanged(UpdateType):
    """A feature flag was set, or reset to its default (None)."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class _GCRan(UpdateType):
    """Garbage collection ran."""


@dataclass(frozen=True, slots=True)
class _MetadataChanged(UpdateType):
    """The metadata of the repository changed."""


@dataclass(frozen=True, slots=True)
class _NewCommit(UpdateType):
    """A commit on a branch."""

    branch: str
    new_snap_id: str


@dataclass(frozen=True, slots=True)
class _NewDetachedSnapshot(UpdateType):
    """A snapshot was written that no branch points at."""

    new_snap_id: str


@dataclass(frozen=True, slots=True)
class _RepoInitialized(UpdateType):
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class _RepoMigrated(UpdateType):
    """The repository was migrated to another spec version."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class _RepoStatusChanged(UpdateType):
    """The status of the repository was set."""

    status: RepoStatus


@dataclass(frozen=True, slots=True)
class _TagCreated(UpdateType):
    """A tag was created."""

    name: str


@dataclass(frozen=True, slots=True)
class _TagDeleted(UpdateType):
    """A tag was deleted; its name cannot be reused."""

    name: str
    previous_snap_id: str


for _kind in UpdateType.__subclasses__():
    # The public names, for `repr` and pickle.
    _kind.__name__ = _kind.__name__.removeprefix("_")
    _kind.__qualname__ = f"UpdateType.{_kind.__name__}"
    setattr(UpdateType, _kind.__name__, _kind)


@dataclass(frozen=True, slots=True)
class Update:
    """An entry of the ops log.

    ``backup_path`` is the backup of the state after it; the newest entry, the present state, has
    none.
    """

    kind: UpdateType
    updated_at: datetime
    backup_path: str | None = None

    @classmethod
    def of(cls, update: model.OpsLogEntry) -> Update:
        """Make the public value of a stored entry."""
        public = getattr(UpdateType, type(update.kind).__name__)
        values = (getattr(update.kind, field.name) for field in fields(update.kind))
        return cls(public(*map(_to_public, values)), update.updated_at, update.backup_path)


def _to_public(value: Any) -> Any:
    return str(value) if isinstance(value, SnapshotId) else value
