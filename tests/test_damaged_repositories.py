"""Repositories of all generations with a damaged file are read, or refused with typed errors."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import ErrorKind, FormatError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.format.generation import get_generation
from icefloe.inspection.repository import fetch_snapshot
from icefloe.model.ids import SnapshotId
from icefloe.model.path import Path
from icefloe.refs import open_refs
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.format_kinds import body_of, rewrap
from support.generations import OLDER
from support.hypothesis_examples import examples
from support.repository_damage import (
    damage_file,
    list_chunks,
    list_metadata,
    make_files,
    read_damaged,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_damaged_files(generation: str) -> None:
    """Reading, comparing and committing raise only errors of icefloe, whatever a file says."""
    source = random.Random(generation)
    keys = list_metadata(generation)
    accepted = 0
    number = examples(60, thorough=5000)
    for _ in range(number):
        key = source.choice(keys)
        data = damage_file(key, make_files(generation)[key], source)
        accepted += read_damaged(generation, key, data)
    assert accepted < number


def test_damaged_chunks(generation: str) -> None:
    """Zarr reads the values of a damaged chunk file, or raises errors of icefloe."""
    source = random.Random(generation)
    keys = list_chunks(generation)
    accepted = 0
    number = examples(20, thorough=2000)
    for _ in range(number):
        key = source.choice(keys)
        data = damage_file(key, make_files(generation)[key], source)
        accepted += read_damaged(generation, key, data)
    assert 0 < accepted < number


def test_undamaged_files(generation: str) -> None:
    """The files that are damaged are accepted as they are."""
    key = list_metadata(generation)[0]
    assert read_damaged(generation, key, make_files(generation)[key])


def test_truncated_files(generation: str) -> None:
    """A snapshot file without its last byte is refused with its name."""
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        storage.put(key, data)
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    key = get_generation(generation).layout.snapshots.format_key(tip)
    storage.put(key, make_files(generation)[key][:-1])
    with pytest.raises(FormatError, match=tip):
        Repository.open(storage).readonly_session("main")


def copy_without(generation: str, *missing: str) -> MemoryStorage:
    """Return the storage of a repository without some files, given by their prefixes."""
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        if not key.startswith(missing):
            storage.put(key, data)
    return storage


def test_missing_files(generation: str) -> None:
    """The error for a missing file also names the file that refers to it, which may be wrong."""
    layout = get_generation(generation).layout
    kinds = {kind: getattr(layout, kind).prefix for kind in ("chunks", "manifests", "snapshots")}
    key = "g/big/c/0"

    session = Repository.open(copy_without(generation, kinds["chunks"])).readonly_session("main")
    problem = rf"{kinds['chunks']}.*chunk \[0\] of /g/big according to {kinds['manifests']}"
    with pytest.raises(ObjectNotFoundError, match=problem):
        session.store.get_sync(key)
    assert not asyncio.run(session.store.exists("g/big/c/9"))

    session = Repository.open(copy_without(generation, kinds["manifests"])).readonly_session("main")
    problem = rf"{kinds['manifests']}.*has chunks of /g/big according to {kinds['snapshots']}"
    with pytest.raises(ObjectNotFoundError, match=problem):
        session.store.get_sync(key)
    with pytest.raises(ObjectNotFoundError, match=problem):
        list(session.transaction.fetch_chunk_refs(Path("/g/big")))

    repository = Repository.open(copy_without(generation, kinds["snapshots"]))
    lost = repository.lookup_branch("main")
    with pytest.raises(ObjectNotFoundError, match=f"{kinds['snapshots']}{lost}"):
        repository.readonly_session("main").store.get_sync(key)
    with pytest.raises(SnapshotNotFoundError, match=lost):
        repository.readonly_session(snapshot_id=lost)


def test_short_chunk_files(generation: str) -> None:
    """The error for a chunk file that is too short names the manifest with its length."""
    layout = get_generation(generation).layout
    storage = copy_without(generation)
    for info in storage.list(layout.chunks.prefix):
        storage.put(info.key, b"?")
    store = Repository.open(storage).readonly_session("main").store
    problem = rf"^{layout.chunks.prefix}.*of /g/big according to {layout.manifests.prefix}"
    with pytest.raises(FormatError, match=problem):
        store.get_sync("g/big/c/1")
    with pytest.raises(FormatError, match=problem):
        asyncio.run(store.get("g/big/c/1", default_buffer_prototype()))


@pytest.mark.parametrize(
    "old, new, problem",
    [
        (b'"node_type":', b'"node_type";', "Expecting ':' delimiter"),
        (b'"float32"', b'"float_2"', "float_2"),
        (b'"zstd"', b'"zst_"', "zst_"),
        (b'"level"', b'"level_', "Invalid control character"),
        (b'"level"', b'"lever"', "lever"),
        (b'"endian": "little"', b'"endian": "middle"', "middle"),
    ],
)
@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_damaged_node_documents(generation: str, old: bytes, new: bytes, problem: str) -> None:
    """If Zarr cannot read a document, the error names the node and the snapshot."""
    storage = copy_without(generation)
    tip = Repository.open(storage).lookup_branch("main")
    key = f"snapshots/{tip}"
    file = make_files(generation)[key]
    body = body_of(file)
    assert old in body
    storage.put(key, rewrap(file, body.replace(old, new)))
    store = Repository.open(storage).readonly_session("main").store
    problem = rf"^{key}: Zarr cannot open the metadata of /g/f: .*{problem}"
    with pytest.raises(FormatError, match=problem):
        zarr.open_array(store, path="g/f", mode="r", zarr_format=3)


@pytest.mark.parametrize("generation", OLDER)
def test_missing_attributes_file(generation: str) -> None:
    """The error names the attributes file, and does not say that the snapshot is missing."""
    storage = MemoryStorage()
    for key, data in make_files(generation).items():
        storage.put(key, data)
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    (missing,) = [info.key for info in storage.list("a/")]
    storage.delete_many([missing])
    steps: list[Callable[[], object]] = [
        lambda: repository.readonly_session("main"),
        lambda: repository.readonly_session(snapshot_id=tip),
        lambda: repository.writable_session("main"),
        lambda: repository.fetch_snapshot(snapshot_id=tip),
        lambda: fetch_snapshot(storage, open_refs(storage).refs, "main"),
    ]
    if generation == "sequence":  # its snapshot files have the history
        steps.append(lambda: list(repository.ancestry(branch="main")))
        steps.append(lambda: repository.lookup_snapshot(tip))
    for step in steps:
        with pytest.raises(
            FormatError, match=f"^{missing}: the attributes file is missing"
        ) as info:
            step()
        assert info.value.kind is ErrorKind.OBJECT_NOT_FOUND
    storage.delete_many(
        [get_generation(generation).layout.snapshots.format_key(SnapshotId.parse(tip))]
    )
    with pytest.raises(SnapshotNotFoundError):
        repository.readonly_session(snapshot_id=tip)
