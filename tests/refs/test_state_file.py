"""The generation draft: the counter, lost responses, and states outside of the root."""

from __future__ import annotations

import json
import pickle
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    OutcomeUnknownError,
)
from icefloe.format.draft.state import MAX_RECENT_CHANGES
from icefloe.format.generation import DRAFT
from icefloe.model.config import RepositoryConfig, RepoUpdateRetryConfig
from icefloe.model.ids import INITIAL_SNAPSHOT_ID
from icefloe.model.storage_settings import StorageRetriesSettings
from icefloe.refs import create_refs, open_refs
from icefloe.storage import (
    LocalStorage,
    MemoryStorage,
    Overwrite,
    UpdateIfMatch,
    storage_from_url,
)
from support import SUPPORT, warm_python
from support.counting_refs_storage import CountingStorage
from support.ref_snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.storage import PutMode, Storage, Version


def read_state(storage: Storage) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bytes(storage.get("state.json").data))
    return content


def read_array(session: icefloe.Session) -> list[int]:
    array = zarr.open_array(session.store, path="a", mode="r")
    values: list[int] = np.asarray(array[:]).tolist()
    return values


def edit_state(storage: Storage, **members: object) -> None:
    """Change members of the state, as another program."""
    storage.put("state.json", json.dumps(read_state(storage) | members).encode())


def test_the_counter_rises_by_one() -> None:
    """Every change raises the counter by one, and failed changes do not."""
    storage = MemoryStorage()
    refs = create_refs(storage, generation=DRAFT)
    start = read_state(storage)
    assert start["generation"] == 0
    assert "store_root" not in start
    info = write_snapshot(storage, DRAFT, INITIAL_SNAPSHOT_ID, "a commit")
    detached = write_snapshot(storage, DRAFT, INITIAL_SNAPSHOT_ID, "detached")
    changes: list[Callable[[], object]] = [
        lambda: refs.commit("main", INITIAL_SNAPSHOT_ID, info),
        lambda: refs.create_tag("v1", info.id),
        lambda: refs.create_branch("v1", info.id),
        lambda: refs.reset_branch("v1", INITIAL_SNAPSHOT_ID),
        lambda: refs.add_snapshot(detached),
        lambda: refs.delete_branch("v1"),
        lambda: refs.delete_tag("v1"),
    ]
    for count, change in enumerate(changes, 1):
        change()
        assert read_state(storage)["generation"] == count
    with pytest.raises(AlreadyExistsError):
        refs.create_tag("v1", info.id)
    refs.save_config(RepositoryConfig(inline_chunk_threshold_bytes=1), expected=None)
    end = read_state(storage)
    assert end["generation"] == len(changes)
    assert end["id"] == start["id"]
    assert len(set(end["recent-changes"])) == len(changes)


def test_a_branch_and_a_tag_of_one_name() -> None:
    """Both exist, and either can be deleted."""
    storage = MemoryStorage()
    refs = create_refs(storage, generation=DRAFT)
    info = write_snapshot(storage, DRAFT, INITIAL_SNAPSHOT_ID, "a commit")
    refs.commit("main", INITIAL_SNAPSHOT_ID, info)
    refs.create_branch("x", INITIAL_SNAPSHOT_ID)
    refs.create_tag("x", info.id)
    refs.create_tag("main", info.id)
    assert set(read_state(storage)["refs"]) == {"branch.main", "tag.main", "branch.x", "tag.x"}
    refs.delete_branch("x")
    reopened = open_refs(storage).refs
    assert reopened.fetch_branches() == {"main": info.id}
    assert reopened.fetch_tags() == {"x": info.id, "main": info.id}
    assert set(read_state(storage)["refs"]) == {"branch.main", "tag.main", "x"}


