"""Nodes and chunks that change places: moves of nodes, shifts and new indices of chunks."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.assets import Assets
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    SessionStateError,
)
from icefloe.format.generation import get_generation
from icefloe.model.config import RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.model.manifest_config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.repository import Repository
from icefloe.storage import LocalStorage, MemoryStorage
from icefloe.transaction.commit_log import fetch_commit_logs
from support.counting_storage import CountingStorage
from support.generations import GENERATION_NAMES, find_kind
from support.zarr_nodes import array, chunk_key, contents, delete, group, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from icefloe.session import Session

Coords = tuple[int, ...]


@pytest.fixture(params=GENERATION_NAMES)
def repository(request: pytest.FixtureRequest) -> Repository:
    repository = Repository.create(CountingStorage(MemoryStorage()), generation=request.param)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    for path in ("g", "g/inner", "h"):
        put(session.store, f"{path}/zarr.json", group(path=path))
    for path in ("g/a", "g/inner/b", "c"):
        put(session.store, f"{path}/zarr.json", array((4,), path=path))
        put(session.store, f"{path}/c/1", path.encode())
    session.commit("begin")
    return repository


def _log_moves(repository: Repository, snapshot_id: str) -> list[tuple[str, str]]:
    assets = Assets(repository.storage, get_generation(repository.generation))
    parent_id = SnapshotId.parse(str(repository.lookup_snapshot(snapshot_id).parent_id))
    (log,) = fetch_commit_logs(assets, [(SnapshotId.parse(snapshot_id), parent_id)])
    return [(str(move.from_path), str(move.to_path)) for move in log.moved_nodes]


def test_move(repository: Repository) -> None:
    """A node goes with everything below it, keeps ids and chunks, and is recorded as moved."""
    session = repository.rearrange_session("main")
    before = contents(session.store)
    ids = {path: session.get_node_id(path) for path in ("g", "g/a", "g/inner/b")}
    storage = repository.storage
    assert isinstance(storage, CountingStorage)
    session.move("/g", "/h/moved")
    expected = {
        ("h/moved" + key[1:] if key.startswith("g/") else key): value
        for key, value in before.items()
    }
    moves = [
        ("/g", "/h/moved"),
        ("/g/a", "/h/moved/a"),
        ("/g/inner", "/h/moved/inner"),
        ("/g/inner/b", "/h/moved/inner/b"),
    ]
    assert contents(session.store) == expected
    assert session.status().moved_nodes == moves
    assert {path: session.get_node_id("h/moved" + path[1:]) for path in ids} == ids
    storage.forget()
    tip = session.commit("moved")
    # No chunk and no manifest was written, or read.
    touched = storage.keys()
    assert not [
        key for key in touched if find_kind(key, repository.generation) in {"chunks", "manifests"}
    ]
    assert contents(Repository.open(storage.inner).readonly_session("main").store) == expected
    assert _log_moves(repository, tip) == moves
    diff = repository.diff(from_snapshot_id=_parent(repository), to_snapshot_id=tip)
    assert diff.moved_nodes == moves
    assert not diff.new_groups | diff.new_arrays | diff.deleted_groups | diff.deleted_arrays
    assert not diff.updated_arrays
    assert not diff.updated_chunks


def _parent(repository: Repository) -> str:
    return list(repository.ancestry(branch="main"))[1].id


def test_icechunk_and_moves_in_version_1(tmp_path: Path) -> None:
    """Icechunk finds what moved where it is now; only Icechunk 2 knows that it moved."""
    ours = Repository.create(LocalStorage(tmp_path))
    session = ours.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", array((4,)))
    put(session.store, "a/c/1", b"chunk")
    before = session.commit("begin")
    rearranged = ours.rearrange_session("main")
    rearranged.move("/a", "/b")
    after = rearranged.commit("moved")
    theirs: Any = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    found = contents(theirs.readonly_session("main").store)
    assert found == {"zarr.json": group(), "b/zarr.json": array((4,)), "b/c/1": b"chunk"}
    diff = theirs.diff(from_snapshot_id=before, to_snapshot_id=after)
    if icechunk.__version__.startswith("1."):
        assert not str(diff).strip()
    else:
        assert diff.moved_nodes == [("/a", "/b")]


def test_net_effect(repository: Repository) -> None:
    """Several moves in one session are recorded as one, and back and forth as none."""
    session = repository.rearrange_session("main")
    session.move("/c", "/h/x")
    session.move("/h/x", "/h/y")
    session.move("/h", "/k")
    assert session.status().moved_nodes == [("/h", "/k"), ("/c", "/k/y")]
    session.move("/k/y", "/c")
    session.move("/k", "/h")
    assert not session.has_uncommitted_changes
    with pytest.raises(SessionStateError) as caught:
        session.commit("nothing")
    assert caught.value.kind is ErrorKind.NO_CHANGES_TO_COMMIT


def test_swap(repository: Repository) -> None:
    """Two nodes that change places are both at the other's place, with their own ids."""
    session = repository.rearrange_session("main")
    one, other = session.get_node_id("/c"), session.get_node_id("/g/a")
    session.move("/c", "/h/tmp")
    session.move("/g/a", "/c")
    session.move("/h/tmp", "/g/a")
    tip = session.commit("swapped")
    assert _log_moves(repository, tip) == [("/g/a", "/c"), ("/c", "/g/a")]
    reader = repository.readonly_session("main")
    assert (reader.get_node_id("/g/a"), reader.get_node_id("/c")) == (one, other)
    found = contents(reader.store)
    assert (found["c/c/1"], found["g/a/c/1"]) == (b"g/a", b"c")


