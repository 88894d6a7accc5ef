"""Marks of running garbage collections, which refuse commits of files that may be being deleted.

A commit looks up its files if a collection may have run (`icefloe.refs.commit_check`), but a
collection that still runs could delete them right after that. So a collection has a mark, an empty
object with the cutoff in its key, from before it records itself in ``repo`` until it has deleted
everything. A commit looks for marks before it looks for its files:

- There is a mark: files from before its cutoff are not committed.
- There is none: an earlier collection has ended, and its deletions are visible. In generation v2
  a later one changes ``repo``, so that the commit is repeated, with another look.

A collection renews its mark. A mark that was not renewed for `LEASE_S` belongs to a collection that
was killed, and the next one deletes it. Not detected are collections of Icechunk, those on a disk
that is too full for a mark, and those that were suspended for that long while they deleted files.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    ErrorKind,
    PermissionDeniedError,
    SessionStateError,
    StorageError,
)
from icefloe.format.keys import COLLECTIONS
from icefloe.format.timestamps import from_microseconds, to_microseconds
from icefloe.storage.clock import estimate_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.interface import Storage

_LOGGER = logging.getLogger(__name__)

LEASE_S: Final = 600.0
RENEWAL_S: Final = 60.0


class CollectionMark:
    """The mark of a collection of this process, which a thread renews."""

    def __init__(self, storage: Storage, cutoff: datetime) -> None:
        self._key: Final = f"{COLLECTIONS}{to_microseconds(cutoff)}.{secrets.token_hex(10)}"
        self._storage = storage
        self._renewed_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="icefloe-collection", daemon=True)

    def begin(self) -> None:
        """Write the mark, if the disk has room for it."""
        try:
            self._write()
        except StorageError as error:
            if error.kind is not ErrorKind.DISK_FULL:
                raise
            _LOGGER.warning("garbage collection without a mark: %s", error)
        else:
            self._thread.start()

    def require(self) -> None:
        """Raise if the mark was not renewed, so that a commit may count on files to delete."""
        if self._renewed_s is None:
            return
        age_s = time.monotonic() - self._renewed_s
        if age_s > LEASE_S / 2:
            raise StorageError(
                f"garbage collection of {self._storage.url} stopped: its mark was not renewed for "
                f"{age_s:.0f} s, because the process was suspended or writes fail; no live file "
                "was deleted, and the next collection continues where this one stopped",
                kind=ErrorKind.GC_DELETES_FAILING,
            )

    def end(self) -> None:
        """Delete the mark."""
        self._ended.set()
        if self._renewed_s is None:
            return
        self._thread.join()
        with suppress(StorageError):  # then it ends by itself
            self._storage.delete_many([self._key])

    def _write(self) -> None:
        now_s = time.monotonic()
        self._storage.put(self._key, b"")
        self._renewed_s = now_s

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_S):
            try:
                self._write()
            except StorageError as error:
                _LOGGER.warning("the mark of a garbage collection was not renewed: %s", error)


@contextmanager
def hold_mark(storage: Storage, cutoff: datetime) -> Iterator[CollectionMark]:
    """Mark a collection as running; delete the marks of those that were killed."""
    mark = CollectionMark(storage, cutoff)
    mark.begin()
    try:
        ended = _compute_end(storage)
        if marks := [info.key for info in storage.list(COLLECTIONS) if info.last_modified < ended]:
            storage.delete_many(marks)
        yield mark
    finally:
        mark.end()


def require_no_collection(storage: Storage, start_s: float) -> None:
    """Raise if a running collection deletes files from the time since ``start_s``; one request."""
    start = datetime.fromtimestamp(start_s, UTC) + (estimate_time(storage) - datetime.now(UTC))
    ended = _compute_end(storage)
    try:
        marks = list(storage.list(COLLECTIONS))
    except PermissionDeniedError as error:
        _LOGGER.debug("running collections of %s are not known: %s", storage.url, error)
        return
    for info in marks:
        cutoff_us = info.key.removeprefix(COLLECTIONS).partition(".")[0]
        if info.last_modified < ended or not cutoff_us.isdecimal():
            continue
        cutoff = from_microseconds(int(cutoff_us), info.key)
        if start < cutoff:
            raise SessionStateError(
                f"a garbage collection of {storage.url} is deleting unused files from before "
                f"{cutoff.isoformat()}, and this session may have some: nothing was committed; "
                f"commit again when it has ended, or {LEASE_S / 60:.0f} minutes after its process "
                "was killed",
                kind=ErrorKind.COLLECTION_RUNNING,
            )


def _compute_end(storage: Storage) -> datetime:
    """Return the time before which marks had to be renewed."""
    return estimate_time(storage) - timedelta(seconds=LEASE_S)
