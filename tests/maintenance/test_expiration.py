"""Expiration removes old snapshots from the history, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe.conflicts import ConflictDetector
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RebaseFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.format.generation import get_generation
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_info import ExpirationRan, RepoAvailability, RepoStatus
from icefloe.refs.ref_files import RefFiles
from icefloe.refs.repo_file import RepoFile
from icefloe.refs.retention import ExpirationPolicy
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.faulty_storage import FaultyStorage
from support.histories import commit, make_history, read_everything, read_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def _history(repository: Repository, ids: list[str], branch: str) -> list[int]:
    return [ids.index(info.id) for info in repository.ancestry(branch=branch)]


def test_old_snapshots_expire(tmp_path: Path, generation: str) -> None:
    """Old snapshots leave the history; the first, the recent ones and the tips remain."""
    repository, ids = make_history(tmp_path / "repo", generation)
    older_than = repository.lookup_snapshot(ids[4]).written_at
    data = read_everything(repository)
    released = repository.expire_snapshots(older_than)
    # Tags keep 1 and 3; where each ref is expired by itself, they count as expired nevertheless.
    by_ref = generation in {"v1", "sequence"}
    assert set(map(ids.index, released)) == ({1, 2, 3} if by_ref else {2})
    line = [6, 5, 4, 0] if by_ref else [6, 5, 4, 3, 0]
    assert _history(repository, ids, "main") == line
    assert _history(Repository.open(LocalStorage(tmp_path / "repo")), ids, "main") == line
    assert repository.lookup_tag("old") == ids[1]
    found = read_everything(repository)
    assert found == {snapshot_id: data[snapshot_id] for snapshot_id in found}
    assert repository.expire_snapshots(older_than) == set()


def test_main_is_kept(tmp_path: Path, generation: str) -> None:
    """If everything is expired and deleted, main and the first snapshot remain."""
    repository, ids = make_history(tmp_path / "repo", generation)
    can_delete_tags = get_generation(generation).can_delete_tags
    if not can_delete_tags:
        with pytest.raises(FormatError) as refused:
            repository.expire_snapshots(datetime.now(UTC), delete_expired_tags=True)
        assert refused.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
        assert "dev" in repository.list_branches()
    kept = [0, 6] if can_delete_tags else [0, 1, 3, 6]
    expected = {ids[number]: read_snapshot(repository, ids[number]) for number in kept}
    repository.expire_snapshots(
        datetime.now(UTC), delete_expired_branches=True, delete_expired_tags=can_delete_tags
    )
    assert repository.list_branches() == {"main"}
    # The first snapshot is never too old.
    assert repository.list_tags() == ({"first"} if can_delete_tags else {"first", "old", "three"})
    assert _history(repository, ids, "main") == [6, 0]
    repository.garbage_collect(datetime.now(UTC))
    assert read_everything(Repository.open(LocalStorage(tmp_path / "repo"))) == expected
    assert commit(repository, "new", 0, 1)


def test_pruned_logs(tmp_path: Path) -> None:
    """A snapshot keeps the logs of expired ancestors, and the logs these had kept, oldest first."""
    repository, ids = make_history(tmp_path / "repo", "v2")
    for tag in ("old", "three"):
        repository.delete_tag(tag)
    repository.delete_branch("dev")
    refs = RepoFile(LocalStorage(tmp_path / "repo"))

    def find_pruned(number: int) -> list[int]:
        info = refs.fetch_snapshot_info(SnapshotId.parse(ids[number]))
        return [ids.index(str(snapshot_id)) for snapshot_id in info.pruned_ancestor_tx_logs]

    repository.expire_snapshots(repository.lookup_snapshot(ids[3]).written_at)
    assert (find_pruned(3), find_pruned(4)) == ([1, 2], [])
    repository.expire_snapshots(repository.lookup_snapshot(ids[5]).written_at)
    assert (find_pruned(5), find_pruned(6)) == ([1, 2, 3, 4], [])
    changed = repository.diff(from_snapshot_id=ids[0], to_branch="main")
    repository.garbage_collect(datetime.now(UTC))
    assert repository.diff(from_snapshot_id=ids[0], to_branch="main") == changed
    assert changed.new_arrays == {"/a", "/b"}
    assert sum(isinstance(update.kind, ExpirationRan) for update in refs.fetch_ops_log()) == 2


@pytest.mark.parametrize("is_conflict", [False, True])
@pytest.mark.parametrize("is_collected", [False, True])
def test_sessions_whose_base_expired(
    tmp_path: Path,
    generation: str,
    is_conflict: bool,  # noqa: FBT001
    is_collected: bool,  # noqa: FBT001
) -> None:
    """With transaction logs they rebase over all newer commits; without, the error says why not."""
    repository = Repository.create(LocalStorage(tmp_path / "repo"), generation=generation)
    commit_group(repository, "before")
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="mine")
    commit_group(repository, "mine" if is_conflict else "other")
    expired_before = datetime.now(UTC)
    tip = commit_group(repository, "last")
    assert session.snapshot_id in repository.expire_snapshots(expired_before)
    if is_collected:
        repository.garbage_collect(expired_before)
    if not get_generation(generation).has_transaction_logs:
        with pytest.raises(ConflictError, match="or the snapshot expired; start a new session"):
            session.commit("mine", rebase_with=ConflictDetector())
    elif is_collected and generation == "v1":  # whose snapshots do not record pruned logs
        with pytest.raises(SessionStateError) as caught:
            session.commit("mine", rebase_with=ConflictDetector())
        assert caught.value.kind is ErrorKind.REBASE_TX_LOG_PRUNED
    elif is_conflict:
        with pytest.raises(RebaseFailedError):
            session.commit("mine", rebase_with=ConflictDetector())
    else:
        session.commit("mine", rebase_with=ConflictDetector())
        root = zarr.open_group(repository.readonly_session("main").store, mode="r")
        assert sorted(root.group_keys()) == ["before", "last", "mine", "other"]
        return
    assert repository.lookup_branch("main") == tip


def commit_group(repository: Repository, path: str) -> str:
    session = repository.writable_session("main")
    zarr.create_group(session.store, path=path)
    return session.commit(path)


def test_times_without_a_zone(tmp_path: Path, generation: str) -> None:
    """A time without a time zone is rejected, and nothing changes."""
    repository = Repository.create(LocalStorage(tmp_path), generation=generation)
    for method in (repository.expire_snapshots, repository.garbage_collect):
        with pytest.raises(InvalidInputError, match="no time zone"):
            method(datetime(2030, 1, 1))  # noqa: DTZ001


def test_read_only_repository(tmp_path: Path) -> None:
    """A read-only repository is neither expired nor collected; a dry run is allowed."""
    repository, _ = make_history(tmp_path / "repo", "v2")
    repository.set_status(RepoStatus(RepoAvailability.read_only))
    now = datetime.now(UTC)
    for method in (repository.expire_snapshots, repository.garbage_collect):
        with pytest.raises(ReadOnlyError):
            method(now)
    assert repository.garbage_collect(now, dry_run=True).chunks_deleted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_half_way(tmp_path: Path, after: bool) -> None:  # noqa: FBT001
    """Version 1 rewrites several files: an interruption in between harms nothing."""
    root = tmp_path / "repo"
    repository, ids = make_history(root, "v1")
    young = repository.lookup_snapshot(ids[4]).written_at
    before = read_everything(repository)
    for dies_at in range(1000):

        def fail(number: int, name: str, key: str, dies_at: int = dies_at) -> None:
            if number == dies_at:
                raise StorageError("died")

        faulty = FaultyStorage(LocalStorage(root), **{"fail_after" if after else "fail": fail})
        try:
            RefFiles(faulty).expire_snapshots(ExpirationPolicy(young))
        except StorageError:
            reopened = Repository.open(LocalStorage(root))
            found = read_everything(reopened)
            assert found == {snapshot_id: before[snapshot_id] for snapshot_id in found}
            assert {ids[6], ids[5], ids[4], ids[8], ids[1], ids[3]} <= set(found)
        else:
            break
    assert dies_at > 20
    assert _history(Repository.open(LocalStorage(root)), ids, "main") == [6, 5, 4, 0]


def test_async_twins(tmp_path: Path, generation: str) -> None:
    """Every operation has an ``_async`` twin."""
    repository, _ = make_history(tmp_path / "repo", generation)

    async def run() -> None:
        now = datetime.now(UTC)
        assert await repository.expire_snapshots_async(now)  # type: ignore[attr-defined]
        assert await repository.garbage_collect_async(now)  # type: ignore[attr-defined]
        stats = await repository.chunk_storage_stats_async()  # type: ignore[attr-defined]
        with pytest.warns(
            DeprecationWarning, match="total_chunks_storage_async is.*chunk_storage_stats_async"
        ):
            total = await repository.total_chunks_storage_async()
        assert total == stats.native_bytes

    asyncio.run(run())
