"""Opens source files: paths and URLs that the user passes, and locations in reference files.

Files that the user passes are read with credentials of the environment or of a matching container.
Locations in a reference file (Kerchunk, DMR++) are not trusted: a downloaded file could refer to
any file that its reader can access. They are read only if they are in the directory of the
reference file or in a container that the user passed.
"""

from __future__ import annotations

import io
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, unquote

from icefloe.containers.authorization import resolve_access
from icefloe.containers.container_table import ContainerTable, VirtualFile, is_local
from icefloe.containers.locations import parse_location
from icefloe.containers.stores import open_store
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.model.byte_range import Bounded
from icefloe.model.chunk_payload import MAX_U32, Checksum, ETag, LastModified
from icefloe.model.storage_settings import OBJECT_STORE_DEFAULTS
from icefloe.storage.constructors import storage_from_url
from icefloe.storage.local import LocalStorage
from icefloe.storage.urls import redact_url, require_shareable

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from icefloe.containers.authorization import Access
    from icefloe.containers.virtual_chunks import VirtualChunks
    from icefloe.model.containers import VirtualChunkContainer
    from icefloe.storage.credentials import AnyCredential
    from icefloe.storage.interface import ObjectInfo, Storage
    from icefloe.storage.places import Place

_BLOCK_BYTES = 1 << 20
_MAX_BLOCKS = 64
MAX_CACHED_BYTES = _MAX_BLOCKS * _BLOCK_BYTES
"""Upper limit of the block cache of one remote file."""

SINGLE_REQUEST_BYTES = 4 << 20
"""Smaller files are fetched in one request: reading metadata would fetch most blocks anyway."""

