"""Forwarding storages with latency, counting and failures handle every request exactly once."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.model.byte_range import Bounded
from icefloe.model.storage_settings import StorageSettings
from icefloe.storage import (
    Create,
    Fresh,
    LatencyStorage,
    LocalStorage,
    MemoryStorage,
    Storage,
    Version,
)
from icefloe.storage.forwarding import ForwardingStorage
from support.counting_storage import CountingStorage, overlapping
from support.faulty_storage import FaultyStorage

if TYPE_CHECKING:
    from pathlib import Path


async def use_everything(storage: ForwardingStorage) -> None:
    """Make every kind of request once."""
    storage.put("a", b"0123456789", Create())
    await storage.put_async("b", b"0123")
    storage.get("a")
    storage.get_if_changed("a", Version())
    storage.get_if_changed("a", storage.inner.head("a").version)
    storage.get_ranges("a", [Bounded(0, 2), Bounded(4, 5)])
    storage.get_bytes("a", 1, 4)
    await storage.get_bytes_async("a", 2, 5)
    storage.head("a")
    list(storage.list())
    storage.list_first("x/", 2)
    storage.copy("a", "c")
    storage.delete_many(iter(["a", "b"]))


def test_every_request_is_recorded_once() -> None:
    """The record has each request with its keys and bytes, in order."""
    storage = CountingStorage(MemoryStorage())
    asyncio.run(use_everything(storage))
    assert [(call.name, call.keys, call.size_bytes) for call in storage.calls] == [
        ("put", ("a",), 10),
        ("put_async", ("b",), 4),
        ("get", ("a",), 10),
        ("get_if_changed", ("a",), 10),
        ("get_if_changed", ("a",), 0),
        ("get_ranges", ("a",), 3),
        ("get_bytes", ("a",), 4),
        ("get_bytes_async", ("a",), 5),
        ("head", ("a",), 0),
        ("list", ("",), 0),
        ("list_first", ("x/",), 0),
        ("copy", ("a", "c"), 0),
        ("delete_many", ("a", "b"), 0),
    ]
    assert all(call.started <= call.ended and not call.failed for call in storage.calls)
    assert storage.counts()["get_bytes"] == 1
    assert storage.keys("copy") == ["a", "c"]
    assert storage.size_bytes("get_ranges") == 3
    storage.forget()
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")
    assert [(call.name, call.key, call.failed) for call in storage.calls] == [("get", "a", True)]
    storage.with_settings(StorageSettings()).head("c")
    assert storage.names() == ["get", "head"]


def test_every_method_is_forwarded() -> None:
    """A method that is added to the interface has to be forwarded too, or it is counted twice."""
    inherited = {"list_objects", "list_objects_metadata"}  # which are made of `list`
    named = {
        name
        for name, value in vars(Storage).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    assert named - set(vars(ForwardingStorage)) == inherited


def test_concurrent_requests_are_recorded() -> None:
    """Concurrent requests are distinguished from sequential ones."""
    storage = CountingStorage(LatencyStorage(MemoryStorage(), read_latency_ms=50))
    storage.put("a", b"x")
    storage.get("a")
    storage.get("a")
    assert storage.most_at_once() == 1
    assert not storage.calls[1].overlaps(storage.calls[2])
    storage.forget()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(storage.get, ["a"] * 4))
    assert storage.most_at_once("get") == 4
    assert overlapping(storage.calls)
    storage.forget()

    async def many() -> None:
        await asyncio.gather(*(storage.get_bytes_async("a", 0, 1) for _ in range(20)))

    asyncio.run(many())
    assert storage.most_at_once("get_bytes_async") == 20


def test_latencies() -> None:
    """Reads and writes are delayed by the latencies of the storage."""
    storage = LatencyStorage(MemoryStorage(), write_latency_ms=30)
    assert (storage.write_latency_ms, storage.read_latency_ms) == (30, 0)
    started = time.monotonic()
    storage.put("a", b"x", Fresh())
    storage.delete_many(["b"])
    assert time.monotonic() - started >= 0.06
    storage.write_latency_ms, storage.read_latency_ms = 0, 20
    started = time.monotonic()
    storage.get_bytes("a", 0, 1)
    asyncio.run(storage.get_bytes_async("a", 0, 1))
    list(storage.list())
    assert time.monotonic() - started >= 0.06
    with pytest.raises(InvalidInputError):
        LatencyStorage(MemoryStorage(), read_latency_ms=-1)


def test_latency_is_not_low_latency() -> None:
    """A storage with read latency is not a low-latency storage."""
    assert LatencyStorage(MemoryStorage(), write_latency_ms=1).is_low_latency
    assert not LatencyStorage(MemoryStorage(), read_latency_ms=1).is_low_latency
    assert CountingStorage(MemoryStorage()).is_low_latency


def test_a_latency_storage_is_the_same_storage(tmp_path: Path) -> None:
    """It has the objects, the URL and the settings of the inner storage, also after pickling."""
    inner = LocalStorage(tmp_path)
    storage = LatencyStorage(inner, read_latency_ms=1)
    storage.put("a", b"x")
    assert storage.url == inner.url
    assert storage.inner is inner
    assert storage.default_settings() == inner.default_settings()
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert again.read_latency_ms == 1
    assert bytes(again.get("a").data) == b"x"


def test_failures_on_command() -> None:
    """A single request fails, before or after it takes effect."""

    def fail_second_put(number: int, name: str, key: str) -> None:
        if name.startswith("put") and key == "b":
            raise StorageError(f"request {number} of {key} failed")

    inner = MemoryStorage()
    storage = FaultyStorage(inner, fail_second_put)
    storage.put("a", b"x")
    with pytest.raises(StorageError, match="request 1 of b"):
        storage.put("b", b"x", Fresh())
    with pytest.raises(StorageError, match="request 2 of b"):
        asyncio.run(storage.put_async("b", b"x"))
    assert [info.key for info in inner.list()] == ["a"]
    after = FaultyStorage(inner, fail_after=fail_second_put)
    with pytest.raises(StorageError, match="request 0 of b"):
        after.put("b", b"x")
    assert [info.key for info in inner.list()] == ["a", "b"]
