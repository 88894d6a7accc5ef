"""Virtual chunks on web servers: ranges, conditions, and servers that know neither."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING

import pytest

from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.model.chunk_payload import ETag, LastModified, VirtualChunkRef
from icefloe.model.containers import VirtualChunkContainer
from icefloe.storage import Credentials, http_store, in_memory_storage
from support.conditional_web_server import (
    CHANGED_AT_SECONDS,
    WebFiles,
    conditional_web_server,
    etag_of,
)
from support.web_servers import endless_server, web_server

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


def test_redirects_stay_below_the_prefix() -> None:
    """A redirect inside the container is followed; any other is refused, and sends nothing."""
    with conditional_web_server(FILES | {"/data/b.nc": SMALL}) as other:
        redirects = {
            "/data/inside": "b.nc",
            "/data/twice": "/data/inside",
            "/data/forever": "/data/forever",
            "/data/server": f"{other.url}/data/b.nc",
            "/data/user": "http://user:password@127.0.0.1/data/b.nc",
            "/data/scheme": "file:///data/b.nc",
            "/data/outside": "/private/x",
            "/data/sibling": "/database/x",
            "/data/dots": "/data/%2e%2e/private/x",
            "/data/slashes": "/data/..%2Fprivate/x",
            "/data/backslashes": "/data/..\\private/x",
            "/data/invalid": "http://[",
        }
        files = {"/data/b.nc": SMALL, "/private/x": b"secret", "/database/x": b"secret"}
        with conditional_web_server(files, redirects=redirects) as web:
            chunks = open_chunks(web.url, {"X-Key": "key", "Authorization": "Bearer token"})
            for name in ("inside", "twice"):
                ref = VirtualChunkRef(f"{web.url}/data/{name}", 2, 6)
                assert fetch_chunk(chunks, ref, 0, 6) == SMALL[2:8]
            web.answers.clear()
            for path in redirects:
                if path in {"/data/inside", "/data/twice"}:
                    continue
                for checksum in (None, LastModified(2**31)):
                    ref = VirtualChunkRef(web.url + path, 0, 5, checksum)
                    error = fetch_error(chunks, ref)
                    assert "redirect" in error.message
                    assert path in error.message
                    assert "password" not in error.message
            assert {status for status, _ in web.answers} == {302}
            assert other.num_connections == 0


@pytest.mark.parametrize(
    "path, head, problem",
    [
        ("/data/length", "206 x\r\nContent-Range: bytes 0-9/99\r\nContent-Length: 1{z}", "range"),
        (
            "/data/range",
            "206 x\r\nContent-Range: bytes 0-99{z}/1{z}00\r\nContent-Length: 99{z}",
            "range",
        ),
        ("/data/start", "206 x\r\nContent-Range: bytes 5-14/99\r\nContent-Length: 10", "got"),
        ("/data/total", "206 x\r\nContent-Range: bytes 0-9/5\r\nContent-Length: 10", "range"),
        ("/data/none", "206 x\r\nContent-Length: 10", "range"),
        ("/data/two", "200 x\r\nContent-Length: 10\r\nContent-Length: 1{z}", "content-length"),
        (
            "/data/chunked",
            "206 x\r\nContent-Range: bytes 0-9/99\r\nTransfer-Encoding: chunked",
            "more than",
        ),
    ],
)
def test_contradicting_responses(path: str, head: str, problem: str) -> None:
    """A response that is not the range is an error, found before its content is received."""
    head = head.replace("{z}", "0" * 9)
    with endless_server({path: head}) as server:
        ref = VirtualChunkRef(server.url + path, 0, 10)
        error = fetch_error(open_chunks(server.url), ref)
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
    assert problem in error.message.lower()
    assert server.num_bytes < 64 << 20


def test_a_file_instead_of_a_range_is_read_to_the_end_of_the_range() -> None:
    """A server without ranges may send any amount: the rest is not received."""
    with endless_server({"/data/a": f"200 x\r\nContent-Length: {2**33}"}) as server:
        ref = VirtualChunkRef(f"{server.url}/data/a", 2**20, 10)
        assert fetch_chunk(open_chunks(server.url), ref, 0, 10) == bytes(10)
    assert server.num_bytes < 64 << 20


def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through ``HTTP_PROXY`` with its password, unless ``NO_PROXY`` has the host."""
    with conditional_web_server(
        {"http://example.org/data/a.nc": SMALL, "/data/a.nc": SMALL}
    ) as web:
        monkeypatch.setenv("http_proxy", web.url.replace("//", "//me:pass%20word@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for url in ("http://example.org", web.url):
            ref = VirtualChunkRef(f"{url}/data/a.nc", 2, 3)
            assert fetch_chunk(open_chunks(url), ref, 0, 3) == b"234"
        proxied, direct = web.asked[1], web.asked[-1]
        assert proxied["path"] == "http://example.org/data/a.nc"
        assert b64decode(proxied["proxy-authorization"].split()[1]) == b"me:pass word"
        assert "proxy-authorization" not in direct


def test_connections_are_kept() -> None:
    """Requests one after another share a connection."""
    with conditional_web_server(FILES) as web:
        chunks = open_chunks(web.url)
        for _ in range(5):
            chunks.fetch(VirtualChunkRef(f"{web.url}/data/a%20b.nc", 0, 10), 0, 10)
        assert web.num_connections == 1


def test_options_of_a_container() -> None:
    """Timeouts and the user agent are used; options that redirect or are unknown are refused."""
    with conditional_web_server(FILES) as web:
        prefix, location = f"{web.url}/data/", f"{web.url}/data/a%20b.nc"

        def fetch(**opts: str) -> bytes:
            container = VirtualChunkContainer(prefix, http_store(opts))
            access = {prefix: Credentials.HttpAccess()}
            chunks = VirtualChunks([container], access, in_memory_storage())
            return bytes(chunks.fetch(VirtualChunkRef(location, 0, 3), 0, 3))

        assert fetch() == b"012"
        assert web.asked[-1]["user-agent"].startswith("icefloe/")
        assert fetch(user_agent="us", timeout="30s", allow_http="true", http1_only="true") == b"012"
        assert web.asked[-1]["user-agent"] == "us"
        with pytest.raises(InvalidInputError, match="proxy_url"):
            fetch(proxy_url="http://127.0.0.1:1")
        with pytest.raises(InvalidInputError, match="duration"):
            fetch(timeout="soon")
