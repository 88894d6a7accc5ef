"""Blocks of arrays with a margin around them, taken from their neighbours or made at the edges.

The margin of a block is what ``numpy.pad`` would give around the whole array, cut out; so results
do not depend on how an array is cut into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.pipeline.boxes import Box

_PAD_MODES: Final = {
    "reflect": "reflect",
    "symmetric": "symmetric",
    "nearest": "edge",
    "edge": "edge",
    "constant": "constant",
}
BOUNDARIES: Final = ("none", "wrap", *_PAD_MODES)


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a block reaches beyond itself along one dimension, and what is beyond the edges.

    Parameters
    ----------
    before, after
        Items.
    boundary
        ``none`` (the margin ends at the edge), ``reflect``, ``symmetric``, ``nearest`` or ``edge``,
        ``constant``, ``wrap``: the names of ``numpy.pad``.
    constant
        What ``constant`` is filled with.
    """

    before: int = 0
    after: int = 0
    boundary: str = "none"
    constant: float = 0

    def trimmed(self, part: slice) -> slice:
        """Tell where a block is inside of itself with its margin."""
        start = self.before if self.boundary != "none" else min(self.before, part.start)
        return slice(start, start + part.stop - part.start)


NO_MARGIN: Final = Margin()


def margins(
    halo: Mapping[str, int | tuple[int, int]] | int | None,
    boundary: Mapping[str, str] | str,
    dimensions: Mapping[str, int],
    *,
    constant: float,
) -> dict[str, Margin]:
    """Read what the caller says about margins.

    Raises
    ------
    InvalidInputError
        If it names a dimension that is not there, or a margin that cannot be.
    """
    wide: Mapping[str, int | tuple[int, int]] = (
        dict.fromkeys(dimensions, halo) if isinstance(halo, int) else halo or {}
    )
    found = {}
    for name, width in wide.items():
        _require_known("halo", name, dimensions)
        before, after = (width, width) if isinstance(width, int) else width
        if before < 0 or after < 0:
            raise _bad(f"the halo of {name!r} is {width}, and cannot be negative")
        mode = boundary if isinstance(boundary, str) else boundary.get(name, "none")
        if mode not in BOUNDARIES:
            raise _bad(f"the boundary {mode!r} is none of {', '.join(BOUNDARIES)}")
        if mode == "wrap" and max(before, after) > dimensions[name]:
            raise _bad(
                f"the halo of {name!r} is {width}, which wraps around its {dimensions[name]} items "
                "more than once"
            )
        found[name] = Margin(before, after, mode, constant)
    if not isinstance(boundary, str):
        for name in boundary:
            _require_known("boundary", name, dimensions)
    return found


def read_with_margins(array: Any, box: Box, around: Sequence[Margin]) -> Any:
    """Read a block of an array together with its margins."""
    shape = array.shape
    selection: list[Any] = []
    missing: list[tuple[int, int]] = []
    for part, margin, size in zip(box, around, shape, strict=True):
        start, stop = part.start - margin.before, part.stop + margin.after
        if margin.boundary == "wrap" and (start < 0 or stop > size):
            selection.append(np.arange(start, stop) % max(1, size))
            missing.append((0, 0))
            continue
        inside = slice(max(0, start), min(size, stop))
        selection.append(inside)
        is_cut = margin.boundary == "none"
        missing.append((0, 0) if is_cut else (inside.start - start, stop - inside.stop))
    if any(isinstance(one, np.ndarray) for one in selection):
        block = array.oindex[tuple(selection)]
    else:
        block = array[tuple(selection)]
    for axis, (widths, margin) in enumerate(zip(missing, around, strict=True)):
        if any(widths):
            block = _padded(block, axis, widths, margin)
    return block


def _padded(block: Any, axis: int, widths: tuple[int, int], margin: Margin) -> Any:
    wide = [(0, 0)] * block.ndim
    wide[axis] = widths
    if margin.boundary == "constant":
        return np.pad(block, wide, mode="constant", constant_values=margin.constant)
    return np.pad(block, wide, mode=_PAD_MODES[margin.boundary])  # type: ignore[call-overload]


def _require_known(what: str, name: str, dimensions: Mapping[str, int]) -> None:
    if name not in dimensions:
        raise _bad(f"{what} names the dimension {name!r}, which is none of {', '.join(dimensions)}")


def _bad(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, kind=ErrorKind.INVALID_ARRAY_METADATA)
