"""Keeps refreshable credentials fresh: before they expire, once, whoever asks."""

from __future__ import annotations

import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_MARGIN: Final = timedelta(minutes=5)
"""How long before its end a credential is renewed: longer than any one request takes."""


class Expiring(Protocol):
    """A credential that knows its end; None means that it has none."""

    @property
    def expires_after(self) -> datetime | None:
        """The moment after which the credential is refused."""


C = TypeVar("C", bound=Expiring)


class RefreshingCredential(Generic[C]):
    """The newest answer of a function, asked again only when the last one is about to expire.

    Any number of threads may call `get`: one of them asks the function, the others wait for its
    answer. Where credentials live shorter than twice the margin, the second half of their life is
    the time to renew them.

    Parameters
    ----------
    pickled_function
        The function as the user gave it. It comes from the user's own process, not from a
        repository: unpickling runs code.
    current
        An answer to begin with.
    kinds
        What the function may answer.
    """

    def __init__(
        self, pickled_function: bytes, current: C | None, kinds: tuple[type[C], ...]
    ) -> None:
        self._pickled_function = pickled_function
        self._function: Callable[[], C] | None = None
        self._kinds = kinds
        self._current = current
        self._renew_at = _renewal_time(current)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RefreshingCredential(renew_at={self._renew_at})"

    def get(self) -> C:
        """Answer a credential that is good for a while."""
        with self._lock:
            if self._current is None or (
                self._renew_at is not None and datetime.now(UTC) >= self._renew_at
            ):
                self._current = self._refresh()
                self._renew_at = _renewal_time(self._current)
            return self._current

    def _refresh(self) -> C:
        if self._function is None:
            self._function = pickle.loads(self._pickled_function)  # noqa: S301 - see the class
        try:
            answer = self._function()
        except Exception as error:  # noqa: BLE001 - it is the user's function
            kind_of_error = type(error).__name__
        else:
            return self._require_kind(answer)
        # Only the type, and raised outside of the handler: the text of somebody else's error may
        # quote what it was given, and a traceback shows the texts of causes and contexts too.
        raise StorageError(
            f"the function that gets credentials raised {kind_of_error}; call it by itself to see "
            "why",
            kind=ErrorKind.INVALID_CREDENTIALS,
        ) from None

    def _require_kind(self, answer: object) -> C:
        if isinstance(answer, self._kinds):
            return answer
        wanted = " or ".join(kind.__qualname__ for kind in self._kinds)
        raise InvalidInputError(
            f"the function that gets credentials answered a {type(answer).__name__}, not {wanted}",
            kind=ErrorKind.INVALID_CREDENTIALS,
        )


def _renewal_time(credential: Expiring | None) -> datetime | None:
    if credential is None or credential.expires_after is None:
        return None
    left = credential.expires_after - datetime.now(UTC)
    return credential.expires_after - min(REFRESH_MARGIN, left / 2)
