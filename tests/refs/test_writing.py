"""Changes of refs, with the same rules in all generations."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from queue import Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.generation import DRAFT, GENERATIONS, SEQUENCE, V1, V2, find_generation
from icefloe.format.keys import CONFIG, CREATION
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.model.repo_info import (
    CommitAmended,
    ExpirationRan,
    FeatureFlag,
    FeatureFlagChanged,
    MetadataChanged,
    NewDetachedSnapshot,
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    UpdateType,
)
from icefloe.refs import Refs, changes, create_refs, creation_claim, fetch_generation, open_refs
from icefloe.refs.repo_file import RepoFile
from icefloe.storage import LocalStorage, MemoryStorage, Overwrite
from support.counting_refs_storage import CountingStorage
from support.ref_keys import GENERATIONS_WITH_REF_FILES, PUBLISHING_KEYS
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.format.generation import Generation
    from icefloe.storage import ObjectInfo, PutMode, Storage, Version


def commit(refs: Refs, storage: Storage, message: str = "a commit") -> SnapshotId:
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, refs.generation, parent, message)
    refs.commit("main", parent, info)
    return info.id


def test_creation(refs: Refs, storage: Storage, generation: Generation) -> None:
    """A new repository has the branch main at the first snapshot, and nothing else."""
    reopened = open_refs(storage).refs
    assert reopened.generation is generation
    assert fetch_generation(storage) is generation
    assert reopened.spec_version == generation.spec_version
    assert reopened.fetch_branches() == {"main": generation.initial_snapshot_id}
    assert reopened.fetch_tags() == {}
    assert reopened.fetch_config() is None
    (first,) = reopened.fetch_ancestry(generation.initial_snapshot_id)
    assert (first.message, first.parent_id) == ("Repository initialized", None)


@pytest.mark.parametrize("other", GENERATIONS.values(), ids=list(GENERATIONS))
def test_creating_twice(refs: Refs, storage: Storage, other: Generation) -> None:
    """A second creation, of any generation, raises and changes nothing."""
    tip = commit(refs, storage)
    before = {info.key: info.version for info in storage.list()}
    with pytest.raises(AlreadyExistsError, match="open it instead"):
        create_refs(storage, generation=other, config=RepositoryConfig())
    assert {info.key: info.version for info in storage.list()} == before
    assert open_refs(storage).refs.fetch_branch("main") == tip


@pytest.mark.parametrize(
    "winner, loser",
    [
        pytest.param(winner, loser, id=f"{winner.name}-{loser.name}")
        for winner, loser in permutations(PUBLISHING_KEYS, 2)
    ],
)
def test_concurrent_creators(winner: Generation, loser: Generation) -> None:
    """Of two generations created concurrently, the first exists, and the other creator raises."""
    first_is_publishing, errors = Event(), Queue[AlreadyExistsError | None]()

    class Racing(MemoryStorage):
        """Publishes the first repository while its other creator waits."""

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if key == PUBLISHING_KEYS[winner]:
                first_is_publishing.set()
                assert errors.empty()
                time.sleep(0.3)
            return super().put(key, data, mode)

    storage = Racing()

    def create_second() -> None:
        first_is_publishing.wait()
        try:
            create_refs(storage, generation=loser, config=RepositoryConfig())
        except AlreadyExistsError as error:
            errors.put(error)
        else:
            errors.put(None)

    thread = Thread(target=create_second)
    thread.start()
    create_refs(storage, generation=winner)
    thread.join()
    assert isinstance(errors.get(), AlreadyExistsError)
    opened = open_refs(storage)
    assert opened.refs.generation is winner
    assert opened.config is None
    assert not {info.key for info in storage.list()} & {CREATION, CONFIG}


@pytest.mark.parametrize(
    "suspended, other",
    [
        pytest.param(suspended, other, id=f"{suspended.name}-{other.name}")
        for suspended, other in permutations(PUBLISHING_KEYS, 2)
    ],
)
def test_a_suspended_creator(
    suspended: Generation, other: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creator whose claim was taken for that of a killed one changes nothing afterwards."""
    monkeypatch.setattr(creation_claim, "PATIENCE_S", 0.05)

    class Suspending(MemoryStorage):
        """Runs the other creator before the first write after the claim."""

        is_first = True

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if key != CREATION and self.is_first:
                self.is_first = False
                create_refs(self, generation=other)
            return super().put(key, data, mode)

    storage = Suspending()
    with pytest.raises(AlreadyExistsError):
        create_refs(storage, generation=suspended, config=RepositoryConfig())
    opened = open_refs(storage)
    assert opened.refs.generation is other
    assert opened.config is None
    assert not {info.key for info in storage.list()} & {CREATION, CONFIG}


