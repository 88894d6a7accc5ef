"""How long to wait before something that failed is tried again. Pure but for the dice."""

from __future__ import annotations

import random


def backoff_delay_s(failures: int, initial_s: float, most_s: float) -> float:
    """Tell how long to wait after so many failures, the first being 1.

    The longest pause doubles with every failure, up to ``most_s``; the answer lies anywhere between
    half and all of it, so that those who failed together do not try again together.
    """
    longest = min(most_s, initial_s * 2 ** min(failures - 1, 30))
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
