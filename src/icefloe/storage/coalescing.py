"""Which ranges of an object share a request. Pure, no I/O: the result is the plan of a caller.

obstore has a coalescing of its own, but it panics where a server cuts the joined range off because
the object ends before it, and what a damaged repository asks for must end in an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from icefloe.model.byte_range import Bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GAP_BYTES: Final = 1024 * 1024
"""Reading on over a gap this wide takes about as long as another request."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of what one request answers."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CoalescedRanges:
    """The requests to send, and where in their answers each asked range lies."""

    requests: tuple[Bounded, ...]
    slices: tuple[Slice, ...]


def coalesce(
    ranges: Sequence[Bounded],
    max_gap_bytes: int = MAX_GAP_BYTES,
    *,
    max_request_bytes: int | None = None,
) -> CoalescedRanges:
    """Join ranges that overlap or lie at most ``max_gap_bytes`` apart.

    None of the ranges may be empty. The slices are in the order of the ranges. Ranges that together
    take more than ``max_request_bytes`` are not joined; one that does so alone stays whole.
    """
    requests: list[Bounded] = []
    slices: dict[int, Slice] = {}
    for index in sorted(range(len(ranges)), key=lambda index: ranges[index].start):
        wanted = ranges[index]
        last = requests[-1] if requests else None
        if (
            last is not None
            and wanted.start - last.end <= max_gap_bytes
            and (
                max_request_bytes is None
                or wanted.end <= last.end
                or wanted.end - last.start <= max_request_bytes
            )
        ):
            requests[-1] = Bounded(last.start, max(last.end, wanted.end))
        else:
            requests.append(wanted)
        base = requests[-1].start
        slices[index] = Slice(len(requests) - 1, wanted.start - base, wanted.end - base)
    return CoalescedRanges(tuple(requests), tuple(slices[index] for index in range(len(ranges))))
