"""Structure and attributes files of generation draft: nodes come back, damage is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError, IcefloeError, InvalidInputError
from icefloe.format import attributes_files
from icefloe.format.attributes_files import ATTRIBUTES_THRESHOLD_BYTES
from icefloe.format.draft import schemas, structure
from icefloe.format.draft.parquet import ParquetWriter
from icefloe.format.timestamps import from_microseconds
from icefloe.model.ids import AttributesId, ManifestId, NodeId, SnapshotId
from icefloe.model.node import (
    ArrayNodeData,
    ChunkIndexRange,
    DimensionShape,
    GroupNodeData,
    ManifestExtents,
    ManifestRef,
    NodeSnapshot,
)
from icefloe.model.path import Path
from icefloe.model.snapshot import Snapshot
from support import zarr_documents
from support.arrow_schema_text import describe_schema, parse_schema
from support.draft_values import (
    CODEC,
    FILE,
    decode_written,
    documents,
    fetcher,
    judge_structure,
    snapshots,
)
from support.format_damage import mutate
from support.hypothesis_examples import examples

SCHEMAS = FilePath(__file__).parent / "schemas"
ID = SnapshotId(bytes(12))
MANIFEST_ID = ManifestId(b"manifest id.")


def make_snapshot(*nodes: NodeSnapshot) -> Snapshot:
    return Snapshot(ID, None, from_microseconds(12, ""), "", {}, nodes, (), len(nodes))


def make_group(path: str, number: int, **attributes: Any) -> NodeSnapshot:
    data = CODEC.normalize_document(zarr_documents.group(attributes=attributes), "zarr.json")
    return NodeSnapshot(NodeId.from_number(number), Path(path), data, GroupNodeData())


def make_array(*refs: ManifestRef, ndim: int = 2, path: str = "/a") -> NodeSnapshot:
    data = CODEC.normalize_document(zarr_documents.array((4,) * ndim), "zarr.json")
    shape = (DimensionShape.regular(4, 1),) * ndim
    return NodeSnapshot(NodeId.from_number(0), Path(path), data, ArrayNodeData(shape, None, refs))


@given(snapshots())
@settings(max_examples=examples(60, thorough=400), deadline=None)
def test_snapshots_come_back(snapshot: Snapshot) -> None:
    """Nodes, extents, manifest files, message and metadata: nothing is lost."""
    assert decode_written(snapshot) == snapshot
    shuffled = replace(snapshot, nodes=snapshot.nodes[::-1])
    assert decode_written(shuffled) == snapshot


@given(st.none() | st.integers(0, 3), st.data())
@settings(max_examples=examples(100, thorough=500), deadline=None)
def test_documents_are_normalized(ndim: int | None, data: st.DataObject) -> None:
    """Normalized documents have the same meaning, and are normal."""
    document = data.draw(documents(ndim))
    normal = CODEC.normalize_document(document, "zarr.json")
    assert CODEC.normalize_document(normal, "zarr.json") == normal
    before, after = json.loads(document), json.loads(normal)
    for name in ("shape", "chunk_grid", "fill_value"):
        assert after.get(name) == before.get(name)
    assert after["attributes"] == (before.get("attributes") or {})
    assert after.get("dimension_names") == before.get("dimension_names")


def test_documents_of_zarr() -> None:
    """Of what zarr-python writes, only the whitespace changes."""
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store, attributes={"title": "x"})
    group.create_array(
        "a",
        shape=(10, 20),
        chunks=(5, 5),
        dtype="f4",
        fill_value=float("nan"),
        dimension_names=("x", None),
        attributes={"missing": float("nan")},
    )
    group.create_array("scalar", shape=(), dtype="c8")
    group.create_array("sharded", shape=(8,), shards=(4,), chunks=(2,), dtype="u1")
    for key, value in store._store_dict.items():
        document = json.loads(value.to_bytes())
        normal = CODEC.normalize_document(value.to_bytes(), key)
        assert normal == json.dumps(document, separators=(",", ":")).encode()


REFUSED: dict[str, dict[str, Any]] = {
    "data type": {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}},
    "storage transformers": {"storage_transformers": [{"name": "x"}]},
    "chunk grid": {"chunk_grid": {"name": "rectilinear", "configuration": {}}},
    "chunk key encoding": {
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}
    },
    "member 'extra'": {"extra": {"must_understand": False}},
    "codec": {"codecs": [{"name": "bytes", "must_understand": False}]},
    "nesting": {"attributes": {"a": json.loads("[" * 250 + "]" * 250)}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_documents_that_have_no_place(what: str) -> None:
    """What the schema has no word for is refused, with the generation that can store it."""
    with pytest.raises(
        FormatError, match=f"{what}.* needs a repository of generation v2"
    ) as caught:
        CODEC.normalize_document(zarr_documents.array(**REFUSED[what]), "a/zarr.json")
    assert caught.value.kind is ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION
    assert "--to v2" in str(caught.value)
    assert caught.value.file == "a/zarr.json"


def test_consolidated_metadata() -> None:
    """Consolidated metadata of groups is refused, unless it is null."""
    with pytest.raises(FormatError, match="consolidated metadata"):
        CODEC.normalize_document(zarr_documents.group(consolidated_metadata={}), "zarr.json")


def test_schema_is_that_of_the_document_with_the_listed_changes() -> None:
    """Fields, types, nullability and descriptions, except for listed changes."""
    expected, descriptions = parse_schema((SCHEMAS / "draft-structure.txt").read_text())
    for change in json.loads((SCHEMAS / "draft-changes.json").read_text())["structure"]:
        name, nullable = expected[change["field"]]
        assert name == change["from"]
        expected[change["field"]] = (change["to"], nullable)
    schema = pq.read_schema(pa.BufferReader(CODEC.encode_snapshot(make_snapshot(make_array()))))
    actual, actual_descriptions = describe_schema(schema)
    assert actual == expected
    assert list(actual) == list(expected)
    assert set(actual_descriptions) == set(descriptions)
    for name, text in descriptions.items():  # the end of a long one is not printed
        shown = text.rstrip("?")
        assert actual_descriptions[name].startswith(shown)
        assert len(actual_descriptions[name]) == len(text)


def test_extents() -> None:
    """The extent of a scalar is empty; one without bounds contains all chunk indices."""
    everything, box = ManifestExtents(()), ManifestExtents((ChunkIndexRange(1, 3),) * 2)
    nodes = (
        make_array(ManifestRef(MANIFEST_ID, everything), ManifestRef(MANIFEST_ID, box)),
        replace(
            make_array(ManifestRef(MANIFEST_ID, everything), ndim=0, path="/s"),
            id=NodeId.from_number(1),
        ),
    )
    snapshot = make_snapshot(*nodes)
    assert decode_written(snapshot).nodes == nodes
    table = pq.read_table(pa.BufferReader(CODEC.encode_snapshot(snapshot)))
    rows = [[item["extent"] for item in row] for row in table.column("inventories").to_pylist()]
    assert rows == [[[[0, 2**32 - 1]] * 2, [[1, 3]] * 2], [[]]]


def test_large_attributes_are_stored_once() -> None:
    """Attributes above the threshold go to one file, which later snapshots share."""
    small, large = "x" * 100, "x" * ATTRIBUTES_THRESHOLD_BYTES
    nodes = [
        make_group("/", 0, text=small),
        make_group("/a", 1, text=large),
        make_group("/b", 2, text=large, more=1),
    ]
    placed, files = CODEC.place_attributes(make_snapshot(*nodes))
    assert len(files) == 1
    refs = [node.attributes_ref for node in placed.nodes]
    assert [None if ref is None else ref.row for ref in refs] == [None, 0, 1]
    again, no_files = CODEC.place_attributes(placed)
    assert (again, no_files) == (placed, {})
    data = CODEC.encode_snapshot(placed)
    assert len(data) < 10_000
    decoded = CODEC.decode_snapshot(data, FILE, ID, fetcher(files))
    assert decoded.nodes == tuple(nodes)
    assert [node.attributes_ref for node in decoded.nodes] == refs
    (file,) = files.values()
    rows = pq.read_table(pa.BufferReader(file)).column("attrs").to_pylist()
    assert [json.loads(row) for row in rows] == [{"text": large}, {"text": large, "more": 1}]


def test_nodes_that_share_large_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes can share a row, so the size of all attributes is limited, by writer and reader."""
    node = make_group("/", 0, text="x" * ATTRIBUTES_THRESHOLD_BYTES)
    placed, files = CODEC.place_attributes(make_snapshot(node))
    other = replace(placed.nodes[0], id=NodeId.from_number(1), path=Path("/a"))
    shared = make_snapshot(*placed.nodes, other)
    data = CODEC.encode_snapshot(shared)
    assert CODEC.decode_snapshot(data, FILE, ID, fetcher(files)).nodes == shared.nodes
    limit = 2 * len(node.user_data) - 1
    monkeypatch.setattr(attributes_files, "MAX_ATTRIBUTES_BYTES", limit)
    with pytest.raises(FormatError, match=f"more than {limit} bytes") as caught:
        CODEC.decode_snapshot(data, FILE, ID, fetcher(files))
    assert caught.value.file == FILE
    with pytest.raises(FormatError, match=f"limit of {limit}"):
        CODEC.place_attributes(shared)


