"""Errors of ref operations, with the same messages in both generations.

A function returns the error to raise (``…_error``), or checks a condition (``require_…``).
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
from icefloe.format.keys import CONVERSION, REPO, STATE, format_branch_key
from icefloe.format.sequence.keys import format_branch_prefix
from icefloe.refs.names import MAIN

if TYPE_CHECKING:
    from collections.abc import Collection

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo

_MAX_NAMES = 10


def missing_repository_error(url: str) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"the repository doesn't exist: there is no repository at {url}: neither '{REPO}' nor "
        f"'{format_branch_key(MAIN)}' nor '{STATE}' nor '{format_branch_prefix(MAIN)}' exists; "
        "check that the URL is the root of the repository"
    )


def unfinished_conversion_error(url: str) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"the repository doesn't exist: there is no repository at {url} yet: "
        f"'{CONVERSION}' shows that a conversion into it is unfinished; run the same `icefloe "
        "convert` command again, which continues it"
    )


def deleted_repository_error(key: str, url: str) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"'{key}' is missing in {url}: the repository has been deleted or moved since it was opened"
    )


def existing_branch_error(branch: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"branch {branch!r} already exists; use reset_branch to move it",
        kind=ErrorKind.BRANCH_ALREADY_EXISTS,
    )


def missing_snapshot_error(snapshot_id: SnapshotId, where: str) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"snapshot {snapshot_id} is not in {where}: it may have expired and been garbage-collected"
    )


def require_parent(snapshot: SnapshotInfo, parent: SnapshotId) -> None:
    """Raise if ``parent``, the tip of the branch, is not the parent of ``snapshot``."""
    if snapshot.parent_id != parent:
        raise InvalidInputError(
            f"snapshot {snapshot.id} has the parent {snapshot.parent_id}, expected {parent}: a "
            "commit must continue the history of its branch",
            kind=ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )


def commit_conflict_error(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    advice = "rebase the session, or start a new one"
    message = _format_move(branch, expected, actual, advice)
    return _moved_error(message, expected, actual, ErrorKind.COMMIT_CONFLICT)


def reset_conflict_error(branch: str, expected: SnapshotId, actual: SnapshotId) -> ConflictError:
    advice = f"check the new commits; to discard them, reset again with from_snapshot_id='{actual}'"
    message = f"branch update conflict: {_format_move(branch, expected, actual, advice)}"
    return _moved_error(message, expected, actual, ErrorKind.BRANCH_UPDATE_CONFLICT)


def _format_move(branch: str, expected: SnapshotId, actual: SnapshotId, advice: str) -> str:
    return f"branch {branch!r} moved: expected {expected}, found {actual}; {advice}"


def _moved_error(
    message: str, expected: SnapshotId, actual: SnapshotId, kind: ErrorKind
) -> ConflictError:
    return ConflictError(
        message, expected_parent=str(expected), actual_parent=str(actual), kind=kind
    )


def missing_branch_error(
    branch: str, *, names: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    return RefNotFoundError(
        f"ref not found: there is no branch {branch!r} in {where}; "
        f"{_suggest(branch, names, 'branches')}",
        kind=ErrorKind.BRANCH_NOT_FOUND,
    )


def missing_tag_error(
    tag: str, *, names: Collection[str] | None = None, where: str = "the repository"
) -> RefNotFoundError:
    return RefNotFoundError(
        f"ref not found: there is no tag {tag!r} in {where}; {_suggest(tag, names, 'tags')}",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def deleted_tag_error(tag: str) -> RefNotFoundError:
    return RefNotFoundError(
        f"ref not found: tag {tag!r} was deleted; list_tags() returns the existing tags",
        kind=ErrorKind.TAG_NOT_FOUND,
    )


def _suggest(name: str, names: Collection[str] | None, kind: str) -> str:
    """Suggest existing names of branches or tags; ``names`` is None if they were not listed."""
    listing = f"list_{kind}()"
    if names is None:
        return f"{listing} returns the existing ones"
    if not names:
        return f"it has no {kind}"
    if matches := get_close_matches(name, names):
        return f"did you mean {' or '.join(map(repr, matches))}?"
    if len(names) > _MAX_NAMES:
        return f"{listing} returns the {len(names)} existing ones"
    return f"available: {', '.join(sorted(names))}"


def existing_tag_error(tag: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"tag {tag!r} already exists and cannot be moved: choose another name",
        kind=ErrorKind.TAG_ALREADY_EXISTS,
    )


def reused_tag_error(tag: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"tag {tag!r} was deleted, and names of deleted tags cannot be reused: choose another name",
        kind=ErrorKind.TAG_PREVIOUSLY_DELETED,
    )


def config_conflict_error() -> ConflictError:
    return ConflictError(
        "another writer has changed the configuration since it was read: reopen the repository "
        "and save again",
        kind=ErrorKind.CONFIG_UPDATED,
    )


def require_not_main(branch: str) -> None:
    """Raise if the branch to delete is main."""
    if branch == MAIN:
        raise SessionStateError(
            "the branch main cannot be deleted",
            kind=ErrorKind.CANNOT_DELETE_MAIN,
        )
