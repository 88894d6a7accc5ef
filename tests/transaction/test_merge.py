"""Forks: sessions that go elsewhere, write, come back, and are merged."""

from __future__ import annotations

import pickle
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.conflicts import BasicConflictSolver, VersionSelection
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.repository import Repository
from icefloe.session import ForkSession
from icefloe.storage import LocalStorage, MemoryStorage
from support import SUPPORT, warm_python
from support.counting_storage import CountingStorage
from support.generations import find_kind
from support.zarr_nodes import array, contents, delete, delete_node, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zarr.abc.store import Store

    from icefloe.session import Session

    Change = Callable[[Store], None]

# Four bytes are too many to be inlined.
_NATIVE = RepositoryConfig(inline_chunk_threshold_bytes=3)
_PACKED = RepositoryConfig(
    inline_chunk_threshold_bytes=3,
    packing=PackingConfig(max_chunk_bytes=100, target_object_bytes=1000),
)


@pytest.fixture(params=[_NATIVE, _PACKED], ids=["plain", "packed"])
def repository(request: pytest.FixtureRequest, generation: str) -> Repository:
    """Return one with a group that has an array, another array, and an empty group."""
    return _begin(Repository.create(MemoryStorage(), request.param, generation=generation))


def _begin(repository: Repository) -> Repository:
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "g/zarr.json", group())
    put(session.store, "g/a/zarr.json", array((8,)))
    put(session.store, "b/zarr.json", array((8,)))
    put(session.store, "h/zarr.json", group())
    put(session.store, "g/a/c/0", b"begin")
    session.commit("begin")
    return repository


def _put(key: str, value: bytes) -> Change:
    return lambda store: put(store, key, value)


def _all(*changes: Change) -> Change:
    def change(store: Store) -> None:
        for apply in changes:
            apply(store)

    return change


def _assert_refused(session: Session, fork: ForkSession, *words: str) -> None:
    """Check that a merge fails with a message that names things, and changes nothing."""
    before, status = contents(session.store), session.status()
    with pytest.raises(SessionStateError) as caught:
        session.merge(fork)
    assert caught.value.kind is ErrorKind.MERGE_FAILED
    for word in words:
        assert word in str(caught.value)
    assert contents(session.store) == before
    assert session.status() == status


def test_forks_write_side_by_side(repository: Repository) -> None:
    """What several forks and the session itself did is all there after merge and commit."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        put(fork.store, f"g/a/c/{number + 1}", f"fork {number}".encode())
    delete(forks[0].store, "g/a/c/0")
    put(forks[1].store, "new/zarr.json", group(by="a fork"))
    put(forks[2].store, "b/zarr.json", array((9,)))
    put(session.store, "b/c/0", b"session")
    session.merge(*forks)
    expected = {
        "zarr.json": group(),
        "g/zarr.json": group(),
        "h/zarr.json": group(),
        "g/a/zarr.json": array((8,)),
        "b/zarr.json": array((9,)),
        "new/zarr.json": group(by="a fork"),
        "g/a/c/1": b"fork 0",
        "g/a/c/2": b"fork 1",
        "g/a/c/3": b"fork 2",
        "b/c/0": b"session",
    }
    assert contents(session.store) == expected
    session.commit("merged")
    assert contents(repository.readonly_session("main").store) == expected


@pytest.mark.parametrize("sides", [(b"ours!", b"theirs"), (b"a", b"b"), (b"1234", b"5678")])
def test_same_chunk_different_bytes(repository: Repository, sides: tuple[bytes, bytes]) -> None:
    """Two writers of one chunk are an error that names it, or are decided as asked."""
    ours, theirs = sides
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "g/a/c/5", theirs)
    put(fork.store, "g/a/c/6", b"fork")
    put(session.store, "g/a/c/5", ours)
    _assert_refused(session, fork, "/g/a", "[5]", "UseOurs")
    session.merge(fork, on_chunk_conflict=VersionSelection.UseOurs)
    assert get(session.store, "g/a/c/5") == ours
    assert get(session.store, "g/a/c/6") == b"fork"
    session.merge(fork, on_chunk_conflict=VersionSelection.UseTheirs)
    assert get(session.store, "g/a/c/5") == theirs
    session.commit("merged")
    assert get(repository.readonly_session("main").store, "g/a/c/5") == theirs


@pytest.mark.parametrize("data", [b"in", b"the same bytes", b"x" * 200])
def test_same_chunk_same_bytes(repository: Repository, data: bytes) -> None:
    """A task that ran twice wrote the same twice, and that is no conflict."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for fork in forks:
        put(fork.store, "g/a/c/5", data)
    put(session.store, "g/a/c/5", data)
    session.merge(*forks)
    assert get(session.store, "g/a/c/5") == data


