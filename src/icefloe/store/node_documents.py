"""Checks that Zarr can open the ``zarr.json`` of a node, so that errors name the damaged file.

Zarr parses a document after the store has returned it, and then raises errors that name neither the
node nor the file. It takes about a quarter of a millisecond, so documents that are equal except for
attributes are checked once per process.
"""

from __future__ import annotations

import json
from functools import lru_cache

import zarr
from zarr.core.group import GroupMetadata
from zarr.storage import MemoryStore, StorePath


def require_readable(data: bytes) -> None:
    """Raise the error that Zarr raises when it opens an array or group with this document."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise TypeError("it is not a JSON object")
    attributes = document.pop("attributes", None)
    if not isinstance(attributes, dict | None):
        raise TypeError("its attributes are not a JSON object")
    grid = document.get("chunk_grid")
    if isinstance(grid, dict) and grid.get("name") == "rectilinear":
        return  # an experiment of Zarr, whose errors say how to enable it
    _open(json.dumps(document))


@lru_cache(maxsize=1024)
def _open(text: str) -> None:
    document = json.loads(text)
    if document.get("node_type") == "array":
        zarr.AsyncArray(document, StorePath(MemoryStore()))
    else:
        GroupMetadata.from_dict(document)
