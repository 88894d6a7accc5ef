"""Manifests written elsewhere become part of a transaction, without its reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError, RebaseFailedError, SessionStateError
from icefloe.model.chunk_payload import InlineChunk
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest
from icefloe.model.node import ManifestRef
from icefloe.session.commit_policy import CommitPolicy
from icefloe.transaction.adopted import AdoptedManifest, AdoptedManifests, add_adopted_chunks
from icefloe.transaction.array_manifests import compute_extents

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.model.transaction_log import TransactionLog


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    with repository.transaction("main", message="array") as store:
        zarr.create_array(
            store, name="a", shape=(10,), chunks=(1,), dtype="i4", fill_value=-1, compressors=None
        )
    return repository


def manifest(session: icefloe.Session, first: int, last: int) -> AdoptedManifest:
    """Write a manifest whose chunks hold their own numbers, as a worker would."""
    transaction = session.transaction
    node = transaction.require_array(session.path("/a"))
    coords = np.arange(first, last, dtype=np.uint32).reshape(-1, 1)
    chunks = [InlineChunk(int(number).to_bytes(4, "little")) for number in coords[:, 0]]
    made = Manifest.of_array(
        ManifestId.random(), node.id, ArrayManifest(coords, ChunkPayloads.of(chunks))
    )
    info = transaction.assets.write_manifest(made)
    return AdoptedManifest(ManifestRef(made.id, compute_extents(coords)), info)


def adopt(session: icefloe.Session, *ranges: tuple[int, int]) -> None:
    made = tuple(manifest(session, *extent) for extent in ranges)
    session.transaction.adopt_manifests(session.path("/a"), made)


def values(session: icefloe.Session) -> list[int]:
    found: list[int] = np.asarray(zarr.open_array(session.store, path="a", mode="r")[:]).tolist()
    return found


def test_they_are_read_before_and_after_the_commit(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    adopt(session, (0, 4), (6, 8))
    expected = [0, 1, 2, 3, -1, -1, 6, 7, -1, -1]
    assert values(session) == expected
    snapshot = session.commit("adopt")
    assert values(repository.readonly_session("main")) == expected
    assert len(repository.list_manifest_files(snapshot)) == 2


def test_history_tells_their_chunks(repository: icefloe.Repository) -> None:
    before = repository.lookup_branch("main")
    session = repository.writable_session("main")
    adopt(session, (0, 3))
    assert session.has_uncommitted_changes
    expected = {"/a": [[0], [1], [2]]}
    assert session.status().updated_chunks == expected
    after = session.commit("adopt")
    assert repository.diff(from_snapshot_id=before, to_snapshot_id=after).updated_chunks == expected


def test_a_chunk_may_be_written_over_them(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    adopt(session, (0, 3))
    zarr.open_array(session.store, path="a")[1] = 50
    assert values(session)[:4] == [0, 50, 2, -1]
    session.commit("adopt")
    assert values(repository.readonly_session("main"))[:4] == [0, 50, 2, -1]


def test_an_array_grows_for_them(repository: icefloe.Repository) -> None:
    with repository.transaction("main", message="fill") as store:
        zarr.open_array(store, path="a")[:] = 7
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a").resize((12,))
    adopt(session, (10, 12))
    session.commit("grow")
    assert values(repository.readonly_session("main")) == [7] * 10 + [10, 11]


@pytest.mark.parametrize("ranges", [[(8, 11)], [(0, 3), (2, 4)]])
def test_they_must_fit(repository: icefloe.Repository, ranges: list[tuple[int, int]]) -> None:
    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match="cannot be adopted"):
        adopt(session, *ranges)
    assert not session.has_uncommitted_changes


def test_chunks_that_are_there_are_not_covered(repository: icefloe.Repository) -> None:
    with repository.transaction("main", message="fill") as store:
        zarr.open_array(store, path="a")[2] = 7
    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match="overlaps another manifest"):
        adopt(session, (2, 4))


def test_a_concurrent_write_elsewhere_is_rebased_over(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    adopt(session, (0, 2))
    with repository.transaction("main", message="other") as store:
        zarr.open_array(store, path="a")[5] = 7
    session.commit("adopt", rebase_with=icefloe.ConflictDetector())
    assert values(repository.readonly_session("main"))[:6] == [0, 1, -1, -1, -1, 7]


@pytest.mark.parametrize(
    "solver",
    [
        icefloe.ConflictDetector(),
        icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs),
        icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs),
    ],
)
def test_a_concurrent_write_of_the_same_chunks_is_a_conflict(
    repository: icefloe.Repository, solver: icefloe.ConflictSolver
) -> None:
    session = repository.writable_session("main")
    adopt(session, (0, 2))
    with repository.transaction("main", message="other") as store:
        zarr.open_array(store, path="a")[1] = 7
    with pytest.raises(RebaseFailedError, match="/a"):
        session.commit("adopt", rebase_with=solver)


def test_forks_do_not_bring_them(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    adopt(fork, (0, 2))
    with pytest.raises(SessionStateError, match="adopt them outside of forks"):
        session.merge(fork)


def test_the_log_can_be_written_by_somebody_else(repository: icefloe.Repository) -> None:
    before = repository.lookup_branch("main")
    session = repository.writable_session("main")
    adopt(session, (0, 3))
    seen: list[set[NodeId]] = []

    def write(log: TransactionLog, adopted: AdoptedManifests) -> None:
        assert len(log.updated_chunks) == 0
        seen.append(set(adopted))
        assets = session.transaction.assets
        assets.write_transaction_log(add_adopted_chunks(log, adopted, assets))

    after = session.commit("adopt", policy=CommitPolicy(write_log=write))
    assert len(seen) == 1
    found = repository.diff(from_snapshot_id=before, to_snapshot_id=after).updated_chunks
    assert found == {"/a": [[0], [1], [2]]}