def test_a_creator_that_finds_the_claim_released(generation: Generation) -> None:
    """A repository that was created after the first check is found by the second."""

    class Slow(MemoryStorage):
        """Creates another repository right before the claim."""

        is_first = True

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if key == CREATION and self.is_first:
                self.is_first = False
                create_refs(self, generation=V1)
            return super().put(key, data, mode)

    storage = Slow()
    with pytest.raises(AlreadyExistsError, match="already exists"):
        create_refs(storage, generation=generation, config=RepositoryConfig())
    opened = open_refs(storage)
    assert opened.refs.generation is V1
    assert opened.config is None


def test_an_interrupted_creation_can_be_repeated(generation: Generation) -> None:
    """A creation that is interrupted before the last write can be repeated."""

    class Dying(MemoryStorage):
        """Fails at the write that makes the repository exist."""

        dies = True

        def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
            if self.dies and key in PUBLISHING_KEYS.values():
                raise StorageError("dead")
            return super().put(key, data, mode)

    storage = Dying()
    first, second = (RepositoryConfig(inline_chunk_threshold_bytes=size) for size in (1, 2))
    with pytest.raises(StorageError, match="dead"):
        create_refs(storage, generation=generation, config=first)
    storage.dies = False
    create_refs(storage, generation=generation, config=second)
    assert open_refs(storage).refs.fetch_config() == second
    assert open_refs(storage).refs.fetch_branch("main") == generation.initial_snapshot_id


def test_a_commit_must_continue_the_history(refs: Refs, storage: Storage) -> None:
    """A snapshot with another parent, or none, cannot be committed."""
    parent = refs.fetch_branch("main")
    info = write_snapshot(storage, refs.generation, parent, "a commit")
    for wrong in (None, SnapshotId.random()):
        with pytest.raises(InvalidInputError, match="must continue the history"):
            refs.commit("main", parent, replace(info, parent_id=wrong))
    assert refs.fetch_branch("main") == parent


def test_commits_make_history(refs: Refs, storage: Storage) -> None:
    """Each commit is the parent of the next one."""
    ids = [commit(refs, storage, f"commit {number}") for number in range(3)]
    history = list(open_refs(storage).refs.fetch_ancestry(refs.fetch_branch("main")))
    assert [info.id for info in history] == [*reversed(ids), refs.generation.initial_snapshot_id]
    assert [info.message for info in history][:3] == ["commit 2", "commit 1", "commit 0"]


def test_a_stale_commit_is_a_conflict(refs: Refs, storage: Storage) -> None:
    """Of two commits on one parent one succeeds; the error of the other has the new tip."""
    parent = refs.fetch_branch("main")
    loser = write_snapshot(storage, refs.generation, parent, "too late")
    winner = commit(refs, storage)
    with pytest.raises(ConflictError) as caught:
        refs.commit("main", parent, loser)
    assert caught.value.expected_parent == str(parent)
    assert caught.value.actual_parent == str(winner)
    assert refs.fetch_branch("main") == winner