def test_deleted_against_written(repository: Repository) -> None:
    """A chunk that one side deleted and the other wrote is a conflict; deleted twice is none."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    delete(forks[0].store, "g/a/c/0")
    delete(session.store, "g/a/c/0")
    session.merge(forks[0])
    assert get(session.store, "g/a/c/0") is None
    put(forks[1].store, "g/a/c/0", b"again")
    _assert_refused(session, forks[1], "/g/a", "[0]")


def test_both_created_the_same(repository: Repository) -> None:
    """Groups and arrays that all sides created from the same metadata are one node."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, one in enumerate([session, *forks]):
        put(one.store, "new/zarr.json", group(title="new"))
        put(one.store, "new/x/zarr.json", array((6,)))
        put(one.store, f"new/x/c/{number}", f"writer {number}".encode())
    node_id = session.get_node_id("new/x")
    session.merge(*forks)
    assert session.get_node_id("new/x") == node_id
    session.commit("merged")
    found = contents(repository.readonly_session("main").store)
    for number in range(3):
        assert found[f"new/x/c/{number}"] == f"writer {number}".encode()
    diff = repository.diff(from_snapshot_id=_parent(repository), to_branch="main")
    assert diff.new_arrays == {"/new/x"}
    assert diff.updated_chunks == {"/new/x": [[0], [1], [2]]}


def _parent(repository: Repository) -> str:
    return list(repository.ancestry(branch="main"))[1].id


_CONTRADICTIONS: dict[str, tuple[Change, Change, str]] = {
    "both update an array": (
        _put("g/a/zarr.json", array((8,), units="m")),
        _put("g/a/zarr.json", array((8,), units="km")),
        "/g/a",
    ),
    "both update a group": (
        _put("g/zarr.json", group(title="one")),
        _put("g/zarr.json", group(title="two")),
        "/g",
    ),
    "both create, differently": (
        _put("new/zarr.json", group(title="one")),
        _put("new/zarr.json", group(title="two")),
        "/new",
    ),
    "a group and an array": (
        _put("new/zarr.json", group()),
        _put("new/zarr.json", array((2,))),
        "/new",
    ),
    "we delete what the fork updates": (
        lambda store: delete_node(store, "g/a"),
        _put("g/a/zarr.json", array((8,), units="m")),
        "/g/a",
    ),
    "we update what the fork deletes": (
        _put("g/a/zarr.json", array((8,), units="m")),
        lambda store: delete_node(store, "g/a"),
        "/g/a",
    ),
    "we delete what the fork writes to": (
        lambda store: delete_node(store, "g/a"),
        _put("g/a/c/3", b"fork"),
        "/g/a",
    ),
    "we write to what the fork deletes": (
        _put("g/a/c/3", b"session"),
        lambda store: delete_node(store, "g/a"),
        "/g/a",
    ),
    "we write to what the fork recreates": (
        _put("g/a/c/3", b"session"),
        _all(lambda store: delete_node(store, "g/a"), _put("g/a/zarr.json", array((8,)))),
        "/g/a",
    ),
    "we recreate what the fork writes to": (
        _all(lambda store: delete_node(store, "g/a"), _put("g/a/zarr.json", array((8,)))),
        _put("g/a/c/3", b"fork"),
        "/g/a",
    ),
    "we delete a group that the fork creates in": (
        lambda store: delete_node(store, "h"),
        _put("h/new/zarr.json", group()),
        "/h",
    ),
    "we create in a group that the fork deletes": (
        _put("h/new/zarr.json", group()),
        lambda store: delete_node(store, "h"),
        "/h",
    ),
    "we make an array around what the fork creates": (
        _put("x/zarr.json", array((2,))),
        _put("x/y/zarr.json", group()),
        "/x",
    ),
    "the fork makes an array around what we create": (
        _put("x/y/zarr.json", group()),
        _put("x/zarr.json", array((2,))),
        "/x",
    ),
    "we shrink what the fork writes to": (
        _put("g/a/zarr.json", array((4,))),
        _put("g/a/c/6", b"fork"),
        "/g/a",
    ),
    "we write to what the fork shrinks": (
        _put("g/a/c/6", b"session"),
        _put("g/a/zarr.json", array((4,))),
        "/g/a",
    ),
    "we rechunk what the fork writes to": (
        _put("g/a/zarr.json", array((16,), (2,))),
        _put("g/a/c/6", b"fork"),
        "/g/a",
    ),
    "we write to what the fork rechunks": (
        _put("g/a/c/6", b"session"),
        _put("g/a/zarr.json", array((16,), (2,))),
        "/g/a",
    ),
}


