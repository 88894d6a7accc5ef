from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from icefloe.errors import ErrorKind, FormatError, RefNotFoundError
from icefloe.maintenance import upgrade_icechunk_repository
from icefloe.model.chunk_payload import ChunkRef, VirtualChunkRef
from icefloe.model.path import Path
from icefloe.repository import Repository
from icefloe.spark.reading.metadata_tables import chunk_tables
from icefloe.spark.reading.read_options import ReadOptions
from icefloe.spark.reading.read_plan import plan_read
from icefloe.spark.reading.snapshot_source import SnapshotSource
from icefloe.storage import local_filesystem_storage
from support.generations import OLDER
from support.spark_tables import metadata

if TYPE_CHECKING:
    import pathlib


@pytest.fixture(params=[*OLDER, "v2"])
def lived(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Repository:
    """Make a repository with branches, a tag, moves, and virtual chunks."""
    storage = local_filesystem_storage(tmp_path / "lived")
    repository = Repository.create(storage, generation=request.param)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store, attributes={"title": "lived"})
    native = group.create_array(
        "native", shape=(2000,), chunks=(500,), dtype="f8", dimension_names=["x"], compressors=None
    )
    native[:1500] = np.random.default_rng(0).random(1500)
    group.create_array("tiny", data=np.arange(3))
    group.create_array("far", shape=(6, 2), chunks=(1, 1), dtype="u1", compressors=None)
    for row in range(5):
        session.store.set_virtual_ref(
            f"far/c/{row}/1",
            f"s3://bucket/{row % 2}.nc",
            offset=10 * row,
            length=row + 1,
            checksum='"tag"' if row % 2 == 0 else None,
            validate_container=False,
        )
    session.commit("first", {"author": "me"})
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("dev", repository.lookup_branch("main"))
    session = repository.writable_session("dev")
    zarr.open_array(session.store, path="native")[0] = 5
    session.commit("on dev")
    session = repository.rearrange_session("main")
    session.move("/tiny", "/small")
    session.commit("moved")
    return repository


def test_snapshots_are_all_that_branches_and_tags_lead_to(lived: Repository) -> None:
    found = {row["snapshot_id"]: row for row in metadata(lived, "snapshots")}
    expected = {info.id: info for name in ("main", "dev") for info in lived.ancestry(branch=name)}
    assert found.keys() == expected.keys()
    for snapshot_id, info in expected.items():
        row = found[snapshot_id]
        assert row["parent_id"] == info.parent_id
        assert row["committed_at"] == info.written_at
        assert row["message"] == info.message
        assert json.loads(row["metadata"]) == info.metadata
    assert found[lived.lookup_tag("v1")]["tags"] == ["v1"]
    assert found[lived.lookup_branch("dev")]["branches"] == ["dev"]


def test_history_is_the_line_of_one_reference(lived: Repository) -> None:
    tagged = lived.lookup_tag("v1")
    lines: list[tuple[dict[str, str], Any]] = [
        ({"branch": "dev"}, lived.ancestry(branch="dev")),
        ({"tag": "v1"}, lived.ancestry(tag="v1")),
        ({"snapshot": tagged}, lived.ancestry(snapshot_id=tagged)),
    ]
    for given, line in lines:
        found = metadata(lived, "history", **given)
        assert [row["snapshot_id"] for row in found] == [info.id for info in line]
        assert all(row["is_current_ancestor"] for row in found)


def test_history_keeps_what_a_reset_took_from_the_branch(lived: Repository) -> None:
    lost = lived.lookup_branch("main")
    lived.reset_branch("main", lived.lookup_tag("v1"))
    found = {row["snapshot_id"]: row for row in metadata(lived, "history")}
    if lived.generation in OLDER:  # without an ops log
        assert lost not in found
    else:
        assert not found[lost]["is_current_ancestor"]
        assert found[lost]["message"] == "moved"
    assert found[lived.lookup_tag("v1")]["is_current_ancestor"]
    assert lived.lookup_branch("dev") not in found


def test_refs_are_branches_and_tags(lived: Repository) -> None:
    found = {(row["type"], row["name"]): row["snapshot_id"] for row in metadata(lived, "refs")}
    assert found == {
        ("BRANCH", "dev"): lived.lookup_branch("dev"),
        ("BRANCH", "main"): lived.lookup_branch("main"),
        ("TAG", "v1"): lived.lookup_tag("v1"),
    }


def test_nodes_are_groups_and_arrays(lived: Repository) -> None:
    found = {row["path"]: row for row in metadata(lived, "nodes")}
    assert found.keys() == {"/", "/far", "/native", "/small"}
    assert found["/"]["type"] == "group"
    assert json.loads(found["/"]["attributes"]) == {"title": "lived"}
    native = found["/native"]
    session = lived.readonly_session("main")
    assert native["node_id"] == session.get_node_id("/native")
    assert native["node_id"].isdecimal() == (lived.generation in OLDER)
    assert native["shape"] == [2000]
    assert native["chunk_shape"] == [500]
    assert native["num_chunks"] == 4
    assert native["data_type"] == "float64"
    assert native["dimension_names"] == ["x"]
    assert {row["path"] for row in metadata(lived, "nodes", tag="v1")} >= {"/tiny"}


