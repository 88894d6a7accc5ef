"""Virtual chunks of one file that are asked for together come in few requests.

Against a real web server that writes down what it was asked for.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.containers import virtual_chunks
from icefloe.containers.stores import open_store
from icefloe.errors import ErrorKind, IcefloeError
from support.conditional_web_server import (
    CHANGED_AT_SECONDS,
    WebFiles,
    conditional_web_server,
    etag_of,
)
from support.referring_repositories import new_repository, session_with

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 2**20
DATA = np.random.default_rng(0).integers(0, 256, 22 * MIB, np.uint8).tobytes()
FILES = {"/data/large.nc": DATA, "/data/other.nc": DATA[:1000]}
CHECKSUMS = [None, etag_of(DATA), CHANGED_AT_SECONDS]


def open_session(
    web: WebFiles, ranges: Sequence[tuple[int, int]], checksum: Any = None
) -> icefloe.Session:
    """Refer to ranges of the large file, one for each chunk of the array ``a``."""
    prefix = f"{web.url}/data/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.http_store(), name="web")
    )
    repository = new_repository(
        config=config,
        authorize_virtual_chunk_access={prefix: icefloe.Credentials.HttpAccess()},
    )
    session = session_with({"a": (len(ranges),)}, repository)
    starts, sizes = (np.array(column, np.uint64) for column in zip(*ranges, strict=True))
    locations = [f"{prefix}large.nc"] * len(ranges)
    session.store.set_virtual_refs_arr(
        "a", (len(ranges),), locations, starts, sizes, checksum=checksum
    )
    return session


class Gathering(dict[str, bytes]):
    """Files that are served only after six requests, or after a timeout."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self._barrier = threading.Barrier(6)
        self.is_complete = False

    def get(self, key: str, default: Any = None) -> Any:
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(10)
            self.is_complete = True
        return super().get(key, default)


def read_all(store: Any, count: int) -> list[bytes | IcefloeError]:
    """Ask for all chunks of ``a`` at the same time; what fails is returned as well."""

    async def read_one(row: int) -> bytes | IcefloeError:
        try:
            found = await store.get(f"a/c/{row}", default_buffer_prototype())
        except IcefloeError as error:
            return error
        data: bytes = found.to_bytes()
        return data

    async def read() -> list[bytes | IcefloeError]:
        return await asyncio.gather(*map(read_one, range(count)))

    return asyncio.run(read())


@pytest.mark.parametrize("checksum", CHECKSUMS, ids=["none", "etag", "time"])
def test_neighbours_share_a_request(checksum: Any) -> None:
    """A hundred chunks that lie side by side, in any order, are one request with the condition."""
    ranges = [(row * 37 % 100 * 1000, 1000) for row in range(100)]
    with conditional_web_server(FILES) as web:
        session = open_session(web, ranges, checksum)
        found = read_all(session.store, 100)
        assert found == [DATA[start : start + size] for start, size in ranges]
        (asked,) = web.asked
        assert asked["range"] == "bytes=0-99999"
        assert ("if-match" in asked, "if-unmodified-since" in asked) == (
            isinstance(checksum, str),
            isinstance(checksum, int),
        )


def test_what_lies_far_apart_or_is_large_does_not() -> None:
    """Gaps of more than 1 MiB, and more than 12 MiB together, make requests of their own."""
    ranges = [
        (0, 1000),
        (MIB, 1000),  # 1 MiB less 1000 bytes behind the first
        (3 * MIB, 1000),
        (5 * MIB, 8 * MIB),
        (13 * MIB, 8 * MIB),
        (13 * MIB + 5, 10),
    ]
    with conditional_web_server(FILES) as web:
        session = open_session(web, ranges)
        found = read_all(session.store, len(ranges))
        assert found == [DATA[start : start + size] for start, size in ranges]
        assert sorted(request["range"] for request in web.asked) == sorted(
            f"bytes={start}-{end - 1}"
            for start, end in (
                (0, MIB + 1000),
                (3 * MIB, 3 * MIB + 1000),
                (5 * MIB, 13 * MIB),
                (13 * MIB, 21 * MIB),
            )
        )


