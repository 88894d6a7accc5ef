"""References by Arrow table and by columns: what they mean, in every form that columns have."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from support.referring_repositories import numbers, session_with, stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TIME = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
NAMES = ["s3://archive/a.nc", "s3://archive/é.nc", "s3://archive/a.nc"]
EXPECTED = {
    (0, 1): ("s3://archive/a.nc", 0, 10, "tag"),
    (2, 0): ("s3://archive/é.nc", 10, 20, TIME),
    (1, 1): ("s3://archive/a.nc", 2**40, 30, None),
}


def table(**changed: Any) -> pa.Table:
    """Make a table of three references, with some columns changed or, by None, left out."""
    columns = {
        "index": pa.array([[0, 1], [2, 0], [1, 1]], pa.list_(pa.int32(), 2)),
        "location": pa.array(NAMES),
        "offset": pa.array([0, 10, 2**40], pa.uint64()),
        "length": pa.array([10, 20, 30], pa.int16()),
        "etag": pa.array(["tag", None, ""]),
        "last_modified": pa.array([TIME, TIME, None], pa.timestamp("us", tz="UTC")),
        **changed,
    }
    return pa.table({name: column for name, column in columns.items() if column is not None})


class OnlyAStream:
    """What a library that is not pyarrow hands over."""

    def __init__(self, held: pa.Table) -> None:
        self._held = held

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._held.__arrow_c_stream__(requested_schema)


FORMS = {
    "lists of fixed size": table(),
    "lists": table(index=pa.array([[0, 1], [2, 0], [1, 1]], pa.list_(pa.uint64()))),
    "large lists": table(index=pa.array([[0, 1], [2, 0], [1, 1]], pa.large_list(pa.int8()))),
    "a column for each dimension": table(
        index=None, index_0=pa.array([0, 2, 1], pa.uint64()), index_1=pa.array([1, 0, 1])
    ),
    "dictionary": table(location=pa.array(NAMES).dictionary_encode()),
    "dictionary with more than it needs": table(
        location=pa.DictionaryArray.from_arrays(
            pa.array([2, 1, 0]),
            pa.array(["s3://archive/a.nc", "s3://archive/é.nc", "s3://archive/a.nc", "no URL"]),
        )
    ),
    "large strings": table(location=pa.array(NAMES, pa.large_string())),
    "string views": table(location=pa.array(NAMES, pa.string_view())),
    "seconds": table(last_modified=pa.array([5, int(TIME.timestamp()), None], pa.int64())),
    "another time zone": table(
        last_modified=pa.array([TIME, TIME, None], pa.timestamp("ns", tz="Asia/Tokyo"))
    ),
    "a record batch": table().to_batches()[0],
    "several chunks": pa.concat_tables([table().slice(0, 1), table().slice(1)]),
    "a slice": pa.concat_tables([table().slice(2), table()]).slice(1),
    "other columns besides": table(quality=pa.array([1, 2, 3])),
    "a stream": OnlyAStream(table()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_table(form: str) -> None:
    """However its columns are laid out, a table means the same references."""
    session = session_with({"a": (3, 2)})
    assert session.store.set_virtual_refs_table("a", FORMS[form]) is None
    assert stored(session, "a") == EXPECTED


def test_checksums_may_be_absent() -> None:
    """A table without the columns of checksums, or with nothing in them, has none."""
    for changed in (
        {"etag": None, "last_modified": None},
        {"etag": pa.nulls(3), "last_modified": pa.nulls(3)},
    ):
        session = session_with({"a": (3, 2)})
        session.store.set_virtual_refs_table("a", table(**changed))
        assert [ref[3] for ref in stored(session, "a").values()] == [None] * 3


def test_scalar_arrays_need_no_index() -> None:
    """The only chunk of an array without dimensions needs no column to say which it is."""
    session = session_with({"a": ()})
    session.store.set_virtual_refs_table("a", table(index=None).slice(0, 1))
    assert list(stored(session, "a")) == [()]


def test_the_last_row_of_a_chunk_counts() -> None:
    """A chunk that comes twice in a table is what its last row says."""
    session = session_with({"a": (3, 2)})
    index = pa.array([[0, 0], [1, 1], [0, 0]], pa.list_(pa.int32(), 2))
    session.store.set_virtual_refs_table("a", table(index=index))
    assert {key: value[1] for key, value in stored(session, "a").items()} == {
        (0, 0): 2**40,
        (1, 1): 10,
    }


def test_locations_without_container_are_left_out_and_told() -> None:
    """Rows that no container covers are returned, and the others stored, unless asked not to."""
    names = pa.array(["s3://archive/a.nc", "models://elsewhere/b.nc", "vcc://cold/c.nc"])
    session = session_with({"a": (3, 2)})
    assert session.store.set_virtual_refs_table("a", table(location=names)) == [(2, 0)]
    assert set(stored(session, "a")) == {(0, 1), (1, 1)}
    assert (
        session.store.set_virtual_refs_table("a", table(location=names), validate_containers=False)
        is None
    )
    assert len(stored(session, "a")) == 3


COLUMNS = {
    "a list": NAMES,
    "a tuple": tuple(NAMES),
    "U": np.array(NAMES),
    "StringDType": np.array(NAMES, np.dtypes.StringDType()),
    "objects": np.array(NAMES, object),
    "an Arrow array": pa.array(NAMES),
    "a chunked array": pa.chunked_array([NAMES[:1], NAMES[1:]]),
    "a dictionary": pa.array(NAMES).dictionary_encode(),
}


@pytest.mark.parametrize("form", COLUMNS)
def test_every_form_of_locations(form: str) -> None:
    """``set_virtual_refs_arr`` takes lists, numpy arrays of every kind of string, Arrow arrays."""
    session = session_with({"a": (5, 2)})
    session.store.set_virtual_refs_arr(
        "a", (3, 1), COLUMNS[form], numbers(1, 2, 3), numbers(4, 5, 6), arr_offset=(2, 1)
    )
    assert stored(session, "a") == {
        (row + 2, 1): (name, row + 1, row + 4, None) for row, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("files", ["few", "many"])
def test_long_columns_of_numpy_strings(files: str) -> None:
    """Columns that are longer than what is read at once come out in order."""
    count = 140_000
    names = [f"s3://archive/{row % (7 if files == 'few' else count)}.nc" for row in range(count)]
    session = session_with({"a": (count,)})
    column = np.array(names, np.dtypes.StringDType())
    sizes = np.arange(1, count + 1, dtype=np.uint64)
    session.store.set_virtual_refs_arr("a", (count,), column, sizes, sizes)
    assert session.all_virtual_chunk_locations() == names


@pytest.mark.parametrize(
    "empty", [["", "s3://archive/b.nc"], pa.array([None, "s3://archive/b.nc"])]
)
def test_an_empty_location_leaves_the_chunk_out(empty: Any) -> None:
    """A chunk without a location is not stored, and what stands beside it does not matter."""
    session = session_with({"a": (2,)})
    session.store.set_virtual_refs_arr("a", (2,), empty, numbers(0, 0), numbers(0, 5))
    assert list(stored(session, "a")) == [(1,)]


CHECKSUMS: dict[str, tuple[Any, list[object]]] = {
    "one tag": ("tag", ["tag", "tag"]),
    "one time": (TIME, [TIME, TIME]),
    "seconds": (int(TIME.timestamp()), [TIME, TIME]),
    "none": (None, [None, None]),
    "tags": (["x", None], ["x", None]),
    "an Arrow column of tags": (pa.array(["x", None]), ["x", None]),
    "mixed": ([TIME, "x"], [TIME, "x"]),
    "numpy times": (np.array([TIME.replace(tzinfo=None), "NaT"], "M8[ms]"), [TIME, None]),
    "numpy seconds": (np.array([TIME.timestamp()] * 2).astype(int), [TIME, TIME]),
    "Arrow times": (pa.array([TIME, None], pa.timestamp("s", tz="UTC")), [TIME, None]),
}


@pytest.mark.parametrize("form", CHECKSUMS)
def test_checksums_for_all_or_for_each(form: str) -> None:
    """A checksum is one for all chunks, or a column with one for each."""
    checksum, expected = CHECKSUMS[form]
    session = session_with({"a": (2,)})
    session.store.set_virtual_refs_arr(
        "a", (2,), NAMES[:2], numbers(0, 0), numbers(1, 1), checksum=checksum
    )
    assert [ref[3] for ref in stored(session, "a").values()] == expected


@pytest.mark.parametrize("checksum", ["tag", TIME, int(TIME.timestamp())])
def test_one_reference_takes_the_same_checksums(checksum: Any) -> None:
    """``set_virtual_ref`` takes a tag, a time with a time zone, or seconds."""
    session = session_with({"a": (2,)})
    session.store.set_virtual_ref(
        "a/c/1", "s3://archive/a.nc", offset=0, length=1, checksum=checksum
    )
    expected = checksum if isinstance(checksum, str) else TIME
    assert stored(session, "a") == {(1,): ("s3://archive/a.nc", 0, 1, expected)}


def count_steps(action: Callable[[], object]) -> int:
    """Count what Python itself does: the bytecodes that run."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return steps


@pytest.mark.parametrize("way", ["table", "list", "numpy"])
def test_no_python_loop_over_chunks(way: str) -> None:
    """Twenty thousand chunks more are not half as many steps more for Python itself."""

    def steps(count: int) -> int:
        session = session_with({"a": (count,)})
        names = [f"s3://archive/{row // 500}.nc" for row in range(count)]
        sizes = np.ones(count, np.uint64)
        if way == "table":
            rows = pa.table(
                {
                    "index_0": np.arange(count),
                    "location": names,
                    "offset": sizes,
                    "length": sizes,
                    "etag": names,
                }
            )
            return count_steps(lambda: session.store.set_virtual_refs_table("a", rows))
        column = np.array(names) if way == "numpy" else names
        return count_steps(
            lambda: session.store.set_virtual_refs_arr("a", (count,), column, sizes, sizes)
        )

    steps(10)  # what is imported at first does not count
    assert steps(22_000) - steps(2_000) < 10_000
