"""Repositories with arrays that wait for virtual references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import icefloe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ARCHIVE = "s3://archive/"


def archive_config(*extra: icefloe.VirtualChunkContainer) -> icefloe.RepositoryConfig:
    """Make a configuration with the container ``cold``, and others."""
    config = icefloe.RepositoryConfig()
    cold = icefloe.VirtualChunkContainer(ARCHIVE, icefloe.s3_store(region="x"), name="cold")
    for container in (cold, *extra):
        config.set_virtual_chunk_container(container)
    return config


def new_repository(
    storage: icefloe.Storage | None = None,
    config: icefloe.RepositoryConfig | None = None,
    **options: Any,
) -> icefloe.Repository:
    """Create a repository that knows the archive."""
    return icefloe.Repository.create(
        storage or icefloe.in_memory_storage(), config or archive_config(), **options
    )


def session_with(
    arrays: Mapping[str, Sequence[int]], repository: icefloe.Repository | None = None
) -> icefloe.Session:
    """Begin a session with arrays of one byte to a chunk, by path and grid."""
    session = (repository or new_repository()).writable_session("main")
    zarr.create_group(session.store, overwrite=False)
    for path, grid in arrays.items():
        zarr.create_array(
            session.store,
            name=path,
            shape=tuple(grid),
            chunks=(1,) * len(grid),
            dtype="u1",
            compressors=None,
            filters=None,
        )
    return session


def stored(session: icefloe.Session, path: str) -> dict[tuple[int, ...], tuple[object, ...]]:
    """Return the virtual chunks of an array: location, offset, length and checksum by index."""
    return {
        ref.index: (ref.location, ref.offset, ref.length, ref.etag or ref.last_modified)
        for ref in session.virtual_refs(array_path=path)
    }


def local_repository(folder: Path, data: bytes) -> tuple[icefloe.Repository, str]:
    """Create a repository beside a file that it may read; returns it and the file's URL."""
    files = folder / "files"
    files.mkdir()
    (files / "data.bin").write_bytes(data)
    prefix = f"file://{files}/"
    container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(files)))
    repository = new_repository(
        icefloe.local_filesystem_storage(str(folder / "repository")),
        archive_config(container),
        authorize_virtual_chunk_access={prefix: icefloe.Credentials.LocalFileSystemAccess()},
    )
    return repository, f"{prefix}data.bin"


def numbers(*values: int) -> Any:
    """Make a column of offsets or lengths."""
    return np.array(values, np.uint64)
