"""Splitting of large chunks into requests. Pure, no I/O."""

from __future__ import annotations

from itertools import pairwise

from icefloe.model.byte_range import Bounded


def plan_requests(start: int, length: int, *, ideal_bytes: int, max_requests: int) -> list[Bounded]:
    """Split a range into parts whose sizes differ by at most one byte.

    As many as needed for none to exceed ``ideal_bytes``, but at most ``max_requests``.
    """
    count = max(1, min(-(-length // ideal_bytes), max_requests))
    small, larger = divmod(length, count)
    ends = [start + number * small + min(number, larger) for number in range(count + 1)]
    return [Bounded(*pair) for pair in pairwise(ends)]
