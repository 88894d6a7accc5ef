"""Zarr's synchronous codec pipeline: used where the storage answers at once, and only there.

Newer zarr has `FusedCodecPipeline`, which a configuration selects. It calls `get_sync`, `set_sync`
and `delete_sync` of a store that has all three and does not say ``_supports_sync_io = False``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline
from zarr.core.sync import _collect_aiterator, sync

from icefloe.repository import Repository
from icefloe.storage import in_memory_storage
from icefloe.storage.latency import LatencyStorage
from icefloe.store import IcechunkStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage import Storage

pytestmark = pytest.mark.skipif(
    not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"),
    reason=f"THE SYNCHRONOUS PATH IS NOT TESTED: zarr {zarr.__version__} has none",
)

SHARDS = {"shards": (4, 32), "chunks": (1, 8)}
CHUNKS = {"chunks": (1, 8)}


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    path = "zarr.core.codec_pipeline.FusedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": path}):
        yield


class NotingStore(IcechunkStore):
    """A store that counts which of its methods are called for chunks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: Counter[str] = Counter()

    def _note(self, name: str, key: str) -> None:
        if "/c/" in key:
            self.calls[name] += 1

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        self._note("get", key)
        return await super().get(key, *args, **kwargs)

    async def set(self, key: str, *args: Any) -> None:
        self._note("set", key)
        await super().set(key, *args)

    async def delete(self, key: str) -> None:
        self._note("delete", key)
        await super().delete(key)

    def get_sync(self, key: str, **kwargs: Any) -> Any:
        self._note("get_sync", key)
        return super().get_sync(key, **kwargs)

    def set_sync(self, key: str, *args: Any) -> None:
        self._note("set_sync", key)
        super().set_sync(key, *args)

    def delete_sync(self, key: str) -> None:
        self._note("delete_sync", key)
        super().delete_sync(key)


def _use(storage: Storage, settings: dict[str, Any]) -> set[str]:
    """Write, change, empty and read an array; tell which methods of the store it took."""
    repository = Repository.create(storage)
    session = repository.writable_session("main")
    store = NotingStore(session)
    data = np.arange(1, 16 * 32 + 1, dtype="i4").reshape(16, 32)
    array = zarr.create_array(store, name="a", shape=(16, 32), dtype="i4", **settings)
    array[...] = data
    array[1, 3:5] = 7
    array[8:12] = 0
    expected = data.copy()
    expected[1, 3:5] = 7
    expected[8:12] = 0
    np.testing.assert_array_equal(array[...], expected)
    session.commit("an array")
    reading = NotingStore(Repository.open(storage).readonly_session("main"))
    array = zarr.open_array(reading, path="a", mode="r")
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(array[3, 5:9], expected[3, 5:9])
    keys = sync(_collect_aiterator(reading.list()))
    assert not any(key.startswith("a/c/8" if settings is CHUNKS else "a/c/2") for key in keys)
    return {name for name, count in (store.calls + reading.calls).items() if count}


@pytest.mark.parametrize("settings", [CHUNKS, SHARDS], ids=["chunks", "shards"])
def test_used_where_answers_come_at_once(storage: Storage, settings: dict[str, Any]) -> None:
    """Memory and local disks: no coroutine is made for any chunk."""
    assert _use(storage, settings) == {"get_sync", "set_sync", "delete_sync"}


@pytest.mark.parametrize("settings", [CHUNKS, SHARDS], ids=["chunks", "shards"])
def test_not_used_where_requests_should_wait_side_by_side(settings: dict[str, Any]) -> None:
    """Remote storages: chunks are asked for together, in the event loop."""
    storage = LatencyStorage(in_memory_storage(), read_latency_ms=1)
    assert _use(storage, settings) == {"get", "set", "delete"}


def test_not_used_unless_zarr_is_told_to() -> None:
    """Zarr's own default is the asynchronous pipeline, on every store."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        assert _use(in_memory_storage(), CHUNKS) == {"get", "set", "delete"}
