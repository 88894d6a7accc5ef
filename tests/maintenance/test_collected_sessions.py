"""A commit fails if garbage collection deleted what its session wrote, in every generation."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.refs import commit_check

if TYPE_CHECKING:
    from pathlib import Path

GENERATIONS = ("draft", "sequence", "v1", "v2")
NOW_AND_LATER = (timedelta(0), timedelta(hours=2))


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    """Create a repository with an array of native chunks."""
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = icefloe.Repository.create(storage, config, generation=request.param)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=8, chunks=2, dtype="i4", fill_value=0)
    session.commit("array")
    return repository


def write(session: icefloe.Session | icefloe.ForkSession, value: int) -> None:
    zarr.open_array(session.store, path="a")[:4] = value


def require_refused(repository: icefloe.Repository, session: icefloe.Session) -> None:
    tip = repository.lookup_branch("main")
    with pytest.raises(SessionStateError, match="garbage collection deleted 2 files") as caught:
        session.commit("chunks")
    assert caught.value.kind is ErrorKind.COLLECTED_BEFORE_COMMIT
    assert repository.lookup_branch("main") == tip


@pytest.fixture
def every_session_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look files up in generations without a log of collections, too."""
    monkeypatch.setattr(commit_check, "MAX_UNCHECKED_AGE_S", -1)


@pytest.mark.usefixtures("every_session_is_old")
@pytest.mark.parametrize("later", NOW_AND_LATER)
def test_a_collection_under_a_session(repository: icefloe.Repository, later: timedelta) -> None:
    session = repository.writable_session("main")
    write(session, 1)
    assert repository.garbage_collect(datetime.now(UTC) + later).chunks_deleted == 2
    require_refused(repository, session)


@pytest.mark.usefixtures("every_session_is_old")
def test_a_collection_under_a_fork(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))  # noqa: S301
    write(fork, 1)
    session.merge(fork)
    repository.garbage_collect(datetime.now(UTC))
    require_refused(repository, session)


@pytest.mark.usefixtures("every_session_is_old")
def test_a_collection_that_keeps_the_files(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    write(session, 1)
    repository.garbage_collect(datetime.now(UTC) - timedelta(hours=1))
    session.commit("chunks")
    stored = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    np.testing.assert_array_equal(stored[:], [1, 1, 1, 1, 0, 0, 0, 0])


@pytest.mark.usefixtures("every_session_is_old")
def test_a_rebase_after_a_collection(repository: icefloe.Repository) -> None:
    """The base of the session is newer than the collection then."""
    session = repository.writable_session("main")
    write(session, 1)
    repository.garbage_collect(datetime.now(UTC))
    other = repository.writable_session("main")
    zarr.create_group(other.store, path="group")
    other.commit("other")
    with pytest.raises(SessionStateError, match="garbage collection deleted 2 files"):
        session.commit("chunks", rebase_with=icefloe.ConflictDetector())


@pytest.mark.parametrize("repository", ["v2"], indirect=True)
def test_version_2_finds_collections_in_its_log(repository: icefloe.Repository) -> None:
    """Also in young sessions, and behind later updates, even those in backups."""
    session = repository.writable_session("main")
    write(session, 1)
    repository.garbage_collect(datetime.now(UTC))
    repository.create_branch("other", session.snapshot_id)
    require_refused(repository, session)


@pytest.mark.parametrize("repository", ["v2"], indirect=True)
def test_a_collection_before_the_session_costs_nothing(
    repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.garbage_collect(datetime.now(UTC))
    session = repository.writable_session("main")
    write(session, 1)

    def fail(*_: object) -> None:
        raise AssertionError("files were looked up")

    monkeypatch.setattr(icefloe.session.session, "require_written_files", fail)
    session.commit("chunks")


@pytest.mark.parametrize("repository", ["v1"], indirect=True)
def test_many_files_are_listed(
    repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch, every_session_is_old: None
) -> None:
    monkeypatch.setattr(icefloe.session.written_files, "_MAX_LOOKUPS", 1)
    session = repository.writable_session("main")
    write(session, 1)
    repository.garbage_collect(datetime.now(UTC))
    require_refused(repository, session)
