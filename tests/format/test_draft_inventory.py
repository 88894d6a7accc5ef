"""Inventories of generation draft: references come back, and damaged files are refused."""

from __future__ import annotations

import json
import threading
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.draft import parquet, schemas
from icefloe.format.draft.coord import encode_coord
from icefloe.format.draft.inventory import ROWS_PER_GROUP, _Encoder
from icefloe.model.chunk_payload import ChunkRef, InlineChunk, VirtualChunkRef
from icefloe.model.ids import ChunkId, ManifestId, NodeId
from icefloe.model.manifest import ArrayManifest, ChunkPayloads, Manifest, allocate_columns
from icefloe.model.strings import EMPTY, Strings
from support.arrow_schema_text import describe_schema, parse_schema
from support.draft_values import CODEC, FILE, inventories, judge_inventory
from support.format_damage import mutate
from support.hypothesis_examples import examples

if TYPE_CHECKING:
    import random

SCHEMAS = Path(__file__).parent / "schemas"
ID = ManifestId(bytes(12))
NAME = str(ChunkId(bytes(range(12))))


def make_manifest(*payloads: Any, node: int = 1) -> Manifest:
    coords = np.arange(len(payloads), dtype=np.uint32).reshape(-1, 1)
    array = ArrayManifest(coords, ChunkPayloads.of(payloads))
    return Manifest.of(ID, {NodeId.from_number(node): array})