def test_readers_of_an_old_state_go_on(tmp_path: Path) -> None:
    """A session that holds an old state reads its snapshot after later commits and deletions."""
    storage = LocalStorage(tmp_path)
    repo = icefloe.Repository.create(storage, generation="draft")
    with repo.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="i4")[:] = 1
    session = repo.readonly_session("main")
    pinned = open_refs(storage).refs.pin()
    tip = repo.lookup_branch("main")
    with repo.transaction("main", message="two") as store:
        zarr.open_array(store, path="a")[:] = 2
    assert str(pinned.fetch_branch("main")) == tip
    assert read_array(session) == [1, 1]
    assert read_array(repo.readonly_session("main")) == [2, 2]


def test_requests_of_opening() -> None:
    """Opening takes four requests: three that find no newer generation, and one for the state."""
    storage = CountingStorage(MemoryStorage())
    create_refs(storage, generation=DRAFT)
    storage.requests.clear()
    opened = open_refs(storage)
    assert storage.requests == {
        "get repo": 1,
        "get refs/branch.main/ref.json": 1,
        "get config.yaml": 1,
        "get state.json": 1,
    }
    storage.requests.clear()
    assert opened.opening_refs.fetch_branch("main") == INITIAL_SNAPSHOT_ID
    assert opened.opening_refs.pin().fetch_config() is None
    assert not storage.requests


def test_processes_race(tmp_path: Path) -> None:
    """After racing processes, the counter is the number of commits that reported success."""
    storage = LocalStorage(tmp_path / "repo", durable=False)
    create_refs(storage, generation=DRAFT)
    (tmp_path / "storage.pickle").write_bytes(pickle.dumps(storage))
    script = SUPPORT / "racing_refs_committer.py"
    done = warm_python.run(sys.executable, script, tmp_path / "storage.pickle", "4", "5")
    assert done.returncode == 0, done.stderr
    state = read_state(storage)
    assert state["generation"] == len(done.stdout.split()) == 20
    assert len(state["snapshots"]) == 21


class ContestedStorage(MemoryStorage):
    """Lets another writer change the state right before each update, or loses responses."""

    def __init__(self) -> None:
        super().__init__()
        self.before_update: Callable[[], object] | None = None
        self.loses_responses = False
        self.num_updates = 0

    def put(self, key: str, data: bytes | memoryview, mode: PutMode = Overwrite()) -> Version:  # noqa: B008
        if not isinstance(mode, UpdateIfMatch):
            return super().put(key, data, mode)
        self.num_updates += 1
        before_update, self.before_update = self.before_update, None
        if before_update is not None:
            if self.loses_responses:
                super().put(key, data, mode)
                before_update()
                raise OutcomeUnknownError("the response was lost")
            before_update()
            self.before_update = before_update
        return super().put(key, data, mode)


def test_exhausted_attempts() -> None:
    """The configuration limits the attempts, and the counter has only the changes of others."""
    storage = ContestedStorage()
    retries = RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=3))
    refs = create_refs(
        storage, generation=DRAFT, config=RepositoryConfig(repo_update_retries=retries)
    )
    counter = 0

    def change_elsewhere() -> None:
        nonlocal counter
        counter += 1
        edit_state(storage, generation=counter)

    storage.before_update = change_elsewhere
    with pytest.raises(ConflictError, match="each of 3 attempts") as caught:
        refs.create_tag("v1", INITIAL_SNAPSHOT_ID)
    assert caught.value.kind is ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED
    assert storage.num_updates == read_state(storage)["generation"] == 3
    assert refs.fetch_tags() == {}