def test_begin_commit(refs: Refs, storage: Storage) -> None:
    """`begin_commit` tolerates other changes, and raises a conflict if the branch moved."""
    first = commit(refs, storage)
    with pytest.raises(ConflictError) as caught:
        refs.begin_commit("main", refs.generation.initial_snapshot_id)
    assert caught.value.actual_parent == str(first)
    finish, late = (refs.begin_commit("main", first) for _ in range(2))
    refs.create_tag("v1", first)
    infos = [write_snapshot(storage, refs.generation, first, word) for word in ("one", "two")]
    finish(infos[0])
    assert refs.fetch_branch("main") == infos[0].id
    assert set(refs.fetch_tags()) == {"v1"}
    with pytest.raises(ConflictError) as caught:
        late(infos[1])
    assert caught.value.actual_parent == str(infos[0].id)
    assert refs.fetch_branch("main") == infos[0].id


def test_branches(refs: Refs, storage: Storage) -> None:
    """Branches are created, reset and deleted; each change is visible after reopening."""
    first, second = commit(refs, storage), commit(refs, storage)
    refs.create_branch("dev", first)
    assert open_refs(storage).refs.fetch_branches() == {"main": second, "dev": first}
    refs.reset_branch("dev", second, expected=first)
    assert refs.fetch_branch("dev") == second
    with pytest.raises(ConflictError) as caught:
        refs.reset_branch("dev", first, expected=first)
    assert caught.value.kind is ErrorKind.BRANCH_UPDATE_CONFLICT
    assert caught.value.actual_parent == str(second)
    refs.reset_branch("dev", first)
    refs.delete_branch("dev")
    assert open_refs(storage).refs.fetch_branches() == {"main": second}


def test_tags(refs: Refs, storage: Storage) -> None:
    """Tags cannot be moved, and names of deleted tags, where they exist, cannot be reused."""
    first = commit(refs, storage)
    refs.create_tag("v1", first)
    assert open_refs(storage).refs.fetch_tags() == {"v1": first}
    assert refs.fetch_tag_names() == {"v1"}
    assert refs.fetch_tag("v1") == first
    with pytest.raises(AlreadyExistsError, match="cannot be moved"):
        refs.create_tag("v1", refs.generation.initial_snapshot_id)
    if not refs.generation.can_delete_tags:
        with pytest.raises(FormatError, match=r"draft, v1 or v2, .* convert .*--to v2") as refused:
            refs.delete_tag("v1")
        assert refused.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
        assert refs.fetch_tags() == {"v1": first}
        assert refs.fetch_deleted_tags() == frozenset()
        return
    refs.delete_tag("v1")
    assert refs.fetch_tags() == {}
    assert refs.fetch_tag_names() == set()
    assert refs.fetch_deleted_tags() == {"v1"}
    with pytest.raises(AlreadyExistsError) as caught:
        refs.create_tag("v1", first)
    assert caught.value.kind is ErrorKind.TAG_PREVIOUSLY_DELETED
    with pytest.raises(RefNotFoundError, match="was deleted"):
        refs.delete_tag("v1")
    with pytest.raises(RefNotFoundError, match="was deleted"):
        refs.fetch_tag("v1")


