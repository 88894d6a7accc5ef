"""SVG of the chunks of one array that changed: a grid of up to 48 by 16 cells.

The cells are the chunks along the last two dimensions, or several chunks each in large grids; the
opacity of a cell grows with the number of changed chunks in it.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log2
from typing import TYPE_CHECKING, Final

from icefloe.display.html import Html

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_ROWS, _MAX_COLUMNS, _CELL_PIXELS = 16, 48, 9
_OUTLINE: Final = 'fill="none" stroke="currentColor" stroke-opacity=".35"'


def draw_chunk_map(chunks: Sequence[Sequence[int]]) -> Html:
    """Draw the changed chunks; the grid ends with the last of them."""
    cells = [((0, 0, *chunk)[-2:]) for chunk in chunks]
    num_rows, num_columns = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
    down, across = ceil(num_rows / _MAX_ROWS), ceil(num_columns / _MAX_COLUMNS)
    counts = Counter((row // down, column // across) for row, column in cells)
    most = max(counts.values())
    width, height = (
        _CELL_PIXELS * ceil(size / step) for size, step in ((num_columns, across), (num_rows, down))
    )
    squares = "".join(
        f'<rect x="{column * _CELL_PIXELS + 1}" y="{row * _CELL_PIXELS + 1}" '
        f'width="{_CELL_PIXELS - 2}" height="{_CELL_PIXELS - 2}" fill="currentColor" '
        f'fill-opacity="{0.3 + 0.5 * log2(1 + count) / log2(1 + most):.2f}"/>'
        for (row, column), count in sorted(counts.items())
    )
    frame = f'<rect x=".5" y=".5" width="{width}" height="{height}" {_OUTLINE}/>'
    return Html(
        f'<svg width="{width + 1}" height="{height + 1}" style="vertical-align:middle">'
        f"{frame}{squares}</svg>"
    )
