"""Plans which ranges of an object share a request. Pure, no I/O.

obstore can coalesce ranges too, but panics if the object is shorter than a coalesced range. A
damaged repository must raise an error instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GAP_BYTES: Final = 1024 * 1024
"""Reading this many unneeded bytes takes about as long as another request."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the response to one request."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CoalescedRanges:
    """The requests to send, and the slice of a response that each range is."""

    requests: tuple[Bounded, ...]
    slices: tuple[Slice, ...]


def coalesce(
    ranges: Sequence[Bounded],
    max_gap_bytes: int = MAX_GAP_BYTES,
    *,
    max_request_bytes: int | None = None,
) -> CoalescedRanges:
    """Coalesce ranges that overlap or are at most ``max_gap_bytes`` apart.

    No range may be empty. The slices are in the order of the ranges. Coalesced ranges do not exceed
    ``max_request_bytes``; a single larger range is not split.
    """
    requests: list[Bounded] = []
    slices: dict[int, Slice] = {}
    for index in sorted(range(len(ranges)), key=lambda index: ranges[index].start):
        current = ranges[index]
        last = requests[-1] if requests else None
        if (
            last is not None
            and current.start - last.end <= max_gap_bytes
            and (
                max_request_bytes is None
                or current.end <= last.end
                or current.end - last.start <= max_request_bytes
            )
        ):
            requests[-1] = Bounded(last.start, max(last.end, current.end))
        else:
            requests.append(current)
        base = requests[-1].start
        slices[index] = Slice(len(requests) - 1, current.start - base, current.end - base)
    return CoalescedRanges(tuple(requests), tuple(slices[index] for index in range(len(ranges))))
