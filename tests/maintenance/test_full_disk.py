"""Garbage collection needs no room on the disk, and expiration little."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, SessionStateError, StorageError
from icefloe.model.repo_info import ExpirationRan, GCRan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 4096
CHUNKS, CHUNK_BYTES = 3, 100_000
GENERATIONS = ("draft", "sequence", "v1", "v2")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of a small file system."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        yield root
    finally:
        # Lazily: the storage has a directory open.
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def make_repository(disk: Path, generation: str) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icefloe.local_filesystem_storage(str(disk / "repository"))
    repository = icefloe.Repository.create(storage, config, generation=generation)
    session = repository.writable_session("main")
    shape = CHUNKS * CHUNK_BYTES
    zarr.create_array(
        session.store, name="a", shape=shape, chunks=CHUNK_BYTES, dtype="u1", compressors=None
    )
    session.commit("array")
    return repository


def write(repository: icefloe.Repository, seed: int) -> icefloe.Session:
    session = repository.writable_session("main")
    values = np.random.default_rng(seed).integers(1, 255, CHUNKS * CHUNK_BYTES, np.uint8)
    zarr.open_array(session.store, path="a")[:] = values
    return session


def fill(disk: Path, *, free_pages: int = 0) -> None:
    """Fill the file system, except for some pages."""
    path = disk / "other"
    with path.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(PAGE_BYTES))
        assert os.statvfs(disk).f_bfree == 0
        file.truncate(path.stat().st_size - free_pages * PAGE_BYTES)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_files_without_a_commit(disk: Path, generation: str) -> None:
    """They are deleted, and in version 2 the session that wrote them cannot commit."""
    repository = make_repository(disk, generation)
    session = write(repository, 1)
    fill(disk)
    with pytest.raises(StorageError, match="the disk is full") as caught:
        write(repository, 2)
    assert caught.value.kind is ErrorKind.DISK_FULL
    summary = repository.garbage_collect(datetime.now(UTC))
    assert (summary.chunks_deleted, summary.delete_errors) == (CHUNKS, [])
    if generation == "v2":
        with pytest.raises(SessionStateError, match="garbage collection deleted"):
            session.commit("lost")
        assert isinstance(next(iter(repository.ops_log())).kind, GCRan)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_commits_that_no_branch_has(disk: Path, generation: str) -> None:
    """They leave the list of snapshots as soon as there is room."""
    repository = make_repository(disk, generation)
    kept = write(repository, 1).commit("kept")
    dropped = write(repository, 2).commit("dropped")
    repository.reset_branch("main", kept)
    fill(disk)
    summary = repository.garbage_collect(datetime.now(UTC))
    assert (summary.snapshots_deleted, summary.chunks_deleted) == (1, CHUNKS)
    assert summary.delete_errors == []
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repository.create_branch("dangling", dropped)


@pytest.mark.parametrize("generation", ["draft", "v2"])
def test_a_collection_that_finds_nothing(disk: Path, generation: str) -> None:
    """It says that it is not recorded."""
    repository = make_repository(disk, generation)
    fill(disk)
    (message,) = repository.garbage_collect(datetime.now(UTC)).delete_errors
    assert "not recorded" in message


def test_expiration(disk: Path) -> None:
    """It makes do without the backup, and otherwise advises to collect garbage."""
    repository = make_repository(disk, "v2")
    write(repository, 1).commit("old")
    cutoff = datetime.now(UTC)
    write(repository, 2).commit("new")
    num_updates = len(list(repository.ops_log()))
    fill(disk)
    with pytest.raises(StorageError, match="garbage collection, which needs none"):
        repository.expire_snapshots(cutoff)
    fill(disk, free_pages=1)  # for `repo`
    assert len(repository.expire_snapshots(cutoff)) == 2
    newest, *others = icefloe.Repository.open(repository.storage).ops_log()
    assert isinstance(newest.kind, ExpirationRan)
    assert len(others) == num_updates
    fill(disk)
    assert repository.garbage_collect(datetime.now(UTC)).chunks_deleted == CHUNKS
