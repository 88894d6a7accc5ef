"""Keys, values and byte ranges that a store refuses or has to get exactly right."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.ids import NodeId
from icefloe.model.node import ArrayNodeData, DimensionShape, NodeSnapshot
from icefloe.model.path import Path
from icefloe.model.zarr_keys import ChunkKey, Key, MetadataKey, V2Key, parse_key
from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.storage.latency import LatencyStorage
from support import zarr_documents
from support.counting_storage import CountingStorage
from support.generations import ICECHUNK_NAMES

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest

    from icefloe.store import IcechunkStore

PROTOTYPE = default_buffer_prototype()
GROUP = zarr_documents.group()


def _buffer(data: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(data)


PARSED: dict[str, Key] = {
    "zarr.json": MetadataKey(Path("/")),
    "a/zarr.json": MetadataKey(Path("/a")),
    "a/b c/ä/zarr.json": MetadataKey(Path("/a/b c/ä")),
    "zarr.json/zarr.json": MetadataKey(Path("/zarr.json")),
    "c/zarr.json": MetadataKey(Path("/c")),
    "a/c/0/zarr.json": MetadataKey(Path("/a/c/0")),
    "c": ChunkKey(Path("/"), ()),
    "c/0": ChunkKey(Path("/"), (0,)),
    "c/1/2/3": ChunkKey(Path("/"), (1, 2, 3)),
    "a/c": ChunkKey(Path("/a"), ()),
    "a/c/0": ChunkKey(Path("/a"), (0,)),
    "c/c": ChunkKey(Path("/c"), ()),
    "c/c/5": ChunkKey(Path("/c"), (5,)),
    "a/c/0/c/7/8": ChunkKey(Path("/a/c/0"), (7, 8)),
    "a/c/c/c/1": ChunkKey(Path("/a/c/c"), (1,)),
    "c/4294967295": ChunkKey(Path("/"), (4294967295,)),
    ".zgroup": V2Key(".zgroup"),
    "a/.zarray": V2Key("a/.zarray"),
    "a/b/.zattrs": V2Key("a/b/.zattrs"),
    ".zmetadata": V2Key(".zmetadata"),
}


@pytest.mark.parametrize("key", PARSED)
def test_keys_of_a_hierarchy(key: str) -> None:
    """Nodes may be called ``c``, a number or even ``zarr.json``; the end of a key decides."""
    assert parse_key(key) == PARSED[key]


WRONG_KEYS = {
    "": ErrorKind.INVALID_KEY,
    "/": ErrorKind.INVALID_KEY,
    "foo": ErrorKind.INVALID_KEY,
    "foo/bar": ErrorKind.INVALID_KEY,
    "0/0": ErrorKind.INVALID_KEY,
    "foo/0.0": ErrorKind.INVALID_KEY,
    "c/": ErrorKind.INVALID_KEY,
    "a/c/": ErrorKind.INVALID_KEY,
    "a/c/0/": ErrorKind.INVALID_KEY,
    "a/c//0": ErrorKind.INVALID_KEY,
    "a/c/x": ErrorKind.INVALID_KEY,
    "a/c/0/x/0": ErrorKind.INVALID_KEY,
    "a/c/0.1": ErrorKind.INVALID_KEY,
    "a/c/-1": ErrorKind.INVALID_KEY,
    "a/c/+1": ErrorKind.INVALID_KEY,
    "a/c/01": ErrorKind.INVALID_KEY,
    "a/c/ 1": ErrorKind.INVALID_KEY,
    "a/c/1_0": ErrorKind.INVALID_KEY,
    "a/c/\u0661": ErrorKind.INVALID_KEY,
    "a/c/4294967296": ErrorKind.INVALID_KEY,
    "a/c/99999999999999999999": ErrorKind.INVALID_KEY,
    "a/zarr.json/": ErrorKind.INVALID_KEY,
    "a/ZARR.JSON": ErrorKind.INVALID_KEY,
    "azarr.json": ErrorKind.INVALID_KEY,
    "zarr.json\n": ErrorKind.INVALID_KEY,
    "/zarr.json": ErrorKind.INVALID_KEY,
    "/c": ErrorKind.INVALID_KEY,
    "/c/0": ErrorKind.INVALID_KEY,
    "//zarr.json": ErrorKind.INVALID_PATH,
    "a//zarr.json": ErrorKind.INVALID_PATH,
    "./zarr.json": ErrorKind.INVALID_PATH,
    "a/../zarr.json": ErrorKind.INVALID_PATH,
    "\ud800/zarr.json": ErrorKind.INVALID_PATH,
}


class Watched:
    """A session with one committed array, and a record of what it asks of the storage."""

    def __init__(self, *, read_latency_ms: int = 0) -> None:
        storage = in_memory_storage()
        config = RepositoryConfig(inline_chunk_threshold_bytes=4)
        session = Repository.create(storage, config).writable_session("main")
        for key, value in {
            "zarr.json": GROUP,
            "a/zarr.json": zarr_documents.array((4, 4), (2, 2)),
            "a/c/0/0": b"chunk",
            "g/zarr.json": GROUP,
            "g/below/zarr.json": GROUP,
        }.items():
            session.store.set_sync(key, _buffer(value))
        session.commit("first")
        self.counting = CountingStorage(LatencyStorage(storage, read_latency_ms=read_latency_ms))
        self.repository = Repository.open(self.counting)
        self.session = self.repository.writable_session("main")
        self.store = self.session.store

    def refuses(self, call: Any, error: type[IcefloeError], kind: ErrorKind) -> None:
        """Require an error, and that nothing was written or changed."""
        self.counting.forget()
        with pytest.raises(error) as caught:
            sync(call)
        assert caught.value.kind is kind
        assert self.counting.counts().get("put", 0) == 0
        assert not self.session.has_uncommitted_changes


@pytest.fixture(scope="module", params=[0, 1])
def watched(request: pytest.FixtureRequest) -> Watched:
    """Make a store that answers in the event loop, and one that awaits; refusals change neither."""
    return Watched(read_latency_ms=request.param)


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_wrong_keys(watched: Watched, key: str) -> None:
    """Reads refuse them too: a reader of ``a/c/0.0`` would take fill values for data otherwise."""
    store, kind = watched.store, WRONG_KEYS[key]
    watched.refuses(store.get(key, PROTOTYPE), InvalidInputError, kind)
    watched.refuses(store.exists(key), InvalidInputError, kind)
    watched.refuses(store.getsize(key), InvalidInputError, kind)
    watched.refuses(store.set(key, _buffer(b"x")), InvalidInputError, kind)
    watched.refuses(store.set_if_not_exists(key, _buffer(b"x")), InvalidInputError, kind)
    watched.refuses(store.delete(key), InvalidInputError, kind)
    for call in (store.get_sync, store.delete_sync):
        with pytest.raises(InvalidInputError):
            call(key)
    with pytest.raises(InvalidInputError):
        store.set_sync(key, _buffer(b"x"))
    assert not watched.session.has_uncommitted_changes


@pytest.mark.parametrize("key", [".zgroup", "a/.zarray", "a/.zattrs", ".zmetadata"])
def test_keys_of_zarr_version_2(watched: Watched, key: str) -> None:
    """Zarr looks for them wherever it opens something: they are not there, and cannot be."""
    store = watched.store
    assert sync(store.get(key, PROTOTYPE)) is None
    assert not sync(store.exists(key))
    sync(store.delete(key))
    with pytest.raises(FileNotFoundError):
        sync(store.getsize(key))
    watched.refuses(store.set(key, _buffer(b"{}")), SessionStateError, ErrorKind.UNIMPLEMENTED)
    watched.refuses(
        store.set_if_not_exists(key, _buffer(b"{}")), SessionStateError, ErrorKind.UNIMPLEMENTED
    )


REFUSED_CHUNKS = {
    "a/c/2/0": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "a/c/0/2": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "a/c/4294967295/0": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "a/c": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "a/c/0": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "a/c/0/0/0": (InvalidInputError, ErrorKind.INVALID_CHUNK_INDEX),
    "missing/c/0/0": (NodeNotFoundError, ErrorKind.NODE_NOT_FOUND),
    "g/c/0": (InvalidInputError, ErrorKind.NOT_AN_ARRAY),
    "c/0": (InvalidInputError, ErrorKind.NOT_AN_ARRAY),
}


@pytest.mark.parametrize("key", REFUSED_CHUNKS)
@pytest.mark.parametrize("size", [1, 100], ids=["inline", "native"])
def test_chunks_without_a_place(watched: Watched, key: str, size: int) -> None:
    """Writes outside the grid or of a missing array are errors; nothing is there to read."""
    error, kind = REFUSED_CHUNKS[key]
    store = watched.store
    watched.refuses(store.set(key, _buffer(b"x" * size)), error, kind)
    watched.refuses(store.set_if_not_exists(key, _buffer(b"x" * size)), error, kind)
    assert sync(store.get(key, PROTOTYPE)) is None
    assert not sync(store.exists(key))
    sync(store.delete(key))
    assert not watched.session.has_uncommitted_changes


def test_empty_chunks(watched: Watched) -> None:
    """A chunk of no bytes is refused: nothing could be decoded from it."""
    watched.refuses(
        watched.store.set("a/c/0/0", _buffer(b"")),
        InvalidInputError,
        ErrorKind.ZERO_LENGTH_CHUNK,
    )


def _grid(name: Any, **configuration: Any) -> dict[str, Any]:
    return {"chunk_grid": {"name": name, "configuration": configuration}}


BAD, BAD_ARRAY = ErrorKind.BAD_METADATA, ErrorKind.INVALID_ARRAY_METADATA
BAD_DOCUMENTS: dict[str, tuple[bytes, ErrorKind]] = {
    "empty": (b"", BAD),
    "not JSON": (b"bar", BAD),
    "half": (GROUP[:-1], BAD),
    "not UTF-8": (b'{"a": "\xff"}', BAD),
    "nested too deeply": (b"[" * 100_000, BAD),
    "a list": (b"[]", BAD),
    "a number": (b"3", BAD),
    "null": (b"null", BAD),
    "no version": (zarr_documents.group(zarr_format=None), BAD),
    "version 2": (zarr_documents.group(zarr_format=2), BAD),
    "version as text": (zarr_documents.group(zarr_format="3"), BAD),
    "no node type": (zarr_documents.group(node_type=None), BAD),
    "another node type": (zarr_documents.group(node_type="table"), BAD),
}
BAD_CHANGES: dict[str, dict[str, Any]] = {
    "no grid": {"chunk_grid": None},
    "a grid without a name": {"chunk_grid": {"configuration": {"chunk_shape": [1, 1]}}},
    "an unknown grid": _grid("hexagonal", chunk_shape=[1, 1]),
    "a grid without settings": {"chunk_grid": {"name": "regular"}},
    "too few chunk lengths": _grid("regular", chunk_shape=[1]),
    "too many chunk lengths": _grid("regular", chunk_shape=[1, 1, 1]),
    "chunks of length 0": _grid("regular", chunk_shape=[0, 1]),
    "chunks of negative length": _grid("regular", chunk_shape=[-1, 1]),
    "chunks of fractions": _grid("regular", chunk_shape=[1.5, 1]),
    "chunk lengths that are flags": _grid("regular", chunk_shape=[True, 1]),
    "too few dimension names": {"dimension_names": ["x"]},
    "dimension names that are numbers": {"dimension_names": [1, 2]},
    "a dimension name alone": {"dimension_names": "xy"},
}
BAD_DOCUMENTS |= {
    name: (zarr_documents.array((4, 4), **changes), BAD_ARRAY)
    for name, changes in BAD_CHANGES.items()
}


def _with_shape(shape: Any) -> bytes:
    document = json.loads(zarr_documents.array((4, 4)))
    document["shape"] = shape
    return json.dumps(document).encode()


BAD_DOCUMENTS |= {
    f"shape {shape!r}": (_with_shape(shape), BAD_ARRAY)
    for shape in [None, 4, "44", [4, "4"], [4, -4], [4, 4.5], [True, 4], [2**64, 4], [2**40, 4]]
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
@pytest.mark.parametrize("key", ["new/zarr.json", "a/zarr.json"])
def test_bad_metadata(watched: Watched, name: str, key: str) -> None:
    """Whatever is no metadata that can be stored is refused, of a new node as of an old one."""
    document, kind = BAD_DOCUMENTS[name]
    watched.refuses(watched.store.set(key, _buffer(document)), InvalidInputError, kind)


def test_metadata_in_the_wrong_place(watched: Watched) -> None:
    """No node lies in an array, and no array around nodes; a node does not change its kind."""
    store = watched.store
    for key, document, error, kind in [
        ("a/b/zarr.json", GROUP, InvalidInputError, ErrorKind.NOT_A_GROUP),
        ("a/c/0/zarr.json", zarr_documents.array(), InvalidInputError, ErrorKind.NOT_A_GROUP),
        ("a/zarr.json", GROUP, AlreadyExistsError, ErrorKind.NODE_ALREADY_EXISTS),
        ("g/zarr.json", zarr_documents.array(), AlreadyExistsError, ErrorKind.NODE_ALREADY_EXISTS),
    ]:
        watched.refuses(store.set(key, _buffer(document)), error, kind)


def test_the_same_metadata_is_no_change(watched: Watched) -> None:
    """Bytes that are there already change nothing."""
    sync(watched.store.set("a/zarr.json", _buffer(zarr_documents.array((4, 4), (2, 2)))))
    sync(watched.store.set_if_not_exists("a/zarr.json", _buffer(zarr_documents.array((8, 8)))))
    assert not watched.session.has_uncommitted_changes


@pytest.mark.parametrize("value", [b"bytes", 0, None, memoryview(b"x"), "text"])
def test_values_that_are_no_buffers(watched: Watched, value: Any) -> None:
    """Only zarr's buffers are values."""
    for call in (watched.store.set, watched.store.set_if_not_exists):
        with pytest.raises(TypeError, match="Buffer"):
            sync(call("zarr.json", value))
    with pytest.raises(TypeError, match="Buffer"):
        watched.store.set_sync("zarr.json", value)


