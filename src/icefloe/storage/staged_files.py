"""Files written under a temporary name before they are published under their key.

The name follows the convention of the Rust crate ``object_store``, which Icechunk uses: a name that
ends in ``#`` and digits is an upload in progress and is not listed. So neither implementation
mistakes a partial file of the other for an object.
"""

# ruff: noqa: PTH108, PTH116 - strings, not Path objects: this is the hot path of every chunk
from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_STAGED: Final = re.compile(r"[^#]*#[0-9]+")

_MTIME_STEPS_NS: Final = (1, 1_000, 1_000_000, 2_000_000_000)
"""Time stamp resolutions of file systems, from ext4 and XFS to the two seconds of FAT."""

_MAX_TICK_NS: Final = 1_000_000_000


def is_staged_name(name: str) -> bool:
    """Return whether this is the name of an upload, in progress or abandoned."""
    return _STAGED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file that is not published under its key yet."""

    path: str

    def stat(self) -> os.stat_result:
        """Return the file status."""
        return os.stat(self.path, follow_symlinks=False)

    def make_newer_than(self, current: os.stat_result) -> None:
        """Make the modification time greater than that of the file to be replaced.

        The caller holds the lock of the directory; see `make_version` in `icefloe.storage.local`.
        """
        if self.stat().st_mtime_ns > current.st_mtime_ns:
            return
        for step in _MTIME_STEPS_NS:
            newer = current.st_mtime_ns + step
            os.utime(self.path, ns=(newer, newer))
            if self.stat().st_mtime_ns > current.st_mtime_ns:
                return
        raise StorageError(
            f"{self.path}: the file system does not store modification times, which identify "
            "versions of objects; use another file system for the repository",
            kind=ErrorKind.IO,
        )


@contextmanager
def stage_file(directory: str, data: bytes | memoryview, *, durable: bool) -> Iterator[StagedFile]:
    """Write ``data`` to a staged file, which is deleted at the end unless it was renamed."""
    path = f"{directory}/staged#{secrets.randbits(63)}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    # Shares the lock of `fd`: closing `fd` flushes the file on NFS, but the lock has to be held
    # until the file is published.
    lock_fd = os.dup(fd)
    try:
        try:
            with suppress(OSError):  # without locks, abandoned files are identified by age only
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(fd, data)
            # The file system stamps files with the time of its last tick, milliseconds ago. The
            # clock has a finer resolution, so that consecutive files get different times. The hour
            # is that of the file system: on a network, this machine's clock may be another one.
            stamp, now = os.fstat(fd).st_mtime_ns, time.time_ns()
            if abs(now - stamp) > _MAX_TICK_NS:
                now = stamp + now % _MAX_TICK_NS
            os.utime(fd, ns=(now, now))
            if durable:
                flush(fd)
        finally:
            os.close(fd)
        yield StagedFile(path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(lock_fd)


def has_live_writer(path: str) -> bool:
    """Return whether the writer of a staged file holds its lock, or is another user."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a file of another user
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def flush(fd: int) -> None:
    """Wait until the data written to a file or a directory is on the disk."""
    full_fsync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_fsync is not None:
        # fsync on macOS does not flush the cache of the drive.
        fcntl.fcntl(fd, full_fsync)
    else:
        os.fsync(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all bytes of a contiguous view of any shape."""
    written = os.write(fd, data)
    if written == memoryview(data).nbytes:
        return
    # One write takes at most 2 GiB, and less after a signal or on a full disk.
    remaining = memoryview(data).cast("B")[written:]
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]
