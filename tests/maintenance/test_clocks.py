"""A machine whose clock is ahead of the storage's deletes no recent data and makes no commit."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.keys import CREATION
from icefloe.storage import LocalStorage
from icefloe.storage.clock import find_lead
from support.counting_storage import CountingStorage
from support.lagging_storage import LaggingStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage

TWO_HOURS = timedelta(hours=2)
GENERATIONS = ("draft", "sequence", "v1", "v2")
CONFIG = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)


def commit_group(storage: Storage, name: str) -> str:
    session = icefloe.Repository.open(storage).writable_session("main")
    zarr.create_group(session.store, path=name)
    return session.commit(name)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_commit_from_the_future(storage: Storage, generation: str) -> None:
    """It is refused, and a writer with the right clock commits to the same branch."""
    repository = icefloe.Repository.create(storage, generation=generation)
    tip = repository.lookup_branch("main")
    with pytest.raises(SessionStateError, match=r"2:00:0\d ahead of the clock of") as caught:
        commit_group(LaggingStorage(storage, TWO_HOURS), "ahead")
    assert caught.value.kind is ErrorKind.SNAPSHOT_TIMESTAMP
    assert repository.lookup_branch("main") == tip
    commit_group(LaggingStorage(storage, timedelta(minutes=5)), "tolerated")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_repository_from_the_future(storage: Storage, generation: str) -> None:
    """It is not created: all commits would inherit its time. A creator with the right clock may."""
    with pytest.raises(SessionStateError, match=r"2:00:0\d ahead of the clock of"):
        icefloe.Repository.create(LaggingStorage(storage, TWO_HOURS), generation=generation)
    assert not icefloe.Repository.exists(storage)
    repository = icefloe.Repository.create(storage, generation=generation)
    (first,) = repository.ancestry(branch="main")
    assert first.written_at <= datetime.now(UTC)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_collector_that_is_ahead(storage: Storage, generation: str) -> None:
    """Of what was written just now, an hour ago is not long enough ago."""
    repository = icefloe.Repository.create(storage, CONFIG, generation=generation)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=4, chunks=2, dtype="i4", fill_value=0)[:] = 1
    collector = icefloe.Repository.open(LaggingStorage(storage, TWO_HOURS))
    summary = collector.garbage_collect(datetime.now(UTC) - timedelta(hours=1))
    assert summary.chunks_deleted == 0
    session.commit("array")
    # A few seconds are not a difference of clocks.
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 2
    collector = icefloe.Repository.open(LaggingStorage(storage, timedelta(seconds=5)))
    assert collector.garbage_collect(datetime.now(UTC)).chunks_deleted == 2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_expiration_that_is_ahead(tmp_path: Path, generation: str) -> None:
    storage = LocalStorage(tmp_path / "repository")
    repository = icefloe.Repository.create(storage, generation=generation)
    for name in ("one", "two"):
        commit_group(storage, name)
    ahead = icefloe.Repository.open(LaggingStorage(storage, TWO_HOURS))
    assert ahead.expire_snapshots(datetime.now(UTC) - timedelta(hours=1)) == set()
    assert ahead.expire_snapshots(datetime.min.replace(tzinfo=UTC)) == set()
    assert len(list(repository.ancestry(branch="main"))) == 3


def test_the_ops_log_has_the_time_of_the_storage(storage: Storage) -> None:
    """Icechunk makes no change before the time of the last one."""
    repository = icefloe.Repository.create(storage, spec_version=2)
    ahead = icefloe.Repository.open(LaggingStorage(storage, TWO_HOURS))
    ahead.create_branch("dev", ahead.lookup_branch("main"))
    newest, *_ = repository.ops_log()
    assert abs(newest.updated_at - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("storage", ["s3"], indirect=True)
def test_the_clock_is_read_once(storage: Storage) -> None:
    """Storages of one URL share a reading, so that a commit sends no request for it."""
    counting = CountingStorage(storage)
    icefloe.Repository.create(counting, spec_version=2)
    assert [call.name for call in counting.calls if call.key == CREATION].count("head") == 1
    counting.forget()
    for name in ("one", "two"):
        commit_group(counting, name)
    assert "head" not in {call.name for call in counting.calls}


def test_a_machine_that_slept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stood still, so the storage's is read again."""
    storage = LocalStorage(tmp_path)
    assert find_lead(storage) == timedelta(0)
    asleep_s = 7200.0
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() - asleep_s)
    assert find_lead(storage) == timedelta(0)


def test_staged_files_have_the_time_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network the file system has the clock of its server."""
    storage = LocalStorage(tmp_path)
    time_ns, ahead_ns = time.time_ns, 7200 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + ahead_ns)
    first = storage.put("key", b"1")
    assert abs(storage.head("key").last_modified - datetime.now(UTC)) < timedelta(minutes=1)
    assert storage.put("key", b"2") != first
