from __future__ import annotations

import multiprocessing
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.repository import Repository
from icefloe.session.connection import _unpickled
from icefloe.storage import LocalStorage, MemoryStorage
from support.counting_storage import CountingStorage
from support.generations import find_kind

if TYPE_CHECKING:
    from icefloe.session import Session


class RecalledStorage(CountingStorage):
    """Unpickles to itself, so that requests of copies are counted."""

    def __reduce__(self) -> Any:
        _recalled[id(self)] = self
        return _recall, (id(self),)


_recalled: dict[int, RecalledStorage] = {}


def _recall(number: int) -> RecalledStorage:
    return _recalled[number]


@pytest.fixture(autouse=True)
def _start_empty() -> None:
    _unpickled.clear()


def copy_of(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def can_read(session: Session) -> bool:
    part: Any = zarr.open_array(session.store, path="a", mode="r", zarr_format=3)[0]
    return int(part) > 0


def with_an_array(repository: Repository) -> Session:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4096,), chunks=(2048,), dtype="i8")
    array[...] = np.random.default_rng(7).integers(0, 2**40, 4096)  # too much to be inline
    session.commit("an array")
    return repository.readonly_session("main")


def test_many_tasks_fetch_the_snapshot_once(generation: str) -> None:
    storage = RecalledStorage(MemoryStorage())
    reader = with_an_array(Repository.create(storage, generation=generation))
    storage.forget()
    task = pickle.dumps(reader)
    for _ in range(20):
        assert can_read(pickle.loads(task))  # noqa: S301
    asked = [find_kind(key, generation) for key in storage.keys(None)]
    assert {kind: asked.count(kind) for kind in set(asked)} == {
        "snapshots": 1,
        "manifests": 1,
        "chunks": 20,
    }


def test_a_copy_of_a_copy_is_known_too(repository: Repository) -> None:
    reader = copy_of(with_an_array(repository))
    assert copy_of(reader).connection.assets is reader.connection.assets
    assert copy_of(reader).connection is not reader.connection


def test_repositories_opened_apart_stay_apart(repository: Repository) -> None:
    """Each opened repository has its own credentials and settings."""
    again = Repository.open(repository.storage)
    one, other = (copy_of(opened.readonly_session("main")) for opened in (repository, again))
    assert one.connection.assets is not other.connection.assets
    reopened = copy_of(repository.reopen().readonly_session("main"))
    assert reopened.connection.assets is not one.connection.assets


def test_a_repository_can_be_sent_too(repository: Repository) -> None:
    """A worker may open sessions of its own, and commit them."""
    again = copy_of(repository)
    with_an_array(again)
    assert can_read(repository.readonly_session("main"))
    assert again.readonly_session("main") == repository.readonly_session("main")


def test_what_copies_record_with_commits_stays_their_own(repository: Repository) -> None:
    session = repository.readonly_session("main")
    one, other = copy_of(session).connection, copy_of(session).connection
    one.default_commit_metadata["author"] = "one"
    assert other.default_commit_metadata == {}


def test_few_connections_are_kept(tmp_path: Any, generation: str) -> None:
    """A worker that serves many repositories forgets the oldest."""
    pickles = []
    for number in range(6):
        made = Repository.create(LocalStorage(tmp_path / f"{number}"), generation=generation)
        pickles.append(pickle.dumps(made.readonly_session("main")))
    copies = [pickle.loads(data) for data in pickles]  # noqa: S301
    again = [pickle.loads(data) for data in reversed(pickles)]  # noqa: S301
    same = [
        copy.connection.assets is other.connection.assets
        for copy, other in zip(reversed(copies), again, strict=True)
    ]
    assert same == [True] * 4 + [False] * 2


def test_a_forked_process_connects_anew(repository: Repository) -> None:
    """Threads and locks do not survive a fork, so what was unpickled before is forgotten there."""
    task = pickle.dumps(with_an_array(repository))
    assert can_read(pickle.loads(task))  # noqa: S301
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def report() -> None:
        sender.send(len(_unpickled._connections))

    child = context.Process(target=report)
    child.start()
    child.join(30)
    assert receiver.recv() == 0
    assert len(_unpickled._connections) == 1
