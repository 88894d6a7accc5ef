"""Virtual chunks in local files, confined to the folder of their container.

`locations` has resolved ``..`` already. Symbolic links are followed, because archives are full of
them, but the file that is finally opened must be below the container's folder. The open file itself
is checked, not its name, so that the result cannot change between the check and the read.
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
    """The files below one absolute folder, which may be a link, or the container's only file."""

    def __init__(self, folder: str) -> None:
        self._folder: Final = folder.rstrip("/")
        self._real_folder = os.path.realpath(self._folder)

    def fetch(self, file: VirtualFile, start: int, length: int, checksum: Checksum | None) -> bytes:
        """Read a range of a file; with a checksum, the file status is checked before and after."""
        try:
            fd = os.open(file.location.path, _FLAGS)
            try:
                return self._read(fd, file, start, length, checksum)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:  # ValueError for an invalid path
            raise file.error(f"could not read the file of a virtual chunk: {error}") from error

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes:
        """`fetch` inline: a local read is faster than a thread switch."""
        return self.fetch(file, start, length, checksum)

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Read several ranges of a file; a failed range yields its error."""
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
        present = os.fstat(fd)
        if not stat.S_ISREG(present.st_mode):
            raise file.error("not a regular file")
        _require_unchanged(present, file, checksum)
        # Before memory is allocated: the length is untrusted.
        if start + length > present.st_size:
            raise too_short_error(file, start, length, present.st_size)
        data = _read_all(fd, start, length)
        if len(data) < length:
            raise too_short_error(file, start, length, start + len(data))
        if checksum is not None:
            # The file may have changed during the read.
            _require_unchanged(os.fstat(fd), file, checksum)
        return data

    def _require_inside(self, fd: int, file: VirtualFile) -> None:
        real = _real_path(fd, file.location.path)
        if self._holds(real):
            return
        # The folder itself may be a link that has changed.
        self._real_folder = os.path.realpath(self._folder)
        if not self._holds(real):
            raise file.error(
                f"a symbolic link leads out of the container {file.known.label}; add a container "
                "for its target"
            )

    def _holds(self, real: str) -> bool:
        folder = self._real_folder.rstrip("/")
        return real == folder or real.startswith(f"{folder}/")


def too_short_error(file: VirtualFile, start: int, length: int, size_bytes: int) -> StorageError:
    """Return the error for a file that ends before the chunk does."""
    part = f"bytes {start} to {start + length} of a file of {size_bytes} bytes"
    problem = f"not enough data for a virtual chunk: {part}"
    return file.error(problem, ErrorKind.INVALID_OBJECT_SIZE)


def local_etag(present: os.stat_result) -> str:
    """Return the entity tag that the Rust library object_store, and so Icechunk, gives a file."""
    return f"{present.st_ino:x}-{present.st_mtime_ns // 1000:x}-{present.st_size:x}"


def _require_unchanged(
    present: os.stat_result, file: VirtualFile, checksum: Checksum | None
) -> None:
    if checksum is None:
        return
    etag, changed = local_etag(present), datetime.fromtimestamp(present.st_mtime_ns // 10**9, UTC)
    if not matches_checksum(checksum, etag, changed):
        raise modified_error(file.label, checksum, etag, changed)


def _real_path(fd: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - for every chunk
    except OSError:
        # No /proc, as on macOS: resolves the name, which is safe unless links change meanwhile.
        return os.path.realpath(path)


def _read_all(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    if len(data) == length:
        return data
    parts, got = [data], len(data)
    while data and got < length:  # one pread returns at most 2 GiB
        data = os.pread(fd, length - got, start + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)
