"""In-place upgrade of a repository from spec version 1 to 2.

Snapshots, manifests and chunks do not change, because each file has its own version. Only ``repo``
is written, with the content of the ref files, the parents of snapshots, ``config.yaml``, and a
reconstructed ops log. One conditional put creates it: before, the repository has version 1 and is
unchanged; after, it has version 2, because readers look for ``repo`` first. Then the unused files
of version 1 are deleted, the branch main first, so that writers of version 1 fail instead of
writing commits that no reader sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.encoded_history import SPEC_VERSION
from icefloe.format.generation import V1
from icefloe.format.keys import CONFIG, REFS, REPO, format_branch_key
from icefloe.format.repo_info import encode_repo_info
from icefloe.maintenance.limits import map_bounded, require_positive
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.model.repo_info import (
    OpsLogEntry,
    RepoAvailability,
    RepoInfo,
    RepoMigrated,
    RepoStatus,
)
from icefloe.refs.history import walk_history
from icefloe.refs.names import MAIN
from icefloe.refs.ops_log_reconstruction import reconstruct_ops_log
from icefloe.refs.ref_files import RefFiles
from icefloe.storage.interface import Create

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.maintenance.progress import Progress
    from icefloe.model.config import RepositoryConfig
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotInfo
    from icefloe.repository import Repository
    from icefloe.storage.interface import Storage, Version

_PREFETCH = 64
_TRIES = 5
_MICROSECOND = timedelta(microseconds=1)


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Upgrade a repository from spec version 1 to 2 in place, and return it reopened.

    Stop other writers first. A commit made before the final check is included, or detected: then
    the upgrade is rolled back and raises `ConflictError`. A later commit to version 1 is lost.

    Parameters
    ----------
    repo
        The repository; the object cannot be used afterwards, except after a dry run.
    dry_run
        Whether to plan the upgrade without writing anything.
    delete_unused_v1_files
        Whether to delete the branch, tag and configuration files of version 1.
    prefetch_concurrency
        Number of snapshots that are read concurrently; 64 by default. Local and in-memory storages
        are read sequentially.

    Raises
    ------
    SessionStateError
        Of kind ``INVALID_REPOSITORY_MIGRATION`` if the repository does not have version 1.
    """
    connection = repo._connection  # noqa: SLF001 - same package
    storage = connection.storage
    if connection.generation is not V1:
        raise _not_version_1_error(storage)
    if storage.read_only:
        raise ReadOnlyError(f"{storage.url} is read-only: open it with write access")
    upgrade_storage(
        storage,
        dry_run=dry_run,
        delete_unused_v1_files=delete_unused_v1_files,
        prefetch_concurrency=prefetch_concurrency,
    )
    upgraded = type(repo).open(storage, connection.config, connection.credentials)
    upgraded.set_default_commit_metadata(connection.default_commit_metadata)
    if not dry_run:
        vars(repo)["_connection"] = _UpgradedConnection()
    return upgraded


def upgrade_storage(
    storage: Storage,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
    progress: Progress = ignore_progress,
) -> RepoInfo:
    """Like `upgrade_icechunk_repository` for a storage.

    Returns the repo info that it wrote, or would write.
    """
    require_positive(prefetch_concurrency=prefetch_concurrency)
    workers = 1 if storage.is_low_latency else prefetch_concurrency or _PREFETCH
    for _ in range(_TRIES):
        before = _fetch_state(storage)
        infos = _fetch_histories(storage, before, workers, progress)
        info = plan_upgrade(before, infos, now=datetime.now(UTC))
        data = encode_repo_info(info)
        if _fetch_state(storage) == before:
            break
    else:
        raise _concurrent_change_error(storage)
    if dry_run:
        return info
    try:
        version = storage.put(REPO, data, Create())
    except PreconditionFailedError as error:
        raise _not_version_1_error(storage) from error
    if _fetch_state(storage) != before:
        _delete_created_repo(storage, version)
        raise _concurrent_change_error(storage)
    if delete_unused_v1_files:
        storage.delete_many([format_branch_key(MAIN)])
        storage.delete_many([info.key for info in storage.list(REFS)])
        storage.delete_many([CONFIG])
    return info


