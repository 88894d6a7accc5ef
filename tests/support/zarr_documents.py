"""``zarr.json`` documents for tests that speak to the store without zarr's arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def group(**changes: Any) -> bytes:
    """Make the metadata of a group."""
    return _encode({"attributes": {}, "zarr_format": 3, "node_type": "group"}, changes)


def array(
    shape: Sequence[int] = (4, 4), chunks: Sequence[int] | None = None, **changes: Any
) -> bytes:
    """Make the metadata of an array of bytes; a key that is changed to None is left out."""
    document = {
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(chunks) if chunks else [1] * len(shape)},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
        "dimension_names": None,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return _encode(document, changes)


def _encode(document: dict[str, Any], changes: dict[str, Any]) -> bytes:
    document = {key: value for key, value in (document | changes).items() if value is not None}
    return json.dumps(document, separators=(",", ":")).encode()
