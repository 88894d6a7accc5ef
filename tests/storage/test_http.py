"""A repository behind a web server: read only, with and without range requests."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.model.byte_range import Bounded, From, Last, Until
from icefloe.model.storage_settings import StorageRetriesSettings, StorageSettings
from icefloe.storage import (
    Create,
    Fresh,
    HttpStorage,
    LocalStorage,
    Storage,
    UpdateIfMatch,
    Version,
    gcs_storage,
    http_storage,
)
from support.conditional_web_server import conditional_web_server
from support.web_servers import endless_server, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpStorage]:
    local = LocalStorage(tmp_path / "repository")
    local.put("chunks/R", b"0123456789")
    local.put("empty", b"")
    with web_server(tmp_path, with_ranges=request.param) as url:
        quick = StorageSettings(retries=StorageRetriesSettings(max_tries=2, initial_backoff_ms=1))
        yield http_storage(f"{url}/repository").with_settings(quick)


def test_reading(storage: HttpStorage) -> None:
    """Objects, ranges and sizes are as in other storages, with or without range requests."""
    assert bytes(storage.get("chunks/R").data) == b"0123456789"
    assert storage.head("chunks/R").size_bytes == 10
    for byte_range, expected in (
        (Bounded(2, 5), b"234"),
        (Bounded(5, 5), b""),
        (From(7), b"789"),
        (From(10), b""),
        (Last(3), b"789"),
        (Last(99), b"0123456789"),
        (Until(3), b"0123456"),
    ):
        fetched = storage.get("chunks/R", byte_range)
        assert bytes(fetched.data) == expected
        assert fetched.info.size_bytes == 10
    ranges = [Bounded(7, 9), Bounded(0, 3), Bounded(4, 4)]
    assert [bytes(data) for data in storage.get_ranges("chunks/R", ranges)] == [b"78", b"012", b""]
    assert bytes(storage.get_bytes("chunks/R", 2, 3)) == b"234"
    assert bytes(asyncio.run(storage.get_bytes_async("chunks/R", 2, 3))) == b"234"
    assert not storage.is_low_latency
    assert bytes(storage.get("empty").data) == b""
    assert bytes(storage.get("chunks/R", Bounded(2, 5), max_bytes=3).data) == b"234"
    with pytest.raises(StorageError, match="10 bytes"):
        storage.get("chunks/R", max_bytes=9)


@pytest.mark.parametrize("service", ["http", "gcs"])
@pytest.mark.parametrize("checks", [True, False])
def test_an_unchanged_object_is_not_sent(service: str, checks: bool) -> None:  # noqa: FBT001
    """One request; a server that ignores the condition sends the object, which is compared."""
    with conditional_web_server({"/bucket/repo": b"first"}, checks=checks) as server:
        storage: Storage
        if service == "http":
            storage = http_storage(f"{server.url}/bucket")
        else:
            config = {"google_base_url": server.url, "allow_http": "true"}
            storage = gcs_storage(bucket="bucket", prefix="", anonymous=True, config=config)
        version = storage.get("repo").info.version
        server.answers.clear()
        assert storage.get_if_changed("repo", version) is None
        assert server.answers == [(304, b"") if checks else (200, b"first")]
        server.files["/bucket/repo"] = b"second"
        fetched = storage.get_if_changed("repo", version)
        assert fetched is not None
        assert bytes(fetched.data) == b"second"


def test_an_object_without_entity_tag_is_sent() -> None:
    """Without a version to compare, the object counts as changed."""
    with conditional_web_server({"/repo": b"first"}, tells=False) as server:
        storage = http_storage(server.url)
        fetched = storage.get_if_changed("repo", storage.get("repo").info.version)
        assert fetched is not None
        assert bytes(fetched.data) == b"first"
        assert [asked.get("If-None-Match") for asked in server.asked] == [None, None]


def test_ranges_past_the_end_raise(storage: HttpStorage) -> None:
    """A range past the end raises."""
    for byte_range in (Bounded(0, 11), Bounded(11, 12), From(11)):
        with pytest.raises(InvalidInputError, match="10 bytes"):
            storage.get("chunks/R", byte_range)
    with pytest.raises(InvalidInputError, match="10 bytes"):
        storage.get_ranges("chunks/R", [Bounded(0, 2), Bounded(9, 11)])
    for start, length in ((0, 11), (11, 1)):
        with pytest.raises(InvalidInputError, match="10 bytes"):
            storage.get_bytes("chunks/R", start, length)
        with pytest.raises(InvalidInputError, match="10 bytes"):
            asyncio.run(storage.get_bytes_async("chunks/R", start, length))


def test_missing_objects(storage: HttpStorage) -> None:
    """A 404 is a missing object."""
    with pytest.raises(ObjectNotFoundError):
        storage.get("chunks/X")
    with pytest.raises(ObjectNotFoundError):
        storage.head("chunks/X")
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(storage.get_bytes_async("chunks/X", 0, 1))
    with pytest.raises(ObjectNotFoundError):
        storage.get_ranges("chunks/X", [Bounded(0, 1)])


def test_writes_raise(storage: HttpStorage) -> None:
    """No write is ever sent to a web server."""
    assert storage.read_only
    for write in (
        lambda: storage.put("repo", b"x"),
        lambda: storage.put("repo", b"x", Fresh()),
        lambda: asyncio.run(storage.put_async("repo", b"x")),
        lambda: storage.put("repo", b"x", Create()),
        lambda: storage.put("repo", b"x", UpdateIfMatch(Version("1"))),
        lambda: storage.delete_many(["chunks/R"]),
        lambda: storage.copy("chunks/R", "chunks/S"),
    ):
        with pytest.raises(ReadOnlyError):
            write()
    assert bytes(storage.get("chunks/R").data) == b"0123456789"


def test_list_raises_with_advice(storage: HttpStorage) -> None:
    """A server without WebDAV cannot list, and the error says what to do."""
    with pytest.raises(StorageError, match="cannot list"):
        list(storage.list("chunks/"))


def test_pickles(storage: HttpStorage) -> None:
    """A pickled storage reads the same objects and is still read-only."""
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert bytes(again.get("chunks/R").data) == b"0123456789"
    assert again.read_only


def test_more_bytes_than_announced_end_the_read() -> None:
    """A response that is longer than its range is an error, and is not received to its end."""
    head = f"206 x\r\nContent-Range: bytes 0-9/99\r\nContent-Length: {2**33}"
    with endless_server({"/R": head}) as server:
        quick = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
        storage = http_storage(server.url).with_settings(quick)
        for read in (
            lambda: storage.get("R", Bounded(0, 10)),
            lambda: storage.get_bytes("R", 0, 10),
            lambda: asyncio.run(storage.get_bytes_async("R", 0, 10)),
        ):
            with pytest.raises(StorageError, match="more bytes than requested"):
                read()
    assert server.num_bytes < 128 << 20
