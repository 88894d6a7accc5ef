"""Virtual chunks in local files: the bytes, what must not have changed, and nothing outside."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import LocalStore

from icefloe.containers import virtual_chunks
from icefloe.containers.local_files import LocalFiles
from icefloe.containers.virtual_chunks import VirtualChunks
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.model.chunk_payload import ETag, LastModified, VirtualChunkRef
from icefloe.model.containers import VirtualChunkContainer
from icefloe.storage import Credentials, in_memory_storage, local_filesystem_store

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.model.chunk_payload import Checksum

CONTENT = bytes(range(200))
CHANGED_AT = 1_700_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    found.mkdir()
    (found / "a.nc").write_bytes(CONTENT)
    # Within the second: what a reference stores has no fractions.
    os.utime(found / "a.nc", ns=(CHANGED_AT * 10**9 + 500_000_000,) * 2)
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    return found


@pytest.fixture
def chunks(folder: Path) -> VirtualChunks:
    return open_chunks(folder)


def open_chunks(folder: Path) -> VirtualChunks:
    prefix = f"{folder.as_uri()}/"
    return VirtualChunks(
        [VirtualChunkContainer(prefix, local_filesystem_store(folder), name="data")],
        {prefix: Credentials.LocalFileSystemAccess()},
        in_memory_storage(),
    )


def ref(
    location: str, offset: int = 0, length: int = 6, checksum: Checksum | None = None
) -> VirtualChunkRef:
    return VirtualChunkRef(location, offset, length, checksum)


def get_error(chunks: VirtualChunks, wanted: VirtualChunkRef) -> StorageError:
    """Fetch what cannot be fetched, both ways; answer the error."""
    with pytest.raises(StorageError) as first:
        chunks.fetch(wanted, 0, wanted.length)
    with pytest.raises(StorageError) as second:
        asyncio.run(chunks.fetch_async(wanted, 0, wanted.length))
    assert first.value.message == second.value.message
    pickle.loads(pickle.dumps(first.value))  # noqa: S301
    return first.value


def test_parts_of_chunks(chunks: VirtualChunks, folder: Path) -> None:
    """Positions count inside the chunk, and parts outside of it are refused."""
    wanted = ref(f"{folder.as_uri()}/a.nc", 10, 20)
    for start, length in ((0, 20), (3, 5), (19, 1), (20, 0)):
        expected = CONTENT[10 + start : 10 + start + length]
        assert chunks.fetch(wanted, start, length) == expected
        assert asyncio.run(chunks.fetch_async(wanted, start, length)) == expected
    assert chunks.is_low_latency(wanted)
    for start, length in ((-1, 2), (0, 21), (20, 1), (5, -1)):
        with pytest.raises(InvalidInputError, match="20 bytes") as error:
            chunks.fetch(wanted, start, length)
        assert error.value.kind is ErrorKind.INVALID_BYTE_RANGE


def test_relative_locations_and_copies(chunks: VirtualChunks, folder: Path) -> None:
    """A location by the container's name, and a reader that went through a pickle."""
    again = pickle.loads(pickle.dumps(chunks))  # noqa: S301
    assert again.fetch(ref("vcc://data/a.nc"), 0, 6) == CONTENT[:6]
    assert again.expand("vcc://data/a.nc") == f"{folder.as_uri()}/a.nc"
    assert again.expand("s3://x/y") == "s3://x/y"


def test_names_that_need_encoding(tmp_path: Path) -> None:
    """Blanks, percent signs and whatever else a file system takes."""
    folder = tmp_path / "a folder with 100%"
    folder.mkdir()
    for name in ("b c.nc", "100%25.nc", "q?x#y.nc", "ü@+~.nc", "upload#1", "back\\slash"):
        (folder / name).write_bytes(name.encode())
        found = open_chunks(folder).fetch(
            ref((folder / name).as_uri(), length=len(name.encode())), 0, len(name.encode())
        )
        assert bytes(found).decode() == name


def test_short_and_missing_files(chunks: VirtualChunks, folder: Path) -> None:
    """The file is named; a length that the file does not have costs no memory."""
    url = f"{folder.as_uri()}/a.nc"
    for offset, length in ((190, 11), (200, 1), (0, 2**62), (2**64 - 1, 2**64 - 1)):
        error = get_error(chunks, ref(url, offset, length))
        assert error.kind is ErrorKind.INVALID_OBJECT_SIZE
        assert "a.nc" in error.message
        assert "200 bytes" in error.message
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    for name in ("missing.nc", "a.nc/below", "fifo", "folder"):
        error = get_error(chunks, ref(f"{folder.as_uri()}/{name}"))
        assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
        assert name in error.message


