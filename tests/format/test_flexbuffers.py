"""FlexBuffers: every JSON value comes back, every other byte string is a `FormatError`."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from flatbuffers import flexbuffers as library
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import flexbuffers
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random

INTEGERS = st.integers(-(2**63), 2**64 - 1)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text(max_size=300)

# What the flatbuffers package can write at all.
ASCII_KEYS = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=12)
LIBRARY_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=32)
    | st.text(max_size=300)
)


def values_of(
    scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[str]
) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=40,
    )


VALUES = values_of(SCALARS, KEYS)


def built(add: Any) -> bytes:
    """Write with the builder of the flatbuffers package."""
    builder = library.Builder()
    add(builder)
    return bytes(builder.Finish())


@given(VALUES)
@example(2**63)
@example(-(2**63))
@example([-128, -129, 255, 256, 65535, 65536, 2**32 - 1, 2**32])
@example(1e300)
@example([{"a": 1, "b": 2}] * 5)
@example({"": "", "é": [[], {}]})
@example("x" * 70_000)
@settings(max_examples=examples(150, thorough=300), deadline=None)
def test_every_json_value_comes_back(value: Any) -> None:
    decoded = flexbuffers.loads(flexbuffers.dumps(value), file="f")
    assert decoded == value
    assert repr(type(decoded)) == repr(type(value))


@given(values_of(SCALARS, ASCII_KEYS))
@settings(max_examples=examples(100, thorough=200), deadline=None)
def test_the_flatbuffers_package_reads_what_is_written(value: Any) -> None:
    assert library.Loads(flexbuffers.dumps(value)) == value


@given(values_of(LIBRARY_SCALARS, ASCII_KEYS))
@settings(max_examples=examples(100, thorough=200), deadline=None)
def test_what_the_flatbuffers_package_writes_is_read(value: Any) -> None:
    data = bytes(library.Dumps(value))
    assert repr(flexbuffers.loads(data, file="f")) == repr(library.Loads(data))


@pytest.mark.parametrize(
    "data, value",
    [
        (built(lambda b: b.Int(-5)), -5),
        (built(lambda b: b.UInt(2**64 - 1)), 2**64 - 1),
        (built(lambda b: b.IndirectInt(-(2**40))), -(2**40)),
        (built(lambda b: b.IndirectUInt(2**63)), 2**63),
        (built(lambda b: b.IndirectFloat(0.5)), 0.5),
        (built(lambda b: b.Float(0.5, 4)), 0.5),
        (struct.pack("<eBB", 1.5, 3 << 2 | 1, 2), 1.5),
        (built(lambda b: b.Key("name")), "name"),
        (built(lambda b: b.TypedVectorFromElements([1, 2, 3])), [1, 2, 3]),
        (built(lambda b: b.TypedVectorFromElements([True, False])), [True, False]),
        (built(lambda b: b.TypedVectorFromElements([0.25, 1e9])), [0.25, 1e9]),
        (built(lambda b: b.FixedTypedVectorFromElements([1, -2])), [1, -2]),
        (built(lambda b: b.FixedTypedVectorFromElements([1.0, 2.0, 3.0])), [1.0, 2.0, 3.0]),
        (built(lambda b: b.FixedTypedVectorFromElements([1, 2, 3, 2**40])), [1, 2, 3, 2**40]),
        (built(lambda b: b.TypedVectorFromElements(["a", "b"], library.Type.KEY)), ["a", "b"]),
        # Two strings with lengths of one byte, and the vector type that was given up for them.
        (b"\x01a\x00\x01b\x00\x02\x06\x04\x02\x3c\x01", ["a", "b"]),
    ],
)  # fmt: skip
def test_every_type_is_read(data: bytes, value: Any) -> None:
    assert flexbuffers.loads(data, file="f") == value


def test_a_blob_is_read_only_where_asked_for() -> None:
    data = built(lambda b: b.Blob(b"\xff\x00"))
    assert flexbuffers.loads(data, file="f", blobs=True) == b"\xff\x00"
    with pytest.raises(FormatError, match="f: invalid FlexBuffer: expected JSON"):
        flexbuffers.loads(data, file="f")


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        b"bytes",
        {1: "a"},
        {"a\0": 1},
        {"\ud800": 1},
        "\ud800",
        object(),
        {"a": {1, 2}},
    ],
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError) as error:
        flexbuffers.dumps(value)
    assert error.value.kind is ErrorKind.BAD_METADATA


def nest(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_the_depth_limit_is_the_same_for_reading_and_writing() -> None:
    deepest = nest(flexbuffers.MAX_DEPTH)
    assert flexbuffers.loads(flexbuffers.dumps(deepest), file="f") == deepest
    with pytest.raises(InvalidInputError):
        flexbuffers.dumps(nest(flexbuffers.MAX_DEPTH + 1))
    data = bytes(library.Dumps(nest(flexbuffers.MAX_DEPTH + 1)))
    with pytest.raises(FormatError, match="more than 100 levels deep"):
        flexbuffers.loads(data, file="f")


@given(st.binary(max_size=200))
@settings(max_examples=1000, deadline=None)
def test_arbitrary_bytes_are_a_value_or_a_format_error(data: bytes) -> None:
    try:
        value = flexbuffers.loads(data, file="f")
    except FormatError:
        return
    flexbuffers.dumps(value)


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=examples(150, thorough=1000), deadline=None)
def test_mutated_flexbuffers_are_a_value_or_a_format_error(
    value: Any, source: random.Random
) -> None:
    """Many mutants of each value, which takes longer to draw than all of them to be read."""
    written = flexbuffers.dumps(value)
    for _ in range(10):
        mutated = bytearray(written)
        for _ in range(source.randint(1, 4)):
            mutated[source.randrange(len(mutated))] = source.randrange(256)
        try:
            flexbuffers.loads(bytes(mutated), file="f")
        except FormatError:
            continue


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_truncated_flexbuffers_are_a_value_or_a_format_error(value: Any) -> None:
    data = flexbuffers.dumps(value)
    for end in range(min(len(data), 100)):
        try:
            flexbuffers.loads(data[:end], file="f")
        except FormatError:
            continue


def test_vectors_that_share_their_elements_do_not_explode() -> None:
    """Each of sixty vectors holds the one before it twice: 2**60 values in under 400 bytes."""
    data = bytearray(b"\x00")
    place = len(data)
    for _ in range(60):
        data.append(2)
        start = len(data)
        data += bytes((start - place, start + 1 - place, 10 << 2, 10 << 2))
        place = start
    data += bytes((len(data) - place, 10 << 2, 1))
    begun = time.perf_counter()
    with pytest.raises(FormatError, match="too many shared"):
        flexbuffers.loads(bytes(data), file="f")
    assert time.perf_counter() - begun < 5


def test_strings_that_overlap_do_not_explode() -> None:
    """Ten thousand strings of eight thousand bytes, each four bytes after the last."""
    count, length = 10_000, 0x207F
    data = struct.pack("<I", length) * count + bytes(length)
    data += bytes(-len(data) % 4)
    places = [4 * (i + 1) for i in range(count)]
    start = len(data) + 4
    offsets = b"".join(struct.pack("<I", start + 4 * i - p) for i, p in enumerate(places))
    types = bytes((5 << 2 | 2,)) * count
    data += struct.pack("<I", count) + offsets + types
    data += struct.pack("<I", len(data) - start) + bytes((10 << 2 | 2, 4))
    with pytest.raises(FormatError, match="overlap"):
        flexbuffers.loads(data, file="f")


def test_a_vector_that_contains_itself_is_refused() -> None:
    with pytest.raises(FormatError):
        flexbuffers.loads(b"\x01\x00\x28\x02\x28\x01", file="f")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x03",  # a root of three bytes
        b"\x00\xf4\x01",  # type 61
        b"\x00\x0c\x01",  # a float of one byte
        b"\x00\x00\xff\x28\x01",  # an offset before the beginning
        b"\x01\xff\x00\x02\x14\x01",  # a string that is not UTF-8
        b"aa\x02\x10\x01",  # a key without an end
    ],
)
def test_broken_flexbuffers_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^f: invalid FlexBuffer: "):
        flexbuffers.loads(data, file="f")


def test_a_map_with_a_key_twice_is_refused() -> None:
    data = flexbuffers.dumps({"a": 1, "b": 2})
    assert data.count(b"b\x00") == 1
    with pytest.raises(FormatError, match="duplicate key"):
        flexbuffers.loads(data.replace(b"b\x00", b"a\x00"), file="f")