def _reader(repository: Repository) -> tuple[IcechunkStore, ErrorKind]:
    return repository.readonly_session("main").store, ErrorKind.READ_ONLY_SESSION


def _read_only_store(repository: Repository) -> tuple[IcechunkStore, ErrorKind]:
    store = repository.writable_session("main").store
    return store.with_read_only(read_only=True), ErrorKind.READ_ONLY_STORE


def _writable_store_of_reader(repository: Repository) -> tuple[IcechunkStore, ErrorKind]:
    store = repository.readonly_session("main").store
    return store.with_read_only(read_only=False), ErrorKind.READ_ONLY_SESSION


def _commit(repository: Repository) -> tuple[IcechunkStore, ErrorKind]:
    session = repository.writable_session("main")
    store = session.store
    assert not store.read_only
    session.commit("nothing", allow_empty=True)
    return store, ErrorKind.READ_ONLY_SESSION


@pytest.mark.parametrize("make", [_reader, _read_only_store, _writable_store_of_reader, _commit])
def test_stores_that_take_no_writes(make: Any) -> None:
    """Every way to write is refused, for good keys and bad ones, and nothing is written."""
    watched = Watched()
    store, kind = make(watched.repository)
    assert store.read_only
    calls = [
        store.set("a/c/0/1", _buffer(b"x" * 100)),
        store.set("new/zarr.json", _buffer(GROUP)),
        store.set("no key", _buffer(GROUP)),
        store.set_if_not_exists("a/c/0/1", _buffer(b"x")),
        store.delete("a/c/0/0"),
        store.delete("missing/c/0"),
        store.delete_dir("a"),
        store.delete_dir(""),
        store.clear(),
    ]
    for call in calls:
        watched.refuses(call, ReadOnlyError, kind)
    for synchronous in (
        lambda: store.set_sync("a/c/0/1", _buffer(b"x")),
        lambda: store.delete_sync("a/c/0/0"),
        store.sync_clear,
        lambda: store.set_virtual_ref("a/c/0/1", "s3://b/k", offset=0, length=1),
        lambda: store.set_virtual_refs("a", []),
    ):
        with pytest.raises(ReadOnlyError) as caught:
            synchronous()
        assert caught.value.kind is kind
    assert sync(store.exists("a/c/0/0"))


