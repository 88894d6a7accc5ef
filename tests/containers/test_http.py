"""Virtual chunks on web servers: ranges, conditions, and servers that know neither."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, StorageError
from icefloe.model.chunk_payload import ETag, LastModified, VirtualChunkRef
from icefloe.model.containers import VirtualChunkContainer
from icefloe.storage import Credentials, http_store, in_memory_storage
from support.conditional_web_server import (
    CHANGED_AT_SECONDS,
    WebFiles,
    conditional_web_server,
    etag_of,
)
from support.web_servers import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.model.chunk_payload import Checksum

SMALL = b"0123456789"
LARGE = bytes(range(251)) * 130_000  # 31 MiB
FILES = {"/data/a b.nc": SMALL, "/data/large.nc": LARGE, "/private/x": b"secret"}


def open_chunks(url: str, headers: dict[str, str] | None = None) -> VirtualChunks:
    prefix = f"{url}/data/"
    return VirtualChunks(
        [VirtualChunkContainer(prefix, http_store(headers=headers), name="web")],
        {prefix: Credentials.HttpAccess()},
        in_memory_storage(),
    )


def fetch_chunk(chunks: VirtualChunks, ref: VirtualChunkRef, start: int, length: int) -> bytes:
    """Fetch in both ways, which must agree."""
    found = bytes(chunks.fetch(ref, start, length))
    assert bytes(asyncio.run(chunks.fetch_async(ref, start, length))) == found
    return found


def fetch_error(chunks: VirtualChunks, ref: VirtualChunkRef) -> StorageError:
    with pytest.raises(StorageError) as first:
        chunks.fetch(ref, 0, ref.length)
    with pytest.raises(StorageError) as second:
        asyncio.run(chunks.fetch_async(ref, 0, ref.length))
    assert first.value.kind is second.value.kind
    return first.value


def test_one_request_with_its_headers() -> None:
    """A chunk is one range request; what the container says is sent along."""
    with conditional_web_server(FILES) as web:
        chunks = open_chunks(web.url, {"X-Told": "yes"})
        ref = VirtualChunkRef(f"{web.url}/data/a%20b.nc?download=1", 2, 6)
        assert bytes(chunks.fetch(ref, 1, 3)) == b"345"
        (asked,) = web.asked
        assert asked["path"] == "/data/a%20b.nc"
        assert asked["range"] == "bytes=3-5"
        assert asked["x-told"] == "yes"
        assert fetch_chunk(chunks, VirtualChunkRef("vcc://web/a b.nc", 0, 10), 0, 10) == SMALL


@pytest.mark.parametrize("checksum", [None, ETag(etag_of(LARGE)), LastModified(CHANGED_AT_SECONDS)])
def test_large_parts_come_in_parallel_ranges(checksum: Checksum | None) -> None:
    """More than 12 MiB take several requests, each with the condition."""
    with conditional_web_server(FILES) as web:
        chunks = open_chunks(web.url)
        ref = VirtualChunkRef(f"{web.url}/data/large.nc", 7, len(LARGE) - 7, checksum)
        assert bytes(chunks.fetch(ref, 0, ref.length)) == LARGE[7:]
        assert len(web.asked) == 3
        _all_conditional(web, checksum)
        web.asked.clear()
        assert bytes(asyncio.run(chunks.fetch_async(ref, 0, ref.length))) == LARGE[7:]
        assert len(web.asked) == 3
        _all_conditional(web, checksum)
        web.asked.clear()
        assert bytes(chunks.fetch(ref, 0, 12 * 2**20)) == LARGE[7 : 7 + 12 * 2**20]
        assert len(web.asked) == 1


def _all_conditional(web: WebFiles, checksum: Checksum | None) -> None:
    conditions = {
        (request.get("if-match"), request.get("if-unmodified-since")) for request in web.asked
    }
    match checksum:
        case None:
            assert conditions == {(None, None)}
        case ETag(value):
            assert conditions == {(value, None)}
        case LastModified():
            assert conditions == {(None, "Mon, 01 Jan 2024 00:00:10 GMT")}


@pytest.mark.parametrize("checks", [True, False], ids=["checks", "ignores conditions"])
def test_changed_files_are_refused(*, checks: bool) -> None:
    """Whether the server checks or only tells, a file that changed is not read."""
    with conditional_web_server(FILES, checks=checks) as web:
        chunks = open_chunks(web.url)
        url = f"{web.url}/data/a%20b.nc"
        bare = etag_of(SMALL).strip('"')
        for good in (
            ETag(bare),
            ETag(f'"{bare}"'),
            ETag(f'W/"{bare}"'),
            LastModified(CHANGED_AT_SECONDS),
            LastModified(CHANGED_AT_SECONDS + 5),
        ):
            assert fetch_chunk(chunks, VirtualChunkRef(url, 0, 10, good), 0, 10) == SMALL
        for bad, expected, found in (
            (ETag("old"), "'old'", bare),
            (ETag('W/"old"'), "'old'", bare),
            (LastModified(CHANGED_AT_SECONDS - 1), "00:00:09 UTC", "00:00:10 UTC"),
        ):
            error = fetch_error(chunks, VirtualChunkRef(url, 0, 10, bad))
            assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
            assert url in error.message
            assert expected in error.message
            assert found in error.message
        large = VirtualChunkRef(f"{web.url}/data/large.nc", 0, len(LARGE), ETag("old"))
        assert fetch_error(chunks, large).kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED


def test_a_server_that_tells_nothing() -> None:
    """An entity tag that cannot be confirmed is refused; an unknown time contradicts nothing."""
    with conditional_web_server(FILES, checks=False, tells=False) as web:
        chunks, url = open_chunks(web.url), f"{web.url}/data/a%20b.nc"
        error = fetch_error(chunks, VirtualChunkRef(url, 0, 10, ETag("tag")))
        assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
        assert "unknown" in error.message
        assert fetch_chunk(chunks, VirtualChunkRef(url, 0, 10, LastModified(1)), 0, 10) == SMALL


@pytest.mark.parametrize("checksum", [None, LastModified(CHANGED_AT_SECONDS)])
def test_short_and_missing_files(checksum: Checksum | None) -> None:
    """The file is named, and the kind tells the two apart."""
    with conditional_web_server(FILES) as web:
        chunks, url = open_chunks(web.url), f"{web.url}/data/a%20b.nc"
        for offset, length in ((5, 6), (10, 1), (5, 2**40), (2**63, 1)):
            error = fetch_error(chunks, VirtualChunkRef(url, offset, length, checksum))
            assert error.kind is ErrorKind.INVALID_OBJECT_SIZE
            assert url in error.message
        missing = VirtualChunkRef(f"{web.url}/data/missing.nc", 0, 1, checksum)
        error = fetch_error(chunks, missing)
        assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
        assert "missing.nc" in error.message


@pytest.mark.parametrize("with_ranges", [True, False])
@pytest.mark.parametrize("checksum", [None, LastModified(2**31)])
def test_servers_without_ranges(
    tmp_path: Path, checksum: Checksum | None, *, with_ranges: bool
) -> None:
    """Where the whole file comes, the chunk is cut from it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.nc").write_bytes(SMALL)
    with web_server(tmp_path, with_ranges=with_ranges) as url:
        ref = VirtualChunkRef(f"{url}/data/a.nc", 2, 6, checksum)
        assert fetch_chunk(open_chunks(url), ref, 1, 3) == b"345"