def test_damaged_attributes_files() -> None:
    """Errors name the attributes file, or the structure file if its reference is wrong."""
    node = make_group("/", 0, text="x" * ATTRIBUTES_THRESHOLD_BYTES)
    placed, files = CODEC.place_attributes(make_snapshot(node))
    data = CODEC.encode_snapshot(placed)
    ((attributes_id, file),) = files.items()
    source = random.Random(0)
    for _ in range(200):
        judge_structure(data, ID, {attributes_id: mutate(file, source)})
    for wrong in (write([b"[]"]), write([b"{"]), file[:-1]):
        with pytest.raises(FormatError) as caught:
            CODEC.decode_snapshot(data, FILE, ID, fetcher({attributes_id: wrong}))
        assert caught.value.file == f"a/{attributes_id}.parquet"
    with pytest.raises(FormatError, match="row 0") as caught:
        CODEC.decode_snapshot(data, FILE, ID, fetcher({attributes_id: write([])}))
    assert caught.value.file == FILE


def write(attributes: list[bytes]) -> bytes:
    writer = ParquetWriter(schemas.ATTRIBUTES, info={})
    writer.write_row_group([pa.array(attributes, pa.binary())])
    return writer.finish()


def test_files_without_our_metadata() -> None:
    """A structure file of another writer is read; what only the footer records has defaults."""
    node = make_array(ManifestRef(MANIFEST_ID, ManifestExtents(())))
    data = structure._write_rows([structure._build_row(node)], {}, is_compressed=True)
    snapshot = CODEC.decode_snapshot(data, FILE, ID, fetcher({}))
    assert snapshot.nodes == (node,)
    assert snapshot.next_node_number == 1
    assert [info.id for info in snapshot.manifest_files] == [MANIFEST_ID]


