"""One session that several threads use: no write is lost, no read is torn."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from icefloe.conflicts import ConflictDetector
from icefloe.errors import ErrorKind, NodeNotFoundError, ReadOnlyError, SessionStateError
from icefloe.model.config import RepositoryConfig
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage, local_filesystem_storage
from icefloe.storage.forwarding import ForwardingStorage, Request
from support.zarr_nodes import array, contents, delete_node, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.session import Session

T = TypeVar("T")

_ENDS: dict[str, Callable[[Session], object]] = {
    "commit": lambda session: session.commit("end"),
    "amend": lambda session: session.amend("end"),
    "flush": lambda session: session.flush("end"),
}

_LATE: dict[str, Callable[[Session], object]] = {
    "chunk": lambda session: put(session.store, "a/c/1", b"late"),
    "node": lambda session: put(session.store, "b/zarr.json", group()),
    "deletion": lambda session: delete_node(session.store, "a"),
    "discard": lambda session: session.discard_changes(),
    "merge": lambda session: session.merge(session.fork()),
    "another commit": lambda session: session.commit("late"),
}


class MeanwhileStorage(ForwardingStorage):
    """Another storage, where something happens once, just before a request about some key."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.events: dict[str, Callable[[], object]] = {}

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        for start, event in list(self.events.items()):
            if f"{request.name} {request.keys[0]}".startswith(start):
                del self.events[start]
                event()
        return run()


@pytest.fixture
def storage() -> MeanwhileStorage:
    return MeanwhileStorage()


@pytest.fixture
def repository(storage: MeanwhileStorage) -> Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = Repository.create(storage, config, spec_version=2)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((8,)))
    session.commit("begin")
    return repository


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("late", _LATE)
def test_changes_during_a_commit_are_refused(
    repository: Repository, storage: MeanwhileStorage, end: str, late: str
) -> None:
    """A change that would be in no commit is not reported as done."""
    session = repository.writable_session("main")
    put(session.store, "a/c/0", b"early")
    expected = contents(session.store)
    refused = []

    def change() -> None:
        with pytest.raises(ReadOnlyError) as caught:
            _LATE[late](session)
        refused.append(caught.value.kind)

    storage.events["put snapshots/"] = lambda: _in_another_thread(change)
    snapshot_id = _ENDS[end](session)
    assert refused == [ErrorKind.READ_ONLY_SESSION]
    assert contents(repository.readonly_session(snapshot_id=str(snapshot_id)).store) == expected


def test_a_chunk_whose_write_ends_after_the_commit(
    repository: Repository, storage: MeanwhileStorage
) -> None:
    """It came too late, though its session was writable when it began."""
    session = repository.writable_session("main")
    put(session.store, "b/zarr.json", group())
    storage.events["put chunks/"] = lambda: session.commit("meanwhile")
    with pytest.raises(ReadOnlyError):
        put(session.store, "a/c/0", b"late")
    assert get(repository.readonly_session("main").store, "a/c/0") is None


@pytest.mark.parametrize("what", ["rebase", "discard"])
def test_a_chunk_that_is_written_while_its_session_starts_over(
    repository: Repository, storage: MeanwhileStorage, what: str
) -> None:
    """A chunk that is in flight during a rebase or a discard has to be written again."""
    session = repository.writable_session("main")
    other = repository.writable_session("main")
    put(other.store, "a/c/0", b"theirs")
    other.commit("meanwhile")
    storage.events["put chunks/"] = {
        "rebase": lambda: session.rebase(ConflictDetector()),
        "discard": session.discard_changes,
    }[what]
    with pytest.raises(SessionStateError, match="write it again"):
        put(session.store, "a/c/0", b"ours")
    assert not session.has_uncommitted_changes


def test_changes_during_a_rebase_are_refused(
    repository: Repository, storage: MeanwhileStorage
) -> None:
    """They would be dropped with the state from before it; after it they are welcome."""
    session = repository.writable_session("main")
    put(session.store, "a/c/1", b"ours")
    with repository.transaction("main", message="meanwhile") as store:
        put(store, "a/c/0", b"theirs")

    def change() -> None:
        with pytest.raises(ReadOnlyError):
            put(session.store, "b/zarr.json", group())

    storage.events["get transactions/"] = change
    session.rebase(ConflictDetector())
    assert not storage.events
    put(session.store, "b/zarr.json", group())
    session.commit("end")
    assert {"a/c/0", "a/c/1", "b/zarr.json"} <= contents(session.store).keys()


def test_a_chunk_whose_array_is_deleted_while_it_is_written(
    repository: Repository, storage: MeanwhileStorage
) -> None:
    """It belongs to nothing, and the commit that follows does not name it."""
    session = repository.writable_session("main")
    put(session.store, "b/zarr.json", group())
    storage.events["put chunks/"] = lambda: delete_node(session.store, "a")
    with pytest.raises(NodeNotFoundError):
        put(session.store, "a/c/0", b"lost")
    assert not session.status().updated_chunks


def test_a_commit_that_fails_lets_others_write_again(
    repository: Repository, storage: MeanwhileStorage
) -> None:
    """The session keeps its changes, and takes more."""
    session = repository.writable_session("main")
    put(session.store, "a/c/0", b"one")

    def interrupt() -> None:
        raise KeyboardInterrupt

    storage.events["put snapshots/"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        session.commit("interrupted")
    put(session.store, "a/c/1", b"two")
    session.commit("again")
    store = repository.readonly_session("main").store
    assert (get(store, "a/c/0"), get(store, "a/c/1")) == (b"one", b"two")


def test_reads_during_commits(repository: Repository) -> None:
    """The writes of a session are readable before, during and after the commit."""
    for number in range(8):
        session = repository.writable_session("main")
        key, data = f"a/c/{number}", b"chunk"
        put(session.store, key, data)
        found: list[bytes | None] = []
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(_read_until_committed, session, key, found)
            while not found and not reader.done():
                pass
            session.commit("end")
            reader.result()
        assert set(found) == {data}


def test_looking_at_a_session_that_is_written_to(tmp_path: Path, generation: str) -> None:
    """Its changes can be counted, forked and pickled while they grow."""
    repository = Repository.create(local_filesystem_storage(str(tmp_path)), generation=generation)
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "many/zarr.json", array((1000,)))

    def write() -> None:
        for number in range(1000):
            put(fork.store, f"many/c/{number}", b"chunk")
            put(fork.store, f"g{number}/zarr.json", group())

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        while not writer.done():
            assert fork.has_uncommitted_changes
            fork.status()
            pickle.dumps(fork)
        writer.result()
    session.merge(fork)
    assert len(session.status().updated_chunks["/many"]) == 1000


def _read_until_committed(session: Session, key: str, found: list[bytes | None]) -> None:
    while not session.read_only:
        found.append(get(session.store, key))


def _in_another_thread(function: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()
