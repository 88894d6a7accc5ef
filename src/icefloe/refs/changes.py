"""Changes of a generation v2 repository, as pure functions from one state to the next.

A `Change` takes the current `RepoInfo`, raises if its precondition fails, and returns the entry for
the ops log with the new state. `record` adds the entry to the log. `icefloe.refs.repo_file` applies
changes, and applies them again after a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.model.repo_info import (
    CREATE_TAG,
    DELETE_TAG,
    FEATURE_FLAGS,
    BranchCreated,
    BranchDeleted,
    BranchReset,
    CommitAmended,
    ConfigChanged,
    FeatureFlag,
    FeatureFlagChanged,
    MetadataChanged,
    NewCommit,
    NewDetachedSnapshot,
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    RepoStatusChanged,
    TagCreated,
    TagDeleted,
    UpdateType,
)
from icefloe.refs import problems
from icefloe.refs.names import require_text

if TYPE_CHECKING:
    from datetime import datetime

    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo

Change: TypeAlias = Callable[[RepoInfo], tuple[UpdateType, RepoInfo]]

_MICROSECOND = timedelta(microseconds=1)


def record(
    info: RepoInfo, kind: UpdateType, *, now: datetime, backup_path: str, max_updates: int
) -> RepoInfo:
    """Add an entry at the head of the ops log.

    The previous head gets the ``backup_path`` of the state that it led to. A log that would exceed
    ``max_updates`` entries starts over and continues in that backup.
    """
    if not info.latest_updates:
        return replace(info, latest_updates=(OpsLogEntry(kind, now),))
    previous, *older = info.latest_updates
    # Times in the log ascend even if the clocks of the writers disagree.
    entry = OpsLogEntry(kind, max(now, previous.updated_at + _MICROSECOND))
    if len(older) + 2 > max_updates:
        return replace(info, latest_updates=(entry,), repo_before_updates=backup_path)
    previous = replace(previous, backup_path=backup_path)
    return replace(info, latest_updates=(entry, previous, *older))


def require_online(info: RepoInfo) -> None:
    """Raise `ReadOnlyError` if the status of the repository forbids changes."""
    if info.status.availability is not RepoAvailability.online:
        reason = info.status.limited_availability_reason
        raise ReadOnlyError(
            f"the repository is {info.status.availability.name.lower().replace('_', ' ')}"
            f"{'' if reason is None else f' ({reason})'}: to allow changes, call "
            "Repository.set_status(RepoStatus(RepoAvailability.online))",
            kind=ErrorKind.READ_ONLY_REPOSITORY,
        )


def require_tip(info: RepoInfo, branch: str, parent: SnapshotId) -> None:
    """Raise `ConflictError` if the tip of a branch is not ``parent``."""
    tip = find_branch(info, branch)
    if tip != parent:
        raise problems.conflict(branch, parent, tip)


def commit(branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> Change:
    """Move a branch from ``parent`` to a new snapshot."""
    problems.require_parent(snapshot, parent)

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        require_tip(info, branch, parent)
        return NewCommit(branch, snapshot.id), replace(
            _with_snapshot(info, snapshot), branches={**info.branches, branch: snapshot.id}
        )

    return change


def amend(branch: str, previous: SnapshotId, snapshot: SnapshotInfo) -> Change:
    """Replace ``previous``, the tip of a branch, by a snapshot.

    Parent and pruned logs are those of ``previous`` when the change is applied, not when the
    snapshot was written: expiration may have changed them in between.
    """

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        require_tip(info, branch, previous)
        before = find_snapshot(info, previous)
        if before.parent_id is None:
            raise problems.first_commit()
        amended = replace(
            snapshot,
            parent_id=before.parent_id,
            pruned_ancestor_tx_logs=before.pruned_ancestor_tx_logs,
        )
        # The amended snapshot stays listed until it is collected: it may have readers and children.
        return CommitAmended(branch, previous, snapshot.id), replace(
            _with_snapshot(info, amended), branches={**info.branches, branch: snapshot.id}
        )

    return change


def add_snapshot(snapshot: SnapshotInfo) -> Change:
    """Record a snapshot that no branch points at."""
    parent = snapshot.parent_id
    if parent is None:
        raise problems.no_parent(snapshot)

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        find_snapshot(info, parent)
        return NewDetachedSnapshot(snapshot.id), _with_snapshot(info, snapshot)

    return change


def create_branch(branch: str, snapshot_id: SnapshotId) -> Change:
    """Create a branch."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        if branch in info.branches:
            raise problems.branch_exists(branch)
        find_snapshot(info, snapshot_id)
        return BranchCreated(branch), replace(info, branches={**info.branches, branch: snapshot_id})

    return change


