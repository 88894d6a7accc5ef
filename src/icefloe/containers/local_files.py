"""Virtual chunks in files of this machine, which never leave the folder of their container.

The location has no ``..`` left when it comes here (`locations`). What remains are symbolic links:
they are followed, because archives are full of them, but the file that was in the end opened must
lie below the container's folder. That is asked of the open file itself and not of its name, so that
nobody can change the answer between the question and the read.
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

# A FIFO would otherwise make open wait for a writer, forever.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class LocalFiles:
    """The files below one folder.

    Parameters
    ----------
    folder
        Absolute; it may be a link itself, and the one file of a container that holds no more.
    """

    is_low_latency = True

    def __init__(self, folder: str) -> None:
        self._folder: Final = folder.rstrip("/")
        self._real_folder = os.path.realpath(self._folder)

    def fetch(self, file: VirtualFile, start: int, length: int, checksum: Checksum | None) -> bytes:
        """Read a range of a file: open, look, read, and look again where there is a checksum."""
        try:
            fd = os.open(file.location.path, _FLAGS)
            try:
                return self._read(fd, file, start, length, checksum)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:  # a ValueError for what can be no path
            raise StorageError(
                f"{file.shown}: could not read the file of a virtual chunk: {error}",
                kind=ErrorKind.VIRTUAL_CHUNK_FETCH,
            ) from error

    async def fetch_async(
        self, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes:
        """Do as `fetch`; a disk answers before a thread could be asked."""
        return self.fetch(file, start, length, checksum)

    async def fetch_many_async(
        self, file: VirtualFile, ranges: Sequence[Bounded], checksum: Checksum | None
    ) -> list[bytes | memoryview | Exception]:
        """Read several ranges of a file; where one cannot be had its error is the answer."""
        answers: list[bytes | memoryview | Exception] = []
        for one in ranges:
            try:
                answers.append(self.fetch(file, one.start, one.end - one.start, checksum))
            except StorageError as error:
                answers.append(error)
        return answers

    def _read(
        self, fd: int, file: VirtualFile, start: int, length: int, checksum: Checksum | None
    ) -> bytes:
        self._require_inside(fd, file)
        present = os.fstat(fd)
        if not stat.S_ISREG(present.st_mode):
            raise StorageError(
                f"{file.shown}: not a regular file, so it holds no virtual chunk",
                kind=ErrorKind.VIRTUAL_CHUNK_FETCH,
            )
        _require_unchanged(present, file, checksum)
        # Before memory is reserved: the length is whatever the repository says.
        if start + length > present.st_size:
            raise too_short(file, start, length, present.st_size)
        data = _read_all(fd, start, length)
        if len(data) < length:
            raise too_short(file, start, length, start + len(data))
        if checksum is not None:
            # Somebody may have written while this read.
            _require_unchanged(os.fstat(fd), file, checksum)
        return data

    def _require_inside(self, fd: int, file: VirtualFile) -> None:
        real = _real_path(fd, file.location.path)
        if self._holds(real):
            return
        # The folder itself may be a link that leads elsewhere by now.
        self._real_folder = os.path.realpath(self._folder)
        if not self._holds(real):
            raise StorageError(
                f"{file.shown}: a symbolic link leads out of the container {file.known.shown}; "
                "what lies there needs a container of its own",
                kind=ErrorKind.VIRTUAL_CHUNK_FETCH,
            )

    def _holds(self, real: str) -> bool:
        folder = self._real_folder.rstrip("/")
        return real == folder or real.startswith(f"{folder}/")


def too_short(file: VirtualFile, start: int, length: int, size_bytes: int) -> StorageError:
    """Say that a file ends before the chunk does."""
    return StorageError(
        f"{file.shown}: not enough data for a virtual chunk: bytes {start} to {start + length} of "
        f"a file of {size_bytes} bytes",
        kind=ErrorKind.INVALID_OBJECT_SIZE,
    )


def local_etag(present: os.stat_result) -> str:
    """Tell the entity tag that the Rust library object_store, and so Icechunk, gives a file."""
    return f"{present.st_ino:x}-{present.st_mtime_ns // 1000:x}-{present.st_size:x}"


def _require_unchanged(
    present: os.stat_result, file: VirtualFile, checksum: Checksum | None
) -> None:
    if checksum is None:
        return
    etag, changed = local_etag(present), datetime.fromtimestamp(present.st_mtime_ns // 10**9, UTC)
    if not matches_checksum(checksum, etag, changed):
        raise modified_error(file.shown, checksum, etag, changed)


def _real_path(fd: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - for every chunk
    except OSError:
        # No /proc, as on macOS: the name is asked instead, which only somebody who can change
        # links on this machine could make lie.
        return os.path.realpath(path)


def _read_all(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    if len(data) == length:
        return data
    # One pread returns at most 2 GiB.
    parts = [data]
    got = len(data)
    while data and got < length:
        data = os.pread(fd, length - got, start + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)
