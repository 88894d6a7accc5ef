"""Numbers of nodes: unique in a history, also with concurrent writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

from icefloe.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.model.chunk_payload import MAX_U32, InlineChunk
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.session.parallel_write import adopt_manifests, write_manifest
from icefloe.storage import MemoryStorage
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.transaction.node_numbers import plan_numbers
from support.numbering_generation import numbering_generation
from support.zarr_nodes import array, contents, delete_node, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.session import Session
    from icefloe.storage.forwarding import Request

T = TypeVar("T")


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def repository(storage: MemoryStorage) -> Iterator[Repository]:
    """Make a repository with a root group, number 0, and an array ``a``, number 1."""
    with numbering_generation():
        repository = Repository.create(
            storage, RepositoryConfig(inline_chunk_threshold_bytes=2), spec_version=1
        )
        session = repository.writable_session("main")
        put(session.store, "zarr.json", group())
        create(session, "a")
        session.commit("begin")
        yield repository


def create(session: Session, name: str, *chunks: bytes) -> None:
    """Create an array of four chunks, and write the first of them."""
    put(session.store, f"{name}/zarr.json", array((4,)))
    write(session, name, *chunks)


def write(session: Session, name: str, *chunks: bytes) -> None:
    for index, chunk in enumerate(chunks):
        put(session.store, f"{name}/c/{index}", chunk)


def commit(repository: Repository, *names: str, branch: str = "main") -> str:
    """Commit new arrays, whose first chunk is the name."""
    session = repository.writable_session(branch)
    for name in names:
        create(session, name, name.encode())
    return session.commit(f"create {', '.join(names)}")


def numbers(repository: Repository, branch: str = "main") -> dict[str, int]:
    """Return the numbers of all nodes at the tip, and check that they are unique and counted."""
    snapshot = repository.readonly_session(branch).transaction.base.snapshot
    found = {node.path.value: node.id.number for node in snapshot.nodes}
    assert len(set(found.values())) == len(found)
    assert max(found.values()) < snapshot.next_node_number
    return found


def read(repository: Repository, key: str) -> bytes | None:
    return get(repository.readonly_session("main").store, key)


def adopt(session: Session, name: str, *others: str) -> None:
    """Adopt a manifest with one chunk of each array, which holds the name."""
    paths = {other: Path(f"/{other}") for other in (name, *others)}
    session.transaction.number_new_nodes()
    refs = {
        session.transaction.require_array(path).id: ArrayManifest(
            np.array([[2]], np.uint32), ChunkPayloads.of([InlineChunk(other.encode())])
        )
        for other, path in paths.items()
    }
    written = write_manifest(session.connection, refs)
    for path in paths.values():
        adopt_manifests(session, path, [written[session.transaction.require_array(path).id]])


# -- one writer


def test_new_nodes_are_numbered_in_the_order_of_their_paths(repository: Repository) -> None:
    """A commit gives the next numbers of the history, not those of the session."""
    session = repository.writable_session("main")
    create(session, "c", b"c")
    create(session, "b", b"b")
    assert NodeId.parse(session.get_node_id("/b")).is_provisional
    session.commit("create")
    assert numbers(repository) == {"/": 0, "/a": 1, "/b": 2, "/c": 3}
    assert read(repository, "b/c/0") == b"b"


def test_numbers_of_deleted_nodes_are_not_used_again(repository: Repository) -> None:
    """The node that replaces a deleted one at its path has a new number."""
    commit(repository, "b")
    session = repository.writable_session("main")
    delete_node(session.store, "b")
    session.commit("delete")
    commit(repository, "b")
    assert numbers(repository) == {"/": 0, "/a": 1, "/b": 3}


def test_no_numbers_are_left(repository: Repository) -> None:
    """The error says what to do, before anything is written."""
    session = repository.writable_session("main")
    create(session, "b")
    with pytest.raises(InvalidInputError, match="convert it to generation v2") as refused:
        plan_numbers(session.transaction.base, session.transaction.changes, MAX_U32)
    assert refused.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION


# -- two writers


@pytest.mark.parametrize("adopts", [False, True], ids=["written", "adopted"])
def test_another_commit_takes_the_numbers_first(repository: Repository, *, adopts: bool) -> None:
    """A rebase gives other numbers, in chunk changes and in adopted manifests."""
    session = repository.writable_session("main")
    for name in ("c", "d"):
        create(session, name, name.encode())
    if adopts:
        adopt(session, "c", "d", "a")
    commit(repository, "x", "y", "z")
    session.commit("ours", rebase_with=ConflictDetector())
    assert numbers(repository) == {"/": 0, "/a": 1, "/x": 2, "/y": 3, "/z": 4, "/c": 5, "/d": 6}
    for name in ("c", "d", "x", "y", "z"):
        assert read(repository, f"{name}/c/0") == name.encode()
    expected = [b"a", b"c", b"d"] if adopts else [None] * 3
    assert [read(repository, f"{name}/c/2") for name in "acd"] == expected


def test_a_writer_that_was_numbered_before_several_commits(repository: Repository) -> None:
    """Rebasing over several commits, one of which deletes and one creates, keeps all chunks."""
    session = repository.writable_session("main")
    create(session, "c", b"c")
    session.transaction.number_new_nodes()
    commit(repository, "x", "y")
    other = repository.writable_session("main")
    delete_node(other.store, "x")
    other.commit("delete")
    commit(repository, "z")
    session.commit("ours", rebase_with=ConflictDetector())
    assert numbers(repository) == {"/": 0, "/a": 1, "/y": 3, "/z": 4, "/c": 5}
    store = repository.readonly_session("main").store
    chunks = {key: value for key, value in contents(store).items() if "/c/" in key}
    assert chunks == {"y/c/0": b"y", "z/c/0": b"z", "c/c/0": b"c"}


def test_the_session_goes_on_after_a_rebase(repository: Repository) -> None:
    """Chunks of the other writer's array are not taken for those of ours that had its number."""
    session = repository.writable_session("main")
    create(session, "c", b"c")
    session.transaction.number_new_nodes()
    commit(repository, "x")
    session.rebase(ConflictDetector())
    write(session, "x", b"1", b"2")
    write(session, "c", b"3")
    session.commit("ours")
    assert [read(repository, f"x/c/{index}") for index in range(2)] == [b"1", b"2"]
    assert [read(repository, f"c/c/{index}") for index in range(2)] == [b"3", None]


