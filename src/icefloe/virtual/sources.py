"""Opens the files that a user names, wherever they are, and those that a file of references names.

What the user names is read: a path, or a URL with the credentials of the environment or of the
container that the user gave for it. What a *file* names is not: a downloaded list of references
could name any file that its reader can reach. It is read where it lies beside that file, or in a
container that the user gave.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from icefloe.containers.authorization import resolve_access
from icefloe.containers.container_table import ContainerTable, VirtualFile, is_local
from icefloe.containers.locations import parse_location
from icefloe.containers.stores import open_store
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.model.byte_range import Bounded
from icefloe.model.storage_settings import OBJECT_STORE_DEFAULTS
from icefloe.storage.constructors import storage_from_url
from icefloe.storage.local import LocalStorage
from icefloe.storage.urls import redact_url, require_shareable
from icefloe.virtual.dataset import SourceFile, changed_at

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
"""Of larger files so much is in memory at a time."""

SINGLE_REQUEST_BYTES = 4 << 20
"""Smaller files are fetched in one request: their metadata would take as many blocks."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A file or a folder that can be read.

    Parameters
    ----------
    url
        As references to it will name it.
    storage, key
        Where its bytes are.
    path
        On this machine, if it is there.
    """

    url: str
    storage: Storage
    key: str
    path: str | None = None

    def fetch_info(self) -> SourceFile | None:
        """Tell size and version, None if there is no such file (a folder is none)."""
        if self.path is not None:
            try:
                found = os.stat(self.path)  # noqa: PTH116 - once for every file of an archive
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _unreadable(self.url, error) from error
            if not os.path.isfile(self.path):  # noqa: PTH113
                return None
            return SourceFile(self.url, found.st_size, None, changed_at(found.st_mtime))
        try:
            info = self.storage.head(self.key)
        except ObjectNotFoundError:
            return None
        return SourceFile(self.url, info.size_bytes, info.version.etag, info.last_modified)

    def fetch(self, start: int, length: int) -> bytes:
        """Fetch a range of bytes, fewer where the file ends before."""
        if self.path is not None:
            try:
                with Path(self.path).open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except OSError as error:
                raise _unreadable(self.url, error) from error
        return bytes(self.storage.get_bytes(self.key, start, length))

    def fetch_all(self) -> bytes:
        """Fetch the whole file."""
        if self.path is not None:
            try:
                return Path(self.path).read_bytes()
            except OSError as error:
                raise _unreadable(self.url, error) from error
        return bytes(self.storage.get(self.key).data)

    def list_below(self) -> Iterator[tuple[str, ObjectInfo]]:
        """List what lies below a folder, by its name there."""
        if self.path is not None:
            found = LocalStorage(self.path, follow_symlinks=True).list()
            return ((info.key, info) for info in found)
        below = f"{self.key}/"
        return ((info.key[len(below) :], info) for info in self.storage.list(below))

    def fetch_size(self) -> int:
        """Tell how large a file is, or all that is in a folder; 0 if there is neither."""
        info = self.fetch_info()
        if info is not None and info.size_bytes is not None:
            return info.size_bytes
        return sum(found.size_bytes for _, found in self.list_below())

    def below(self, name: str) -> OpenSource:
        """Return something that lies below a folder."""
        path = None if self.path is None else f"{self.path}/{name}"
        return OpenSource(f"{self.url}/{quote(name)}", self.storage, f"{self.key}/{name}", path)

    def reader(self, size_bytes: int) -> io.BufferedIOBase | io.RawIOBase:
        """Open it as a file of Python."""
        if self.path is not None:
            return Path(self.path).open("rb")
        return _BlockReader(self, size_bytes)


class Sources:
    """The places that a user lets files be read from.

    Parameters
    ----------
    containers, credentials
        As for opening a repository: places with options, and their credentials by the URL prefix or
        the name of the container.
    """

    def __init__(
        self,
        containers: Sequence[VirtualChunkContainer] = (),
        credentials: Mapping[str, AnyCredential | None] | None = None,
    ) -> None:
        self._table = ContainerTable(containers)
        self._access: Mapping[str, Access] = resolve_access(self._table, credentials or {})
        self._usable: Container[str] = {one.url_prefix for one in containers}
        self._home: Place | None = None
        self._settings = OBJECT_STORE_DEFAULTS
        self._storages: dict[str, Storage] = {}

    @classmethod
    def of(cls, virtual: VirtualChunks) -> Sources:
        """Return the places that an open repository reaches, as it reads virtual chunks there.

        Default containers are among them, and the repository's own credentials on its platform.
        Containers that the user did not open are not: their endpoints may be anybody's.
        """
        made = cls()
        reach = virtual.reach
        made._table, made._access, made._usable = reach.table, reach.access, reach.access
        made._home, made._settings = reach.home, reach.settings
        return made

    def open(self, url: str | os.PathLike[str]) -> OpenSource:
        """Open what the user named: a path, or a URL."""
        named = os.fspath(url)
        if not named:
            raise InvalidInputError(
                "the URL of a file is empty: give a path, or one such as s3://bucket/a.nc",
                kind=ErrorKind.CANNOT_PARSE_URL,
            )
        if "://" not in named and not named.startswith("file:"):
            named = Path(named).absolute().as_uri()
        named = named.rstrip("/")
        require_shareable(named)
        held = self._held(named)
        return self._open(named) if held is None else self._open_held(named, held)

    def list_folder(self, url: str) -> Iterator[tuple[str, ObjectInfo]]:
        """List what lies below a folder of a remote place, or below all of a bucket, by its name.

        Asked for by way of something in there: a bucket itself is no object that could be opened,
        and is in no container.
        """
        inside = self.open(f"{url}/x")
        below = inside.key.removesuffix("x")
        return ((info.key[len(below) :], info) for info in inside.storage.list(below))

    def open_named_by(self, url: str, owner: OpenSource) -> OpenSource:
        """Open what a file of references names, where that is allowed."""
        held = self._held(url)
        if held is not None:
            return self._open_held(url, held)
        beside = f"{owner.url.rpartition('/')[0]}/"
        if not parse_location(url).text.startswith(unquote(beside)):
            raise InvalidInputError(
                f"{redact_url(owner.url)} refers to {redact_url(url)}, which lies elsewhere "
                "and would have to be read; if you trust it, pass "
                "containers=[VirtualChunkContainer(…)] for that place, or loadable_variables=() to "
                "load nothing",
                kind=ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            )
        return self._open(url)

    def _held(self, url: str) -> VirtualFile | None:
        """Find the container that the user gave for a place."""
        if not self._table.known:
            return None
        try:
            held = self._table.find(url)
        except InvalidInputError as error:
            if error.kind is ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                return None
            raise
        return held if held.known.container.url_prefix in self._usable else None

    def _open(self, url: str) -> OpenSource:
        location = parse_location(url)
        if location.scheme == "file":
            return _local(url, location.path)
        bucket = f"{location.scheme}://{quote(location.authority, safe='@:[]')}"
        storage = self._storages.get(bucket)
        if storage is None:
            storage = self._storages[bucket] = storage_from_url(bucket)
        return OpenSource(url, storage, location.key)

    def _open_held(self, url: str, held: VirtualFile) -> OpenSource:
        container = held.known.container
        if is_local(container.store):
            return _local(url, held.location.path)
        key = f"{container.url_prefix} {held.location.authority}"
        storage = self._storages.get(key)
        if storage is None:
            storage = self._storages[key] = open_store(
                held.known,
                self._access.get(container.url_prefix),
                home=self._home,
                settings=self._settings,
                location=held.location,
            )
        return OpenSource(url, storage, held.location.key)


class _BlockReader(io.RawIOBase):
    """A remote file as a file of Python, fetched in blocks that are kept for a while."""

    def __init__(self, source: OpenSource, size_bytes: int) -> None:
        self._source = source
        self._size = size_bytes
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self._whole = source.fetch_all() if size_bytes <= SINGLE_REQUEST_BYTES else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._get(self._at, min(self._at + len(view), self._size))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _get(self, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        if self._whole is not None:
            return self._whole[start:end]
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        missing = [block for block in range(first, last + 1) if block not in self._blocks]
        if missing:
            low, high = missing[0] * _BLOCK_BYTES, (missing[-1] + 1) * _BLOCK_BYTES
            data = self._source.fetch(low, min(high, self._size) - low)
            for block in range(missing[0], missing[-1] + 1):
                at = block * _BLOCK_BYTES - low
                self._blocks[block] = data[at : at + _BLOCK_BYTES]
        joined = b"".join(self._blocks[block] for block in range(first, last + 1))
        while len(self._blocks) > _MAX_BLOCKS:
            self._blocks.pop(next(iter(self._blocks)))
        return joined[start - first * _BLOCK_BYTES : end - first * _BLOCK_BYTES]


def fetch_ranges(source: OpenSource, starts: list[int], lengths: list[int]) -> list[bytes]:
    """Fetch several ranges of one file."""
    if source.path is not None:
        try:
            with Path(source.path).open("rb") as file:
                return [
                    os.pread(file.fileno(), length, start)
                    for start, length in zip(starts, lengths, strict=True)
                ]
        except FileNotFoundError as error:
            raise missing(source.url) from error
        except OSError as error:
            raise _unreadable(source.url, error) from error
    ranges = [Bounded(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return [bytes(data) for data in source.storage.get_ranges(source.key, ranges)]


def missing(url: str) -> ObjectNotFoundError:
    """Say that there is no such file."""
    return ObjectNotFoundError(
        f"{redact_url(url)}: there is no such file or folder", kind=ErrorKind.OBJECT_NOT_FOUND
    )


def _local(url: str, path: str) -> OpenSource:
    folder, _, name = path.rpartition("/")
    return OpenSource(url, LocalStorage(folder or "/", follow_symlinks=True), name, path)


def _unreadable(url: str, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"{redact_url(url)}: cannot be read: {reason}", kind=ErrorKind.IO)