def make_native(count: int) -> Manifest:
    columns = allocate_columns(count)
    columns["kind"][:] = 1
    columns["chunk_id"][:] = np.random.default_rng(0).integers(0, 256, (count, 12), np.uint8)
    columns["length"][:] = np.arange(count)
    payloads = ChunkPayloads(**columns, locations=EMPTY, etags=EMPTY, inline=np.zeros(0, np.uint8))
    numbers = np.arange(count)
    coords = np.stack([numbers // 1000, numbers % 1000], 1).astype(np.uint32)
    return Manifest.of_array(ID, NodeId.from_number(7), ArrayManifest(coords, payloads))


def make_rows(**changes: Any) -> dict[str, Any]:
    """Return the columns of a valid inventory of two native chunks, some of them changed."""
    rows = {
        "id": [0, 1],
        "array_id": [3, 3],
        "coord": [encode_coord((0, 1)), encode_coord((0, 300))],
        "inline_data": [None, None],
        "chunk_file": [NAME, NAME],
        "offset": [0, 10],
        "length": [10, 20],
        "etag": [None, None],
        "last_modified": [None, None],
    }
    return rows | changes


def write_rows(schema: pa.Schema = schemas.INVENTORY, /, *, rows: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows, schema=schema), sink, **options)
    return bytes(sink.getvalue())


def decode(data: bytes) -> Manifest:
    return CODEC.decode_manifest(data, FILE, ID)


@given(inventories(), st.booleans())
@settings(max_examples=examples(100, thorough=500), deadline=None)
def test_inventories_come_back(manifest: Manifest, is_compressed: bool) -> None:  # noqa: FBT001
    """Arrays of any rank with payloads of all kinds: nothing is lost."""
    data = _Encoder(manifest, is_compressed=is_compressed).encode()
    again = CODEC.decode_manifest(data, FILE, manifest.id)
    assert again == manifest
    assert list(again.payloads) == list(manifest.payloads)


def test_large_inventories_come_back() -> None:
    """Several row groups, with and without dictionaries, and nulls in between."""
    count = 2 * ROWS_PER_GROUP + 5
    native = make_native(count)
    assert decode(CODEC.encode_manifest(native, None)) == native
    coords = native.indices.get_coords(0)
    codes = np.arange(count, dtype=np.int32)
    zeros = np.zeros(count, np.uint64)
    for table_size in (count, 300):
        table = Strings.of([f"s3://bucket/{number}.nc" for number in range(table_size)])
        virtual = ChunkPayloads.make_virtual(codes % np.int32(table_size), table, zeros, zeros)
        manifest = Manifest.of_array(ID, NodeId.from_number(1), ArrayManifest(coords, virtual))
        assert decode(CODEC.encode_manifest(manifest, None)) == manifest
    mixed = Manifest.of(
        ID,
        {
            NodeId.from_number(1): ArrayManifest(coords, virtual),
            NodeId.from_number(2): ArrayManifest(coords, native.payloads),
            NodeId.from_number(9): ArrayManifest(
                coords[:3],
                ChunkPayloads.of(
                    [InlineChunk(b"abc"), InlineChunk(b""), ChunkRef(ChunkId(bytes(12)), 1, 2)]
                ),
            ),
        },
    )
    assert decode(CODEC.encode_manifest(mixed, None)) == mixed


def test_schema_is_that_of_the_document_with_the_listed_changes() -> None:
    """Columns, types and nullability are those of the document, except for listed changes."""
    expected, _ = parse_schema((SCHEMAS / "draft-inventory.txt").read_text())
    for change in json.loads((SCHEMAS / "draft-changes.json").read_text())["inventory"]:
        before = expected.get(change["field"])
        assert (before[0] if before else None) == change["from"]
        expected[change["field"]] = (change["to"], before[1] if before else True)
    data = CODEC.encode_manifest(make_manifest(ChunkRef(ChunkId(bytes(12)), 0, 1)), None)
    actual, _ = describe_schema(pq.read_schema(pa.BufferReader(data)))
    assert actual == expected
    assert list(actual) == list(expected)


def test_every_kind_of_file_has_the_schema() -> None:
    """Dictionaries, which are an encoding, do not show in the schema."""
    virtual = [VirtualChunkRef("s3://bucket/a", number, 1) for number in range(8)]
    data = CODEC.encode_manifest(make_manifest(*virtual), None)
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert "RLE_DICTIONARY" in metadata.row_group(0).column(4).encodings
    assert pq.read_schema(pa.BufferReader(data)).equals(schemas.INVENTORY)


def test_engines_skip_row_groups() -> None:
    """Row groups are sorted by array and coordinate, and have their least and greatest values."""
    data = CODEC.encode_manifest(make_native(ROWS_PER_GROUP + 10), None)
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert metadata.num_row_groups == 2
    bounds = [metadata.row_group(group).column(2).statistics for group in range(2)]
    assert bounds[0].max < bounds[1].min
    assert bounds[1].min == encode_coord((ROWS_PER_GROUP // 1000, ROWS_PER_GROUP % 1000))
    sorting = metadata.row_group(0).sorting_columns
    assert [column.column_index for column in sorting] == [1, 2]


def test_foreign_writers() -> None:
    """Files that other Parquet writers make, with dictionaries everywhere, are read as well."""
    rows = make_rows(array_id=[3, 4], coord=[encode_coord((5, 6))] * 2)
    for options in ({}, {"compression": "gzip"}, {"data_page_version": "2.0"}):
        manifest = decode(write_rows(rows=rows, **options))
        assert [str(node_id.number) for node_id in manifest.indices.iter_node_ids()] == ["3", "4"]
        assert manifest.indices.coords.tolist() == [5, 6, 5, 6]
        assert manifest.payloads[1] == ChunkRef(ChunkId.parse(NAME), 10, 20)


WRONG_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "ids": ({"id": [0, 2]}, "row numbers"),
    "order of arrays": ({"array_id": [4, 3]}, "not sorted by array_id"),
    "order of chunks": ({"coord": [encode_coord((1, 1)), encode_coord((0, 9))]}, "sorted"),
    "duplicates": ({"coord": [encode_coord((0, 1))] * 2}, "without duplicates"),
    "ranks": ({"coord": [encode_coord((0, 1)), encode_coord((2,))]}, "differ in their number"),
    "truncated coord": ({"coord": [encode_coord((0, 1)), b"\x01\xfd"]}, "coord of row 1"),
    "long coord": ({"coord": [encode_coord((0, 1)), b"\x01\xfc\x05"]}, "more bytes than it needs"),
    "no payload": ({"chunk_file": [NAME, None]}, "either inline_data or a chunk_file"),
    "two payloads": ({"inline_data": [None, b"x"]}, "either inline_data or a chunk_file"),
    "no offset": ({"offset": [0, None]}, "have no offset"),
    "name": ({"chunk_file": [NAME, NAME[:-1]]}, "neither the name of a chunk nor a URL"),
    "digits": ({"chunk_file": [NAME, "U" * 20]}, "neither the name of a chunk nor a URL"),
    "lower case": ({"chunk_file": [NAME, NAME.lower()]}, "neither the name of a chunk"),
    "unused bits": ({"chunk_file": [NAME, "0" * 19 + "1"]}, "neither the name of a chunk"),
    "path": ({"chunk_file": [NAME, "../../etc/passwd"]}, "neither the name of a chunk"),
    "etag": ({"etag": [None, "x"]}, "not virtual has an etag"),
    "time": ({"last_modified": [None, 3]}, "not virtual has a time"),
    "inline length": (
        {"inline_data": [None, b"abc"], "chunk_file": [NAME, None], "offset": [0, None]},
        "length that its row says",
    ),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_wrong_rows(name: str, use_dictionary: bool) -> None:  # noqa: FBT001
    """Each rule on rows is checked, and the error names the file and the rule."""
    changes, message = WRONG_ROWS[name]
    with pytest.raises(FormatError, match=message) as caught:
        decode(write_rows(rows=make_rows(**changes), use_dictionary=use_dictionary))
    assert caught.value.file == FILE


def test_wrong_columns() -> None:
    """Missing, additional, reordered, renamed and mistyped columns are refused."""
    schema, rows = schemas.INVENTORY, make_rows()
    index = schema.get_field_index("length")
    others = [
        schema.remove(index),
        schema.append(pa.field("more", pa.uint8())),
        pa.schema(reversed(list(schema))),
        schema.set(index, pa.field("length", pa.uint32(), nullable=False)),
        schema.set(index, pa.field("length", pa.uint64())),
        schema.set(4, pa.field("chunk_file", pa.large_string())),
        schema.set(4, pa.field("chunk_file", pa.dictionary(pa.int32(), pa.string()))),
    ]
    for other in others:
        data = write_rows(other, rows={name: rows.get(name, [1, 2]) for name in other.names})
        with pytest.raises(FormatError, match="column") as caught:
            decode(data)
        assert caught.value.file == FILE


def test_renamed_files() -> None:
    """An inventory records its id, so that swapped files are noticed."""
    data = CODEC.encode_manifest(make_manifest(InlineChunk(b"x")), None)
    with pytest.raises(FormatError, match="renamed"):
        CODEC.decode_manifest(data, FILE, ManifestId(b"x" * 12))


@pytest.mark.parametrize("location", ["", "relative/path", NAME])
def test_locations_that_are_no_urls(location: str) -> None:
    """A location that could be taken for the name of a native chunk is not written."""
    manifest = make_manifest(VirtualChunkRef(location, 0, 1))
    with pytest.raises(FormatError, match="not a URL") as caught:
        CODEC.encode_manifest(manifest, None)
    assert caught.value.kind is ErrorKind.SERIALIZATION


def test_node_ids_without_a_number() -> None:
    """Provisional ids of nodes do not reach a file."""
    array = make_manifest(InlineChunk(b"")).get_array(NodeId.from_number(1))
    assert array is not None
    manifest = Manifest.of(ID, {NodeId.make_provisional(): array})
    with pytest.raises(FormatError, match="without a number"):
        CODEC.encode_manifest(manifest, None)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", None])
def test_small_files_that_need_much_memory(encoding: str | None) -> None:
    """Values that repeat a long prefix, and long values in a dictionary, are not expanded."""
    count, location = 50_000, "s3://" + "x" * 100_000
    coords = [encode_coord((number,)) for number in range(count)]
    rows = make_rows(
        id=range(count),
        array_id=[0] * count,
        coord=coords,
        chunk_file=[location] * count,
        **dict.fromkeys(("offset", "length"), [0] * count),
        **dict.fromkeys(("inline_data", "etag", "last_modified"), [None] * count),
    )
    table = pa.table(
        {**rows, "chunk_file": pa.DictionaryArray.from_arrays(pa.array([0] * count), [location])}
    )
    if encoding is not None:
        table = table.slice(0, 2000)
        rows = {name: rows[name][:2000] for name in rows}
        data = write_rows(rows=rows, use_dictionary=False, column_encoding={"chunk_file": encoding})
        with pytest.raises(FormatError, match="DELTA_BYTE_ARRAY"):
            decode(data)
        return
    fields = [
        field.with_type(pa.dictionary(pa.int64(), pa.string()))
        if field.name == "chunk_file"
        else field
        for field in schemas.INVENTORY
    ]
    sink = pa.BufferOutputStream()
    columns = [table.column(field.name).cast(field.type) for field in fields]
    with pq.ParquetWriter(sink, pa.schema(fields), store_schema=False) as writer:
        writer.write_table(pa.table(columns, schema=pa.schema(fields)))
    before = pa.default_memory_pool().max_memory()
    manifest = decode(bytes(sink.getvalue()))
    assert manifest.payloads.locations.tolist() == [location]
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


def test_absurd_row_counts() -> None:
    """Columns of more values than a file of that size may have are refused, unread."""
    count = 5_000_000
    table = pa.table({"id": pa.nulls(count, pa.uint32())})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = bytes(sink.getvalue())
    assert len(data) < 100_000
    tracemalloc.start()
    with pytest.raises(FormatError, match="values in memory"):
        decode(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@given(inventories(), st.randoms(use_true_random=False))
@settings(max_examples=examples(40, thorough=200), deadline=None)
def test_damaged_files(manifest: Manifest, source: random.Random) -> None:
    """Whatever happens to the bytes, compressed or not, the file is refused or read."""
    for is_compressed in (False, True):
        data = _Encoder(manifest, is_compressed=is_compressed).encode()
        assert judge_inventory(data, manifest.id)
        for _ in range(8):
            judge_inventory(mutate(data, source), manifest.id)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes(data: bytes) -> None:
    """Bytes without structure are refused, between the marks of a Parquet file as well."""
    assert not judge_inventory(data, ID)
    assert not judge_inventory(b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1", ID)


class TrackedBytes(bytes):
    """Bytes that record which thread releases them."""

    released_by: ClassVar[list[threading.Thread]] = []

    def __del__(self) -> None:
        self.released_by.append(threading.current_thread())


@pytest.mark.parametrize("is_threaded", [False, True])
def test_released_by_the_caller(*, is_threaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of pyarrow releases the bytes of a file; at exit, that aborts the process."""
    if is_threaded:
        monkeypatch.setattr(parquet, "_MIN_THREADED_SIZE", 0)
    manifest = make_manifest(ChunkRef(ChunkId(bytes(12)), 0, 5), InlineChunk(b"abc"))
    data = CODEC.encode_manifest(manifest, None)
    TrackedBytes.released_by.clear()
    for _ in range(500):
        CODEC.decode_manifest(TrackedBytes(data), FILE, ID)
    assert TrackedBytes.released_by == [threading.current_thread()] * 500


def test_large_inventory_is_read_with_threads() -> None:
    """An inventory that is large enough for threads is read like a small one."""
    manifest = make_native(100_000)
    data = CODEC.encode_manifest(manifest, None)
    assert len(data) > parquet._MIN_THREADED_SIZE
    for source in (data, memoryview(data)):
        assert CODEC.decode_manifest(source, FILE, ID) == manifest
