"""Many requests at a time, within limits: of memory, and of how many are under way."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

_MAX_THREADS = 64


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What reading a whole repository may use, in the words of Icechunk.

    The two for memory are what manifests on their way may take together; one that takes more alone
    is read alone. More than 64 requests are never under way.
    """

    max_snapshots_in_memory: int = 50
    max_compressed_manifest_mem_bytes: int = 512 << 20
    max_decoded_manifest_mem_bytes: int = 4 << 30
    max_concurrent_manifest_fetches: int = 500

    def __post_init__(self) -> None:
        require_positive(**{field.name: getattr(self, field.name) for field in fields(self)})


def require_positive(**limits: int | None) -> None:
    """Refuse limits that let nothing pass."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidInputError(f"{name}={value} must be at least 1")


class Budget:
    """An amount that several may use together; who asks for more than is left waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, amount: int) -> None:
        """Take an amount; one above the limit is given when nobody uses anything."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + amount <= self._limit)
            self._used += amount

    def give_back(self, amount: int) -> None:
        """Return what was taken."""
        with self._changed:
            self._used -= amount
            self._changed.notify_all()


def map_bounded(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    costs: Callable[[T], tuple[int, ...]] = lambda _: (),
    budgets: tuple[Budget, ...] = (),
) -> Iterator[R]:
    """Call a function on each item, several at a time, and yield the answers in order.

    ``costs`` says how much of each budget an item takes while its call is under way. With one
    worker everything happens in the thread of the caller. The first error ends it, after the calls
    that had begun.
    """
    if workers == 1:
        yield from map(function, items)
        return

    def give_back(amounts: tuple[int, ...]) -> None:
        for budget, amount in zip(budgets, amounts, strict=True):
            budget.give_back(amount)

    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(min(workers, _MAX_THREADS), "icefloe-maintenance") as pool:
        try:
            for item in items:
                amounts = costs(item)
                for budget, amount in zip(budgets, amounts, strict=True):
                    budget.take(amount)
                future = pool.submit(function, item)
                future.add_done_callback(lambda _, amounts=amounts: give_back(amounts))  # type: ignore[misc]
                waiting.append(future)
                while waiting and (len(waiting) >= 2 * workers or waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
