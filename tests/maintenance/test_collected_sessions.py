"""A commit fails if garbage collection deleted what its session wrote, in every generation."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.distributed import merge_sessions
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.config import PackingConfig
from icefloe.model.ids import ChunkId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.pipeline.jobs.compute import compute
from icefloe.refs import commit_check
from icefloe.session.parallel_write import adopt_manifests, write_manifest
from icefloe.storage import LocalStorage
from support.faulty_storage import FaultyStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage import Storage

GENERATIONS = ("draft", "sequence", "v1", "v2")
NOW_AND_LATER = (timedelta(0), timedelta(hours=2))


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    """Create a repository with an array of native chunks."""
    return make_repository(LocalStorage(tmp_path / "repository"), request.param)


def make_repository(storage: Storage, generation: str) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = icefloe.Repository.create(storage, config, generation=generation)
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
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_collection_between_any_requests_of_a_commit(tmp_path: Path, generation: str) -> None:
    """The commit fails and leaves the branch as it was, or what it wrote can be read."""
    outcomes = []
    for at in itertools.count():
        inner = LocalStorage(tmp_path / str(at), durable=False)
        repository = make_repository(inner, generation)
        collectors: list[icefloe.Repository] = []  # the last one collects

        def collect(*_: object, collectors: list[icefloe.Repository] = collectors) -> None:
            if collectors:
                collector = collectors.pop()
                if not collectors:
                    collector.garbage_collect(datetime.now(UTC))

        storage = FaultyStorage(inner, collect)
        session = icefloe.Repository.open(storage).writable_session("main")
        write(session, 1)
        tip = repository.lookup_branch("main")
        collectors += [repository] * (at + 1)
        try:
            session.commit("chunks")
        except icefloe.IcefloeError:
            assert repository.lookup_branch("main") == tip
            outcomes.append(False)
        else:
            outcomes.append(True)
        stored = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
        np.testing.assert_array_equal(stored[:4], [int(outcomes[-1])] * 4)
        if collectors:
            break
    assert outcomes.count(False) > 5


@pytest.mark.usefixtures("every_session_is_old")
@pytest.mark.parametrize("storage", ["s3"], indirect=True)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_on_s3(storage: Storage, generation: str) -> None:
    repository = make_repository(storage, generation)
    session = repository.writable_session("main")
    write(session, 1)
    # S3 rounds times to seconds, and the first chunk may be as new as the cutoff.
    while not repository.garbage_collect(datetime.now(UTC)).chunks_deleted:
        pass
    with pytest.raises(SessionStateError, match="garbage collection deleted"):
        session.commit("chunks")


@pytest.mark.usefixtures("every_session_is_old")
def test_a_collection_under_a_fork(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork = pickle.loads(pickle.dumps(session.fork()))  # noqa: S301
    write(fork, 1)
    session.merge(fork)
    repository.garbage_collect(datetime.now(UTC))
    require_refused(repository, session)


@pytest.mark.parametrize("merges_first", [False, True])
def test_a_fork_of_an_earlier_session(
    repository: icefloe.Repository,
    merges_first: bool,  # noqa: FBT001
) -> None:
    """Its files may be older than the session that it is merged into."""
    earlier = repository.writable_session("main")
    earlier.start = replace(earlier.start, time_s=earlier.start.time_s - 3600)
    fork = pickle.loads(pickle.dumps(earlier.fork()))  # noqa: S301
    write(fork, 1)
    repository.garbage_collect(datetime.now(UTC))
    session = repository.writable_session("main")
    session.merge(merge_sessions(session.fork(), fork) if merges_first else fork)
    require_refused(repository, session)


@pytest.mark.usefixtures("every_session_is_old")
def test_packed_chunks(repository: icefloe.Repository) -> None:
    packing = PackingConfig(max_chunk_bytes=100, target_object_bytes=20)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, packing=packing)
    repository = repository.reopen(config)
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    for index in range(4):  # two packs of two chunks
        array[index * 2] = index + 1
    repository.garbage_collect(datetime.now(UTC))
    require_refused(repository, session)


@pytest.mark.usefixtures("every_session_is_old")
@pytest.mark.parametrize("is_rewritten", [False, True])
def test_adopted_manifests(
    repository: icefloe.Repository,
    is_rewritten: bool,  # noqa: FBT001
) -> None:
    """The manifest of another process and the chunks in it count as written by the session."""
    session, other = repository.writable_session("main"), repository.writable_session("main")
    assets = session.connection.assets
    path = session.path("/a")
    chunk_ids = [assets.generation.make_id(ChunkId) for _ in range(2)]
    for chunk_id in chunk_ids:
        assets.write_chunk(chunk_id, bytes(8))
    refs = ArrayManifest(
        np.array([[0], [1]], np.uint32),
        ChunkPayloads.of([ChunkRef(id_, 0, 8) for id_ in chunk_ids]),
    )
    node_id = session.transaction.require_array(path).id
    adopted = write_manifest(session.connection, {node_id: refs})[node_id]
    adopt_manifests(session, path, [adopted])
    if is_rewritten:  # then no snapshot refers to it
        assets.fetch_manifest(adopted.ref.id)
        write(session, 2)
    repository.garbage_collect(datetime.now(UTC))
    with pytest.raises(SessionStateError, match="garbage collection deleted 1 files") as caught:
        session.commit("adopt")
    assert caught.value.kind is ErrorKind.COLLECTED_BEFORE_COMMIT
    # Also if only the chunks are gone.
    adopted = write_manifest(other.connection, {node_id: refs})[node_id]
    adopt_manifests(other, path, [adopted])
    with pytest.raises(SessionStateError, match="garbage collection deleted 2 files"):
        other.commit("adopt")


@pytest.mark.usefixtures("every_session_is_old")
def test_a_job(repository: icefloe.Repository) -> None:
    """Files of earlier tasks are checked, too."""
    write(session := repository.writable_session("main"), 1)
    session.commit("input")
    num_deleted = []

    def collect(a: Any) -> Any:
        summary = repository.garbage_collect(datetime.now(UTC))
        num_deleted.append(summary.chunks_deleted)
        return a

    tip = repository.lookup_branch("main")
    with pytest.raises(SessionStateError, match="garbage collection deleted") as caught:
        compute(None, repository, collect, "a", "b", task_bytes=16)
    assert sum(num_deleted) > 0
    assert caught.value.kind is ErrorKind.COLLECTED_BEFORE_COMMIT
    assert repository.lookup_branch("main") == tip


@pytest.mark.parametrize("repository", ["v2"], indirect=True)
@pytest.mark.parametrize("method", ["amend", "flush"])
def test_other_ways_to_commit(repository: icefloe.Repository, method: str) -> None:
    session = repository.writable_session("main")
    write(session, 1)
    repository.garbage_collect(datetime.now(UTC))
    with pytest.raises(SessionStateError, match="garbage collection deleted 2 files"):
        getattr(session, method)("chunks")


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
