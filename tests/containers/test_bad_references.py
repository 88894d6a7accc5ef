"""References that cannot be: a typed error that says where, and nothing is stored."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from containers.test_by_table import table
from icefloe import VirtualChunkSpec
from icefloe.errors import ErrorKind, InvalidInputError
from support.referring_repositories import numbers, session_with

if TYPE_CHECKING:
    from collections.abc import Callable

REF, INDEX, ZERO = (
    ErrorKind.INVALID_VIRTUAL_REF,
    ErrorKind.INVALID_CHUNK_INDEX,
    ErrorKind.ZERO_LENGTH_CHUNK,
)
GOOD = ["s3://archive/a.nc", "s3://archive/b.nc"]

TABLES: dict[str, tuple[Any, ErrorKind, str]] = {
    "no table": ([1, 2], REF, "a list is not an Arrow table"),
    "no location": (table(location=None), REF, "no column 'location'"),
    "no offset": (table(offset=None), REF, "no column 'offset'"),
    "no index": (table(index=None), REF, "'index_0'"),
    "one index too few": (table(index=None, index_0=[0, 1, 2]), REF, "'index_1'"),
    "one index too many": (
        table(index=None, index_0=[0, 1, 2], index_1=[0, 1, 1], index_2=[0, 0, 0]),
        REF,
        "'index_2'",
    ),
    "a column twice": (
        pa.table([[1], [2]], names=["offset", "offset"]).append_column("location", [["x"]]),
        REF,
        "2 columns 'offset'",
    ),
    "numbers for locations": (
        table(location=[1, 2, 3]),
        REF,
        "column 'location' must hold strings",
    ),
    "no location in a row": (table(location=["s3://b/a", None, ""]), REF, "location, row 1"),
    "floats": (
        table(offset=[0.0, 1.0, 2.0]),
        REF,
        "column 'offset': expected integers, got double",
    ),
    "null offset": (table(offset=[0, None, 2]), REF, "offset, row 1"),
    "negative offset": (table(offset=[0, 1, -2]), REF, "offset, row 2: -2 is negative"),
    "negative length": (table(length=[1, -1, 2]), REF, "length, row 1"),
    "zero length": (table(length=[1, 1, 0]), ZERO, "row 2: chunk [1, 1]"),
    "past 64 bits": (
        table(offset=pa.array([0, 1, 2**64 - 5], pa.uint64())),
        REF,
        "row 2: offset 18446744073709551611",
    ),
    "outside the grid": (table(index=[[0, 0], [3, 0], [0, 0]]), INDEX, "row 1: chunk [3, 0]"),
    "negative index": (table(index=[[0, 0], [0, 0], [0, -1]]), INDEX, "row 2: chunk [0, -1]"),
    "an index that wraps around": (
        table(index=[[0, 0], [2**32, 0], [0, 0]]),
        INDEX,
        "row 1: chunk [4294967296, 0]",
    ),
    "an index beyond all": (
        table(index=pa.array([[0, 0], [2**63 + 1, 0], [0, 0]], pa.list_(pa.uint64()))),
        INDEX,
        "index, row 1",
    ),
    "another rank": (table(index=[[0], [1], [2]]), INDEX, "index, row 0: has 1 number"),
    "ragged": (table(index=[[0, 0], [1, 0, 0], [1, 1]]), INDEX, "index, row 1: has 3 numbers"),
    "null index": (table(index=[[0, 0], None, [1, 1]]), REF, "index, row 1"),
    "null in an index": (table(index=[[0, 0], [1, None], [1, 1]]), REF, "index, row"),
    "index of text": (
        table(index=["a", "b", "c"]),
        REF,
        "column 'index': expected lists of integers, got string",
    ),
    "malformed URL": (
        table(location=["s3://archive/a", "archive/b", "s3://archive/c"]),
        REF,
        "chunk [2, 0] of /a: error parsing virtual ref URL 'archive/b'",
    ),
    "no object": (
        table(location=["s3://archive/a", "s3://archive/", "s3://b/c"]),
        REF,
        "[2, 0]",
    ),
    "naive times": (
        table(last_modified=pa.array([datetime(2024, 1, 1)] * 3)),  # noqa: DTZ001
        REF,
        "'last_modified' has times without a time zone",
    ),
    "times before 1970": (table(last_modified=[1, -1, 2], etag=None), REF, "last_modified, row 1"),
    "times of text": (
        table(last_modified=["a", "b", "c"]),
        REF,
        "'last_modified': expected times with a time zone, or seconds since 1970, got string",
    ),
    "tags of numbers": (table(etag=[1, 2, 3]), REF, "column 'etag' must hold strings"),
}


def get_error(call: Callable[[Any], object], grid: tuple[int, ...] = (3, 2)) -> InvalidInputError:
    """Call with a session, whose array must be as empty afterwards as it was."""
    session = session_with({"a": grid, "group/b": (1,)})
    before = session.status().updated_chunks
    with pytest.raises(InvalidInputError) as error:
        call(session)
    assert session.status().updated_chunks == before
    assert session.all_virtual_chunk_locations() == []
    return error.value


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("validate", [True, False])
def test_bad_tables(case: str, *, validate: bool) -> None:
    """Every error in a table names its column and row, with or without container checks."""
    bad, kind, expected = TABLES[case]
    error = get_error(
        lambda session: session.store.set_virtual_refs_table("a", bad, validate_containers=validate)
    )
    assert error.kind is kind
    assert expected in error.message


BOXES: dict[str, tuple[dict[str, Any], ErrorKind, str]] = {
    "too few locations": ({"locations": GOOD[:1]}, REF, "1 locations, 2 offsets and 2 lengths"),
    "too many lengths": ({"lengths": numbers(1, 1, 1)}, REF, "3 lengths do not match"),
    "another box": ({"chunk_grid_shape": (3, 1)}, REF, "a box of 3 x 1 chunks"),
    "another rank": ({"chunk_grid_shape": (2,)}, INDEX, "the array has 2 dimensions"),
    "a negative box": ({"chunk_grid_shape": (-2, -1)}, INDEX, "-2"),
    "a huge box": ({"chunk_grid_shape": (2**32 - 1, 2**32 - 1)}, REF, "do not match"),
    "a box of text": ({"chunk_grid_shape": ("a", 1)}, REF, "an integer per dimension"),
    "outside": ({"arr_offset": (2, 1)}, INDEX, "row 1: chunk [3, 1]"),
    "negative start": ({"arr_offset": (-1, 0)}, INDEX, "arr_offset=(-1, 0)"),
    "start of another rank": ({"arr_offset": (1,)}, INDEX, "arr_offset=(1,) has 1 number"),
    "bytes": (
        {"locations": [b"s3://archive/a", b"x"]},
        REF,
        "locations, row 0: expected a string, got a bytes",
    ),
    "none": (
        {"locations": ["s3://archive/a", None]},
        REF,
        "row 1: expected a string, got a NoneType",
    ),
    "lists": (
        {"locations": ["s3://archive/a", ["x"]]},
        REF,
        "locations, row 1: expected a string, got a list",
    ),
    "one string": ({"locations": "s3://archive/a"}, REF, "locations: expected strings, got a str"),
    "numbers": ({"locations": np.arange(2)}, REF, "got a 1-dimensional array of int64"),
    "two dimensions": ({"locations": np.array([GOOD])}, REF, "got a 2-dimensional array"),
    "a lone surrogate": ({"locations": ["s3://archive/\ud800", "x"]}, REF, "locations:"),
    "float offsets": ({"offsets": np.array([0.5, 1])}, REF, "offsets: expected integers"),
    "negative offsets": ({"offsets": np.array([0, -7])}, REF, "offsets, row 1: -7"),
    "large offsets": ({"offsets": [0, 2**64]}, REF, "offsets, row 1: 18446744073709551616"),
    "text for offsets": ({"offsets": ["a", "b"]}, REF, "offsets: expected integers"),
    "flags for lengths": ({"lengths": np.array([True, True])}, REF, "lengths: expected integers"),
    "a matrix of lengths": (
        {"lengths": np.ones((1, 2), np.uint64)},
        REF,
        "lengths: expected one column",
    ),
    "zero length": ({"lengths": numbers(1, 0)}, ZERO, "row 1: chunk [1, 0]"),
    "zero length behind a gap": (
        {"locations": ["", GOOD[0]], "lengths": numbers(1, 0)},
        ZERO,
        "row 1: chunk [1, 0]",
    ),
    "past 64 bits": ({"offsets": numbers(0, 2**64 - 1)}, REF, "row 1: offset"),
    "malformed": ({"locations": [GOOD[0], "s3:/archive/b"]}, REF, "chunk [1, 0] of /a"),
    "dots": ({"locations": [GOOD[0], "file:///archive//b"]}, REF, "chunk [1, 0] of /a"),
    "a naive time": ({"checksum": datetime(2024, 1, 1)}, REF, "no time zone"),  # noqa: DTZ001
    "a flag": ({"checksum": True}, REF, "got a bool"),
    "an empty tag": ({"checksum": ""}, REF, "the entity tag is empty"),
    "a moment before 1970": ({"checksum": -5}, REF, "between 1 and"),
    "too few checksums": ({"checksum": ["a"]}, REF, "checksum: 1 rows do not match 2 chunks"),
    "odd checksums": ({"checksum": [1.5, 2]}, REF, "got a float"),
    "a set of checksums": ({"checksum": {"a", "b"}}, REF, "got a set"),
}


@pytest.mark.parametrize("case", BOXES)
def test_bad_columns(case: str) -> None:
    """Every mistake in columns is named with the column and the row."""
    changed, kind, expected = BOXES[case]
    arguments = {
        "chunk_grid_shape": (2, 1),
        "locations": GOOD,
        "offsets": numbers(0, 1),
        "lengths": numbers(1, 1),
        **changed,
    }
    error = get_error(
        lambda session: session.store.set_virtual_refs_arr(
            "a", **arguments, validate_containers=False
        )
    )
    assert error.kind is kind
    assert expected in error.message


def test_bad_lists() -> None:
    """Single references are checked before any of them is stored."""
    good = VirtualChunkSpec([0, 0], "s3://archive/a", 0, 1)
    for bad, kind, expected in (
        (VirtualChunkSpec([0], "s3://archive/a", 0, 1), INDEX, "index, row 1: has 1 number"),
        (VirtualChunkSpec([3, 0], "s3://archive/a", 0, 1), INDEX, "row 1: chunk [3, 0]"),
        (VirtualChunkSpec([0, 1], "s3://archive/a", 0, 0), ZERO, "row 1: chunk [0, 1]"),
        (VirtualChunkSpec([0, 1], "archive", 0, 1), REF, "chunk [0, 1] of /a"),
        (VirtualChunkSpec([0, 1], None, 0, 1), REF, "location, row 1"),  # type: ignore[arg-type]
    ):
        error = get_error(
            lambda session, bad=bad: session.store.set_virtual_refs(  # type: ignore[misc]
                "a", [good, bad], validate_containers=False
            )
        )
        assert error.kind is kind
        assert expected in error.message


def test_bad_single_references() -> None:
    """One reference is checked as a million are."""
    for key, location, offset, length, kind in (
        ("a/c/0/0", "archive/a", 0, 1, REF),
        ("a/c/0/0", "s3://archive", 0, 1, REF),
        ("a/c/0/0", "s3://archive/a", -1, 1, REF),
        ("a/c/0/0", "s3://archive/a", 0, 2**64, REF),
        ("a/c/0/0", "s3://archive/a", 1.5, 1, REF),
        ("a/c/0/0", "s3://archive/a", 0, 1.0, REF),
        ("a/c/0/0", "s3://archive/a", True, 1, REF),
        ("a/c/0/0", "s3://archive/a", 2**63, 2**63, REF),
        ("a/c/0/0", "s3://archive/a", 0, 0, ZERO),
        ("a/c/9/0", "s3://archive/a", 0, 1, INDEX),
        ("a/zarr.json", "s3://archive/a", 0, 1, ErrorKind.INVALID_KEY),
    ):
        error = get_error(
            lambda session, args=(key, location), offset=offset, length=length: (  # type: ignore[misc]
                session.store.set_virtual_ref(
                    *args, offset=offset, length=length, validate_container=False
                )
            )
        )
        assert error.kind is kind


def test_groups_and_nothing_take_no_references() -> None:
    """Only an array has chunks."""
    assert get_error(
        lambda session: session.store.set_virtual_refs_table("group", table())
    ).kind is (ErrorKind.NOT_AN_ARRAY)


def test_without_pyarrow() -> None:
    """Without pyarrow everything but tables works, and tables say how to get it."""
    script = """
import sys
sys.modules["pyarrow"] = None
import numpy as np
from support.referring_repositories import session_with, stored
from icefloe.errors import InvalidInputError
session = session_with({"a": (2,)})
ones = np.ones(2, np.uint64)
session.store.set_virtual_refs_arr("a", (2,), ["s3://archive/a"] * 2, ones, ones)
assert len(stored(session, "a")) == 2
assert session.dependencies().num_files == 1
class Table:
    def __arrow_c_stream__(self, schema=None): raise AssertionError
by_table = lambda: session.store.set_virtual_refs_table("a", Table())
for call in (by_table, session.virtual_refs_table):
    try:
        call()
    except InvalidInputError as error:
        assert "pip install 'icefloe[virtual]'" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
