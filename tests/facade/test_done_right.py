"""The right column of the table "Corrected behaviour" in `docs/compatibility.md`."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype

from icefloe import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictType,
    InvalidInputError,
    RebaseFailedError,
    Repository,
    SessionStateError,
    SpecVersion,
    VersionSelection,
    in_memory_storage,
    local_filesystem_storage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from zarr.abc.store import ByteRequest

    from icefloe import IcechunkStore


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(in_memory_storage(), spec_version=2)
    with made.transaction("main", message="first") as store:
        group = zarr.open_group(store, mode="w")
        array = group.create_array("a", shape=(4,), chunks=(2,), dtype="i4", compressors=None)
        array[:] = 1
        group.create_group("g")
    return made


def fetch(store: IcechunkStore, key: str, byte_range: ByteRequest | None = None) -> bytes:
    found = asyncio.run(store.get(key, default_buffer_prototype(), byte_range))
    assert found is not None
    return found.to_bytes()


async def _list(keys: AsyncIterator[str]) -> list[str]:
    return [key async for key in keys]


@pytest.mark.parametrize(
    "byte_range, length",
    [
        (RangeByteRequest(4, 100), 4),
        (RangeByteRequest(20, 30), 0),
        (OffsetByteRequest(100), 0),
        (SuffixByteRequest(100), 8),
    ],
)
def test_byte_ranges_past_the_end(
    repository: Repository, byte_range: ByteRequest, length: int
) -> None:
    """The bytes that there are, as Zarr's documentation has it."""
    store = repository.readonly_session("main").store
    assert len(fetch(store, "a/c/0", byte_range)) == length


def test_the_end_of_metadata(repository: Repository) -> None:
    """A suffix is the end of a file, whatever the file."""
    store = repository.readonly_session("main").store
    whole = fetch(store, "zarr.json")
    assert fetch(store, "zarr.json", SuffixByteRequest(10)) == whole[-10:]


def test_prefixes_with_nothing_below_and_below_arrays(repository: Repository) -> None:
    """Listing is a question, and nothing an answer."""
    store = repository.readonly_session("main").store
    assert asyncio.run(_list(store.list_prefix("nope"))) == []
    assert asyncio.run(_list(store.list_prefix("a/c"))) == ["a/c/0", "a/c/1"]


def test_a_chunk_with_too_many_coordinates(repository: Repository) -> None:
    """It lies in no array."""
    store = repository.writable_session("main").store
    with pytest.raises(InvalidInputError) as raised:
        asyncio.run(store.set("a/c/0/0", cpu.Buffer.from_bytes(b"12345678")))
    assert raised.value.kind == "invalid-chunk-index"


def test_forks_that_wrote_the_same_chunk(repository: Repository) -> None:
    """The caller has to choose."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for value, fork in enumerate(forks):
        zarr.open_array(fork.store, path="a")[0] = 10 + value
    with pytest.raises(SessionStateError) as raised:
        session.merge(*forks)
    assert raised.value.kind == "merge-failed"
    session.merge(*forks, on_chunk_conflict=VersionSelection.UseTheirs)
    assert zarr.open_array(session.store, path="a")[0] == 11


def test_a_fork_of_changes_that_are_not_here(repository: Repository) -> None:
    """What the fork began with would be left behind."""
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[1] = 2
    unrelated = repository.writable_session("main")
    for other in (unrelated, unrelated.fork(), session.fork()):
        with pytest.raises(SessionStateError) as raised:
            other.merge(fork)
        assert raised.value.kind == "merge-not-allowed"
    session.merge(fork)


def test_commits_at_the_same_time_on_a_local_file_system(tmp_path: Path) -> None:
    """What was reported as done is in the history."""
    storage = local_filesystem_storage(tmp_path / "repo")
    Repository.create(storage, spec_version=2)
    with Repository.open(storage).transaction("main", message="root") as store:
        zarr.create_group(store)
    done: list[str] = []

    def write(name: str) -> None:
        repository = Repository.open(local_filesystem_storage(tmp_path / "repo"))
        for number in range(3):
            session = repository.writable_session("main")
            zarr.create_group(session.store, path=f"{name}{number}")
            done.append(session.commit(name, rebase_with=ConflictDetector()))

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    history = {info.id for info in Repository.open(storage).ancestry(branch="main")}
    assert len(done) == 12
    assert set(done) <= history


def test_deleting_a_group_that_somebody_adds_a_child_to(repository: Repository) -> None:
    """Neither side can have its way without the other's consent."""
    session = repository.writable_session("main")
    asyncio.run(session.store.delete_dir("g"))
    with repository.transaction("main", message="child") as store:
        zarr.create_group(store, path="g/child")
    with pytest.raises(RebaseFailedError):
        session.commit("delete", rebase_with=BasicConflictSolver())


def test_what_differs_in_behaviour(repository: Repository) -> None:
    """The rows of that table that a line can check."""
    assert Repository.create(in_memory_storage()).spec_version is SpecVersion.v1
    assert [kind.value for kind in ConflictType] == list(range(1, 12))
    assert "compression" not in repository.inspect_manifest(
        repository.list_manifest_files(repository.lookup_branch("main"))[0].id
    )
