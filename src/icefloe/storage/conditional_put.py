"""Conditional puts over a network, with a known outcome or an explicit unknown.

A request can succeed and its response be lost. A retry then conflicts with the object that the
first request wrote. So every conditional put carries a random write id in the object's metadata
(``icechunkwriteid``, as in Icechunk 2.2 and later), and every result but plain success is settled
by reading the object back:

- It has our write id: the put succeeded.
- The condition still holds (nothing there, or the expected version): the put did not succeed and
  may be retried. If the first request is still in flight, at most one of the two takes effect:
  both have the same condition and write id.
- The condition no longer holds and the object is not ours. If every response so far was a
  rejection, another writer committed first. If a response was lost, our put may also have succeeded
  and been replaced since; the object cannot tell, so the outcome is unknown. The caller can search
  for its write in the history of the newer object. That answer is final: the expected version is
  gone, so no request in flight can succeed.

Plain rejections are read back too, because gateways and client libraries retry requests
themselves. This module does not know the client library: the caller passes functions.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import OutcomeUnknownError, PreconditionFailedError, StorageError
from icefloe.storage.backoff import backoff_delay_s
from icefloe.storage.interface import Create, UpdateIfMatch, Version

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)

WRITE_ID_ATTRIBUTE: Final = "icechunkwriteid"


class ConditionRefusedError(Exception):
    """The server rejected the condition."""


class ResponseLostError(Exception):
    """The request was sent, and its outcome is unknown."""


class RequestNotSentError(Exception):
    """The request did not reach the server, or was rejected unprocessed."""


@dataclass(frozen=True, slots=True)
class PresentObject:
    """The object that a read-back finds at the key."""

    version: Version
    write_id: str | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to send, and how long to wait in between."""

    max_attempts: int
    initial_backoff_s: float
    max_backoff_s: float


def is_same_version(version: Version, other: Version) -> bool:
    """Return whether two versions are equal; generations take precedence where both have one."""
    if version.generation is not None and other.generation is not None:
        return version.generation == other.generation
    return version.etag is not None and version.etag == other.etag


def put_conditionally(
    where: str,
    condition: Create | UpdateIfMatch,
    write_id: str | None,
    *,
    send: Callable[[], Version],
    read_back: Callable[[], PresentObject | None],
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> Version:
    """Send a conditional put until its outcome is known, and return the new version.

    ``where`` is the object, for messages. ``write_id`` is None where the store keeps no metadata,
    and then no lost response can be settled as success. ``send`` sends one request, and raises the
    errors of this module or a final `StorageError`; ``read_back`` may retry, it changes nothing.
    """
    response_was_lost = False
    failure: Exception | None = None
    for attempt in range(policy.max_attempts):
        if attempt > 0:
            delay_s = backoff_delay_s(attempt, policy.initial_backoff_s, policy.max_backoff_s)
            attempts = f"attempt {attempt + 1} of {policy.max_attempts}"
            _LOGGER.debug("%s: %s in %.2f s, after: %s", where, attempts, delay_s, failure)
            sleep(delay_s)
        try:
            return send()
        except RequestNotSentError as error:
            failure = error
            continue
        except ResponseLostError as error:
            failure = error
            response_was_lost = True
        except ConditionRefusedError as error:
            failure = error
        except StorageError as error:
            if response_was_lost:
                raise _unknown(where, "a retry failed") from error
            raise
        try:
            present = read_back()
        except StorageError as error:
            raise _unknown(where, "the object cannot be read back") from error
        if present is not None and write_id is not None and present.write_id == write_id:
            _LOGGER.info("%s: response lost, but the object is ours: the put succeeded", where)
            return present.version
        if not _holds(condition, present):
            if response_was_lost:
                raise _unknown(where, "it has been replaced since") from failure
            exists = isinstance(condition, Create)
            reason = "it already exists" if exists else "it changed since it was read"
            raise PreconditionFailedError(f"{where}: not written, {reason}") from failure
    if response_was_lost:
        raise _unknown(where, f"{policy.max_attempts} requests were sent") from failure
    raise StorageError(
        f"{where}: not written, {policy.max_attempts} requests failed: {failure}"
    ) from failure


def _holds(condition: Create | UpdateIfMatch, present: PresentObject | None) -> bool:
    match condition:
        case Create():
            return present is None
        case UpdateIfMatch(version):
            return present is not None and is_same_version(present.version, version)


def _unknown(where: str, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{where}: the response to a conditional write was lost and {why}; check whether the write "
        "is in the history of the object before deleting anything that it refers to"
    )