def test_partial_writes(watched: Watched) -> None:
    """Chunks are written whole."""
    assert not watched.store.supports_partial_writes
    watched.refuses(
        watched.store.set_partial_values([("a/c/0/0", 0, b"x")]),
        SessionStateError,
        ErrorKind.UNIMPLEMENTED,
    )


@pytest.mark.parametrize(
    "encoding", [{"name": "default", "separator": "."}, {"name": "v2", "separator": "."}]
)
@pytest.mark.filterwarnings("ignore:.*v2 chunk key encoding")
def test_other_chunk_key_encodings(encoding: Any, generation: str) -> None:
    """An array with other chunk keys is refused; where others stored one, it can be looked at."""
    repository = Repository.create(in_memory_storage(), generation=generation)
    session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match="'default' with the separator '/'") as caught:
        zarr.create_array(
            session.store, name="dots", shape=(2, 2), dtype="i4", chunk_key_encoding=encoding
        )
    assert caught.value.kind is ErrorKind.INVALID_ARRAY_METADATA
    assert not session.status().new_arrays
    if generation not in ICECHUNK_NAMES:
        return
    document = zarr_documents.array((2, 2), chunk_key_encoding=_create_configured(**encoding))
    sizes = (DimensionShape.regular(2, 1),) * 2
    data = ArrayNodeData(sizes, None, ())
    session.transaction.put_node(NodeSnapshot(NodeId.random(), Path("/dots"), document, data))
    session.commit("by others")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="dots")
    assert array.shape == (2, 2)
    with pytest.raises(InvalidInputError, match="default chunk key encoding"):
        array[:] = 1
    with pytest.raises(InvalidInputError, match="default chunk key encoding"):
        array[:]


