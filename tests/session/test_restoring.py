"""Restoring nodes and chunks of another snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import NodeNotFoundError, ReadOnlyError
from icefloe.model.ids import SnapshotId
from icefloe.session.restoring import restore_nodes
from support.array_repositories import seen_by_icechunk

if TYPE_CHECKING:
    from pathlib import Path


def write_first(store: Any) -> None:
    root = zarr.create_group(store, attributes={"title": "first"})
    numbers = np.arange(24).reshape(6, 4)
    for path in ("kept", "resized", "rechunked", "group/deleted", "retyped", "became_group"):
        root.create_array(path, data=numbers, chunks=(2, 2), attributes={"units": "K"})
    root.create_array("large", data=np.arange(4000.0).reshape(4, 1000), chunks=(1, 1000))


def change_everything(store: Any) -> None:
    root = zarr.open_group(store)
    root.attrs["title"] = "second"
    root["kept"].attrs["units"] = "C"
    zarr.open_array(store, path="large")[1] = -1
    zarr.open_array(store, path="resized").resize((3, 4))
    for path in ("rechunked", "group", "retyped", "became_group"):
        del root[path]
    root.create_array("rechunked", data=np.zeros((6, 4)), chunks=(3, 4))
    root.create_array("retyped", data=np.zeros((2, 2, 2), "f4"), chunks=(1, 1, 1))
    root.create_array("became_group/new", data=np.zeros(3))


def read_everything(session: icefloe.Session) -> dict[str, Any]:
    root = zarr.open_group(session.store, mode="r")
    found: dict[str, Any] = {"/": dict(root.attrs)}
    for path, node in root.members(max_depth=None):
        values = np.asarray(node[:]).tolist() if isinstance(node, zarr.Array) else None
        found[path] = (node.metadata.to_dict(), values)
    return found


def make_repository(tmp_path: Path, generation: str) -> tuple[icefloe.Repository, str]:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repository = icefloe.Repository.create(storage, generation=generation)
    session = repository.writable_session("main")
    write_first(session.store)
    first = session.commit("first")
    session = repository.writable_session("main")
    change_everything(session.store)
    session.commit("second")
    return repository, first


def restore(session: icefloe.Session, snapshot_id: str, path: str) -> None:
    restore_nodes(session, SnapshotId.parse(snapshot_id), session.path(path))


def test_everything_is_as_before(tmp_path: Path, generation: str) -> None:
    """All nodes, attributes and values are those of the old snapshot, before and after a commit."""
    repository, first = make_repository(tmp_path, generation)
    expected = read_everything(repository.readonly_session(snapshot_id=first))
    session = repository.writable_session("main")
    restore(session, first, "/")
    assert read_everything(session) == expected
    assert not session.status().updated_chunks.keys() & {"/kept"}
    assert session.status().updated_chunks["/large"] == [[1, 0]]
    session.commit("restored")
    reopened = icefloe.Repository.open(repository.storage)
    assert read_everything(reopened.readonly_session("main")) == expected
    again = reopened.writable_session("main")
    restore(again, first, "/")
    assert not again.has_uncommitted_changes


def test_no_chunk_is_copied(tmp_path: Path) -> None:
    """The commit writes metadata only."""
    repository, first = make_repository(tmp_path, "v2")
    before = set((tmp_path / "chunks").iterdir())
    session = repository.writable_session("main")
    restore(session, first, "/")
    session.commit("restored")
    assert set((tmp_path / "chunks").iterdir()) == before


def test_icechunk_reads_the_result(tmp_path: Path) -> None:
    """Icechunk sees the same values and metadata as in the old snapshot."""
    repository, first = make_repository(tmp_path, "v2")
    repository.reset_branch("main", first)
    expected = seen_by_icechunk(repository)
    session = repository.writable_session("main")
    change_everything(session.store)
    session.commit("changed")
    assert seen_by_icechunk(repository) != expected
    session = repository.writable_session("main")
    restore(session, first, "/")
    session.commit("restored")
    assert seen_by_icechunk(repository) == expected


def test_one_path(tmp_path: Path, generation: str) -> None:
    """Only the named node and what is below it change; missing parents are restored."""
    repository, first = make_repository(tmp_path, generation)
    session = repository.writable_session("main")
    before = read_everything(session)
    old = read_everything(repository.readonly_session(snapshot_id=first))
    restore(session, first, "group/deleted")
    assert read_everything(session) == before | {
        path: old[path] for path in ("group", "group/deleted")
    }


def test_a_path_that_the_old_snapshot_lacks_is_deleted(tmp_path: Path) -> None:
    """A restored absence is a deletion."""
    repository, first = make_repository(tmp_path, "v2")
    session = repository.writable_session("main")
    restore(session, first, "became_group/new")
    assert "became_group/new" not in read_everything(session)


def test_what_cannot_be_restored(tmp_path: Path) -> None:
    """A path that neither has, and read-only sessions, are refused without a change."""
    repository, first = make_repository(tmp_path, "v2")
    session = repository.writable_session("main")
    with pytest.raises(NodeNotFoundError, match="no group or array at /nowhere"):
        restore(session, first, "nowhere")
    assert not session.has_uncommitted_changes
    with pytest.raises(ReadOnlyError):
        restore(repository.readonly_session("main"), first, "/")