def test_another_checksum_is_another_request() -> None:
    """A condition is for a whole request, so that chunks with different ones do not share it."""
    with conditional_web_server(FILES) as web:
        session = open_session(web, [(0, 10), (10, 10), (20, 10)], ["old", etag_of(DATA), None])
        changed, *found = read_all(session.store, 3)
        assert found == [DATA[10:20], DATA[20:30]]
        assert isinstance(changed, IcefloeError)
        assert changed.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
        assert sum(request["method"] == "GET" for request in web.asked) == 3


@pytest.mark.parametrize("checks", [True, False], ids=["checks", "ignores conditions"])
def test_a_changed_file_fails_for_all(*, checks: bool) -> None:
    """Each chunk of a file that changed fails as it would alone; no request is repeated."""
    with conditional_web_server(FILES, checks=checks) as web:
        session = open_session(web, [(0, 10), (10, 10)], "old")
        kinds = {
            result.kind for result in read_all(session.store, 2) if isinstance(result, IcefloeError)
        }
        assert kinds == {ErrorKind.VIRTUAL_CHUNK_MODIFIED}
        assert sum(request["method"] == "GET" for request in web.asked) == 1


@pytest.mark.parametrize("checksum", CHECKSUMS, ids=["none", "etag", "time"])
def test_one_that_reaches_past_the_end_fails_alone(checksum: Any) -> None:
    """The neighbours of a chunk that the file does not have are read all the same."""
    end = len(DATA)
    with conditional_web_server(FILES) as web:
        session = open_session(web, [(end - 20, 10), (end - 10, 20), (end - 30, 10)], checksum)
        first, failed, last = read_all(session.store, 3)
        assert (first, last) == (DATA[end - 20 : end - 10], DATA[end - 30 : end - 20])
        assert isinstance(failed, IcefloeError)
        assert failed.kind is ErrorKind.INVALID_OBJECT_SIZE


def test_a_missing_file_and_a_closed_container() -> None:
    """What cannot be read at all says so for each chunk."""
    with conditional_web_server({}) as web:
        session = open_session(web, [(0, 10), (10, 10)])
        missing = read_all(session.store, 2)
        session.connection.virtual._access.clear()
        closed = read_all(session.store, 2)
    kinds = [result.kind for result in missing + closed if isinstance(result, IcefloeError)]
    assert (
        kinds
        == [ErrorKind.VIRTUAL_CHUNK_FETCH] * 2
        + [ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER] * 2
    )


def test_through_zarr() -> None:
    """An array that is read through Zarr takes requests for its batches, not for its chunks."""
    with conditional_web_server(FILES) as web:
        session = open_session(web, [(row, 1) for row in range(100)])
        array = zarr.open_array(session.store, path="a", mode="r")
        with zarr.config.set({"async.concurrency": 50}):
            assert bytes(np.asarray(array[:])) == DATA[:100]
        assert len(web.asked) <= 4


def test_a_repository_at_hand_waits_for_files_elsewhere() -> None:
    """Chunks behind a network are awaited side by side, though the repository is in memory."""
    files = Gathering(FILES)
    with conditional_web_server(files) as web:
        session = open_session(web, [(row * 3 * MIB, 10) for row in range(6)])
        assert not session.store._supports_sync_io
        found = read_all(session.store, 6)
        assert found == [DATA[row * 3 * MIB :][:10] for row in range(6)]
        assert files.is_complete


def test_one_client_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many threads that want the first chunk of a container at once, one makes the client."""
    made = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return open_store(*args, **kwargs)

    monkeypatch.setattr(virtual_chunks, "open_store", counting)
    with conditional_web_server(FILES) as web:
        session = open_session(web, [(row * 2 * MIB, 10) for row in range(10)])
        start = threading.Barrier(10)

        def read(row: int) -> None:
            start.wait()
            session.store.get_sync(f"a/c/{row}")

        threads = [threading.Thread(target=read, args=(row,)) for row in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 1
