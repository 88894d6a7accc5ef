"""`icefloe.core` and `Repository.fetch_snapshot` suffice to read a snapshot, in all generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from icefloe import InvalidInputError, NodeNotFoundError, Repository, core
from icefloe.format.generation import GENERATIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Create a repository with native, inline, virtual and missing chunks."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=8)
    config.manifest = icefloe.ManifestConfig(
        splitting=icefloe.ManifestSplittingConfig.from_dict(
            {
                icefloe.ManifestSplitCondition.AnyArray(): {
                    icefloe.ManifestSplitDimCondition.Any(): 3
                }
            }
        )
    )
    storage = icefloe.local_filesystem_storage(tmp_path / "repo")
    repository = Repository.create(storage, config, generation=request.param)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    array = root.create_array("g/a", shape=(6, 8), chunks=(1, 4), dtype="u1", compressors=None)
    big = root.create_array("b", shape=(64,), chunks=(32,), dtype="u1", compressors=None)
    array[0] = np.arange(8)
    big[:] = np.arange(64)
    store = session.store
    store.set_virtual_ref("g/a/c/4/1", "s3://bucket/x", offset=7, length=4, checksum="tag")
    session.commit("first")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="g/a")[5] = 9
    session.commit("second")
    return repository


def test_nodes(repository: Repository) -> None:
    """A snapshot has its nodes, with typed ids and paths, and its history entry."""
    view = repository.fetch_snapshot("main")
    assert [str(node.path) for node in view.nodes] == ["/", "/b", "/g", "/g/a"]
    node = view.get_node("g/a")
    assert node is view.get_node(core.Path("/g/a"))
    assert isinstance(node.id, core.NodeId)
    assert isinstance(node.node_data, core.ArrayNodeData)
    assert [shape.num_chunks for shape in node.node_data.shape] == [6, 2]
    assert isinstance(view.get_node("/g").node_data, core.GroupNodeData)
    info = view.fetch_info()
    assert (info.id, info.message) == (view.id, "second")
    with pytest.raises(NodeNotFoundError):
        view.get_node("/nothing")
    with pytest.raises(InvalidInputError, match="is a group"):
        view.get_manifests("/g")
    with pytest.raises(InvalidInputError, match="expected a Path or str"):
        view.get_node(view.id)  # type: ignore[arg-type]


def test_a_snapshot_by_branch_tag_and_id(repository: Repository) -> None:
    """Ids are text or typed; ids of another kind are refused."""
    text = repository.lookup_branch("main")
    repository.create_tag("t", text)
    typed = core.SnapshotId.parse(text)
    views = [
        repository.fetch_snapshot("main"),
        repository.fetch_snapshot(tag="t"),
        repository.fetch_snapshot(snapshot_id=text),
        repository.fetch_snapshot(snapshot_id=typed),
    ]
    assert {view.id for view in views} == {typed}
    other = core.ManifestId(typed.raw)
    with pytest.raises(InvalidInputError, match="is not a SnapshotId"):
        repository.fetch_snapshot(snapshot_id=other)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="is not a SnapshotId"):
        repository.readonly_session(snapshot_id=other)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="exactly one of"):
        repository.fetch_snapshot()
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repository.fetch_snapshot(snapshot_id=core.SnapshotId.random(len(typed.raw)))


def test_manifests_and_extents(repository: Repository) -> None:
    """Every reference of an array is in a manifest whose extents contain it."""
    view = repository.fetch_snapshot("main")
    refs = view.get_manifests("g/a")
    assert len(refs) > 1
    node_id = view.get_node("g/a").id
    found = []
    for ref in refs:
        manifest = view.fetch_manifest(ref.id)
        assert manifest is view.fetch_manifest(str(ref.id))
        array = manifest.get_array(node_id)
        assert array is not None
        coords = [core.ChunkIndices(*row) for row in array.coords]
        assert all(ref.extents.contains(indices) for indices in coords)
        found += coords
    assert sorted(found) == [(0, 0), (0, 1), (4, 1), (5, 0), (5, 1)]
    with pytest.raises(InvalidInputError, match="is not a ManifestId"):
        view.fetch_manifest(view.id)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="expected a NodeId"):
        manifest.get_array(ref.id)  # type: ignore[arg-type]


def test_references_of_chunks(repository: Repository) -> None:
    """One reference, all as columns, and all as Arrow say the same."""
    view = repository.fetch_snapshot("main")
    inline = view.fetch_chunk_ref("g/a", (0, 1))
    assert inline == core.InlineChunk(bytes([4, 5, 6, 7]))
    virtual = view.fetch_chunk_ref("g/a", core.ChunkIndices(4, 1))
    assert virtual == core.VirtualChunkRef("s3://bucket/x", 7, 4, core.ETag("tag"))
    assert view.fetch_chunk_ref("g/a", (1, 0)) is None
    for indices in ((6, 0), (0,), (0, 1.5), (True, 0), (-1, 0)):
        with pytest.raises(InvalidInputError):
            view.fetch_chunk_ref("g/a", indices)  # type: ignore[arg-type]

    columns = view.fetch_chunk_refs("g/a")
    assert columns.coords.tolist() == [[0, 0], [0, 1], [4, 1], [5, 0], [5, 1]]
    table = view.fetch_arrow_table("g/a").sort_by([("length", "ascending")])
    assert table.schema == core.build_chunk_schema()
    rows = sorted(table.to_pylist(), key=lambda row: row["index"])
    assert [row["index"] for row in rows] == columns.coords.tolist()
    for row, indices, payload in zip(rows, columns.coords, columns.payloads, strict=True):
        assert payload == view.fetch_chunk_ref("g/a", indices.tolist())
        match payload:
            case core.InlineChunk(data):
                assert (row["kind"], row["inline"], row["offset"]) == ("inline", data, None)
                assert (row["chunk_id"], row["key"], row["location"]) == (None, None, None)
            case core.VirtualChunkRef(location, offset, length):
                assert (row["kind"], row["location"]) == ("virtual", location)
                assert (row["offset"], row["length"], row["etag"]) == (offset, length, "tag")
                assert row["inline"] is None


def test_where_native_chunks_are(repository: Repository, tmp_path: Path) -> None:
    """The key, offset and length of a reference find the bytes without icefloe."""
    view = repository.fetch_snapshot("main")
    rows = view.fetch_arrow_table("/b").to_pylist()
    assert [row["kind"] for row in rows] == ["native", "native"]
    for row in rows:
        ref = view.fetch_chunk_ref("/b", row["index"])
        assert isinstance(ref, core.ChunkRef)
        place = view.locate(ref)
        assert (row["chunk_id"], row["key"]) == (str(ref.id), place.key)
        assert place.url == f"{repository.storage.url.rstrip('/')}/{place.key}"
        data = (tmp_path / "repo" / place.key).read_bytes()
        first = row["index"][0] * 32
        expected = bytes(range(first, first + 32))
        assert data[place.offset : place.offset + place.length] == expected
    virtual = view.fetch_chunk_ref("g/a", (4, 1))
    with pytest.raises(InvalidInputError, match="expected a ChunkRef"):
        view.locate(virtual)  # type: ignore[arg-type]


def test_the_changes_of_a_commit(repository: Repository) -> None:
    """The transaction log, which some generations do not have, has the changed chunks."""
    view = repository.fetch_snapshot("main")
    log = view.fetch_transaction_log()
    assert isinstance(log, core.TransactionLog)
    assert log.id == view.id
    assert not log.new_arrays
    node_id = view.get_node("g/a").id
    assert list(log.updated_chunks.iter_node_ids()) == [node_id]
    assert log.updated_chunks.get_coords(0).tolist() == [[5, 0], [5, 1]]
    parent_id = view.fetch_info().parent_id
    assert parent_id is not None
    first = repository.fetch_snapshot(snapshot_id=parent_id).fetch_transaction_log()
    assert first.new_arrays == {node_id, view.get_node("b").id}


def test_an_empty_array_has_empty_columns() -> None:
    """Also without manifests, and for an array without dimensions."""
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    for name, shape in (("a", (4, 4)), ("scalar", ())):
        zarr.create_array(session.store, name=name, shape=shape, dtype="u1")
    zarr.open_array(session.store, path="scalar")[...] = 7
    session.commit("no chunks")
    view = repository.fetch_snapshot("main")
    assert view.get_manifests("a") == ()
    assert view.fetch_chunk_refs("a").coords.shape == (0, 2)
    table = view.fetch_arrow_table("a")
    assert (table.num_rows, table.schema) == (0, core.build_chunk_schema())
    scalar = view.fetch_chunk_refs("scalar")
    assert scalar.coords.shape == (1, 0)
    assert view.fetch_chunk_ref("scalar", ()) == scalar.payloads[0]
    assert view.fetch_arrow_table("scalar")["index"].to_pylist() == [[]]


def test_tables_of_many_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Batches share one schema and one dictionary per column, and can be written as references."""
    monkeypatch.setattr("icefloe.core.chunk_table.BATCH_ROWS", 3)
    repository = Repository.create(icefloe.local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(10,), chunks=(1,), dtype="u1")
    rows = {
        "index": [[number] for number in range(10)],
        "location": [f"s3://bucket/{number % 4}" for number in range(10)],
        "offset": list(range(10)),
        "length": [1] * 10,
    }
    session.store.set_virtual_refs_table("a", pa.table(rows))
    session.commit("ten references")
    table = repository.fetch_snapshot("main").fetch_arrow_table("a")
    assert {name: table[name].to_pylist() for name in rows} == rows
    session = repository.writable_session("main")
    session.store.set_virtual_refs_table("a", table)
    copied = session.commit("again")
    again = repository.fetch_snapshot(snapshot_id=copied).fetch_arrow_table("a")
    assert again.equals(table)