@pytest.mark.parametrize("name", _CONTRADICTIONS)
def test_contradictions(repository: Repository, name: str) -> None:
    """On a conflict nothing is merged, and the error has the path."""
    ours, theirs, path = _CONTRADICTIONS[name]
    session = repository.writable_session("main")
    fork = session.fork()
    theirs(fork.store)
    ours(session.store)
    _assert_refused(session, fork, path)
    session.commit("ours alone")


_HARMONIES: dict[str, tuple[Change, Change]] = {
    "the same update": (
        _put("g/a/zarr.json", array((8,), units="m")),
        _put("g/a/zarr.json", array((8,), units="m")),
    ),
    "both delete": (
        lambda store: delete_node(store, "g"),
        lambda store: delete_node(store, "g"),
    ),
    "attributes here, chunks there": (
        _put("g/a/zarr.json", array((8,), units="m")),
        _put("g/a/c/3", b"fork"),
    ),
    "chunks here, attributes there": (
        _put("g/a/c/3", b"session"),
        _put("g/a/zarr.json", array((8,), units="m")),
    ),
    "growth here, chunks there": (
        _put("g/a/zarr.json", array((9,))),
        _put("g/a/c/3", b"fork"),
    ),
    "the fork rechunks and writes": (
        _put("b/c/1", b"session"),
        _all(_put("g/a/zarr.json", array((16,), (2,))), _put("g/a/c/3", b"fork")),
    ),
    "the fork writes and shrinks": (
        _put("b/c/1", b"session"),
        _all(_put("g/a/c/6", b"fork"), _put("g/a/zarr.json", array((4,)))),
    ),
    "the fork replaces a group by an array": (
        _put("b/c/1", b"session"),
        _all(lambda store: delete_node(store, "g"), _put("g/zarr.json", array((4,)))),
    ),
    "both create in a new group": (
        _all(_put("n/zarr.json", group()), _put("n/x/zarr.json", group())),
        _all(_put("n/zarr.json", group()), _put("n/y/zarr.json", group())),
    ),
}


@pytest.mark.parametrize("name", _HARMONIES)
def test_harmonies(repository: Repository, name: str) -> None:
    """What does not contradict ends as if one writer had done both, in either order."""
    ours, theirs = _HARMONIES[name]
    session = repository.writable_session("main")
    fork = session.fork()
    theirs(fork.store)
    ours(session.store)
    session.merge(fork)
    alone = repository.writable_session("main")
    _all(theirs, ours)(alone.store)
    assert contents(session.store) == contents(alone.store)
    session.commit("merged")
    assert contents(repository.readonly_session("main").store) == contents(alone.store)


