"""Limits on the memory and concurrency of requests."""

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

    The memory limits apply to the sum of all manifests in flight; a manifest above a limit is read
    alone. At most 64 requests are in flight.
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
    """A shared amount, such as bytes of memory; `acquire` blocks until enough is available."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, amount: int) -> None:
        """Acquire an amount; one above the limit is granted when nothing else is acquired."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + amount <= self._limit)
            self._used += amount

    def release(self, amount: int) -> None:
        """Release an amount that was acquired."""
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

    ``costs`` returns the amount of each budget that an item holds during its call. A single worker
    runs in the calling thread. The first error is raised after the running calls have ended.
    """
    if workers == 1:
        yield from map(function, items)
        return

    def release(amounts: tuple[int, ...]) -> None:
        for budget, amount in zip(budgets, amounts, strict=True):
            budget.release(amount)

    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(min(workers, _MAX_THREADS), "icefloe-maintenance") as pool:
        try:
            for item in items:
                amounts = costs(item)
                for budget, amount in zip(budgets, amounts, strict=True):
                    budget.acquire(amount)
                future = pool.submit(function, item)
                future.add_done_callback(lambda _, amounts=amounts: release(amounts))  # type: ignore[misc]
                pending.append(future)
                while pending and (len(pending) >= 2 * workers or pending[0].done()):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
