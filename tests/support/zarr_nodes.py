"""Zarr metadata, and the keys of a store written and read: of icefloe's stores and Icechunk's.

Documents are as every generation returns them: compact, with members in the order of zarr-python.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from icefloe.store import IcechunkStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zarr.abc.store import Store


def group(**attributes: Any) -> bytes:
    """Return the ``zarr.json`` of a group."""
    return encode({"attributes": attributes, "zarr_format": 3, "node_type": "group"})


def array(
    shape: Sequence[int],
    chunks: Sequence[int] | None = None,
    *,
    names: Sequence[str | None] | None = None,
    **attributes: Any,
) -> bytes:
    """Return the ``zarr.json`` of an array of bytes; chunks of one element if not given."""
    chunk_shape = [1] * len(shape) if chunks is None else list(chunks)
    document: dict[str, Any] = {
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": attributes,
    }
    if names is not None:
        document["dimension_names"] = list(names)
    document |= {"zarr_format": 3, "node_type": "array", "storage_transformers": []}
    return encode(document)


def encode(document: dict[str, Any]) -> bytes:
    """Encode a document as all generations store it."""
    return json.dumps(document, separators=(",", ":")).encode()


def chunk_key(path: str, coords: Sequence[int]) -> str:
    """Return the key of a chunk of the array at a path without a slash in front."""
    return "/".join([path, "c", *map(str, coords)])


def put(store: Store, key: str, data: bytes) -> None:
    """Set the value of a key."""
    value = default_buffer_prototype().buffer.from_bytes(data)
    if isinstance(store, IcechunkStore):
        store.set_sync(key, value)
    else:
        sync(store.set(key, value))


def get(store: Store, key: str) -> bytes | None:
    """Return the value of a key, None if it has none."""
    if isinstance(store, IcechunkStore):
        found = store.get_sync(key)
    else:
        found = sync(store.get(key, default_buffer_prototype()))
    return None if found is None else found.to_bytes()


def delete(store: Store, key: str) -> None:
    """Delete a key."""
    if isinstance(store, IcechunkStore):
        store.delete_sync(key)
    else:
        sync(store.delete(key))


def delete_node(store: Store, path: str) -> None:
    """Delete a node and what is below it."""
    sync(store.delete_dir(path))


def contents(store: Store) -> dict[str, bytes]:
    """Return all keys and their values."""

    async def read() -> dict[str, bytes]:
        prototype = default_buffer_prototype()
        found = {}
        async for key in store.list():
            value = await store.get(key, prototype)
            assert value is not None, f"{key} is listed and has no value"
            found[key] = value.to_bytes()
        return found

    return sync(read())