@pytest.mark.parametrize(
    "num_later, is_known",
    [(0, True), (MAX_RECENT_CHANGES - 1, True), (MAX_RECENT_CHANGES, False)],
)
def test_lost_responses(num_later: int, is_known: bool) -> None:  # noqa: FBT001 - a parameter
    """A change is found among the recent ones; after many later ones, the outcome is unknown."""
    storage = ContestedStorage()
    refs = create_refs(storage, generation=DRAFT)

    def change_elsewhere() -> None:
        others = open_refs(storage).refs
        for number in range(num_later):
            others.create_tag(f"t{number}", INITIAL_SNAPSHOT_ID)

    storage.before_update, storage.loses_responses = change_elsewhere, True
    if is_known:
        refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
    else:
        with pytest.raises(OutcomeUnknownError):
            refs.create_branch("dev", INITIAL_SNAPSHOT_ID)
    assert set(refs.fetch_branches()) == {"main", "dev"}
    assert read_state(storage)["generation"] == num_later + 1


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_metadata_without_a_word_in_json(number: float) -> None:
    """Numbers that JSON lacks are refused before a commit writes anything."""
    storage = MemoryStorage()
    repo = icefloe.Repository.create(storage, generation="draft")
    before = {info.key: info.version for info in storage.list()}
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="JSON has no number") as caught:
        session.commit("a commit", {"a": [number]}, allow_empty=True)
    assert caught.value.kind is ErrorKind.BAD_METADATA
    assert {info.key: info.version for info in storage.list()} == before


def test_history_with_a_cycle() -> None:
    """A cycle of parents raises when the history is read, and does not hang."""
    storage = MemoryStorage()
    refs = create_refs(storage, generation=DRAFT)
    (snapshot,) = read_state(storage)["snapshots"]
    cycle = {**snapshot, "parent-snapshot-id": snapshot["snapshot-id"]}
    edit_state(storage, snapshots=[cycle])
    with pytest.raises(FormatError, match="its own ancestor"):
        list(refs.fetch_ancestry(INITIAL_SNAPSHOT_ID))


