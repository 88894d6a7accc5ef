"""A storage that counts what is asked of another one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage import Storage

T = TypeVar("T")


class CountingStorage(ForwardingStorage):
    """Counts requests by verb and key: that is all that tests of references ask."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.requests: Counter[str] = Counter()

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        self.requests[f"{request.name} {request.keys[0]}"] += 1
        return run()
