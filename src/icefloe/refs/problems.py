"""Errors of ref operations, with the same messages in both generations.

Each function returns an error to raise, or raises it if its condition fails (``require_…``).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
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

_MAX_NAMES = 10


def no_repository(url: str) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"there is no repository at {url}: neither '{REPO}' nor '{branch_key(MAIN)}' exists; "
        "check that the URL is the root of the repository"
    )


def repository_gone(url: str) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"there is no '{REPO}' at {url}: the repository was deleted or moved since it was opened"
    )


def branch_exists(branch: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"branch {branch!r} already exists; use reset_branch to move it",
        kind=ErrorKind.BRANCH_ALREADY_EXISTS,
    )


def no_such_snapshot(snapshot_id: SnapshotId, where: str) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"snapshot {snapshot_id} is not in {where}: it may have been expired and collected"
    )


def require_parent(snapshot: SnapshotInfo, parent: SnapshotId) -> None:
    """Raise if a snapshot does not continue the history that it is committed on."""
    if snapshot.parent_id != parent:
        raise InvalidInputError(
            f"snapshot {snapshot.id} has the parent {snapshot.parent_id} and cannot be committed "
            f"on {parent}: history would be cut off",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )


def conflict(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    todo = "rebase the session, or start a new one"
    return _moved_error(branch, expected, actual, todo, ErrorKind.COMMIT_CONFLICT)


def branch_moved(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    todo = f"check the new commits, and reset from {actual} to drop them"
    return _moved_error(branch, expected, actual, todo, ErrorKind.BRANCH_UPDATE_CONFLICT)


def _moved_error(
    branch: str, expected: SnapshotId, actual: SnapshotId, todo: str, kind: ErrorKind
) -> ConflictError:
    message = f"branch {branch!r} moved: expected {expected}, found {actual}; {todo}"
    return ConflictError(
        message, expected_parent=str(expected), actual_parent=str(actual), kind=kind
    )


def no_such_branch(
    branch: str, *, among: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    return RefNotFoundError(
        f"there is no branch {branch!r} in {where}; {_suggest(branch, among, 'list_branches()')}",
        kind=ErrorKind.BRANCH_NOT_FOUND,
    )


def no_such_tag(
    tag: str, *, among: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    return RefNotFoundError(
        f"there is no tag {tag!r} in {where}; {_suggest(tag, among, 'list_tags()')}",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def tag_is_deleted(tag: str) -> RefNotFoundError:
    return RefNotFoundError(
        f"tag {tag!r} was deleted; list_tags() returns the existing tags",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def _suggest(name: str, among: Collection[str] | None, listing: str) -> str:
    """Suggest existing names; ``among`` is None if they are not known without a listing."""
    if among is None:
        return f"{listing} returns the existing ones"
    if not among:
        return "there are none"
    if near := get_close_matches(name, among):
        return f"did you mean {' or '.join(map(repr, near))}?"
    if len(among) > _MAX_NAMES:
        return f"{listing} returns the {len(among)} existing ones"
    return f"there are: {', '.join(sorted(among))}"


def tag_exists(tag: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"tag {tag!r} already exists, and tags never move: choose another name",
        kind=ErrorKind.TAG_ALREADY_EXISTS,
    )


def tag_was_deleted(tag: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"tag {tag!r} was deleted, and the name of a deleted tag can never be reused: choose "
        "another name",
        kind=ErrorKind.TAG_PREVIOUSLY_DELETED,
    )


def config_changed() -> ConflictError:
    return ConflictError(
        "another writer changed the configuration since it was read: reopen the repository and "
        "save again",
        kind=ErrorKind.CONFIG_UPDATED,
    )


def require_not_main(branch: str) -> None:
    """Raise if the branch to delete is main."""
    if branch == MAIN:
        raise SessionStateError(
            "the branch main cannot be deleted: every repository has one",
            kind=ErrorKind.CANNOT_DELETE_MAIN,
        )