def _create_configured(name: str, separator: str) -> dict[str, Any]:
    return {"name": name, "configuration": {"separator": separator}}


DATA = bytes(range(100))
RANGES: list[tuple[ByteRequest | None, bytes]] = [
    (None, DATA),
    (RangeByteRequest(0, 100), DATA),
    (RangeByteRequest(10, 20), DATA[10:20]),
    (RangeByteRequest(99, 100), DATA[99:]),
    (RangeByteRequest(7, 7), b""),
    (RangeByteRequest(90, 1000), DATA[90:]),
    (RangeByteRequest(100, 200), b""),
    (RangeByteRequest(150, 200), b""),
    (OffsetByteRequest(0), DATA),
    (OffsetByteRequest(99), DATA[99:]),
    (OffsetByteRequest(100), b""),
    (OffsetByteRequest(1000), b""),
    (SuffixByteRequest(0), b""),
    (SuffixByteRequest(3), DATA[-3:]),
    (SuffixByteRequest(100), DATA),
    (SuffixByteRequest(1000), DATA),
]


@pytest.mark.parametrize("latency_ms", [0, 1])
@pytest.mark.parametrize("kind", ["inline", "native", "packed"])
def test_byte_ranges(kind: str, latency_ms: int, generation: str) -> None:
    """A range means what a slice means, wherever the bytes are: nothing lies past the end."""
    config = RepositoryConfig(inline_chunk_threshold_bytes=512 if kind == "inline" else 0)
    if kind == "packed":
        config.packing = PackingConfig()
    storage = LatencyStorage(in_memory_storage(), read_latency_ms=latency_ms)
    session = Repository.create(storage, config, generation=generation).writable_session("main")
    document = zarr_documents.array((4,), attributes={"long": "x" * 100})
    session.store.set_sync("zarr.json", _buffer(document))
    session.store.set_sync("c/0", _buffer(b"before"))
    session.store.set_sync("c/1", _buffer(DATA))

    async def check(store: IcechunkStore) -> None:
        for byte_range, expected in RANGES:
            found = await store.get("c/1", PROTOTYPE, byte_range)
            assert found is not None
            assert found.to_bytes() == expected, byte_range
            found = store.get_sync("c/1", prototype=PROTOTYPE, byte_range=byte_range)
            assert found is not None
            assert found.to_bytes() == expected, byte_range
        together = await store.get_partial_values(
            PROTOTYPE, [("c/1", byte_range) for byte_range, _ in RANGES]
        )
        assert [None if found is None else found.to_bytes() for found in together] == [
            data for _, data in RANGES
        ]
        last = await store.get("zarr.json", PROTOTYPE, SuffixByteRequest(5))
        assert last is not None
        assert last.to_bytes() == document[-5:]

    asyncio.run(check(session.store))
    session.commit("chunks")
    asyncio.run(check(session.store))
    asyncio.run(check(Repository.open(storage).readonly_session("main").store))


@pytest.mark.parametrize(
    "byte_range",
    [
        (0, 2),
        "0-2",
        RangeByteRequest(5, 2),
        RangeByteRequest(-5, 2),
        OffsetByteRequest(-1),
        SuffixByteRequest(-1),
    ],
)
def test_wrong_byte_ranges(watched: Watched, byte_range: Any) -> None:
    """Ranges that run backwards or begin before the start are refused."""
    for key in ("a/c/0/0", "zarr.json", "a/c/1/1"):
        watched.refuses(
            watched.store.get(key, PROTOTYPE, byte_range),
            InvalidInputError,
            ErrorKind.INVALID_BYTE_RANGE,
        )


def test_set_if_not_exists_at_once() -> None:
    """Of many who set the same key at the same time, one does."""
    session = Watched(read_latency_ms=1).session
    values = [str(number).encode() for number in range(20)]

    async def race() -> None:
        calls = [session.store.set_if_not_exists("a/c/1/1", _buffer(value)) for value in values]
        await asyncio.gather(*calls)

    asyncio.run(race())
    found = session.store.get_sync("a/c/1/1")
    assert found is not None
    assert found.to_bytes() in values
