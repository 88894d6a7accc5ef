"""Byte ranges and what they mean in an object of a known size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.byte_range import Bounded, ByteRange, From, Last, Until, resolve

DATA = bytes(range(20))


@pytest.mark.parametrize(
    "byte_range, expected",
    [
        (None, DATA),
        (Bounded(3, 7), DATA[3:7]),
        (Bounded(5, 5), b""),
        (From(15), DATA[15:]),
        (From(20), b""),
        (Last(4), DATA[-4:]),
        (Last(0), b""),
        (Last(100), DATA),
        (Until(4), DATA[:-4]),
        (Until(20), b""),
    ],
)
def test_resolve(byte_range: ByteRange | None, expected: bytes) -> None:
    """Each kind of range reads the bytes that the specification says."""
    bounded = resolve(byte_range, len(DATA))
    assert DATA[bounded.start : bounded.end] == expected


@pytest.mark.parametrize("byte_range", [Bounded(3, 21), From(21), Until(21)])
def test_past_the_end(byte_range: ByteRange) -> None:
    """A range that reaches past the end is an error, not a short answer."""
    with pytest.raises(InvalidInputError, match="20 bytes"):
        resolve(byte_range, len(DATA))


@given(st.integers(-100, -1))
def test_negative_numbers(number: int) -> None:
    """No range has a negative number in it."""
    for make in (From, Last, Until, lambda end: Bounded(0, end), lambda start: Bounded(start, 0)):
        with pytest.raises(InvalidInputError):
            make(number)
