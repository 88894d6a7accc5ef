"""Codec of attributes files: one row of JSON per node (docs/format/draft.md).

Large attributes are stored here instead of in structure files, which are rewritten by each commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.errors import FormatError
from icefloe.format import attributes_files
from icefloe.format.draft import schemas
from icefloe.format.draft.parquet import (
    OBJECT_LIMITS,
    ParquetReader,
    ParquetWriter,
    is_readable,
    require_encodable,
    require_id,
    translate_errors,
)
from icefloe.format.generation import DRAFT
from icefloe.format.json_text import format_ascii_json, parse_extended_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.ids import AttributesId
    from icefloe.model.snapshot import Snapshot


def place_attributes(snapshot: Snapshot) -> tuple[Snapshot, Mapping[AttributesId, bytes]]:
    """Put large attributes that are in no file yet into one new file."""
    return attributes_files.place_attributes(
        snapshot,
        DRAFT,
        encode_row=format_ascii_json,
        encode_file=encode_attributes,
    )


def encode_attributes(attributes_id: AttributesId, rows: Sequence[bytes]) -> bytes:
    """Encode an attributes file from JSON texts."""
    require_encodable(sum(map(len, rows)), f"attributes file {attributes_id}")
    data = _write_rows(attributes_id, rows, is_compressed=True)
    if not is_readable(data, OBJECT_LIMITS):
        data = _write_rows(attributes_id, rows, is_compressed=False)
    return data


def _write_rows(
    attributes_id: AttributesId, rows: Sequence[bytes], *, is_compressed: bool
) -> bytes:
    writer = ParquetWriter(
        schemas.ATTRIBUTES,
        info={"attributes-id": str(attributes_id)},
        statistics=False,  # they would repeat whole values
        is_compressed=is_compressed,
    )
    writer.write_row_group([pa.array(rows, pa.binary())])
    return writer.finish()


def decode_attributes(
    data: bytes | memoryview, file: str, attributes_id: AttributesId
) -> list[dict[str, Any]]:
    """Decode an attributes file."""
    with translate_errors(file):
        reader = ParquetReader(data, schemas.ATTRIBUTES, file)
        require_id(reader.info, "attributes-id", attributes_id, file)
        texts = reader.read().column("attrs").to_pylist()
        return [load_attributes(text, file) for text in texts]


def load_attributes(text: bytes, file: str) -> dict[str, Any]:
    """Decode the attributes of a node."""
    attributes = parse_extended_json(text, "attributes", file)
    if not isinstance(attributes, dict):
        raise FormatError("attributes of a node are not a JSON object", file=file)
    return attributes
