"""Flushes everything that any process wrote to a file system, and detects lost writes.

A write only changes the page cache, and the kernel writes it to the disk later. If that fails, the
kernel reports the error once per open descriptor and discards the data. A reference to lost data is
never published, because:

- The flush uses a descriptor that was opened before the data was written. A descriptor opened later
  does not get errors that were reported before.
- After an error, every later flush raises. The kernel would report success, although data is lost.

``syncfs`` on Linux flushes one file system and waits; since Linux 5.8 it reports errors. Other
systems have only ``sync``: it flushes all disks, reports no errors, and on macOS does not wait.
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
    """Flushes the file systems with the objects of one storage, usually a single one."""

    def __init__(self) -> None:
        self._descriptors: Final[dict[int, int]] = {}  # by device
        self._lock: Final = threading.Lock()
        self._failure: OSError | None = None
        weakref.finalize(self, _close_all, self._descriptors)

    def watch(self, directory: str) -> None:
        """Open the file system of ``directory``, to detect errors of later writes."""
        device = os.stat(directory).st_dev
        with self._lock:
            if device not in self._descriptors:
                self._descriptors[device] = os.open(
                    directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                )

    def flush(self) -> None:
        """Wait until all writes to the watched file systems are on disk.

        If a write was lost since watching began, this and every later call raise `StorageError`.
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
                f"earlier writes to the disk were lost, so nothing can be committed: "
                f"{self._failure}; reopen the storage and repeat everything that was not committed",
                kind=ErrorKind.IO,
            ) from self._failure


def sync_file_system(descriptor: int) -> None:
    """Wait until all writes to the file system of an open file are on disk."""
    if _syncfs is None:
        os.sync()
    elif _syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        if number != errno.ENOSYS:  # missing in some sandboxes
            raise OSError(number, os.strerror(number))
        os.sync()


def _close_all(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
