"""Lock of a directory, for all processes that replace or delete files in it.

The lock is advisory (`flock`) and on the directory itself: it leaves no file behind, and it is
released when the process that holds it dies.
"""

# ruff: noqa: PTH118 - strings, not Path objects: this is the hot path of every chunk
from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_FILE_NAME: Final = "lock#0"
"""Locked instead of a directory that cannot be; listings omit this name (see `staged_files`)."""

# NFS implements flock as a byte-range lock, which needs a file opened for writing and belongs to
# the process instead of the open file, so threads need another lock.
_CANNOT_LOCK_DIRECTORIES: Final = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR})
_thread_lock = threading.Lock()


def _reset_thread_lock() -> None:
    # A thread that held the lock during the fork does not exist in the child.
    global _thread_lock  # noqa: PLW0603 - one per process
    _thread_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_thread_lock)


@contextmanager
def hold_lock(directory_fd: int, directory: str) -> Iterator[None]:
    """Hold the lock of an open directory; blocks until it is free.

    Every call needs its own descriptor: threads that share a descriptor share the lock.
    """
    try:
        fcntl.flock(directory_fd, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _CANNOT_LOCK_DIRECTORIES:
            raise
    else:
        try:
            yield
        finally:
            fcntl.flock(directory_fd, fcntl.LOCK_UN)
        return
    with _thread_lock:
        lock_fd = os.open(
            os.path.join(directory, LOCK_FILE_NAME),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o666,
        )
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock_fd)
