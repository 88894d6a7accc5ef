"""The codec of ``state.json``: round trips, refused states, and damage."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError, IcefloeError, InvalidInputError
from icefloe.format.draft import state as state_module
from icefloe.format.draft.state import (
    MAX_RECENT_CHANGES,
    State,
    decode_state,
    encode_state,
    make_repo_info,
)
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import SnapshotInfo
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST, SECOND = (SnapshotId(bytes([number]) * 12) for number in (1, 2))
TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def make_state(
    *,
    branches: Mapping[str, SnapshotId] | None = None,
    tags: Mapping[str, SnapshotId] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> State:
    """Make a state of two snapshots."""
    snapshots = (
        SnapshotInfo(FIRST, None, TIME, "first"),
        SnapshotInfo(SECOND, FIRST, TIME + timedelta(microseconds=1), "second", metadata or {}),
    )
    branches = {"main": SECOND} if branches is None else branches
    info = make_repo_info(snapshots, branches, tags or {}, frozenset(["gone"]), TIME)
    return State(str(FIRST), 7, None, info, ("a change", "the change before"))


def make_content() -> dict[str, Any]:
    """Make the content of a valid file."""
    content: dict[str, Any] = json.loads(encode_state(make_state(tags={"v1": FIRST})))
    return content


def decode_content(content: object) -> State:
    return decode_state(json.dumps(content).encode())


def test_content() -> None:
    """The file has the members of the specification, and the documented additions."""
    assert make_content() == {
        "id": str(FIRST),
        "generation": 7,
        "snapshots": [
            {
                "snapshot-id": str(FIRST),
                "timestamp-ms": 1767323045678,
                "structure-file": f"{FIRST}.parquet",
                "properties": {
                    "message": "first",
                    "metadata": {},
                    "timestamp-us": 1767323045678901,
                },
            },
            {
                "snapshot-id": str(SECOND),
                "parent-snapshot-id": str(FIRST),
                "timestamp-ms": 1767323045678,
                "structure-file": f"{SECOND}.parquet",
                "properties": {
                    "message": "second",
                    "metadata": {},
                    "timestamp-us": 1767323045678902,
                },
            },
        ],
        "refs": {
            "main": {"name": "main", "snapshot-id": str(SECOND), "type": "branch"},
            "v1": {"name": "v1", "snapshot-id": str(FIRST), "type": "tag"},
        },
        "deleted-tags": ["gone"],
        "recent-changes": ["a change", "the change before"],
    }


NAMES = st.text("abc.", min_size=1, max_size=3) | st.sampled_from(
    ["x", "branch.x", "tag.x", "branch.branch.x", "tag.branch.x", "branch.tag.x", "größe"]
)


@settings(max_examples=examples(100, thorough=2000))
@given(
    st.dictionaries(NAMES, st.sampled_from([FIRST, SECOND]), max_size=6),
    st.dictionaries(NAMES, st.sampled_from([FIRST, SECOND]), max_size=6),
    st.dictionaries(TEXTS, JSON, max_size=3),
    st.none() | st.just("s3://bucket/data"),
    st.integers(0, 2**53 - 1),
)
def test_round_trip(
    branches: dict[str, SnapshotId],
    tags: dict[str, SnapshotId],
    metadata: dict[str, Any],
    store_root: str | None,
    counter: int,
) -> None:
    """Names of all kinds, also of a branch and a tag at once, and metadata are read back."""
    found = make_state(branches={"main": FIRST} | branches, tags=tags, metadata=metadata)
    state = State(found.id, counter, store_root, found.info, found.recent_changes)
    data = encode_state(state)
    assert decode_state(data) == state
    assert encode_state(decode_state(data)) == data
    entries = json.loads(data)["refs"]
    assert len(entries) == len(state.info.branches) + len(tags)
    for key, entry in entries.items():
        assert key in (entry["name"], f"{entry['type']}.{entry['name']}")


def test_optional_members() -> None:
    """A file of the specification alone is read, and properties of others count as metadata."""
    content = make_content()
    del content["deleted-tags"], content["recent-changes"]
    content["store_root"] = ""
    content["more"] = [1]
    first, second = content["snapshots"]
    first["properties"] = None
    first["parent-snapshot-id"] = None
    second["properties"] = {"owner": "me", "metadata": {"x": 1}}
    state = decode_content(content)
    assert state.store_root is None
    assert state.recent_changes == ()
    infos = state.info.snapshots
    assert [info.message for info in infos] == ["", ""]
    assert [info.flushed_at.microsecond for info in infos] == [678000, 678000]
    assert infos[0].parent_id is None
    assert infos[1].metadata == {"owner": "me", "x": 1}


def test_only_recent_changes_are_kept() -> None:
    """The list of changes does not grow without bound; the newest are kept."""
    found = make_state()
    ids = tuple(map(str, range(100)))
    data = encode_state(State(found.id, 7, None, found.info, ids))
    assert decode_state(data).recent_changes == ids[:MAX_RECENT_CHANGES]


def edit(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets a member."""

    def apply(content: dict[str, Any]) -> None:
        target: Any = content
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = value

    return apply


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    """Return a function that removes a member."""

    def apply(content: dict[str, Any]) -> None:
        target: Any = content
        for part in path[:-1]:
            target = target[part]
        del target[path[-1]]

    return apply