@pytest.mark.parametrize(
    "change, error, kind",
    [
        (
            lambda refs: refs.create_branch("main", refs.generation.initial_snapshot_id),
            AlreadyExistsError,
            "branch-already-exists",
        ),
        (
            lambda refs: refs.create_branch("x", SnapshotId(bytes(12))),
            SnapshotNotFoundError,
            "snapshot-not-found",
        ),
        (
            lambda refs: refs.create_branch("", refs.generation.initial_snapshot_id),
            InvalidInputError,
            "invalid-ref-name",
        ),
        (
            lambda refs: refs.create_tag("a\nb", refs.generation.initial_snapshot_id),
            InvalidInputError,
            "invalid-ref-name",
        ),
        (
            lambda refs: refs.create_tag("x", SnapshotId(bytes(12))),
            SnapshotNotFoundError,
            "snapshot-not-found",
        ),
        (
            lambda refs: refs.reset_branch("x", refs.generation.initial_snapshot_id),
            RefNotFoundError,
            "branch-not-found",
        ),
        (
            lambda refs: refs.reset_branch("main", SnapshotId(bytes(12))),
            SnapshotNotFoundError,
            "snapshot-not-found",
        ),
        (lambda refs: refs.delete_branch("main"), SessionStateError, "cannot-delete-main"),
        (lambda refs: refs.delete_branch("x"), RefNotFoundError, "branch-not-found"),
        (lambda refs: refs.delete_tag("x"), RefNotFoundError, "tag-not-found"),
        (lambda refs: refs.fetch_branch("x"), RefNotFoundError, "branch-not-found"),
        (lambda refs: refs.fetch_tag("x"), RefNotFoundError, "tag-not-found"),
    ],
)
def test_failed_changes_change_nothing(
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


def test_slashes_in_names(refs: Refs, generation: Generation) -> None:
    """Names may contain a slash, but not where names are part of keys."""
    if generation in GENERATIONS_WITH_REF_FILES:
        with pytest.raises(InvalidInputError, match=r"slashes need .* generation draft or v2"):
            refs.create_branch("feature/x", generation.initial_snapshot_id)
    else:
        refs.create_branch("feature/x", generation.initial_snapshot_id)
        assert refs.fetch_branch("feature/x") == generation.initial_snapshot_id


@pytest.mark.parametrize("name", ["größe", "a#1", "100%", "深"])
def test_unusual_names(refs: Refs, generation: Generation, name: str) -> None:
    """Names that storages may encode in keys cannot be created where names are part of keys."""
    if generation in GENERATIONS_WITH_REF_FILES:
        with pytest.raises(InvalidInputError, match="allow ASCII letters"):
            refs.create_branch(name, generation.initial_snapshot_id)
    else:
        refs.create_branch(name, generation.initial_snapshot_id)
        assert refs.fetch_branch(name) == generation.initial_snapshot_id


@pytest.mark.parametrize("name", [None, 5, b"x", ["main"]])
def test_names_must_be_strings(refs: Refs, storage: Storage, name: Any) -> None:
    """Names of branches and tags must be strings."""
    before = {info.key: info.version for info in storage.list()}
    calls: list[Callable[[], object]] = [
        lambda: refs.fetch_branch(name),
        lambda: refs.fetch_tag(name),
        lambda: refs.create_branch(name, refs.generation.initial_snapshot_id),
        lambda: refs.create_tag(name, refs.generation.initial_snapshot_id),
        lambda: refs.reset_branch(name, refs.generation.initial_snapshot_id),
        lambda: refs.delete_branch(name),
        lambda: refs.delete_tag(name),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="must be a str") as caught:
            call()
        assert caught.value.kind is ErrorKind.INVALID_REF_NAME
    assert {info.key: info.version for info in storage.list()} == before


def test_config(refs: Refs, storage: Storage) -> None:
    """The configuration is replaced only if the current one is as expected."""
    first = RepositoryConfig(inline_chunk_threshold_bytes=1)
    second = RepositoryConfig(inline_chunk_threshold_bytes=2)
    refs.save_config(first, expected=None)
    assert open_refs(storage).refs.fetch_config() == first
    with pytest.raises(ConflictError) as caught:
        refs.save_config(second, expected=None)
    assert caught.value.kind is ErrorKind.CONFIG_UPDATED
    refs.save_config(second, expected=first)
    assert open_refs(storage).refs.fetch_config() == second


def test_a_branch_deleted_during_a_listing(generation: Generation) -> None:
    """A listing of branches during a deletion returns the others."""

    class Deleting(MemoryStorage):
        """Deletes a branch after it was listed."""

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            found = list(super().list(prefix))
            self.delete_many(["refs/branch.dev/ref.json", "r/dev/ZZZZZZZZ.json"])
            return iter(found)

    storage = Deleting()
    refs = create_refs(storage, generation=generation)
    refs.create_branch("dev", generation.initial_snapshot_id)
    assert "main" in refs.fetch_branches()


def test_config_at_creation(generation: Generation) -> None:
    """A repository can be created with its configuration."""
    storage = MemoryStorage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    create_refs(storage, generation=generation, config=config)
    assert open_refs(storage).refs.fetch_config() == config


def test_an_unknown_version_raises() -> None:
    """Only the versions that exist can be created, and nothing is written otherwise."""
    storage = MemoryStorage()
    with pytest.raises(InvalidInputError, match="one of: draft, sequence, v1, v2"):
        create_refs(storage, generation=find_generation(3))
    assert list(storage.list()) == []


def test_requests_of_a_commit(generation: Generation) -> None:
    """A commit takes two requests in v1 and draft, and one more in v2, which keeps a backup.

    It takes four in ``sequence``, two of them listings of one page: to find the newest file, and to
    confirm that the new one took its place.
    """
    storage = CountingStorage(MemoryStorage())
    refs = create_refs(storage, generation=generation)
    info = write_snapshot(storage, generation, generation.initial_snapshot_id, "a commit")
    storage.requests.clear()
    refs.commit("main", generation.initial_snapshot_id, info)
    requests: Counter[str] = Counter()
    for request, count in storage.requests.items():
        requests[re.sub(r"overwritten/.+", "backup", request)] += count
    expected = {
        DRAFT: {"get state.json": 1, "put state.json": 1},
        SEQUENCE: {
            "list_first r/main/": 2,
            "get r/main/ZZZZZZZZ.json": 1,
            "put r/main/ZZZZZZZY.json": 1,
        },
        V1: {"get refs/branch.main/ref.json": 1, "put refs/branch.main/ref.json": 1},
        V2: {"get_if_changed repo": 1, "put backup": 1, "put repo": 1},
    }
    assert requests == expected[generation]


def test_detached_snapshots(refs: Refs, storage: Storage) -> None:
    """A snapshot that no branch points at has a history, and can be tagged."""
    tip = commit(refs, storage)
    info = write_snapshot(storage, refs.generation, tip, "detached")
    refs.add_snapshot(info)
    assert refs.fetch_branches() == {"main": tip}
    assert refs.fetch_snapshot_info(info.id).message == "detached"
    assert [ancestor.id for ancestor in refs.fetch_ancestry(info.id)] == [
        info.id,
        tip,
        refs.generation.initial_snapshot_id,
    ]
    refs.create_tag("kept", info.id)
    assert open_refs(storage).refs.fetch_tag("kept") == info.id


@pytest.mark.parametrize(
    "call",
    [
        lambda refs: refs.amend(
            "main",
            refs.generation.initial_snapshot_id,
            refs.fetch_snapshot_info(refs.generation.initial_snapshot_id),
        ),
        lambda refs: refs.fetch_ops_log(),
        lambda refs: refs.fetch_metadata(),
        lambda refs: refs.save_metadata({}),
        lambda refs: refs.update_metadata({}),
        lambda refs: refs.fetch_status(),
        lambda refs: refs.save_status(RepoStatus(RepoAvailability.read_only)),
        lambda refs: refs.fetch_feature_flags(),
        lambda refs: refs.set_feature_flag("create_tag", False),
        lambda refs: refs.set_feature_flag("unknown", False),
    ],
)
@pytest.mark.parametrize(
    "generation",
    [
        pytest.param(generation, id=name)
        for name, generation in GENERATIONS.items()
        if not generation.has_repo_info
    ],
)
def test_features_of_version_2(call: Callable[[Refs], object], generation: Generation) -> None:
    """Features of version 2 raise in older generations, with advice to upgrade or convert."""
    storage = CountingStorage(MemoryStorage())
    refs = create_refs(storage, generation=generation)
    before = {info.key: info.version for info in storage.list()}
    if generation is V1:
        kind = ErrorKind.UNSUPPORTED_SPEC_VERSION
        advice = "needs a repository of version 2.*upgrade"
    else:
        kind = ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
        advice = (
            f"needs a repository of generation v2, but memory:// has generation {generation.name}: "
            "convert .*`icefloe convert SOURCE TARGET --to v2`"
        )
    with pytest.raises(FormatError, match=advice) as caught:
        call(refs)
    assert caught.value.kind is kind
    assert {info.key: info.version for info in storage.list()} == before


class TestGeneration2:
    """Features that only version 2 has."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path)

    def make(self, storage: Storage, limit: int | None = None) -> RepoFile:
        config = RepositoryConfig(num_updates_per_repo_info_file=limit)
        create_refs(storage, generation=V2, config=config)
        refs = open_refs(storage).refs
        assert isinstance(refs, RepoFile)
        return refs

    def test_ops_log(self, storage: Storage) -> None:
        """The log has every change, newest first, with ascending times."""
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
    def test_long_ops_logs_continue_in_backups(self, storage: Storage, limit: int) -> None:
        """The complete log is kept, whatever the number of entries per file."""
        refs = self.make(storage, limit)
        for number in range(12):
            refs.create_tag(f"v{number}", INITIAL_SNAPSHOT_ID)
            assert len(refs.fetch().latest_updates) <= limit
        log = list(refs.fetch_ops_log())
        names = [getattr(update.kind, "name", "start") for update in log]
        assert names == [*(f"v{number}" for number in reversed(range(12))), "start"]
        backups = sorted(info.key for info in storage.list("overwritten/"))
        assert [f"overwritten/{update.backup_path}" for update in log[1:]] == backups
        assert log[0].backup_path is None

    def test_read_only(self, storage: Storage) -> None:
        """In a read-only repository every change raises, except that of the status."""
        refs = self.make(storage)
        refs.save_status(RepoStatus(RepoAvailability.read_only, datetime.now(UTC), "moving"))
        with pytest.raises(ReadOnlyError, match="status is read-only \\(moving\\)"):
            refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        refs.save_status(RepoStatus(RepoAvailability.online, datetime.now(UTC)))
        refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        assert set(refs.fetch_branches()) == {"main", "dev"}

    def test_backups_are_the_previous_states(self, storage: Storage) -> None:
        """The backup of a change is the previous file, byte for byte."""
        refs = self.make(storage)
        before = storage.get("repo").data
        refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
        (backup,) = storage.list("overwritten/")
        assert storage.get(backup.key).data == before

    def test_amending(self, storage: Storage) -> None:
        """An amended commit replaces the tip, which stays but is in no history."""
        refs = self.make(storage)
        first = commit(refs, storage, "first")
        second = commit(refs, storage, "second")
        refs.create_tag("before", second)
        amended = write_snapshot(storage, V2, second, "amended")
        refs.amend("main", second, amended)
        history = refs.fetch_ancestry(refs.fetch_branch("main"))
        assert [info.id for info in history] == [amended.id, first, INITIAL_SNAPSHOT_ID]
        assert refs.fetch_tag("before") == second
        assert refs.fetch_snapshot_info(second).parent_id == first
        log = refs.fetch_ops_log()
        assert next(log).kind == CommitAmended("main", second, amended.id)

    def test_amending_keeps_pruned_logs(self, storage: Storage) -> None:
        """Logs that expiration pruned before the commit are kept."""
        refs = self.make(storage)
        expired, tip = commit(refs, storage), commit(refs, storage)

        def expire(info: RepoInfo) -> tuple[UpdateType, RepoInfo]:
            kept = [kept for kept in info.snapshots if kept.id not in (expired, tip)]
            changed = replace(
                changes.find_snapshot(info, tip),
                parent_id=INITIAL_SNAPSHOT_ID,
                pruned_ancestor_tx_logs=(expired,),
            )
            return ExpirationRan(), replace(info, snapshots=(*kept, changed))

        amended = write_snapshot(storage, V2, expired, "amended")
        refs.change(expire)
        refs.amend("main", tip, amended)
        found = refs.fetch_snapshot_info(amended.id)
        assert found.parent_id == INITIAL_SNAPSHOT_ID
        assert found.pruned_ancestor_tx_logs == (expired,)

    def test_a_stale_amendment_is_a_conflict(self, storage: Storage) -> None:
        """Only the tip can be amended."""
        refs = self.make(storage)
        first, second = commit(refs, storage), commit(refs, storage)
        with pytest.raises(ConflictError) as caught:
            refs.amend("main", first, write_snapshot(storage, V2, first, "too late"))
        assert caught.value.actual_parent == str(second)
        assert refs.fetch_branch("main") == second

    def test_the_first_snapshot_is_not_amended(self, storage: Storage) -> None:
        """The first snapshot has the same id in every repository and cannot be amended."""
        refs = self.make(storage)
        info = write_snapshot(storage, V2, INITIAL_SNAPSHOT_ID, "amended")
        with pytest.raises(SessionStateError) as caught:
            refs.amend("main", INITIAL_SNAPSHOT_ID, info)
        assert caught.value.kind is ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT

    def test_detached_snapshots_need_a_parent(self, storage: Storage) -> None:
        """A snapshot is recorded only once, and only with an existing parent."""
        refs = self.make(storage)
        info = write_snapshot(storage, V2, INITIAL_SNAPSHOT_ID, "detached")
        with pytest.raises(SnapshotNotFoundError):
            refs.add_snapshot(replace(info, parent_id=SnapshotId.random()))
        with pytest.raises(InvalidInputError, match="has no parent"):
            refs.add_snapshot(replace(info, parent_id=None))
        refs.add_snapshot(info)
        assert next(refs.fetch_ops_log()).kind == NewDetachedSnapshot(info.id)
        with pytest.raises(InvalidInputError, match="already"):
            refs.add_snapshot(info)

    def test_metadata(self, storage: Storage) -> None:
        """Metadata is replaced completely, or by key."""
        refs = self.make(storage)
        assert refs.fetch_metadata() == {}
        refs.save_metadata({"a": 1, "nested": {"x": 1}})
        assert refs.update_metadata({"b": 2, "nested": {"y": 1}}) == {
            "a": 1,
            "b": 2,
            "nested": {"y": 1},
        }
        assert open_refs(storage).opening_refs.fetch_metadata() == refs.fetch_metadata()
        refs.save_metadata({})
        assert refs.fetch_metadata() == {}

    @pytest.mark.parametrize(
        "wrong, problem",
        [
            ({"fine": 1, "not fine": object()}, "'not fine' cannot be stored"),
            ({"large": 2**70}, "'large' cannot be stored"),
            ({"half": "\ud800"}, "'half' cannot be stored"),
            ({"inner": {1: 2}}, "'inner' cannot be stored"),
            ({1: 2}, "the name of a metadata entry must be a str, got 1"),
            ({1: 2, "a": 3}, "the name of a metadata entry must be a str, got 1"),
            ({"\ud800": 1}, "surrogate"),
            ([1], "a mapping"),
            ("text", "a mapping"),
        ],
    )
    def test_metadata_that_cannot_be_stored(
        self, storage: Storage, wrong: Any, problem: str
    ) -> None:
        """The error names the entry, and nothing is written, not even a backup."""
        refs = self.make(storage)
        before = {info.key: info.version for info in storage.list()}
        for save in (refs.save_metadata, refs.update_metadata):
            with pytest.raises(InvalidInputError, match=problem) as caught:
                save(wrong)
            assert caught.value.kind is ErrorKind.BAD_METADATA
        assert {info.key: info.version for info in storage.list()} == before

    def test_a_state_that_cannot_be_stored(self, storage: Storage) -> None:
        """A state that cannot be encoded leaves no backup behind."""
        refs = self.make(storage)
        before = {info.key: info.version for info in storage.list()}
        with pytest.raises(InvalidInputError, match="'wrong' cannot be stored"):
            refs.change(
                lambda info: (MetadataChanged(), replace(info, metadata={"wrong": object()}))
            )
        assert {info.key: info.version for info in storage.list()} == before

    def test_concurrent_metadata_updates(self) -> None:
        """Keys that another writer sets between read and write are kept."""

        class Racing(MemoryStorage):
            """Sets a key, as another writer, right before the next update."""

            race = False

            def put(
                self,
                key: str,
                data: bytes | memoryview,
                mode: PutMode = Overwrite(),  # noqa: B008
            ) -> Version:
                if self.race and key == "repo":
                    self.race = False
                    open_refs(self).refs.update_metadata({"theirs": 1})
                return super().put(key, data, mode)

        storage = Racing()
        refs = create_refs(storage, generation=V2)
        storage.race = True
        assert refs.update_metadata({"ours": 2}) == {"theirs": 1, "ours": 2}
        assert refs.fetch_metadata() == {"theirs": 1, "ours": 2}

    def test_feature_flags(self, storage: Storage) -> None:
        """Flags are enabled by default; a setting can be reset."""
        refs = self.make(storage)
        assert refs.fetch_feature_flags() == [
            FeatureFlag(3, "move_node"),
            FeatureFlag(4, "create_tag"),
            FeatureFlag(5, "delete_tag"),
        ]
        for setting, enabled in ((False, False), (True, True), (None, True)):
            refs.set_feature_flag("create_tag", setting)
            _, flag, _ = open_refs(storage).refs.fetch_feature_flags()
            assert (flag.setting, flag.enabled) == (setting, enabled)
            assert next(refs.fetch_ops_log()).kind == FeatureFlagChanged(4, setting)
        with pytest.raises(InvalidInputError, match="move_node, create_tag, delete_tag") as caught:
            refs.set_feature_flag("commit", False)
        assert caught.value.kind is ErrorKind.INVALID_FEATURE_FLAG
        wrong: Any
        for wrong in ("x", 1, "False"):
            with pytest.raises(InvalidInputError, match="True, False or None") as caught:
                refs.set_feature_flag("move_node", wrong)
            assert caught.value.kind is ErrorKind.INVALID_FEATURE_FLAG

    def test_flags_of_a_newer_writer_are_kept(self, storage: Storage) -> None:
        """Unknown flags are kept when other flags change."""
        refs = self.make(storage)
        refs.change(
            lambda info: (
                FeatureFlagChanged(77, new_value=True),
                replace(info, enabled_feature_flags=frozenset([77])),
            )
        )
        refs.set_feature_flag("move_node", True)
        refs.set_feature_flag("move_node", None)
        assert refs.fetch().enabled_feature_flags == {77}

    def test_disabled_tags(self, storage: Storage) -> None:
        """Disabled feature flags prevent the creation and deletion of tags."""
        refs = self.make(storage)
        refs.create_tag("v1", INITIAL_SNAPSHOT_ID)
        refs.set_feature_flag("create_tag", False)
        refs.set_feature_flag("delete_tag", False)
        refused: list[Callable[[], object]] = [
            lambda: refs.create_tag("v2", INITIAL_SNAPSHOT_ID),
            lambda: refs.delete_tag("v1"),
        ]
        for change in refused:
            with pytest.raises(SessionStateError, match="set_feature_flag") as caught:
                change()
            assert caught.value.kind is ErrorKind.FEATURE_FLAG_DISABLED
        assert set(refs.fetch_tags()) == {"v1"}

    def test_status(self, storage: Storage) -> None:
        """A status has a time and a reason."""
        refs = self.make(storage)
        assert refs.fetch_status().availability is RepoAvailability.online
        before = datetime.now(UTC)
        status = RepoStatus(RepoAvailability.read_only, limited_availability_reason="moving")
        assert before <= status.set_at <= datetime.now(UTC)
        refs.save_status(status)
        assert refs.fetch_status() == status
        detached = write_snapshot(storage, V2, INITIAL_SNAPSHOT_ID, "detached")
        refused: list[Callable[[], object]] = [
            lambda: refs.update_metadata({"a": 1}),
            lambda: refs.set_feature_flag("create_tag", None),
            lambda: refs.add_snapshot(detached),
        ]
        for change in refused:
            with pytest.raises(ReadOnlyError, match="moving"):
                change()
        with pytest.raises(InvalidInputError, match="use read_only"):
            refs.save_status(RepoStatus(RepoAvailability.offline))
        wrong: Any = "read-only"
        with pytest.raises(InvalidInputError, match="RepoStatus"):
            refs.save_status(wrong)
        assert refs.fetch_status() == status
