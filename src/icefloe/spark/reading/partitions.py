"""How much work one Spark task gets. Pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_USUAL_BYTES: Final = 32 << 20
"""About a second of work: a task costs some 50 ms before it begins."""

_LEAST_BYTES: Final = 4 << 20
_FEW: Final = 8
"""So many partitions a small table gets too, unless they become tiny: cores like to share."""

_MANY: Final = 10_000
"""More tasks than this slow the driver down; then each gets more to do."""

_PIECE_BYTES: Final = 64 << 10
"""What the smallest piece counts as: to open its array takes as long as to read so much."""

MAX_BYTES_AT_ONCE: Final = 64 << 20
"""What a task has in memory at a time, unless a single chunk is larger."""


def choose_target_bytes(total_bytes: float, asked: int | None = None) -> float:
    """Say how large partitions should be, for as much as there is."""
    if asked is not None:
        return asked
    return max(min(_USUAL_BYTES, max(_LEAST_BYTES, total_bytes / _FEW)), total_bytes / _MANY)


def split_evenly(count: int, total_bytes: float, target_bytes: float) -> list[range]:
    """Cut numbers from zero into ranges of about ``target_bytes``, all but the last alike."""
    each = max(1, round(count * target_bytes / max(total_bytes, 1)))
    return [range(first, min(first + each, count)) for first in range(0, count, each)]


def pack_tasks(pieces: Iterable[tuple[T, float]], target_bytes: float) -> list[tuple[T, ...]]:
    """Put pieces into tasks of about ``target_bytes``, in their order; each comes with its size."""
    tasks: list[list[T]] = []
    room = 0.0
    for piece, num_bytes in pieces:
        size = max(num_bytes, _PIECE_BYTES)
        if not tasks or room < size:
            tasks.append([])
            room = target_bytes
        tasks[-1].append(piece)
        room -= size
    return [tuple(task) for task in tasks]
