"""Reads virtual chunks from local files, only below the folder of their container.

`locations` has already resolved ``..``. Symbolic links are followed, because archives often use
them, but the opened file must be below the container's folder. The path of the open file descriptor
is checked, so that a link cannot be changed between the check and the read.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from icefloe.containers.checksums import matches_checksum, modified_error
from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.containers.container_table import VirtualFile
    from icefloe.model.byte_range import Bounded
    from icefloe.model.chunk_payload import Checksum

# Without O_NONBLOCK, opening a FIFO would wait for a writer forever.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class LocalFiles:
    """The files of one container: those below an absolute folder, or a single file."""

    def __init__(self, folder: str) -> None:
        self._folder: Final = folder.rstrip("/")
        self._real_folder = os.path.realpath(self._folder)

    def fetch(self, file: VirtualFile, start: int, length: int, checksum: Checksum | None) -> bytes:
        """Read a range of a file; a checksum is compared before and after the read."""
        try:
            fd = os.open(file.location.path, _FLAGS)
            try:
                return self._read(fd, file, start, length, checksum)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:  # ValueError for an invalid path
            raise file.make_error(f"could not read the file of a virtual chunk: {error}") from error

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes:
        """`fetch` without a thread: a local read is faster than a thread switch."""
        return self.fetch(file, start, length, checksum)

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Read several ranges of a file; the result of a failed range is its error."""
        results: list[bytes | memoryview | Exception] = []
        for part in ranges:
            try:
                results.append(self.fetch(file, part.start, part.end - part.start, checksum))
            except StorageError as error:
                results.append(error)
        return results

    def _read(
        self, fd: int, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes:
        self._require_inside(fd, file)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise file.make_error("not a regular file")
        _require_unchanged(status, file, checksum)
        # Before the read allocates memory: the length is untrusted.
        if start + length > status.st_size:
            raise too_short_error(file, start, length, status.st_size)
        data = _read_all(fd, start, length)
        if len(data) < length:
            raise too_short_error(file, start, length, start + len(data))
        if checksum is not None:
            # The file may have changed during the read.
            _require_unchanged(os.fstat(fd), file, checksum)
        return data

    def _require_inside(self, fd: int, file: VirtualFile) -> None:
        real_path = _resolve_path(fd, file.location.path)
        if self._contains(real_path):
            return
        # The folder itself may be a link that has changed.
        self._real_folder = os.path.realpath(self._folder)
        if not self._contains(real_path):
            raise file.make_error(
                f"a symbolic link points outside the container {file.container.label}; add a "
                "container for its target"
            )

    def _contains(self, real_path: str) -> bool:
        folder = self._real_folder.rstrip("/")
        return real_path == folder or real_path.startswith(f"{folder}/")


def too_short_error(file: VirtualFile, start: int, length: int, size_bytes: int) -> StorageError:
    """Return the error for a file that ends before the chunk does."""
    chunk = f"the chunk is bytes {start} to {start + length} of a file of {size_bytes} bytes"
    problem = f"not enough data for a virtual chunk: {chunk}"
    return file.make_error(problem, ErrorKind.INVALID_OBJECT_SIZE)


def make_local_etag(status: os.stat_result) -> str:
    """Return the entity tag of a local file as Icechunk's library object_store defines it."""
    return f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"


def _require_unchanged(
    status: os.stat_result, file: VirtualFile, checksum: Checksum | None
) -> None:
    if checksum is None:
        return
    etag = make_local_etag(status)
    modified_at = datetime.fromtimestamp(status.st_mtime_ns // 10**9, UTC)
    if not matches_checksum(checksum, etag, modified_at):
        raise modified_error(file.label, checksum, etag, modified_at)


def _resolve_path(fd: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - faster; called for every chunk
    except OSError:
        # Without /proc (macOS) the path is resolved again: unsafe only if links change meanwhile.
        return os.path.realpath(path)


def _read_all(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    if len(data) == length:
        return data
    parts, num_read = [data], len(data)
    while data and num_read < length:  # one pread returns at most 2 GiB
        data = os.pread(fd, length - num_read, start + num_read)
        parts.append(data)
        num_read += len(data)
    return b"".join(parts)
