"""Many calls at a time stay within their limits."""

from __future__ import annotations

import threading
import time

import pytest

from icefloe.errors import InvalidInputError
from icefloe.maintenance.limits import Budget, ReadLimits, map_bounded


@pytest.mark.parametrize("workers", [1, 4])
def test_answers_come_in_order(workers: int) -> None:
    """Results come in the order of the items, whichever is ready first."""

    def slow(item: int) -> int:
        time.sleep(0.01 if item % 3 == 0 else 0)
        return item * item

    found = list(map_bounded(slow, range(30), workers=workers))
    assert found == [item * item for item in range(30)]


def test_budget() -> None:
    """What is under way never takes more than the budget; what is larger alone goes alone."""
    lock = threading.Lock()
    used = most = 0

    def acquire(amount: int) -> int:
        nonlocal used, most
        with lock:
            used += amount
            most = max(most, used if used > amount else 0)
        time.sleep(0.002)
        with lock:
            used -= amount
        return amount

    amounts = [3, 4, 2, 20, 5, 5, 1, 30, 10, 9] * 3
    found = map_bounded(
        acquire, amounts, workers=8, costs=lambda amount: (amount,), budgets=(Budget(10),)
    )
    assert list(found) == amounts
    assert 0 < most <= 10


def test_error_ends_it() -> None:
    """The first error is raised, and what had not begun is never called."""
    called = []

    def call(item: int) -> None:
        called.append(item)
        time.sleep(0.005)
        if item == 2:
            raise KeyError(item)

    with pytest.raises(KeyError):
        list(map_bounded(call, range(1000), workers=4))
    assert len(called) < 100


def test_limits_let_something_pass() -> None:
    """A limit below one is the caller's mistake."""
    with pytest.raises(InvalidInputError, match="max_concurrent_manifest_fetches=0"):
        ReadLimits(max_concurrent_manifest_fetches=0)
