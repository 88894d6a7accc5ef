"""Commits of few chunks in a large array: the manifest file is edited, not rewritten."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import zarr

from icefloe.conflicts import ConflictDetector
from icefloe.model.config import CachingConfig, RepositoryConfig
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.counting_storage import CountingStorage
from support.edited_manifests import note_edits
from support.generations import ICECHUNK_NAMES
from support.zarr_nodes import array, contents, put

LENGTH = 4200
HOLE = 17


@cache
def make_files(generation: str) -> dict[str, bytes]:
    """Make the files of a repository whose array has many inline chunks and misses one."""
    storage = MemoryStorage()
    session = Repository.create(storage, generation=generation).writable_session("main")
    whole = zarr.create_array(session.store, name="a", shape=(LENGTH,), chunks=(1,), dtype="i4")
    whole[:] = np.arange(1, LENGTH + 1)
    whole[HOLE] = 0  # the fill value: no chunk
    session.commit("made")
    return {info.key: bytes(storage.get(info.key).data) for info in storage.list()}


@pytest.fixture(params=ICECHUNK_NAMES)
def storage(request: pytest.FixtureRequest) -> CountingStorage:
    """Hold such a repository, and count what is asked of it."""
    storage = MemoryStorage()
    for key, data in make_files(request.param).items():
        storage.put(key, data)
    return CountingStorage(storage)


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Keep a record of the edits that were tried, and whether they were made."""
    return note_edits(monkeypatch)


def change(repository: Repository, rows: slice | int, value: int) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[rows] = value
    session.commit(f"{rows} = {value}")


def values(repository: Repository) -> list[int]:
    session = repository.readonly_session("main")
    return np.asarray(zarr.open_array(session.store, path="a")[:]).tolist()  # type: ignore[no-any-return]


def manifest_gets(storage: CountingStorage) -> int:
    gets = [call for call in storage.calls if call.name.startswith("get")]
    storage.forget()
    return sum(call.key.startswith("manifests/") for call in gets)


def test_one_chunk_after_the_other(storage: CountingStorage, edits: list[bool]) -> None:
    """Each commit edits the file of the one before it, which is fetched once in all."""
    expected = values(Repository.open(storage))
    repository = Repository.open(storage)
    storage.forget()
    for number in range(5):
        change(repository, number * 1000, -1)
        expected[number * 1000] = -1
    assert edits == [True] * 5
    assert manifest_gets(storage) == 1
    assert values(repository) == expected
    assert manifest_gets(storage) == 0
    assert values(Repository.open(storage)) == expected


@pytest.mark.parametrize("index", [3, HOLE], ids=["edited", "declined"])
def test_many_flushes_of_one_snapshot(storage: CountingStorage, index: int) -> None:
    """Forks and branches that begin at one snapshot fetch its manifest once."""
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    storage.forget()
    for number in range(3):
        repository.create_branch(f"branch{number}", tip)
        session = repository.writable_session(f"branch{number}")
        zarr.open_array(session.store, path="a")[index] = -1
        session.fork()
        session.commit("changed")
    assert zarr.open_array(repository.readonly_session(snapshot_id=tip).store, path="a")[0] == 1
    assert manifest_gets(storage) == 1


def test_an_array_that_becomes_a_scalar(storage: CountingStorage) -> None:
    """Manifests of a grid of another rank are no base for edits."""
    session = Repository.open(storage).writable_session("main")
    put(session.store, "a/zarr.json", array(()))
    put(session.store, "a/c", b"1")
    session.commit("scalar")
    assert contents(Repository.open(storage).readonly_session("main").store)["a/c"] == b"1"


@pytest.mark.parametrize("num_chunk_refs", [None, 0], ids=["kept", "nothing kept"])
def test_a_new_chunk(
    storage: CountingStorage, edits: list[bool], num_chunk_refs: int | None
) -> None:
    """A chunk that was not there takes a new file, and no second look at the old one."""
    expected = values(Repository.open(storage))
    config = RepositoryConfig(caching=CachingConfig(num_chunk_refs=num_chunk_refs))
    repository = Repository.open(storage, config)
    storage.forget()
    change(repository, HOLE, 5)
    assert edits == [False]
    assert manifest_gets(storage) == 1
    expected[HOLE] = 5
    assert values(Repository.open(storage)) == expected


@pytest.mark.parametrize("rows", [slice(0, 1000), slice(0, LENGTH)])
def test_many_chunks(storage: CountingStorage, edits: list[bool], rows: slice) -> None:
    """Editing is not even tried where a good part changes."""
    change(Repository.open(storage), rows, 5)
    assert edits == []
    assert values(Repository.open(storage))[rows] == [5] * rows.stop


def test_a_manifest_in_memory(storage: CountingStorage, edits: list[bool]) -> None:
    """A manifest that was decoded is rewritten from memory, and stays there."""
    repository = Repository.open(storage)
    expected = values(repository)
    storage.forget()
    change(repository, 3, 5)
    assert edits == []
    assert values(repository) == [*expected[:3], 5, *expected[4:]]
    assert manifest_gets(storage) == 0


def test_a_deleted_chunk(storage: CountingStorage, edits: list[bool]) -> None:
    """A deletion is no edit."""
    change(Repository.open(storage), 3, 0)
    assert edits == []
    assert values(Repository.open(storage))[2:5] == [3, 0, 5]


def test_a_commit_that_was_overtaken(storage: CountingStorage, edits: list[bool]) -> None:
    """After a rebase the other's file is the one to edit."""
    ours, theirs = (Repository.open(storage).writable_session("main") for _ in range(2))
    zarr.open_array(ours.store, path="a")[1] = 11
    zarr.open_array(theirs.store, path="a")[2] = 22
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=ConflictDetector())
    assert edits == [True] * 3
    assert values(Repository.open(storage))[:4] == [1, 11, 22, 4]


@pytest.mark.parametrize("generation", ICECHUNK_NAMES)
@pytest.mark.parametrize("before, after", [(LENGTH, 1050), (1050, LENGTH)])
def test_other_rules_of_splitting(
    edits: list[bool], before: int, after: int, generation: str
) -> None:
    """A manifest that today's rules would split, or join with others, is not edited."""
    storage = MemoryStorage()
    session = Repository.create(storage, _split(before), generation=generation).writable_session(
        "main"
    )
    whole = zarr.create_array(session.store, name="a", shape=(LENGTH,), chunks=(1,), dtype="i4")
    whole[:] = 1
    session.commit("made")
    assert _count_manifests(storage) == LENGTH // before
    change(Repository.open(storage, _split(after)), 3, 5)
    assert edits == []
    assert _count_manifests(storage) == LENGTH // after
    assert values(Repository.open(storage)) == [1, 1, 1, 5, *[1] * (LENGTH - 4)]


def _split(size: int) -> RepositoryConfig:
    axis = ManifestSplitDimCondition.Axis(0)
    rules = ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): {axis: size}})
    return RepositoryConfig(manifest=ManifestConfig(splitting=rules))


def _count_manifests(storage: MemoryStorage) -> int:
    repository = Repository.open(storage)
    return len(repository.list_manifest_files(repository.lookup_branch("main")))
