"""Coalescing of ranges of one object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.byte_range import Bounded
from icefloe.storage.coalescing import CoalescedRanges, Slice, coalesce

ranges = st.builds(
    lambda start, length: Bounded(start, start + length), st.integers(0, 200), st.integers(1, 30)
)


def test_nearby_ranges_share_a_request() -> None:
    """Ranges within the gap share a request, others do not."""
    plan = coalesce([Bounded(50, 60), Bounded(0, 10), Bounded(12, 20)], max_gap_bytes=2)
    assert plan == CoalescedRanges(
        requests=(Bounded(0, 20), Bounded(50, 60)),
        slices=(Slice(1, 0, 10), Slice(0, 0, 10), Slice(0, 12, 20)),
    )
    assert coalesce([]) == CoalescedRanges((), ())


@given(st.lists(ranges, max_size=12), st.integers(0, 20))
def test_slices_are_the_ranges(asked: list[Bounded], gap: int) -> None:
    """For arbitrary ranges, the slices are the ranges, and no two requests are within the gap."""
    data = bytes(range(256))
    plan = coalesce(asked, gap)
    answers = [data[part.start : part.end] for part in plan.requests]
    cut = [answers[part.request][part.start : part.end] for part in plan.slices]
    assert cut == [data[part.start : part.end] for part in asked]
    for before, after in zip(plan.requests, plan.requests[1:], strict=False):
        assert after.start - before.end > gap
    assert all(any(part.start == request.start for part in asked) for request in plan.requests)
