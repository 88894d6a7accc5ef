"""What sessions may do and may not, and that what they refuse changes and writes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from zarr.core.sync import sync

from icefloe.conflicts import BasicConflictSolver, ConflictDetector
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.generation import get_generation
from icefloe.model.config import RepositoryConfig
from icefloe.model.virtual_chunk_spec import VirtualChunkSpec
from icefloe.repository import Repository
from icefloe.snapshots import Diff
from icefloe.storage import MemoryStorage
from icefloe.types import ChunkType, SessionMode
from support.counting_storage import CountingStorage
from support.generations import WITHOUT_REPO_INFO
from support.zarr_nodes import array, contents, delete, delete_node, get, group, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage(MemoryStorage())


@pytest.fixture
def repository(storage: CountingStorage, generation: str) -> Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=5)
    repository = Repository.create(storage, config, generation=generation)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "g/zarr.json", group())
    put(session.store, "g/a/zarr.json", array((8,)))
    put(session.store, "g/a/c/0", b"native")
    put(session.store, "g/a/c/1", b"in")
    session.commit("begin")
    return repository


_WRITES: dict[str, Callable[[Session], object]] = {
    "set metadata": lambda session: put(session.store, "x/zarr.json", group()),
    "set a chunk": lambda session: put(session.store, "g/a/c/0", b"x"),
    "delete a chunk": lambda session: delete(session.store, "g/a/c/0"),
    "delete a node": lambda session: delete_node(session.store, "g"),
    "clear": lambda session: session.store.sync_clear(),
    "set a virtual reference": lambda session: session.store.set_virtual_ref(
        "g/a/c/0", "s3://b/k", offset=0, length=1, validate_container=False
    ),
    "shift": lambda session: session.shift_array("/g/a", [1]),
    "reindex": lambda session: session.reindex_array("/g/a", lambda index: index),
}

_ENDS: dict[str, Callable[[Session], object]] = {
    "commit": lambda session: session.commit("no", allow_empty=True),
    "amend": lambda session: session.amend("no", allow_empty=True),
    "flush": lambda session: session.flush("no"),
    "rebase": lambda session: session.rebase(BasicConflictSolver()),
    "discard": lambda session: session.discard_changes(),
    "move": lambda session: session.move("/g", "/h"),
    "rewrite": lambda session: session.rewrite_manifests("no"),
}


def _assert_refused(
    session: Session,
    storage: CountingStorage,
    act: Callable[[Session], object],
    error: type[IcefloeError],
    kind: ErrorKind,
) -> None:
    """Check that a call is refused with its kind, writes nothing and leaves all as it was."""
    before = contents(session.store), session.snapshot_id, session.mode, session.branch
    has_changes = session.has_uncommitted_changes
    storage.forget()
    with pytest.raises(error) as caught:
        act(session)
    assert caught.value.kind is kind
    assert not [call for call in storage.calls if call.name.startswith(("put", "delete", "copy"))]
    assert (contents(session.store), session.snapshot_id, session.mode, session.branch) == before
    assert session.has_uncommitted_changes == has_changes


@pytest.mark.parametrize("name", [*_WRITES, *_ENDS])
@pytest.mark.parametrize("how", ["opened so", "committed", "flushed"])
def test_read_only(repository: Repository, storage: CountingStorage, name: str, how: str) -> None:
    """A session that was opened to read, or that became a commit, refuses everything."""
    if how == "opened so":
        session = repository.readonly_session("main")
    else:
        session = repository.writable_session("main")
        put(session.store, "g/a/c/2", b"x")
        session.commit("done") if how == "committed" else session.flush("done")
    assert session.read_only
    assert session.mode is SessionMode.readonly
    assert session.branch is None
    act = {**_WRITES, **_ENDS}[name]
    _assert_refused(session, storage, act, ReadOnlyError, ErrorKind.READ_ONLY_SESSION)


@pytest.mark.parametrize("name", _WRITES)
def test_rearrange_sessions_only_move(
    repository: Repository, storage: CountingStorage, name: str
) -> None:
    """A session that moves nodes takes no writes."""
    session = repository.rearrange_session("main")
    kind = ErrorKind.NON_REARRANGE_SESSION
    _assert_refused(session, storage, _WRITES[name], SessionStateError, kind)


def test_writable_sessions_do_not_move(repository: Repository, storage: CountingStorage) -> None:
    """A session that writes moves no nodes, and says which does."""
    session = repository.writable_session("main")
    put(session.store, "g/a/c/2", b"x")
    kind = ErrorKind.REARRANGE_SESSION_ONLY
    _assert_refused(session, storage, _ENDS["move"], SessionStateError, kind)


def test_stale_sessions(repository: Repository, storage: CountingStorage) -> None:
    """A session whose branch went on cannot commit, keeps its changes, and moves no branch."""
    session, other = (repository.writable_session("main") for _ in range(2))
    put(session.store, "g/a/c/2", b"mine")
    put(other.store, "g/a/c/3", b"theirs")
    tip = other.commit("theirs")
    before = contents(session.store)
    can_amend = get_generation(repository.generation).has_repo_info
    for act in (_ENDS["commit"], *([_ENDS["amend"]] if can_amend else [])):
        with pytest.raises(ConflictError) as caught:
            act(session)
        assert caught.value.kind is ErrorKind.COMMIT_CONFLICT
        assert caught.value.actual_parent == tip
        assert contents(session.store) == before
        assert session.has_uncommitted_changes
        assert repository.lookup_branch("main") == tip
    assert contents(repository.readonly_session("main").store)["g/a/c/3"] == b"theirs"


def test_stale_sessions_write_nothing(repository: Repository, storage: CountingStorage) -> None:
    """A commit that must fail writes no files; the session can still be rebased and committed."""
    session, other = (repository.writable_session("main") for _ in range(2))
    put(session.store, "g/a/c/2", b"mine")
    put(other.store, "g/a/c/3", b"theirs")
    other.commit("theirs")
    _assert_refused(session, storage, _ENDS["commit"], ConflictError, ErrorKind.COMMIT_CONFLICT)
    session.rebase(ConflictDetector())
    session.commit("mine")
    found = contents(repository.readonly_session("main").store)
    assert (found["g/a/c/2"], found["g/a/c/3"]) == (b"mine", b"theirs")


def test_nothing_to_commit(repository: Repository, storage: CountingStorage) -> None:
    """Without changes a commit is refused, unless it is asked for; what changes nothing is none."""
    session = repository.writable_session("main")
    put(session.store, "g/zarr.json", group())
    put(session.store, "new/zarr.json", group())
    delete_node(session.store, "new")
    delete(session.store, "g/a/c/7")
    assert not session.has_uncommitted_changes
    assert session.status().is_empty()
    kind = ErrorKind.NO_CHANGES_TO_COMMIT
    _assert_refused(session, storage, lambda one: one.commit("none"), SessionStateError, kind)
    parent = session.snapshot_id
    tip = session.commit("none", allow_empty=True)
    assert repository.lookup_snapshot(tip).parent_id == parent
    assert repository.diff(from_snapshot_id=parent, to_snapshot_id=tip).is_empty()


def test_commit_twice(repository: Repository) -> None:
    """A committed session shows its commit, whatever others commit afterwards, and is done."""
    session = repository.writable_session("main")
    put(session.store, "g/a/c/2", b"mine")
    tip = session.commit("mine")
    assert session.snapshot_id == tip == repository.lookup_branch("main")
    assert not session.has_uncommitted_changes
    with pytest.raises(ReadOnlyError):
        session.commit("again")
    other = repository.writable_session("main")
    put(other.store, "g/a/c/2", b"other")
    other.commit("other")
    assert get(session.store, "g/a/c/2") == b"mine"


def test_isolation(repository: Repository) -> None:
    """Uncommitted changes are invisible, and an open session never sees later commits."""
    reader, writer = repository.readonly_session("main"), repository.writable_session("main")
    put(writer.store, "g/a/c/0", b"changed")
    delete(writer.store, "g/a/c/1")
    put(writer.store, "x/zarr.json", group())
    before = contents(reader.store)
    assert contents(repository.readonly_session("main").store) == before
    writer.commit("changed")
    assert contents(reader.store) == before
    assert contents(repository.readonly_session("main").store) == contents(writer.store) != before


def test_status(repository: Repository) -> None:
    """Status tells every kind of change, and is what the commit's diff tells afterwards."""
    session = repository.writable_session("main")
    put(session.store, "old/zarr.json", array((4,)))
    put(session.store, "oldgroup/zarr.json", group())
    session.commit("more")
    session = repository.writable_session("main")
    put(session.store, "x/zarr.json", group())
    put(session.store, "x/y/zarr.json", array((2, 2)))
    put(session.store, "x/y/c/1/0", b"x")
    put(session.store, "g/zarr.json", group(title="g"))
    put(session.store, "g/a/zarr.json", array((9,)))
    put(session.store, "g/a/c/8", b"x")
    delete(session.store, "g/a/c/0")
    delete_node(session.store, "old")
    delete_node(session.store, "oldgroup")
    expected = Diff(
        new_groups={"/x"},
        new_arrays={"/x/y"},
        deleted_groups={"/oldgroup"},
        deleted_arrays={"/old"},
        updated_groups={"/g"},
        updated_arrays={"/g/a"},
        updated_chunks={"/x/y": [[1, 0]], "/g/a": [[0], [8]]},
    )
    assert session.status() == expected
    parent = session.snapshot_id
    tip = session.commit("all of it")
    assert repository.diff(from_snapshot_id=parent, to_snapshot_id=tip) == expected


