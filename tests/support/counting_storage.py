"""A storage that keeps a record of all requests: how many, which, how large, which at one time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from icefloe.storage import Fetched, Storage
from icefloe.storage.forwarding import ForwardingStorage, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One request; times are `time.monotonic`, bytes are those sent or, of a read, those that came.

    ``keys`` has one key, but two for a copy and all of them for a deletion; a listing has its
    prefix there. A listing ends, as far as this record goes, before its first object is looked at.
    """

    name: str
    keys: tuple[str, ...]
    size_bytes: int
    started: float
    ended: float
    failed: bool

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""

    def overlaps(self, other: Call) -> bool:
        return self.started < other.ended and other.started < self.ended


class CountingStorage(ForwardingStorage):
    """Another storage and the record of what was asked of it, in the order of the ends.

    A storage made from it `with_settings` writes to the same record.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._calls: list[Call] = []
        self._record_lock = threading.Lock()

    @property
    def calls(self) -> tuple[Call, ...]:
        with self._record_lock:
            return tuple(self._calls)

    def forget(self) -> None:
        """Begin a new record."""
        with self._record_lock:
            self._calls.clear()

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def counts(self) -> dict[str, int]:
        """Tell how many requests of each name there were."""
        return dict(Counter(self.names()))

    def keys(self, name: str | None = None) -> list[str]:
        """Tell the keys that were asked for, by requests of that name or by all."""
        return [key for call in self.calls if name in {None, call.name} for key in call.keys]

    def size_bytes(self, name: str | None = None) -> int:
        return sum(call.size_bytes for call in self.calls if name in {None, call.name})

    def most_at_once(self, name: str | None = None) -> int:
        """Tell how many requests were under way at the busiest moment."""
        events = [
            event
            for call in self.calls
            if name in {None, call.name}
            for event in ((call.started, 1), (call.ended, -1))
        ]
        busy = most = 0
        for _, change in sorted(events):
            busy += change
            most = max(most, busy)
        return most

    def _intercept(self, request: Request, run: Callable[[], T]) -> T:
        started = time.monotonic()
        try:
            answer = run()
        except BaseException:
            self._note(request, started, 0, failed=True)
            raise
        self._note(request, started, _size_bytes(answer))
        return answer

    async def _intercept_async(self, request: Request, run: Callable[[], Awaitable[T]]) -> T:
        started = time.monotonic()
        try:
            answer = await run()
        except BaseException:
            self._note(request, started, 0, failed=True)
            raise
        self._note(request, started, _size_bytes(answer))
        return answer

    def _note(
        self, request: Request, started: float, size_bytes: int, *, failed: bool = False
    ) -> None:
        call = Call(
            request.name,
            request.keys,
            request.bytes_sent or size_bytes,
            started,
            time.monotonic(),
            failed,
        )
        with self._record_lock:
            self._calls.append(call)


def overlapping(calls: Sequence[Call]) -> bool:
    """Whether all of these requests were under way at one moment."""
    return max(call.started for call in calls) < min(call.ended for call in calls)


def _size_bytes(answer: object) -> int:
    match answer:
        case Fetched(data):
            return memoryview(data).nbytes
        case bytes() | memoryview():
            return memoryview(answer).nbytes
        case list():
            return sum(_size_bytes(part) for part in answer)
        case _:
            return 0
