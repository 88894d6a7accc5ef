"""How far the clock of this machine is ahead of the clock of a storage, which dates its objects.

The clock of a storage is read once in a process; from then on `time.monotonic` tells its time. It
is read again if the clocks seem to differ, because `time.monotonic` stands still while a machine
sleeps.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from icefloe.errors import ErrorKind, SessionStateError, StorageError

if TYPE_CHECKING:
    from icefloe.storage.interface import Storage

_LOGGER = logging.getLogger(__name__)

MAX_LEAD: Final = timedelta(seconds=600)
"""Icechunk refuses to commit if the time of a snapshot differs from that of its file by more."""

_PRECISION: Final = timedelta(seconds=10)
"""Smaller leads count as none: services round times to seconds, and requests take time."""


class _Reading(NamedTuple):
    storage_time: datetime
    monotonic_s: float

    def estimate_time(self) -> datetime:
        return self.storage_time + timedelta(seconds=time.monotonic() - self.monotonic_s)

    def compute_lead(self) -> timedelta:
        lead = datetime.now(UTC) - self.estimate_time()
        return lead if lead > _PRECISION else timedelta(0)


_readings: Final[dict[str, _Reading]] = {}


def find_lead(storage: Storage, fresh_key: str | None = None) -> timedelta:
    """Return how far the clock of this machine is ahead; zero if it is behind.

    Requests: those of `Storage.read_clock`, once in a process if the clocks agree.
    """
    return _read(storage, fresh_key).compute_lead()


def estimate_time(storage: Storage) -> datetime:
    """Return the time of the clock of a storage; requests as in `find_lead`."""
    return _read(storage, None).estimate_time()


def _read(storage: Storage, fresh_key: str | None) -> _Reading:
    reading = _readings.get(storage.url)
    if reading is None or reading.compute_lead():
        reading = _Reading(storage.read_clock(fresh_key), time.monotonic())
        _readings[storage.url] = reading
    return reading


def correct_limit(storage: Storage, limit: datetime) -> datetime:
    """Return an age limit as the storage dates it: earlier if this machine's clock is ahead.

    A limit such as "an hour ago" is computed from the clock of this machine. If the clock of the
    storage cannot be read, for example because a quota is used up, returns the limit.
    """
    try:
        lead = find_lead(storage)
    except StorageError as error:
        _LOGGER.warning("the clock of %s cannot be read: %s", storage.url, error)
        return limit
    return max(limit, datetime.min.replace(tzinfo=UTC) + lead) - lead


def require_no_lead(storage: Storage, fresh_key: str | None) -> None:
    """Raise if the clock of this machine is ahead by more than `MAX_LEAD`.

    Later snapshots would inherit the time of a snapshot from the future, and Icechunk could not
    commit on top of it.
    """
    lead = find_lead(storage, fresh_key)
    if lead > MAX_LEAD:
        raise SessionStateError(
            f"the clock of this machine is {timedelta(seconds=round(lead.total_seconds()))} ahead "
            f"of the clock of {storage.url}, so its commits would be in the future: nothing was "
            "changed; set the clock of this machine and try again",
            kind=ErrorKind.SNAPSHOT_TIMESTAMP,
        )
