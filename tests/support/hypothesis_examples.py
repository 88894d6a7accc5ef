"""How many examples Hypothesis tries: enough for every change, or as many as one has time for.

Each run draws new examples.
``ICEFLOE_HYPOTHESIS=thorough pytest tests/format`` tries the larger numbers.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("ICEFLOE_HYPOTHESIS") == "thorough"


def examples(usual: int, *, thorough: int) -> int:
    """Choose one of two numbers of examples."""
    return thorough if THOROUGH else usual
