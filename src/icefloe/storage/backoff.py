"""Exponential backoff with jitter. Pure except for the jitter."""

from __future__ import annotations

import random


def backoff_delay_s(failures: int, initial_s: float, max_s: float) -> float:
    """Return the delay after a number of failures, at least 1.

    The upper bound doubles with every failure, up to ``max_s``; the delay is uniform between half
    of it and all of it, so that concurrent failures do not retry together.
    """
    longest = min(max_s, initial_s * 2 ** min(failures - 1, 30))
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
