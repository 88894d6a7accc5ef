"""The cache: bounded in bytes, single-flight, and without failed loads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.assets.cache import Cache
from icefloe.errors import StorageError


@settings(deadline=None)
@given(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=40))
def test_size_limit_and_eviction(max_bytes: int, asked: list[tuple[int, int]]) -> None:
    """The cache never exceeds its limit, and evicts the least recently used values."""
    cache: Cache[int, bytes] = Cache(max_bytes, len)
    model: dict[int, bytes] = {}
    for key, size in asked:
        loads: list[int] = []

        def load(key: int = key, size: int = size, loads: list[int] = loads) -> bytes:
            loads.append(key)
            return bytes(size)

        value = cache.get(key, load)
        if key in model:
            assert loads == []
            assert value == model[key]
            model[key] = model.pop(key)
        else:
            assert loads == [key]
            assert value == bytes(size)
            if size <= max_bytes:
                model[key] = value
            while sum(map(len, model.values())) > max_bytes:
                del model[next(iter(model))]
        assert cache.nbytes == sum(map(len, model.values())) <= max_bytes
        assert {key for key in range(7) if key in cache} == set(model)


def test_put_keeps_cached_values() -> None:
    """A cached value is not replaced, and a value that is too large is not cached."""
    cache: Cache[str, bytes] = Cache(10, len)
    cache.put("a", b"one")
    cache.put("a", b"other")
    cache.put("b", bytes(11))
    assert cache.get("a", lambda: b"never") == b"one"
    assert "b" not in cache
    assert cache.nbytes == 3


@pytest.mark.parametrize("max_bytes", [100, 0], ids=["kept", "too large to be kept"])
def test_concurrent_callers_share_one_load(max_bytes: int) -> None:
    """Concurrent callers share one load and get its value."""
    cache: Cache[str, bytes] = Cache(max_bytes, len)
    loads = []
    everybody_asks = threading.Barrier(8)
    go = threading.Event()

    def load() -> bytes:
        loads.append(threading.get_ident())
        go.wait(10)
        return b"value"

    def ask() -> bytes:
        everybody_asks.wait(10)
        return cache.get("key", load)

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask) for _ in range(8)]
        time.sleep(0.2)
        go.set()
        assert [answer.result() for answer in answers] == [b"value"] * 8
    assert len(loads) == 1


def test_other_keys_do_not_wait() -> None:
    """Other keys are read and loaded while one loads."""
    cache: Cache[str, bytes] = Cache(100, len)
    started, go = threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        go.wait(10)
        return b"slow"

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cache.get, "slow", slow)
        started.wait(10)
        assert cache.get("other", lambda: b"other") == b"other"
        go.set()
        assert answer.result() == b"slow"


def test_failures_are_not_cached() -> None:
    """Callers that wait for a failing load get its error; later callers load again."""
    cache: Cache[str, bytes] = Cache(100, len)
    started, go = threading.Event(), threading.Event()

    def fail() -> bytes:
        started.set()
        go.wait(10)
        raise StorageError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "key", fail)
        started.wait(10)
        second = pool.submit(cache.get, "key", fail)
        time.sleep(0.1)
        go.set()
        for answer in (first, second):
            with pytest.raises(StorageError):
                answer.result()
    assert "key" not in cache
    assert cache.get("key", lambda: b"works") == b"works"


def test_a_value_that_grew() -> None:
    """Its new size counts, and evicts others."""
    sizes = {"a": 1, "b": 2}
    cache: Cache[str, str] = Cache(4, lambda value: sizes[value])
    cache.put("a", "a")
    cache.put("b", "b")
    sizes["b"] = 4
    cache.update_size("b")
    cache.update_size("missing")
    assert cache.nbytes == 4
    assert cache.find("a") is None
    assert cache.find("b") == "b"
