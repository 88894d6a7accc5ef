"""Changing references: the same rules in both generations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionStateError,
    StorageError,
)
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.model.repo_info import RepoAvailability, RepoStatus
from icefloe.refs import Refs, create_refs, open_refs
from icefloe.refs.repo_file import RepoFile
from icefloe.storage import LocalStorage, MemoryStorage, Overwrite
from refs.snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.storage import ObjectInfo, PutMode, Storage, Version


def commit(refs: Refs, storage: Storage, message: str = "a commit") -> SnapshotId:
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, refs.spec_version, parent, message)
    refs.commit("main", parent, info)
    return info.id


def test_creation(refs: Refs, storage: Storage, spec_version: int) -> None:
    """A new repository has the branch main at the first snapshot, and nothing else."""
    reopened = open_refs(storage)
    assert reopened.spec_version == spec_version
    assert reopened.fetch_branches() == {"main": INITIAL_SNAPSHOT_ID}
    assert reopened.fetch_tags() == {}
    assert reopened.fetch_config() is None
    (first,) = reopened.fetch_ancestry(INITIAL_SNAPSHOT_ID)
    assert (first.message, first.parent_id) == ("Repository initialized", None)


@pytest.mark.parametrize("other_version", [1, 2])
def test_creating_twice(refs: Refs, storage: Storage, other_version: int) -> None:
    """The second creator at one place, of whatever version, is told and changes nothing."""
    tip = commit(refs, storage)
    before = {info.key: info.version for info in storage.list()}
    with pytest.raises(AlreadyExistsError, match="open it instead"):
        create_refs(storage, spec_version=other_version, config=RepositoryConfig())
    assert {info.key: info.version for info in storage.list()} == before
    assert open_refs(storage).fetch_branch("main") == tip


def test_creators_of_both_versions_at_once() -> None:
    """If creators of both versions race, version 2 exists, and the other is told."""

    class Racing(MemoryStorage):
        """Lets somebody create version 2 right before the branch main is created."""

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if key == "refs/branch.main/ref.json":
                create_refs(self, spec_version=2)
            return super().put(key, data, mode)

    storage = Racing()
    with pytest.raises(AlreadyExistsError):
        create_refs(storage, spec_version=1)
    assert open_refs(storage).spec_version == 2


def test_what_a_dead_creator_left_serves_the_next(spec_version: int) -> None:
    """A creator who dies before the last write leaves nothing in the way."""

    class Dying(MemoryStorage):
        """Fails at the write that makes the repository exist."""

        dies = True

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if self.dies and key in ("repo", "refs/branch.main/ref.json"):
                raise StorageError("dead")
            return super().put(key, data, mode)

    storage = Dying()
    first, second = (RepositoryConfig(inline_chunk_threshold_bytes=size) for size in (1, 2))
    with pytest.raises(StorageError, match="dead"):
        create_refs(storage, spec_version=spec_version, config=first)
    storage.dies = False
    create_refs(storage, spec_version=spec_version, config=second)
    assert open_refs(storage).fetch_config() == second
    assert open_refs(storage).fetch_branch("main") == INITIAL_SNAPSHOT_ID


def test_a_commit_must_continue_the_history(refs: Refs, storage: Storage) -> None:
    """A snapshot with another parent, or none, cannot be committed: history would be cut off."""
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, refs.spec_version, parent, "a commit")
    for wrong in (None, SnapshotId.random()):
        with pytest.raises(InvalidInputError, match="history would be cut off"):
            refs.commit("main", parent, replace(info, parent_id=wrong))
    assert refs.fetch_branch("main") == parent


def test_commits_make_history(refs: Refs, storage: Storage) -> None:
    """Each commit is the parent of the next one."""
    ids = [commit(refs, storage, f"commit {number}") for number in range(3)]
    history = list(open_refs(storage).fetch_ancestry(refs.fetch_branch("main")))
    assert [info.id for info in history] == [*reversed(ids), INITIAL_SNAPSHOT_ID]
    assert [info.message for info in history][:3] == ["commit 2", "commit 1", "commit 0"]


def test_a_stale_commit_is_a_conflict(refs: Refs, storage: Storage) -> None:
    """Of two commits on one parent one wins; the other learns where the branch is."""
    parent = refs.fetch_branch("main")
    loser = write_snapshot(storage, refs.spec_version, parent, "too late")
    winner = commit(refs, storage)
    with pytest.raises(ConflictError) as caught:
        refs.commit("main", parent, loser)
    assert caught.value.expected_parent == str(parent)
    assert caught.value.actual_parent == str(winner)
    assert refs.fetch_branch("main") == winner


def test_branches(refs: Refs, storage: Storage) -> None:
    """Branches are created, reset and deleted; each change is seen by whoever opens anew."""
    first, second = commit(refs, storage), commit(refs, storage)
    refs.create_branch("dev", first)
    assert open_refs(storage).fetch_branches() == {"main": second, "dev": first}
    refs.reset_branch("dev", second, expected=first)
    assert refs.fetch_branch("dev") == second
    with pytest.raises(ConflictError):
        refs.reset_branch("dev", first, expected=first)
    refs.reset_branch("dev", first)
    refs.delete_branch("dev")
    assert open_refs(storage).fetch_branches() == {"main": second}


def test_tags(refs: Refs, storage: Storage) -> None:
    """Tags never move, and the name of a deleted one is never used again."""
    first = commit(refs, storage)
    refs.create_tag("v1", first)
    assert open_refs(storage).fetch_tags() == {"v1": first}
    assert refs.fetch_tag("v1") == first
    with pytest.raises(AlreadyExistsError, match="tags never move"):
        refs.create_tag("v1", INITIAL_SNAPSHOT_ID)
    refs.delete_tag("v1")
    assert refs.fetch_tags() == {}
    assert refs.fetch_deleted_tags() == {"v1"}
    with pytest.raises(AlreadyExistsError) as caught:
        refs.create_tag("v1", first)
    assert caught.value.kind is ErrorKind.TAG_PREVIOUSLY_DELETED
    with pytest.raises(NotFoundError):
        refs.delete_tag("v1")
    with pytest.raises(NotFoundError):
        refs.fetch_tag("v1")


@pytest.mark.parametrize(
    "change, error, kind",
    [
        (
            lambda refs: refs.create_branch("main", INITIAL_SNAPSHOT_ID),
            AlreadyExistsError,
            "branch-already-exists",
        ),
        (
            lambda refs: refs.create_branch("x", SnapshotId(bytes(12))),
            NotFoundError,
            "snapshot-not-found",
        ),
        (
            lambda refs: refs.create_branch("", INITIAL_SNAPSHOT_ID),
            InvalidInputError,
            "invalid-ref-name",
        ),
        (
            lambda refs: refs.create_tag("a\nb", INITIAL_SNAPSHOT_ID),
            InvalidInputError,
            "invalid-ref-name",
        ),
        (
            lambda refs: refs.create_tag("x", SnapshotId(bytes(12))),
            NotFoundError,
            "snapshot-not-found",
        ),
        (
            lambda refs: refs.reset_branch("x", INITIAL_SNAPSHOT_ID),
            NotFoundError,
            "branch-not-found",
        ),
        (
            lambda refs: refs.reset_branch("main", SnapshotId(bytes(12))),
            NotFoundError,
            "snapshot-not-found",
        ),
        (lambda refs: refs.delete_branch("main"), SessionStateError, "cannot-delete-main"),
        (lambda refs: refs.delete_branch("x"), NotFoundError, "branch-not-found"),
        (lambda refs: refs.delete_tag("x"), NotFoundError, "tag-not-found"),
        (lambda refs: refs.fetch_branch("x"), NotFoundError, "branch-not-found"),
        (lambda refs: refs.fetch_tag("x"), NotFoundError, "tag-not-found"),
    ],
)
def test_refused_changes_leave_everything(
    refs: Refs,
    storage: Storage,
    change: Callable[[Refs], None],
    error: type[IcefloeError],
    kind: str,
) -> None:
    """A wrong name or snapshot raises its own kind of error, and nothing is written."""
    before = {info.key: info.version for info in storage.list()}
    with pytest.raises(error) as caught:
        change(refs)
    assert caught.value.kind == kind
    assert {info.key: info.version for info in storage.list()} == before


def test_slashes_in_names(refs: Refs, spec_version: int) -> None:
    """A name may have a slash in generation v2, and not in v1."""
    if spec_version == 1:
        with pytest.raises(InvalidInputError, match="version 1"):
            refs.create_branch("feature/x", INITIAL_SNAPSHOT_ID)
    else:
        refs.create_branch("feature/x", INITIAL_SNAPSHOT_ID)
        assert refs.fetch_branch("feature/x") == INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize("name", ["größe", "a#1", "100%", "深"])
def test_unusual_names(refs: Refs, spec_version: int, name: str) -> None:
    """Names that Icechunk's storages spell in different ways are created in generation v2 alone."""
    if spec_version == 1:
        with pytest.raises(InvalidInputError, match="letters without accents"):
            refs.create_branch(name, INITIAL_SNAPSHOT_ID)
    else:
        refs.create_branch(name, INITIAL_SNAPSHOT_ID)
        assert refs.fetch_branch(name) == INITIAL_SNAPSHOT_ID


