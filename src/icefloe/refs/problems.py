"""What can be wrong with a change of references, in either generation: errors and their words."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.keys import REPO, branch_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo

MAIN = "main"
"""The branch that every repository has."""

_MOST_NAMES = 10


def no_repository(url: str) -> RepositoryNotFoundError:
    """Make the error that there is no repository of either generation."""
    return RepositoryNotFoundError(
        f"there is no repository at {url}: neither '{REPO}' nor '{branch_key(MAIN)}' is there; "
        "check the address, and that it is the repository's root",
        kind=ErrorKind.REPOSITORY_NOT_FOUND,
    )


def repository_gone(url: str) -> RepositoryNotFoundError:
    """Make the error that the one mutable object of a repository is not there."""
    return RepositoryNotFoundError(
        f"there is no '{REPO}' at {url}: the repository was deleted or moved since it was opened",
        kind=ErrorKind.REPOSITORY_NOT_FOUND,
    )


def needs_version_2(what: str, url: str) -> FormatError:
    """Make the error that generation v1 has no place for something."""
    return FormatError(
        f"{what} needs a repository of version 2, and {url} has version 1: upgrade it with "
        "icefloe.upgrade_icechunk_repository, or create a new one with "
        "spec_version=2",
        # As Icechunk 2.3.0 has it, for all of these.
        kind=ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def branch_exists(branch: str) -> AlreadyExistsError:
    """Make the error that a branch is there already."""
    return AlreadyExistsError(
        f"there is a branch {branch!r} already; reset_branch moves it",
        kind=ErrorKind.BRANCH_ALREADY_EXISTS,
    )


def no_such_snapshot(snapshot_id: SnapshotId, where: str) -> SnapshotNotFoundError:
    """Make the error that a snapshot is not there."""
    return SnapshotNotFoundError(
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


def no_parent(snapshot: SnapshotInfo) -> InvalidInputError:
    """Make the error that a snapshot continues no history."""
    return InvalidInputError(
        f"snapshot {snapshot.id} has no parent: only the first one of a repository has none",
        kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
    )


def conflict(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    """Make the error that a branch moved under a commit."""
    return ConflictError(
        f"branch {branch!r} moved: expected {expected}, found {actual}; rebase the session, or "
        "start a new one",
        expected_parent=str(expected),
        actual_parent=str(actual),
    )


def branch_moved(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    """Make the error that a branch is not where the one who resets it believes."""
    return ConflictError(
        f"branch {branch!r} moved: expected {expected}, found {actual}; look at what came since, "
        f"and reset it from {actual} if it is to go",
        expected_parent=str(expected),
        actual_parent=str(actual),
        kind=ErrorKind.BRANCH_UPDATE_CONFLICT,
    )


def no_such_branch(
    branch: str, *, among: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    """Make the error that a branch is not there; ``among`` are those that are, if known."""
    return RefNotFoundError(
        f"there is no branch {branch!r} in {where}; {_instead(branch, among, 'list_branches()')}",
        kind=ErrorKind.BRANCH_NOT_FOUND,
    )


def no_such_tag(
    tag: str, *, among: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    """Make the error that a tag is not there; ``among`` are those that are, if known."""
    return RefNotFoundError(
        f"there is no tag {tag!r} in {where}; {_instead(tag, among, 'list_tags()')}",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def tag_is_deleted(tag: str) -> RefNotFoundError:
    """Make the error that a tag is not there any more."""
    return RefNotFoundError(
        f"the tag {tag!r} was deleted; list_tags() names those that are there",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def _instead(name: str, among: Collection[str] | None, listing: str) -> str:
    if among is None:
        return f"{listing} names those that are there"
    if not among:
        return "there are none"
    if near := get_close_matches(name, among):
        return f"did you mean {' or '.join(map(repr, near))}?"
    if len(among) > _MOST_NAMES:
        return f"there are {len(among)}, which {listing} names"
    return f"there are: {', '.join(sorted(among))}"


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


def first_commit() -> SessionStateError:
    """Make the error that the first snapshot of a repository stays what it is."""
    return SessionStateError(
        "the first snapshot of a repository cannot be amended: make a new commit instead",
        kind=ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
    )


def feature_disabled(name: str) -> SessionStateError:
    """Make the error that the repository forbids something."""
    return SessionStateError(
        f"the repository does not allow this: its feature flag {name} is off; "
        f"set_feature_flag({name!r}, True) would allow it",
        kind=ErrorKind.FEATURE_FLAG_DISABLED,
    )


def no_feature_flag_setting(name: str, setting: object) -> InvalidInputError:
    """Make the error that a flag is neither on nor off nor at its default."""
    return InvalidInputError(
        f"the feature flag {name} is set to True, False or None, its default, not to {setting!r}",
        kind=ErrorKind.INVALID_FEATURE_FLAG,
    )


def no_such_feature_flag(name: str, among: Collection[str]) -> InvalidInputError:
    """Make the error that there is no such flag."""
    return InvalidInputError(
        f"there is no feature flag {name!r}; there are: {', '.join(among)}",
        kind=ErrorKind.INVALID_FEATURE_FLAG,
    )