def reset_branch(branch: str, snapshot_id: SnapshotId, expected: SnapshotId | None) -> Change:
    """Point a branch at another snapshot; if given, ``expected`` must be its tip."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        tip = find_branch(info, branch)
        if expected is not None and tip != expected:
            raise problems.branch_moved(branch, expected, tip)
        find_snapshot(info, snapshot_id)
        return BranchReset(branch, tip), replace(
            info, branches={**info.branches, branch: snapshot_id}
        )

    return change


def delete_branch(branch: str) -> Change:
    """Delete a branch other than main."""
    problems.require_not_main(branch)

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        tip = find_branch(info, branch)
        return BranchDeleted(branch, tip), replace(info, branches=_without(info.branches, branch))

    return change


def create_tag(tag: str, snapshot_id: SnapshotId) -> Change:
    """Create a tag; the name of a deleted tag cannot be reused."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        _require_enabled(info, CREATE_TAG)
        if tag in info.tags:
            raise problems.tag_exists(tag)
        if tag in info.deleted_tags:
            raise problems.tag_was_deleted(tag)
        find_snapshot(info, snapshot_id)
        return TagCreated(tag), replace(info, tags={**info.tags, tag: snapshot_id})

    return change


def delete_tag(tag: str) -> Change:
    """Delete a tag."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        _require_enabled(info, DELETE_TAG)
        return TagDeleted(tag, find_tag(info, tag)), replace(
            info, tags=_without(info.tags, tag), deleted_tags=info.deleted_tags | {tag}
        )

    return change


def set_config(config: RepositoryConfig, expected: RepositoryConfig | None) -> Change:
    """Replace the configuration if it still equals ``expected``."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        if info.config != expected:
            raise problems.config_changed()
        return ConfigChanged(), replace(info, config=config)

    return change


def set_metadata(metadata: Mapping[str, Any]) -> Change:
    """Replace the metadata of the repository."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        return MetadataChanged(), replace(info, metadata=dict(metadata))

    return change


def update_metadata(metadata: Mapping[str, Any]) -> Change:
    """Set some metadata keys and keep the others."""

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        return MetadataChanged(), replace(info, metadata={**info.metadata, **metadata})

    return change


def set_feature_flag(name: str, setting: bool | None) -> Change:  # noqa: FBT001 - three values
    """Set a feature flag, or restore its default with None."""
    flags = {flag.name: flag for flag in FEATURE_FLAGS}
    if name not in flags:
        raise problems.no_such_feature_flag(name, flags)
    if setting is not None and not isinstance(setting, bool):
        raise problems.invalid_feature_flag_setting(name, setting)
    flag_id = flags[name].id

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        enabled = info.enabled_feature_flags - {flag_id}
        disabled = info.disabled_feature_flags - {flag_id}
        if setting is True:
            enabled |= {flag_id}
        elif setting is False:
            disabled |= {flag_id}
        return FeatureFlagChanged(flag_id, setting), replace(
            info, enabled_feature_flags=enabled, disabled_feature_flags=disabled
        )

    return change


def set_status(status: RepoStatus) -> Change:
    """Set the status of the repository: the one change that every status allows."""
    if not isinstance(status, RepoStatus):
        raise InvalidInputError(
            f"the status must be a RepoStatus, not {status!r}", kind=ErrorKind.STORAGE_CONFIG
        )
    if status.availability is RepoAvailability.offline:
        # Icechunk would treat it as online and continue to write.
        raise InvalidInputError(
            "the status offline is not supported yet: use read only", kind=ErrorKind.UNIMPLEMENTED
        )

    def change(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
        return RepoStatusChanged(status), replace(info, status=status)

    return change


def find_branch(info: RepoInfo, branch: str) -> SnapshotId:
    """Return the tip of a branch."""
    require_text(branch)
    if branch not in info.branches:
        raise problems.no_such_branch(branch, among=info.branches)
    return info.branches[branch]


def find_tag(info: RepoInfo, tag: str) -> SnapshotId:
    """Return the target of a tag."""
    require_text(tag)
    if tag in info.deleted_tags:
        raise problems.tag_is_deleted(tag)
    if tag not in info.tags:
        raise problems.no_such_tag(tag, among=info.tags)
    return info.tags[tag]


def find_snapshot(info: RepoInfo, snapshot_id: SnapshotId) -> SnapshotInfo:
    """Return the history entry of a snapshot."""
    for snapshot in info.snapshots:
        if snapshot.id == snapshot_id:
            return snapshot
    raise problems.no_such_snapshot(snapshot_id, "the repository")


def _require_enabled(info: RepoInfo, flag: FeatureFlag) -> None:
    if not info.feature_flag(flag).enabled:
        raise problems.feature_disabled(flag.name)


def _with_snapshot(info: RepoInfo, snapshot: SnapshotInfo) -> RepoInfo:
    if any(listed.id == snapshot.id for listed in info.snapshots):
        raise InvalidInputError(
            f"snapshot {snapshot.id} already exists", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID
        )
    return replace(info, snapshots=(*info.snapshots, snapshot))


def _without(refs: Mapping[str, SnapshotId], name: str) -> dict[str, SnapshotId]:
    return {other: target for other, target in refs.items() if other != name}