def test_recreated_nodes(repository: Repository) -> None:
    """A node that was deleted and made again is another, without the chunks of the first."""
    session = repository.writable_session("main")
    before = session.get_node_id("/g/a")
    delete_node(session.store, "g/a")
    put(session.store, "g/a/zarr.json", array((8,)))
    assert session.get_node_id("/g/a") != before
    status = session.status()
    assert (status.new_arrays, status.deleted_arrays) == ({"/g/a"}, {"/g/a"})
    session.commit("again")
    found = contents(repository.readonly_session("main").store)
    assert not [key for key in found if key.startswith("g/a/c")]


def test_discard(repository: Repository) -> None:
    """After discarding, everything is as at the beginning, and the session goes on."""
    session = repository.writable_session("main")
    before = contents(session.store)
    put(session.store, "x/zarr.json", group())
    put(session.store, "g/a/c/0", b"changed")
    delete(session.store, "g/a/c/1")
    delete_node(session.store, "g")
    session.discard_changes()
    assert contents(session.store) == before
    assert not session.has_uncommitted_changes
    put(session.store, "g/a/c/2", b"later")
    session.commit("later")
    assert contents(repository.readonly_session("main").store) == {**before, "g/a/c/2": b"later"}


def test_metadata(repository: Repository) -> None:
    """A commit has its message and metadata, and those that all commits of the process have."""
    repository.set_default_commit_metadata({"author": "me", "level": 1})
    session = repository.writable_session("main")
    put(session.store, "g/a/c/2", b"x")
    tip = session.commit("a message", {"level": 2, "nested": {"list": [1, None, "é"]}})
    info = repository.lookup_snapshot(tip)
    assert info.message == "a message"
    assert info.metadata == {"author": "me", "level": 2, "nested": {"list": [1, None, "é"]}}
    assert repository.default_commit_metadata() == {"author": "me", "level": 1}
    assert [info.message for info in repository.ancestry(branch="main")] == [
        "a message",
        "begin",
        "Repository initialized",
    ]


