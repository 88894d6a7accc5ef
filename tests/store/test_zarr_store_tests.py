"""zarr-python's own tests of a store, against ours.

They use keys such as ``foo`` or ``a/b`` and values such as ``b"bar"``, which belong to no Zarr
hierarchy; a repository, which knows what it holds, refuses them. Tests with such keys are written
again here with keys and values that a hierarchy has, and make the same claim; `VALID_CHUNKS` and
`VALID_METADATA` stand for zarr's. Empty values are left out: neither a chunk nor a ``zarr.json``
can be empty.
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    SupportsDeleteSync,
    SupportsGetSync,
    SupportsSetSync,
)
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator, sync
from zarr.testing.store import StoreTests
from zarr.testing.utils import assert_bytes_equal

from icefloe.errors import ReadOnlyError, SessionStateError
from icefloe.model.zarr_keys import ChunkKey, MetadataKey, parse_key
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage, local_filesystem_storage
from icefloe.store import IcechunkStore
from support import zarr_documents
from support.generations import GENERATION_NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from zarr.abc.store import ByteRequest

VALID_CHUNKS = ["c/0/0", "foo/c/0/0", "foo/bar/c/3/2"]
VALID_METADATA = ["zarr.json", "foo/zarr.json"]
BYTE_RANGES = [
    None,
    RangeByteRequest(1, 4),
    OffsetByteRequest(1),
    SuffixByteRequest(1),
    RangeByteRequest(2, 100),
    RangeByteRequest(10, 20),
]
DATA = b"\x01\x02\x03\x04"
GROUP = zarr_documents.group()


def _buffer(data: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(data)


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        """Write past the store, into its transaction; makes the array that a chunk needs."""
        transaction = store.session.transaction
        match parse_key(key):
            case MetadataKey(path):
                transaction.set_metadata(path, value.to_bytes())
            case ChunkKey(path, indices):
                if transaction.get_node(path) is None:
                    transaction.set_metadata(path, zarr_documents.array([10] * len(indices)))
                transaction.set_chunk(path, indices, value.to_bytes())

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        """Read past the store, from its transaction."""
        transaction = store.session.transaction
        match parse_key(key):
            case MetadataKey(path):
                return _buffer(transaction.require_node(path).user_data)
            case ChunkKey(path, indices):
                found = transaction.locate(path, indices)
                assert isinstance(found, bytes)
                return _buffer(found)
        raise AssertionError(key)

    @pytest.fixture(params=GENERATION_NAMES)
    def store_kwargs(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
        is_local = request.param in {"sequence", "v2"}
        storage = local_filesystem_storage(tmp_path / "repo") if is_local else MemoryStorage()
        repository = Repository.create(storage, generation=request.param)
        return {"session": repository.writable_session("main")}

    # Zarr's fixtures are coroutines, which takes a plugin of pytest.
    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> IcechunkStore:
        return sync(IcechunkStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        return IcechunkStore(**store_kwargs)

    # -- what zarr leaves to each store

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store) == str(store)
        assert "IcechunkStore" in repr(store)
        assert "main" in repr(store)
        assert store.session.snapshot_id in repr(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    def test_synchronous_methods_are_offered(self, store: IcechunkStore) -> None:
        """None of zarr's synchronous tests is skipped: the store has all three methods."""
        assert isinstance(store, SupportsGetSync)
        assert isinstance(store, SupportsSetSync)
        assert isinstance(store, SupportsDeleteSync)

    # -- the same claims with keys and values of a hierarchy

    async def test_serializable_store(self, store: IcechunkStore) -> None:
        """A fork's store survives pickling; that of a session that could commit twice does not."""
        with pytest.raises((ValueError, SessionStateError), match="pickle"):
            pickle.dumps(store)
        if isinstance(store.session.connection.storage, MemoryStorage):
            return
        fork = store.session.fork().store
        again: IcechunkStore = pickle.loads(pickle.dumps(fork))  # noqa: S301
        assert again != fork  # it is of another session
        assert again.read_only == fork.read_only
        await again.set("zarr.json", _buffer(GROUP))
        observed = await again.get("zarr.json", prototype=default_buffer_prototype())
        assert_bytes_equal(observed, _buffer(GROUP))

    # Read-only stores raise `ReadOnlyError`, as Icechunk's do, where zarr's raise ValueError.

    async def test_read_only_store_raises(self, open_kwargs: dict[str, Any]) -> None:
        store = await IcechunkStore.open(**{**open_kwargs, "read_only": True})
        assert store.read_only
        await self._refuses_writes(store)

    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await IcechunkStore.open(**{**open_kwargs, "read_only": True})
        await self._refuses_writes(store)
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        assert not writer.read_only
        await writer.set("foo/zarr.json", _buffer(GROUP))
        await writer.delete("foo/zarr.json")
        await self._refuses_writes(store)
        reader = store.with_read_only(read_only=True)
        assert reader.read_only
        await self._refuses_writes(reader)

    async def _refuses_writes(self, store: IcechunkStore) -> None:
        assert store.read_only
        with pytest.raises(ReadOnlyError, match="read-only"):
            await store.set("foo/zarr.json", _buffer(GROUP))
        with pytest.raises(ReadOnlyError, match="read-only"):
            await store.delete("foo/zarr.json")

    @pytest.mark.parametrize("key", VALID_CHUNKS)
    @pytest.mark.parametrize("data, byte_range", [(DATA, byte_range) for byte_range in BYTE_RANGES])
    async def test_get(
        self, store: IcechunkStore, key: str, data: bytes, byte_range: ByteRequest
    ) -> None:
        await super().test_get(store, key, data, byte_range)

    @pytest.mark.parametrize("byte_range", BYTE_RANGES)
    async def test_get_metadata(self, store: IcechunkStore, byte_range: ByteRequest) -> None:
        """Ranges of a ``zarr.json`` are those of any other value."""
        await super().test_get(store, "foo/zarr.json", GROUP, byte_range)

    async def test_get_not_open(self, store_not_open: IcechunkStore) -> None:
        assert not store_not_open._is_open
        await self.set(store_not_open, "c/0", _buffer(DATA))
        observed = await store_not_open.get("c/0", prototype=default_buffer_prototype())
        assert_bytes_equal(observed, _buffer(DATA))

    async def test_get_many(self, store: IcechunkStore) -> None:
        values = {f"c/{index}": str(index).encode() for index in range(10)}
        for key, value in values.items():
            await self.set(store, key, _buffer(value))
        asked = [(key, default_buffer_prototype(), None) for key in values]
        observed = await _collect_aiterator(store._get_many(asked))
        assert {key: value.to_bytes() for key, value in observed if value} == values

    @pytest.mark.parametrize("key", VALID_CHUNKS)
    @pytest.mark.parametrize("data", [DATA])
    async def test_getsize(self, store: IcechunkStore, key: str, data: bytes) -> None:
        await super().test_getsize(store, key, data)

    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        """Chunks below ``foo/c`` count, those of a node with a longer name do not."""
        for key in ["foo/c/0/0", "foo/c/0/1", "foo/c/1/0", "foo/c/1/1", "foo2/c/0/0"]:
            await self.set(store, key, _buffer(DATA))
        assert await store.getsize_prefix("foo/c") == 4 * len(DATA)
        metadata = await store.getsize("foo/zarr.json")
        assert await store.getsize_prefix("foo") == 4 * len(DATA) + metadata

    @pytest.mark.parametrize(
        "key, data",
        [(key, GROUP) for key in VALID_METADATA] + [(key, DATA) for key in VALID_CHUNKS],
    )
    async def test_set(self, store: IcechunkStore, key: str, data: bytes) -> None:
        if data == DATA:
            await self.set(store, key, _buffer(b"before"))
        await super().test_set(store, key, data)

    async def test_set_not_open(self, store_not_open: IcechunkStore) -> None:
        assert not store_not_open._is_open
        await store_not_open.set("zarr.json", _buffer(GROUP))
        assert_bytes_equal(await self.get(store_not_open, "zarr.json"), _buffer(GROUP))

    async def test_set_many(self, store: IcechunkStore) -> None:
        await store.set("zarr.json", _buffer(zarr_documents.array((4,))))
        values = {f"c/{index}": _buffer(str(index).encode()) for index in range(4)}
        values["zarr.json"] = _buffer(zarr_documents.array((4,), attributes={"now": 1}))
        await store._set_many(values.items())
        for key, value in values.items():
            assert (await self.get(store, key)).to_bytes() == value.to_bytes()

    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("zarr.json", RangeByteRequest(0, 2))],
            [("c/0", RangeByteRequest(0, 2)), ("zarr.json", None)],
            [
                ("c/0/0", RangeByteRequest(0, 2)),
                ("c/0/1", SuffixByteRequest(2)),
                ("c/0/2", OffsetByteRequest(2)),
            ],
        ],
    )
    async def test_get_partial_values(
        self, store: IcechunkStore, key_ranges: list[tuple[str, ByteRequest]]
    ) -> None:
        ndim = len(key_ranges[0][0].split("/")) - 1 if key_ranges else 1
        await self.set(store, "zarr.json", _buffer(zarr_documents.array([10] * ndim)))
        for key, _ in key_ranges:
            if key != "zarr.json":
                await self.set(store, key, _buffer(key.encode()))
        observed = await store.get_partial_values(
            default_buffer_prototype(), (pair for pair in key_ranges)
        )
        assert len(observed) == len(key_ranges)
        for found, (key, byte_range) in zip(observed, key_ranges, strict=True):
            expected = await store.get(key, default_buffer_prototype(), byte_range)
            assert found is not None
            assert expected is not None
            assert found.to_bytes() == expected.to_bytes()

    async def test_get_partial_values_missing(self, store: IcechunkStore) -> None:
        """A key without a value gives None in its place."""
        await self.set(store, "c/0", _buffer(DATA))
        observed = await store.get_partial_values(
            default_buffer_prototype(), [("c/1", None), ("c/0", None), ("x/zarr.json", None)]
        )
        assert [None if found is None else found.to_bytes() for found in observed] == [
            None,
            DATA,
            None,
        ]

    async def test_exists(self, store: IcechunkStore) -> None:
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")
        await store.set("foo/zarr.json", _buffer(GROUP))
        assert await store.exists("foo/zarr.json")

    async def test_delete(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", _buffer(GROUP))
        assert await store.exists("foo/zarr.json")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        for key in ["zarr.json", "foo-bar/zarr.json"]:
            await store.set(key, _buffer(GROUP))
        await store.set("foo/zarr.json", _buffer(zarr_documents.array((4,))))
        await store.set("foo/c/0", _buffer(b"chunk"))
        await store.delete_dir("foo")
        assert await store.exists("zarr.json")
        assert await store.exists("foo-bar/zarr.json")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    async def test_delete_nonexistent_key_does_not_raise(self, store: IcechunkStore) -> None:
        for key in ["zarr.json", "foo/zarr.json", "c/0", "foo/c/7/8", "foo/c", "foo/.zarray"]:
            await store.delete(key)

    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await self.set(store, "foo/bar/zarr.json", _buffer(GROUP))
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    async def test_clear(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", _buffer(DATA))
        await self.set(store, "bar/zarr.json", _buffer(GROUP))
        await store.clear()
        assert await store.is_empty("")

    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        await store.set("foo/zarr.json", _buffer(zarr_documents.array((10,))))
        chunks = {f"foo/c/{index}": _buffer(DATA) for index in range(10)}
        await store._set_many(chunks.items())
        observed = await _collect_aiterator(store.list())
        assert sorted(observed) == sorted(["foo/zarr.json", *chunks])

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        prefixes = ("", "a/", "a/b/", "a/b/c/")
        keys = [f"{prefix}zarr.json" for prefix in prefixes]
        await store._set_many((key, _buffer(GROUP)) for key in keys)
        for prefix in prefixes:
            observed = await _collect_aiterator(store.list_prefix(prefix))
            assert sorted(observed) == sorted(key for key in keys if key.startswith(prefix))

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        keys = ["foo/bar/c/1", "foo/baz/c/0"]
        for key in keys:
            await self.set(store, key, _buffer(DATA))
        expected = sorted([*keys, "foo/bar/zarr.json", "foo/baz/zarr.json"])
        assert sorted(await _collect_aiterator(store.list())) == expected
        assert sorted(await _collect_aiterator(store.list_prefix(""))) == expected
        observed = await _collect_aiterator(store.list_prefix("foo/bar/"))
        assert sorted(observed) == [key for key in expected if key.startswith("foo/bar/")]

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list_dir("")) == ()
        assert await _collect_aiterator(store.list_dir("foo")) == ()
        await self.set(store, "foo/zarr.json", _buffer(GROUP))
        await self.set(store, "foo/first/zarr.json", _buffer(GROUP))
        await self.set(store, "foo/second/c/1", _buffer(DATA))
        for root, expected in {
            "": ["foo"],
            "foo": ["first", "second", "zarr.json"],
            "foo/first": ["zarr.json"],
            "foo/second": ["c", "zarr.json"],
            "foo/second/c": ["1"],
        }.items():
            assert sorted(await _collect_aiterator(store.list_dir(root))) == expected
            assert sorted(await _collect_aiterator(store.list_dir(f"{root}/"))) == expected

    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", _buffer(b"0000"))
        await store.set_if_not_exists("foo/c/0", _buffer(b"1111"))
        await store.set_if_not_exists("foo/c/1", _buffer(b"1111"))
        await store.set_if_not_exists("bar/zarr.json", _buffer(GROUP))
        changed = _buffer(zarr_documents.group(attributes={"a": 1}))
        await store.set_if_not_exists("bar/zarr.json", changed)
        for key, expected in {
            "foo/c/0": b"0000",
            "foo/c/1": b"1111",
            "bar/zarr.json": GROUP,
        }.items():
            assert await store.get(key, default_buffer_prototype()) == _buffer(expected)

    # Only zarr before 3.2 asks stores for whole zarr_documents.
    if hasattr(Store, "_get_bytes"):

        async def test_get_bytes(self, store: Any) -> None:
            await self.set(store, "zarr.json", _buffer(GROUP))
            assert (
                await store._get_bytes("zarr.json", prototype=default_buffer_prototype()) == GROUP
            )
            with pytest.raises(FileNotFoundError):
                await store._get_bytes("foo/zarr.json", prototype=default_buffer_prototype())

        def test_get_bytes_sync(self, store: Any) -> None:
            sync(self.set(store, "zarr.json", _buffer(GROUP)))
            assert store._get_bytes_sync("zarr.json", prototype=default_buffer_prototype()) == GROUP

        async def test_get_json(self, store: Any) -> None:
            await self.set(store, "zarr.json", _buffer(GROUP))
            observed = await store._get_json("zarr.json", prototype=default_buffer_prototype())
            assert observed == json.loads(GROUP)

        def test_get_json_sync(self, store: Any) -> None:
            sync(self.set(store, "zarr.json", _buffer(GROUP)))
            observed = store._get_json_sync("zarr.json", prototype=default_buffer_prototype())
            assert observed == json.loads(GROUP)

    def test_get_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "foo/c/0", _buffer(DATA)))
        result = store.get_sync("foo/c/0")
        assert result is not None
        assert_bytes_equal(result, _buffer(DATA))

    def test_get_sync_missing(self, store: IcechunkStore) -> None:
        assert store.get_sync("foo/c/0") is None
        assert store.get_sync("foo/zarr.json") is None

    def test_set_sync(self, store: IcechunkStore) -> None:
        store.set_sync("foo/zarr.json", _buffer(GROUP))
        assert_bytes_equal(sync(self.get(store, "foo/zarr.json")), _buffer(GROUP))

    def test_delete_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "foo/c/0", _buffer(DATA)))
        store.delete_sync("foo/c/0")
        assert store.get_sync("foo/c/0") is None

    def test_delete_sync_missing(self, store: IcechunkStore) -> None:
        store.delete_sync("foo/c/0")
        store.delete_sync("foo/zarr.json")

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: IcechunkStore, direction: str) -> None:
        await self.set(store, "foo/c/0", _buffer(b"before"))
        if direction == "set_async_get_sync":
            await store.set("foo/c/0", _buffer(DATA))
            result = store.get_sync("foo/c/0")
        else:
            store.set_sync("foo/c/0", _buffer(DATA))
            result = await store.get("foo/c/0", prototype=default_buffer_prototype())
        assert result is not None
        assert_bytes_equal(result, _buffer(DATA))

    async def test_delete_sync_visible_to_async_get(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", _buffer(DATA))
        store.delete_sync("foo/c/0")
        assert await store.get("foo/c/0", prototype=default_buffer_prototype()) is None

    @pytest.mark.parametrize("byte_range", BYTE_RANGES)
    async def test_get_sync_byte_range_parity(
        self, store: IcechunkStore, byte_range: ByteRequest | None
    ) -> None:
        await self.set(store, "foo/c/0", _buffer(DATA))
        found = await store.get("foo/c/0", default_buffer_prototype(), byte_range)
        found_sync = store.get_sync("foo/c/0", byte_range=byte_range)
        assert found is not None
        assert found_sync is not None
        assert_bytes_equal(found_sync, found)
