"""Numbers of Hypothesis examples: few for ``make quick``, more for every change, most on demand.

Examples differ from run to run. The environment variable ``ICEFLOE_HYPOTHESIS`` is ``quick`` or
``thorough``, as in ``ICEFLOE_HYPOTHESIS=thorough pytest tests/format``.
"""

from __future__ import annotations

import os

_EFFORT = os.environ.get("ICEFLOE_HYPOTHESIS")


def examples(usual: int, *, thorough: int) -> int:
    """Return the number of examples for the chosen effort."""
    if _EFFORT == "quick":
        return max(1, usual // 4)
    return thorough if _EFFORT == "thorough" else usual
