"""Refreshes credentials before they expire, single-flight across threads."""

from __future__ import annotations

import logging
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)
REFRESH_MARGIN: Final = timedelta(minutes=5)
"""How long before expiration a credential is refreshed: the default timeout of one request."""


class ExpiringCredential(Protocol):
    """A credential with an optional expiration time."""

    @property
    def expires_after(self) -> datetime | None:
        """Time after which the credential is rejected; None if it does not expire."""


C = TypeVar("C", bound=ExpiringCredential)


class RefreshingCredential(Generic[C]):
    """Caches the credential that a function returns, and refreshes it before it expires.

    Single-flight: concurrent callers of `get` wait for one call of the function and share its
    result; if the call raises, each of them tries again. A credential that is received less than
    twice `REFRESH_MARGIN` before its expiration is refreshed halfway to it.

    The function comes from the user's own process, never from a repository: unpickling runs code.
    ``current`` is a credential to use before the first call, or None; ``types`` are the types that
    the function may return.
    """

    def __init__(
        self, pickled_function: bytes, current: C | None, types: tuple[type[C], ...]
    ) -> None:
        self._pickled_function = pickled_function
        self._function: Callable[[], C] | None = None  # unpickled before the first call
        self._types = types
        self._current = current
        self._refresh_at = _compute_refresh_time(current)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RefreshingCredential(refresh_at={self._refresh_at})"

    def get(self) -> C:
        """Return the credential, refreshed if it is about to expire; raise if a refresh fails."""
        with self._lock:
            if self._current is None or (
                self._refresh_at is not None and datetime.now(UTC) >= self._refresh_at
            ):
                self._current = self._call_function()
                self._refresh_at = _compute_refresh_time(self._current)
                _LOGGER.debug("refreshed credentials; next refresh at %s", self._refresh_at)
            return self._current

    def _call_function(self) -> C:
        if self._function is None:
            self._function = pickle.loads(self._pickled_function)  # noqa: S301 - see the class docstring
        if not callable(self._function):
            problem = f"get_credentials: {type(self._function).__name__!r} object is not callable"
            raise InvalidInputError(problem, kind=ErrorKind.INVALID_CREDENTIALS)
        try:
            result = self._function()
        except IcefloeError as error:
            problem = f"raised {type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            # Its message may contain a secret, which those of this library do not.
            problem = f"raised {type(error).__name__}; call it directly to see the message"
        else:
            return self._require_type(result)
        # Outside the handler, which would attach the user's error as the context of this one.
        raise StorageError(
            f"get_credentials {problem}", kind=ErrorKind.INVALID_CREDENTIALS
        ) from None

    def _require_type(self, result: object) -> C:
        if isinstance(result, self._types):
            return result
        expected = " or ".join(valid_type.__qualname__ for valid_type in self._types)
        raise InvalidInputError(
            f"expected get_credentials to return {expected}, got {type(result).__name__}",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )


def _compute_refresh_time(credential: ExpiringCredential | None) -> datetime | None:
    if credential is None or credential.expires_after is None:
        return None
    remaining = credential.expires_after - datetime.now(UTC)
    # If the credential has expired, `remaining` is negative, and the result is in the past too.
    return credential.expires_after - min(REFRESH_MARGIN, remaining / 2)