def test_manifests_are_those_of_the_snapshot(lived: Repository) -> None:
    found = metadata(lived, "manifests", branch="dev")
    expected = lived.list_manifest_files(lived.lookup_branch("dev"))
    assert [(row["manifest_id"], row["size_bytes"], row["num_chunk_refs"]) for row in found] == [
        (info.id, info.size_bytes, info.num_chunk_refs) for info in expected
    ]
    assert {path for row in found for path in row["arrays"]} == {"/far", "/native", "/tiny"}


def test_chunks_are_the_references_of_every_array(lived: Repository) -> None:
    """One row each, with the ids and places that a transaction finds."""
    found = {(row["path"], tuple(row["chunk"])): row for row in metadata(lived, "chunks")}
    session = lived.readonly_session("main")
    count = 0
    for path in ("/far", "/native", "/small"):
        for part in session.transaction.fetch_chunk_refs(Path(path)):
            for indices, payload in zip(part.coords.tolist(), part.payloads, strict=True):
                count += 1
                row = found[path, tuple(indices)]
                match payload:
                    case ChunkRef():
                        assert row["type"] == "native"
                        assert row["chunk_id"] == str(payload.id)
                        assert (row["offset"], row["length"]) == (payload.offset, payload.length)
                        assert row["location"] is None
                    case VirtualChunkRef():
                        assert row["type"] == "virtual"
                        assert row["location"] == payload.location
                        assert (row["offset"], row["length"]) == (payload.offset, payload.length)
                        assert row["etag"] == ('"tag"' if indices[0] % 2 == 0 else None)
                        assert row["chunk_id"] is None
                    case _:
                        assert row["type"] == "inline"
                        assert (row["offset"], row["length"]) == (None, len(payload.data))
    assert count == len(found) == 3 + 1 + 5


def test_files_are_what_virtual_chunks_depend_on(lived: Repository) -> None:
    found = {row["location"]: row for row in metadata(lived, "files")}
    assert {name: (row["num_chunks"], row["total_bytes"]) for name, row in found.items()} == {
        "s3://bucket/0.nc": (3, 1 + 3 + 5),
        "s3://bucket/1.nc": (2, 2 + 4),
    }
    assert found["s3://bucket/0.nc"]["etag"] == '"tag"'


def test_changes_are_those_of_diff(lived: Repository) -> None:
    found = metadata(lived, "changes", **{"from": "v1", "to": "dev"})
    assert found == [
        {"change_type": "chunk_changed", "path": "/native", "new_path": None, "chunk": [0]}
    ]
    moved = metadata(lived, "changes", **{"from": "v1"})
    assert {"change_type": "node_moved", "path": "/tiny", "new_path": "/small", "chunk": None} in (
        moved
    )
    first = list(lived.ancestry(branch="main"))[-1].id
    created = metadata(lived, "changes", **{"from": first, "to": "v1"})
    assert {row["path"] for row in created if row["change_type"] == "array_created"} == {
        "/far",
        "/native",
        "/tiny",
    }
    with pytest.raises(RefNotFoundError, match="'v9' is neither a branch, nor a tag"):
        metadata(lived, "changes", **{"from": "v9"})


def test_the_ops_log(lived: Repository) -> None:
    if lived.generation in OLDER:
        with pytest.raises(FormatError, match="--to v2"):
            metadata(lived, "ops_log")
        return
    found = metadata(lived, "ops_log")
    updates = list(lived.ops_log())
    assert [row["operation"] for row in found] == [type(update.kind).__name__ for update in updates]
    commits = [row for row in found if row["operation"] == "NewCommit"]
    assert [(row["ref"], row["snapshot_id"]) for row in commits[:2]] == [
        ("main", lived.lookup_branch("main")),
        ("dev", lived.lookup_branch("dev")),
    ]


def test_a_repository_of_version_1_has_no_ops_log(empty: Repository) -> None:
    """The error is raised when the read is planned, not by a task that Spark retries."""
    options = ReadOptions.parse({"table": "ops_log"})
    with pytest.raises(
        FormatError, match=r"needs a repository of version 2.*icefloe\.upgrade_icechunk_repository"
    ) as refused:
        plan_read(SnapshotSource.resolve(empty, options), options)
    assert refused.value.kind is ErrorKind.UNSUPPORTED_SPEC_VERSION
    assert metadata(upgrade_icechunk_repository(empty, dry_run=False), "ops_log")


@pytest.mark.parametrize("one_each", [False, True])
def test_manifests_are_shared_among_tasks_by_their_references(
    lived: Repository, monkeypatch: pytest.MonkeyPatch, *, one_each: bool
) -> None:
    source = SnapshotSource.resolve(lived, ReadOptions.parse({"table": "chunks"}))
    manifests = lived.list_manifest_files(source.snapshot_id)
    if one_each:
        monkeypatch.setattr(chunk_tables, "_REFS_PER_TASK", 1)
    tasks = chunk_tables.CHUNKS.partitions(source)
    assert sorted(manifest for task in tasks for manifest in task) == sorted(
        info.id for info in manifests
    )
    assert len(tasks) == (len(manifests) if one_each else 1)
