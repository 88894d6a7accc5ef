"""Mutual exclusion of all processes that change the names in one directory.

The lock is advisory (`flock`) and is placed on the directory itself, so it leaves no file behind,
and it is released when its holder dies.
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
"""Fallback where directories cannot be locked; listings omit this name (see `staged_files`)."""

# NFS turns flock into a byte-range lock, which needs a file opened for writing and belongs to the
# process instead of the open file: threads need a lock of their own.
_CANNOT_LOCK_DIRECTORIES: Final = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR})
_threads = threading.Lock()


def _forget_lock_of_parent() -> None:
    # A thread that held the lock during a fork does not exist in the child.
    global _threads  # noqa: PLW0603 - one per process
    _threads = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock_of_parent)


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
    with _threads:
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
