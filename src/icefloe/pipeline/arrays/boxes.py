"""How an array is cut into pieces of work, so that each source chunk is read once. Pure.

A *box* is as much of an array as one task holds in memory: whole target chunks, so that no two
tasks write one. Where a box can also be made of whole source chunks within the memory that there
is, one pass does. Where it cannot (days to decades, say), chunks of a *stage* between the two take
the data over: the first pass reads whole source chunks and writes whole chunks of the stage, the
second reads those and writes whole target chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import lcm, prod
from typing import TYPE_CHECKING, Final

from icefloe.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]
Shape = tuple[int, ...]

MAX_BOXES: Final = 10_000_000
"""Into more pieces an array is not cut: at 256 MB each that is 2.5 PB, and the driver knows all."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How to copy an array into other chunks.

    Parameters
    ----------
    shape
        Of the array.
    read
        The box of the first pass.
    stage
        The chunks between the passes; None where one pass does.
    write
        The box of the second pass; the first one's where there is none.
    """

    shape: Shape
    read: Shape
    stage: Shape | None
    write: Shape

    @property
    def first_boxes(self) -> Iterator[Box]:
        """The pieces of work of the first pass."""
        return boxes(self.shape, self.read)

    @property
    def second_boxes(self) -> Iterator[Box]:
        """The pieces of work of the second pass."""
        return boxes(self.shape, self.write)


def plan_copy(
    shape: Sequence[int],
    item_bytes: int,
    source: Sequence[int],
    target: Sequence[int],
    *,
    max_bytes: int,
    min_boxes: int = 1,
) -> CopyPlan:
    """Decide how to copy an array from chunks of one shape into chunks of another.

    Parameters
    ----------
    shape, item_bytes
        The array, and how large one item is in memory.
    source, target
        The chunk shapes.
    max_bytes
        What a box may take.
    min_boxes
        Into how many pieces the work should be cut where the chunks allow it.

    Raises
    ------
    InvalidInputError
        If a single chunk is larger than what a box may take, or there are too many boxes.
    """
    full = tuple(max(1, size) for size in shape)
    room = _Limits(full, item_bytes, max_bytes, min_boxes)
    source = _clip(source, full)
    target = _clip(target, full)
    for name, chunk in (("source", source), ("target", target)):
        if prod(chunk) * item_bytes > max_bytes:
            raise InvalidInputError(
                f"one {name} chunk of {'x'.join(map(str, chunk))} takes "
                f"{prod(chunk) * item_bytes:,} bytes in memory, and a task may take "
                f"{max_bytes:,}: give tasks more memory or choose smaller chunks",
                kind=ErrorKind.INVALID_ARRAY_METADATA,
            )
    both = _clip([lcm(one, other) for one, other in zip(source, target, strict=True)], full)
    if prod(both) * item_bytes <= max_bytes:
        box = _grow_box(both, full, room)
        _require_box_limit(full, box)
        return CopyPlan(tuple(shape), box, None, box)
    read = _grow_box(source, target, room)
    write = _grow_box(target, source, room)
    for box in (read, write):
        _require_box_limit(full, box)
    stage = tuple(largest_divisor(first, second) for first, second in zip(read, write, strict=True))
    return CopyPlan(tuple(shape), read, stage, write)


def count_boxes(shape: Sequence[int], box: Sequence[int]) -> int:
    """Say how many boxes tile an array."""
    return prod(-(-size // step) for size, step in zip(shape, box, strict=True))


def boxes(shape: Sequence[int], box: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes that tile an array, the last of each dimension perhaps smaller."""
    ranges = [range(0, size, step) for size, step in zip(shape, box, strict=True)]
    for starts in product(*ranges):
        yield tuple(
            slice(start, min(start + step, size))
            for start, step, size in zip(starts, box, shape, strict=True)
        )


def _require_box_limit(shape: Shape, box: Shape) -> None:
    """Raise before a plan takes all memory: a few bytes of metadata can claim any shape."""
    count = count_boxes(shape, box)
    if count > MAX_BOXES:
        raise InvalidInputError(
            f"its shape of {'x'.join(map(str, shape))} would be cut into {count:,} pieces of work, "
            f"of {'x'.join(map(str, box))} each, and {MAX_BOXES:,} are the most: choose larger "
            "chunks, give tasks more memory, or see whether the shape is right",
            kind=ErrorKind.INVALID_ARRAY_METADATA,
        )


def _clip(chunk: Sequence[int], full: Shape) -> Shape:
    return tuple(min(one, size) for one, size in zip(chunk, full, strict=True))


@dataclass(frozen=True, slots=True)
class _Limits:
    """What bounds a box."""

    full: Shape
    item_bytes: int
    max_bytes: int
    min_boxes: int

    def takes(self, box: Sequence[int]) -> bool:
        clipped = _clip(box, self.full)
        pieces = count_boxes(self.full, clipped)
        return prod(clipped) * self.item_bytes <= self.max_bytes and pieces >= self.min_boxes


def _grow_box(unit: Shape, towards: Shape, room: _Limits) -> Shape:
    """Multiply a chunk shape until it reaches ``towards`` or the room is used up.

    Last dimensions first: what is next to each other in memory is so in most files.
    """
    grown = list(unit)
    for axis in reversed(range(len(unit))):
        one = unit[axis]
        goal = _round_up(min(towards[axis], room.full[axis]), one)
        while grown[axis] < goal:
            # At least one more, at most double: neither a thousand rounds nor a leap too far.
            step = max(one, min(grown[axis], goal - grown[axis]) // one * one)
            trial = [*grown]
            trial[axis] += step
            while step > one and not room.takes(trial):
                step = max(one, step // 2 // one * one)
                trial[axis] = grown[axis] + step
            if not room.takes(trial):
                break
            grown = trial
    return _clip(grown, room.full)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def largest_divisor(value: int, limit: int) -> int:
    """Return the largest divisor of ``value`` that is not larger than ``limit``."""
    best = 1
    for one in range(1, int(value**0.5) + 1):
        if value % one == 0:
            best = max([best, *(each for each in (one, value // one) if each <= limit)])
    return best
