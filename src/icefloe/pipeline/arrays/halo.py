"""Reads blocks with a halo: neighbouring items, and padding at the array edges.

Unless it is clipped, a halo has the items that ``numpy.pad`` of the whole array would produce, so
results do not depend on the block layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.argument_errors import array_error
from icefloe.spark.option_parsing import suggest_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from icefloe.pipeline.arrays.boxes import Box

BOUNDARIES: Final = ("none", "wrap", "reflect", "symmetric", "nearest", "edge", "constant")


@dataclass(frozen=True, slots=True)
class Margin:
    """The halo along one dimension: numbers of items before and after a block.

    ``boundary`` is a mode of ``numpy.pad`` (``nearest`` is its ``edge``), or ``none`` to clip the
    halo at the array edge. ``constant`` is the padding value of the mode of this name.
    """

    before: int = 0
    after: int = 0
    boundary: str = "none"
    constant: float = 0

    def trim(self, part: slice) -> slice:
        """Return the slice that removes the halo from the block at ``part`` of the array."""
        start = self.before if self.boundary != "none" else min(self.before, part.start)
        return slice(start, start + part.stop - part.start)


NO_MARGIN: Final = Margin()


def parse_margins(
    halo: Mapping[str, int | tuple[int, int]] | int | None,
    boundary: Mapping[str, str] | str,
    dimensions: Mapping[str, int],
    *,
    constant: float,
) -> dict[str, Margin]:
    """Return the margins by dimension; raise `InvalidInputError` for invalid arguments."""
    widths: Mapping[str, int | tuple[int, int]] = (
        dict.fromkeys(dimensions, halo) if isinstance(halo, int) else halo or {}
    )
    margins = {}
    for name, width in widths.items():
        _require_known("halo", name, dimensions)
        before, after = (width, width) if isinstance(width, int) else width
        if before < 0 or after < 0:
            raise array_error(f"the halo of {name!r} cannot be negative: {width}")
        mode = boundary if isinstance(boundary, str) else boundary.get(name, "none")
        if mode not in BOUNDARIES:
            raise array_error(f"boundary must be one of {', '.join(BOUNDARIES)}, not {mode!r}")
        if mode == "wrap" and max(before, after) > dimensions[name]:
            raise array_error(
                f"the halo of {name!r} is {width}, which wraps around its {dimensions[name]} items "
                "more than once"
            )
        margins[name] = Margin(before, after, mode, constant)
    if not isinstance(boundary, str):
        for name in boundary:
            _require_known("boundary", name, dimensions)
    return margins


def read_with_margins(
    array: Any,
    box: Box,
    margins: Sequence[Margin],
    decode: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> Any:
    """Read a block with its halo; an item that occurs more than once is read once.

    ``decode`` converts stored numbers to values; constant padding is added after decoding.
    """
    selection: list[slice | NDArray[np.int64]] = []
    positions: list[NDArray[np.int64]] = []
    for part, margin, size in zip(box, margins, array.shape, strict=True):
        indices, inverse = np.unique(_compute_indices(part, margin, size), return_inverse=True)
        is_contiguous = not len(indices) or int(indices[-1] - indices[0]) < len(indices)
        bounds = (int(indices[0]), int(indices[-1]) + 1) if len(indices) else (0, 0)
        selection.append(slice(*bounds) if is_contiguous else indices)
        positions.append(inverse)
    if all(isinstance(part, slice) for part in selection):
        block = array[tuple(selection)]
    else:
        block = array.oindex[tuple(selection)]
    if decode is not None:
        block = decode(np.asarray(block))
    for axis, inverse in enumerate(positions):
        if not np.array_equal(inverse, np.arange(block.shape[axis])):
            block = np.take(block, inverse, axis)
    for axis, (part, margin, size) in enumerate(zip(box, margins, array.shape, strict=True)):
        if margin.boundary == "constant":
            pad_widths = [(0, 0)] * block.ndim
            before, after = margin.before - part.start, part.stop + margin.after - size
            pad_widths[axis] = max(0, before), max(0, after)
            block = np.pad(block, pad_widths, constant_values=margin.constant)
    return block


def _compute_indices(part: slice, margin: Margin, size: int) -> NDArray[np.int64]:
    """Return the array indices of a block with its halo, without constant padding."""
    indices: NDArray[np.int64] = np.arange(part.start - margin.before, part.stop + margin.after)
    match margin.boundary:
        case _ if not size:
            return indices[:0]
        case "none" | "constant":
            return indices[(indices >= 0) & (indices < size)]
        case "wrap":
            return indices % size
        case "symmetric":
            indices %= 2 * size
            return np.minimum(indices, 2 * size - 1 - indices)
        case "reflect":
            period = max(1, 2 * size - 2)
            indices %= period
            return np.minimum(indices, period - indices)
        case _:  # nearest, edge
            return indices.clip(0, size - 1)


def _require_known(what: str, name: str, dimensions: Mapping[str, int]) -> None:
    if name not in dimensions:
        hint = suggest_name(name, dimensions)
        raise array_error(f"{what}: unknown dimension {name!r}; {hint}")