ChecksumChoice: TypeAlias = Literal["auto", "etag", "last-modified"] | None
"""Checksum stored with each reference, so that a modified file is detected on read."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed file, with its size and version at parse time."""

    url: str
    size_bytes: int | None = None
    etag: str | None = None
    last_modified: datetime | None = None

    def checksum(self, choice: ChecksumChoice = "auto") -> Checksum | None:
        """Return the checksum for references to this file.

        ``auto`` is the ETag for objects and the modification time for local files, whose ETags
        differ between readers.
        """
        if self.etag is not None:
            is_reliable = not self.etag.startswith("W/") and not self.url.startswith("file:")
            if choice == "etag" or (choice == "auto" and is_reliable):
                return ETag(self.etag)
        if choice is None or self.last_modified is None:
            return None
        # Rounded up: Icechunk compares with the file's full-precision modification time.
        seconds = math.ceil(self.last_modified.timestamp())
        # obstore reports 1970 for web servers that send no Last-Modified header.
        return LastModified(seconds) if 0 < seconds <= MAX_U32 else None


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A readable file or directory; references contain its URL.

    ``path`` is the local path, None for remote files.
    """

    url: str
    storage: Storage
    key: str
    path: str | None = None

    def fetch_info(self) -> SourceFile | None:
        """Fetch the size and version of the file, None if it does not exist or is a directory."""
        if self.path is not None:
            try:
                stat = os.stat(self.path)  # noqa: PTH116 - faster; called for every file
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _unreadable_error(self.url, error) from error
            if not S_ISREG(stat.st_mode):
                return None
            modified_at = datetime.fromtimestamp(stat.st_mtime, UTC)
            return SourceFile(self.url, stat.st_size, None, modified_at)
        try:
            info = self.storage.head(self.key)
        except ObjectNotFoundError:
            return None
        return SourceFile(self.url, info.size_bytes, info.version.etag, info.last_modified)

    def fetch(self, start: int, length: int) -> bytes:
        """Fetch a byte range; the result is shorter if the file ends before."""
        if self.path is not None:
            with _open_local_file(self.url, self.path) as file:
                file.seek(start)
                return file.read(length)
        return bytes(self.storage.get_bytes(self.key, start, length))

    def fetch_all(self) -> bytes:
        """Fetch the whole file."""
        if self.path is not None:
            with _open_local_file(self.url, self.path) as file:
                return file.read()
        return bytes(self.storage.get(self.key).data)

    def list_tree(self) -> Iterator[tuple[str, ObjectInfo]]:
        """List all files below a directory with their relative names."""
        if self.path is not None:
            files = LocalStorage(self.path, follow_symlinks=True).list()
            return ((info.key, info) for info in files)
        prefix = f"{self.key}/"
        return ((info.key[len(prefix) :], info) for info in self.storage.list(prefix))

    def open_child(self, name: str) -> OpenSource:
        """Return a file or directory below this directory."""
        path = None if self.path is None else f"{self.path}/{name}"
        return OpenSource(f"{self.url}/{quote(name)}", self.storage, f"{self.key}/{name}", path)

    def open_reader(self, size_bytes: int) -> io.BufferedIOBase | io.RawIOBase:
        """Open the file as a Python file object."""
        if self.path is not None:
            return Path(self.path).open("rb")
        return _BlockReader(self, size_bytes)


class Sources:
    """Opens source files with the containers and credentials of the user or of a repository."""

    def __init__(
        self,
        containers: Sequence[VirtualChunkContainer] = (),
        credentials: Mapping[str, AnyCredential | None] | None = None,
    ) -> None:
        self._table = ContainerTable(containers)
        self._access: Mapping[str, Access] = resolve_access(self._table, credentials or {})
        self._usable: Container[str] = {container.url_prefix for container in containers}
        self._home: Place | None = None
        self._settings = OBJECT_STORE_DEFAULTS
        self._storages: dict[str, Storage] = {}

    @classmethod
    def of(cls, virtual: VirtualChunks) -> Sources:
        """Return sources with the containers and credentials of an open repository.

        Includes default containers and, on the repository's platform, its own credentials.
        Excludes containers that the user did not authorize: their endpoints are untrusted.
        """
        sources = cls()
        context = virtual.access_context
        sources._table = context.table
        sources._access = sources._usable = context.access
        sources._home, sources._settings = context.home, context.settings
        return sources

    def open(self, url: str | os.PathLike[str]) -> OpenSource:
        """Open a path or URL that the user passed."""
        url = os.fspath(url)
        if not url:
            raise InvalidInputError(
                "the URL of a file is empty: expected a path, or a URL such as s3://bucket/a.nc",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )
        if "://" not in url and not url.startswith("file:"):
            url = Path(url).absolute().as_uri()
        url = url.rstrip("/")
        require_shareable(url)
        file = self._find_in_container(url)
        return self._open(url) if file is None else self._open_in_container(url, file)

    def list_folder(self, url: str) -> Iterator[tuple[str, ObjectInfo]]:
        """List all files below a remote directory or bucket with their relative names."""
        # A bucket is not a valid location, but an object in it is.
        probe = self.open(f"{url}/x")
        prefix = probe.key.removesuffix("x")
        return ((info.key[len(prefix) :], info) for info in probe.storage.list(prefix))

    def open_referenced(self, url: str, reference_file: OpenSource) -> OpenSource:
        """Open a location in a reference file; raises `InvalidInputError` if it may not be read."""
        file = self._find_in_container(url)
        if file is not None:
            return self._open_in_container(url, file)
        directory = f"{reference_file.url.rpartition('/')[0]}/"
        if not parse_location(url).text.startswith(unquote(directory)):
            raise InvalidInputError(
                f"{redact_url(reference_file.url)} refers to {redact_url(url)}, which is outside "
                "its directory and has to be read; if you trust it, pass containers="
                "[VirtualChunkContainer(…)] for that location, or loadable_variables=() to load "
                "nothing",
                kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            )
        return self._open(url)

    def is_in_container(self, url: str) -> bool:
        """Whether a URL is in a container that may be read, so that it need not be trusted."""
        return self._find_in_container(url) is not None

    def _find_in_container(self, url: str) -> VirtualFile | None:
        """Find the file of a URL in a container that may be read, None if there is none."""
        if not self._table.containers:
            return None
        try:
            file = self._table.find(url)
        except InvalidInputError as error:
            if error.kind is ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                return None
            raise
        return file if file.container.config.url_prefix in self._usable else None

    def _open(self, url: str) -> OpenSource:
        location = parse_location(url)
        if location.scheme == "file":
            return _open_local(url, location.path)
        bucket = f"{location.scheme}://{quote(location.authority, safe='@:[]')}"
        storage = self._storages.get(bucket)
        if storage is None:
            storage = self._storages[bucket] = storage_from_url(bucket)
        return OpenSource(url, storage, location.key)

    def _open_in_container(self, url: str, file: VirtualFile) -> OpenSource:
        config = file.container.config
        if is_local(config.store):
            return _open_local(url, file.location.path)
        key = f"{config.url_prefix} {file.location.authority}"
        storage = self._storages.get(key)
        if storage is None:
            access = self._access.get(config.url_prefix)
            storage = open_store(file, access, home=self._home, settings=self._settings)
            self._storages[key] = storage
        return OpenSource(url, storage, file.location.key)


class _BlockReader(io.RawIOBase):
    """A remote file as a Python file object, with a cache of blocks."""

    def __init__(self, source: OpenSource, size_bytes: int) -> None:
        self._source = source
        self._size = size_bytes
        self._position = 0
        self._blocks: dict[int, bytes] = {}
        self._content = source.fetch_all() if size_bytes <= SINGLE_REQUEST_BYTES else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read_range(self._position, min(self._position + len(view), self._size))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read_range(self, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        if self._content is not None:
            return self._content[start:end]
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        missing = [block for block in range(first, last + 1) if block not in self._blocks]
        if missing:
            low, high = missing[0] * _BLOCK_BYTES, (missing[-1] + 1) * _BLOCK_BYTES
            data = self._source.fetch(low, min(high, self._size) - low)
            for block in range(missing[0], missing[-1] + 1):
                offset = block * _BLOCK_BYTES - low
                self._blocks[block] = data[offset : offset + _BLOCK_BYTES]
        joined = b"".join(self._blocks[block] for block in range(first, last + 1))
        while len(self._blocks) > _MAX_BLOCKS:
            self._blocks.pop(next(iter(self._blocks)))
        return joined[start - first * _BLOCK_BYTES : end - first * _BLOCK_BYTES]


def fetch_ranges(source: OpenSource, starts: list[int], lengths: list[int]) -> list[bytes]:
    """Fetch several byte ranges of one file."""
    if source.path is not None:
        with _open_local_file(source.url, source.path) as file:
            return list(map(os.pread, repeat(file.fileno()), lengths, starts))
    ranges = [Bounded(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return [bytes(data) for data in source.storage.get_ranges(source.key, ranges)]


def not_found_error(url: str) -> ObjectNotFoundError:
    """Return the error for a file that does not exist."""
    return ObjectNotFoundError(f"{redact_url(url)}: there is no such file or directory")


def _open_local(url: str, path: str) -> OpenSource:
    folder, _, name = path.rpartition("/")
    return OpenSource(url, LocalStorage(folder or "/", follow_symlinks=True), name, path)


@contextmanager
def _open_local_file(url: str, path: str) -> Iterator[io.BufferedReader]:
    """Open a local file; converts errors of the operating system."""
    try:
        with Path(path).open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise not_found_error(url) from error
    except OSError as error:
        raise _unreadable_error(url, error) from error


def _unreadable_error(url: str, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"{redact_url(url)}: the file cannot be read: {reason}", kind=ErrorKind.IO)