def test_oversized_states_raise_unread(tmp_path: Path) -> None:
    """A state that is larger than allowed raises before it is read."""
    with (tmp_path / "state.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="1099511627776"):
        open_refs(LocalStorage(tmp_path))


class TestStoreRoot:
    """The state is outside of the root of all other files."""

    @pytest.fixture
    def state(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "state")

    @pytest.fixture
    def data(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "data")

    @pytest.fixture
    def repo(self, state: Storage, data: Storage) -> icefloe.Repository:
        config = RepositoryConfig(inline_chunk_threshold_bytes=0)
        repo = icefloe.Repository.create(state, config, generation="draft", store_root=data)
        with repo.transaction("main", message="one") as store:
            zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="i4")[:] = 7
        return repo

    def test_files(self, repo: icefloe.Repository, state: Storage, data: Storage) -> None:
        """The state and the configuration are in one root, everything else in the other."""
        assert {info.key for info in state.list()} == {"config.yaml", "state.json"}
        keys = {info.key for info in data.list()}
        assert {key.partition("/")[0] for key in keys} == {"c", "i", "s"}
        assert read_state(state)["store_root"] == data.url == repo.storage.store_root_url
        assert repo.storage.url == state.url

    def test_opening(self, repo: icefloe.Repository, state: Storage, data: Storage) -> None:
        """Sessions of a reopened and of a pickled repository read and commit."""
        reopened = icefloe.Repository.open(state, store_root=data)
        assert reopened.config.inline_chunk_threshold_bytes == 0
        copy = pickle.loads(pickle.dumps(reopened))  # noqa: S301
        for number, opened in enumerate((reopened, copy)):
            with opened.transaction("main", message="more") as store:
                zarr.open_array(store, path="a")[0] = number
        assert read_array(repo.readonly_session("main")) == [1, 7]
        assert {info.key for info in state.list()} == {"config.yaml", "state.json"}
        assert icefloe.Repository.exists(state)
        assert icefloe.Repository.open_or_create(state, store_root=data).generation == "draft"
        config = icefloe.Repository.fetch_config(state, store_root=data)
        assert config is not None
        assert config.inline_chunk_threshold_bytes == 0

    def test_a_root_that_was_not_passed(
        self,
        repo: icefloe.Repository,
        state: Storage,
        data: Storage,
    ) -> None:
        """A root is followed only if the caller passes it; the error names it and the argument."""
        with pytest.raises(
            FormatError, match="a store_root that the caller did not pass"
        ) as caught:
            icefloe.Repository.open(state)
        assert data.url in str(caught.value)
        assert "argument store_root" in str(caught.value)
        assert caught.value.file == "state.json"

    def test_another_root(self, repo: icefloe.Repository, state: Storage, tmp_path: Path) -> None:
        """Another root than that of the state raises."""
        other = LocalStorage(tmp_path / "other")
        with pytest.raises(FormatError, match=r"but the state names 'file://.*data'"):
            icefloe.Repository.open(state, store_root=other)

    def test_a_root_that_changes(self, repo: icefloe.Repository, state: Storage) -> None:
        """An open repository does not follow a changed root."""
        edit_state(state, store_root="s3://elsewhere")
        with pytest.raises(FormatError, match="s3://elsewhere"):
            repo.lookup_branch("main")

    def test_a_root_for_a_state_without_one(self, tmp_path: Path, data: Storage) -> None:
        """A state that names no root refuses one."""
        storage = LocalStorage(tmp_path / "plain")
        icefloe.Repository.create(storage, generation="draft")
        with pytest.raises(FormatError, match="names none: leave it out"):
            icefloe.Repository.open(storage, store_root=data)

    @pytest.mark.parametrize("generation", ["v1", "v2"])
    def test_generations_without_store_root(
        self, state: Storage, data: Storage, generation: str
    ) -> None:
        """Other generations refuse a root, and nothing is written."""
        with pytest.raises(InvalidInputError, match="only the generation draft"):
            icefloe.Repository.create(state, generation=generation, store_root=data)
        assert list(state.list()) == list(data.list()) == []
        icefloe.Repository.create(state, generation=generation)
        with pytest.raises(InvalidInputError, match=f"only the generation draft.* {generation}"):
            icefloe.Repository.open(state, store_root=data)
        with pytest.raises(AlreadyExistsError):
            icefloe.Repository.create(state, generation="draft", store_root=data)

    def test_wrong_roots(self, state: Storage, tmp_path: Path) -> None:
        """A root that is no storage, or the location of the state, is refused."""
        wrong: Any = str(tmp_path)
        with pytest.raises(InvalidInputError, match="must be a Storage"):
            icefloe.Repository.create(state, generation="draft", store_root=wrong)
        same = LocalStorage(tmp_path / "state")
        with pytest.raises(InvalidInputError, match="leave it out"):
            icefloe.Repository.create(state, generation="draft", store_root=same)

    def test_roots_in_a_url(self, repo: icefloe.Repository, state: Storage, data: Storage) -> None:
        """A URL can name both roots, for everything that takes URLs; then there is no argument."""
        storage = storage_from_url(f"{state.url}?store_root={data.url}")
        assert read_array(icefloe.Repository.open(storage).readonly_session("main")) == [7, 7]
        with pytest.raises(InvalidInputError, match="given twice"):
            icefloe.Repository.open(storage, store_root=data)
        with pytest.raises(InvalidInputError, match="leave it out"):
            storage_from_url(f"{state.url}?store_root={state.url}")
        with pytest.raises(AlreadyExistsError):
            icefloe.Repository.create(storage, generation="draft")
        with pytest.raises(InvalidInputError, match="only the generation draft"):
            icefloe.Repository.create(storage, generation="v2")

    def test_garbage_collection(
        self, repo: icefloe.Repository, state: Storage, data: Storage
    ) -> None:
        """Collection deletes unreachable files of the root, and keeps the state."""
        first = repo.lookup_snapshot(repo.lookup_branch("main")).parent_id
        assert first is not None
        repo.reset_branch("main", first)
        summary = repo.garbage_collect(datetime.now(UTC))
        assert summary.snapshots_deleted == 1
        assert summary.chunks_deleted == 2
        assert [info.key for info in data.list()] == [f"s/{first}.parquet"]
        assert len(read_state(state)["snapshots"]) == 1