def test_config(refs: Refs, storage: Storage) -> None:
    """The configuration is replaced only by whoever knows the present one."""
    first = RepositoryConfig(inline_chunk_threshold_bytes=1)
    second = RepositoryConfig(inline_chunk_threshold_bytes=2)
    refs.save_config(first, expected=None)
    assert open_refs(storage).fetch_config() == first
    with pytest.raises(ConflictError) as caught:
        refs.save_config(second, expected=None)
    assert caught.value.kind is ErrorKind.CONFIG_UPDATED
    refs.save_config(second, expected=first)
    assert open_refs(storage).fetch_config() == second


def test_a_branch_deleted_while_others_list(spec_version: int) -> None:
    """Whoever lists branches while one is deleted sees the others."""

    class Deleting(MemoryStorage):
        """Deletes a branch after it was listed."""

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            found = list(super().list(prefix))
            self.delete_many(["refs/branch.dev/ref.json"])
            return iter(found)

    storage = Deleting()
    refs = create_refs(storage, spec_version=spec_version)
    refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
    assert "main" in refs.fetch_branches()


def test_config_at_creation(spec_version: int) -> None:
    """A repository can be created with its configuration."""
    storage = MemoryStorage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    create_refs(storage, spec_version=spec_version, config=config)
    assert open_refs(storage).fetch_config() == config