def nest(depth: int) -> object:
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


LOWER = str(SECOND).lower()
SNAPSHOT = ("snapshots", 1)
REF = ("refs", "main")


@pytest.mark.parametrize(
    "damage, problem",
    [
        *((drop(name), f"no member '{name}'") for name in ("id", "generation", "snapshots")),
        (drop("refs"), "no branch main"),
        (drop("refs", "main"), "no branch main"),
        (edit("refs", value=None), "'refs' is None, expected an object"),
        (edit("id", value=5), "'id' is 5, expected a string"),
        (edit("id", value="x"), "'x' is not a SnapshotId"),
        (edit("id", value=str(SnapshotId(bytes(16)))), "an id of 12 bytes"),
        *(
            (edit("generation", value=value), "'generation' is")
            for value in (-1, 2**53, 10**400, True, 1.0, "1", None, [1])
        ),
        (edit("store_root", value=1), "expected a string or null"),
        (edit("snapshots", value={}), "expected an array"),
        (edit("snapshots", value=[]), "points at"),
        (edit("snapshots", 0, value=nest(50)), "is an array, expected an object"),
        (drop(*SNAPSHOT, "snapshot-id"), "no member 'snapshot-id'"),
        (drop(*SNAPSHOT, "timestamp-ms"), "no member 'timestamp-ms'"),
        (drop(*SNAPSHOT, "structure-file"), "no member 'structure-file'"),
        (edit(*SNAPSHOT, "snapshot-id", value=str(FIRST)), "structure-file is"),
        (edit(*SNAPSHOT, "snapshot-id", value=LOWER), "in upper case"),
        (edit(*SNAPSHOT, "structure-file", value="../x.parquet"), "expected '.*parquet'"),
        (edit(*SNAPSHOT, "parent-snapshot-id", value=7), "expected a string"),
        (edit(*SNAPSHOT, "timestamp-ms", value=10**30), "not between"),
        (edit(*SNAPSHOT, "timestamp-ms", value=0), "but timestamp-ms is 0"),
        (edit(*SNAPSHOT, "timestamp-ms", value=-1), "not between"),
        (edit(*SNAPSHOT, value={**make_content()["snapshots"][0]}), "listed twice"),
        (edit(*SNAPSHOT, "properties", value=[]), "expected an object or null"),
        (edit(*SNAPSHOT, "properties", "message", value=1), "expected a string"),
        (edit(*SNAPSHOT, "properties", "metadata", value=1), "expected an object"),
        (edit(*SNAPSHOT, "properties", "timestamp-us", value=1.5), "expected an integer"),
        (edit(*SNAPSHOT, "properties", "deep", value=nest(200)), "100 levels deep"),
        (
            edit(*SNAPSHOT, "properties", value={"timestamp-us": 2**62}),
            f"but timestamp-ms is {make_content()['snapshots'][1]['timestamp-ms']}",
        ),
        (edit(*REF, value="x"), "expected an object"),
        (drop(*REF, "name"), "no member 'name'"),
        (drop(*REF, "type"), "no member 'type'"),
        (drop(*REF, "snapshot-id"), "no member 'snapshot-id'"),
        (edit(*REF, "type", value="note"), "neither 'branch' nor 'tag'"),
        (edit(*REF, "name", value="other"), "does not match its key"),
        (edit("refs", "", value={"name": "", "type": "tag", "snapshot-id": str(FIRST)}), "its key"),
        (edit(*REF, "snapshot-id", value=str(SnapshotId(bytes(12)))), "not in snapshots"),
        (
            edit("refs", "tag.v1", value={"name": "v1", "type": "tag", "snapshot-id": str(FIRST)}),
            "listed twice",
        ),
        (edit("deleted-tags", value=["v1"]), "also one of deleted-tags"),
        (edit("deleted-tags", value=["a", "a"]), "distinct strings"),
        (edit("deleted-tags", value=[1]), "distinct strings"),
        (edit("recent-changes", value=[[1]]), "distinct strings"),
    ],
)
def test_wrong_content(damage: Callable[[dict[str, Any]], None], problem: str) -> None:
    """Each wrong member is refused with the file and the reason."""
    content = make_content()
    damage(content)
    with pytest.raises(FormatError, match=problem) as caught:
        decode_content(content)
    assert caught.value.file == "state.json"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"id":' * 100_000,
        b"9" * 100_000,
        b'{"id": 1, "id": 2}',
        b'{"id": NaN}',
        b'{"id": 1e999}',
        b'{"id": -Infinity}',
        b'{"id": "\\ud800"}',
        b'{"\\ud800": 1}',
    ],
    ids=lambda data: repr(data[:20]),
)
def test_not_json(data: bytes) -> None:
    """What is no JSON, or has no meaning in it, is refused without exhausting the stack."""
    with pytest.raises(FormatError, match=r"^state\.json: "):
        decode_state(data)


