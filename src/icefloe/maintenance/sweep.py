"""The sweep phase of garbage collection: deletes files in batches and counts them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from icefloe.errors import ErrorKind, StorageError
from icefloe.maintenance.limits import require_positive
from icefloe.maintenance.progress import Phase, Step, ignore_progress
from icefloe.model.id_columns import format_names
from icefloe.storage.backoff import compute_backoff_s

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from icefloe.format.generation import FileKind
    from icefloe.maintenance.progress import Progress
    from icefloe.refs.collection_mark import CollectionMark
    from icefloe.storage.interface import Storage

_LOGGER = logging.getLogger(__name__)
_BATCH = 1000
_MAX_MESSAGES = 10
_MAX_ATTEMPTS = 8
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class GCSummary:
    """The files that a garbage collection deleted, or would delete.

    Parameters
    ----------
    bytes_deleted
        Size of all deleted files.
    chunks_deleted, manifests_deleted, snapshots_deleted, transaction_logs_deleted
        Number of deleted files of each kind.
    attributes_deleted
        Number of deleted attributes files; always 0 in generations v1 and v2, which have none.
    objects_failed_to_delete
        Number of files that could not be deleted; the next collection tries again.
    throttled_batches
        Number of requests that were repeated because the storage throttled them.
    delete_errors
        First distinct messages of failed deletions, and of a failure to record the collection, at
        most ten.
    skipped_phases
        Kinds of files that were not deleted because of an earlier failure.
    """

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    objects_failed_to_delete: int = 0
    throttled_batches: int = 0
    delete_errors: list[str] = field(default_factory=list)
    skipped_phases: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeleteLimits:
    """Limits on concurrent delete requests, and on consecutive failures."""

    max_concurrent_deletes: int = 10
    max_consecutive_delete_failures: int = 50

    def __post_init__(self) -> None:
        require_positive(**asdict(self))


class Sweeper:
    """Deletes files by id, one kind at a time; after a failure, the remaining kinds are skipped.

    Referring files are deleted first. If one of them cannot be deleted, the files it refers to must
    be kept, otherwise its references would be broken.
    """

    def __init__(
        self,
        storage: Storage,
        limits: DeleteLimits | None = None,
        *,
        dry_run: bool = False,
        progress: Progress = ignore_progress,
        mark: CollectionMark | None = None,
    ) -> None:
        self._storage = storage
        self._mark = mark
        self._limits = limits or DeleteLimits()
        self._dry_run = dry_run
        self._progress = progress
        self._lock = threading.Lock()
        self._deleted: Counter[Phase] = Counter()
        self._bytes_deleted = 0
        self._failed = self._consecutive_failures = self._throttled = 0
        self._messages: list[str] = []
        self._skipped: list[str] = []

    @property
    def can_continue(self) -> bool:
        """Whether all deletions so far succeeded."""
        return not self._failed

    def count_bytes(self, size_bytes: int) -> None:
        """Count the size of other files that were deleted."""
        self._bytes_deleted += size_bytes

    def delete(
        self, phase: Phase, files: FileKind, rows: NDArray[np.uint8], sizes_bytes: NDArray[np.int64]
    ) -> None:
        """Delete the files of a kind with these ids.

        Raises
        ------
        StorageError
            Of kind ``GC_DELETES_FAILING`` if too many requests in a row failed.
        """
        batches = [slice(start, start + _BATCH) for start in range(0, len(rows), _BATCH)]

        def delete_batch(batch: slice) -> None:
            keys = [files.format_key(name) for name in format_names(rows[batch])]
            error = None if self._dry_run else self._delete_with_retries(keys)
            with self._lock:
                if error is None:
                    self._consecutive_failures = 0
                    self._deleted[phase] += len(keys)
                    self._bytes_deleted += int(sizes_bytes[batch].sum())
                    self._progress(Step(phase, self._deleted[phase], len(rows)))
                    return
                self._failed += len(keys)
                self._consecutive_failures += 1
                self._record_message(error)
                if self._consecutive_failures >= self._limits.max_consecutive_delete_failures:
                    raise StorageError(
                        f"{self._consecutive_failures} consecutive requests to delete files of "
                        f"{self._storage.url} failed, the last with: {error.message}; no live file "
                        "was deleted, and the next collection continues where this one stopped",
                        kind=ErrorKind.GC_DELETES_FAILING,
                    ) from error

        workers = 1 if self._storage.is_low_latency else self._limits.max_concurrent_deletes
        if workers == 1 or len(batches) < 2:
            for batch in batches:
                delete_batch(batch)
            return
        with ThreadPoolExecutor(min(workers, len(batches)), "icefloe-sweep") as pool:
            futures = [pool.submit(delete_batch, batch) for batch in batches]
            try:
                for future in futures:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()

    def delete_abandoned_uploads(self, cutoff: datetime) -> None:
        """Delete incomplete uploads, which listings omit, and count their bytes."""
        try:
            uploads = self._storage.delete_abandoned_uploads(before=cutoff, dry_run=self._dry_run)
        except StorageError as error:
            self._failed += 1
            self._record_message(error)
        else:
            self._bytes_deleted += uploads.num_bytes

    def record_error(self, error: StorageError) -> None:
        """Add the message of an error other than of a deletion to the summary."""
        _LOGGER.warning("%s: %s", self._storage.url, error)
        self._record_message(error)

    def _record_message(self, error: StorageError) -> None:
        if len(self._messages) < _MAX_MESSAGES and error.message not in self._messages:
            self._messages.append(error.message)

    def skip(self, phase: Phase) -> None:
        """Record that a kind of files was not deleted."""
        self._skipped.append(phase.value)

    def make_summary(self) -> GCSummary:
        """Return the summary of all deletions."""
        return GCSummary(
            bytes_deleted=self._bytes_deleted,
            chunks_deleted=self._deleted[Phase.DELETE_CHUNKS],
            manifests_deleted=self._deleted[Phase.DELETE_MANIFESTS],
            snapshots_deleted=self._deleted[Phase.DELETE_SNAPSHOTS],
            attributes_deleted=self._deleted[Phase.DELETE_ATTRIBUTES],
            transaction_logs_deleted=self._deleted[Phase.DELETE_TRANSACTION_LOGS],
            objects_failed_to_delete=self._failed,
            throttled_batches=self._throttled,
            delete_errors=list(self._messages),
            skipped_phases=list(self._skipped),
        )

    def _delete_with_retries(self, keys: list[str]) -> StorageError | None:
        failures = 0
        while True:
            if self._mark is not None:
                self._mark.require()
            try:
                self._storage.delete_many(keys)
            except StorageError as error:
                failures += 1
                if error.kind is not ErrorKind.THROTTLED or failures >= _MAX_ATTEMPTS:
                    return error
                with self._lock:
                    self._throttled += 1
                time.sleep(compute_backoff_s(failures, _FIRST_PAUSE_S, _MAX_PAUSE_S))
            else:
                return None
