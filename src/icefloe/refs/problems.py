"""What can be wrong with a change of references, in either generation: errors and their words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    SessionStateError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo

MAIN = "main"
"""The branch that every repository has."""


def branch_exists(branch: str) -> AlreadyExistsError:
    """Make the error that a branch is there already."""
    return AlreadyExistsError(
        f"there is a branch {branch!r} already; reset_branch moves it",
        kind=ErrorKind.BRANCH_ALREADY_EXISTS,
    )


def no_such_snapshot(snapshot_id: SnapshotId, where: str) -> NotFoundError:
    """Make the error that a snapshot is not there."""
    return NotFoundError(
        f"snapshot {snapshot_id} is not in {where}: it may have been expired and collected",
        kind=ErrorKind.SNAPSHOT_NOT_FOUND,
    )


def require_parent(snapshot: SnapshotInfo, parent: SnapshotId) -> None:
    """Refuse a commit whose snapshot does not continue the history that it is put on."""
    if snapshot.parent_id != parent:
        raise InvalidInputError(
            f"snapshot {snapshot.id} has the parent {snapshot.parent_id}, so that it cannot be "
            f"committed on {parent}: history would be cut off",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )


def conflict(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    """Make the error that a branch moved."""
    return ConflictError(
        f"branch {branch!r} moved: expected {expected}, found {actual}; rebase the session, or "
        "start a new one",
        expected_parent=str(expected),
        actual_parent=str(actual),
    )


def no_such_branch(branch: str, branches: Mapping[str, SnapshotId]) -> NotFoundError:
    """Make the error that a branch is not there."""
    return NotFoundError(
        f"there is no branch {branch!r}; there are: {', '.join(sorted(branches)) or 'none'}",
        kind=ErrorKind.BRANCH_NOT_FOUND,
    )


def no_such_tag(tag: str, tags: Mapping[str, SnapshotId]) -> NotFoundError:
    """Make the error that a tag is not there."""
    return NotFoundError(
        f"there is no tag {tag!r}; there are: {', '.join(sorted(tags)) or 'none'}",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def tag_exists(tag: str) -> AlreadyExistsError:
    """Make the error that a tag cannot be moved."""
    return AlreadyExistsError(
        f"there is a tag {tag!r} already, and tags never move: choose another name",
        kind=ErrorKind.TAG_ALREADY_EXISTS,
    )


def tag_was_deleted(tag: str) -> AlreadyExistsError:
    """Make the error that a tag's name is used up."""
    return AlreadyExistsError(
        f"there was a tag {tag!r}, and the name of a deleted tag is never used again: choose "
        "another name",
        kind=ErrorKind.TAG_PREVIOUSLY_DELETED,
    )


def config_changed() -> ConflictError:
    """Make the error that somebody else saved the configuration."""
    return ConflictError(
        "the configuration was changed by somebody else since it was read: reopen the repository "
        "and save again",
        kind=ErrorKind.CONFIG_UPDATED,
    )


def require_not_main(branch: str) -> None:
    """Refuse to delete the branch that every repository has."""
    if branch == MAIN:
        raise SessionStateError(
            "the branch main cannot be deleted: every repository has one",
            kind=ErrorKind.CANNOT_DELETE_MAIN,
        )
