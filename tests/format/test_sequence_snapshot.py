"""Snapshot files and attributes files of generation sequence."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format import attributes_files
from icefloe.format.attributes_files import ATTRIBUTES_THRESHOLD_BYTES
from icefloe.model.ids import AttributesId, ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    AttributesRef,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import ManifestFileInfo, Snapshot, SnapshotInfo
from support import zarr_documents
from support.hypothesis_examples import examples
from support.json_damage import damage_json
from support.sequence_schemas import validate
from support.sequence_strategies import CODEC, snapshots

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

FILE = "s/damaged.json"
TIME = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)


def fetch_none(attributes_id: AttributesId) -> Never:
    raise AssertionError(f"{attributes_id} is not needed")


def decode(data: bytes, snapshot_id: SnapshotId, files: Mapping[AttributesId, bytes]) -> Snapshot:
    def fetch(attributes_id: AttributesId) -> tuple[str, bytes]:
        if attributes_id not in files:
            raise FormatError("there is no such file", file=FILE)
        return f"a/{attributes_id}.json", files[attributes_id]

    return CODEC.decode_snapshot(data, FILE, snapshot_id, fetch)


def make_group(number: int, path: str, attributes: dict[str, Any]) -> NodeSnapshot:
    data = CODEC.normalize_document(zarr_documents.group(attributes=attributes), "zarr.json")
    return NodeSnapshot(NodeId.from_number(number), Path(path), data, GroupNodeData())


def make_array(*refs: ManifestRef, shape: tuple[int, ...] = (4, 4)) -> NodeSnapshot:
    data = CODEC.normalize_document(zarr_documents.array(shape), "zarr.json")
    dimensions = tuple(DimensionShape.regular(length, 1) for length in shape)
    node_data = ArrayNodeData(dimensions, None, refs)
    return NodeSnapshot(NodeId.from_number(9), Path("/array"), data, node_data)


def make_snapshot(*nodes: NodeSnapshot, **changes: Any) -> Snapshot:
    number = max([node.id.number + 1 for node in nodes], default=0)
    snapshot_id = SnapshotId(bytes(range(16)))
    snapshot = Snapshot(snapshot_id, None, TIME, "message", {}, nodes, (), next_node_number=number)
    return replace(snapshot, **changes)


@given(snapshots())
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_snapshots_come_back(snapshot: Snapshot) -> None:
    """Nodes, documents, extents, ancestors and metadata are read as written, by the schema."""
    placed, files = CODEC.place_attributes(snapshot)
    data = CODEC.encode_snapshot(placed)
    validate(data, "snapshot")
    again = decode(data, snapshot.id, files)
    assert again == snapshot
    assert [node.attributes_ref for node in again.nodes] == [
        node.attributes_ref for node in placed.nodes
    ]


@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=examples(60, thorough=300), deadline=None)
def test_damaged_files(snapshot: Snapshot, source: random.Random) -> None:
    """A damaged file is refused with its name, or is read as something that can be written."""
    placed, files = CODEC.place_attributes(snapshot)
    data = CODEC.encode_snapshot(placed)
    for _ in range(12):
        try:
            again = decode(damage_json(data, source), snapshot.id, files)
        except FormatError as error:
            if not str(error).startswith((FILE, "a/")):
                raise
            continue
        if again.parent_id is None or again.recent_ancestors:
            second = CODEC.place_attributes(again)
            data_again = CODEC.encode_snapshot(second[0])
            assert decode(data_again, snapshot.id, {**files, **second[1]}).id == snapshot.id


@given(st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    """Bytes without any structure are refused, in both kinds of files."""
    with pytest.raises(FormatError, match=FILE):
        decode(data, SnapshotId(bytes(16)), {})
    with pytest.raises(FormatError, match=FILE):
        CODEC.decode_attributes(data, FILE, AttributesId(bytes(16)))


def test_written_form() -> None:
    """A snapshot as the format document shows it, with times in UTC and microseconds."""
    manifest_id = ManifestId(bytes(15) + b"\1")
    extents = ManifestExtents((ChunkIndexRange(0, 2), ChunkIndexRange(1, 4)))
    parent = SnapshotInfo(SnapshotId(bytes(16)), None, TIME, "first", {"a": 1})
    snapshot = make_snapshot(
        make_array(ManifestRef(manifest_id, extents)),
        manifest_files=(ManifestFileInfo(manifest_id, 100, 6),),
        metadata={"key": [1.5]},
        parent_id=parent.id,
        recent_ancestors=(parent,),
        num_ancestors=1,
    )
    content = json.loads(CODEC.encode_snapshot(snapshot))
    assert content == {
        "metadata": {
            "id": list(range(16)),
            "message": "message",
            "written_at": "2024-05-06T07:08:09.123456Z",
        },
        "started_at": "2024-05-06T07:08:09.123456Z",
        "properties": {
            "key": [1.5],
            "__icefloe": {
                "next_node_number": 10,
                "manifests": [["00000000000000000000000004", 100, 6]],
            },
        },
        "short_term_parents": 1,
        "short_term_history": [
            {
                "id": [0] * 16,
                "message": "first",
                "written_at": "2024-05-06T07:08:09.123456Z",
                "properties": {"a": 1},
            }
        ],
        "total_parents": 1,
        "nodes": {
            "/array": {
                "id": 9,
                "path": "/array",
                "node_data": {
                    "Array": [
                        {
                            "shape": [4, 4],
                            "data_type": "uint8",
                            "chunk_shape": [1, 1],
                            "chunk_key_encoding": "Slash",
                            "fill_value": {"UInt8": 0},
                            "codecs": [{"name": "bytes"}],
                        },
                        [
                            {
                                "object_id": [0] * 15 + [1],
                                "flags": [],
                                "extents": [[0, 1], [1, 3]],
                            }
                        ],
                    ]
                },
            }
        },
    }


@pytest.mark.parametrize(
    "shape, ranges, extents",
    [
        ((), (), [[], []]),
        ((4,), (), []),
        ((4,), (ChunkIndexRange(2, 3),), [[2], [2]]),
        ((4, 4), (ChunkIndexRange(2, 2), ChunkIndexRange(0, 4)), [[1, 1], [0, 0]]),
    ],
)
def test_extents(
    shape: tuple[int, ...], ranges: tuple[ChunkIndexRange, ...], extents: list[list[int]]
) -> None:
    """Extents are the first and the last chunk; without corners they contain everything."""
    manifest_id = ManifestId(bytes(16))
    node = make_array(ManifestRef(manifest_id, ManifestExtents(ranges)), shape=shape)
    data = CODEC.encode_snapshot(make_snapshot(node))
    (written,) = json.loads(data)["nodes"]["/array"]["node_data"]["Array"][1]
    assert written["extents"] == extents
    node_data = decode(data, make_snapshot().id, {}).nodes[0].node_data
    assert isinstance(node_data, ArrayNodeData)
    for chunk in ((), (0,), (2,), (3,), (2, 0), (1, 0)):
        if len(chunk) == len(shape):
            expected = ManifestExtents(ranges).contains(chunk)
            assert node_data.manifests[0].extents.contains(chunk) == expected


def test_files_of_other_writers() -> None:
    """Sizes, the next node number and the parent of the last ancestor may be missing."""
    manifest_id = ManifestId(bytes(16))
    node = make_array(ManifestRef(manifest_id, ManifestExtents(())))
    parent = SnapshotInfo(SnapshotId(bytes(16)), SnapshotId(bytes([1] * 16)), TIME, "parent")
    snapshot = make_snapshot(node, parent_id=parent.id, recent_ancestors=(parent,), num_ancestors=7)
    content = json.loads(CODEC.encode_snapshot(snapshot))
    del content["properties"]["__icefloe"]
    del content["short_term_history"][0]["parent_id"]
    content["metadata"]["written_at"] = "2024-05-06T09:08:09.123456789+02:00"
    content["nodes"]["/array"]["user_attributes"] = None
    content["nodes"]["/array"]["node_data"]["Array"][0]["dimension_names"] = None
    content["nodes"]["/array"]["node_data"]["Array"][0]["storage_transformers"] = None
    again = decode(json.dumps(content, indent=2).encode(), snapshot.id, {})
    assert again.manifest_files == (ManifestFileInfo(manifest_id, 0, 0),)
    assert again.next_node_number == 10
    assert again.flushed_at == TIME
    assert again.nodes == snapshot.nodes
    # The parent is known, but not the parent of the parent.
    assert (again.parent_id, again.recent_ancestors) == (parent.id, ())


def test_the_history_is_short() -> None:
    """At most 50 ancestors and 64 KiB, but always the parent; the chain goes on at its end."""
    ids = [SnapshotId(number.to_bytes(16)) for number in range(1, 80)]
    chain = tuple(
        SnapshotInfo(ids[place], ids[place + 1], TIME, "x" * 10) for place in range(len(ids) - 1)
    )
    for message, expected in (("short", 50), ("m" * 6_000, 10), ("m" * 100_000, 1)):
        ancestors = tuple(replace(info, message=message) for info in chain)
        snapshot = make_snapshot(
            parent_id=ids[0], recent_ancestors=ancestors, num_ancestors=len(ids)
        )
        again = decode(CODEC.encode_snapshot(snapshot), snapshot.id, {})
        assert again.recent_ancestors == ancestors[:expected]
        assert again.num_ancestors == len(ids)
    broken = make_snapshot(parent_id=ids[3], recent_ancestors=chain, num_ancestors=len(ids))
    with pytest.raises(FormatError, match="newest ancestor"):
        CODEC.encode_snapshot(broken)


def test_large_attributes_share_a_file() -> None:
    """Attributes above the threshold go to one file, equal ones to one item of it."""
    large = {"text": "x" * ATTRIBUTES_THRESHOLD_BYTES}
    other = {"é": ["y"] * ATTRIBUTES_THRESHOLD_BYTES}
    snapshot = make_snapshot(
        make_group(1, "/a", large),
        make_group(2, "/b", {"small": 1}),
        make_group(3, "/c", other),
        make_group(4, "/d", large),
    )
    placed, files = CODEC.place_attributes(snapshot)
    ((attributes_id, data),) = files.items()
    assert json.loads(data) == {"attributes": [large, other]}
    refs = [node.attributes_ref for node in placed.nodes]
    assert [ref and (ref.id, ref.row) for ref in refs] == [
        (attributes_id, 0),
        None,
        (attributes_id, 1),
        (attributes_id, 0),
    ]
    encoded = CODEC.encode_snapshot(placed)
    validate(encoded, "snapshot")
    assert b"xxxx" not in encoded
    again = decode(encoded, snapshot.id, files)
    assert again == snapshot
    # The next snapshot refers to the same file, and writes one for what is new only.
    changed = replace(again, nodes=(*again.nodes, make_group(5, "/e", {"new": "z" * 5000})))
    second, new_files = CODEC.place_attributes(changed)
    assert [node.attributes_ref for node in second.nodes[:4]] == refs
    assert [json.loads(data) for data in new_files.values()] == [
        {"attributes": [{"new": "z" * 5000}]}
    ]


def test_attributes_that_json_does_not_have() -> None:
    """NaN and infinities in attributes, which Zarr libraries write, are kept."""
    node = replace(
        make_group(1, "/", {}),
        user_data=CODEC.normalize_document(
            b'{"zarr_format":3,"node_type":"group","attributes":{"a":NaN,"b":[-Infinity,"\\ud800"]}}',
            "zarr.json",
        ),
    )
    with pytest.raises(FormatError, match="JSON does not have"):
        CODEC.encode_snapshot(make_snapshot(node))
    placed, files = CODEC.place_attributes(make_snapshot(node))
    assert len(files) == 1
    again = decode(CODEC.encode_snapshot(placed), placed.id, files)
    assert again.nodes[0].user_data == node.user_data


def test_bad_attributes_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """References that lead nowhere and files of the wrong shape are refused, in bounded memory."""
    attributes_id = AttributesId(bytes(16))
    node = replace(make_group(1, "/a", {}), attributes_ref=AttributesRef(attributes_id, 1))
    snapshot = make_snapshot(node)
    data = CODEC.encode_snapshot(snapshot)
    good = decode(data, snapshot.id, {attributes_id: b'{"attributes":[{},{"a":1}]}'})
    assert json.loads(good.nodes[0].user_data)["attributes"] == {"a": 1}
    for content in (
        b"",
        b"{}",
        b'{"attributes":[{}]}',
        b'{"attributes":[{},1]}',
        b'{"attributes":[{},"1"]}',
        b'{"attributes":[{},"{"]}',
        b'{"attributes":[{},{"a":NaN}]}',
        b'{"attributes":[{},{"a":' + b"[" * 300 + b"]" * 300 + b"}]}",
        b'{"attributes":[{},' + b"[" * 200_000,
    ):
        with pytest.raises(FormatError):
            decode(data, snapshot.id, {attributes_id: content})
    monkeypatch.setattr(attributes_files, "MAX_ATTRIBUTES_BYTES", 100)
    large = b'{"attributes":[{},{"a":"' + b"x" * 100 + b'"}]}'
    with pytest.raises(FormatError, match="more than 100 bytes"):
        decode(data, snapshot.id, {attributes_id: large})
    monkeypatch.setattr(attributes_files, "MAX_ATTRIBUTES_BYTES", 10)
    with pytest.raises(FormatError, match="limit of 10"):
        CODEC.place_attributes(snapshot)


def edit(path: list[Any], value: Any) -> bytes:
    """Encode a snapshot and replace one value in it."""
    group = make_group(3, "/group", {"a": 1})
    ref = ManifestRef(ManifestId(bytes(16)), ManifestExtents(()))
    parent = SnapshotInfo(SnapshotId(bytes(16)), None, TIME, "parent")
    snapshot = make_snapshot(
        make_array(ref), group, parent_id=parent.id, recent_ancestors=(parent,), num_ancestors=1
    )
    content = json.loads(CODEC.encode_snapshot(snapshot))
    owner = content
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    return json.dumps(content).encode()


ARRAY = ["nodes", "/array", "node_data", "Array", 0]
REF = ["nodes", "/array", "node_data", "Array", 1, 0]


@pytest.mark.parametrize(
    "path, value, reason",
    [
        (["metadata", "id"], [0] * 15, "must have 16 bytes"),
        (["metadata", "id"], [0] * 16, "renamed or swapped"),
        (["metadata", "id"], [True] * 16, "integers from 0 to 255"),
        (["metadata", "message"], None, "must be a string"),
        (["metadata", "message"], "\ud800", "lone surrogate"),
        (["metadata", "written_at"], "2024-05-06", "RFC 3339"),
        (["metadata", "written_at"], "2024-13-06T07:08:09Z", "not a time"),
        (["metadata", "written_at"], "1960-01-06T07:08:09Z", "not a time"),
        (["metadata", "written_at"], "0001-01-01T00:00:00+10:00", "not a time"),
        (["started_at"], 5, "must be a string"),
        (["properties"], [], "must be an object"),
        (["properties", "__icefloe"], 1, "must be an object"),
        (["properties", "__icefloe", "next_node_number"], -1, "must be an integer"),
        (["properties", "__icefloe", "manifests"], [["x", 1, 1]], "characters of Crockford"),
        (["properties", "__icefloe", "manifests"], [["0" * 20, 1, 1]], "must have 16 bytes"),
        (["properties", "__icefloe", "manifests"], [["0" * 26, 1]], "expected 3"),
        (["properties", "__icefloe", "manifests"], [["0" * 26, 1, 1]] * 2, "twice"),
        (["short_term_parents"], 2, "short_term_history has 1"),
        (["total_parents"], 0, "short_term_history has 1"),
        (["total_parents"], 2**32, "must be an integer"),
        (["short_term_history"], [], "short_term_history has 0"),
        (["nodes"], [], "must be an object"),
        (["nodes", "/group", "path"], "/other", "has the path"),
        (["nodes", "group"], {"path": "group", "id": 1, "node_data": "Group"}, "not a valid path"),
        (["nodes", "/a/"], {"path": "/a/", "id": 1, "node_data": "Group"}, "not a valid path"),
        (["nodes", "/group", "id"], 9, "two nodes with the id 9"),
        (["nodes", "/group", "id"], 2**32, "must be an integer"),
        (["nodes", "/group", "node_data"], "Other", "must be an object"),
        (["nodes", "/group", "node_data"], {"Array": [{}]}, "two items"),
        (["nodes", "/group", "user_attributes"], {"Inline": 1}, "must be an object"),
        (["nodes", "/group", "user_attributes"], {"Other": {}}, "neither Inline"),
        (["nodes", "/group", "user_attributes"], {"Inline": {}, "Ref": {}}, "one member"),
        ([*ARRAY, "shape"], [4], "does not fit"),
        ([*ARRAY, "shape"], [2**64, 4], "integers from 0"),
        ([*ARRAY, "shape"], [2**63, 4], "chunks along a dimension"),
        ([*ARRAY, "chunk_shape"], [0, 1], "does not fit"),
        ([*ARRAY, "data_type"], "float8", "data type"),
        ([*ARRAY, "data_type"], {"rawbits": 7}, "data type"),
        ([*ARRAY, "data_type"], {"rawbits": 2**40}, "must be an integer"),
        ([*ARRAY, "data_type"], "float32", "tag"),
        ([*ARRAY, "fill_value"], {"UInt8": 256}, "does not fit"),
        ([*ARRAY, "fill_value"], {"UInt8": 1.0}, "must be a number"),
        ([*ARRAY, "fill_value"], {"RawBits": [1, 2]}, "2 bytes"),
        ([*ARRAY, "fill_value"], {}, "one member"),
        ([*ARRAY, "chunk_key_encoding"], "Bar", "chunk_key_encoding"),
        ([*ARRAY, "chunk_key_encoding"], ["Slash"], "chunk_key_encoding"),
        ([*ARRAY, "codecs"], [{}], "no member 'name'"),
        ([*ARRAY, "codecs"], [{"name": "x", "configuration": 1}], "must be an object"),
        ([*ARRAY, "dimension_names"], ["x"], "does not fit"),
        ([*ARRAY, "dimension_names"], [1, 2], "must be a string"),
        ([*REF, "flags"], [1], "unknown flags"),
        ([*REF, "object_id"], [0] * 12, "must have 16 bytes"),
        ([*REF, "extents"], [[0, 0]], "two corners"),
        ([*REF, "extents"], [[0], [1]], "two corners"),
        ([*REF, "extents"], [[2, 0], [0, 0]], "end before they start"),
        ([*REF, "extents"], [[0, 0], [2**32, 0]], "integers from 0"),
    ],
)
def test_bad_values(path: list[Any], value: Any, reason: str) -> None:
    """A snapshot with one wrong value is refused with its name and the reason."""
    with pytest.raises(FormatError, match=reason) as caught:
        decode(edit(path, value), make_snapshot().id, {})
    assert str(caught.value).startswith(FILE)


def test_bad_json() -> None:
    """Duplicate members, deep nesting, huge numbers and invalid UTF-8 are refused."""
    data = edit(["total_parents"], 1)
    for damaged in (
        data.replace(b'"/group": {', b'"/array": {"id": 1}, "/array": {'),
        data.replace(b'"message"', b'"\xff"', 1),
        data.replace(b'"total_parents": 1', b'"total_parents": ' + b"1" * 5000),
        data.replace(b'"total_parents": 1', b'"total_parents": NaN'),
        data.replace(b'{"a": 1}', b'{"a": 1e999}'),
        data.replace(b'{"a": 1}', b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        data.replace(b'{"a": 1}', b'{"a": ' + b"[" * 250 + b"]" * 250 + b"}"),
        b"[" * 100_000,
        data.decode().encode("utf-16"),
    ):
        assert damaged != data
        with pytest.raises(FormatError, match=FILE):
            decode(damaged, make_snapshot().id, {})


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": float("nan")},
        {"a": [float("inf")]},
        {"a": b"bytes"},
        {"a": {1: 2}},
        {"a": "\ud800"},
        {"a": {"\ud800": 1}},
        {"\ud800": 1},
        {1: 2},
        {"__icefloe": {}},
        {"a": 2**64},
        {"a": {1, 2}},
        [],
    ],
)
def test_metadata_that_cannot_be_stored(metadata: Any) -> None:
    """What JSON cannot store is refused, and so is the reserved name."""
    with pytest.raises(InvalidInputError) as caught:
        CODEC.encode_metadata(metadata)
    assert caught.value.kind is ErrorKind.BAD_METADATA


def test_metadata_is_copied() -> None:
    """Tuples are lists, deep nesting is refused, and later changes of the value have no effect."""
    value = {"b": (1, [2.5, None]), "a": {"x": True}}
    encoded = CODEC.encode_metadata(value)
    value["a"]["x"] = False  # type: ignore[index]
    assert encoded == {"a": {"x": True}, "b": [1, [2.5, None]]}
    nested: Any = 1
    for _ in range(70):
        nested = [nested]
    with pytest.raises(InvalidInputError, match="64 levels"):
        CODEC.encode_metadata({"a": nested})


def test_what_cannot_be_written() -> None:
    """Nodes without a number, duplicates and short ids are refused before anything is written."""
    node = make_group(1, "/a", {})
    for snapshot in (
        make_snapshot(replace(node, id=NodeId.make_provisional()), next_node_number=0),
        make_snapshot(node, node),
        make_snapshot(node, replace(node, path=Path("/b"))),
    ):
        with pytest.raises(FormatError):
            CODEC.encode_snapshot(snapshot)
    with pytest.raises(InvalidInputError):
        CODEC.encode_snapshot(make_snapshot(id=SnapshotId(bytes(12))))
    with pytest.raises(InvalidInputError):
        CODEC.encode_snapshot(make_snapshot(message="\ud800"))
