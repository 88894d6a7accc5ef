"""Listings, sizes and deletions below prefixes, against zarr's store in memory as a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from zarr.core.buffer import cpu
from zarr.core.sync import _collect_aiterator, sync
from zarr.storage import MemoryStore

from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from support import zarr_documents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zarr.abc.store import Store

    from icefloe.session import Session
    from icefloe.store import IcechunkStore

# Names that look like parts of keys, that sort oddly beside a slash, or need more than ASCII.
NAMES = ["a", "aa", "a-", "c", "0", "zarr", "深い", "with space", "%2F", "a.b", ".hidden", "é"]

names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def _list(keys: AsyncIterator[str]) -> list[str]:
    found = sync(_collect_aiterator(keys))
    assert len(set(found)) == len(found), "a name comes twice"
    return sorted(found)


def _session() -> Session:
    return Repository.create(in_memory_storage()).writable_session("main")


@st.composite
def hierarchies(draw: st.DrawFn) -> dict[str, bytes]:
    """Draw the keys and values of a hierarchy; groups above a node may be implicit."""
    keys: dict[str, bytes] = {}
    arrays = draw(st.dictionaries(paths, st.integers(0, 2), max_size=4))
    groups = draw(st.sets(paths | st.just(""), max_size=4))
    for path in sorted(groups | arrays.keys()):
        above = ["/".join(path.split("/")[:depth]) for depth in range(path.count("/") + 1)]
        if any(f"{path}/zarr.json" in keys and path in arrays for path in above):
            continue
        if path not in arrays:
            keys[f"{path}/zarr.json".lstrip("/")] = zarr_documents.group()
        elif not any(key.startswith(f"{path}/") for key in keys):
            ndim = arrays[path]
            keys[f"{path}/zarr.json"] = zarr_documents.array([3] * ndim)
            chunks = st.tuples(*[st.integers(0, 2)] * ndim)
            for chunk in draw(st.sets(chunks, max_size=4)):
                keys["/".join([path, "c", *map(str, chunk)])] = bytes(len(keys) + 1)
    return keys


@st.composite
def prefixes(draw: st.DrawFn, keys: dict[str, bytes]) -> str:
    """Draw something that keys begin with, or nearly."""
    whole = draw(st.sampled_from([*sorted(keys), "a/c/0", "c"]))
    segments = whole.split("/")
    prefix = "/".join(segments[: draw(st.integers(0, len(segments)))])
    return prefix + draw(st.sampled_from(["", "", "/", "x"])) if prefix else ""


def _require_the_same(store: IcechunkStore, model: Store, prefix: str) -> None:
    # Zarr's model takes a prefix for the beginning of a string; ours is whole segments.
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    below = _list(model.list_prefix(folder))
    itself = [prefix] if sync(model.exists(prefix)) else []
    assert _list(store.list_prefix(prefix)) == sorted(below + itself)
    assert sync(store.is_empty(prefix)) == (not below)
    assert sync(store.getsize_prefix(prefix)) == sum(sync(model.getsize(key)) for key in below)
    # An array shows ``c`` whether it has chunks or not.
    ours = _list(store.list_dir(prefix))
    model_names = _list(model.list_dir(prefix.rstrip("/")))
    if ours != model_names:
        assert set(ours) == {*model_names, "c"} == {"c", "zarr.json"}


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_hierarchy(data: st.DataObject) -> None:
    """Lists, sizes and deletions are those of the model, before and after a commit."""
    keys = data.draw(hierarchies())
    session = _session()
    model = MemoryStore()
    for key, value in keys.items():
        for store in (session.store, model):
            sync(store.set(key, cpu.Buffer.from_bytes(value)))
    drawn = [data.draw(prefixes(keys)) for _ in range(4)]
    for prefix in ["", *drawn]:
        _require_the_same(session.store, model, prefix)
    if keys:
        session.commit("a hierarchy")
        session = _again(session)
    assert _list(session.store.list()) == sorted(keys)
    for prefix in drawn[:2]:
        _require_the_same(session.store, model, prefix)
        sync(session.store.delete_dir(prefix))
        sync(model.delete_dir(prefix))
        assert _list(session.store.list()) == _list(model.list())
    for prefix in ["", *drawn]:
        _require_the_same(session.store, model, prefix)


def _again(session: Session) -> Session:
    connection = session.connection
    return Repository.open(connection.storage).writable_session("main")


@pytest.fixture
def store() -> IcechunkStore:
    """Make a store with groups, arrays and chunks; ``implicit`` has no metadata of its own."""
    session = _session()
    for path, shape, written in [
        ("a", (3, 3), ["0/0", "0/2", "2/1"]),
        ("aa", (3,), ["1"]),
        ("g/empty", (3,), []),
        ("g/scalar", (), [""]),
        ("implicit/deep/b", (12,), ["1", "2", "10", "11"]),
    ]:
        session.store.set_sync(
            f"{path}/zarr.json", cpu.Buffer.from_bytes(zarr_documents.array(shape))
        )
        for chunk in written:
            key = f"{path}/c/{chunk}".rstrip("/")
            session.store.set_sync(key, cpu.Buffer.from_bytes(b"12345"))
    for path in ["", "g/"]:
        session.store.set_sync(f"{path}zarr.json", cpu.Buffer.from_bytes(zarr_documents.group()))
    return session.store


LISTED = {
    "": ["a", "aa", "g", "implicit", "zarr.json"],
    "/": ["a", "aa", "g", "implicit", "zarr.json"],
    "a": ["c", "zarr.json"],
    "a/c": ["0", "2"],
    "a/c/0": ["0", "2"],
    "a/c/1": [],
    "a/c/0/0": [],
    "a/c/x": [],
    "a/x": [],
    "a/zarr.json": [],
    "g": ["empty", "scalar", "zarr.json"],
    "g/empty": ["c", "zarr.json"],
    "g/empty/c": [],
    "g/scalar": ["c", "zarr.json"],
    "g/scalar/c": [],
    "implicit": ["deep"],
    "implicit/deep": ["b"],
    "implicit/deep/b/c": ["1", "10", "11", "2"],
    "implicit/deep/b/c/1": [],
    "missing": [],
    "missing/c": [],
    "..": [],
    "a//c": [],
}


@pytest.mark.parametrize("prefix", LISTED)
def test_list_dir(store: IcechunkStore, prefix: str) -> None:
    """Names right below a prefix; an array has ``c``, with chunks and without."""
    assert _list(store.list_dir(prefix)) == LISTED[prefix]


def test_list_prefix(store: IcechunkStore) -> None:
    """Keys below whole segments: ``a`` is not the beginning of ``aa``, nor ``c/1`` of ``c/11``."""
    for prefix, expected in {
        "a": ["a/c/0/0", "a/c/0/2", "a/c/2/1", "a/zarr.json"],
        "a/": ["a/c/0/0", "a/c/0/2", "a/c/2/1", "a/zarr.json"],
        "a/c": ["a/c/0/0", "a/c/0/2", "a/c/2/1"],
        "a/c/0": ["a/c/0/0", "a/c/0/2"],
        "a/c/0/2": ["a/c/0/2"],
        "g/scalar/c": ["g/scalar/c"],
        "implicit/deep/b/c/1": ["implicit/deep/b/c/1"],
        "zarr.json": ["zarr.json"],
        "z": [],
        "implicit/zarr.json": [],
        "missing": [],
    }.items():
        assert _list(store.list_prefix(prefix)) == expected, prefix


def test_deleting_chunks_by_prefix(store: IcechunkStore) -> None:
    """Some or all chunks of an array, never the array, and never those of another."""
    sync(store.delete_dir("a/c/0"))
    assert _list(store.list_prefix("a")) == ["a/c/2/1", "a/zarr.json"]
    sync(store.delete_dir("implicit/deep/b/c/1"))
    assert len(_list(store.list_prefix("implicit"))) == 5
    sync(store.delete_dir("implicit/deep/b/c/"))
    assert _list(store.list_prefix("implicit")) == ["implicit/deep/b/zarr.json"]
    for prefix in ["missing", "a/x", "a/c/7", "a/c/x", "..", "z"]:
        before = _list(store.list())
        sync(store.delete_dir(prefix))
        assert _list(store.list()) == before


def test_deleting_an_implicit_group(store: IcechunkStore) -> None:
    """A group without metadata goes with everything below it."""
    sync(store.delete_dir("implicit"))
    assert not [key for key in _list(store.list()) if key.startswith("implicit")]
    assert sync(store.exists("aa/c/1"))


def test_sizes(store: IcechunkStore) -> None:
    """Sizes are told without reading any chunk."""
    metadata = sync(store.getsize("a/zarr.json"))
    assert metadata == len(zarr_documents.array((3, 3)))
    assert sync(store.getsize("a/c/0/2")) == 5
    assert sync(store.getsize_prefix("a")) == metadata + 15
    assert sync(store.getsize_prefix("a/c/0")) == 10
    assert sync(store.getsize_prefix("missing")) == 0
    for key in ["a/c/1/1", "missing/zarr.json", "missing/c/0", "a/c/99/99"]:
        with pytest.raises(FileNotFoundError):
            sync(store.getsize(key))
    array = zarr.open_array(store, path="a")
    assert array.nbytes_stored() == metadata + 15
    assert array.nchunks_initialized == 3


def test_clearing_keeps_history(store: IcechunkStore) -> None:
    """All is gone from the session, and still there in the snapshot before."""
    session = store.session
    first = session.commit("all of it")
    repository = Repository.open(session.connection.storage)
    session = repository.writable_session("main")
    session.store.sync_clear()
    assert _list(session.store.list()) == []
    assert sync(session.store.is_empty(""))
    session.commit("nothing left")
    assert _list(repository.readonly_session("main").store.list()) == []
    before = repository.readonly_session(snapshot_id=first)
    assert len(_list(before.store.list())) == 16
