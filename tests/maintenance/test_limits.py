"""Concurrent calls stay within their limits."""

from __future__ import annotations

import threading
import time

import pytest

from icefloe.errors import InvalidInputError
from icefloe.maintenance.limits import Budget, ReadLimits, map_bounded


@pytest.mark.parametrize("workers", [1, 4])
def test_results_are_in_order(workers: int) -> None:
    """Results are in the order of the items, regardless of completion order."""

    def slow(item: int) -> int:
        time.sleep(0.01 if item % 3 == 0 else 0)
        return item * item

    found = list(map_bounded(slow, range(30), workers=workers))
    assert found == [item * item for item in range(30)]


def test_budget() -> None:
    """Calls in flight stay within the budget; an item above the budget runs alone."""
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


def test_an_error_cancels_pending_calls() -> None:
    """The first error is raised, and calls that have not started are cancelled."""
    called = []

    def call(item: int) -> None:
        called.append(item)
        time.sleep(0.005)
        if item == 2:
            raise KeyError(item)

    with pytest.raises(KeyError):
        list(map_bounded(call, range(1000), workers=4))
    assert len(called) < 100


def test_limits_are_positive() -> None:
    """A limit below 1 is rejected."""
    with pytest.raises(InvalidInputError, match="max_concurrent_manifest_fetches=0"):
        ReadLimits(max_concurrent_manifest_fetches=0)
