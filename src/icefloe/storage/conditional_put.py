"""Conditional puts over a network, which determine their outcome even if a response is lost.

A request can succeed although its response is lost. A retry then conflicts with the object that
the first request wrote. So every conditional put stores a random write id in the metadata of the
object (``icechunkwriteid``, as in Icechunk 2.2 and later). After every result except success the
object is read back:

- It has our write id: the put succeeded.
- The condition still holds (no object, or the expected version): the put did not succeed and may
  be retried. If the first request is still in flight, at most one of the two takes effect: both
  have the same condition and write id.
- The condition no longer holds and the object has another write id. If every response so far was a
  rejection, another writer committed first. If a response was lost, our put may have succeeded and
  been replaced since, so the outcome is unknown. The caller can search for its write in the history
  of the newer object. The result of that search is final: the expected version no longer exists, so
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
from icefloe.storage.interface import Create, UpdateIfMatch, Version

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
    """The current object at a key, as read back."""

    version: Version
    write_id: str | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts and the delays between them."""

    max_attempts: int
    initial_backoff_s: float
    max_backoff_s: float


def is_same_version(version: Version, other: Version) -> bool:
    """Return whether two versions are equal; compares generations if both have one, else ETags."""
    if version.generation is not None and other.generation is not None:
        return version.generation == other.generation
    return version.etag is not None and version.etag == other.etag


def put_conditionally(
    where: str,
    condition: Create | UpdateIfMatch,
    write_id: str | None,
    *,
    send: Callable[[], Version],
    read_back: Callable[[], CurrentObject | None],
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> Version:
    """Send a conditional put until its outcome is known, and return the new version.

    ``where`` is the object, for messages. ``write_id`` is None if the store has no metadata; then a
    put whose response was lost is never recognized as successful. ``send`` sends one request, and
    raises the errors of this module or a final `StorageError`. ``read_back`` may retry.
    """
    response_was_lost = False
    failure: Exception | None = None
    for attempt in range(policy.max_attempts):
        if attempt > 0:
            delay_s = compute_backoff_s(attempt, policy.initial_backoff_s, policy.max_backoff_s)
            attempts = f"attempt {attempt + 1} of {policy.max_attempts}"
            _LOGGER.debug("%s: %s in %.2f s, after: %s", where, attempts, delay_s, failure)
            sleep(delay_s)
        try:
            return send()
        except RequestNotProcessedError as error:
            failure = error
            continue
        except ResponseLostError as error:
            failure = error
            response_was_lost = True
        except ConditionRejectedError as error:
            failure = error
        except StorageError as error:
            if response_was_lost:
                raise _unknown_outcome_error(where, "a retry failed") from error
            raise
        try:
            current = read_back()
        except StorageError as error:
            raise _unknown_outcome_error(where, "the object cannot be read back") from error
        if current is not None and write_id is not None and current.write_id == write_id:
            _LOGGER.info("%s: response lost, but the put succeeded: the write id matches", where)
            return current.version
        if not _is_satisfied(condition, current):
            if response_was_lost:
                raise _unknown_outcome_error(where, "the object was replaced") from failure
            is_create = isinstance(condition, Create)
            reason = "it already exists" if is_create else "it changed since it was read"
            raise PreconditionFailedError(f"{where}: not written, {reason}") from failure
    if response_was_lost:
        raise _unknown_outcome_error(where, f"{policy.max_attempts} requests failed") from failure
    raise StorageError(
        f"{where}: not written, {policy.max_attempts} requests failed: {failure}"
    ) from failure


def _is_satisfied(condition: Create | UpdateIfMatch, current: CurrentObject | None) -> bool:
    match condition:
        case Create():
            return current is None
        case UpdateIfMatch(version):
            return current is not None and is_same_version(current.version, version)


def _unknown_outcome_error(where: str, reason: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{where}: the response to a conditional write was lost and {reason}; check whether the "
        "write is in the history of the object before deleting anything that it refers to"
    )
