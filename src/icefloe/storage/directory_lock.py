"""Lock of a directory, for all processes that replace or delete files in it.

The lock is advisory (`flock`) and on the directory itself: it leaves no file behind, and it is
released when the process that holds it dies.
"""

# ruff: noqa: PTH118 - strings, not Path objects: this is the hot path of every chunk
from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_FILE_NAME: Final = "lock#0"
"""Locked instead of a directory that cannot be; listings omit this name (see `staged_files`)."""

MAX_WAIT_S = 60.0
"""How long a process waits for a lock, which others hold for microseconds."""

_FIRST_PAUSE_S: Final = 0.0002
_MAX_PAUSE_S: Final = 0.02

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
    """Hold the lock of an open directory.

    Every call needs its own descriptor: threads that share a descriptor share the lock. Raises
    `StorageError` if another process holds the lock for longer than the limit, which only a
    suspended process does.
    """
    try:
        _acquire(directory_fd, directory)
    except OSError as error:
        if error.errno not in _CANNOT_LOCK_DIRECTORIES:
            raise
    else:
        try:
            yield
        finally:
            fcntl.flock(directory_fd, fcntl.LOCK_UN)
        return
    if not _thread_lock.acquire(timeout=MAX_WAIT_S):
        raise _timeout_error(directory, "another thread of this process")
    try:
        lock_fd = os.open(
            os.path.join(directory, LOCK_FILE_NAME),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o666,
        )
        try:
            _acquire(lock_fd, directory)
            yield
        finally:
            os.close(lock_fd)
    finally:
        _thread_lock.release()


def _acquire(fd: int, directory: str) -> None:
    # The lock is held for microseconds, so short pauses suffice; `flock` itself has no time limit.
    deadline = time.monotonic() + MAX_WAIT_S
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _timeout_error(directory, _find_holder(fd)) from None
        else:
            return
        time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - jitter
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _timeout_error(directory: str, holder: str) -> StorageError:
    return StorageError(
        f"{directory}: {holder} has locked the directory for more than {MAX_WAIT_S:.0f} s; if it "
        "is suspended, resume or end it, and try again",
        kind=ErrorKind.IO,
    )


def _find_holder(fd: int) -> str:
    """Describe the process that holds the lock, as far as the system tells."""
    stat = os.fstat(fd)
    file = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    with suppress(OSError), Path("/proc/locks").open(encoding="ascii") as locks:
        for line in locks:
            # As in "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"; a waiting process has "->".
            words = line.split()
            if file in words and "->" not in words and words[4].isdigit():
                return f"process {words[4]}"
    return "another process"
