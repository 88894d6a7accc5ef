"""Stores over storages that are far away: requests wait side by side, the event loop never does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from zarr.core.buffer import cpu, default_buffer_prototype

from icefloe.model.config import PackingConfig, RepositoryConfig
from icefloe.model.ids import SnapshotId
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.storage import MemoryStorage, in_memory_storage
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.latency import LatencyStorage
from icefloe.types import SessionMode
from support import zarr_documents
from support.counting_storage import CountingStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from icefloe.storage import Storage
    from icefloe.storage.forwarding import Request

T = TypeVar("T")
# What an index of an array yields is anything, as zarr's types have it.
zarr: Any = import_module("zarr")
PROTOTYPE = default_buffer_prototype()
NATIVE = RepositoryConfig(inline_chunk_threshold_bytes=0)
PACKED = RepositoryConfig(
    inline_chunk_threshold_bytes=0, packing=PackingConfig(target_object_bytes=40_000)
)
DATA = np.arange(60 * 256, dtype="i4").reshape(60, 256)  # 60 chunks of 1 KiB


class Far:
    """A storage with latency, and a record of what is asked of it."""

    def __init__(self, inner: Storage | None = None, *, latency_ms: int = 20) -> None:
        far = LatencyStorage(
            in_memory_storage() if inner is None else inner,
            read_latency_ms=latency_ms,
            write_latency_ms=latency_ms,
        )
        self.storage = CountingStorage(far)

    def chunk_requests(self, *names: str) -> list[str]:
        return [
            call.name
            for call in self.storage.calls
            if call.key.startswith("chunks/") and call.name in names
        ]

    def forget(self) -> None:
        self.storage.forget()


READS = ("get", "get_ranges", "get_bytes", "get_bytes_async")
WRITES = ("put", "put_async")


def _write(storage: Storage, config: RepositoryConfig) -> None:
    session = Repository.create(storage, config).writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=DATA.shape, chunks=(1, 256), dtype="i4", compressors=None
    )
    array[...] = DATA
    session.commit("an array")


def test_chunks_are_written_and_read_side_by_side() -> None:
    """As many requests are under way as zarr asks for at a time; none is repeated."""
    far = Far()
    _write(far.storage, NATIVE)
    assert len(far.chunk_requests(*WRITES)) == 60
    assert far.storage.most_at_once("put_async") > 5
    far.forget()
    store = Repository.open(far.storage).readonly_session("main").store
    array = zarr.open_array(store, path="a", mode="r")
    np.testing.assert_array_equal(array[...], DATA)
    assert len(far.chunk_requests(*READS)) == 60
    assert far.storage.most_at_once("get_bytes_async") > 5
    kinds = [call.key.partition("/")[0] for call in far.storage.calls]
    assert kinds.count("manifests") == 1
    assert kinds.count("snapshots") == 1


def test_packed_chunks_are_read_together() -> None:
    """What zarr asks for at a time, and lies in one object, is one request."""
    far = Far()
    _write(far.storage, PACKED)
    assert len(far.chunk_requests(*WRITES)) == 2
    far.forget()
    store = Repository.open(far.storage).readonly_session("main").store
    array = zarr.open_array(store, path="a", mode="r")
    np.testing.assert_array_equal(array[...], DATA)
    assert len(far.chunk_requests(*READS)) < 30
    far.forget()
    with zarr.config.set({"async.concurrency": 60}):
        np.testing.assert_array_equal(array[...], DATA)
    assert len(far.chunk_requests(*READS)) < 10


def test_packed_chunks_are_read_before_the_commit() -> None:
    """Chunks that wait in memory, and those in packs that were written, are all there."""
    far = Far(latency_ms=1)
    session = Repository.create(far.storage, PACKED).writable_session("main")
    array = zarr.create_array(
        session.store, shape=DATA.shape, chunks=(1, 256), dtype="i4", compressors=None
    )
    array[...] = DATA
    np.testing.assert_array_equal(array[...], DATA)
    array[10:50] = 0
    expected = DATA.copy()
    expected[10:50] = 0
    np.testing.assert_array_equal(array[...], expected)
    session.commit("packed")
    np.testing.assert_array_equal(array[...], expected)


class LoopGatedStorage(ForwardingStorage):
    """Lets a request of a thread pass only after the event loop has run something else.

    A call that waits for its request in the event loop therefore fails.
    """

    loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_low_latency(self) -> bool:
        return False

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        if self.loop is not None:
            assert threading.get_ident() != self.loop_thread, f"{request} is sent by the event loop"
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(timeout=60)
        return run()

    async def gate(self, work: Awaitable[Any]) -> None:
        """Do some work with the gate in place."""
        self.loop, self.loop_thread = asyncio.get_running_loop(), threading.get_ident()
        await work


@pytest.mark.parametrize("config", [NATIVE, PACKED], ids=["native", "packed"])
def test_the_event_loop_goes_on(config: RepositoryConfig) -> None:
    """No call of the store waits for a request in the event loop."""
    inner = in_memory_storage()
    _write(inner, config)
    tip = SnapshotId.parse(Repository.open(inner).lookup_branch("main"))
    far = LoopGatedStorage(inner)

    async def work() -> None:
        group = cpu.Buffer.from_bytes(zarr_documents.group())
        chunk = cpu.Buffer.from_bytes(b"x" * 20_000)

        async def names(store: Any) -> list[str]:
            return [name async for name in store.list_dir("a")]

        async def keys(store: Any) -> list[str]:
            return [key async for key in store.list_prefix("a")]

        async def batches(store: Any) -> int:
            return len([batch async for batch in store.array_chunk_iterator("a", 10)])

        async def fill_packs(store: Any) -> None:
            await asyncio.gather(*(store.set(f"a/c/{row}/0", chunk) for row in range(4)))

        first_calls: list[Any] = [
            lambda store: store.get("a/zarr.json", PROTOTYPE),
            lambda store: store.get("a/c/3/0", PROTOTYPE),
            lambda store: store.exists("a/c/3/0"),
            lambda store: store.getsize("a/c/3/0"),
            lambda store: store.getsize_prefix("a"),
            lambda store: store.is_empty("a"),
            lambda store: store.set("a/c/3/0", chunk),
            lambda store: store.set("b/zarr.json", group),
            lambda store: store.set_if_not_exists("a/c/3/0", chunk),
            lambda store: store.delete("a/c/3/0"),
            lambda store: store.delete_dir("a/c"),
            lambda store: store.clear(),
            names,
            keys,
            batches,
            fill_packs,
        ]

        async def first_call(call: Any) -> None:
            # A session that has read nothing yet, as one that came from another process.
            connection = (await asyncio.to_thread(Repository.open, far, config))._connection
            session = Session(connection, tip, mode=SessionMode.writable, branch="main")
            await call(session.store)

        await asyncio.gather(*(first_call(call) for call in first_calls))

    asyncio.run(far.gate(work()))


def test_several_event_loops() -> None:
    """One store serves event loops of several threads, at the same time and one after another."""
    far = Far(latency_ms=2)
    _write(far.storage, PACKED)
    store = Repository.open(far.storage).readonly_session("main").store

    async def read() -> list[bytes]:
        calls = [store.get(f"a/c/{row}/0", PROTOTYPE) for row in range(60)]
        return [found.to_bytes() for found in await asyncio.gather(*calls) if found]

    expected = [DATA[row].tobytes() for row in range(60)]
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: asyncio.run(read()), range(8)):
            assert found == expected


@pytest.mark.parametrize("latency_ms", [0, 1])
@pytest.mark.parametrize("config", [NATIVE, PACKED, RepositoryConfig()])
def test_zarr_in_several_threads(config: RepositoryConfig, latency_ms: int) -> None:
    """Threads that write and read different parts of one store do not disturb each other."""
    far = Far(latency_ms=latency_ms)
    repository = Repository.create(far.storage, config)
    session = repository.writable_session("main")
    root = zarr.group(session.store)
    shared = root.create_array("shared", shape=(8, 64), chunks=(1, 8), dtype="i4", compressors=None)
    begin = threading.Barrier(8)

    def work(number: int) -> None:
        begin.wait()
        for turn in range(3):
            own = root.create_array(f"g{number}/a{turn}", shape=(8,), chunks=(2,), dtype="i4")
            own[:] = number
            shared[number] = number * 10 + turn
            assert (own[:] == number).all()
            assert (shared[number] == number * 10 + turn).all()
            own.attrs["turn"] = turn
        del root[f"g{number}/a0"]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    session.commit("by eight threads")
    reader = zarr.open_group(Repository.open(far.storage).readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(
        reader["shared"][...], np.repeat(np.arange(8) * 10 + 2, 64).reshape(8, 64)
    )
    for number in range(8):
        assert sorted(reader[f"g{number}"].array_keys()) == ["a1", "a2"]
        assert (reader[f"g{number}/a2"][:] == number).all()
        assert reader[f"g{number}/a2"].attrs["turn"] == 2


def test_a_failing_request_reaches_everybody_who_waits() -> None:
    """Reads that share a request share its failure; those of other objects go on."""
    far = Far(latency_ms=1)
    _write(far.storage, PACKED)
    chunks = sorted(info.key for info in far.storage.list("chunks/"))
    far.storage.delete_many(chunks[:1])
    store = Repository.open(far.storage).readonly_session("main").store

    async def read() -> list[Any]:
        calls = [store.get(f"a/c/{row}/0", PROTOTYPE) for row in range(60)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(read())
    failed = [result for result in found if isinstance(result, Exception)]
    assert 0 < len(failed) < 60
    assert all(chunks[0] in str(error) for error in failed)
    for row, result in enumerate(found):
        if not isinstance(result, Exception):
            assert result.to_bytes() == DATA[row].tobytes()


@pytest.mark.parametrize("config", [NATIVE, PACKED], ids=["native", "packed"])
def test_s3(s3: Storage, config: RepositoryConfig, generation: str) -> None:
    """A real object store: arrays are written and read back, several requests at a time."""
    counting = CountingStorage(s3)
    session = Repository.create(counting, config, generation=generation).writable_session("main")
    assert not session.store._supports_sync_io
    root = zarr.group(session.store)
    array = root.create_array("a", shape=DATA.shape, chunks=(1, 256), dtype="i4", compressors=None)
    array[...] = DATA
    np.testing.assert_array_equal(array[5:20], DATA[5:20])
    shards = root.create_array(
        "shards", shape=(60, 256), chunks=(1, 16), shards=(60, 64), dtype="i4"
    )
    shards[...] = DATA
    session.commit("over the network")
    counting.forget()
    reader = zarr.open_group(Repository.open(counting).readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(reader["a"][...], DATA)
    np.testing.assert_array_equal(reader["shards"][7:9, 100:200], DATA[7:9, 100:200])
    if config is NATIVE:
        assert counting.most_at_once("get_bytes_async") > 1
    else:
        reads = [call for call in counting.calls if call.key.startswith("chunks/")]
        assert len(reads) < 50


def test_storages_that_answer_at_once_are_read_in_the_event_loop() -> None:
    """Memory is read without a thread in between."""
    storage = CountingStorage(MemoryStorage())
    _write(storage, NATIVE)
    store = Repository.open(storage).readonly_session("main").store
    threads: set[int] = set()
    session = store.session
    read_chunk = session.transaction.read

    def note(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return read_chunk(*arguments)

    session.transaction.read = note  # type: ignore[assignment, method-assign]

    async def read() -> None:
        await asyncio.gather(*(store.get(f"a/c/{row}/0", PROTOTYPE) for row in range(60)))

    asyncio.run(read())
    assert threads == {threading.get_ident()}
