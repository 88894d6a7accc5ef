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
"""The time before expiration at which a credential is renewed; longer than any request takes."""


class ExpiringCredential(Protocol):
    """A credential with an optional expiration time."""

    @property
    def expires_after(self) -> datetime | None:
        """Time after which the credential is rejected."""


C = TypeVar("C", bound=ExpiringCredential)


class RefreshingCredential(Generic[C]):
    """Caches the credential that a function returns, and renews it before it expires.

    Single-flight: concurrent callers of `get` share one call of the function. A credential that is
    valid for less than twice `REFRESH_MARGIN` is renewed halfway to its expiration.

    The function comes from the user's own process, never from a repository: unpickling runs code.
    ``current`` is an optional first credential, and ``types`` are the valid types of a credential.
    """

    def __init__(
        self, pickled_function: bytes, current: C | None, types: tuple[type[C], ...]
    ) -> None:
        self._pickled_function = pickled_function
        self._function: Callable[[], C] | None = None
        self._types = types
        self._current = current
        self._renew_at = _compute_renewal_time(current)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RefreshingCredential(renew_at={self._renew_at})"

    def get(self) -> C:
        """Return the credential, renewed if it is about to expire."""
        with self._lock:
            if self._current is None or (
                self._renew_at is not None and datetime.now(UTC) >= self._renew_at
            ):
                self._current = self._call_function()
                self._renew_at = _compute_renewal_time(self._current)
                _LOGGER.debug("refreshed credentials; next refresh at %s", self._renew_at)
            return self._current

    def _call_function(self) -> C:
        if self._function is None:
            self._function = pickle.loads(self._pickled_function)  # noqa: S301 - see the class docstring
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - the user's function
            error_type = type(error).__name__
        else:
            return self._require_type(result)
        # The message of the user's error may contain a secret: report only its type, and raise
        # outside the handler, because a traceback shows the context of an error.
        raise StorageError(
            f"get_credentials raised {error_type}; call it directly to see why",
            kind=ErrorKind.INVALID_CREDENTIALS,
        ) from None

    def _require_type(self, result: object) -> C:
        if isinstance(result, self._types):
            return result
        expected = " or ".join(type_.__qualname__ for type_ in self._types)
        raise InvalidInputError(
            f"expected get_credentials to return {expected}, got {type(result).__name__}",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )


def _compute_renewal_time(credential: ExpiringCredential | None) -> datetime | None:
    if credential is None or credential.expires_after is None:
        return None
    remaining = credential.expires_after - datetime.now(UTC)
    return credential.expires_after - min(REFRESH_MARGIN, remaining / 2)
