"""How many examples Hypothesis tries: enough for every change, or as many as one has time for.

Examples are drawn anew in each run, so that what one run leaves out the next may try.
``ICEFLOE_HYPOTHESIS=thorough pytest tests/format`` tries the larger numbers.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("ICEFLOE_HYPOTHESIS") == "thorough"


def examples(usual: int, *, thorough: int) -> int:
    """Choose one of two numbers of examples."""
    return thorough if THOROUGH else usual
