"""A storage that fails on command, before a request is carried out or after it."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from icefloe.storage import Storage

T = TypeVar("T")


def _never(call_number: int, name: str, key: str) -> None:
    """Let every request pass."""


class FaultyStorage(ForwardingStorage):
    """Another storage, whose requests fail when a function says so.

    Parameters
    ----------
    inner
        The storage that has the objects.
    fail
        Is called before every request with its number (from 0), its name and its first key, and
        raises what the request shall raise. The request is then never carried out.
    fail_after
        The same after a request that succeeded: it was carried out, and its answer is lost.
    """

    def __init__(
        self,
        inner: Storage,
        fail: Callable[[int, str, str], None] = _never,
        *,
        fail_after: Callable[[int, str, str], None] = _never,
    ) -> None:
        super().__init__(inner)
        self.fail = fail
        self.fail_after = fail_after
        self._numbers = count()
        self._number_lock = threading.Lock()

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        call = self._numbered(request)
        self.fail(*call)
        answer = run()
        self.fail_after(*call)
        return answer

    async def _intercept_async(self, request: Request, run: Callable[[], Awaitable[T]]) -> T:
        call = self._numbered(request)
        self.fail(*call)
        answer = await run()
        self.fail_after(*call)
        return answer

    def _numbered(self, request: Request) -> tuple[int, str, str]:
        with self._number_lock:
            number = next(self._numbers)
        return number, request.name, request.keys[0] if request.keys else ""