def test_an_unknown_version_is_refused() -> None:
    """Only the versions that exist can be created, and nothing is written otherwise."""
    storage = MemoryStorage()
    with pytest.raises(InvalidInputError, match="choose 1 or 2"):
        create_refs(storage, spec_version=3)
    assert list(storage.list()) == []


class TestGeneration2:
    """What only the file ``repo`` can do."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path)

    def make(self, storage: Storage, limit: int | None = None) -> RepoFile:
        config = RepositoryConfig(num_updates_per_repo_info_file=limit)
        create_refs(storage, spec_version=2, config=config)
        refs = open_refs(storage)
        assert isinstance(refs, RepoFile)
        return refs

    def test_ops_log(self, storage: Storage) -> None:
        """The log tells every change, newest first, in times that ascend."""
        refs = self.make(storage)
        tip = commit(refs, storage)
        refs.create_branch("dev", tip)
        refs.create_tag("v1", tip)
        refs.delete_tag("v1")
        refs.save_metadata({"owner": "me"})
        log = list(refs.fetch_ops_log())
        assert [type(update.kind).__name__ for update in log] == [
            "MetadataChanged",
            "TagDeleted",
            "TagCreated",
            "BranchCreated",
            "NewCommit",
            "RepoInitialized",
        ]
        times = [update.updated_at for update in log]
        assert times == sorted(set(times), reverse=True)
        assert [update.backup_path is None for update in log] == [True] + [False] * 5
        backups = {info.key for info in storage.list("overwritten/")}
        assert {f"overwritten/{update.backup_path}" for update in log[1:]} == backups

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    def test_long_ops_logs_go_on_in_backups(self, storage: Storage, limit: int) -> None:
        """However few entries one file may hold, the log as a whole loses none."""
        refs = self.make(storage, limit)
        for number in range(12):
            refs.create_tag(f"v{number}", INITIAL_SNAPSHOT_ID)
            assert len(refs.fetch().latest_updates) <= limit
        names = [getattr(update.kind, "name", "start") for update in refs.fetch_ops_log()]
        assert names == [*(f"v{number}" for number in reversed(range(12))), "start"]

    def test_read_only(self, storage: Storage) -> None:
        """A read-only repository refuses every change but the one that makes it writable."""
        refs = self.make(storage)
        refs.save_status(RepoStatus(RepoAvailability.READ_ONLY, datetime.now(UTC), "moving"))
        with pytest.raises(ReadOnlyError, match="read only \\(moving\\)"):
            refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        refs.save_status(RepoStatus(RepoAvailability.ONLINE, datetime.now(UTC)))
        refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        assert set(refs.fetch_branches()) == {"main", "dev"}

    def test_backups_are_the_states_before(self, storage: Storage) -> None:
        """What a change replaced is kept, byte for byte."""
        refs = self.make(storage)
        before = storage.get("repo").data
        refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        (backup,) = storage.list("overwritten/")
        assert storage.get(backup.key).data == before
