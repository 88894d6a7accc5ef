"""Brings a conditional put over a network to an end that is known, or said to be unknown.

A request can be carried out and its response lost. Sending it again then meets the very object
that it wrote, and the refusal looks like somebody else's. So every conditional put carries a random
write id as metadata of the object (``icechunkwriteid``, as Icechunk from 2.2 on), and whatever is
not a plain success is settled by looking at the object:

- it carries our write id: the put landed;
- the condition still holds (nothing there, or the version expected): it has not landed, and may be
  sent again. If a first request is still on its way and lands later, the second one is refused, or
  the other way round: both have one condition and one write id, so at most one of them takes
  effect, and either is ours;
- the condition does not hold any more and the object is not ours: somebody else was faster, *if*
  every answer so far was a refusal. If a response was lost, ours may also have landed and been
  replaced by a writer who had seen it. The object cannot tell these two apart, so the outcome is
  unknown here; who can tell is the caller, who finds or does not find its own write in the history
  of the newer object. That answer is final: the version that ours needs is gone, and no request
  still on its way can land.

A clean refusal is looked at too, because gateways and client libraries repeat requests on their
own account. Nothing here knows the client library: requests are functions that the caller gives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.errors import OutcomeUnknownError, PreconditionFailedError, StorageError
from icefloe.storage.backoff import backoff_delay_s
from icefloe.storage.interface import Create, UpdateIfMatch, Version

if TYPE_CHECKING:
    from collections.abc import Callable

WRITE_ID_ATTRIBUTE: Final = "icechunkwriteid"


class ConditionRefusedError(Exception):
    """The server answered that the condition does not hold."""


class ResponseLostError(Exception):
    """The request was sent, and no answer tells whether it was carried out."""


class RequestNotSentError(Exception):
    """The request did not reach the server, or was turned away unread."""


@dataclass(frozen=True, slots=True)
class PresentObject:
    """What a look at the key of a conditional put finds."""

    version: Version
    write_id: str | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to send, and how long to wait in between."""

    max_attempts: int
    initial_backoff_s: float
    max_backoff_s: float

    def backoff_delay_s(self, failures: int) -> float:
        """Tell how long to wait after so many failures; see `backoff`."""
        return backoff_delay_s(failures, self.initial_backoff_s, self.max_backoff_s)


def is_same_version(one: Version, other: Version) -> bool:
    """Whether two versions are the same; a generation, where both have it, says more."""
    if one.generation is not None and other.generation is not None:
        return one.generation == other.generation
    return one.etag is not None and one.etag == other.etag


def put_conditionally(
    where: str,
    condition: Create | UpdateIfMatch,
    write_id: str | None,
    *,
    send: Callable[[], Version],
    look: Callable[[], PresentObject | None],
    policy: RetryPolicy,
    sleep: Callable[[float], None] = time.sleep,
) -> Version:
    """Send a conditional put until its outcome is known.

    Parameters
    ----------
    where
        The object, for messages.
    condition
        What the server checks.
    write_id
        What the object will carry; None where the place keeps no metadata, and then no lost
        response can be settled in favour of success.
    send
        Sends once. Raises the three errors of this module, or a `StorageError` that is final.
    look
        Tells what is there now, None for nothing; may repeat its request, which changes nothing.
    policy
        Bounds the whole.
    sleep
        Waits.

    Returns
    -------
        The version that this put made.
    """
    response_was_lost = False
    failure: Exception | None = None
    for attempt in range(policy.max_attempts):
        if attempt > 0:
            sleep(policy.backoff_delay_s(attempt))
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
                raise _unknown(where, "a later request failed for good") from error
            raise
        try:
            present = look()
        except StorageError as error:
            raise _unknown(where, "the object cannot be looked at") from error
        if present is not None and write_id is not None and present.write_id == write_id:
            return present.version
        if not _holds(condition, present):
            if response_was_lost:
                raise _unknown(where, "it has been replaced since") from failure
            raise PreconditionFailedError(
                f"{where}: not written, {_refusal(condition)}"
            ) from failure
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


def _refusal(condition: Create | UpdateIfMatch) -> str:
    match condition:
        case Create():
            return "it is there already"
        case UpdateIfMatch():
            return "it changed since it was read"


def _unknown(where: str, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{where}: the response to a conditional write was lost and {why}; read the object to see "
        "whether the write is part of its history, and delete nothing that it refers to before"
    )
