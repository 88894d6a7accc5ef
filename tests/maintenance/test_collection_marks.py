"""While a collection deletes files, commits of older sessions are refused; a killed one ends."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe.errors import ErrorKind, SessionStateError, StorageError
from icefloe.format.generation import V2
from icefloe.format.keys import COLLECTIONS
from icefloe.format.timestamps import to_microseconds
from icefloe.maintenance.garbage_collection import collect_garbage
from icefloe.model.config import RepositoryConfig
from icefloe.model.repo_info import GCRan
from icefloe.refs import collection_mark
from icefloe.repository import Repository
from icefloe.storage import LocalStorage
from support.counting_storage import CountingStorage
from support.faulty_storage import FaultyStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage


def make_repository(storage: Storage) -> Repository:
    repository = Repository.create(
        storage, RepositoryConfig(inline_chunk_threshold_bytes=0), spec_version=2
    )
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=4, chunks=2, dtype="i4", fill_value=0)
    session.commit("array")
    return repository


def leave_mark(storage: LocalStorage, cutoff: datetime) -> str:
    """Leave a mark, as a collection does that is killed after it recorded itself."""
    key = f"{COLLECTIONS}{to_microseconds(cutoff)}.0123456789"
    storage.put(key, b"")
    return key


def test_killed_collections(tmp_path: Path) -> None:
    """The mark refuses sessions from before its cutoff, until it ends."""
    storage = LocalStorage(tmp_path)
    repository = make_repository(storage)
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="group")
    repository.garbage_collect(datetime.now(UTC) - timedelta(days=1))
    key = leave_mark(storage, datetime.now(UTC))
    with pytest.raises(SessionStateError, match="commit again when it has ended") as caught:
        session.commit("while it may delete files")
    assert caught.value.kind is ErrorKind.COLLECTION_RUNNING
    newer = repository.writable_session("main")
    zarr.create_group(newer.store, path="newer")
    newer.flush("from after the cutoff")
    ended = time.time() - collection_mark.LEASE_S - 1
    os.utime(tmp_path / key, (ended, ended))
    session.commit("after the end")
    repository.garbage_collect(datetime.now(UTC) - timedelta(days=1))
    assert not list(storage.list(COLLECTIONS))


def test_old_cutoffs(tmp_path: Path) -> None:
    """The files of a session from after the cutoff are not deleted, so it may commit."""
    storage = LocalStorage(tmp_path)
    repository = make_repository(storage)
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="group")
    cutoff = datetime.now(UTC) - timedelta(hours=1)
    repository.garbage_collect(cutoff)
    leave_mark(storage, cutoff)
    session.commit("group")


def test_requests(tmp_path: Path) -> None:
    """A listing, only if a collection ran since the start of the session."""
    storage = CountingStorage(LocalStorage(tmp_path))
    repository = make_repository(storage)
    for is_collected in (False, True):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a")[:] = 1 + is_collected
        if is_collected:
            repository.garbage_collect(datetime.now(UTC) - timedelta(days=1))
        storage.forget()
        session.commit("chunks")
        assert (storage.keys("list") == [COLLECTIONS]) == is_collected
        assert bool(storage.keys("head")) == is_collected


def test_renewal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes the mark again while the collection works."""
    monkeypatch.setattr(collection_mark, "RENEWAL_S", 0.01)
    storage = LocalStorage(tmp_path)
    with collection_mark.hold_mark(storage, datetime.now(UTC)):
        (first,) = storage.list(COLLECTIONS)
        while storage.head(first.key).version == first.version:
            time.sleep(0.01)
    assert not list(storage.list(COLLECTIONS))


def test_suspended_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that could not renew its mark deletes nothing more."""
    storage = LocalStorage(tmp_path)
    repository = make_repository(storage)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 1
    monotonic, suspended_s = time.monotonic, 0.0

    def suspend(number: int, name: str, key: str) -> None:
        nonlocal suspended_s
        if name == "list" and key == V2.layout.chunks.prefix:
            suspended_s = collection_mark.LEASE_S

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + suspended_s)
    with pytest.raises(StorageError, match="its mark was not renewed") as caught:
        collect_garbage(FaultyStorage(storage, suspend), V2, older_than=datetime.now(UTC))
    assert caught.value.kind is ErrorKind.GC_DELETES_FAILING
    assert list(storage.list(V2.layout.chunks.prefix))
    assert isinstance(next(iter(repository.ops_log())).kind, GCRan)
