"""Renews refreshable credentials before they expire, single-flight across threads."""

from __future__ import annotations

import logging
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)
REFRESH_MARGIN: Final = timedelta(minutes=5)
"""How long before its expiration a credential is renewed; longer than any request takes."""


class ExpiringCredential(Protocol):
    """A credential with an optional expiration time."""

    @property
    def expires_after(self) -> datetime | None:
        """Time after which the credential is rejected."""


C = TypeVar("C", bound=ExpiringCredential)


class RefreshingCredential(Generic[C]):
    """Caches the credential that a function returns, and renews it before it expires.

    Single-flight: concurrent callers of `get` share one call of the function. A credential that is
    valid for less than twice the margin is renewed after half of that time.

    The function comes from the user's own process, never from a repository: unpickling runs code.
    ``current`` is an optional first result, and ``kinds`` are the valid types of a result.
    """

    def __init__(
        self, pickled_function: bytes, current: C | None, kinds: tuple[type[C], ...]
    ) -> None:
        self._pickled_function = pickled_function
        self._function: Callable[[], C] | None = None
        self._kinds = kinds
        self._current = current
        self._renew_at = _compute_renewal_time(current)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RefreshingCredential(renew_at={self._renew_at})"

    def get(self) -> C:
        """Return a credential that does not expire soon."""
        with self._lock:
            if self._current is None or (
                self._renew_at is not None and datetime.now(UTC) >= self._renew_at
            ):
                self._current = self._refresh()
                self._renew_at = _compute_renewal_time(self._current)
                _LOGGER.debug("refreshed credentials; next refresh at %s", self._renew_at)
            return self._current

    def _refresh(self) -> C:
        if self._function is None:
            self._function = pickle.loads(self._pickled_function)  # noqa: S301 - see the class
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - the user's function
            error_type = type(error).__name__
        else:
            return self._require_kind(result)
        # Only the type, and raised outside the handler: the message of the error may contain a
        # secret, and a traceback shows causes and contexts.
        raise StorageError(
            f"get_credentials raised {error_type}; call it directly to see why",
            kind=ErrorKind.INVALID_CREDENTIALS,
        ) from None

    def _require_kind(self, result: object) -> C:
        if isinstance(result, self._kinds):
            return result
        expected = " or ".join(kind.__qualname__ for kind in self._kinds)
        raise InvalidInputError(
            f"expected get_credentials to return {expected}, got {type(result).__name__}",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )


def _compute_renewal_time(credential: ExpiringCredential | None) -> datetime | None:
    if credential is None or credential.expires_after is None:
        return None
    remaining = credential.expires_after - datetime.now(UTC)
    return credential.expires_after - min(REFRESH_MARGIN, remaining / 2)
