"""Columns of strings, and finding the distinct ones among many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model import strings as module
from icefloe.model.strings import OverlapError, Strings, factorize

texts = st.lists(
    st.sampled_from(["", "a", "ab", "b" * 7, "c" * 8, "ü" * 9, "s3://bucket/x.nc"]) | st.text()
)


@given(texts)
def test_round_trip(values: list[str]) -> None:
    """A column gives back the strings that it was made from."""
    column = Strings.of(values)
    assert list(column) == values
    assert column == Strings.of(values)
    assert column.lengths.tolist() == [len(value.encode()) for value in values]


@given(texts)
def test_unique(values: list[str]) -> None:
    """Codes spell the same strings, and no string is in the table twice."""
    codes, table = Strings.of(values).unique()
    distinct = list(table)
    assert [distinct[code] for code in codes] == values
    assert len(set(distinct)) == len(distinct) == len(set(values))


@given(texts, st.randoms(use_true_random=False))
def test_factorize_does_not_care_where_strings_are(values: list[str], random: object) -> None:
    """Strings scattered over a buffer, each place used several times, give the same codes."""
    column = Strings.of(values)
    rows = np.arange(len(values)).repeat(2)
    random.shuffle(rows)  # type: ignore[attr-defined]
    padded = np.concatenate([column.data, np.zeros(8, np.uint8)])
    codes, table = factorize(padded, column.offsets[rows], column.lengths[rows])
    distinct = list(table)
    assert [distinct[code] for code in codes] == [values[row] for row in rows]


def test_order_depends_on_content_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other random multipliers of the hash give the same codes and the same table."""
    column = Strings.of([f"s3://bucket/{number * 7919 % 50:03d}" for number in range(200)])
    codes, table = column.unique()
    other = np.random.default_rng(1).integers(0, 2**64, 1024, np.uint64)
    monkeypatch.setattr(module, "_MULTIPLIERS", other)
    other_codes, other_table = column.unique()
    assert np.array_equal(codes, other_codes)
    assert table == other_table


def test_collisions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings are distinguished even if all hashes collide."""
    monkeypatch.setattr(module, "_MULTIPLIERS", np.zeros(1024, np.uint64))
    monkeypatch.setattr(module, "_hash", lambda _, starts, __: np.zeros(len(starts), np.uint64))
    values = [f"s3://bucket/{number % 5}" for number in range(20)]
    codes, table = Strings.of(values).unique()
    distinct = list(table)
    assert [distinct[code] for code in codes] == values
    assert len(distinct) == 5


def test_overlapping_strings_are_refused() -> None:
    """Work is bounded by the size of the buffer: strings that lie over each other raise."""
    starts = np.arange(100, dtype=np.int64)
    with pytest.raises(OverlapError):
        factorize(np.zeros(200, np.uint8), starts, np.full(100, 100))