_REFUSED: list[tuple[str, str, type[IcefloeError], ErrorKind]] = [
    ("/nothing", "/x", NotFoundError, ErrorKind.NODE_NOT_FOUND),
    ("/g", "/g", SessionStateError, ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT),
    ("/g", "/g/inner/x", SessionStateError, ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT),
    ("/", "/x", SessionStateError, ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT),
    ("/g", "/h", AlreadyExistsError, ErrorKind.MOVE_WONT_OVERWRITE),
    ("/g/a", "/c", AlreadyExistsError, ErrorKind.MOVE_WONT_OVERWRITE),
    ("/g", "/", AlreadyExistsError, ErrorKind.MOVE_WONT_OVERWRITE),
    ("/g", "/missing/x", SessionStateError, ErrorKind.MOVE_DESTINATION_PARENT_MISSING),
    ("/g", "/c/x", SessionStateError, ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP),
    ("/g", "/zarr.json", InvalidInputError, ErrorKind.INVALID_PATH),
    ("/c", "/h/zarr.json", InvalidInputError, ErrorKind.INVALID_PATH),
]


@pytest.mark.parametrize("source, target, error, kind", _REFUSED)
def test_refused_moves(
    repository: Repository, source: str, target: str, error: type[IcefloeError], kind: ErrorKind
) -> None:
    """A move that cannot be is refused with its kind, and changes nothing."""
    session = repository.rearrange_session("main")
    before = contents(session.store)
    with pytest.raises(error) as caught:
        session.move(source, target)
    assert caught.value.kind is kind
    assert contents(session.store) == before
    assert not session.has_uncommitted_changes


def test_moved_arrays_are_written_afterwards(repository: Repository) -> None:
    """A moved array takes writes and deletions at its new place in the next commit."""
    session = repository.rearrange_session("main")
    session.move("/g/a", "/h/a")
    session.commit("moved")
    session = repository.writable_session("main")
    put(session.store, "h/a/c/2", b"new")
    delete(session.store, "h/a/c/1")
    session.commit("written")
    found = contents(repository.readonly_session("main").store)
    assert {key: found[key] for key in found if key.startswith("h/a/c")} == {"h/a/c/2": b"new"}


