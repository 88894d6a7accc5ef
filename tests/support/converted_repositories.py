"""Makes repositories with everything that a conversion has to keep, and describes them."""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe import Credentials, ManifestConfig, RepositoryConfig, VirtualChunkContainer
from icefloe.model.config import PackingConfig
from icefloe.model.containers import ObjectStoreConfig
from icefloe.model.manifest_config import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.repository import Repository
from icefloe.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.snapshots import Diff
    from icefloe.storage import Storage

PACKED = PackingConfig(max_chunk_bytes=4000)


def open_repository(storage: Storage, archive: Path) -> Repository:
    """Open a repository that may read the files of the archive."""
    return Repository.open(
        storage,
        authorize_virtual_chunk_access={
            f"{archive.as_uri()}/": Credentials.LocalFileSystemAccess()
        },
    )


def make_repository(root: Path, archive: Path, generation: str) -> Repository:
    """Make a repository with branches, tags and every kind of chunk and change.

    On the branches ``dev`` and ``other``, from the second commit of main, different nodes are made
    at the same paths.
    """
    archive.mkdir(exist_ok=True)
    (archive / "raw.bin").write_bytes(np.arange(100, dtype="<f4").tobytes())
    container = VirtualChunkContainer(
        f"{archive.as_uri()}/", ObjectStoreConfig.LocalFileSystem(str(archive))
    )
    split = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.name_matches("split"): {ManifestSplitDimCondition.Axis(0): 2}}
    )
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=16,
        manifest=ManifestConfig(splitting=split),
        virtual_chunk_containers={container.url_prefix: container},
        packing=PACKED,
    )
    storage = LocalStorage(root, durable=False)
    created = Repository.create(storage, config, generation=generation)
    created.save_config()
    repository = open_repository(storage, archive)
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a", attributes={"title": "all kinds"})
    _make(group, "native", (6, 50), (1, 50), attributes={"units": "K", "long": "x" * 5000})
    _make(group, "inline", (4,), (1,))
    _make(group, "a/split", (8, 10), (1, 10))
    _make(group, "a/scalar", (), ())
    virtual = group.create_array("linked", shape=(10,), chunks=(5,), dtype="f4", compressors=None)
    assert virtual.path == "linked"
    location = (archive / "raw.bin").as_uri()
    for number in range(2):
        session.store.set_virtual_ref(f"linked/c/{number}", location, offset=20 * number, length=20)
    session.commit("all kinds of chunks", metadata={"author": "me", "run": 7, "list": [1, None]})
    _write(repository, "main", "native", (slice(0, 3),), 5)
    second = repository.lookup_branch("main")
    repository.create_tag("second", second)
    repository.create_branch("dev", second)
    repository.create_branch("other", second)
    for branch, value in (("dev", 1), ("other", 2)):
        session = repository.writable_session(branch)
        group = zarr.open_group(session.store, mode="a")
        _make(group, "new", (3, 30), (1, 30))
        _make(group, f"only_{branch}", (2,), (1,))
        zarr.open_array(session.store, path="new", mode="r+")[...] = value
        session.commit(f"nodes of {branch}")
        _write(repository, branch, "new", (1,), value + 10)
    _write(repository, "main", "a/split", (slice(2, 5),), 9)
    session = repository.rearrange_session("main")
    session.move("/a", "/moved")
    session.commit("move a group")
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group["moved/split"].attrs["note"] = "changed"
    zarr.open_array(session.store, path="native", mode="r+").resize((3, 50))
    del group["inline"]
    session.commit("change metadata and delete an array")
    repository.create_tag("last", repository.lookup_branch("main"))
    if generation != "sequence":
        repository.create_tag("gone", second)
        repository.delete_tag("gone")
    return repository


def describe(
    repository: Repository, ids: Mapping[str, str] | None = None, *, across: bool = False
) -> dict[str, Any]:
    """Describe everything that a conversion keeps.

    ``ids`` maps snapshots of the source to those of this repository; without it, this is the
    source. ``across`` includes the differences between divergent branches.
    """
    original = {} if ids is None else {new: old for old, new in ids.items()}
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    infos = {info.id: info for tip in branches for info in repository.ancestry(branch=tip)} | {
        info.id: info for tag in tags for info in repository.ancestry(tag=tag)
    }

    def name(snapshot_id: str | None) -> str | None:
        return None if snapshot_id is None else original.get(snapshot_id, snapshot_id)

    return {
        "branches": {branch: name(tip) for branch, tip in branches.items()},
        "tags": {tag: name(target) for tag, target in tags.items()},
        "config": repository.config.inline_chunk_threshold_bytes,
        "snapshots": {
            name(info.id): {
                "parent": name(info.parent_id),
                "message": info.message,
                "written_at": info.written_at,
                "metadata": dict(info.metadata),
                "nodes": describe_nodes(repository.readonly_session(snapshot_id=info.id)),
            }
            for info in infos.values()
        },
        "diffs": {
            (name(before), name(after)): describe_diff(
                repository.diff(from_snapshot_id=before, to_snapshot_id=after)
            )
            for before, after in permutations(infos, 2)
            if across or _is_ancestor(before, after, infos)
        },
    }


def describe_nodes(session: Session) -> dict[str, Any]:
    """Describe all groups and arrays: their metadata and, for arrays, their data."""
    try:
        root = zarr.open_group(session.store, mode="r")
    except FileNotFoundError:
        return {}
    members = {"": root, **dict(root.members(max_depth=None))}
    nodes = {}
    for path, node in members.items():
        data = np.asarray(node[...]).tobytes() if isinstance(node, zarr.Array) else None
        nodes[path] = (_get_document(node), data)
    return nodes


def describe_diff(diff: Diff) -> dict[str, Any]:
    """Return the fields of a diff in a fixed order, without arrays that have no changed chunk."""
    names = ("new", "deleted", "updated")
    sets = {
        f"{change}_{kind}": sorted(getattr(diff, f"{change}_{kind}"))
        for change in names
        for kind in ("groups", "arrays")
    }
    chunks = {path: sorted(map(tuple, rows)) for path, rows in diff.updated_chunks.items() if rows}
    return {**sets, "chunks": chunks, "moves": sorted(diff.moved_nodes)}


def _is_ancestor(before: str, after: str, infos: Mapping[str, Any]) -> bool:
    current: str | None = infos[after].parent_id
    while current is not None and current != before:
        current = infos[current].parent_id
    return current == before


def _get_document(node: zarr.Array[Any] | zarr.Group) -> Any:
    document = node.metadata.to_dict()
    document.pop("consolidated_metadata", None)
    return json.loads(json.dumps(document, default=str, sort_keys=True))


def _make(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    attributes: dict[str, Any] | None = None,
) -> None:
    array = group.create_array(
        name, shape=shape, chunks=chunks, dtype="f8", fill_value=np.nan, attributes=attributes
    )
    array[...] = np.arange(np.prod(shape, dtype=int), dtype="f8").reshape(shape)


def _write(
    repository: Repository, branch: str, name: str, selection: tuple[Any, ...], value: float
) -> None:
    session = repository.writable_session(branch)
    zarr.open_array(session.store, path=name, mode="r+")[selection] = value
    session.commit(f"{name} = {value}")
