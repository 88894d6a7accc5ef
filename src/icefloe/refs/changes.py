"""Changes of a generation v2 repository, as pure functions from one state to the next.

A change takes the current `RepoInfo`, raises if its precondition fails, and returns an update type
and the new state. `record` adds the update to the ops log. `icefloe.refs.repo_file` applies
changes, and repeats them after a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, SessionStateError
from icefloe.model import repo_info as model
from icefloe.model.repo_info import OpsLogEntry, RepoAvailability, RepoInfo, RepoStatus, UpdateType
from icefloe.refs import ref_errors
from icefloe.refs.names import require_text

if TYPE_CHECKING:
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_info import FeatureFlag
    from icefloe.model.snapshot import SnapshotInfo

ChangeResult: TypeAlias = tuple[UpdateType, RepoInfo]
Change: TypeAlias = Callable[[RepoInfo], ChangeResult]

_MICROSECOND = timedelta(microseconds=1)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


def record(
    info: RepoInfo, kind: UpdateType, *, now: datetime, backup_path: str, max_updates: int
) -> RepoInfo:
    """Add an entry at the head of the ops log.

    ``backup_path`` is the backup of the state before this entry. The previous head of the log gets
    this path. If the log would exceed ``max_updates`` entries, it restarts with this entry, and the
    older entries are read from the backup.
    """
    if not info.latest_updates:
        return replace(info, latest_updates=(OpsLogEntry(kind, now),))
    previous = info.latest_updates[0]
    # Each entry is newer than the previous one, even if the clocks of their writers disagree.
    after_previous = min(previous.updated_at, _LAST_TIME - _MICROSECOND) + _MICROSECOND
    entry = OpsLogEntry(kind, max(now, after_previous))
    if len(info.latest_updates) + 1 > max_updates:
        return replace(info, latest_updates=(entry,), repo_before_updates=backup_path)
    return info.replace_first_update((entry, replace(previous, backup_path=backup_path)))


def require_online(info: RepoInfo) -> None:
    """Raise `ReadOnlyError` if the status of the repository forbids changes."""
    if info.status.availability is not RepoAvailability.online:
        reason = info.status.limited_availability_reason
        raise ReadOnlyError(
            f"the repository status is {info.status.availability.name.replace('_', '-')}"
            f"{'' if reason is None else f' ({reason})'}: to allow changes, call "
            "Repository.set_status(RepoStatus(RepoAvailability.online))",
            kind=ErrorKind.READ_ONLY_REPOSITORY,
        )


def require_tip(info: RepoInfo, branch: str, parent: SnapshotId) -> None:
    """Raise `ConflictError` if the tip of a branch is not ``parent``."""
    tip = find_branch(info, branch)
    if tip != parent:
        raise ref_errors.commit_conflict_error(branch, parent, tip)


def commit(info: RepoInfo, branch: str, parent: SnapshotId, snapshot: SnapshotInfo) -> ChangeResult:
    """Move a branch from ``parent`` to a new snapshot."""
    require_tip(info, branch, parent)
    return model.NewCommit(branch, snapshot.id), _with_tip(info, branch, snapshot)


def amend(
    info: RepoInfo, branch: str, previous: SnapshotId, snapshot: SnapshotInfo
) -> ChangeResult:
    """Replace ``previous``, the tip of a branch, with a snapshot.

    The parent and the pruned logs are taken from ``previous`` when the change is applied, because
    expiration may have changed them since the snapshot was written.
    """
    require_tip(info, branch, previous)
    previous_info = find_snapshot(info, previous)
    if previous_info.parent_id is None:
        raise SessionStateError(
            "the first snapshot of a repository cannot be amended: make a new commit instead",
            kind=ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
        )
    amended = replace(
        snapshot,
        parent_id=previous_info.parent_id,
        pruned_ancestor_tx_logs=previous_info.pruned_ancestor_tx_logs,
    )
    # `previous` stays in `snapshots` until garbage collection: it may have readers and children.
    return model.CommitAmended(branch, previous, snapshot.id), _with_tip(info, branch, amended)


def add_snapshot(info: RepoInfo, snapshot: SnapshotInfo, parent: SnapshotId) -> ChangeResult:
    """Add a snapshot that no branch points at."""
    find_snapshot(info, parent)  # raises if missing
    return model.NewDetachedSnapshot(snapshot.id), _with_snapshot(info, snapshot)


def create_branch(info: RepoInfo, branch: str, snapshot_id: SnapshotId) -> ChangeResult:
    """Create a branch."""
    if branch in info.branches:
        raise ref_errors.existing_branch_error(branch)
    find_snapshot(info, snapshot_id)
    return model.BranchCreated(branch), replace(
        info, branches={**info.branches, branch: snapshot_id}
    )


def reset_branch(
    info: RepoInfo, branch: str, snapshot_id: SnapshotId, expected: SnapshotId | None
) -> ChangeResult:
    """Point a branch at another snapshot; raise if its tip is not ``expected``, if given."""
    tip = find_branch(info, branch)
    if expected is not None and tip != expected:
        raise ref_errors.reset_conflict_error(branch, expected, tip)
    find_snapshot(info, snapshot_id)
    return model.BranchReset(branch, tip), replace(
        info, branches={**info.branches, branch: snapshot_id}
    )


def delete_branch(info: RepoInfo, branch: str) -> ChangeResult:
    """Delete a branch."""
    tip = find_branch(info, branch)
    return model.BranchDeleted(branch, tip), replace(
        info, branches=_drop_name(info.branches, branch)
    )


def create_tag(info: RepoInfo, tag: str, snapshot_id: SnapshotId) -> ChangeResult:
    """Create a tag; the name of a deleted tag cannot be reused."""
    _require_enabled(info, model.CREATE_TAG)
    if tag in info.tags:
        raise ref_errors.existing_tag_error(tag)
    if tag in info.deleted_tags:
        raise ref_errors.reused_tag_error(tag)
    find_snapshot(info, snapshot_id)
    return model.TagCreated(tag), replace(info, tags={**info.tags, tag: snapshot_id})


def delete_tag(info: RepoInfo, tag: str) -> ChangeResult:
    """Delete a tag."""
    _require_enabled(info, model.DELETE_TAG)
    return model.TagDeleted(tag, find_tag(info, tag)), replace(
        info, tags=_drop_name(info.tags, tag), deleted_tags=info.deleted_tags | {tag}
    )


def set_config(
    info: RepoInfo, config: RepositoryConfig, expected: RepositoryConfig | None
) -> ChangeResult:
    """Replace the configuration; raise if the current one does not equal ``expected``."""
    if info.config != expected:
        raise ref_errors.config_conflict_error()
    return model.ConfigChanged(), replace(info, config=config.copy())


def find_feature_flag(name: str, setting: object) -> FeatureFlag:
    """Return a feature flag by name; raise if the name or the new setting is invalid."""
    flags = {flag.name: flag for flag in model.FEATURE_FLAGS}
    if name not in flags:
        raise InvalidInputError(
            f"unknown feature flag {name!r}; available: {', '.join(flags)}",
            kind=ErrorKind.INVALID_FEATURE_FLAG,
        )
    if setting is not None and not isinstance(setting, bool):
        raise InvalidInputError(
            f"feature flag {name}: expected True, False or None (default), got {setting!r}",
            kind=ErrorKind.INVALID_FEATURE_FLAG,
        )
    return flags[name]


def set_feature_flag(info: RepoInfo, flag: FeatureFlag, setting: bool | None) -> ChangeResult:  # noqa: FBT001 - three values
    """Set a feature flag, or restore its default with None."""
    enabled = info.enabled_feature_flags - {flag.id}
    disabled = info.disabled_feature_flags - {flag.id}
    if setting is True:
        enabled |= {flag.id}
    elif setting is False:
        disabled |= {flag.id}
    return model.FeatureFlagChanged(flag.id, setting), replace(
        info, enabled_feature_flags=enabled, disabled_feature_flags=disabled
    )


def require_status(status: RepoStatus) -> None:
    """Raise if a status is invalid or not supported."""
    if not isinstance(status, RepoStatus):
        raise InvalidInputError(
            f"expected a RepoStatus, got {status!r}", kind=ErrorKind.STORAGE_CONFIG
        )
    if status.availability is RepoAvailability.offline:
        # Icechunk would treat an offline repository as online and continue to write.
        raise InvalidInputError(
            "the status offline is not supported: use read_only", kind=ErrorKind.UNIMPLEMENTED
        )


def find_branch(info: RepoInfo, branch: str) -> SnapshotId:
    """Return the tip of a branch."""
    require_text(branch)
    if branch not in info.branches:
        raise ref_errors.missing_branch_error(branch, names=info.branches)
    return info.branches[branch]


def find_tag(info: RepoInfo, tag: str) -> SnapshotId:
    """Return the target of a tag."""
    require_text(tag)
    if tag in info.deleted_tags:
        raise ref_errors.deleted_tag_error(tag)
    if tag not in info.tags:
        raise ref_errors.missing_tag_error(tag, names=info.tags)
    return info.tags[tag]


def find_snapshot(info: RepoInfo, snapshot_id: SnapshotId) -> SnapshotInfo:
    """Return the history entry of a snapshot."""
    snapshot = info.find_snapshot(snapshot_id)
    if snapshot is None:
        raise ref_errors.missing_snapshot_error(snapshot_id, "the repository")
    return snapshot


def _require_enabled(info: RepoInfo, flag: FeatureFlag) -> None:
    if not info.get_feature_flag(flag).enabled:
        raise SessionStateError(
            f"the feature flag {flag.name} of the repository is disabled: enable it with "
            f"set_feature_flag({flag.name!r}, True)",
            kind=ErrorKind.FEATURE_FLAG_DISABLED,
        )


def _with_snapshot(info: RepoInfo, snapshot: SnapshotInfo) -> RepoInfo:
    if info.find_snapshot(snapshot.id) is not None:
        raise InvalidInputError(
            f"snapshot {snapshot.id} already exists", kind=ErrorKind.DUPLICATE_SNAPSHOT_ID
        )
    return info.with_snapshot(snapshot)


def _with_tip(info: RepoInfo, branch: str, snapshot: SnapshotInfo) -> RepoInfo:
    branches = {**info.branches, branch: snapshot.id}
    return replace(_with_snapshot(info, snapshot), branches=branches)


def _drop_name(refs: Mapping[str, SnapshotId], name: str) -> dict[str, SnapshotId]:
    return {ref: target for ref, target in refs.items() if ref != name}