@dataclass(frozen=True, slots=True)
class RefFilesState:
    """The mutable state of a repository of version 1."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    deleted_tag_targets: Mapping[str, SnapshotId]
    config: RepositoryConfig | None

    @property
    def tips(self) -> set[SnapshotId]:
        """The snapshots that branches and tags point at."""
        return {*self.branches.values(), *self.tags.values()}


def plan_upgrade(
    state: RefFilesState, infos: Mapping[SnapshotId, SnapshotInfo], *, now: datetime
) -> RepoInfo:
    """Build the repo info of version 2 from the files of version 1. Pure.

    ``infos`` has all snapshots in the history of branches and tags.
    """
    *_, root = walk_history(state.branches[MAIN], infos.__getitem__)
    events = reconstruct_ops_log(state.branches, state.tags, state.deleted_tag_targets, infos)
    newest = max((event.updated_at for event in events), default=now)
    migrated = OpsLogEntry(RepoMigrated(1, SPEC_VERSION), max(now, newest + _MICROSECOND))
    return RepoInfo(
        spec_version=SPEC_VERSION,
        branches=dict(state.branches),
        tags=dict(state.tags),
        deleted_tags=state.deleted_tags,
        snapshots=tuple(infos[snapshot_id] for snapshot_id in sorted(infos)),
        status=RepoStatus(RepoAvailability.online, root.flushed_at),
        latest_updates=(migrated, *reversed(events)),
        config=state.config,
    )


def _fetch_state(storage: Storage) -> RefFilesState:
    refs = RefFiles(storage)
    return RefFilesState(
        refs.fetch_branches(),
        refs.fetch_tags(),
        refs.fetch_deleted_tags(),
        refs.fetch_deleted_tag_targets(),
        refs.fetch_config(),
    )


def _fetch_histories(
    storage: Storage, state: RefFilesState, workers: int, progress: Progress
) -> dict[SnapshotId, SnapshotInfo]:
    """Fetch all histories concurrently, each snapshot once."""
    refs = RefFiles(storage)
    infos: dict[SnapshotId, SnapshotInfo] = {}
    pending = sorted(state.tips)
    while pending:
        for info in map_bounded(refs.fetch_snapshot_info, pending, workers=workers):
            infos[info.id] = info
            progress(Step(Phase.READ_SNAPSHOTS, len(infos), len(infos)))
        parents = {infos[snapshot_id].parent_id for snapshot_id in pending}
        pending = sorted(parent for parent in parents if parent is not None and parent not in infos)
    return infos


def _delete_created_repo(storage: Storage, created: Version) -> None:
    """Delete the ``repo`` that was just created, unless another process changed it."""
    try:
        if storage.head(REPO).version == created:
            storage.delete_many([REPO])
    except ObjectNotFoundError:
        pass


def _not_version_1_error(storage: Storage) -> SessionStateError:
    return SessionStateError(
        f"{storage.url} does not have spec version 1: there is nothing to upgrade. `icefloe "
        "convert` converts repositories of the generations draft and sequence",
        kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
    )


def _concurrent_change_error(storage: Storage) -> ConflictError:
    return ConflictError(
        f"branches, tags or the configuration of {storage.url} changed during the upgrade: stop "
        "all writers, and upgrade again",
        kind=ErrorKind.REPO_INFO_UPDATED,
    )


class UpgradedError(SessionStateError, RuntimeError):
    """A repository object was used after the upgrade of its repository."""


class _UpgradedConnection:
    """Replaces the connection of a repository object that was upgraded."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UpgradedError(
            "this repository object was invalidated by upgrade_icechunk_repository: use the "
            "repository that it returned, or open the repository again"
        )

    def __reduce__(self) -> Any:
        return _UpgradedConnection, ()
