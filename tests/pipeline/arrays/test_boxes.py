"""Boxes: whole chunks on both sides, within the memory limit, each source chunk read once."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.pipeline.arrays.boxes import Box, iter_boxes, plan_copy

dimension = st.tuples(st.integers(1, 40), st.integers(1, 45), st.integers(1, 45))


def chunks_of(box: Box, chunk: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return the indices of the chunks that a box overlaps."""
    touched = [
        range(part.start // size, -(-part.stop // size))
        for part, size in zip(box, chunk, strict=True)
    ]
    return set(product(*touched))


def count_touched(found: list[Box], chunk: tuple[int, ...]) -> Counter[tuple[int, ...]]:
    return Counter(touched for box in found for touched in chunks_of(box, chunk))


@given(st.lists(dimension, min_size=1, max_size=3), st.integers(1, 4000), st.integers(1, 8))
def test_every_source_chunk_is_read_once_and_every_target_chunk_written_once(
    dimensions: list[tuple[int, int, int]], room: int, min_boxes: int
) -> None:
    shape, source, target = (tuple(column) for column in zip(*dimensions, strict=True))
    source = tuple(map(min, source, shape))
    target = tuple(map(min, target, shape))
    max_bytes = max(room, prod(source), prod(target))
    plan = plan_copy(shape, 1, source, target, max_bytes=max_bytes, min_boxes=min_boxes)
    first, second = list(plan.first_boxes), list(plan.last_boxes)
    assert prod(plan.read_box) <= max_bytes
    assert prod(plan.write_box) <= max_bytes
    assert set(count_touched(first, source).values()) == {1}
    assert set(count_touched(second, target).values()) == {1}
    if plan.stage is not None:
        assert set(count_touched(first, plan.stage).values()) == {1}
    assert sum(prod(part.stop - part.start for part in box) for box in first) == prod(shape)


def test_one_pass_where_the_memory_allows_it() -> None:
    plan = plan_copy((365, 180, 360), 4, (1, 180, 360), (365, 10, 10), max_bytes=200_000_000)
    assert plan.stage is None
    assert plan.read_box == (365, 180, 360)


def test_two_passes_where_it_does_not() -> None:
    plan = plan_copy((3650, 180, 360), 4, (1, 180, 360), (3650, 10, 10), max_bytes=50_000_000)
    assert plan.stage is not None
    assert plan.read_box[1:] == (180, 360)
    assert plan.write_box[0] == 3650


def test_work_is_cut_into_as_many_pieces_as_asked_for() -> None:
    plan = plan_copy((100, 100), 1, (1, 100), (1, 100), max_bytes=10**9, min_boxes=10)
    assert len(list(plan.first_boxes)) >= 10


def test_a_chunk_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="one target chunk of 100x100 takes 40,000 bytes"):
        plan_copy((100, 100), 4, (1, 100), (100, 100), max_bytes=10_000)


def test_an_array_without_items_has_no_boxes() -> None:
    assert list(iter_boxes((0, 5), (1, 5))) == []
