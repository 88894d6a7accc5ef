"""Conditional puts over a network, which determine their outcome even if a response is lost.

A request can succeed although its response is lost. A retry then conflicts with the object that
the first request wrote. So every conditional put stores a random write id in the metadata of the
object (``icechunkwriteid``, as in Icechunk 2.2 and later). After a rejection or a lost response the
object is read back:

- It has our write id: the put succeeded.
- The condition still holds (no object, or the expected version): the put did not succeed and may
  be retried. If the first request is still in flight, at most one of the two takes effect, because
  both have the same condition. Either counts as success, because both have the same write id.
- The condition no longer holds and the object does not have our write id. If no response was lost,
  another writer committed first. Otherwise another writer may have replaced the object that our put
  wrote, so the outcome is unknown. The caller can search for its write in the history of the newer
  object. The result of that search is final: the expected version no longer exists, so
  no request in flight can succeed.

The object is read back after rejections too, because gateways and client libraries retry requests
themselves. The caller passes functions, so this module does not depend on a client library.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import OutcomeUnknownError, PreconditionFailedError, StorageError
from icefloe.storage.backoff import compute_backoff_s
from icefloe.storage.interface import Create, UpdateIfMatch, Version, is_same_version

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

WRITE_ID_ATTRIBUTE: Final = "icechunkwriteid"


class ConditionRejectedError(Exception):
    """The server rejected the condition."""


class ResponseLostError(Exception):
    """The request was sent, and its outcome is unknown."""


class RequestNotProcessedError(Exception):
    """The request did not reach the server, or was rejected without being processed."""


@dataclass(frozen=True, slots=True)
class CurrentObject:
    """The version and write id of the object that was read back."""

    version: Version
    write_id: str | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of the number of attempts and of the delays between them."""

    max_attempts: int
    initial_backoff_s: float
    max_backoff_s: float


def put_conditionally(
    url: str,
    condition: Create | UpdateIfMatch,
    write_id: str | None,
    *,
    send: Callable[[], Version],
    read_back: Callable[[], CurrentObject | None],
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> Version:
    """Send a conditional put until its outcome is known, and return the new version.

    ``url`` is for messages. ``write_id`` is None if objects have no metadata; then a put whose
    response was lost is never recognized as successful. ``send`` sends one request, and raises the
    errors of this module, or a `StorageError` that must not be retried. ``read_back`` may retry.
    """
    response_was_lost = False
    last_error: Exception | None = None
    for attempt in range(policy.max_attempts):
        if attempt > 0:
            delay_s = compute_backoff_s(attempt, policy.initial_backoff_s, policy.max_backoff_s)
            progress = f"attempt {attempt + 1} of {policy.max_attempts}"
            _LOGGER.debug("%s: %s in %.2f s, after: %s", url, progress, delay_s, last_error)
            sleep(delay_s)
        try:
            return send()
        except RequestNotProcessedError as error:
            last_error = error
            continue
        except ResponseLostError as error:
            last_error = error
            response_was_lost = True
        except ConditionRejectedError as error:
            last_error = error
        except StorageError as error:
            if response_was_lost:
                raise _unknown_outcome_error(url, "a retry failed") from error
            raise
        try:
            current = read_back()
        except StorageError as error:
            raise _unknown_outcome_error(url, "the object cannot be read back") from error
        if current is not None and write_id is not None and current.write_id == write_id:
            _LOGGER.info("%s: the put succeeded: the object has its write id", url)
            return current.version
        if not _is_satisfied(condition, current):
            if response_was_lost:
                raise _unknown_outcome_error(url, "the object was replaced") from last_error
            is_create = isinstance(condition, Create)
            reason = "it already exists" if is_create else "it changed since it was read"
            raise PreconditionFailedError(f"{url}: not written, {reason}") from last_error
    if response_was_lost:
        raise _unknown_outcome_error(url, f"{policy.max_attempts} requests failed") from last_error
    raise StorageError(
        f"{url}: not written, {policy.max_attempts} requests failed: {last_error}"
    ) from last_error


def _is_satisfied(condition: Create | UpdateIfMatch, current: CurrentObject | None) -> bool:
    match condition:
        case Create():
            return current is None
        case UpdateIfMatch(version):
            return current is not None and is_same_version(current.version, version)


def _unknown_outcome_error(url: str, reason: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{url}: it is unknown whether a conditional write succeeded ({reason}); check whether the "
        "write is in the history of the object before deleting anything that the write refers to"
    )
