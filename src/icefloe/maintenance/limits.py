"""Concurrent requests within limits on memory and concurrency."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
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
    """Limits on reading a whole repository, named as in Icechunk.

    The memory limits apply to all manifests in flight; a manifest above the limit is read alone. At
    most 64 requests are in flight.
    """

    max_snapshots_in_memory: int = 50
    max_compressed_manifest_mem_bytes: int = 512 << 20
    max_decoded_manifest_mem_bytes: int = 4 << 30
    max_concurrent_manifest_fetches: int = 500

    def __post_init__(self) -> None:
        require_positive(**asdict(self))


def require_positive(**limits: int | None) -> None:
    """Raise if a limit is less than 1."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidInputError(f"{name}={value} must be at least 1")


class Budget:
    """A shared amount; `take` blocks until enough of it is left."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def take(self, amount: int) -> None:
        """Take an amount; an amount above the limit is granted while nothing else is taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + amount <= self._limit)
            self._used += amount

    def give_back(self, amount: int) -> None:
        """Give back an amount that was taken."""
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
    """Call a function on each item concurrently, and yield the results in order.

    ``costs`` returns how much of each budget an item takes during its call. One worker runs in the
    thread of the caller. The first error is raised after the running calls ended.
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
