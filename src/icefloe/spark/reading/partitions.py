"""Sizes of partitions and of tasks. Pure, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_DEFAULT_BYTES: Final = 32 << 20
"""About a second of work; the overhead of a task is about 50 ms."""

_MIN_BYTES: Final = 4 << 20
_MIN_PARTITIONS: Final = 8
"""Small tables are split into this many partitions, of at least ``_MIN_BYTES``."""

_MAX_PARTITIONS: Final = 10_000
"""More tasks than this slow down the driver."""

_MIN_PIECE_BYTES: Final = 64 << 10
"""Opening an array takes as long as reading this many bytes."""

MAX_BYTES_IN_MEMORY: Final = 64 << 20
"""Maximum that a task reads at a time, unless a single chunk is larger."""


def choose_target_bytes(total_bytes: float, requested: int | None = None) -> float:
    """Return the target size of partitions: the requested one, or a default for the total."""
    if requested is not None:
        return requested
    size = min(_DEFAULT_BYTES, max(_MIN_BYTES, total_bytes / _MIN_PARTITIONS))
    return max(size, total_bytes / _MAX_PARTITIONS)


def split_evenly(count: int, total_bytes: float, target_bytes: float) -> list[range]:
    """Split ``range(count)`` into equal ranges of about ``target_bytes``; the last is shorter."""
    size = max(1, round(count * target_bytes / max(total_bytes, 1)))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def pack_tasks(
    pieces: Iterable[tuple[T, float]], target: float, *, min_size: float = _MIN_PIECE_BYTES
) -> list[tuple[T, ...]]:
    """Pack pieces with their sizes into tasks of about ``target``, in order."""
    tasks: list[list[T]] = []
    room = 0.0
    for piece, piece_size in pieces:
        size = max(piece_size, min_size)
        if not tasks or room < size:
            tasks.append([])
            room = target
        tasks[-1].append(piece)
        room -= size
    return [tuple(task) for task in tasks]