def test_conflicts_are_found_without_logs(repository: Repository) -> None:
    """Chunks that both wrote conflict, and the solver decides; equal chunks do not."""
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    write(theirs, "a", b"t", b"s")
    theirs.commit("theirs")
    write(ours, "a", b"o", b"s")
    with pytest.raises(RebaseFailedError) as failed:
        ours.commit("ours", rebase_with=ConflictDetector())
    (conflict,) = failed.value.conflicts
    assert conflict.conflicted_chunks == [[0], [1]]
    side = VersionSelection.UseTheirs
    ours.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict=side))
    same = repository.writable_session("main")
    write(same, "a", b"t")
    again = repository.writable_session("main")
    write(again, "a", b"t")
    again.commit("equal")
    same.commit("equal", rebase_with=ConflictDetector())
    assert read(repository, "a/c/0") == b"t"


# -- forks


def test_forks_create_nodes_at_the_same_time(repository: Repository) -> None:
    """Nodes that several forks created are numbered when the session commits."""
    session = repository.writable_session("main")
    create(session, "b", b"b")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        create(fork, f"f{number}", b"%d" % number)
        put(fork.store, f"b/c/{number + 1}", b"%d" % number)
    session.merge(*forks)
    session.commit("merged")
    assert sorted(numbers(repository).values()) == list(range(6))
    for number in range(3):
        assert read(repository, f"f{number}/c/0") == b"%d" % number
        assert read(repository, f"b/c/{number + 1}") == b"%d" % number


def test_forks_that_were_forked_use_the_same_numbers(repository: Repository) -> None:
    """Each fork numbers its nodes for its own forks; merged, they stay different nodes."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        create(fork, f"f{number}", b"%d" % number)
        nested = fork.fork()
        write(nested, f"f{number}", b"%d" % number, b"n%d" % number)
        fork.merge(nested)
    ids = {fork.get_node_id(f"/f{number}") for number, fork in enumerate(forks)}
    assert len(ids) == 1
    session.merge(*forks)
    session.commit("merged")
    numbers(repository)
    for number in range(2):
        found = [read(repository, f"f{number}/c/{index}") for index in range(3)]
        assert found == [b"%d" % number, b"n%d" % number, None]


def test_a_nested_fork_whose_numbers_were_taken_is_refused(repository: Repository) -> None:
    """It can be merged into the session if its numbers are free there, else only into its fork."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    nested = []
    for number, fork in enumerate(forks):
        create(fork, f"f{number}", b"%d" % number)
        nested.append(fork.fork())
        write(nested[-1], f"f{number}", b"%d" % number, b"n%d" % number)
    session.merge(*forks)
    session.merge(nested[0])
    with pytest.raises(SessionStateError, match="nothing was merged"):
        session.merge(nested[1])
    session.commit("merged")
    assert read(repository, "f0/c/1") == b"n0"
    assert read(repository, "f1/c/1") is None