def test_amend() -> None:
    """An amended commit takes the place of the last, with the changes of both."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4,)))
    with pytest.raises(SessionStateError) as caught:
        session.amend("the first")
    assert caught.value.kind is ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT
    first = session.commit("first")
    session = repository.writable_session("main")
    put(session.store, "a/c/0", b"second")
    second = session.commit("second")
    session = repository.writable_session("main")
    put(session.store, "a/c/1", b"amended")
    put(session.store, "b/zarr.json", group())
    amended = session.amend("amended", metadata={"why": "better"})
    history = list(repository.ancestry(branch="main"))
    assert [info.id for info in history][:2] == [amended, first]
    assert (history[0].message, history[0].metadata) == ("amended", {"why": "better"})
    diff = repository.diff(from_snapshot_id=first, to_snapshot_id=amended)
    assert diff.updated_chunks == {"/a": [[0], [1]]}
    assert diff.new_groups == {"/b"}
    assert contents(repository.readonly_session("main").store) == {
        "a/zarr.json": array((4,)),
        "a/c/0": b"second",
        "a/c/1": b"amended",
        "b/zarr.json": group(),
    }
    # What was amended can still be read by its id, and nothing of it changed.
    older = contents(repository.readonly_session(snapshot_id=second).store)
    assert "a/c/1" not in older


@pytest.mark.parametrize("how", ["commit", "amend"])
def test_another_number_of_dimensions(how: str) -> None:
    """An array that gets one starts without chunks; history tells of the old and the new ones."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    first = repository.lookup_branch("main")
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4,)))
    put(session.store, "a/c/2", b"old")
    session.commit("a line")
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4, 4)))
    put(session.store, "a/c/0/1", b"new")
    getattr(session, how)("a square")
    tip = repository.readonly_session("main")
    assert contents(tip.store) == {"a/zarr.json": array((4, 4)), "a/c/0/1": b"new"}
    found = repository.diff(from_snapshot_id=first, to_branch="main").updated_chunks
    assert found == {"/a": [[0, 1], [2]] if how == "commit" else [[0, 1]]}