def test_last_modified_is_compared_in_seconds(chunks: VirtualChunks, folder: Path) -> None:
    """The second of the change and later ones hold; an earlier one does not."""
    url = f"{folder.as_uri()}/a.nc"
    for seconds in (CHANGED_AT, CHANGED_AT + 1):
        assert chunks.fetch(ref(url, checksum=LastModified(seconds)), 0, 6) == CONTENT[:6]
    error = get_error(chunks, ref(url, checksum=LastModified(CHANGED_AT - 1)))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert "chunk has changed" in error.message
    for time in (CHANGED_AT - 1, CHANGED_AT):
        assert f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}" in error.message


def test_the_etag_is_that_of_object_store(chunks: VirtualChunks, folder: Path) -> None:
    """What a tool that uses the Rust library wrote down holds here, with quotes or without."""
    url = f"{folder.as_uri()}/a.nc"
    etag = _icechunk_etag(folder)
    for checksum in (ETag(etag), ETag(f'"{etag}"')):
        assert chunks.fetch(ref(url, checksum=checksum), 0, 6) == CONTENT[:6]
    (folder / "a.nc").write_bytes(CONTENT)
    error = get_error(chunks, ref(url, checksum=ETag(etag)))
    assert error.kind is ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert etag in error.message
    assert _icechunk_etag(folder) in error.message


def _icechunk_etag(folder: Path) -> str:
    # Its newer versions put quotes around, as HTTP has them.
    return str(obstore.head(LocalStore(folder), "a.nc")["e_tag"]).strip('"')


def test_links_stay_inside(chunks: VirtualChunks, folder: Path) -> None:
    """Links are followed to files of the container, and to nothing else."""
    (folder / "versions" / "1").mkdir(parents=True)
    (folder / "versions" / "1" / "b.nc").write_bytes(CONTENT)
    (folder / "latest").symlink_to(folder / "versions" / "1")
    (folder / "b.nc").symlink_to("latest/b.nc")
    for name in ("latest/b.nc", "b.nc"):
        assert chunks.fetch(ref(f"{folder.as_uri()}/{name}"), 0, 6) == CONTENT[:6]
    (folder / "file-link").symlink_to(folder.parent / "secret")
    (folder / "folder-link").symlink_to(folder.parent)
    (folder / "device").symlink_to("/dev/zero")
    (folder / "sibling").symlink_to(folder.parent / "data-of-others")
    (folder.parent / "data-of-others").mkdir()
    (folder.parent / "data-of-others" / "x").write_bytes(CONTENT)
    for name in ("file-link", "folder-link/secret", "device", "sibling/x"):
        error = get_error(chunks, ref(f"{folder.as_uri()}/{name}"))
        assert error.kind is ErrorKind.VIRTUAL_CHUNK_FETCH
        assert "points outside" in error.message


def test_links_stay_inside_without_proc(
    chunks: VirtualChunks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where open files cannot be asked for their place, their names are."""
    readlink = os.readlink

    def no_proc(path: str) -> str:
        if path.startswith("/proc/"):
            raise FileNotFoundError(path)
        return readlink(path)

    (folder / "inside").symlink_to(folder / "a.nc")
    (folder / "outside").symlink_to(folder.parent / "secret")
    monkeypatch.setattr(os, "readlink", no_proc)
    assert chunks.fetch(ref(f"{folder.as_uri()}/inside"), 0, 6) == CONTENT[:6]
    assert "points outside" in get_error(chunks, ref(f"{folder.as_uri()}/outside")).message


def test_the_folder_may_be_a_link_that_moves(folder: Path) -> None:
    """A container at a link follows it wherever it leads by then."""
    link = folder.parent / "current"
    link.symlink_to(folder)
    chunks = open_chunks(link)
    wanted = ref(f"{link.as_uri()}/a.nc")
    assert chunks.fetch(wanted, 0, 6) == CONTENT[:6]
    other = folder.parent / "other"
    other.mkdir()
    (other / "a.nc").write_bytes(b"others")
    link.unlink()
    link.symlink_to(other)
    assert chunks.fetch(wanted, 0, 6) == b"others"


def test_traversal_does_not_leave_the_folder(chunks: VirtualChunks, folder: Path) -> None:
    """Dots in any spelling lead to no container, or are no location at all."""
    for path in ("../secret", "%2e%2e/secret", "x/../../secret", "..%2fsecret", "..\\secret"):
        for base in (folder.as_uri(), "vcc://data"):
            with pytest.raises(InvalidInputError):
                chunks.fetch(ref(f"{base}/{path}"), 0, 6)


def test_one_fetcher_serves_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many first reads at once, one makes the fetcher."""
    made: list[str] = []

    def count_call(path: str) -> LocalFiles:
        made.append(path)
        return LocalFiles(path)

    monkeypatch.setattr(virtual_chunks, "LocalFiles", count_call)
    chunks, barrier = open_chunks(folder), threading.Barrier(16)

    def read(_: int) -> bytes:
        barrier.wait()
        return bytes(chunks.fetch(ref(f"{folder.as_uri()}/a.nc"), 0, 6))

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(16))) == {CONTENT[:6]}
    assert len(made) == 1