def test_forks_of_dirty_sessions(repository: Repository) -> None:
    """A fork sees uncommitted changes, and changes of them are no conflicts."""
    session = repository.writable_session("main")
    put(session.store, "new/zarr.json", array((8,)))
    put(session.store, "new/c/0", b"session")
    put(session.store, "new/c/1", b"session")
    delete(session.store, "g/a/c/0")
    fork = session.fork()
    assert contents(fork.store) == contents(session.store)
    put(fork.store, "new/c/1", b"fork")
    put(fork.store, "new/c/2", b"fork")
    delete(fork.store, "new/c/0")
    put(fork.store, "g/a/c/0", b"fork")
    put(session.store, "new/c/3", b"session later")
    session.merge(fork)
    found = {key: value for key, value in contents(session.store).items() if "/c/" in key}
    assert found == {
        "new/c/1": b"fork",
        "new/c/2": b"fork",
        "new/c/3": b"session later",
        "g/a/c/0": b"fork",
    }
    session.commit("merged")
    after = contents(repository.readonly_session("main").store)
    assert {key: after[key] for key in after if "/c/" in key} == found


def test_forks_of_forks(repository: Repository) -> None:
    """Forks fork again, are merged into their own origin, and all of it into the session."""
    session = repository.writable_session("main")
    put(session.store, "b/c/0", b"session")
    fork = session.fork()
    put(fork.store, "b/c/1", b"fork")
    inner = fork.fork()
    assert get(inner.store, "b/c/1") == b"fork"
    put(inner.store, "b/c/2", b"inner")
    put(inner.store, "b/c/1", b"inner")
    fork.merge(inner)
    session.merge(fork)
    session.commit("merged")
    found = contents(repository.readonly_session("main").store)
    assert [found[f"b/c/{index}"] for index in range(3)] == [b"session", b"inner", b"inner"]


def test_forks_of_changes_that_are_not_here(repository: Repository) -> None:
    """A fork that saw more than the session has is refused, until the session has that too."""
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "b/c/1", b"fork")
    inner = fork.fork()
    put(inner.store, "b/c/2", b"inner")
    unrelated = repository.writable_session("main")
    for target in (session, unrelated):
        with pytest.raises(SessionStateError) as caught:
            target.merge(inner)
        assert caught.value.kind is ErrorKind.MERGE_NOT_ALLOWED
        assert not target.has_uncommitted_changes
    session.merge(fork, inner)
    assert (get(session.store, "b/c/1"), get(session.store, "b/c/2")) == (b"fork", b"inner")

    dirty = session.fork()
    put(dirty.store, "b/c/3", b"dirty")
    session.discard_changes()
    with pytest.raises(SessionStateError):
        session.merge(dirty)
    assert not session.has_uncommitted_changes


def test_forks_that_began_at_other_points(repository: Repository) -> None:
    """A fork takes no fork that saw other changes: their session takes both, in silence lost."""
    session = repository.writable_session("main")
    clean = session.fork()
    put(session.store, "b/c/0", b"first")
    early = session.fork()
    put(session.store, "b/c/0", b"second")
    late = session.fork()
    for number, fork in enumerate((clean, early, late)):
        put(fork.store, f"b/c/{number + 1}", f"fork {number}".encode())
    pairs = list(product((clean, early, late), repeat=2))
    for into, fork in pairs:
        if into is fork:
            continue
        before = contents(into.store)
        with pytest.raises(SessionStateError, match=r"session\.merge\(\*forks\)") as caught:
            into.merge(fork)
        assert caught.value.kind is ErrorKind.MERGE_NOT_ALLOWED
        assert contents(into.store) == before
    session.merge(clean, early, late)
    found = contents(session.store)
    assert [found[f"b/c/{index}"] for index in range(4)] == [
        b"second",
        b"fork 0",
        b"fork 1",
        b"fork 2",
    ]


def test_several_forks_all_or_none(repository: Repository) -> None:
    """Where one of several forks cannot be merged, none is: nodes, chunks and fork points."""
    session = repository.writable_session("main")
    put(session.store, "b/c/7", b"session")
    fork = session.fork()
    put(fork.store, "g/a/c/1", b"fork")
    put(fork.store, "b/c/1", b"fork")
    put(fork.store, "new/zarr.json", array((4,)))
    put(fork.store, "new/c/0", b"fork")
    delete(fork.store, "g/a/c/0")
    inner = fork.fork()
    wrong = session.fork()
    put(wrong.store, "b/c/1", b"wrong")
    before, status = contents(session.store), session.status()
    with pytest.raises(SessionStateError, match="nothing was merged"):
        session.merge(fork, wrong)
    assert contents(session.store) == before
    assert session.status() == status
    with pytest.raises(SessionStateError, match="started at"):
        session.merge(inner)
    put(session.store, "b/c/2", b"later")
    session.merge(fork, wrong, on_chunk_conflict=VersionSelection.UseOurs)
    session.commit("merged")
    found = contents(repository.readonly_session("main").store)
    assert (found["b/c/1"], found["b/c/2"], found["new/c/0"]) == (b"fork", b"later", b"fork")