def change_row(**changes: Any) -> dict[str, Any]:
    return structure._build_row(make_array(ManifestRef(MANIFEST_ID, ManifestExtents(())))) | changes


def change_metadata(**changes: Any) -> dict[str, Any]:
    return change_row(array_metadata=change_row()["array_metadata"] | changes)


def change_inventory(**changes: Any) -> dict[str, Any]:
    return change_row(inventories=[change_row()["inventories"][0] | changes])


OTHER_GRID = {"name": "other", "configuration": {"chunk_shape": [1, 1]}}
WRONG_ROWS: dict[str, list[dict[str, Any]]] = {
    "type": [change_row(type="other")],
    "path": [change_row(path="a//b")],
    "no metadata": [change_row(array_metadata=None)],
    "group with metadata": [change_row(type="group")],
    "two paths": [change_row(), change_row(id=5)],
    "two ids": [change_row(), change_row(path="/b")],
    "order": [change_row(path="/b"), change_row(id=5)],
    "attributes": [change_row(inline_attrs=b"[1]")],
    "attributes that are no JSON": [change_row(inline_attrs=b"{")],
    "deep attributes": [change_row(inline_attrs=b'{"a":' + b"[" * 200_000)],
    "attributes file": [change_row(attrs_reference={"attrs_file": "x", "row": 0})],
    "shape": [change_metadata(shape=[4])],
    "null in shape": [change_metadata(shape=[4, None])],
    "names": [change_metadata(dimension_names=["x"])],
    "fill value": [change_metadata(fill_value=b"nothing")],
    "codecs": [change_metadata(codecs=[])],
    "codec": [change_metadata(codecs=[{"name": "x", "configuration": b"1"}])],
    "chunk grid": [change_metadata(chunk_grid=OTHER_GRID)],
    "no chunk grid": [change_metadata(chunk_grid=None)],
    "chunk keys": [change_metadata(chunk_key_encoding=None)],
    "inventory file": [change_inventory(inventory_file="../a.parquet")],
    "inventory file of another size": [change_inventory(inventory_file="0" * 26 + ".parquet")],
    "extent": [change_inventory(extent=[[0, 1]])],
    "backward extent": [change_inventory(extent=[[2, 1], [0, 1]])],
    "flags": [change_inventory(flags=1)],
    "null inventory": [change_row(inventories=[None])],
}
WRONG_INFO: dict[str, Any] = {
    "snapshot-id": "x",
    "parent-snapshot-id": 5,
    "flushed-at-us": -1,
    "message": 1,
    "metadata": [],
    "next-node-number": 0,
    "manifests": [["x", 1, 2]],
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows(name: str) -> None:
    """Each rule on nodes is checked, and the error names the file."""
    data = structure._write_rows(WRONG_ROWS[name], {}, is_compressed=True)
    with pytest.raises(FormatError) as caught:
        CODEC.decode_snapshot(data, FILE, ID, fetcher({}))
    assert caught.value.file == FILE


@pytest.mark.parametrize("name", WRONG_INFO)
def test_wrong_metadata_in_the_footer(name: str) -> None:
    """Each member of the footer's metadata is checked."""
    info = {name: WRONG_INFO[name]}
    data = structure._write_rows([change_row()], info, is_compressed=True)
    with pytest.raises(FormatError) as caught:
        CODEC.decode_snapshot(data, FILE, ID, fetcher({}))
    assert caught.value.file == FILE


@pytest.mark.parametrize(
    "metadata", [{"a": object()}, {"a": {1: 2}}, {1: 2}, {"a": 2**70}, {"a": "\ud800"}, 5]
)
def test_metadata_that_is_not_json(metadata: Any) -> None:
    """Metadata of commits is checked before anything is written."""
    with pytest.raises(InvalidInputError) as caught:
        CODEC.encode_metadata(metadata)
    assert caught.value.kind is ErrorKind.BAD_METADATA


def test_snapshots_that_cannot_be_read_back() -> None:
    """Nodes without a number, and duplicates, are refused."""
    group = make_group("/", 0)
    for nodes in ([replace(group, id=NodeId.make_provisional())], [group, group]):
        with pytest.raises(IcefloeError):
            CODEC.encode_snapshot(make_snapshot(*nodes))


@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=examples(40, thorough=200), deadline=None)
def test_damaged_files(snapshot: Snapshot, source: random.Random) -> None:
    """Whatever happens to the bytes, compressed or not, the file is refused or read."""
    placed, files = CODEC.place_attributes(snapshot)
    rows = [structure._build_row(node) for node in placed.nodes]
    for is_compressed in (False, True):
        data = structure._write_rows(
            rows, structure._build_info(snapshot), is_compressed=is_compressed
        )
        assert judge_structure(data, snapshot.id, files)
        for _ in range(8):
            judge_structure(mutate(data, source), snapshot.id, files)


def test_ids_of_files() -> None:
    """A structure file records its id, so that swapped files are noticed."""
    data = CODEC.encode_snapshot(make_snapshot(make_group("/", 0)))
    with pytest.raises(FormatError, match="renamed"):
        CODEC.decode_snapshot(data, FILE, SnapshotId(b"x" * 12), fetcher({}))
    assert AttributesId.random() != AttributesId.random()