@pytest.mark.parametrize("generation", WITHOUT_REPO_INFO)
def test_amend_needs_version_2(generation: str) -> None:
    """Other generations cannot amend, and say so before they write anything."""
    storage = CountingStorage(MemoryStorage())
    session = Repository.create(storage, generation=generation).writable_session("main")
    put(session.store, "zarr.json", group())
    kind = ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
    _assert_refused(session, storage, _ENDS["amend"], FormatError, kind)


def test_rebase_onto_an_amended_commit() -> None:
    """The log of an amended commit has the changes of both, so that none is overlooked."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4,)))
    session.commit("first")
    mine = repository.writable_session("main")
    put(mine.store, "a/c/0", b"mine")
    for number, end in enumerate(["commit", "amend"]):
        session = repository.writable_session("main")
        put(session.store, f"a/c/{number}", b"theirs")
        getattr(session, end)(end)
    with pytest.raises(RebaseFailedError) as caught:
        mine.rebase(ConflictDetector())
    assert [conflict.conflicted_chunks for conflict in caught.value.conflicts] == [[[0]]]


def test_flush(repository: Repository) -> None:
    """A flushed snapshot can be read and branched from, and no branch shows it."""
    session = repository.writable_session("main")
    base = session.snapshot_id
    put(session.store, "g/a/c/2", b"flushed")
    expected = contents(session.store)
    flushed = session.flush("flushed", metadata={"a": 1})
    assert repository.lookup_branch("main") == base
    assert contents(repository.readonly_session(snapshot_id=flushed).store) == expected
    assert contents(session.store) == expected
    info = next(repository.ancestry(snapshot_id=flushed))
    assert (info.parent_id, info.message, info.metadata) == (base, "flushed", {"a": 1})
    repository.create_branch("flushed", flushed)
    assert contents(repository.readonly_session("flushed").store) == expected


def test_transaction(repository: Repository) -> None:
    """A block of writes is one commit at its end, and none if it raises."""
    before = repository.lookup_branch("main")
    with repository.transaction("main", message="block", metadata={"n": 1}) as store:
        put(store, "g/a/c/2", b"x")
        put(store, "g/a/c/3", b"x")
    history = list(repository.ancestry(branch="main"))
    assert (history[0].message, history[0].metadata) == ("block", {"n": 1})
    assert history[0].parent_id == before

    def stop_halfway() -> None:
        with repository.transaction("main", message="never") as store:
            put(store, "g/a/c/2", b"y")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        stop_halfway()
    assert repository.lookup_branch("main") == history[0].id
    assert get(repository.readonly_session("main").store, "g/a/c/2") == b"x"


def test_transaction_rebases(repository: Repository) -> None:
    """A block with a solver is committed on top of what others committed meanwhile."""
    solver = BasicConflictSolver()
    with repository.transaction("main", message="outer", rebase_with=solver) as store:
        put(store, "g/a/c/2", b"outer")
        with repository.transaction("main", message="inner") as inner:
            put(inner, "g/a/c/3", b"inner")
    found = contents(repository.readonly_session("main").store)
    assert (found["g/a/c/2"], found["g/a/c/3"]) == (b"outer", b"inner")


def test_as_of(repository: Repository) -> None:
    """A time finds the last commit before it, and one before all commits finds none."""
    for number in range(3):
        with repository.transaction("main", message=str(number)) as store:
            put(store, "g/a/c/2", str(number).encode())
    history = list(repository.ancestry(branch="main"))
    for newer, info in zip([None, *history], history, strict=False):
        moments = [info.written_at]
        if newer is not None:
            moments.append(newer.written_at - timedelta(microseconds=1))
        for moment in moments:
            assert repository.readonly_session("main", as_of=moment).snapshot_id == info.id
    before_all = history[-1].written_at - timedelta(microseconds=1)
    with pytest.raises(SnapshotNotFoundError) as caught:
        repository.readonly_session("main", as_of=before_all)
    assert caught.value.kind is ErrorKind.NO_SNAPSHOT_AT_TIME
    now = datetime.now(UTC)
    for arguments in (
        {"tag": "v1", "as_of": now},
        {"snapshot_id": history[0].id, "as_of": now},
        {"branch": "main", "as_of": datetime(2026, 1, 1)},  # noqa: DTZ001 - the mistake it is about
        {},
        {"branch": "main", "tag": "v1"},
    ):
        with pytest.raises(InvalidInputError) as wrong:
            repository.readonly_session(**arguments)
        assert wrong.value.kind is ErrorKind.INVALID_REF_TYPE


def test_chunk_types_and_coordinates(repository: Repository) -> None:
    """Each chunk tells where its bytes are, committed or not, and the written ones are listed."""
    session = repository.writable_session("main")
    put(session.store, "g/a/c/2", b"native!")
    put(session.store, "g/a/c/3", b"in")
    session.store.set_virtual_ref(
        "g/a/c/4", "s3://bucket/key", offset=1, length=2, validate_container=False
    )
    delete(session.store, "g/a/c/1")
    types = [
        ChunkType.native,
        ChunkType.uninitialized,
        ChunkType.native,
        ChunkType.inline,
        ChunkType.virtual,
        ChunkType.uninitialized,
    ]

    def check(one: Session) -> None:
        assert [one.chunk_type("/g/a", [index]) for index in range(6)] == types
        assert one.chunk_type("g/a", [99]) is ChunkType.uninitialized
        assert sorted(_coordinates(one, "/g/a")) == [(0,), (2,), (3,), (4,)]
        assert one.all_virtual_chunk_locations() == ["s3://bucket/key"]
        with pytest.raises(NotFoundError) as missing:
            one.chunk_type("/nothing", [0])
        assert missing.value.kind is ErrorKind.NODE_NOT_FOUND
        with pytest.raises(InvalidInputError) as wrong:
            one.chunk_type("/g", [0])
        assert wrong.value.kind is ErrorKind.NOT_AN_ARRAY

    check(session)
    session.commit("types")
    check(repository.readonly_session("main"))


def _coordinates(session: Session, path: str) -> list[tuple[int, ...]]:
    async def collect() -> list[tuple[int, ...]]:
        return [indices async for indices in session.chunk_coordinates(path, batch_size=2)]

    return sync(collect())


def test_repeated_virtual_references(repository: Repository) -> None:
    """Of references to one chunk in the same call the last one counts."""
    session = repository.writable_session("main")
    specs = [
        VirtualChunkSpec([index], f"s3://bucket/{name}", 0, 1)
        for name, index in (("one", 3), ("two", 2), ("three", 3))
    ]
    session.store.set_virtual_refs("/g/a", specs, validate_containers=False)
    assert sorted(session.all_virtual_chunk_locations()) == ["s3://bucket/three", "s3://bucket/two"]
    tip = session.commit("virtual")
    reader = repository.readonly_session(snapshot_id=tip)
    assert sorted(reader.all_virtual_chunk_locations()) == ["s3://bucket/three", "s3://bucket/two"]


def test_outside_the_grid(repository: Repository) -> None:
    """A chunk outside the grid cannot be written; to read or delete it is no error."""
    session = repository.writable_session("main")
    for key in ("g/a/c/8", "g/a/c/0/0", "g/a/c"):
        with pytest.raises(InvalidInputError) as caught:
            put(session.store, key, b"x")
        assert caught.value.kind is ErrorKind.INVALID_CHUNK_INDEX
        assert get(session.store, key) is None
        delete(session.store, key)
    with pytest.raises(InvalidInputError) as caught:
        put(session.store, "g/a/c/0", b"")
    assert caught.value.kind is ErrorKind.ZERO_LENGTH_CHUNK
    with pytest.raises(NotFoundError) as missing:
        put(session.store, "nothing/c/0", b"x")
    assert missing.value.kind is ErrorKind.NODE_NOT_FOUND
    assert not session.has_uncommitted_changes


def test_zarr_end_to_end(repository: Repository) -> None:
    """What zarr writes, appends and resizes in several commits is what it reads from each."""
    session = repository.writable_session("main")
    made = zarr.create_array(session.store, name="z", shape=(6,), chunks=(2,), dtype="i4")
    made[:] = [1, 2, 3, 4, 5, 6]
    first = session.commit("six")
    session = repository.writable_session("main")
    opened = zarr.open_array(session.store, path="z")
    opened.append([7, 8, 9])
    second = session.commit("nine")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="z").resize((3,))
    third = session.commit("three")
    for tip, expected in ((first, 6), (second, 9), (third, 3)):
        store = repository.readonly_session(snapshot_id=tip).store
        found: Any = zarr.open_array(store, path="z", mode="r")[:]
        assert found.tolist() == list(range(1, expected + 1))


def test_error_for_a_missing_path_suggests_the_nearest_or_lists_siblings(generation: str) -> None:
    repository = Repository.create(MemoryStorage(), generation=generation)
    with repository.transaction("main", message="some") as store:
        for name in ("air", "rain/day", "rain/night"):
            zarr.create_array(store, name=name, shape=(1,), dtype="i4")
    session = repository.readonly_session("main")
    for path, there in (
        ("/ari", r"did you mean /air\?"),
        ("/rain/dya/x", r"did you mean /rain/day\?"),
        ("/snow", "/ contains air, rain"),
        ("/rain/dusk", "/rain contains day, night"),
    ):
        with pytest.raises(NodeNotFoundError, match=there):
            session.get_node_id(path)