def test_forbidden_by_a_flag() -> None:
    """Version 2 can forbid moves for a repository."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    repository.set_feature_flag("move_node", False)
    with pytest.raises(SessionStateError) as caught:
        repository.rearrange_session("main")
    assert caught.value.kind is ErrorKind.FEATURE_FLAG_DISABLED


def test_amending_moves() -> None:
    """A commit that moved nodes is amended in a rearrange session alone, with the net effect."""
    repository = Repository.create(MemoryStorage(), spec_version=2)
    session = repository.writable_session("main")
    put(session.store, "zarr.json", group())
    put(session.store, "a/zarr.json", group())
    session.commit("begin")
    mover = repository.rearrange_session("main")
    mover.move("/a", "/b")
    mover.commit("moved")
    session = repository.writable_session("main")
    put(session.store, "x/zarr.json", group())
    with pytest.raises(SessionStateError) as caught:
        session.amend("no")
    assert caught.value.kind is ErrorKind.REARRANGE_SESSION_ONLY
    mover = repository.rearrange_session("main")
    mover.move("/b", "/c")
    tip = mover.amend("moved further")
    assert _log_moves(repository, tip) == [("/a", "/c")]
    mover = repository.rearrange_session("main")
    mover.move("/c", "/a")
    assert _log_moves(repository, mover.amend("and back")) == []


_GRID = (4, 3)


def _write_and_get(chunks: dict[Coords, bytes], later: dict[Coords, bytes | None]) -> Session:
    """Return a session of an array, some chunks of which are committed and some are not."""
    rules = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2}}
    )
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=4, manifest=ManifestConfig(splitting=rules)
    )
    repository = Repository.create(MemoryStorage(), config)
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array(_GRID))
    for coords, value in chunks.items():
        put(session.store, chunk_key("a", coords), value)
    session.commit("begin")
    session = repository.writable_session("main")
    for coords, changed in later.items():
        if changed is None:
            delete(session.store, chunk_key("a", coords))
        else:
            put(session.store, chunk_key("a", coords), changed)
    return session


def _chunks(session: Session) -> dict[Coords, bytes]:
    found = contents(session.store)
    return {
        tuple(map(int, key.split("/")[2:])): value
        for key, value in found.items()
        if key.startswith("a/c")
    }


_PLACES = st.sampled_from(list(product(*map(range, _GRID))))
_VALUES = st.sampled_from([b"in", b"native one", b"native two"])
_CASES = settings(max_examples=30, deadline=None)


@_CASES
@given(
    st.dictionaries(_PLACES, _VALUES, max_size=8),
    st.dictionaries(_PLACES, st.none() | _VALUES, max_size=4),
    st.tuples(st.integers(-5, 5), st.integers(-5, 5)),
)
def test_shift(
    chunks: dict[Coords, bytes], later: dict[Coords, bytes | None], offset: Coords
) -> None:
    """Every chunk is found by the offset from where it was; the rest of the array is empty."""
    session = _write_and_get(chunks, later)
    before = _chunks(session)
    moved = {
        tuple(i + by for i, by in zip(coords, offset, strict=True)): value
        for coords, value in before.items()
    }
    expected = {coords: moved[coords] for coords in product(*map(range, _GRID)) if coords in moved}
    session.shift_array("/a", offset)
    assert _chunks(session) == expected
    session.commit("shifted", allow_empty=True)
    assert _chunks(session) == expected


@_CASES
@given(
    st.dictionaries(_PLACES, _VALUES, max_size=8),
    st.dictionaries(_PLACES, st.none() | _VALUES, max_size=4),
    st.dictionaries(_PLACES, _PLACES),
    st.none() | st.dictionaries(_PLACES, _PLACES),
)
def test_reindex(
    chunks: dict[Coords, bytes],
    later: dict[Coords, bytes | None],
    forward: dict[Coords, Coords],
    backward: dict[Coords, Coords] | None,
) -> None:
    """Chunks go where they are sent, in the order of their indices; others stay or are deleted."""
    session = _write_and_get(chunks, later)
    before = _chunks(session)
    expected = dict(before)
    arrived = {forward[coords]: before[coords] for coords in sorted(before) if coords in forward}
    if backward is not None:
        for coords in before:
            if backward.get(coords) not in before:
                del expected[coords]
    expected |= arrived

    def forwards(indices: Iterable[int]) -> Coords | None:
        return forward.get(tuple(indices))

    def backwards(indices: Iterable[int]) -> Coords | None:
        assert backward is not None
        return backward.get(tuple(indices))

    session.reindex_array("a", forwards, None if backward is None else backwards)
    assert _chunks(session) == expected
    session.commit("reindexed", allow_empty=True)
    assert _chunks(session) == expected


def test_shifts_copy_no_chunk(generation: str) -> None:
    """Only references change: nothing but metadata is written, and no chunk is read."""
    storage = CountingStorage(MemoryStorage())
    repository = Repository.create(
        storage, RepositoryConfig(inline_chunk_threshold_bytes=0), generation=generation
    )
    session = repository.writable_session("main")
    put(session.store, "a/zarr.json", array((4,)))
    for index in range(4):
        put(session.store, f"a/c/{index}", bytes([index]))
    session.commit("begin")
    session = repository.writable_session("main")
    storage.forget()
    session.shift_array("a", [1])
    session.commit("shifted")
    touched = storage.keys()
    assert not [key for key in touched if find_kind(key, generation) == "chunks"]


@pytest.mark.parametrize("wrong", [(1.5, 0), (1.0, 0), ("1", "0"), "10", b"10", (None, 0), 1])
def test_coordinates_are_whole_numbers(wrong: Any) -> None:
    """What could be rounded or converted to coordinates is refused, and nothing moves."""
    session = _write_and_get({(0, 0): b"x", (3, 2): b"y"}, {})
    before = _chunks(session)
    refused: list[Callable[[], object]] = [
        lambda: session.shift_array("a", wrong),
        lambda: session.reindex_array("a", lambda _: wrong),
        lambda: session.reindex_array("a", lambda _: None, lambda _: wrong),
        lambda: session.chunk_type("a", wrong),
    ]
    for act in refused:
        with pytest.raises(InvalidInputError, match="an integer for each dimension") as caught:
            act()
        assert caught.value.kind is ErrorKind.INVALID_CHUNK_INDEX
        assert _chunks(session) == before


@pytest.mark.parametrize("offset", [2**70, -(2**70), 2**63 - 1, -(2**63), 2**32])
def test_shifts_out_of_all_grids(offset: int) -> None:
    """However far chunks move, those that leave the array are dropped and nothing overflows."""
    session = _write_and_get({(0, 0): b"x", (3, 2): b"y"}, {})
    session.shift_array("a", (0, offset))
    assert _chunks(session) == {}


def test_whole_numbers_of_numpy() -> None:
    """Coordinates need not be int, as long as they are whole numbers."""
    session = _write_and_get({(0, 0): b"x"}, {})
    session.shift_array("a", np.array([1, 2], np.int16))
    assert _chunks(session) == {(1, 2): b"x"}


def test_refused_shifts() -> None:
    """Other ranks, places outside the grid, groups and grids that are not regular are refused."""
    session = _write_and_get({(0, 0): b"x", (3, 2): b"y"}, {})
    before = _chunks(session)
    put(session.store, "g/zarr.json", group())
    refused: list[tuple[Callable[[], None], ErrorKind]] = [
        (lambda: session.shift_array("a", [1]), ErrorKind.INVALID_CHUNK_INDEX),
        (
            lambda: session.reindex_array("a", lambda one: [i + 1 for i in one]),
            ErrorKind.INVALID_CHUNK_INDEX,
        ),
        (lambda: session.reindex_array("a", lambda _: [-1, 0]), ErrorKind.INVALID_CHUNK_INDEX),
        (lambda: session.reindex_array("a", lambda _: [1]), ErrorKind.INVALID_CHUNK_INDEX),
        (lambda: session.shift_array("g", [1]), ErrorKind.NOT_AN_ARRAY),
    ]
    for act, kind in refused:
        with pytest.raises(InvalidInputError) as caught:
            act()
        assert caught.value.kind is kind
        assert _chunks(session) == before
    rectilinear = array((4,)).replace(b'"regular"', b'"rectilinear"')
    rectilinear = rectilinear.replace(b'"chunk_shape":[1]', b'"chunk_shapes":[[1,3]]')
    other = Repository.create(MemoryStorage(), spec_version=2).writable_session("main")
    put(other.store, "r/zarr.json", rectilinear)
    put(other.store, "r/c/1", b"x")
    with pytest.raises(InvalidInputError) as caught:
        other.shift_array("r", [-1])
    assert caught.value.kind is ErrorKind.INVALID_ARRAY_METADATA
