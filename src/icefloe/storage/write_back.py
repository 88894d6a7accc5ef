"""Gets what any process wrote to a file system onto its disk, and notices what was lost there.

A write ends in the memory of the kernel, which brings it to the disk later. If that fails, whoever
wrote is gone: the kernel tells the next one who asks, once, and then throws the bytes away. Two
things follow, and both are here so that nobody publishes a reference to lost bytes:

- The question is asked through a descriptor that was open before the bytes were written. To one
  opened later, an error that somebody else has already been told of does not exist any more.
- After an error no later flush counts: it would succeed, and prove nothing.

`syncfs` of Linux covers one file system and waits; from 5.8 on it tells of errors (before, only the
flush of a single file does). Elsewhere ``sync`` is all there is: it covers all disks, tells of no
error, and on macOS it starts the writes without waiting for them.
"""

# ruff: noqa: PTH116 - strings, not Path objects, as in `local`
from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_syncfs: Final[Callable[[int], int] | None] = getattr(
    ctypes.CDLL(None, use_errno=True), "syncfs", None
)


class WriteBack:
    """The file systems that objects of one storage lie on; nearly always one."""

    def __init__(self) -> None:
        self._descriptors: Final[dict[int, int]] = {}  # by device
        self._lock: Final = threading.Lock()
        self._failure: OSError | None = None
        weakref.finalize(self, _close_all, self._descriptors)

    def watch(self, directory: str) -> None:
        """Notice errors of the file system of ``directory`` from now on."""
        device = os.stat(directory).st_dev
        with self._lock:
            if device not in self._descriptors:
                self._descriptors[device] = os.open(
                    directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                )

    def flush(self) -> None:
        """Wait until all that was written to the watched file systems is on their disks.

        Raises `StorageError` if anything was lost since they are watched, now and ever after.
        """
        if self._failure is None:
            with self._lock:
                descriptors = list(self._descriptors.values())
            try:
                for descriptor in descriptors:
                    sync_file_system(descriptor)
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            raise StorageError(
                "the disk lost something that was written before, so nothing that refers to it "
                f"can be published: {self._failure}; open the storage again, and write again "
                "whatever was not committed",
                kind=ErrorKind.IO,
            ) from self._failure


def sync_file_system(descriptor: int) -> None:
    """Wait until all that was written to the file system of an open file is on its disk."""
    if _syncfs is None:
        os.sync()
    elif _syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        if number != errno.ENOSYS:  # as some sandboxes answer
            raise OSError(number, os.strerror(number))
        os.sync()


def _close_all(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