@pytest.mark.parametrize("wrong", ["UseOurs", None, 1, True, BasicConflictSolver()])
def test_whose_chunk_counts_is_one_of_three(repository: Repository, wrong: Any) -> None:
    """An answer that is none of the three decides nothing, with or without a conflict."""
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "b/c/0", b"fork")
    for act in (
        lambda: session.merge(fork, on_chunk_conflict=wrong),
        lambda: session.merge(on_chunk_conflict=wrong),
        lambda: BasicConflictSolver(on_chunk_conflict=wrong),
    ):
        with pytest.raises(InvalidInputError, match=r"VersionSelection\.UseTheirs") as caught:
            act()
        assert caught.value.kind is ErrorKind.INVALID_COMMIT_CONFIGURATION
    assert not session.has_uncommitted_changes


def test_fork_of_another_repository(repository: Repository, generation: str) -> None:
    """A fork goes back into its own repository only."""
    other = Repository.create(MemoryStorage(), generation=generation)
    session, unrelated = repository.writable_session("main"), other.writable_session("main")
    put(unrelated.store, "zarr.json", group())
    with pytest.raises(SessionStateError, match="another repository, also at memory:") as caught:
        session.merge(unrelated.fork())
    assert caught.value.kind is ErrorKind.MERGE_NOT_ALLOWED
    with pytest.raises(SessionStateError, match="a read-only session") as caught:
        session.merge(repository.readonly_session("main"))
    assert caught.value.kind is ErrorKind.MERGE_NOT_ALLOWED
    assert not session.has_uncommitted_changes


def test_merge_of_another_session(repository: Repository) -> None:
    """It keeps its changes; a session merged into itself does not change."""
    session, other = repository.writable_session("main"), repository.writable_session("main")
    put(session.store, "ours/zarr.json", group())
    put(other.store, "theirs/zarr.json", group())
    session.merge(session, other)
    assert {"ours/zarr.json", "theirs/zarr.json"} <= contents(session.store).keys()
    assert other.has_uncommitted_changes
    session.commit("both")
    assert contents(repository.readonly_session("main").store) == contents(session.store)


def test_merge_into_a_newer_tip(repository: Repository) -> None:
    """A fork of an older snapshot is refused; merged where it belongs, it is rebased."""
    older = repository.writable_session("main")
    fork = older.fork()
    put(fork.store, "b/c/0", b"fork")
    other = repository.writable_session("main")
    put(other.store, "b/c/1", b"other")
    other.commit("other")
    newer = repository.writable_session("main")
    with pytest.raises(ConflictError) as caught:
        newer.merge(fork)
    assert caught.value.expected_parent == older.snapshot_id
    assert caught.value.actual_parent == newer.snapshot_id
    assert not newer.has_uncommitted_changes
    older.merge(fork)
    older.commit("merged", rebase_with=BasicConflictSolver())
    found = contents(repository.readonly_session("main").store)
    assert (found["b/c/0"], found["b/c/1"]) == (b"fork", b"other")


def test_what_forks_may_not(repository: Repository) -> None:
    """Forks do not commit, amend or rebase; readers and movers do not fork; readers take none."""
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "b/c/0", b"fork")
    for act in (
        lambda: fork.commit("no"),
        lambda: fork.amend("no"),
        lambda: fork.rebase(BasicConflictSolver()),
    ):
        with pytest.raises(SessionStateError) as caught:
            act()
        assert caught.value.kind is ErrorKind.COMMIT_NOT_ALLOWED
    assert fork.branch is None
    assert fork.has_uncommitted_changes
    reader = repository.readonly_session("main")
    with pytest.raises(SessionStateError) as caught:
        reader.fork()
    assert caught.value.kind is ErrorKind.CANNOT_FORK_READ_ONLY_SESSION
    with pytest.raises(ReadOnlyError):
        reader.merge(fork)
    mover = repository.rearrange_session("main")
    for refused in (mover.fork, lambda: mover.merge(fork)):
        with pytest.raises(SessionStateError) as caught:
            refused()
        assert caught.value.kind is ErrorKind.NON_REARRANGE_SESSION


