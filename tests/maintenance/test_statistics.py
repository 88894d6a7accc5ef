"""The bytes of a chunk are counted once, regardless of the number of references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe.maintenance.statistics import ChunkStorageStats
from icefloe.repository import Repository
from icefloe.storage import MemoryStorage
from support.histories import UNPACKED, commit

if TYPE_CHECKING:
    from icefloe.session import Session


def _virtual(session: Session, name: str, location: str, offset: int, length: int) -> None:
    group = zarr.open_group(session.store, mode="a")
    group.create_array(name, shape=(4,), chunks=(2,), dtype="f8", compressors=None)
    for index in (0, 1):
        session.store.set_virtual_ref(
            f"{name}/c/{index}",
            location,
            offset=offset + index * length,
            length=length,
            validate_container=False,
        )


def test_each_byte_range_counts_once(generation: str) -> None:
    """Native and virtual ranges count once in all snapshots; inline bytes once per manifest."""
    repository = Repository.create(MemoryStorage(), UNPACKED, generation=generation)
    commit(repository, "a", 0, 1)
    commit(repository, "a", 1, 2)  # keeps the three chunks of the first
    assert repository.chunk_storage_stats() == ChunkStorageStats(native_bytes=6 * 800)
    session = repository.writable_session("main")
    _virtual(session, "x", "s3://bucket/one", 0, 16)
    _virtual(session, "y", "s3://bucket/one", 16, 16)  # one range in common
    _virtual(session, "z", "s3://bucket/two", 0, 16)
    session.commit("virtual")
    assert repository.chunk_storage_stats().virtual_bytes == (3 + 2) * 16
    for value in (1, 2):
        session = repository.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        if "small" not in group:
            group.create_array("small", shape=(4,), chunks=(2,), dtype="f8", compressors=None)
        small = group["small"]
        assert isinstance(small, zarr.Array)
        small[:] = value
        session.commit("inline")
    stats = repository.chunk_storage_stats()
    assert stats == ChunkStorageStats(6 * 800, 5 * 16, 2 * 32)
    assert stats.non_virtual_bytes() == 6 * 800 + 2 * 32
    assert stats.total_bytes() == 6 * 800 + 5 * 16 + 2 * 32
    assert stats + stats == ChunkStorageStats(12 * 800, 10 * 16, 4 * 32)


def test_deprecated_total(generation: str) -> None:
    """The deprecated method counts chunk files only, and names its replacement."""
    repository = Repository.create(MemoryStorage(), UNPACKED, generation=generation)
    commit(repository, "a", 0, 1)
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert repository.total_chunks_storage() == 3 * 800
