"""Exponential backoff with jitter. Pure except for the jitter."""

from __future__ import annotations

import random


def compute_backoff_s(failures: int, initial_s: float, max_s: float) -> float:
    """Return the delay after a number of failures, which is at least 1.

    The upper bound doubles with every failure, up to ``max_s``. The delay is uniform between half
    of the bound and the bound, so that concurrent clients do not retry together.
    """
    bound_s = min(max_s, initial_s * 2 ** min(failures - 1, 30))
    return random.uniform(bound_s / 2, bound_s)  # noqa: S311 - no secret