def test_forks_of_clean_sessions_write_nothing(generation: str) -> None:
    """A fork without uncommitted changes costs no request; of a dirty one, no commit is seen."""
    storage = CountingStorage(MemoryStorage())
    repository = Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    storage.forget()
    session.fork()
    assert storage.calls == ()
    put(session.store, "zarr.json", group())
    session.fork()
    assert [find_kind(key, generation) for key in storage.keys("put")] == ["snapshots"]
    assert len(list(repository.ancestry(branch="main"))) == 1


@pytest.mark.parametrize("config", [_NATIVE, _PACKED], ids=["plain", "packed"])
def test_forks_pickle_and_writable_sessions_do_not(
    tmp_path: Path, config: RepositoryConfig, generation: str
) -> None:
    """A fork is pickled with its changes; a writable session must be forked."""
    repository = _begin(Repository.create(LocalStorage(tmp_path), config, generation=generation))
    session = repository.writable_session("main")
    fork = session.fork()
    put(fork.store, "b/c/0", b"one")
    put(fork.store, "b/c/1", b"native")
    delete_node(fork.store, "g")
    clone = pickle.loads(pickle.dumps(fork))  # noqa: S301
    assert isinstance(clone, ForkSession)
    assert contents(clone.store) == contents(fork.store)
    assert clone.status() == fork.status()
    put(clone.store, "b/c/2", b"clone")
    assert get(fork.store, "b/c/2") is None
    with pytest.raises(ValueError, match="fork"):
        pickle.dumps(session)
    reader = pickle.loads(pickle.dumps(repository.readonly_session("main")))  # noqa: S301
    assert contents(reader.store) == contents(repository.readonly_session("main").store)


@pytest.mark.parametrize(
    "config, generation", [(_NATIVE, "v1"), (_PACKED, "v2")], ids=["plain v1", "packed v2"]
)
def test_forks_come_back_from_other_processes(
    tmp_path: Path, config: RepositoryConfig, generation: str
) -> None:
    """Two real processes write through forks of a dirty session; the merge has everything."""
    repository = Repository.create(LocalStorage(tmp_path / "repo"), config, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((8,)))
    put(session.store, "a/c/0", b"session")
    forks = []
    for number in (1, 2):
        source, target = tmp_path / f"{number}.in", tmp_path / f"{number}.out"
        source.write_bytes(pickle.dumps(session.fork()))
        script = SUPPORT / "fork_writer.py"
        pairs = [f"a/c/{number}", f"process {number}", f"a/c/{number + 4}", "x"]
        done = warm_python.run(sys.executable, script, source, target, *pairs)
        assert done.returncode == 0, done.stderr
        forks.append(pickle.loads(target.read_bytes()))  # noqa: S301
    session.merge(*forks)
    session.commit("merged")
    reader = Repository.open(LocalStorage(tmp_path / "repo")).readonly_session("main")
    found = contents(reader.store)
    assert {key: found[key] for key in found if "/c/" in key} == {
        "a/c/0": b"session",
        "a/c/1": b"process 1",
        "a/c/2": b"process 2",
        "a/c/5": b"x",
        "a/c/6": b"x",
    }


def test_zarr_writes_through_forks(generation: str) -> None:
    """Arrays that zarr writes region by region through forks have all regions."""
    repository = Repository.create(MemoryStorage(), generation=generation)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(20,), chunks=(5,), dtype="i4")
    forks = [session.fork() for _ in range(4)]
    for number, fork in enumerate(forks):
        region = zarr.open_array(fork.store, path="x")
        region[number * 5 : number * 5 + 5] = np.arange(5) + number * 5
    session.merge(*forks)
    session.commit("all")
    found = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")
    np.testing.assert_array_equal(np.asarray(found[:]), np.arange(20))
