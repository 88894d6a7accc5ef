"""Keys and content of the reference files of the generation ``sequence``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.sequence.keys import (
    MAX_NUMBER,
    format_branch_key,
    format_tag_key,
    parse_branch_key,
    parse_tag_key,
)
from icefloe.format.sequence.ref import MAX_REF_SIZE, RefData, decode_ref, encode_ref
from icefloe.model.ids import SnapshotId

KEY = "r/main/ZZZZZZZZ.json"
IDS = st.binary(min_size=16, max_size=16).map(SnapshotId)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
REFS = st.builds(RefData, IDS, TIMES, st.booleans(), st.dictionaries(IDS, IDS, max_size=5))
CONTENT = {"properties": {}, "snapshot": [7] * 16, "timestamp": "2024-05-06T07:08:09Z"}


@pytest.mark.parametrize(
    "number, name", [(0, "ZZZZZZZZ"), (1, "ZZZZZZZY"), (100, "ZZZZZZWV"), (MAX_NUMBER, "00000000")]
)
def test_names_of_the_specification(number: int, name: str) -> None:
    """The numbers have the names that the specification gives."""
    assert format_branch_key("main", number) == f"r/main/{name}.json"
    assert parse_branch_key(f"r/main/{name}.json") == ("main", number)


@given(st.integers(0, MAX_NUMBER), st.integers(0, MAX_NUMBER))
def test_names_count_down(first: int, second: int) -> None:
    """Names are unique, and the larger number is the first in a listing."""
    keys = [format_branch_key("b", number) for number in (first, second)]
    assert [parse_branch_key(key) for key in keys] == [("b", first), ("b", second)]
    assert (keys[0] < keys[1]) == (first > second)


@pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
def test_numbers_out_of_range(number: int) -> None:
    """There is no name for a number that does not fit."""
    with pytest.raises(InvalidInputError, match=str(MAX_NUMBER)):
        format_branch_key("main", number)


@pytest.mark.parametrize(
    "name",
    [
        "zzzzzzzz.json",
        "ZZZZZZZO.json",
        "ZZZZZZZI.json",
        "ZZZZZZZL.json",
        "ZZZZZZZU.json",
        "ZZZZZZZ.json",
        "0ZZZZZZZZ.json",
        "ZZZZZZZZ",
        "ZZZZZZZZ.JSON",
        "ZZZZZZZZ.json.json",
        "ZZZZ/ZZZZ.json",
        "ZZZZZZZ\u0660.json",
        ".json",
        "",
    ],
)
def test_names_that_are_not_canonical(name: str) -> None:
    """Only one name is accepted for a number."""
    with pytest.raises(FormatError, match=r"r/main/.*Crockford"):
        parse_branch_key(f"r/main/{name}")


def test_tags_and_branches_are_distinguished() -> None:
    """A key is that of a branch file or of a tag, or of neither."""
    assert parse_tag_key(format_tag_key("v1.json")) == "v1.json"
    assert parse_branch_key(format_tag_key("main")) is None
    assert parse_tag_key(KEY) is None
    for key in ("r/.json", "r/main", "s/x.json", "config.yaml", "r/"):
        assert parse_tag_key(key) is None
    for key in ("r/main", "s/x/ZZZZZZZZ.json", "config.yaml"):
        assert parse_branch_key(key) is None


@given(REFS)
def test_refs_round_trip(ref: RefData) -> None:
    """A reference file is decoded as it was encoded."""
    assert decode_ref(encode_ref(ref), KEY) == ref


def test_written_content() -> None:
    """The file has the members of the specification, and no others."""
    child, parent = (SnapshotId(bytes([number] * 16)) for number in (1, 2))
    written = datetime(2024, 5, 6, 9, 8, 9, 10, timezone(timedelta(hours=2)))
    ref = RefData(child, written, is_deleted=True, parents={child: parent})
    assert json.loads(encode_ref(ref)) == {
        "properties": {"deleted": True, "parents": {str(child): str(parent)}},
        "snapshot": [1] * 16,
        "timestamp": "2024-05-06T07:08:09.000010Z",
    }
    assert json.loads(encode_ref(RefData(child, written)))["properties"] == {}


@pytest.mark.parametrize(
    "timestamp, expected",
    [
        ("2024-05-06T07:08:09Z", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ("2024-05-06t07:08:09.1z", datetime(2024, 5, 6, 7, 8, 9, 100_000, UTC)),
        ("2024-05-06T07:08:09.123456789+02:00", datetime(2024, 5, 6, 5, 8, 9, 123_456, UTC)),
    ],
)
def test_timestamps_of_other_writers(timestamp: str, expected: datetime) -> None:
    """All times of RFC 3339 are read, to the microsecond."""
    data = json.dumps({**CONTENT, "timestamp": timestamp, "more": 1}).encode()
    assert decode_ref(data, KEY) == RefData(SnapshotId(bytes([7] * 16)), expected)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"snapshot": [7] * 15}, "'snapshot'"),
        ({"snapshot": [7] * 12}, "'snapshot'"),
        ({"snapshot": [7] * 15 + [256]}, "'snapshot'"),
        ({"snapshot": [7] * 15 + [-1]}, "'snapshot'"),
        ({"snapshot": [7] * 15 + [True]}, "'snapshot'"),
        ({"snapshot": [7] * 15 + [1.0]}, "'snapshot'"),
        ({"snapshot": "ZZZZ"}, "'snapshot'"),
        ({"timestamp": "2024-05-06"}, "'timestamp'"),
        ({"timestamp": "2024-05-06T07:08:09"}, "'timestamp'"),
        ({"timestamp": "2024-13-06T07:08:09Z"}, "'timestamp'"),
        ({"timestamp": "0001-01-01T00:00:00+23:00"}, "'timestamp'"),
        ({"timestamp": 5}, "'timestamp'"),
        ({"properties": []}, "must be an object"),
        ({"properties": {"deleted": 1}}, "must be a boolean"),
        ({"properties": {"parents": []}}, "must be an object"),
        ({"properties": {"parents": {"x": "y"}}}, "not a SnapshotId"),
        ({"properties": {"parents": {"0" * 26: 1}}}, "not a SnapshotId"),
        ({"properties": {"parents": {"0" * 26: "0" * 20}}}, "must have 16 bytes"),
    ],
)
def test_wrong_content(changes: dict[str, Any], problem: str) -> None:
    """A member of another type or size raises, and the error names the file."""
    with pytest.raises(FormatError, match=problem) as caught:
        decode_ref(json.dumps({**CONTENT, **changes}).encode(), KEY)
    assert caught.value.file == KEY


@pytest.mark.parametrize("name", list(CONTENT))
def test_missing_members(name: str) -> None:
    """Every member is required."""
    content = {key: value for key, value in CONTENT.items() if key != name}
    with pytest.raises(FormatError, match=f"no member '{name}'"):
        decode_ref(json.dumps(content).encode(), KEY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"snapshot":' + b"9" * 10_000 + b"}",
        b" " * (MAX_REF_SIZE + 1),
    ],
)
def test_files_that_are_not_json_objects(data: bytes) -> None:
    """Anything but a JSON object of limited size raises."""
    with pytest.raises(FormatError):
        decode_ref(data, KEY)


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    """Arbitrary bytes raise nothing but `FormatError`."""
    with pytest.raises(FormatError):
        decode_ref(data, KEY)


def test_more_parents_than_fit() -> None:
    """A file that no reader would accept is not written."""
    ids = [SnapshotId(number.to_bytes(16, "big")) for number in range(80_000)]
    with pytest.raises(InvalidInputError, match="limit"):
        encode_ref(RefData(ids[0], datetime.now(UTC), parents=dict.fromkeys(ids, ids[0])))
