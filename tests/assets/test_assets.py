"""Typed access to the files of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe import CachingConfig
from icefloe.assets import Assets
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.format.generation import V1, V2
from icefloe.model.chunk_payload import ChunkRef
from icefloe.model.ids import ChunkId, ManifestId, SnapshotId
from icefloe.storage import MemoryStorage, local_filesystem_storage
from support.golden_repositories import Golden

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Golden("v2-by-2.3.0")


@pytest.mark.parametrize("folder", ["snapshots", "manifests", "transactions"])
def test_a_file_under_another_key_raises(folder: str) -> None:
    """A valid file whose id differs from its key raises."""
    storage = MemoryStorage()
    name = SnapshotId(bytes(12))
    source = next(path for path in GOLDEN.files() if folder in path.parts)
    storage.put(f"{folder}/{name}", source.read_bytes())
    assets = Assets(storage, V2)
    fetch: dict[str, Callable[[], object]] = {
        "snapshots": lambda: assets.fetch_snapshot(name),
        "manifests": lambda: assets.fetch_manifest(ManifestId(name.raw)),
        "transactions": lambda: assets.fetch_transaction_log(name),
    }
    with pytest.raises(FormatError, match=f"{folder}/{name}: the file has the id {source.name}"):
        fetch[folder]()


def test_chunks() -> None:
    """Several chunks can be ranges of one chunk file."""
    assets = Assets(MemoryStorage(), V1)
    chunk_id = ChunkId.random()
    assets.write_chunk(chunk_id, b"onetwothree")
    assert bytes(assets.chunks.fetch(ChunkRef(chunk_id, 3, 3))) == b"two"
    with pytest.raises(ObjectNotFoundError):
        assets.chunks.fetch(ChunkRef(ChunkId.random(), 0, 1))
    with pytest.raises(FormatError, match=f"chunks/{chunk_id}"):
        assets.chunks.fetch(ChunkRef(chunk_id, 6, 100))


def test_caches_that_are_too_small_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once for snapshots and once for manifests, with the setting to change."""
    storage = local_filesystem_storage(GOLDEN.repository)
    assets = Assets(storage, V2, CachingConfig(num_snapshot_nodes=1, num_chunk_refs=1))
    for name in ("snapshots", "manifests"):
        for file in (path for path in GOLDEN.files() if name in path.parts):
            if name == "snapshots":
                assets.fetch_tree(SnapshotId.parse(file.name))
            else:
                assets.load_manifest(ManifestId.parse(file.name))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "num_snapshot_nodes" in messages[0]
    assert "num_chunk_refs" in messages[1]
