"""Chunk coordinates of generation draft as binary: compact, ordered, and decodable in SQL."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.draft.coord import (
    DUCKDB_DECODER,
    MAX_DIMENSIONS,
    SPARK_SQL_DECODER,
    CoordError,
    decode_coords,
    encode_coord,
    encode_coords,
)
from icefloe.model.columns import to_offsets
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

EDGES = (0, 1, 251, 252, 255, 256, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**32 - 1)
COORDS = st.sampled_from(EDGES) | st.integers(0, 2**32 - 1)
TUPLES = st.lists(COORDS, max_size=5).map(tuple)
MANY = settings(max_examples=examples(200, thorough=2000), deadline=None)


def decode(values: Sequence[bytes]) -> list[tuple[int, ...]]:
    data = np.frombuffer(b"".join(values), np.uint8)
    ndims, coords = decode_coords(data, to_offsets([len(value) for value in values]))
    ends = np.cumsum(ndims).tolist()
    return [
        tuple(coords[end - ndim : end].tolist())
        for ndim, end in zip(ndims.tolist(), ends, strict=True)
    ]


@st.composite
def matrices(draw: st.DrawFn) -> list[tuple[int, ...]]:
    ndim = draw(st.integers(0, 4))
    return draw(st.lists(st.tuples(*[COORDS] * ndim), max_size=30))


@given(matrices())
@MANY
def test_rows_come_back(rows: list[tuple[int, ...]]) -> None:
    """Decoding undoes encoding, for rows of one rank, and each row is encoded as if alone."""
    ndim = len(rows[0]) if rows else 0
    data, offsets = encode_coords(np.array(rows, np.uint32).reshape(len(rows), ndim))
    values = [data[start:end].tobytes() for start, end in pairwise(offsets)]
    assert values == [encode_coord(row) for row in rows]
    assert decode(values) == rows


@given(st.lists(TUPLES, max_size=20))
@MANY
def test_rows_of_different_rank_come_back(rows: list[tuple[int, ...]]) -> None:
    """A value says by itself how many coordinates it has."""
    assert decode([encode_coord(row) for row in rows]) == rows


@given(TUPLES, TUPLES)
@MANY
def test_bytes_sort_like_tuples(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Bytes compare as the tuples compare, and are equal only if these are."""
    first, second = encode_coord(left), encode_coord(right)
    assert (first < second) == (left < right)
    assert (first == second) == (left == right)


@given(COORDS, COORDS)
@MANY
def test_no_coordinate_is_a_prefix_of_another(left: int, right: int) -> None:
    """So a value that starts with the encoding of leading coordinates has these coordinates."""
    if left != right:
        assert not encode_coord((left,)).startswith(encode_coord((right,)))


@given(TUPLES, TUPLES)
@MANY
def test_prefixes_are_ranges(prefix: tuple[int, ...], row: tuple[int, ...]) -> None:
    """``low <= coord < high`` selects the chunks with given leading coordinates."""
    low = encode_coord(prefix)
    expected = row[: len(prefix)] == prefix
    if prefix and prefix[-1] < 2**32 - 1:
        high = encode_coord((*prefix[:-1], prefix[-1] + 1))
        assert (low <= encode_coord(row) < high) == expected
    assert encode_coord(row).startswith(low) == expected


@given(TUPLES)
@MANY
def test_size(row: tuple[int, ...]) -> None:
    """A coordinate below 252 has one byte; others have one more than the number needs."""
    expected = sum(1 if coord < 252 else 1 + (coord.bit_length() + 7) // 8 for coord in row)
    assert len(encode_coord(row)) == expected


@given(st.lists(st.binary(max_size=12), max_size=8))
@MANY
def test_any_bytes_decode_or_fail(values: list[bytes]) -> None:
    """Bytes that decode are the encoding of what they decode to; others are refused."""
    try:
        rows = decode(values)
    except CoordError as error:
        wrong = [values[error.row]]
        with pytest.raises(CoordError):
            decode(wrong)
    else:
        assert [encode_coord(row) for row in rows] == values


@pytest.mark.parametrize("value", [b"\xfc", b"\xfd\x01", b"\xfc\xfb", b"\xfd\x00\xff", b"\xff" * 4])
@pytest.mark.parametrize("neighbors", [0, 3])
def test_damaged_values(value: bytes, neighbors: int) -> None:
    """Truncated numbers and numbers with leading zeros are refused, in any company."""
    with pytest.raises(CoordError, match="coord of row"):
        decode([*[encode_coord((1, 2))] * neighbors, value])
    with pytest.raises(CoordError, match="coord of row 0"):
        decode([value] * (neighbors + 1))


def test_too_many_coordinates() -> None:
    """The number of dimensions is limited, since work grows with it."""
    assert decode([bytes(MAX_DIMENSIONS)]) == [(0,) * MAX_DIMENSIONS]
    with pytest.raises(CoordError, match="more than 255"):
        decode([bytes(MAX_DIMENSIONS + 1)])


def test_large_matrices() -> None:
    """Blocks and runs of rows of one length make no difference."""
    numbers = np.arange(200_000, dtype=np.uint32)
    regular = np.stack([numbers // 300, numbers % 300], 1)
    mixed = np.random.default_rng(0).integers(0, 70_000, (100_000, 3), np.uint32)
    for matrix in (regular, mixed):
        data, offsets = encode_coords(matrix)
        ndims, coords = decode_coords(data, offsets)
        assert (ndims == matrix.shape[1]).all()
        assert np.array_equal(coords.reshape(matrix.shape), matrix)


SQL_ROWS = [(), (0,), (7, 251), (252, 255, 256), EDGES, (5, 30, 10)]


def test_decoder_in_duckdb() -> None:
    """The expression of the documentation decodes coordinates in DuckDB."""
    duckdb = pytest.importorskip("duckdb", reason="DUCKDB IS NOT TESTED ON THIS MACHINE")
    connection = duckdb.connect()
    connection.execute("CREATE TABLE inventory (number INTEGER, coord BLOB)")
    values = [[number, encode_coord(row)] for number, row in enumerate(SQL_ROWS)]
    connection.executemany("INSERT INTO inventory VALUES (?, ?)", values)
    found = connection.execute(f"SELECT {DUCKDB_DECODER} FROM inventory ORDER BY number").fetchall()  # noqa: S608
    assert [tuple(row) for (row,) in found] == SQL_ROWS


def test_decoder_in_spark(spark: Any) -> None:
    """The expression of the documentation decodes coordinates in Spark SQL."""
    values = [(number, bytearray(encode_coord(row))) for number, row in enumerate(SQL_ROWS)]
    frame = spark.createDataFrame(values, "number int, coord binary")
    found = frame.selectExpr("number", f"{SPARK_SQL_DECODER} AS coords").collect()
    assert [tuple(row.coords) for row in sorted(found)] == SQL_ROWS
