from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.session import ForkSession, Session

if TYPE_CHECKING:
    from icefloe.repository import Repository


@pytest.fixture
def session(repository: Repository) -> Session:
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(1000,), chunks=(2,), dtype="i8", fill_value=0)
    return session


def array(session: Session) -> zarr.Array[Any]:
    return zarr.open_array(session.store, path="a", zarr_format=3)


def forks(session: Session, starts: range) -> list[ForkSession]:
    """Make forks as tasks elsewhere return them: each wrote one chunk."""
    pickled = pickle.dumps(session.fork())
    made = []
    for start in starts:
        fork: ForkSession = pickle.loads(pickled)  # noqa: S301
        array(fork)[start : start + 2] = start + 1
        made.append(pickle.loads(pickle.dumps(fork)))  # noqa: S301
    return made


def test_an_array_tells_its_session(session: Session) -> None:
    fork = session.fork()
    assert extract_session(array(fork)) is fork
    assert extract_session(array(fork), axis=(0,), keepdims=True) is fork


def test_many_become_one(session: Session) -> None:
    made = forks(session, range(0, 1000, 2))
    merged = merge_sessions(*made)
    assert isinstance(merged, ForkSession)
    session.merge(merged)
    np.testing.assert_array_equal(array(session)[...], np.arange(1000) // 2 * 2 + 1)
    session.commit("all")


def test_those_given_stay_as_they_are(session: Session) -> None:
    made = forks(session, range(0, 10, 2))
    merge_sessions(made)
    for fork, start in zip(made, range(0, 10, 2), strict=True):
        assert fork.status().updated_chunks == {"/a": [[start // 2]]}


def test_lists_are_flattened(session: Session) -> None:
    one, two, three, four = forks(session, range(0, 8, 2))
    merged = merge_sessions([one, [two]], [[three]], four)
    assert merged.status().updated_chunks == {"/a": [[0], [1], [2], [3]]}


def test_one_that_comes_twice_counts_once(session: Session) -> None:
    """Threads write through one fork, and each task returns it."""
    (one,) = forks(session, range(0, 2, 2))
    assert merge_sessions([one, one], one) is one
    again = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert merge_sessions(one, again).status().updated_chunks == {"/a": [[0]]}


def test_forks_that_were_taken_one_by_one(session: Session) -> None:
    """Each fork of a session with changes begins at a snapshot of its own: the session takes it."""
    made = [session.fork() for _ in range(3)]
    for number, fork in enumerate(made):
        array(fork)[number * 2 : number * 2 + 2] = number + 1
    with pytest.raises(SessionStateError, match=r"session\.merge\(\*forks\)") as caught:
        merge_sessions(made)
    assert caught.value.kind is ErrorKind.MERGE_NOT_ALLOWED
    session.merge(*made)
    np.testing.assert_array_equal(array(session)[:8], [1, 1, 2, 2, 3, 3, 0, 0])


def test_writers_of_one_chunk_are_told_which(session: Session) -> None:
    made = forks(session, range(0, 4, 2))
    array(made[1])[0:2] = 77
    with pytest.raises(SessionStateError, match=r"chunk \[0\] of /a was written"):
        merge_sessions(made)


def test_only_forks_are_merged(session: Session) -> None:
    wrong: Any = session
    with pytest.raises(TypeError, match=r"session\.merge\(\*forks\)"):
        merge_sessions(session.fork(), wrong)
    with pytest.raises(TypeError, match="at least one"):
        merge_sessions([])
