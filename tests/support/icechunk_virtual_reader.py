"""Says what the real Icechunk does with locations: stores a reference to each, and reads it.

Runs without icefloe, in whatever environment has an ``icechunk`` wheel. Takes, as JSON from its
standard input, ``prefixes`` of local containers, those that are ``opened``, and references as
``[location, offset, length, ETag or null, seconds or null]``; prints, as JSON, what became of each:
``refused`` when it was to be stored, else the bytes read as text, or the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype

# Two versions with different types: whichever is there.
icechunk: Any = import_module("icechunk")


def outcomes(asked: dict[str, Any]) -> list[str]:
    """Store and read each reference."""
    config = icechunk.RepositoryConfig.default()
    for prefix in asked["prefixes"]:
        store = icechunk.local_filesystem_store("/")
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    allowed = getattr(icechunk.Credentials, "LocalFileSystemAccess", lambda: None)()
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config,
        authorize_virtual_chunk_access=dict.fromkeys(asked["opened"], allowed),
    )
    session = repository.writable_session("main")
    count = len(asked["references"])
    zarr.create_array(session.store, shape=(count,), chunks=(1,), dtype="i1", name="a")
    return [_outcome(session.store, f"a/c/{n}", ref) for n, ref in enumerate(asked["references"])]


def _outcome(store: Any, key: str, reference: list[Any]) -> str:
    location, offset, length, etag, seconds = reference
    checksum = etag if seconds is None else datetime.fromtimestamp(seconds, UTC)
    try:
        store.set_virtual_ref(key, location, offset=offset, length=length, checksum=checksum)
    except icechunk.IcechunkError:
        return "refused"
    try:
        found = asyncio.run(store.get(key, default_buffer_prototype()))
    except icechunk.IcechunkError as error:
        return f"error: {error}"
    return str(found.to_bytes().decode())


if __name__ == "__main__":
    json.dump(outcomes(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # Icechunk's threads may crash while Python shuts down
