"""Splits array copies into boxes, so that each source chunk is read once. Pure.

A *box* is the part of an array that one task holds in memory. It consists of whole chunks of the
array that the pass writes, so no two tasks write the same chunk. If a box of whole source *and*
target chunks fits in memory, one pass is enough. Otherwise the copy takes two passes through
intermediate *stage* chunks: the first reads whole source chunks and writes whole stage chunks, the
second reads those and writes whole target chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import lcm, prod
from typing import TYPE_CHECKING, Final

from icefloe.pipeline.argument_errors import array_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]
Shape = tuple[int, ...]

MAX_BOXES: Final = 10_000_000
"""Maximum number of boxes, all held by the driver: 2.5 PB at 256 MB each."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The plan of a copy: the box shapes of two passes, and the chunk shape of the stage.

    With one pass, ``stage`` is None and ``write_box`` equals ``read_box``.
    """

    shape: Shape
    read_box: Shape
    stage: Shape | None
    write_box: Shape

    @property
    def first_boxes(self) -> Iterator[Box]:
        """The boxes of the first pass."""
        return iter_boxes(self.shape, self.read_box)

    @property
    def last_boxes(self) -> Iterator[Box]:
        """The boxes of the last pass."""
        return iter_boxes(self.shape, self.write_box)


def plan_copy(
    shape: Sequence[int],
    item_bytes: int,
    source: Sequence[int],
    target: Sequence[int],
    *,
    max_bytes: int,
    min_boxes: int = 1,
) -> CopyPlan:
    """Plan the copy of an array from ``source`` chunks into ``target`` chunks.

    A box takes up to ``max_bytes`` of memory; there are at least ``min_boxes`` if the chunks allow
    it. Raises `InvalidInputError` if a single chunk exceeds ``max_bytes``, or there are too many
    boxes.
    """
    full_shape = tuple(max(1, size) for size in shape)
    limits = _BoxLimits(full_shape, item_bytes, max_bytes, min_boxes)
    source = _clip(source, full_shape)
    target = _clip(target, full_shape)
    for name, chunk in (("source", source), ("target", target)):
        if prod(chunk) * item_bytes > max_bytes:
            raise array_error(
                f"one {name} chunk of {format_shape(chunk)} takes "
                f"{prod(chunk) * item_bytes:,} bytes in memory, but a task may use "
                f"{max_bytes:,}: give tasks more memory or choose smaller chunks"
            )
    common = _clip([lcm(*lengths) for lengths in zip(source, target, strict=True)], full_shape)
    if prod(common) * item_bytes <= max_bytes:
        box = _grow_box(common, full_shape, limits)
        _require_few_boxes(full_shape, box)
        return CopyPlan(tuple(shape), box, None, box)
    read_box = _grow_box(source, target, limits)
    write_box = _grow_box(target, source, limits)
    for box in (read_box, write_box):
        _require_few_boxes(full_shape, box)
    stage = tuple(
        find_divisor(read_length, write_length)
        for read_length, write_length in zip(read_box, write_box, strict=True)
    )
    return CopyPlan(tuple(shape), read_box, stage, write_box)


def count_boxes(shape: Sequence[int], box: Sequence[int]) -> int:
    """Return the number of boxes that tile an array."""
    return prod(-(-size // step) for size, step in zip(shape, box, strict=True))


def iter_boxes(shape: Sequence[int], box: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes that tile an array, clipped at its edges."""
    ranges = [range(0, size, step) for size, step in zip(shape, box, strict=True)]
    for starts in product(*ranges):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(starts, box, shape, strict=True)
        )


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape, such as ``10x20``."""
    return "x".join(map(str, shape)) or "one item"


def format_box(path: str, box: Box) -> str:
    """Format a box of an array, as in ``/air [0:10, 0:20]``."""
    return f"{path} [{', '.join(f'{part.start}:{part.stop}' for part in box)}]"


def get_box_bytes(box: Box, item_bytes: int) -> int:
    """Return the size of a box in memory, in bytes."""
    return int(prod(part.stop - part.start for part in box)) * item_bytes


def _require_few_boxes(shape: Shape, box: Shape) -> None:
    """Raise if there are too many boxes: corrupt metadata can declare any shape."""
    count = count_boxes(shape, box)
    if count > MAX_BOXES:
        raise array_error(
            f"a shape of {format_shape(shape)} splits into {count:,} boxes of "
            f"{format_shape(box)}, more than {MAX_BOXES:,}: choose larger chunks, give tasks "
            "more memory, or check the shape"
        )


def _clip(chunk: Sequence[int], full_shape: Shape) -> Shape:
    return tuple(min(length, size) for length, size in zip(chunk, full_shape, strict=True))


@dataclass(frozen=True, slots=True)
class _BoxLimits:
    """The limits for the size and number of boxes."""

    full_shape: Shape
    item_bytes: int
    max_bytes: int
    min_boxes: int

    def is_allowed(self, box: Sequence[int]) -> bool:
        clipped = _clip(box, self.full_shape)
        num_boxes = count_boxes(self.full_shape, clipped)
        return prod(clipped) * self.item_bytes <= self.max_bytes and num_boxes >= self.min_boxes


def _grow_box(unit: Shape, max_shape: Shape, limits: _BoxLimits) -> Shape:
    """Grow a box in multiples of ``unit``, up to ``max_shape`` (rounded up) and within the limits.

    The last dimensions grow first: they are contiguous in most files.
    """
    grown = list(unit)
    for axis in reversed(range(len(unit))):
        length = unit[axis]
        goal = _round_up(min(max_shape[axis], limits.full_shape[axis]), length)
        while grown[axis] < goal:
            # Add at least one unit, and at most double the length.
            step = max(length, min(grown[axis], goal - grown[axis]) // length * length)
            trial = [*grown]
            trial[axis] += step
            while step > length and not limits.is_allowed(trial):
                step = max(length, step // 2 // length * length)
                trial[axis] = grown[axis] + step
            if not limits.is_allowed(trial):
                break
            grown = trial
    return _clip(grown, limits.full_shape)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def find_divisor(value: int, limit: int) -> int:
    """Return the largest divisor of ``value`` up to ``limit``."""
    best = 1
    for divisor in range(1, int(value**0.5) + 1):
        if value % divisor == 0:
            best = max([best, *(d for d in (divisor, value // divisor) if d <= limit)])
    return best
