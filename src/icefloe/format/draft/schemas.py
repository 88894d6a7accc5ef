"""The Arrow schemas of Parquet files, with all widenings and additions (docs/format/draft.md)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa


def _describe(
    name: str, data_type: pa.DataType, description: str, *, nullable: bool = True
) -> pa.Field:
    return pa.field(name, data_type, nullable, {"description": description})


_CHUNK_GRID: Final = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field(
            "configuration",
            pa.struct([pa.field("chunk_shape", pa.list_(pa.uint64()), nullable=False)]),
            nullable=False,
        ),
    ]
)
_CHUNK_KEY_ENCODING: Final = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field(
            "configuration",
            pa.struct([pa.field("separator", pa.string(), nullable=False)]),
            nullable=False,
        ),
    ]
)
CODECS: Final = pa.list_(
    pa.struct(
        [pa.field("name", pa.string(), nullable=False), pa.field("configuration", pa.binary())]
    )
)
ARRAY_METADATA: Final = pa.struct(
    [
        pa.field("shape", pa.list_(pa.uint64()), nullable=False),
        pa.field("data_type", pa.string(), nullable=False),
        pa.field("fill_value", pa.binary()),
        pa.field("dimension_names", pa.list_(pa.string())),
        pa.field("chunk_grid", _CHUNK_GRID),
        pa.field("chunk_key_encoding", _CHUNK_KEY_ENCODING),
        pa.field("codecs", CODECS),
    ]
)
ATTRS_REFERENCE: Final = pa.struct(
    [
        pa.field("attrs_file", pa.string(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("flags", pa.uint16()),
    ]
)
INVENTORIES: Final = pa.list_(
    pa.struct(
        [
            pa.field("inventory_file", pa.string(), nullable=False),
            pa.field("row", pa.uint32(), nullable=False),
            pa.field("extent", pa.list_(pa.list_(pa.uint32(), 2)), nullable=False),
            pa.field("flags", pa.uint16()),
        ]
    )
)
STRUCTURE: Final = pa.schema(
    [
        _describe("id", pa.uint32(), "unique identifier for the node", nullable=False),
        _describe("type", pa.string(), "array or group", nullable=False),
        _describe("path", pa.string(), "path to the node within the store", nullable=False),
        _describe("array_metadata", ARRAY_METADATA, "All the Zarr array metadata"),
        _describe(
            "inline_attrs", pa.binary(), "user-defined attributes, stored inline with this entry"
        ),
        _describe(
            "attrs_reference",
            ATTRS_REFERENCE,
            "user-defined attributes, stored in a separate attributes file",
        ),
        pa.field("inventories", INVENTORIES),
    ]
)
"""Structure files, ``s/*.parquet``."""

INVENTORY: Final = pa.schema(
    [
        pa.field("id", pa.uint32(), nullable=False),
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coord", pa.binary(), nullable=False),
        pa.field("inline_data", pa.binary()),
        pa.field("chunk_file", pa.string()),
        pa.field("offset", pa.uint64()),
        pa.field("length", pa.uint64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.uint32()),
    ]
)
"""Inventories, ``i/*.parquet``."""

ATTRIBUTES: Final = pa.schema([pa.field("attrs", pa.binary(), nullable=False)])
"""Attributes files, ``a/*.parquet``."""
