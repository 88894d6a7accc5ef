"""Splits the byte range of a large chunk into several requests. Pure, no I/O."""

from __future__ import annotations

from itertools import pairwise

from icefloe.model.byte_range import Bounded


def plan_requests(start: int, length: int, *, ideal_bytes: int, max_requests: int) -> list[Bounded]:
    """Split a range into parts whose sizes differ by at most one byte.

    No part exceeds ``ideal_bytes``, unless more than ``max_requests`` parts would be needed.
    """
    count = max(1, min(-(-length // ideal_bytes), max_requests))
    part_bytes, num_larger = divmod(length, count)
    ends = [start + number * part_bytes + min(number, num_larger) for number in range(count + 1)]
    return [Bounded(*pair) for pair in pairwise(ends)]