def test_a_deleted_node_keeps_its_number_while_forks_know_it(repository: Repository) -> None:
    """Chunks that a fork wrote to a node that was deleted do not get into a newer node."""
    session = repository.writable_session("main")
    create(session, "b")
    fork = session.fork()
    write(fork, "b", b"f")
    delete_node(session.store, "b")
    create(session, "c", b"c")
    session.fork()
    assert session.get_node_id("/c") == "3"
    with pytest.raises(SessionStateError, match="deleted in this session"):
        session.merge(fork)
    session.commit("ours")
    assert read(repository, "c/c/0") == b"c"


def test_a_fork_is_refused_after_its_session_was_rebased(repository: Repository) -> None:
    """The fork knows the old numbers of nodes."""
    session = repository.writable_session("main")
    create(session, "b")
    fork = session.fork()
    write(fork, "b", b"f")
    commit(repository, "x")
    session.rebase(ConflictDetector())
    with pytest.raises(ConflictError, match="the fork is based on snapshot"):
        session.merge(fork)


def test_a_fork_is_merged_after_a_rebase_that_failed(repository: Repository) -> None:
    """A rebase that finds a conflict renumbers nothing."""
    session = repository.writable_session("main")
    create(session, "b")
    write(session, "a", b"o")
    fork = session.fork()
    write(fork, "b", b"f")
    other = repository.writable_session("main")
    write(other, "a", b"t")
    create(other, "x")
    other.commit("theirs")
    with pytest.raises(RebaseFailedError):
        session.rebase(ConflictDetector())
    session.merge(fork)
    side = VersionSelection.UseOurs
    session.commit("ours", rebase_with=BasicConflictSolver(on_chunk_conflict=side))
    assert numbers(repository) == {"/": 0, "/a": 1, "/x": 2, "/b": 3}
    assert read(repository, "b/c/0") == b"f"


class _Meanwhile(ForwardingStorage):
    """Another storage, where things happen just before the next chunk is written."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.events: list[Callable[[], object]] = []

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        if request.keys[0].startswith("chunks/") and self.events:
            self.events.pop()()
        return run()


def test_a_chunk_that_is_written_while_its_session_forks(
    repository: Repository, storage: MemoryStorage
) -> None:
    """A chunk of a new array that is in flight during a fork, which numbers nodes, is kept."""
    slow = _Meanwhile(storage)
    session = Repository.open(slow).writable_session("main")
    create(session, "b")
    slow.events.append(session.fork)
    chunk = bytes(range(256)) * 4
    write(session, "b", chunk)
    assert not slow.events
    session.commit("ours")
    assert read(repository, "b/c/0") == chunk


# -- branches that diverged


def test_diff_tells_nodes_of_two_branches_apart(repository: Repository) -> None:
    """Nodes with the same number on both branches are one new and one deleted node."""
    base = repository.lookup_branch("main")
    repository.create_branch("dev", base)
    main, dev = commit(repository, "m"), commit(repository, "d", branch="dev")
    assert numbers(repository)["/m"] == numbers(repository, "dev")["/d"]
    diff = repository.diff(from_snapshot_id=dev, to_snapshot_id=main)
    assert (diff.new_arrays, diff.deleted_arrays) == ({"/m"}, {"/d"})
    assert diff.updated_chunks == {"/m": [[0]]}
    assert not diff.updated_arrays
    assert not diff.moved_nodes
    main, dev = commit(repository, "same"), commit(repository, "same", branch="dev")
    diff = repository.diff(from_snapshot_id=dev, to_snapshot_id=main)
    assert diff.new_arrays == {"/m", "/same"}
    assert diff.deleted_arrays == {"/d", "/same"}


def test_diff_of_branches_that_changed_an_older_node(repository: Repository) -> None:
    """Nodes of the common ancestor are the same on both branches."""
    base = repository.lookup_branch("main")
    repository.create_branch("dev", base)
    tips = []
    for branch, chunks in (("main", [b"1"]), ("dev", [b"1", b"2"])):
        session = repository.writable_session(branch)
        put(session.store, "a/zarr.json", array((4,), branch=branch))
        write(session, "a", *chunks)
        tips.append(session.commit("change"))
    diff = repository.diff(from_snapshot_id=tips[0], to_snapshot_id=tips[1])
    assert diff.updated_arrays == {"/a"}
    assert diff.updated_chunks == {"/a": [[0], [1]]}
    assert not diff.new_arrays | diff.deleted_arrays