def test_escaped_pairs_are_characters() -> None:
    """Two escapes that make one character are accepted; a lone one is refused."""
    data = encode_state(make_state(metadata={"a": "🧊"}))
    escaped = json.dumps(json.loads(data)).encode()
    assert b"\\ud83e\\uddca" in escaped
    assert decode_state(escaped) == decode_state(data)
    with pytest.raises(FormatError, match="surrogates not allowed"):
        decode_state(escaped.replace(b"\\uddca", b""))


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file above the limit is neither read nor written."""
    data = encode_state(make_state())
    monkeypatch.setattr(state_module, "MAX_STATE_BYTES", len(data) - 1)
    with pytest.raises(FormatError, match="exceed the limit"):
        decode_state(data)
    with pytest.raises(FormatError, match=r"expire old snapshots.*icefloe convert"):
        encode_state(make_state())


@pytest.mark.parametrize(
    "metadata, problem",
    [
        ({"a": float("nan")}, "JSON compliant"),
        ({"a": object()}, "not JSON serializable"),
        ({"a": "\ud800"}, "surrogates"),
        ({"a": nest(200)}, "levels deep"),
    ],
)
def test_unwritable_metadata(metadata: dict[str, Any], problem: str) -> None:
    """Metadata that could not be read back is refused."""
    with pytest.raises(InvalidInputError, match=problem):
        encode_state(make_state(metadata=metadata))


def test_the_counter_ends() -> None:
    """A counter that other JSON readers would round is refused, and nothing wraps around."""
    found = make_state()
    with pytest.raises(FormatError, match="cannot exceed"):
        encode_state(State(found.id, 2**53, None, found.info))


def judge(data: bytes) -> None:
    """Decode damaged bytes: either a `FormatError`, or a state that can be written and read."""
    try:
        state = decode_state(data)
    except FormatError:
        return
    try:
        written = encode_state(state)
    except IcefloeError:
        return
    assert decode_state(written) == state


@settings(max_examples=examples(300, thorough=20_000))
@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    """Replaced, removed and inserted bytes give a state or a `FormatError`."""
    content = bytearray(encode_state(make_state(tags={"v1": FIRST}, metadata={"a": [1, "x"]})))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        stop = min(len(content), start + data.draw(st.integers(0, 20)))
        content[start:stop] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"null", b"[]", b"{}", b"1e400", b'"\\ud800"'])
        )
    judge(bytes(content))


@settings(max_examples=examples(300, thorough=20_000))
@given(st.data())
def test_damaged_values(data: st.DataObject) -> None:
    """Any JSON in the place of any value gives a state or a `FormatError`."""
    text = encode_state(make_state(tags={"v1": FIRST})).decode()
    values = list(re.finditer(r'(?<=[:\[,])("[^"]*"|-?\d+|\{\}|\[\])', text))
    value = data.draw(st.sampled_from(values))
    replacement = json.dumps(data.draw(JSON | st.integers(-(2**70), 2**70)))
    judge((text[: value.start()] + replacement + text[value.end() :]).encode())


@settings(max_examples=examples(200, thorough=5000))
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_bytes(data: bytes) -> None:
    """Arbitrary bytes and arbitrary JSON raise nothing but `FormatError`."""
    judge(data)
